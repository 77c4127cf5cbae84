"""ExploRS: returns and the design's gradient by hand, and a bonus for what turned out better."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rewards.check import check_reward, random_rollout
from rewards.design.explors import ExploRS, ExploRSConfig, returns_to_go

BOX, ACTIONS = spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(2)


def make(**options):
    return ExploRS(ExploRSConfig(**options), BOX, ACTIONS)


def test_it_keeps_the_contract():
    check_reward(ExploRS)


def test_returns_end_with_their_episode_and_go_on_with_the_value_where_it_is_not_seen():
    batch = random_rollout(BOX, ACTIONS, steps=4, envs=2)
    batch = batch.replace(
        reward=np.float32([[1, 1], [1, 1], [1, 1], [1, 1]]),
        terminated=np.array([[0, 0], [1, 0], [0, 0], [0, 0]], bool),
        truncated=np.array([[0, 0], [0, 0], [0, 1], [0, 0]], bool),
        valid=np.ones((4, 2), bool),
        step=np.array([[0, 0], [1, 1], [0, 2], [1, 0]]),
    )
    tail = np.full((4, 2), 8.0)
    # The first environment terminates in its second step, the second one runs out of time in its third.
    expected = [[1.5, 1 + 3.5 / 2], [1, 1 + 5 / 2], [1 + 5 / 2, 5], [5, 5]]
    np.testing.assert_allclose(returns_to_go(batch, tail, 0.5), expected)
    lost = batch.replace(valid=np.array([[1, 1], [0, 1], [1, 1], [1, 1]], bool))
    np.testing.assert_allclose(returns_to_go(lost, tail, 0.5)[:2, 0], [5, 0])


def test_the_gradient_of_the_design_by_hand():
    reward = make(size=0.1)
    outputs = torch.zeros(1, 2, requires_grad=True)
    reward.f = lambda x: outputs
    reward.clone = lambda x: torch.zeros(1, 2)
    reward.value = lambda x: torch.zeros(1, 1)
    action = torch.tensor([[1.0, 0.0]])
    losses = reward.loss(torch.zeros(1, 2), action, torch.ones(1))
    losses["design_loss"].backward()
    # pi (G - V) (1 - pi) = 0.25 for the action taken, the opposite for the other; descent ascends.
    np.testing.assert_allclose(outputs.grad, [[-0.025, 0.025]])
    assert float(losses["value_loss"]) == 1
    assert float(losses["clone_loss"]) == pytest.approx(np.log(2))


def test_what_turned_out_better_earns_more_and_no_more_than_its_size():
    reward = make(size=0.2, learning_rate=0.01)
    rng = np.random.default_rng(0)
    for _ in range(30):
        batch = random_rollout(BOX, ACTIONS, steps=32, envs=4, seed=int(rng.integers(1000)))
        # Episodes of one step, in which action 1 is right on the right, and action 0 on the left.
        is_right = (batch.obs[..., 0] > 0) == (batch.action == 1)
        ends = np.ones(batch.shape, bool)
        batch = batch.replace(
            reward=is_right.astype(np.float32), terminated=ends, truncated=~ends, valid=ends, step=np.zeros(batch.shape)
        )
        metrics = reward.update(batch)
    flat = batch.flatten()
    score = reward.score(flat)
    is_right = flat.reward > 0
    assert score[is_right].mean() > 0.1
    assert score[~is_right].mean() < -0.1
    assert np.abs(score).max() <= 0.2
    assert set(metrics) == {"value_loss", "clone_loss", "design_loss"}


def test_no_state_earns_for_all_actions_alike():
    reward = make(size=0.1)
    reward.f = lambda x: torch.tensor([[5.0, 5.0], [1.0, 3.0]])
    bonuses = reward._bonuses(torch.zeros(2, 2))
    expected = 0.1 * np.tanh([[0, 0], [-1, 1]])
    np.testing.assert_allclose(bonuses, expected, rtol=1e-6)


def test_actions_that_are_numbers_are_refused():
    with pytest.raises(ValueError, match="reward explors compares the actions of a Discrete space, not Box"):
        ExploRS(ExploRSConfig(), BOX, spaces.Box(-1, 1, (1,)))
