"""Least squares with known answers, and dynamics whose polynomials are known."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from agents.dynamics.sindy import Library, Sindy, SindyConfig, stlsq
from agents.networks.actor_critic import SpaceEncoding

BOX = SpaceEncoding(spaces.Box(-np.inf, np.inf, (3,)), spaces.Box(-1, 1, (2,)))
PENDULUM = SpaceEncoding(
    spaces.Box(np.array([-1, -1, -8], np.float32), np.array([1, 1, 8], np.float32)), spaces.Box(-2, 2, (1,))
)


class Recorded:
    """What a model reads of a replay."""

    def __init__(self, *rows: Tensor) -> None:
        self.rows = rows

    def arrays(self) -> tuple[Tensor, ...]:
        return self.rows


def pendulum(count: int, seed: int, length: int = 1, angle: float = np.pi, speed: float = 6.0) -> list[Tensor]:
    """Transitions of the simulator, (length, count, ...), from random states around hanging down."""
    env: Any = gym.make("Pendulum-v1").unwrapped
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        env.reset(seed=0)
        env.state = np.array([np.pi + rng.uniform(-angle, angle), rng.uniform(-speed, speed)])
        for _ in range(length):
            obs, u = env._get_obs(), rng.uniform(-1, 1, 1).astype(np.float32)
            next_obs, reward, *_ = env.step(2 * u)
            rows.append((obs, u, next_obs, np.float32(reward)))
    parts = [np.stack(part).reshape(count, length, *part[0].shape).swapaxes(0, 1) for part in zip(*rows)]
    return [torch.as_tensor(part.astype(np.float32)) for part in parts]


def linear(count: int, seed: int) -> tuple[list[Tensor], Tensor, Tensor]:
    """x' = x + A x + B u + 0.1, reward x'_0 - u_1; also A and B."""
    generator = torch.Generator().manual_seed(seed)
    a = 0.05 * torch.randn(3, 3, generator=torch.Generator().manual_seed(9)) - 0.1 * torch.eye(3)  # decays
    b = 0.2 * torch.eye(3, 2)
    obs, action = torch.randn(count, 3, generator=generator), 2 * torch.rand(count, 2, generator=generator) - 1
    next_obs = obs + obs @ a.T + action @ b.T + 0.1
    return [obs, action, next_obs, next_obs[:, 0] - action[:, 1]], a, b


def r2(expected: Tensor, true: Tensor) -> Tensor:
    return 1 - (expected - true).square().mean(0) / true.var(0)


def test_a_library_lists_every_monomial_once() -> None:
    library = Library(3, 1, 3, affine=False)
    assert len(library.terms) == 20 == len(set(library.terms))  # (3 + 3 choose 3)
    x = torch.tensor([[2.0], [3.0], [5.0]])
    expected = [np.prod([x[i, 0] for i in term]) if term else 1.0 for term in library.terms]
    np.testing.assert_allclose(library(x)[:, 0], expected)
    assert {(), (0, 0, 2), (1, 1), (2, 2, 2)} <= set(library.terms)
    affine = Library(3, 2, 2, affine=True).terms
    assert affine == [(), (0,), (1,), (2,), (0, 0), (0, 1), (0, 2)]  # two actions never together


def test_the_degree_is_the_largest_that_can_be_afforded() -> None:
    assert Library(4, 1, 0, False).degree == 3 and len(Library(4, 1, 0, False).terms) == 35
    assert Library(14, 3, 0, False).degree == 2 and Library(23, 6, 0, False).degree == 1
    assert Library(23, 6, 2, False).degree == 2
    with pytest.raises(ValueError, match=r"degree 3 in 23 numbers have 2600 terms, and at most 500"):
        Library(23, 6, 3, False)


def sparse_system(noise: float, members: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Normal equations of y = 1.5 c2 - 0.7 c5, and of y = 2 c0, in unit columns; the true coefficients (8, 2)."""
    generator = torch.Generator().manual_seed(3)
    truth = torch.zeros(8, 2, dtype=torch.float64)
    truth[2, 0], truth[5, 0], truth[0, 1] = 1.5, -0.7, 2.0
    grams, crosses = [], []
    for _ in range(members):
        columns = torch.randn(8, 400, generator=generator, dtype=torch.float64)
        columns /= columns.square().mean(1, keepdim=True).sqrt()
        target = columns.T @ truth + noise * torch.randn(400, 2, generator=generator, dtype=torch.float64)
        grams.append(columns @ columns.T / 400)
        crosses.append(columns @ target / 400)
    return torch.stack(grams), torch.stack(crosses), truth


