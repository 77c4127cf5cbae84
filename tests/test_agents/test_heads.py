"""Heads: what is spread over bins comes back as its mean, and losses are least at their target."""

import math

import pytest
import torch

from agents.networks.heads import HEADS, HLGauss, Mse, TwoHot, symexp, symlog

TARGETS = torch.linspace(-5, 5, 41)


@pytest.mark.parametrize(
    "head",
    [
        HLGauss(51, -2, 2),
        HLGauss(101, -8, 8),
        HLGauss(),
        TwoHot(),
        TwoHot(51, -5, 5),
    ],
    ids=["gauss", "gauss-wide", "gauss-default", "two-hot", "two-hot-narrow"],
)
def test_the_mean_of_a_spread_target_is_the_target_up_to_the_ends_of_the_range(head):
    spread = head.spread(TARGETS)
    torch.testing.assert_close(spread.sum(-1), torch.ones(41))
    torch.testing.assert_close(head.value(spread.clamp(min=1e-30).log()), TARGETS, atol=1e-4, rtol=1e-4)


def test_hl_gauss_is_the_histogram_of_a_gaussian_of_three_quarters_of_a_bin():
    head = HLGauss(11, -2, 2)  # centres from -5 to 5, one apart
    torch.testing.assert_close(head.centres, torch.arange(-5.0, 6.0))
    gauss = torch.distributions.Normal(torch.tensor(0.3), 0.75)
    edges = torch.arange(-5.5, 6.0)
    mass = gauss.cdf(edges).diff()
    torch.testing.assert_close(head.spread(symexp(torch.tensor(0.3))), mass / mass.sum(), atol=1e-6, rtol=1e-5)


def test_two_hot_weighs_the_two_neighbours_by_their_nearness():
    head = TwoHot(5, -2, 2)
    torch.testing.assert_close(
        head.spread(symexp(torch.tensor([0.25, -2.0]))), torch.tensor([[0, 0, 0.75, 0.25, 0], [1.0, 0, 0, 0, 0]])
    )


@pytest.mark.parametrize("name", ["mse", "hl_gauss", "two_hot"])
def test_the_loss_is_least_where_the_value_is_the_target(name):
    head, target = HEADS[name](), torch.tensor(1.7)
    out = torch.zeros(head.outputs, requires_grad=True)
    optimizer = torch.optim.Adam([out], 0.1)
    before = head.loss(out, target).item()
    for _ in range(1200):
        optimizer.zero_grad()
        head.loss(out, target).backward()
        optimizer.step()
    assert head.loss(out, target).item() < before
    assert head.value(out).item() == pytest.approx(1.7, abs=2e-3)


@pytest.mark.parametrize("name", ["hl_gauss", "two_hot"])
def test_targets_outside_the_range_are_cut_and_leave_finite_gradients(name):
    head = HLGauss(21, -1, 1) if name == "hl_gauss" else TwoHot(21, -1, 1)
    far = torch.tensor([1e6, -1e6, 0.0, 2.0])
    torch.testing.assert_close(head.spread(far[:1]), head.spread(symexp(torch.ones(1))))
    out = torch.zeros(4, head.outputs, requires_grad=True)
    head.loss(out, far).sum().backward()
    assert out.grad.isfinite().all()
    assert (out.grad.abs().amax(-1) > 0).all()


def test_a_checkpoint_whose_range_grew_is_refused_and_other_old_ones_load():
    old = {"scale": torch.tensor(7.0), "frac_clipped": torch.tensor(0.5)}
    with pytest.raises(ValueError, match="bins of another range"):
        HLGauss().load_state_dict(dict(old))
    TwoHot().load_state_dict(old | {"scale": torch.tensor(1.0)})


def test_symlog_and_symexp_undo_each_other():
    x = torch.tensor([-1e4, -1.0, 0.0, 1e-3, math.e - 1, 1e6])
    torch.testing.assert_close(symexp(symlog(x)), x, rtol=1e-4, atol=1e-6)
    assert symlog(torch.tensor(math.e - 1)).item() == pytest.approx(1)


def test_half_the_squared_error():
    assert Mse().loss(torch.tensor([[3.0]]), torch.tensor([1.0])).item() == 2
    assert Mse().value(torch.tensor([[3.0]])).item() == 3
