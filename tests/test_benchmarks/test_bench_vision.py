"""The studies of learning from frames, a few steps long: they play, judge and sum up."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.studies import highway, progress, sentences
from runners.report.results import append_rows


@pytest.mark.parametrize(("name", "arm"), [("cartpole", "contrast"), ("mountaincar", "task"), ("pendulum", "random")])
def test_a_run_from_a_sentence_is_judged_by_the_task(name: str, arm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentences, "EPISODES", 2)
    short = {"n_steps": 32, "batch_size": 32, "n_epochs": 1}
    row = sentences.train(name, arm, 0, replace(sentences.TASKS[name], steps=64, n_envs=2, settings=short))
    assert 0 <= row["success"] <= 1
    assert row["length"] == 200
    assert row["goal_steps"] == row["task_return"]  # these tasks pay 1 for a step at the goal


def test_controls_change_what_the_sentence_means_and_nothing_else() -> None:
    task = sentences.TASKS["acrobot"]
    paid = {arm: sentences.reward_of(task, arm) for arm in sentences.ARMS if arm != "random"}
    assert paid["task"] == {"task": {}}
    assert paid["untrained"]["clip"] == {**paid["clip"]["clip"], "weights": "untrained"}
    assert paid["gibberish"]["clip"] == {**paid["clip"]["clip"], "goal": sentences.GIBBERISH}
    assert paid["contrast"]["contrast"]["negative"] == "an acrobot hanging down below the line"


def test_a_drive_counts_each_episode_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(highway, "EPISODES", 8)
    row = highway.drive(None, 0)
    assert row["collisions"] * 8 == round(row["collisions"] * 8)
    assert 0 < row["completion"] <= 1
    assert 60 < row["speed"] < 120
    still = highway.train("constant", 0, steps=128)
    assert still["steps"] == 128
    assert 0 <= still["collisions"] <= 1


def test_demonstrations_arrive_and_random_ones_do_not(tmp_path) -> None:
    from envs.recording import load

    for at_random, arrives in ((False, True), (True, False)):
        batch, _ = load(progress.demonstrations(tmp_path, at_random, 0))
        assert (batch.step == 0).sum() == progress.EPISODES
        assert batch.terminated.any() == arrives


def test_figures_are_means_of_the_middle_half_of_the_seeds(tmp_path) -> None:
    rows = [
        {"arm": arm, "seed": seed, "completion": c, "collisions": 0, "speed": 72, "task_return": 20}
        for arm in highway.ARMS
        for seed, c in enumerate((0.0, 0.5, 0.6, 0.7, 1.0))
    ]
    append_rows(tmp_path / "highway.csv", rows)
    figures = highway.run(tmp_path)
    assert figures["highway_lord_completion"] == pytest.approx(0.6)
    assert figures["highway_lord_speed"] == 72
    assert np.isfinite(list(figures.values())).all()