def test_thresholding_finds_exactly_the_true_terms() -> None:
    gram, cross, truth = sparse_system(noise=0.0)
    found = stlsq(gram, cross, threshold=0.1, alpha=1e-12)[0]
    assert torch.equal(found != 0, truth != 0)
    torch.testing.assert_close(found, truth, rtol=0, atol=1e-9)
    gram, cross, truth = sparse_system(noise=0.5)
    found = stlsq(gram, cross, threshold=0.1, alpha=1e-12)[0]
    assert torch.equal(found != 0, truth != 0)
    torch.testing.assert_close(found, truth, rtol=0, atol=0.1)
    assert (stlsq(gram, cross, threshold=0.0, alpha=1e-12)[0] != 0).all()


def loop(gram: np.ndarray, target: np.ndarray, threshold: float, alpha: float, keep: np.ndarray) -> np.ndarray:
    """One bootstrap and one target, term by term."""
    places = np.flatnonzero(keep)
    while len(places):
        solution = np.linalg.solve(gram[np.ix_(places, places)] + alpha * np.eye(len(places)), target[places])
        stays = abs(solution) >= threshold
        if stays.all():
            out = np.zeros(len(gram))
            out[places] = solution
            return out
        places = places[stays]
    return np.zeros(len(gram))


def test_all_bootstraps_at_once_equal_a_loop_over_them() -> None:
    gram, cross, _ = sparse_system(noise=3.0, members=6)
    keep = torch.rand(6, 8, generator=torch.Generator().manual_seed(0)) > 0.3
    found = stlsq(gram, cross, 0.2, 1e-2, keep)
    for k in range(6):
        for d in range(2):
            expected = loop(gram[k].numpy(), cross[k, :, d].numpy(), 0.2, 1e-2, keep[k].numpy())
            np.testing.assert_allclose(found[k, :, d], expected, atol=1e-12)
    assert (found == 0).any(1).any() and not (found[~keep] != 0).any()


def test_linear_dynamics_are_learned_from_500_transitions() -> None:
    rows, a, b = linear(500, 0)
    model = Sindy(BOX, SindyConfig(degree=2, whiten=False, alpha=1e-9), seed=0)
    metrics = model.fit(Recorded(*rows))
    assert metrics["model_error"] < 1e-3 and metrics["reward_r2"] > 0.9999 and metrics["members_dropped"] == 0
    (obs, action, next_obs, task), *_ = linear(1000, 1)
    inside = ((next_obs > model._state["low"]) & (next_obs < model._state["high"])).all(-1)
    predicted = model.step(obs, action, sample=False)
    assert r2(predicted.next_obs[inside], next_obs[inside]).min() > 0.999 and r2(predicted.reward, task) > 0.999
    assert predicted.terminated is None
    # The constant, three observations and two actions come first in the library, and products are struck out.
    found = model._state["middle"][:3]
    changes = found[:, 1:6] / torch.cat([model._state["scale"], torch.ones(2)])
    torch.testing.assert_close(changes, torch.cat([a, b], 1), rtol=0, atol=1e-4)
    assert (found[:, 6:] == 0).all()


def test_one_member_finds_linear_dynamics_alone() -> None:
    rows, a, b = linear(100, 0)
    model = Sindy(BOX, SindyConfig(members=1, degree=1, threshold=0.0, alpha=1e-9, whiten=False), seed=0)
    model.fit(Recorded(*rows))
    changes = model._state["coefficients"][0, :3, 1:] / torch.cat([model._state["scale"], torch.ones(2)])
    torch.testing.assert_close(changes, torch.cat([a, b], 1), rtol=0, atol=1e-5)


