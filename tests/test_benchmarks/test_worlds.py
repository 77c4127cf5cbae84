"""Worlds of studies: their rewards by hand, and numbers beside an observation that leave the world as it is."""

import gymnasium as gym
import numpy as np
import pytest

from benchmarks import worlds


def test_a_point_earns_one_less_its_distance_from_the_place():
    env = worlds.Reach()
    env.reset(seed=0)
    env.point, env.place = 0.5, -0.25
    obs, reward, terminated, truncated, _ = env.step([-1.0])
    # 0.5 - 0.2 = 0.3, which is 0.55 from -0.25.
    assert obs == pytest.approx([0.3, -0.25])
    assert reward == pytest.approx(0.45)
    assert not terminated and not truncated


def test_numbers_that_drift_stand_beside_an_unchanged_world_and_remember_most_of_themselves():
    plain = gym.make("Pendulum-v1")
    drifting = worlds.Drifting(beside=500)
    first, _ = plain.reset(seed=3)
    obs, _ = drifting.reset(seed=3)
    assert obs.shape == drifting.observation_space.shape == (503,)
    assert obs[:3] == pytest.approx(first)
    next_obs = drifting.step([0.5])[0]
    assert next_obs[:3] == pytest.approx(plain.step([0.5])[0])
    # 500 pairs of a correlation of 0.95 and a deviation of 1.
    assert np.corrcoef(obs[3:], next_obs[3:])[0, 1] == pytest.approx(0.95, abs=0.02)
    assert next_obs[3:].std() == pytest.approx(1, abs=0.1)
    assert worlds.Drifting(beside=0).reset(seed=3)[0] == pytest.approx(first)
