"""The ensemble: its members one by one, worlds it must learn to the digit, and what it does with bad data."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agents.codec import Codec
from agents.dynamics.ensemble import Ensemble, EnsembleConfig, split

A = torch.tensor([[0.9, 0.2], [-0.1, 0.8]])
B, C = torch.tensor([[0.0, 0.5]]), torch.tensor([0.1, -0.2])


class Rows:
    """Transitions as a replay gives them."""

    def __init__(self, obs, action, next_obs, task=None, terminated=None):
        n = len(obs)
        task = torch.zeros(n) if task is None else task
        terminated = torch.zeros(n) if terminated is None else terminated
        self.columns, self.added = (obs, action, next_obs, task, terminated, torch.zeros(n, dtype=torch.int64)), n

    def arrays(self):
        return self.columns


def codec(obs_size, action_size=1):
    box = spaces.Box(-np.inf, np.inf, (obs_size,), np.float32)
    return Codec(box, spaces.Box(-1, 1, (action_size,), np.float32))


def linear_world(rows=2000, seed=0, noise=0.0):
    """x' = A x + B u + c, in units that differ between the two numbers; reward x_0 + u."""
    draw = torch.Generator().manual_seed(seed)
    obs, action = torch.randn(rows, 2, generator=draw), torch.rand(rows, 1, generator=draw) * 2 - 1
    next_obs = obs @ A.T + action @ B + C + noise * torch.randn(rows, 2, generator=draw)
    unit = torch.tensor([1.0, 100.0])
    return Rows(obs * unit, action, next_obs * unit, obs[:, 0] + action[:, 0])


def ensemble(obs_size=2, action_size=1, seed=0, **settings):
    return Ensemble(codec(obs_size, action_size), EnsembleConfig(**{"hidden": [32, 32], **settings}), seed=seed)


def r2(predicted, true):
    return 1 - (predicted - true).square().mean(0) / true.var(0, correction=0)


def test_members_side_by_side_equal_a_loop_over_them():
    model = ensemble(members=3, norm="layer", terminations=True)
    model.fit(linear_world(), 20)
    obs, action = torch.randn(7, 2), torch.randn(7, 1)
    predicted = model.step(obs, action, sample=False, opinions=True)
    x = (torch.cat([obs, action], -1) - model.net.inputs.mean) / model.net.inputs.scale
    for k in range(3):
        low, high, *layers = [p[k] for p in model.net.parameters()]
        h = x
        for i in range(0, 8, 4):
            h = h @ layers[i] + layers[i + 1]
            h = torch.nn.functional.layer_norm(h, h.shape[-1:]) * layers[i + 2] + layers[i + 3]
            h = h * torch.sigmoid(h)
        out = h @ layers[8] + layers[9]
        log_var = high - torch.log1p(torch.exp(high - out[:, 3:6]))
        log_var = low + torch.log1p(torch.exp(log_var - low))
        torch.testing.assert_close(predicted.means[k], out[:, :2], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(predicted.stds[k], torch.exp(log_var / 2)[:, :2], rtol=1e-5, atol=1e-6)
    expected = obs + model.net.outputs.mean[:2] + predicted.means.mean(0) * model.net.outputs.scale[:2]
    torch.testing.assert_close(predicted.next_obs, expected)
    assert predicted.terminated.shape == (7,) and (predicted.terminated < 1).all()


@pytest.mark.parametrize("kind", ["gauss", "det"])
def test_a_linear_world_is_learned_and_so_is_its_reward(kind):
    model = ensemble(members=2, kind=kind, first_steps=1500)
    metrics = model.fit(linear_world())
    obs, action, next_obs, task, *_ = linear_world(500, seed=1).arrays()
    predicted = model.step(obs, action, sample=False)
    assert (r2(predicted.next_obs - obs, next_obs - obs) > 0.999).all() and r2(predicted.reward, task) > 0.999
    assert metrics["model_error"] < 0.03 and metrics["model_steps"] == 1500