def test_500_transitions_of_a_pendulum_are_enough() -> None:
    model = Sindy(PENDULUM, seed=0)
    metrics = model.fit(Recorded(*(x[0] for x in pendulum(500, 0))))
    assert model.library.degree == 3 and model.circles == [(0, 1)] and metrics["members_dropped"] == 0
    obs, action, next_obs, task = (x[0] for x in pendulum(500, 1, speed=5.5))
    predicted = model.step(obs, action, sample=False)
    assert r2(predicted.next_obs - obs, next_obs - obs).min() > 0.999
    assert r2(predicted.reward, task) > 0.99
    torch.testing.assert_close(predicted.next_obs[:, :2].norm(dim=-1), torch.ones(500))


def test_100_steps_of_a_hanging_pendulum_stay_within_5_percent() -> None:
    model = Sindy(PENDULUM, seed=0)
    model.fit(Recorded(*(x[0] for x in pendulum(500, 0))))
    obs, action, next_obs, _ = pendulum(20, 2, length=100, angle=1.0, speed=1.0)
    state = obs[0]
    for t in range(100):
        state = model.step(state, action[t], sample=False).next_obs
    assert ((state - next_obs[-1]).abs().mean(0) / torch.tensor([2.0, 2.0, 16.0])).max() < 0.05


def test_a_reward_that_is_no_polynomial_gets_a_network() -> None:
    rows, *_ = linear(1500, 0)
    rows[3] = (rows[2][:, 0] > 0).float()
    model = Sindy(BOX, SindyConfig(degree=2), seed=0)
    metrics = model.fit(Recorded(*rows))
    assert model.use_head and metrics["reward_r2"] > 0.8
    polynomial = model._state["middle"][-1] @ model.library(model._variables(rows[0], rows[1]))
    assert r2(polynomial, rows[3]) < 0.75


def fitted() -> Sindy:
    model = Sindy(BOX, SindyConfig(members=4), seed=0)
    model.fit(Recorded(*linear(300, 0)[0]))
    return model


def test_a_member_that_blows_up_is_dropped_and_another_stands_in() -> None:
    model = fitted()
    good = model._state["coefficients"].clone()
    bad = good.clone()
    bad[2, :3, 1:4] += 3 * torch.eye(3)  # x' = 4 x
    rows, *_ = linear(300, 0)
    assert model._keep(bad, rows[0], rows[1]) == 1
    assert torch.equal(model._state["coefficients"], good[[0, 1, 3, 0]])
    model._state["coefficients"] = bad
    share = model.validate(rows[0][:32], rows[1][: 50 * 32].reshape(-1, 1, 2)[:50].expand(50, 32, 2))
    assert share[2] == 1.0 and share[[0, 1, 3]].max() < 0.2


def test_one_member_that_is_far_off_does_not_move_the_prediction() -> None:
    model = Sindy(BOX, SindyConfig(members=3, degree=1))
    coefficients = torch.zeros(3, 4, 6)
    coefficients[:, 0, 0] = torch.tensor([9.0, 1.0, 2.0])  # of the constant, in the change of the first number
    obs, action = torch.zeros(5, 3), torch.zeros(5, 2)
    assert model._keep(coefficients, obs, action) == 0  # nothing is known of the data's bounds
    predicted = model.step(obs, action, sample=False)
    assert predicted.next_obs.tolist() == [[2.0, 0.0, 0.0]] * 5


def test_every_member_answers_for_its_share_of_the_rows() -> None:
    model = fitted()
    coefficients = torch.zeros_like(model._state["coefficients"])
    coefficients[:, 0, 0] = torch.tensor([0.0, 0.01, 0.02, 0.03])  # member k adds k / 100 to x0
    model._state["coefficients"] = coefficients
    obs, action = torch.zeros(402, 3), torch.zeros(402, 2)
    who = (100 * model.step(obs, action).next_obs[:, 0]).round().long()
    assert sorted(who.bincount(minlength=4).tolist()) == [99, 101, 101, 101]
    one = torch.cat([model.step(obs[:1], action[:1]).next_obs[:, 0] for _ in range(400)])
    assert float((100 * one).mean()) == pytest.approx(1.5, abs=0.15)  # the only row is not always the first member's


