"""Fitted Q evaluation: the value of two policies by hand, and a range that no estimate leaves."""

from types import SimpleNamespace

import numpy as np
import pytest
from test_iql import CORRIDOR, GAMMA, STATES, TWO

from agents.offline import fitted
from agents.offline.fitted import fitted_value

# Both actions of three states in a row; only the first state begins an episode.
DATA = CORRIDOR.replace(step=np.array([0, 0, 1, 1, 2, 2]))


@pytest.fixture(autouse=True)
def small_networks(monkeypatch):
    """Three states need neither the layers nor the minibatches of a recording."""
    monkeypatch.setattr(fitted, "FITTED_UNITS", [32])
    monkeypatch.setattr(fitted, "FITTED_BATCH", 32)


def policy(*choices):
    """Takes these actions in the three states."""

    def predict(obs, deterministic):
        return np.array(choices)[obs], None

    return SimpleNamespace(observation_space=STATES, action_space=TWO, predict=predict)


@pytest.mark.parametrize(
    ("choices", "value"),
    [
        # Through all three states to the reward of 1.
        ((0, 1, 1), GAMMA**2),
        # The first state's own reward, which ends.
        pytest.param((1, 1, 1), 0.5, marks=pytest.mark.nightly),
        # The second state's action 0 ends without a reward.
        pytest.param((0, 0, 1), 0.0, marks=pytest.mark.nightly),
    ],
)
def test_a_policy_is_worth_its_discounted_return_from_the_first_states(choices, value):
    assert fitted_value(policy(*choices), DATA, steps=700, gamma=GAMMA) == pytest.approx(value, abs=0.06)


def test_an_estimate_stays_within_what_rewards_can_sum_up_to():
    endless = DATA.replace(
        terminated=np.zeros(6, bool), next_obs=np.array([0, 0, 1, 1, 2, 2]), reward=np.ones(6, np.float32)
    )
    value = fitted_value(policy(0, 0, 0), endless, steps=400, gamma=0.5)
    assert 1.5 < value < 2.1
