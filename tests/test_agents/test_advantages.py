"""Advantages of several streams, by hand and against Stable-Baselines3's."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3.common.buffers import RolloutBuffer

from agents.ppo.seams import GAEInputs, advantages

GAMMA, LAMBDA = 0.5, 0.5


def one_column(rewards, values, terminated, truncated=None, last=None, valid=None, episodic=(True,)):
    """Advantages (T,) or (T, K) of one environment from plain lists."""
    shape = (len(rewards), 1)
    k = len(episodic)

    def column(x, default):
        return np.array(x if x is not None else [default] * shape[0]).reshape(shape)

    def streams(x):
        return np.repeat(np.array(x, np.float32).reshape(-1, 1, 1), k, axis=2)

    inputs = GAEInputs(
        streams(rewards), streams(values), streams(last if last is not None else [0.0] * shape[0]),
        column(terminated, False), column(truncated, False), column(valid, True),
        np.full(k, GAMMA, np.float32), LAMBDA, np.array(episodic),
    )  # fmt: skip
    out = advantages(inputs)
    return out[:, 0, 0] if k == 1 else out[:, 0]


def test_three_steps_by_hand():
    # delta = r + V'/2 - V = [1 + 1 - 1, 0 + 2 - 2, 2 + 0 - 4] = [1, 0, -2]; A = [1 + A1/4, 0 + A2/4, -2]
    got = one_column([1, 0, 2], [1, 2, 4, 0], [False, False, True])
    np.testing.assert_allclose(got, [1 - 0.125, -0.5, -2])


def test_a_termination_has_no_value_after_it_and_a_truncation_that_of_its_last_observation():
    values = [1.0, 1.0, 8.0]  # 8 belongs to the next episode
    np.testing.assert_allclose(one_column([0, 0], values, [False, True])[-1], -1)
    np.testing.assert_allclose(
        one_column([0, 0], values, [False, False], truncated=[False, True], last=[0.0, 4.0])[-1], 0.5 * 4 - 1
    )


def test_a_stream_that_is_not_episodic_goes_on_into_the_next_episode():
    got = one_column([1, 1, 1], [0, 0, 0, 2], [False, True, False], episodic=(True, False))
    np.testing.assert_allclose(got[:, 0], [1 + 0.25 * 1, 1, 2])
    np.testing.assert_allclose(got[:, 1], [1 + 0.25 * (1 + 0.25 * 2), 1 + 0.25 * 2, 2])


@pytest.mark.parametrize("episodic", [True, False])
def test_a_row_that_only_resets_changes_nothing(episodic):
    plain = one_column(
        [1, 2, 3], [1, 2, 3, 4], [False, False, False], [False, True, False], [0, 7, 0], episodic=(episodic,)
    )
    # the same with the reset spelled out: its row has the last observation's value, 7
    spelled = one_column(
        [1, 2, 0, 3], [1, 2, 7, 3, 4], [False] * 4, [False, True, False, False], [0, 7, 0, 0],
        [True, True, False, True], (episodic,),
    )  # fmt: skip
    np.testing.assert_allclose(spelled[[0, 1, 3]], plain)
    assert spelled[2] == 0


def test_an_episodic_stream_has_the_advantages_of_stable_baselines3():
    rng = np.random.default_rng(0)
    length, n = 50, 3
    space = gym.spaces.Box(-1, 1, (1,), np.float32)
    buffer = RolloutBuffer(length, space, space, device="cpu", gamma=0.97, gae_lambda=0.9, n_envs=n)
    rewards, values = rng.normal(size=(length, n)), rng.normal(size=(length + 1, n))
    terminated = rng.random((length, n)) < 0.1
    starts = np.concatenate([np.zeros((1, n), bool), terminated])
    for t in range(length):
        buffer.add(
            np.zeros((n, 1)), np.zeros((n, 1)), rewards[t], starts[t], torch.as_tensor(values[t]), torch.zeros(n)
        )
    buffer.compute_returns_and_advantage(torch.as_tensor(values[-1]), starts[-1])
    three, no = np.zeros((length, n, 1)), np.zeros_like(terminated)
    r, v = rewards[..., None].astype(np.float32), values[..., None].astype(np.float32)
    inputs = GAEInputs(r, v, three, terminated, no, ~no, np.array([0.97], np.float32), 0.9, np.array([True]))
    ours = advantages(inputs)
    np.testing.assert_allclose(ours[..., 0], buffer.advantages, rtol=1e-4, atol=1e-5)


def test_each_stream_has_its_own_discount():
    ones = np.ones((2, 1, 2), np.float32)
    no = np.zeros((2, 1), bool)
    inputs = GAEInputs(
        ones,
        np.zeros((3, 1, 2), np.float32),
        0 * ones,
        no,
        no,
        ~no,
        np.array([0.5, 1.0], np.float32),
        1.0,
        np.array([True, True]),
    )
    got = advantages(inputs)
    np.testing.assert_allclose(got[:, 0], [[1.5, 2.0], [1.0, 1.0]])
