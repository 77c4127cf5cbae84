"""The benches of our PPO count what they say they count."""

import numpy as np
import pytest

from benchmarks.speed import ppo as bench_ppo
from benchmarks.studies import ppo_learning as bench_ppo_learning
from benchmarks.studies.ppo_learning import ARMS, Task
from runners.report import results

TINY = Task("CartPole-v1", 512, 2, {"n_steps": 64, "n_epochs": 1, "ent_coef": 0.01}, batched=True, seeds=2)


@pytest.mark.parametrize("agent", ["ours", "sb3"])
def test_shares_of_a_run_add_up_to_all_of_it(agent):
    shares = []
    build = bench_ppo._ours("CartPole-v1", 8, 2048, "gym", shares=shares)
    if agent == "sb3":
        build = bench_ppo._sb3("CartPole-v1", 8, 2048, shares)
    frames, work = build()
    work()
    (row,) = shares
    assert frames == 2048 and row["agent"] == agent
    assert sum(row[part] for part in (*bench_ppo.PARTS, "rest")) == pytest.approx(1, abs=1e-3)
    assert row["environment"] > 0.01 and row["inference"] > 0.01 and row["update"] > 0.1 and -0.01 < row["rest"] < 0.5


def test_the_bound_is_less_than_the_time_of_a_real_run():
    _, work = bench_ppo._ours("CartPole-v1", 8, 4096, "gym", shares=(shares := []))()
    work()
    assert 0 < bench_ppo._bound("CartPole-v1", 8) < shares[0]["seconds"] / 4096


def test_the_learning_study_runs_each_arm_once_and_judges_by_the_task(tmp_path, monkeypatch):
    monkeypatch.setattr(bench_ppo_learning, "TASKS", {"tiny": TINY})
    figures = bench_ppo_learning.learning(tmp_path := tmp_path / "results")
    rows = results.read_rows(tmp_path / "ppo_learning.csv")
    assert [(row["arm"], row["seed"]) for row in rows] == [(a, s) for s in "01" for a in ("ours", "batched", "sb3")]
    assert {row["steps"] for row in rows} == {"512"}
    keys = ("return_tiny_ours", "return_tiny_batched", "return_tiny_sb3")
    assert set(figures) == {key + end for key in keys for end in ("", "_low", "_high")}
    assert all(figures[f"{key}_low"] <= figures[key] <= figures[f"{key}_high"] for key in keys)
    assert (tmp_path.parent / "figures" / "ppo_learning.png").stat().st_size > 1000
    for arm in ("ours", "batched", "sb3"):
        returns = [float(row["return"]) for row in rows if row["arm"] == arm]
        assert figures[f"return_tiny_{arm}"] == pytest.approx(np.mean(returns))
    assert bench_ppo_learning.learning(tmp_path) == figures  # nothing is run twice
    assert results.read_rows(tmp_path / "ppo_learning.csv") == rows


def test_the_arms_of_the_streams_study_differ_in_the_bonus_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(bench_ppo_learning, "BONUS", {"tiny": (TINY, {"warmup": 0})})
    monkeypatch.setattr(bench_ppo_learning, "SEEDS", 1)
    figures = bench_ppo_learning.streams(tmp_path)
    assert set(figures) == {f"streams_tiny_{arm}{end}" for arm in ARMS for end in ("", "_low", "_high")}
    rows = results.read_rows(tmp_path / "ppo_streams.csv")
    assert [row["arm"] for row in rows] == list(ARMS)
