"""Imagined transitions are stored without a reward and scored when they are sampled."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agents.dyna.imagination import ImaginedBuffer
from agents.dynamics.rollout import Imagined
from agents.networks.actor_critic import SpaceEncoding
from lodestar.state import pack, unpack

BOX = spaces.Box(-10, 10, (2,), np.float32)
CODEC = SpaceEncoding(BOX, spaces.Discrete(3))


def rollout(first, alive=((1, 1, 1), (1, 0, 1))):
    """Two steps of three rollouts; obs[0] numbers them from `first` on."""
    alive = torch.tensor(alive, dtype=torch.bool)
    h, b = alive.shape
    number = first + torch.arange(h * b, dtype=torch.float32).view(h, b)
    obs = torch.stack([number, number + 0.5], -1)
    zero = torch.zeros(())
    return Imagined(
        obs=obs,
        action=torch.eye(3)[torch.arange(h * b).view(h, b) % 3],
        next_obs=obs + 1,
        reward=torch.full((h, b), torch.nan),
        task=10 * number,
        penalty=number / 8,
        terminated=number % 2 == 1,
        alive=alive,
        log_prob=None,
        step=number.long() + 100,
        diverged=zero,
    )


def task(obs, action, next_obs, task, terminated, step):
    return task


def numbers(imagined, count=2000):
    return sorted(set(imagined.sample(count, 0.9).obs[:, 0].tolist()))


def test_alive_transitions_come_back_with_the_present_reward_less_the_penalty():
    prices = {"each": 1.0}

    def reward_function(obs, action, next_obs, task, terminated, step):
        assert terminated.dtype == torch.bool and step.dtype == torch.int64
        return prices["each"] * (obs[:, 0] + task + 1000 * terminated + step + 7 * action[:, 2])

    imagined = ImaginedBuffer(50, CODEC, reward_function)
    imagined.add(rollout(0))
    assert len(imagined) == 5 and numbers(imagined) == [0, 1, 2, 3, 5]
    for price in (1.0, -2.0):
        prices["each"] = price
        rows = imagined.sample(64, 0.9)
        n = rows.obs[:, 0]
        expected = price * (n + 10 * n + 1000 * (n % 2 == 1) + n + 100 + 7 * (n % 3 == 2)) - n / 8
        torch.testing.assert_close(rows.reward, expected)
        torch.testing.assert_close(rows.next_obs, rows.obs + 1)
        assert rows.action.argmax(-1).tolist() == (n % 3).tolist() and rows.step.tolist() == (n + 100).tolist()
        torch.testing.assert_close(rows.discount, 0.9 * (n % 2 == 0))


def test_newer_transitions_replace_older_ones():
    imagined = ImaginedBuffer(7, CODEC, task)
    for first in (0, 10, 20):
        imagined.add(rollout(first))
    assert len(imagined) == 7 and numbers(imagined) == [13, 15, 20, 21, 22, 23, 25]
    small = ImaginedBuffer(2, CODEC, task)
    small.add(rollout(0))
    assert numbers(small) == [3, 5]


@pytest.mark.parametrize(("retain", "left"), [(1, [20, 21, 22, 23, 25]), (2, [10, 11, 12, 13, 15, 20, 21, 22, 23, 25])])
def test_transitions_are_kept_for_retain_fits_of_the_model(retain, left):
    imagined = ImaginedBuffer(100, CODEC, task, retain=retain)
    for first in (0, 10, 20):
        imagined.forget_old_fits()
        imagined.add(rollout(first))
    assert numbers(imagined) == left


def test_transitions_carry_no_gradient():
    buffer = ImaginedBuffer(10, CODEC, task)
    imagined = rollout(0)
    buffer.add(replace(imagined, obs=imagined.obs.requires_grad_()))
    assert not buffer.sample(3, 0.9).reward.requires_grad and not buffer.table.requires_grad


def test_a_saved_buffer_continues_equally():
    first = ImaginedBuffer(7, CODEC, task, retain=2)
    first.add(rollout(0))
    first.forget_old_fits()
    first.add(rollout(10))
    second = ImaginedBuffer(7, CODEC, task, retain=2, seed=4)
    second.load_state_dict(unpack(*pack(first.state_dict())))
    for imagined in (first, second):
        imagined.forget_old_fits()
        imagined.add(rollout(20, alive=((0, 1, 1), (0, 0, 0))))
    for ours, theirs in zip(first.sample(32, 0.9), second.sample(32, 0.9)):
        assert torch.equal(ours, theirs)
    assert len(first) == len(second) == 7
