"""The study of preferences: its figures by hand, and what an arm is."""

import pytest

from benchmarks import jobs
from benchmarks.studies import preferences
from rewards.preference.bradley_terry import BradleyTerryConfig
from rewards.preference.judges import make_segment_judge


def rows(**returns):
    return [{"arm": arm, "seed": seed, "return": value} for arm, values in returns.items() for seed, value in values]


def test_the_ratio_is_the_share_of_the_way_from_random_to_the_tasks_reward():
    table = rows(
        random=[(0, -1200.0), (1, -1000.0)],
        task=[(0, -100.0)],
        preferences=[(0, -200.0), (1, -400.0)],
        frozen=[(0, -700.0)],
    )
    found = preferences.figures(table)
    assert found["preference_pendulum_ratio"] == pytest.approx(0.8)  # (-300 + 1100) / (-100 + 1100)
    assert found["preference_pendulum_frozen_ratio"] == pytest.approx(0.4)
    assert found["preference_pendulum_random"] == -1100
    assert "preference_pendulum_heron_ratio" not in found


def test_every_arm_is_a_reward_that_can_be_made():
    learnt = {arm: options for arm, options in preferences.ARMS.items() if options is not None}
    assert set(learnt) == {"preferences", "frozen", "heron"}
    for options in learnt.values():
        config = BradleyTerryConfig(**{**preferences.LABELS, **options})
        assert config.budget == 300
        assert make_segment_judge(config.judge, **config.judge_options).name == config.judge


def test_what_is_there_is_not_run_again_and_heron_comes_last(tmp_path, monkeypatch):
    asked = []

    def run_missing(folder, study, keys, wanted):
        asked.extend(values for _, values in wanted)
        return rows(random=[(0, -1.0)])

    monkeypatch.setattr(preferences, "run_missing", run_missing)
    assert preferences.run(tmp_path) == pytest.approx(
        {"preference_pendulum_random": -1, "preference_pendulum_random_low": -1, "preference_pendulum_random_high": -1}
    )
    assert len(asked) == 5 * len(preferences.ARMS)
    assert asked[:2] == [("random", 0), ("task", 0)]
    assert {arm for arm, _ in asked[-5:]} == {"heron"}
    assert jobs.run_missing is not run_missing


def test_a_short_run_of_each_kind_writes_its_row():
    short = {"steps": 400, "seed_steps": 100, "every": 100, "queries": 4, "length": 10, "epochs": 2}
    row = preferences.train("heron", 0, **short)
    assert row["labels"] == 8
    assert row["steps"] == 400
    assert -2000 < row["return"] < 0
    random = preferences.train("random", 0)
    assert (random["labels"], random["steps"], random["corr"]) == (0, 0, "")
