"""Hand-computed losses that shape latents; a budget that is kept; empowerment where it is known."""

import math

import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces

from agents.networks.actor_critic import SpaceEncoding
from agents.world_model.model import (
    Empowerment,
    KLBudget,
    ObservationDecoder,
    barlow,
    divergence,
    infonce,
)
from lodestar.numerics.descent import Flat


def test_barlow_by_hand():
    said = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    assert barlow(said, 3 * said + 7).item() == pytest.approx(0, abs=1e-6)  # units do not matter
    twisted = said[:, [1, 0]]  # what one says is the other's: C = [[0, 1], [1, 0]]
    assert barlow(said, twisted, off_diagonal=0.25).item() == pytest.approx(2 + 0.25 * 2)
    assert barlow(said, -said).item() == pytest.approx(2 * 4)


def test_barlow_survives_a_constant_and_moves_the_latent_alone():
    said = torch.ones(6, 3, requires_grad=True)
    seen = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss = barlow(said, seen)
    loss.backward()
    assert loss.item() == pytest.approx(3) and torch.isfinite(said.grad).all() and seen.grad is None


def test_infonce_by_hand():
    said = torch.eye(3) * 5
    assert infonce(said, 2 * said, temperature=0.5).item() == pytest.approx(math.log(math.e**2 + 2) - 2)
    same = torch.ones(4, 2)
    assert infonce(same, same).item() == pytest.approx(math.log(4))  # nothing tells rows apart
    assert infonce(said, said[[1, 2, 0]], temperature=1.0).item() == pytest.approx(math.log(math.e + 2))


def test_reconstruction_is_measured_in_symlogs_space_and_in_shares_of_white():
    decoder = ObservationDecoder(SpaceEncoding(spaces.Box(-9, 9, (2,)), spaces.Discrete(2)), 1)
    vector = torch.tensor([[math.e - 1, -(math.e**2 - 1)]])
    image = {"eye": torch.tensor([0, 255, 51], dtype=torch.uint8).view(1, 1, 1, 3)}
    for numbers, gap in (([1.0, -2.0], 0), ([0.0, 0.0], 5)):
        decoder.forward = lambda _, numbers=numbers: (torch.tensor([numbers]), {"eye": torch.zeros(1, 1, 1, 3)})
        assert decoder.loss(None, vector, {}).item() == pytest.approx(gap, abs=1e-10)
        assert decoder.loss(None, vector, image).item() == pytest.approx(gap + 1 + 0.04)


def test_free_nats_take_the_gradient_away():
    dyn = torch.tensor([0.5, 3.0], requires_grad=True)
    loss = divergence(dyn, dyn.detach(), 1.0, 0.1, free=1.0)
    torch.testing.assert_close(loss, torch.tensor([1.1, 3.3]))
    loss.sum().backward()
    assert dyn.grad.tolist() == [0.0, 1.0]


def test_the_budget_is_spent_and_not_overspent():
    """q = N(mu, 1), p = N(0, 1): KL = mu^2 / 2. To be near 3 costs (mu - 3)^2 / 2.

    At a budget of 1/2, mu = 1, and beta (1 - balance) mu = 3 - mu gives beta = 2 / (1 - balance).
    """
    budget = KLBudget(0.5, learning_rate=0.05, balance=0.5)
    mu = torch.tensor(0.0, requires_grad=True)
    for _ in range(1000):
        kl = mu.square() / 2
        loss = (mu - 3).square() / 2 + budget(kl.detach(), kl)
        (grad,) = torch.autograd.grad(loss, mu)
        mu.data -= 0.1 * grad
    assert mu.square().item() / 2 == pytest.approx(0.5, abs=0.01)
    assert budget.log_beta.exp().item() == pytest.approx(4.0, abs=0.05)


def test_the_multiplier_falls_when_the_budget_is_not_spent_and_a_nan_leaves_it():
    budget = KLBudget(3.0, learning_rate=0.1, beta=1.0)
    loss = budget(torch.tensor(2.5), torch.tensor(2.5))
    assert loss.item() == pytest.approx(-0.5) and budget.log_beta.item() == pytest.approx(-0.05)
    budget(torch.tensor(100.0), torch.tensor(100.0))
    assert budget.log_beta.item() == pytest.approx(0.05)  # by its rate, not 97 times that
    budget(torch.tensor(math.nan), torch.tensor(0.0))
    assert budget.log_beta.item() == pytest.approx(0.05)
    other = KLBudget(3.0)
    other.load_state_dict(budget.state_dict())
    assert torch.equal(other.log_beta, budget.log_beta)


def learned(model, features, after, action, steps=150):
    flat = Flat.of_parameters(list(model.parameters()))
    for _ in range(steps):
        flat.grad.zero_()
        (-model.log_prob(features, after, action).mean()).backward()
        flat.step(1e-2, 10.0)
    return model


def seeded(*args):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return Empowerment(*args)


def test_empowerment_is_what_actions_change():
    """Four random actions: distinguished they have log 4 nats; where pairs do the same, log 2; else nothing."""
    chosen = torch.arange(128) % 4
    action, features = F.one_hot(chosen, 4).float(), torch.zeros(128, 2)
    log_pi = torch.full((128,), -math.log(4))
    for place, nats in ((chosen, math.log(4)), (chosen // 2, math.log(2)), (0 * chosen, 0.0)):
        after = features + torch.stack([place % 2, place // 2], -1)
        model = learned(seeded(2, 4, True, 32), features, after, action)
        assert (model.log_prob(features, after, action) - log_pi).mean().item() == pytest.approx(nats, abs=0.05)


def test_a_continuous_action_is_a_gaussian_around_what_was_read_off():
    model = Empowerment(2, 2, False, 4)
    with torch.no_grad():
        model.net[-1].weight.zero_()
        model.net[-1].bias.copy_(torch.tensor([0.5, -0.2, math.log(0.5), 0.0]))
    action = torch.tensor([[0.9, 0.1]])
    by_hand = torch.distributions.Normal(torch.tanh(torch.tensor([0.5, -0.2])), torch.tensor([0.5, 1.0]))
    got = model.log_prob(torch.zeros(1, 2), torch.zeros(1, 2), action)
    torch.testing.assert_close(got, by_hand.log_prob(action).sum(-1))


def test_a_continuous_action_is_worth_more_the_more_it_moves():
    g = torch.Generator().manual_seed(0)
    action, features = torch.rand(128, 1, generator=g) * 1.6 - 0.8, torch.randn(128, 1, generator=g)
    worth = []
    for push in (0.0, 0.3, 3.0):
        after = features + push * action + 0.3 * torch.randn(128, 1, generator=g)
        model = learned(seeded(1, 1, False, 32), features, after, action)
        worth.append(model.log_prob(features, after, action).mean().item())
    assert worth[0] < worth[1] - 0.02 < worth[2] - 0.5
