"""RND: a hand-set linear network and the paper's invariants; what it shares with others is in test_learned."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from rewards.check import random_rollout
from rewards.exploration.rnd import RND, RNDConfig

BOX, ACTIONS = spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Discrete(2)
GREY = spaces.Box(0, 255, (4, 40, 40), np.uint8)


def make(space=BOX, seed=0, **options):
    return RND(RNDConfig(**options), space, ACTIONS, seed=seed)


def rows(next_obs):
    """Transitions that end in `next_obs` (N, 2)."""
    next_obs = np.asarray(next_obs, np.float32)
    batch = random_rollout(BOX, ACTIONS, steps=len(next_obs), envs=1).flatten()
    return batch.replace(obs=next_obs, next_obs=next_obs)


def points(count, centre, seed=0):
    return rows(np.random.default_rng(seed).normal(centre, 1.0, (count, 2)))


def test_the_score_is_the_mean_squared_difference_of_hand_set_linear_networks():
    rnd = make(features=2)
    rnd.statistics.mean, rnd.statistics.var, rnd.statistics.count = np.array([1.0, 0.0]), np.array([4.0, 1.0]), 1
    for net, matrix in ((rnd.target, [[1.0, 0.0], [0.0, 1.0]]), (rnd.predictor, [[0.0, 0.0], [0.0, 3.0]])):
        net.dense = nn.Linear(2, 2, bias=False)
        net.dense.weight.data = torch.tensor(matrix)
    # x = (s' - (1, 0)) / (2, 1), clipped to 5; the difference is (x_0, -2 x_1)
    score = rnd.score(rows([[1, 0], [5, 0], [1, 3], [21, -9]]))
    np.testing.assert_allclose(score, [0, 4 / 2, 36 / 2, (25 + 100) / 2])


def test_it_falls_where_it_has_been_and_stays_high_where_it_has_not():
    rnd = make(learning_rate=1e-3)
    here, there = points(256, 0.0), points(256, 4.0)
    rnd.update(here)
    before = rnd.score(here).mean(), rnd.score(there).mean()
    losses = [rnd.update(here)["loss"] for _ in range(150)]
    assert losses[-1] < 0.1 * losses[0]
    assert rnd.score(here).mean() < 0.1 * before[0]
    assert rnd.score(there).mean() > 5 * rnd.score(here).mean()


def test_the_target_never_learns_and_the_predictors_gradient_is_shortened():
    rnd = make(max_grad_norm=0.01)
    before = copy.deepcopy(rnd.target.state_dict())
    rnd.update(points(64, 0.0))
    assert all(torch.equal(before[key], value) for key, value in rnd.target.state_dict().items())
    norm = torch.cat([p.grad.flatten() for p in rnd.predictor.parameters()]).norm()
    assert float(norm) == pytest.approx(0.01, rel=1e-3)


def test_depth_is_the_number_of_hidden_layers_of_the_predictor_alone():
    for depth in (1, 2, 3):
        rnd = make(depth=depth, hidden=7, features=3)
        assert [len(p) for p in rnd.predictor.parameters() if p.ndim == 2] == [7] * depth + [3]
        assert [len(p) for p in rnd.target.parameters() if p.ndim == 2] == [7, 3]
