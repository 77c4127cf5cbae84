"""Reward signal: a number of the signals or of the observation, thresholds, and what is no number."""

import numpy as np
import pytest
from gymnasium import spaces

from envs.transitions import Transitions
from rewards.check import check_reward
from rewards.design.signal import Signal, SignalConfig
from runners.cli.compose import fill_goals
from runners.run.config import UsageError

BOX = spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = spaces.Discrete(2)


def batch_of(next_obs, signals):
    n = len(next_obs)
    zeros = np.zeros(n, np.float32)
    never = np.zeros(n, bool)
    obs = np.array(next_obs, np.float32)
    return Transitions(
        obs=obs,
        action=np.zeros(n, np.int64),
        reward=zeros,
        next_obs=obs,
        terminated=never,
        truncated=never,
        valid=~never,
        step=np.zeros(n, np.int64),
        signals=np.array(signals, np.float32),
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"column": 1}, [4, 5]),
        ({"column": 1, "above": 4.0}, [0, 1]),
        ({"column": 0, "below": 3.0}, [1, 0]),
        ({"column": 2, "of": "obs"}, [0.25, 0.75]),
        ({"column": 2, "of": "obs", "above": 0.5}, [0, 1]),
    ],
)
def test_it_is_a_column_or_whether_that_is_beyond_a_threshold(options, expected):
    reward = Signal(SignalConfig(**options), BOX, ACTIONS)
    batch = batch_of([[0, 0, 0.25], [0, 0, 0.75]], [[2, 4], [3, 5]])
    np.testing.assert_array_equal(reward.score(batch), np.array(expected, np.float32))


def test_it_keeps_the_contract():
    check_reward(Signal(SignalConfig(of="obs", column=1), BOX, ACTIONS))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, r"reward.signal.signal= has no known place among the signals here; give reward.signal.column="),
        ({"column": 0, "above": 1.0, "below": 0.0}, r"above=1.0 and reward.signal.below=0.0 are two thresholds"),
        ({"column": 3, "of": "obs"}, r"column=3 is beyond the last of 3; give 0 to 2"),
    ],
)
def test_what_is_no_number_of_the_environment_is_one_sentence(options, said):
    with pytest.raises(ValueError, match=said):
        Signal(SignalConfig(**options), BOX, ACTIONS)


def test_images_have_no_columns():
    with pytest.raises(ValueError, match="of=obs reads flat observations"):
        Signal(SignalConfig(column=0, of="obs"), spaces.Box(0, 255, (8, 8, 3), np.uint8), ACTIONS)


class Run:
    """What `fill_goals` reads of a configuration."""

    def __init__(self, env, **options):
        self.env = env
        self.reward = {"signal": SignalConfig(**options)}


def test_a_name_becomes_the_place_of_the_signal():
    run = Run("Pendulum-v1", signal="torque")
    fill_goals(run)
    assert run.reward["signal"].column == 2
    with pytest.raises(UsageError, match=r"reward.signal.signal='sped' is none of the signals of Pendulum-v1; give"):
        fill_goals(Run("Pendulum-v1", signal="sped"))
    with pytest.raises(UsageError, match=r"it has no names; give reward.signal.column="):
        fill_goals(Run("Hopper-v5", signal="speed", of="obs"))
