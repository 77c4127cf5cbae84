"""Cloning: losses by hand, chunks cut at ends, two ways that a mean would average, and what is refused."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agents.offline.cloning import Cloning, CloningConfig
from envs.transitions import Transitions

LINE, STICK = spaces.Box(-np.inf, np.inf, (1,), np.float32), spaces.Box(-2, 2, (1,), np.float32)
FAST = {"net_arch": [32], "learning_rate": 1e-2, "batch_size": 128}


def batch(obs, action, lengths):
    step = np.concatenate([np.arange(n) for n in lengths])
    ended = np.isin(np.arange(len(step)), np.cumsum(lengths) - 1)
    obs, action = (np.array(x, np.float32)[:, None] for x in (obs, action))
    flags = {"terminated": ended, "truncated": np.zeros_like(ended), "valid": np.ones_like(ended)}
    return Transitions(obs, action, np.zeros(len(step), np.float32), obs, **flags, step=step)


def cloned(data, **options):
    return Cloning(CloningConfig(**{**FAST, **options}), LINE, STICK, data)


def test_a_chunk_is_cut_at_the_end_of_its_episode():
    model = cloned(batch([0, 1, 2, 3, 4], [0, 0.5, 1, 1.5, 2], [3, 2]), chunk=3)
    _, chunks, counts = model._rows.split([1, 3, 3], -1)
    np.testing.assert_allclose(counts, [[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 0], [1, 0, 0]])
    np.testing.assert_allclose(
        (chunks * counts).numpy() * 2, [[0, 0.5, 1], [0.5, 1, 0], [1, 0, 0], [1.5, 2, 0], [2, 0, 0]]
    )


def test_the_learning_rate_falls_on_a_line_to_zero(monkeypatch):
    model = cloned(batch([0, 0], [0, 1], [2]), net_arch=[1])
    rates = []
    descend = model._flat.descend

    def watch(loss, rate, max_grad_norm):
        rates.append(rate)
        return descend(loss, rate, max_grad_norm)

    monkeypatch.setattr(model._flat, "descend", watch)
    model.learn(4)
    np.testing.assert_allclose(rates, [1e-2, 7.5e-3, 5e-3, 2.5e-3])


def test_the_loss_of_a_mixture_is_its_negative_log_likelihood_and_ignores_what_does_not_count():
    model = cloned(batch([0, 0], [0, 0], [2]), chunk=2, components=2, net_arch=[1])
    with torch.no_grad():
        for weight in model.net.net.stack:
            weight.zero_()
        bias = model.net.net.stack[-1][0, 0]  # 2 logits; each means and log-deviations of 2
        bias[:2], bias[6] = torch.log(torch.tensor([0.75, 0.25])), 1.0
    chunk, counts = torch.tensor([[1.0, 9.0]]), torch.tensor([[1.0, 0.0]])
    found = model.net.loss(torch.zeros(1, 1), chunk, counts, None)
    assert float(found.detach()) == pytest.approx(-np.log(0.75 * np.exp(-0.5) + 0.25))
    assert model.net.draw(torch.zeros(1, 1), None).tolist() == [[0, 0]]  # the likelier one


def test_diffusion_comes_from_any_noise_to_what_its_network_believes():
    model = cloned(batch([0, 0], [0, 0], [2]), chunk=2, head="diffusion")
    model.net.clean = lambda obs, noisy, kept: torch.tensor([[0.25, -0.5]]).expand(len(obs), -1)
    drawn = model.net.draw(torch.zeros(3, 1), torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn, torch.tensor([[0.25, -0.5]]).expand(3, -1))
    kept = model.net.kept
    assert kept[0] == 1 and kept[-1] < 0.001 and (kept.diff() < 0).all()


@pytest.mark.parametrize("head", [pytest.param("mixture", marks=pytest.mark.nightly), "diffusion"])
def test_of_two_ways_one_is_taken_and_a_single_gaussian_walks_into_the_wall(head):
    rng = np.random.default_rng(0)
    sides = np.repeat(rng.choice([-1.6, 1.6], 200), 2)  # left or right, both steps alike
    data = batch(np.zeros(400), sides, [2] * 200)
    model = cloned(data, head=head, chunk=2, net_arch=[64, 64])
    model.learn(600)
    first, state = model.predict(np.zeros((1, 1), np.float32), deterministic=True)
    second, _ = model.predict(np.zeros((1, 1), np.float32), state=state, deterministic=True)
    assert abs(first.item()) == pytest.approx(1.6, abs=0.2) and second.item() == pytest.approx(first.item(), abs=0.3)
    drawn = [model.predict(np.zeros((64, 1), np.float32), deterministic=False)[0] for _ in range(2)]
    assert (np.abs(drawn) > 1.2).mean() > 0.8 and {-1, 1} == {*np.sign(drawn[0]).ravel()}
    if head == "mixture":
        control = cloned(data, chunk=2, components=1)
        control.learn(300)
        assert abs(control.predict(np.zeros(1, np.float32), deterministic=True)[0].item()) < 0.5


def test_a_chunk_is_carried_out_without_looking_until_it_is_over_or_an_episode_begins():
    model = cloned(batch([0, 0], [0, 0], [2]), chunk=2)
    model.net.draw = lambda obs, generator: torch.cat([obs, obs + 0.5], -1) / 2  # actions 0 and 1 of a chunk
    model.net.whiten = lambda vector: vector
    state, seen = None, []
    for t, starts in enumerate([[True, True], [False, False], [False, False], [False, True]]):
        obs = np.full((2, 1), 0.1 * t, np.float32)
        action, state = model.predict(obs, state=state, episode_start=np.array(starts))
        seen.append(action[:, 0].round(6).tolist())
    assert seen == [[0, 0], [0.5, 0.5], [pytest.approx(0.2)] * 2, [pytest.approx(0.7), pytest.approx(0.3)]]


def test_discrete_actions_are_imitated_and_a_file_brings_the_policy_back(tmp_path):
    two = spaces.Discrete(2, start=3)
    data = batch([-1, 1] * 50, [0] * 100, [100]).replace(action=np.array([3, 4] * 50))
    model = Cloning(CloningConfig(chunk=1, **FAST), LINE, two, data)
    assert model.learn(200)["loss"] < 0
    obs = np.array([[-1], [1]], np.float32)
    assert model.predict(obs, deterministic=True)[0].tolist() == [3, 4]
    model.save(str(tmp_path / "a.safetensors"))
    again = Cloning.load(str(tmp_path / "a.safetensors"), LINE, two)
    assert again.predict(obs, deterministic=True)[0].tolist() == [3, 4]
    with pytest.raises(ValueError, match="loaded to act and has no data"):
        again.learn(1)
    with pytest.raises(ValueError, match="does not fit these spaces"):
        Cloning.load(str(tmp_path / "a.safetensors"), spaces.Box(-1, 1, (2,), np.float32), two)


def test_what_cannot_be_cloned_is_a_sentence():
    with pytest.raises(ValueError, match="Cloning cannot read images"):
        Cloning(CloningConfig(), spaces.Box(0, 255, (3, 8, 8), np.uint8), STICK)
    with pytest.raises(ValueError, match=r"the data has actions at 2 times the bounds of Box\(-2"):
        cloned(batch([0, 0], [4, 0], [2]))
    with pytest.raises(ValueError, match="no valid transition; give a recording"):
        cloned(batch([0], [0], [1]).replace(valid=np.array([False])))
    with pytest.raises(ValueError, match=r"agent.head='flow' is unknown; give one of mixture, diffusion"):
        CloningConfig(head="flow")
