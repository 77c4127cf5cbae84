"""A reward that remembers its episode and says nothing about relabelling, in the agents that have a replay."""

import csv

import numpy as np
import pytest

import rewards
from rewards.base import Reward
from runners.train import main


class Patience(Reward):
    """Steps of the episode so far, over 200."""

    requires = frozenset()

    def initial_memory(self, n):
        return {"steps": np.zeros(n, np.int64)}

    def score(self, batch, memory=None):
        after = {"steps": memory["steps"] + 1}
        return (after["steps"] / 200).astype(np.float32), after


@pytest.mark.parametrize(
    "agent",
    [
        ["agent=sac", "agent.train_freq=32"],
        [
            "agent=dyna",
            "agent.updates_per_step=0.02",
            "agent.members=1",
            "agent.rollouts_per_step=1",
            "agent.model_steps=1",
            "agent.model_hidden=[8]",
        ],
    ],
    ids=lambda agent: agent[0],
)
def test_a_reward_with_a_memory_trains_beyond_its_first_updates(agent, tmp_path, monkeypatch, short_fits):
    monkeypatch.setattr(rewards.table, "registered", {"patience": Patience})
    plain = ["video=false", "control=none", "eval_episodes=1", "eval_steps=10", f"run_dir={tmp_path / 'run'}"]
    steps = ["agent.net_arch=[8]", "agent.batch_size=8", "n_envs=4", "total_timesteps=1200", "log_every=400"]
    assert main(["env=Pendulum-v1", "reward=[patience]", *agent, *steps, *plain]) == 0
    rows = list(csv.DictReader((tmp_path / "run" / "metrics.csv").open()))
    assert float(rows[-1]["reward/patience"]) == pytest.approx(100.5 / 200, abs=0.2)