def test_member_predictions_are_in_units_of_the_changes() -> None:
    model = fitted()
    obs, action = linear(7, 5)[0][:2]
    means = model.step(obs, action, member_predictions=True).means
    assert means is not None and means.shape == (4, 7, 3)
    theta = model.library(model._variables(obs, action))
    for k in range(4):
        change = (model._state["coefficients"][k, :3] @ theta).T
        torch.testing.assert_close(means[k] * model._state["change"], change, rtol=1e-4, atol=1e-5)


def test_gradients_are_those_of_finite_differences() -> None:
    model = fitted()
    model._state = {name: x.double() for name, x in model._state.items()}
    obs = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    action = torch.full((2, 2), 0.1, dtype=torch.float64, requires_grad=True)

    def ahead(o: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        predicted = model.step(o, a, sample=False)
        return predicted.next_obs, predicted.reward

    assert torch.autograd.gradcheck(ahead, (obs, action))


def test_predictions_end_where_the_data_ends() -> None:
    model = fitted()
    rows, *_ = linear(300, 0)
    both = torch.cat([rows[0], rows[2]])
    far = model.step(torch.full((5, 3), 100.0), torch.ones(5, 2)).next_obs
    torch.testing.assert_close(far[0], both.amax(0) + 0.1 * (both.amax(0) - both.amin(0)))


def test_nan_leaves_the_last_fit() -> None:
    model = fitted()
    before = model._state["coefficients"].clone()
    rows, *_ = linear(300, 1)
    rows[2][7, 1] = torch.nan
    assert model.fit(Recorded(*rows)) == {"model_failures": 1.0}
    assert torch.equal(model._state["coefficients"], before)
    assert model.fit(Recorded(*linear(300, 1)[0]))["model_failures"] == 1.0
    assert model.fit(Recorded(*(x[:5] for x in rows))) == {}


def test_a_model_continues_exactly_where_it_was_saved(short_fits) -> None:
    rows, *_ = linear(300, 0)
    rows[3] = (rows[2][:, 0] > 0).float()
    one, other = Sindy(BOX, seed=0), Sindy(BOX, seed=1)
    one.fit(Recorded(*rows))
    other.load_state_dict(one.state_dict())
    for model in (one, other):
        model.fit(Recorded(*rows), steps=20)
    first, second = (model.step(rows[0], rows[1]) for model in (one, other))
    assert torch.equal(first.next_obs, second.next_obs) and torch.equal(first.reward, second.reward)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"members": 0}, r"sindy.members=0 is out of range; give a number in \[1, 1000\]"),
        ({"degree": 4}, r"sindy.degree=4 is out of range; give a number in \[0, 3\]"),
        ({"alpha": 0.0}, r"sindy.alpha=0.0 is out of range; give a number above 0"),
        ({"drop_terms": 1.0}, r"sindy.drop_terms=1.0 is out of range; give a number in \[0, 1\)"),
    ],
)
def test_settings_out_of_range_are_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        SindyConfig(**change)


def test_images_are_refused() -> None:
    encoding = SpaceEncoding(spaces.Box(0, 255, (3, 8, 8), np.uint8), spaces.Discrete(2))
    with pytest.raises(ValueError, match=r"SINDy cannot predict images"):
        Sindy(encoding)


def test_equations_show_the_mean_of_whitened_variables_and_each_coefficient_in_its_units() -> None:
    model = Sindy(BOX, SindyConfig(degree=1), seed=0)
    model._state["shift"] = torch.tensor([0.0, -2.0, 0.5])
    model._state["scale"] = torch.tensor([1.0, 4.0, 1.0])
    model._state["middle"][0, [1, 2, 5]] = torch.tensor([0.5, 0.2, -3.0])
    model._state["middle"][3, 3] = 1.0
    named = ["a' = a +0.5 a +0.05 (b+2) -3 u1", "b' = b", "c' = c", "reward = +1 (c-0.5)"]
    assert model.equations(["a", "b", "c"]) == named
