import numpy as np
import pytest

from rewards.mix.mix import clip, delta, potential, sigmoid


def test_potential_telescopes_over_an_episode_that_runs_out_of_time():
    rng = np.random.default_rng(0)
    phi = rng.normal(size=11)
    gamma = 0.9
    rewards = potential(phi[:-1], phi[1:], np.zeros(10, bool), gamma)
    discounted = (gamma ** np.arange(10) * rewards).sum()
    assert discounted == pytest.approx(gamma**10 * phi[-1] - phi[0], abs=1e-6)


def test_potential_is_zero_at_a_terminal_state():
    phi = np.array([1.0, 2.0, 3.0])
    terminated = np.array([False, True])
    rewards = potential(phi[:-1], phi[1:], terminated, 0.5)
    assert rewards.tolist() == [0.5 * 2 - 1, -2]
    assert (0.5 ** np.arange(2) * rewards).sum() == pytest.approx(-phi[0])


def test_delta_sums_to_what_was_gained():
    phi = np.array([0.5, 0.2, 0.9])
    assert delta(phi[:-1], phi[1:]).sum() == pytest.approx(0.4)


def test_clip_is_never_positive():
    assert clip(np.array([0.1, 0.5, 0.9]), 0.5).tolist() == pytest.approx([-0.4, 0, 0])


def test_sigmoid_is_zero_at_its_centre_and_bounded():
    values = sigmoid(np.array([0.3, 1e6, -1e6]), 0.3, 10.0)
    assert values.tolist() == pytest.approx([0, 0.5, -0.5])
    assert sigmoid(np.array([0.4]), 0.3, 10.0)[0] == pytest.approx(1 / (1 + np.exp(-1)) - 0.5)
