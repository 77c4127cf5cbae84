"""Stacked networks: each member is the network it would be alone."""

import pytest
import torch
import torch.nn.functional as F

from agents.networks.stacked import MOMENTUM, WARM_UP, Renorm, Stacked

X = torch.randn(7, 4, generator=torch.Generator().manual_seed(1))


def alone(net, member, x, norm="none", activation=F.relu):
    """The same network by torch's own layers, one member."""
    stack = [p[member] for p in net.weights()]
    while stack:
        weight, bias, *stack = stack
        x = F.linear(x, weight.T, bias[0])
        if not stack:
            return x
        if norm == "layer":
            gain, shift, *stack = stack
            x = F.layer_norm(x, x.shape[-1:], gain[0], shift[0])
        x = activation(x)


@pytest.mark.parametrize("norm", ["none", "layer"])
@pytest.mark.parametrize(("name", "activation"), [("relu", F.relu), ("silu", F.silu), ("mish", F.mish), ("elu", F.elu)])
def test_a_stack_equals_a_loop_over_its_members(norm, name, activation):
    net = Stacked(3, 4, [8, 5], 2, activation=name, norm=norm, seed=2)
    expected = torch.stack([alone(net, k, X, norm, activation) for k in range(3)])
    torch.testing.assert_close(net(X), expected, atol=1e-6, rtol=1e-6)
    own = torch.randn(3, 7, 4, generator=torch.Generator().manual_seed(3))
    expected = torch.stack([alone(net, k, own[k], norm, activation) for k in range(3)])
    torch.testing.assert_close(net(own), expected, atol=1e-6, rtol=1e-6)


def test_some_members_answer_as_they_do_among_all():
    net = Stacked(4, 4, [8], 2, norm="layer", seed=2)
    torch.testing.assert_close(net(X, net.members([2, 0])), net(X)[[2, 0]])
    torch.testing.assert_close(net(X, net.members(3)), net(X)[3:])


def test_without_hidden_layers_it_is_an_affine_map():
    net = Stacked(2, 4, [], 3, seed=0)
    weight, bias = net.weights()
    torch.testing.assert_close(net(X), X @ weight + bias)


def test_first_weights_follow_from_the_seed_and_leave_the_global_generator_alone():
    before = torch.random.get_rng_state()
    one, two, other = (Stacked(2, 4, [8], 2, seed=seed) for seed in (5, 5, 6))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(one(X), two(X))
    assert not torch.equal(one(X), other(X))
    assert not torch.equal(one(X)[0], one(X)[1])
    assert one.stack[0].abs().max() <= 1 / 2


def test_dropout_is_drawn_by_the_generator_that_is_given_and_keeps_the_mean():
    net = Stacked(1, 4, [200], 1, dropout=0.5, seed=1)
    assert torch.equal(net(X), net(X))
    same = [net(X, generator=torch.Generator().manual_seed(9)) for _ in range(2)]
    assert torch.equal(*same)
    assert not torch.equal(same[0], net(X))
    draws = torch.Generator().manual_seed(9)
    mean = torch.stack([net(X, generator=draws) for _ in range(500)]).mean(0)
    torch.testing.assert_close(mean, net(X), atol=0.05, rtol=0)


@pytest.mark.parametrize("norm", ["none", "layer", "batch"])
def test_folding_a_change_of_inputs_leaves_outputs_as_they_were(norm):
    net = Stacked(2, 4, [16, 16], 3, norm=norm, seed=4)
    if norm == "batch":
        for _ in range(300):
            net(X, batch_stats=True)
    scale, shift = torch.tensor([0.1, 3.0, 7.0]), torch.tensor([1.0, -2.0, 0.5])
    before = net(X)
    net.fold(scale, shift)
    moved = torch.cat([(X[:, :3] - shift) / scale, X[:, 3:]], -1)
    torch.testing.assert_close(net(moved), before, atol=2e-3 if norm == "batch" else 1e-5, rtol=1e-4)


def test_batch_statistics_standardise_and_running_ones_follow():
    layer = Renorm(1, 4)
    x = 5 + 3 * torch.randn(512, 4, generator=torch.Generator().manual_seed(0))
    out = layer(x, True)
    torch.testing.assert_close(out.mean(-2), torch.zeros(1, 4), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.std(-2), torch.ones(1, 4), atol=1e-2, rtol=0)
    torch.testing.assert_close(layer.mean[0, 0], MOMENTUM * x.mean(0))
    for _ in range(1500):
        layer(x, True)
    torch.testing.assert_close(layer(x), out, atol=1e-3, rtol=1e-3)


def test_after_the_warm_up_training_sees_what_acting_sees():
    layer = Renorm(1, 4)
    layer.steps.fill_(WARM_UP)
    layer.mean.fill_(0.5)
    x = 0.3 + 1.2 * torch.randn(512, 4, generator=torch.Generator().manual_seed(0))
    acting = layer(x)
    torch.testing.assert_close(layer(x, True), acting, atol=1e-5, rtol=1e-5)


def test_the_warm_up_lasts_a_number_of_batches():
    layer, x = Renorm(1, 1), torch.tensor([[5.0], [7.0]])
    layer.steps.fill_(WARM_UP - 2)
    raw = torch.tensor([[[-1.0], [1.0]]])
    torch.testing.assert_close(layer(x, True), raw, atol=1e-4, rtol=0)
    torch.testing.assert_close(layer(x, True), raw, atol=1e-4, rtol=0)
    assert layer(x, True).mean() > 1 and layer.steps == WARM_UP + 1
