"""BYOL-Hindsight: what its critic hears, what it teaches, and noise that is no longer rewarded."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from envs.transitions import Transitions
from rewards.check import random_rollout
from rewards.exploration import byol_hindsight
from rewards.exploration.byol import BYOL, BYOLConfig, distance
from rewards.exploration.byol_hindsight import BYOLHindsight, BYOLHindsightConfig
from rewards.exploration.hindsight import Hindsight

BOX, ACTIONS = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)
MANY = spaces.Dict({"image": spaces.Box(0, 255, (3, 40, 40), np.uint8), "pose": BOX, "key": spaces.Discrete(3)})


def make(space=BOX, seed=0, **options):
    return BYOLHindsight(BYOLHindsightConfig(**options), space, ACTIONS, seed=seed)


def predictions(hindsight, rows=64, seed=0):
    """Made-up arguments of `error`."""
    generator = torch.Generator().manual_seed(seed)
    sizes = hindsight.width, hindsight.actions.size, hindsight.width, hindsight.width
    return [torch.randn(rows, size, generator=generator) for size in sizes]


def test_the_reward_is_reconstruction_over_lambda_and_information_against_the_bank():
    hindsight = make(temper=0.5, bank=40)
    before, action, ahead, target = predictions(hindsight)
    given = torch.cat([before, action], dim=1)
    with torch.no_grad():
        z = hindsight.chance(given, target, None)
        off = 2 * distance(hindsight.reconstructor(torch.cat([given, z], dim=1)), target)
        torch.testing.assert_close(hindsight.error(before, action, ahead, target), off)  # the bank is empty
        hindsight.negatives.add(z[:40])
        left, right = (net(x) for net, x in zip(hindsight.critic, (given, z)))
        pairs = left @ right.T / np.sqrt(hindsight.config.hidden)
        own = pairs.diagonal()
        mean = (own.exp() + pairs[:, :40].exp().sum(dim=1)) / 41
        torch.testing.assert_close(hindsight.error(before, action, ahead, target), off + own - mean.log())


def critic_hears(make_z, steps=150):
    """Information, nats, that a critic finds in `make_z(given)` once it has learnt, on rows it has not seen."""
    hindsight = make(temper=1e6, learning_rate=3e-3)  # reconstruction costs nothing
    hindsight.chance = lambda given, after, noise: make_z(given)
    for seed in range(steps):
        hindsight.costs(*predictions(hindsight, 128, seed))  # the critic steps within
    with torch.no_grad():
        return float(hindsight.error(*predictions(hindsight, 500, seed=10_000)).mean())


@pytest.mark.nightly
def test_the_critic_finds_nothing_in_a_z_that_is_independent_and_much_in_one_that_copies():
    generator = torch.Generator().manual_seed(0)
    assert abs(critic_hears(lambda given: torch.rand(len(given), 16, generator=generator) * 2 - 1)) < 0.1
    assert critic_hears(lambda given: torch.tanh(given[:, :16]), steps=60) > 1


def test_information_teaches_the_generator_and_neither_encoder_nor_loops():
    hindsight = make(temper=1e6)
    before, action, ahead, target = predictions(hindsight)
    before.requires_grad_()
    hindsight.costs(before, action, ahead, target)["information"].backward()
    assert before.grad is None
    assert any(p.grad.abs().max() > 0 for p in hindsight.generator_net.parameters())
    hindsight.costs(before, action, ahead, target)["reconstruction_loss"].backward()
    assert before.grad.abs().max() > 0


def test_pieces_of_predictions_are_each_others_negatives(monkeypatch):
    hindsight = make()
    before, action, _, target = predictions(hindsight, 50)
    given = torch.cat([before, action], dim=1)
    z = hindsight.chance(given, target, None)
    whole = [Hindsight.batch_information(hindsight, given[i : i + 20], z[i : i + 20]) for i in (0, 20, 40)]
    monkeypatch.setattr(byol_hindsight, "CRITIC_ROWS", 20)
    expected = (20 * whole[0] + 20 * whole[1] + 10 * whole[2]) / 50
    torch.testing.assert_close(hindsight.batch_information(given, z), expected)


def test_without_invariance_it_rewards_and_learns_reconstruction_alone():
    hindsight = make(invariance=0.0, temper=1.0)
    batch = random_rollout(BOX, ACTIONS)
    assert set(hindsight.update(batch)) == {"reconstruction_loss"}
    raw = hindsight.scan(batch, hindsight.initial_memory(4))[0]
    assert (raw >= 0).all() and (raw <= 4).all()


def half_noise(points, steps=8, envs=16, seed=0):
    """Walks around `points` (P, 4), with four numbers of fresh noise beside them."""
    rng = np.random.default_rng(seed)
    place = points[(rng.integers(0, len(points), envs) + np.arange(steps + 1)[:, None]) % len(points)]
    obs = np.concatenate([place, rng.normal(size=place.shape)], axis=2).astype(np.float32)
    no = np.zeros((steps, envs), bool)
    step = np.arange(steps)[:, None] + no
    return Transitions(obs[:-1], no.astype(int), no.astype(np.float32), obs[1:], no, no, ~no, step)


@pytest.mark.nightly
def test_noise_beside_a_known_cycle_is_no_longer_rewarded_while_a_new_cycle_is():
    space = spaces.Box(-3, 3, (8,), np.float32)
    points = np.random.default_rng(0).normal(size=(10, 4))
    share = {}
    for kind, config in ((BYOL, BYOLConfig), (BYOLHindsight, BYOLHindsightConfig)):
        reward = kind(config(horizon=2), space, ACTIONS)
        for seed in range(80):
            reward.update(half_noise(points[:5], seed=seed))
        known, new = (
            reward.scan(half_noise(p, seed=1000), reward.initial_memory(16))[0].mean() for p in (points[:5], points[5:])
        )
        share[kind] = known / new
    assert share[BYOL] > 0.35
    assert share[BYOLHindsight] < 0.5 * share[BYOL]
