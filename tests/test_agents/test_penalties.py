"""Penalties for uncertainty: each hand-computed, and against an independent computation."""

import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from agents.dynamics import Predicted
from agents.dynamics.rollout import PENALTIES


def predicted(means, stds=None):
    means = torch.tensor(means)
    stds = None if stds is None else torch.tensor(stds)
    return Predicted(means[0], means[0, :, 0], None, means, stds)


# Two members, two transitions, two numbers. Of the first transition the members think 5 apart; of the second the same.
TWO = predicted(
    [[[0.0, 0.0], [1.0, 1.0]], [[3.0, 4.0], [1.0, 1.0]]], [[[3.0, 4.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 2.0]]]
)


def several(members=4, rows=6, size=3):
    draw = torch.Generator().manual_seed(0)
    means = torch.randn(members, rows, size, generator=draw)
    stds = 0.2 + torch.rand(members, rows, size, generator=draw)
    return Predicted(means[0], means[0, :, 0], None, means, stds)


def test_the_aleatoric_penalty_is_the_longest_vector_of_deviations():
    torch.testing.assert_close(PENALTIES["aleatoric_max"](TWO), torch.tensor([5.0, 2.0]))


def test_the_pairwise_penalty_is_the_widest_distance_between_two_means():
    torch.testing.assert_close(PENALTIES["pairwise_max"](TWO), torch.tensor([5.0, 0.0]))
    three = predicted([[[0.0]], [[1.0]], [[-2.0]]])
    torch.testing.assert_close(PENALTIES["pairwise_max"](three), torch.tensor([3.0]))


def test_the_ensemble_variance_adds_what_members_expect_to_how_they_differ():
    # First: means vary by (1.5^2, 2^2) = 6.25 in sum; their variances are on average (9 + 1) / 2 + 16 / 2 = 13.
    # Second: no variance between, (1 + 0) / 2 + (0 + 4) / 2 = 2.5 within.
    torch.testing.assert_close(PENALTIES["ens_var"](TWO), torch.tensor([19.25, 2.5]))
    torch.testing.assert_close(PENALTIES["ens_std"](TWO), torch.tensor([math.sqrt(19.25), math.sqrt(2.5)]))


def test_the_ensemble_variance_is_that_of_samples_from_the_mixture():
    members = predicted([[[0.0]], [[1.0]], [[5.0]]], [[[1.0]], [[0.5]], [[2.0]]])
    draw = torch.Generator().manual_seed(0)
    member = torch.randint(3, (400_000,), generator=draw)
    samples = members.means[member, 0, 0] + members.stds[member, 0, 0] * torch.randn(400_000, generator=draw)
    torch.testing.assert_close(PENALTIES["ens_var"](members), samples.var()[None], rtol=0.01, atol=0)


def test_without_deviations_the_ensemble_variance_is_that_of_the_means():
    members = predicted([[[0.0]], [[4.0]]])
    torch.testing.assert_close(PENALTIES["ens_var"](members), torch.tensor([4.0]))
    torch.testing.assert_close(PENALTIES["ens_std"](members), torch.tensor([2.0]))


def test_with_two_members_leave_one_out_compares_each_with_the_other():
    # KL(N(0, 1) || N(2, 2^2)) = log 2 + (1 + 4) / 8 - 1/2; the other way round: -log 2 + (4 + 4) / 2 - 1/2.
    members = predicted([[[0.0]], [[2.0]]], [[[1.0]], [[2.0]]])
    by_hand = ((math.log(2) + 5 / 8 - 0.5) + (-math.log(2) + 4 - 0.5)) / 2
    torch.testing.assert_close(PENALTIES["loo_kl"](members), torch.tensor([by_hand]))


def test_leave_one_out_equals_a_loop_over_members():
    members = several()
    gaps = []
    for k in range(4):
        rest = [i for i in range(4) if i != k]
        mean = members.means[rest].mean(0)
        variance = (members.stds[rest].square() + members.means[rest].square()).mean(0) - mean.square()
        gaps.append(kl_divergence(Normal(members.means[k], members.stds[k]), Normal(mean, variance.sqrt())).sum(-1))
    torch.testing.assert_close(PENALTIES["loo_kl"](members), torch.stack(gaps).mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", PENALTIES)
def test_agreement_costs_less_than_disagreement_and_where_all_zero_lies_does_not_matter(name):
    members = several()
    uncertainty = PENALTIES[name](members)
    agreed = Predicted(members.next_obs, members.reward, None, members.means[:1].expand(4, -1, -1), members.stds / 10)
    moved = Predicted(members.next_obs, members.reward, None, members.means + 7, members.stds)
    assert uncertainty.shape == (6,) and (PENALTIES[name](agreed) < uncertainty).all()
    torch.testing.assert_close(PENALTIES[name](moved), uncertainty, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", PENALTIES)
def test_members_that_agree_to_the_digit_give_finite_gradients(name):
    means, stds = torch.zeros(3, 2, 2, requires_grad=True), torch.zeros(3, 2, 2, requires_grad=True)
    PENALTIES[name](Predicted(means[0], means[0, :, 0], None, means, stds)).sum().backward()
    for gradient in (means.grad, stds.grad):
        assert gradient is None or torch.isfinite(gradient).all()
