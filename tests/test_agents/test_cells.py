"""Cells of world models: memory, resets, predictions; hand-computed samples and divergences."""

import math

import pytest
import torch

from agents.dynamics.cells import RSSM, SSM, Categoricals, Mamba, SimNorm, _SelectiveScan, scan

L, B, E, A = 11, 3, 6, 2
CELLS = {
    "rssm": lambda a, g: RSSM(E, a, memory=10, groups=3, classes=4, hidden=12, generator=g),
    "ssm": lambda a, g: SSM(E, a, memory=10, layers=2, groups=3, classes=4, hidden=12, generator=g),
    "mamba": lambda a, g: Mamba(E, a, memory=10, layers=2, groups=3, classes=4, hidden=12, generator=g),
    "simnorm": lambda a, g: SimNorm(E, a, latent=12, simplex=4, hidden=12, generator=g),
}


def cell_of(kind, actions=A, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        cell = CELLS[kind](actions, torch.Generator().manual_seed(seed))
        for p in cell.parameters():  # biases too, or zeros would hide what is missing
            p.data.add_(0.1 * torch.randn_like(p))
    return cell


def sequence(seed=0, actions=A, discrete=False):
    g = torch.Generator().manual_seed(seed)
    action = torch.rand(L, B, actions, generator=g) * 2 - 1
    if discrete:
        action = torch.nn.functional.one_hot(action.argmax(-1), actions).float()
    first = torch.zeros(L, B, dtype=torch.bool)
    first[0], first[4, 1], first[7, 0], first[8, 0] = True, True, True, True
    return torch.randn(L, B, E, generator=g), action, first


def last(states, t=-1):
    return {name: value[t] for name, value in states.items()}


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("discrete", [False, True])
def test_shapes_are_those_of_the_contract(kind, discrete):
    actions = 5 if discrete else 2
    cell = cell_of(kind, actions)
    embed, action, first = sequence(actions=actions, discrete=discrete)
    states, stats = cell.observe(embed, action, first)
    assert {name: value.shape for name, value in states.items()} == {n: (L, B, s) for n, s in cell.sizes.items()}
    assert cell.features(states).shape == (L, B, cell.size)
    assert {name: value.shape for name, value in cell.initial(7).items()} == {n: (7, s) for n, s in cell.sizes.items()}
    flat = {name: value.flatten(0, 1) for name, value in states.items()}
    after = cell.step(flat, action.flatten(0, 1))
    assert {name: value.shape for name, value in after.items()} == {n: (L * B, s) for n, s in cell.sizes.items()}
    if kind == "simnorm":
        assert not stats
    else:
        assert [x.shape for x in cell.kl(stats)] == [(L, B), (L, B)]


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("cut", [1, 5, 8, 10])  # 8 is an episode's start for one of the rows
def test_a_sequence_in_two_parts_equals_the_whole(kind, cut):
    cell = cell_of(kind)
    embed, action, first = sequence()
    whole, stats = cell.observe(embed, action, first, sample=False)
    head, head_stats = cell.observe(embed[:cut], action[:cut], first[:cut], sample=False)
    between = cell.step(last(head), action[cut - 1], sample=False)
    tail, tail_stats = cell.observe(embed[cut:], action[cut:], first[cut:], between, sample=False)
    for name in whole:
        torch.testing.assert_close(torch.cat([head[name], tail[name]]), whole[name], atol=1e-5, rtol=1e-5)
    for name in stats:
        torch.testing.assert_close(torch.cat([head_stats[name], tail_stats[name]]), stats[name], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", CELLS)
def test_an_episodes_start_forgets_all_before(kind):
    cell = cell_of(kind)
    embed, action, first = sequence()
    other_embed, other_action = embed.clone(), action.clone()
    other_embed[:4], other_action[:4] = 9.0, -0.5
    a = cell.features(cell.observe(embed, action, first, sample=False)[0])
    b = cell.features(cell.observe(other_embed, other_action, first, sample=False)[0])
    assert torch.equal(a[4:, 1], b[4:, 1])  # row 1 begins anew at 4
    assert torch.equal(a[7:, 0], b[7:, 0])
    assert torch.equal(a[4:, 2], b[4:, 2]) == (kind == "simnorm")  # row 2 never does
    state = {name: torch.ones_like(value) for name, value in cell.initial(B).items()}
    c = cell.features(cell.observe(embed, action, first, state, sample=False)[0])
    assert torch.equal(a, c)  # the sequence begins with a start: what came before does not matter


@pytest.mark.parametrize("kind", ["rssm", "ssm", "mamba"])
def test_what_was_done_and_seen_is_remembered_and_what_comes_is_not_known(kind):
    cell = cell_of(kind)
    embed, action, first = sequence()
    first[1:] = False
    a, _ = cell.observe(embed, action, first, sample=False)
    pushed = action.clone()
    pushed[3] += 0.5
    b, _ = cell.observe(embed, pushed, first, sample=False)
    assert torch.equal(a["h"][:4], b["h"][:4]) and not torch.equal(a["h"][4], b["h"][4])
    seen = embed.clone()
    seen[3] *= -3
    c, _ = cell.observe(seen, action, first, sample=False)
    assert torch.equal(a["h"][:4], c["h"][:4]) and not torch.equal(a["z"][3], c["z"][3])
    assert not torch.equal(a["h"][4], c["h"][4])


@pytest.mark.parametrize("kind", ["rssm", "ssm", "mamba"])
def test_samples_are_the_generators_alone(kind):
    embed, action, first = sequence()
    before = torch.default_generator.get_state()
    a, b, c = (cell_of(kind) for _ in range(3))
    c.generator.manual_seed(1)
    z = [cell.observe(embed, action, first)[0]["z"] for cell in (a, b, c)]
    assert torch.equal(z[0], z[1]) and not torch.equal(z[0], z[2])
    assert torch.equal(z[0].unflatten(-1, (-1, 4)).sum(-1), torch.ones(L, B, 3))
    assert torch.equal(torch.default_generator.get_state(), before)


@pytest.mark.parametrize("kind", CELLS)
def test_every_weight_is_learned_through_time(kind):
    cell = cell_of(kind)
    embed, action, first = sequence()
    embed.requires_grad_()
    states, stats = cell.observe(embed, action, first)
    after = cell.step(last(states), action[-1])
    loss = cell.features(states).square().sum() + (cell.features(after) * torch.arange(cell.size)).sum()
    if kind != "simnorm":
        dyn, rep = cell.kl(stats)
        loss = loss + dyn.sum() + rep.sum()
    loss.backward()
    for name, p in cell.named_parameters():
        assert p.grad is not None and torch.isfinite(p.grad).all() and p.grad.abs().sum() > 0, name
    assert (embed.grad.abs().sum(-1) > 0).all()


def test_a_sample_is_drawn_as_often_as_its_probability_says():
    latent = Categoricals(2, 3, uniform=0.3)
    chances = latent.probabilities(torch.tensor([[0.0, math.log(2), math.log(5), 0.0, 0.0, 0.0]]))
    expected = [0.1 + 0.7 * 1 / 8, 0.1 + 0.7 * 2 / 8, 0.1 + 0.7 * 5 / 8]
    torch.testing.assert_close(chances[0, 0], torch.tensor(expected))
    torch.testing.assert_close(chances[0, 1], torch.full((3,), 1 / 3))
    many = chances.expand(40_000, 2, 3)
    drawn = latent.sample(many, latent.uniforms(torch.Generator().manual_seed(0), 40_000)).mean(0)
    torch.testing.assert_close(drawn[:3], torch.tensor(expected), atol=0.01, rtol=0)
    assert latent.sample(chances, None)[0, :3].tolist() == [0, 0, 1]


def test_gradients_pass_a_sample_as_if_it_were_its_probabilities():
    latent = Categoricals(1, 3, uniform=0.01)
    logits = torch.tensor([[0.3, -0.2, 0.1]], requires_grad=True)
    weight = torch.tensor([1.0, -2.0, 3.0])
    (latent.sample(latent.probabilities(logits), None) * weight).sum().backward()
    through, logits.grad = logits.grad.clone(), None
    (latent.probabilities(logits).flatten(-2) * weight).sum().backward()
    assert torch.equal(through, logits.grad)


def test_both_divergences_are_kl_by_hand_and_each_moves_its_own_side():
    latent = Categoricals(2, 2)
    q = torch.tensor([[[0.75, 0.25], [0.5, 0.5]]], requires_grad=True)
    p = torch.tensor([[[0.25, 0.75], [0.5, 0.5]]], requires_grad=True)
    dyn, rep = latent.kl(q, p)
    by_hand = 0.75 * math.log(3) + 0.25 * math.log(1 / 3)
    assert dyn.item() == pytest.approx(by_hand) and rep.item() == pytest.approx(by_hand)
    dyn.sum().backward()
    assert q.grad is None and p.grad is not None
    p.grad = None
    rep.sum().backward()
    assert p.grad is None and q.grad is not None


def test_simnorm_makes_simplices():
    cell = SimNorm(4, 1, latent=4, simplex=2, generator=torch.Generator())
    x = torch.tensor([[0.0, math.log(3), 1.0, 1.0]])
    torch.testing.assert_close(cell.normalized(x), torch.tensor([[0.25, 0.75, 0.5, 0.5]]))


def test_what_is_zero_adds_nothing_to_the_grus_input():
    cell = cell_of("rssm")
    for layer in (cell.from_action, cell.from_embed, cell.gates):
        assert not layer(torch.zeros(1, layer.in_features)).any()


def test_the_grus_update_by_hand():
    cell = RSSM(1, 1, memory=1, groups=1, classes=2, hidden=1, generator=torch.Generator())
    with torch.no_grad():
        cell.gates_norm.weight.zero_()
        cell.gates_norm.bias.copy_(torch.tensor([0.0, 2.0, 1.0]))  # reset, candidate, update
    h = cell._remember(torch.tensor([[0.5]]), torch.zeros(1, 3), torch.zeros(1, 2), torch.zeros(1, 1))
    assert h.item() == pytest.approx(0.5 * 0.5 + 0.5 * math.tanh(0.5 * 2.0))  # update gate sigmoid(1 - 1)


def loop(a, b, s):
    sums = []
    for t in range(len(a)):
        s = a[t] * s + b[t]
        sums.append(s)
    return torch.stack(sums)


@pytest.mark.parametrize("length", [1, 2, 9, 16, 37, 64])
def test_the_scan_equals_the_loop_and_so_do_its_gradients(length):
    g = torch.Generator().manual_seed(length)
    a = torch.rand(length, 2, 3, generator=g)
    a[torch.rand(length, 2, generator=g) < 0.1] = 0.0  # episodes begin
    b, weight = (torch.randn(length, 2, 3, generator=g) for _ in range(2))
    inputs = [a, b, torch.randn(2, 3, generator=g)]
    results = []
    for how in (scan, loop):
        leaves = [x.clone().requires_grad_() for x in inputs]
        sums = how(*leaves)
        (sums * weight).sum().backward()
        results.append([sums, *(x.grad for x in leaves)])
    for ours, theirs in zip(*results):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_the_scan_by_hand():
    a = torch.tensor([0.5, 0.5, 0.0, 2.0]).view(4, 1, 1)
    b = torch.tensor([1.0, 0.0, 3.0, 1.0]).view(4, 1, 1)
    assert scan(a, b, torch.tensor([[4.0]])).flatten().tolist() == [3.0, 1.5, 3.0, 7.0]


def test_the_scan_gives_every_gradient_of_finite_differences():
    g = torch.Generator().manual_seed(0)
    a, b, s = (torch.rand(*shape, generator=g, dtype=torch.double) for shape in ((7, 1, 2), (7, 1, 2), (1, 2)))
    assert torch.autograd.gradcheck(scan, [x.requires_grad_() for x in (a, b, s)])


@pytest.mark.parametrize("kind", ["ssm", "mamba"])
def test_a_linear_recurrence_in_one_pass_equals_its_steps(kind):
    cell = cell_of(kind)
    embed, action, first = sequence()
    first[1:] = False
    whole, _ = cell.observe(embed, action, first, sample=False)
    state = cell.initial(B)
    for t in range(L):
        for name in ("h", "s"):
            torch.testing.assert_close(state[name], whole[name][t], atol=1e-5, rtol=1e-5)
        state = cell.step({**state, "z": whole["z"][t]}, action[t], sample=False)


def test_the_selective_scan_is_mambas_recurrence_by_hand():
    block = _SelectiveScan(width=2, states=3)
    torch.testing.assert_close(block.log_rate.exp(), torch.tensor([[1.0, 2, 3], [1, 2, 3]]))
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    x = torch.randn(4, 1, 2, generator=torch.Generator().manual_seed(1))
    out, sums = block(x, torch.zeros(1, 6))
    s = torch.zeros(2, 3)
    for t in range(4):
        value, gate = block.enter(block.norm(x[t, 0])).chunk(2)
        value = value * torch.sigmoid(value)
        step, write, read = block.select(value).split([2, 3, 3])
        step = torch.log1p(torch.exp(step + block.step_bias))
        y = torch.zeros(2)
        for channel in range(2):
            for n in range(3):
                decay = torch.exp(step[channel] * -torch.exp(block.log_rate[channel, n]))
                s[channel, n] = decay * s[channel, n] + step[channel] * write[n] * value[channel]
                y[channel] += read[n] * s[channel, n]
        y = y + block.skip * value
        torch.testing.assert_close(sums[t, 0], s.flatten())
        torch.testing.assert_close(out[t, 0], x[t, 0] + block.leave(y * gate * torch.sigmoid(gate)))


def test_impossible_sizes_are_refused():
    with pytest.raises(ValueError, match=r"a latent of 10 numbers is not made of groups of 8"):
        SimNorm(4, 1, latent=10, generator=torch.Generator())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", CELLS)
def test_gpu_and_cpu_agree(kind):
    cell = cell_of(kind)
    embed, action, first = sequence()
    here = cell.features(cell.observe(embed, action, first, sample=False)[0])
    cell = cell.cuda()
    cell.generator = torch.Generator("cuda").manual_seed(0)
    there = cell.features(cell.observe(embed.cuda(), action.cuda(), first.cuda(), sample=False)[0])
    torch.testing.assert_close(there.cpu(), here, atol=1e-4, rtol=1e-4)
    states, _ = cell.observe(embed.cuda(), action.cuda(), first.cuda())
    assert cell.step(last(states), action[-1].cuda())["z"].device.type == "cuda"
