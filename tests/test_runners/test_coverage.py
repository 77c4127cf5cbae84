"""How many cells a run saw, counted by hand."""

import csv
import math

import gymnasium as gym
import numpy as np
import pytest

from runners.run.config import UsageError
from runners.run.coverage import Coverage
from runners.train import main

BOX = gym.spaces.Box(-1, 1, (3,), np.float32)


def test_noise_beside_the_place_is_no_new_cell():
    coverage = Coverage("0:2", 0.5, BOX)
    for noise in (-1, 0, 1):
        coverage.add(np.float32([[0, 0, noise], [1, 0, noise]]))
    coverage.add(np.float32([[0.1, -0.1, 0], [0, 1, 0]]))  # the first rounds to a cell that was seen
    metrics = coverage.metrics()
    assert metrics["coverage/cells"] == metrics["coverage/recent"] == 3
    shares = (4 / 8, 3 / 8, 1 / 8)
    assert metrics["coverage/entropy"] == pytest.approx(-sum(share * math.log(share) for share in shares))


def test_recent_cells_are_those_since_the_last_row_also_after_a_resume():
    coverage, after = Coverage("all", 0.5, BOX), Coverage("all", 0.5, BOX)
    coverage.add(np.float32([[0, 0, 0], [1, 1, 1]]))
    coverage.metrics()
    coverage.add(np.float32([[1, 1, 1]]))
    after.load_state_dict(coverage.state_dict())
    after.add(np.float32([[-1, 0, 0]]))
    assert after.metrics()["coverage/cells"] == 3
    assert coverage.metrics()["coverage/recent"] == 1


@pytest.mark.parametrize(("of", "space"), [("2:5", BOX), ("1", BOX), ("0:2", gym.spaces.Discrete(3))])
def test_a_part_that_is_not_there_is_refused(of, space):
    with pytest.raises(UsageError, match=f"coverage={of} is no part of the observation"):
        Coverage(of, 0.1, space)


@pytest.mark.parametrize("agent", ["ppo", "a2c", "dyna"])
def test_every_loop_of_an_agent_counts(agent, tmp_path):
    keys = {"ppo": "agent.n_steps=32 n_envs=2", "a2c": "agent=a2c n_envs=2", "dyna": "agent=dyna agent.preset=sac"}
    env = "Pendulum-v1" if agent == "dyna" else "lodestar/DeepSea-v0"
    run = f"env={env} {keys[agent]} preset=none total_timesteps=64 coverage=all coverage_bin=0.01 video=false"
    code = main([*run.split(), "eval_episodes=0", "control=none", "logger=[]", f"run_dir={tmp_path}/run"])
    with open(tmp_path / "run" / "metrics.csv") as file:
        row = list(csv.DictReader(file))[-1]
    assert code == 0
    assert 10 <= float(row["coverage/cells"]) <= 64
