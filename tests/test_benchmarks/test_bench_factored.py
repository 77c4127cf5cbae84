"""The study of factored worlds: what its arms share, and figures from rows by hand."""

import numpy as np
import pytest

from benchmarks.studies import factored
from envs.exploration.factored import distances, leads
from runners.report import results, statistics


def test_arms_differ_in_what_they_learn_from_and_how_often():
    from agents.dyna.agent import DynaConfig

    configs = {arm: DynaConfig(**{**factored.SETTINGS, **changes}) for arm, changes in factored.ARMS.items()}
    assert {arm: c.update for arm, c in configs.items()} == {
        "factored": "buffer",
        "replay": "none",
        "replay_longer": "none",
        "random": "none",
    }
    assert configs["factored"].model == "factored" and configs["factored"].real_ratio == 0
    assert configs["factored"].updates_per_step == configs["replay"].updates_per_step
    for name in ("net_arch", "batch_size", "learning_rate", "gamma", "epsilon", "normalize_obs", "buffer_size"):
        assert len({str(getattr(c, name)) for c in configs.values()}) == 1, name


@pytest.mark.parametrize("arm", ["factored", "replay", "random"])
def test_a_short_run_of_each_answers_in_the_same_columns(arm):
    small = {"model_every": 200, "model_steps": 10, "batch_size": 32, "net_arch": [16], "model_hidden": [16]}
    if arm != "random":
        small["learning_starts"] = 300
    row = factored.train("procmaze", arm, 0, steps=400, **small)
    assert list(row) == ["return", "steps", "updates", "seconds"]
    assert 0 <= row["return"] <= 1 and row["steps"] == 400
    assert row["updates"] == (0 if arm == "random" else 4 * 26)  # after 300, 304, ..., 400 steps, one each


def test_the_best_return_of_a_small_grid_is_that_of_its_shortest_ways(monkeypatch):
    from envs.make import make

    monkeypatch.setitem(factored.WORLDS, "procmaze", factored.World("lodestar/ProcMaze-v0", 1, {"size": 2}))
    # A tree of four cells is a way of four: start and goal are 1, 2 or 3 steps apart in 6, 4 and 2 of 12 pairs.
    expected = (6 + 4 * 0.5 + 2 * 0.25) / 12
    assert factored.best("procmaze", 0.5, episodes=3000) == pytest.approx(expected, abs=0.02)
    env = make("lodestar/ButtonGrid-v0", size=2, buttons=1)
    env.reset(seed=0)
    assert 2 <= env.unwrapped.shortest() <= 3  # one or two moves, and a press


def test_a_policy_is_judged_by_one_episode_of_each_environment(monkeypatch):
    monkeypatch.setitem(factored.WORLDS, "procmaze", factored.World("lodestar/ProcMaze-v0", 1, {"size": 2}))

    class Guide:  # takes the shortest way
        config = type("Config", (), {"gamma": 0.5})

        def predict(self, obs):
            walls, (agent, goal) = obs.reshape(-1, 4, 4)[:, :2], obs.reshape(-1, 4, 4)[:, 2:].argmax(-1).T
            return np.array([self.way(w > 0, a, g) for w, a, g in zip(walls, agent, goal)]), None

        def way(self, walls, agent, goal):
            ways = leads(walls)
            return distances(ways, [goal])[ways[agent]].argmin()

    monkeypatch.setattr(factored, "EPISODES", 400)
    assert factored.judged(Guide(), "procmaze") == pytest.approx((6 + 4 * 0.5 + 2 * 0.25) / 12, abs=0.05)


def test_figures_are_interquartile_means_of_the_rows(tmp_path):
    rows = [
        {"world": w, "arm": a, "seed": s, "return": r / 10, "steps": 1, "updates": 1, "seconds": 60 + s}
        for w in factored.WORLDS
        for a in factored.ARMS
        for s, r in enumerate((1, 2, 4, 9, 3))
    ]
    results.append_rows(tmp_path / "factored.csv", rows)
    figures = factored.run(tmp_path)  # nothing is missing, so nothing runs
    assert len(figures) == 2 * (4 * 4 + 1)
    expected = statistics.iqm([0.1, 0.2, 0.4, 0.9, 0.3])
    assert figures["procmaze_factored_return"] == figures["buttongrid_replay_return"] == pytest.approx(expected)
    assert figures["procmaze_replay_low"] <= expected <= figures["procmaze_replay_high"]
    assert figures["buttongrid_random_seconds"] == pytest.approx(62.0)
