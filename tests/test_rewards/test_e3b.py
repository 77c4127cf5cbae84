"""E3B: one-hot embeddings are counts; the root, a random embedding, episodes of one step."""

import copy

import numpy as np
import pytest
from paths import LINE, PLANE, TWO, identity_embedding, path, scan_rewards

from rewards.check import random_rollout
from rewards.exploration.e3b import E3B, E3BConfig

A, B = [1, 0], [0, 1]


def make(space=PLANE, **options):
    return E3B(E3BConfig(**options), space, TWO)


@pytest.mark.parametrize("ridge", [1.0, 0.1])
def test_on_one_hot_states_it_gives_one_over_the_number_of_visits_where_the_first_state_is_one(ridge):
    e3b = identity_embedding(make(features=2, ridge=ridge))
    earlier = np.array([1, 2, 0, 3, 0, 1])  # visits of the same state in the same episode
    np.testing.assert_allclose(scan_rewards(e3b, path([A, A, A, B, A], [B, A, A])), 1 / (ridge + earlier), rtol=1e-6)


def test_with_sqrt_it_gives_the_root():
    e3b = identity_embedding(make(features=2, ridge=1.0, sqrt=True))
    np.testing.assert_allclose(scan_rewards(e3b, path([A, A, B, A])), [2**-0.5, 1, 3**-0.5], rtol=1e-6)


def test_a_diagonal_counts_by_how_often_both_of_its_sides_were_visited():
    e3b = identity_embedding(make(features=2, ridge=1.0))
    # C = diag(1 + 1, 1 + 1) before (1, 1): 1/2 + 1/2
    np.testing.assert_allclose(scan_rewards(e3b, path([A, B, [1, 1]]))[1], 1.0, rtol=1e-6)


def test_episodes_of_one_step_reward_that_step_against_its_first_state():
    e3b = identity_embedding(make(features=2, ridge=1.0))
    np.testing.assert_allclose(scan_rewards(e3b, path([A, A], [A, B], [B, B])), [0.5, 1, 0.5], rtol=1e-6)


def test_observations_that_never_change_give_less_and_less_and_stay_finite():
    e3b, data = make(LINE), path(np.full(300, 7.0))
    for _ in range(3):
        e3b.update(data)
    bonus = np.array(scan_rewards(e3b, data))
    assert np.isfinite(bonus).all()
    assert (np.diff(bonus) <= 0).all()
    assert bonus[-1] < 0.01


def test_a_random_embedding_never_learns_and_an_inverse_one_does():
    data = random_rollout(PLANE, TWO)
    for embedding, moves in (("inverse", True), ("random", False)):
        e3b = make(embedding=embedding)
        before = copy.deepcopy(e3b.encoder.state_dict())
        metrics = e3b.update(data)
        assert ("inverse_loss" in metrics) is moves
        assert any(not np.array_equal(v, before[k]) for k, v in e3b.encoder.state_dict().items()) is moves


@pytest.mark.nightly
def test_inverse_dynamics_drop_what_no_action_moves():
    rng = np.random.default_rng(0)
    side = rng.integers(0, 2, 4096)
    noise = rng.normal(size=(2, 4096))
    flat = random_rollout(PLANE, TWO, steps=4096, envs=1).flatten()
    obs = np.stack([np.zeros(4096), noise[0]], axis=1).astype(np.float32)
    next_obs = np.stack([2 * side - 1, noise[1]], axis=1).astype(np.float32)
    e3b = make(features=8, normalize_obs="bounds", epochs=8)
    for _ in range(6):
        metrics = e3b.update(flat.replace(obs=obs, action=side, next_obs=next_obs))
    assert metrics["inverse_loss"] < 0.05

    def spread(one, other):
        one, other = (e3b.in_pieces(e3b.encoder, e3b.inputs(np.float32(x)[None])) for x in (one, other))
        return float((one - other).norm())

    assert spread([-1, 0], [1, 0]) > 2 * spread([0, -1], [0, 1])
