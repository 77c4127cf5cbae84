import numpy as np
import pytest
from gymnasium import spaces
from test_mix import rollout

from envs.transitions import Transitions
from rewards.check import check_reward, random_rollout
from rewards.exploration.contrastive_ucb import ContrastiveUCB, ContrastiveUCBConfig, Covariance

STATES, ACTIONS = spaces.Discrete(3), spaces.Discrete(2)


def made(observations=STATES, **options):
    return ContrastiveUCB(ContrastiveUCBConfig(**options), observations, ACTIONS, seed=0)


def steps(states, actions, after=None):
    """A flat batch of states of a small world."""
    n = len(states)
    flags = {name: np.zeros(n, bool) for name in ("terminated", "truncated")}
    return Transitions(
        obs=np.array(states),
        action=np.array(actions),
        next_obs=np.array(states if after is None else after),
        reward=np.zeros(n, np.float32),
        valid=np.ones(n, bool),
        step=np.arange(n),
        **flags,
    )


def test_on_one_hot_features_it_is_the_count_bonus():
    reward = made(phi="outer")
    one = steps([1], [0])
    found = []
    for _ in range(4):  # 1 / sqrt(1 + n) for n = 0, 1, 2, 3 visits
        found.append(reward.score(one)[0])
        reward.update(one)
    assert found == pytest.approx([1, 0.7071, 0.5774, 0.5], abs=1e-4)
    assert reward.score(steps([1, 0, 2], [1, 0, 1])) == pytest.approx([1, 1, 1])  # other pairs were never visited


def test_a_visit_counts_once_whatever_the_number_of_passes_and_invalid_rows_never():
    reward, other = made(phi="outer", epochs=5, again=1), made(phi="outer")
    batch = steps([0, 0, 2], [1, 1, 0])
    reward.update(batch)
    assert reward.score(batch) == pytest.approx([3**-0.5, 3**-0.5, 2**-0.5])
    other.update(batch.replace(valid=np.array([True, False, False])))
    assert other.score(batch) == pytest.approx([2**-0.5, 2**-0.5, 1])


def test_features_have_norm_one_and_the_bonus_is_bounded_by_the_ridge():
    reward = made(spaces.Box(-1, 1, (4,)), ridge=4.0)
    batch = random_rollout(spaces.Box(-1, 1, (4,)), ACTIONS, seed=3).flatten()
    phi = reward.phi(reward.rows(batch.obs), reward.actions(batch.action))
    assert np.linalg.norm(phi, axis=1) == pytest.approx(np.ones(len(phi)), abs=1e-5)
    assert reward.score(batch) == pytest.approx(np.full(len(phi), 0.5), abs=1e-5)  # 1 / sqrt(ridge), unvisited
    reward.update(batch)
    assert (reward.score(batch) < 0.5).all()


@pytest.mark.nightly
def test_contrast_tells_which_pairs_lead_elsewhere_and_random_features_do_not_learn():
    rng = np.random.default_rng(0)
    space = spaces.Discrete(6)
    states, actions = rng.integers(0, 6, 2000), rng.integers(0, 2, 2000)
    batch = steps(states, actions, after=(states + np.where(actions, 1, -1)) % 6)  # a ring
    learnt, fixed = (made(space, phi=phi, normalize_obs="none", features=16) for phi in ("contrast", "random"))
    losses = [learnt.update(batch)["contrast_loss"] for _ in range(30)]
    assert losses[-1] < losses[0] - 1
    assert "contrast_loss" not in fixed.update(batch)
    # (0, right) and (2, left) both lead to 1, (3, right) to 4; random features know nothing of that
    pairs = steps([0, 2, 3], [1, 0, 1])
    alike = []
    for reward in (learnt, fixed):
        phi = reward.phi(reward.rows(pairs.obs), reward.actions(pairs.action))
        alike.append(phi[0] @ phi[1] - phi[0] @ phi[2])
    assert alike[0] > 0.5 and alike[1] < 0.2


def test_sigma_is_summed_again_with_the_features_of_now_scaled_to_all_rows_seen():
    sigma, rng = Covariance(2, 1.0, 3), np.random.default_rng(0)
    first = np.array([[1.0, 0]] * 6, np.float32)
    sigma.add(first)
    sigma.keep(first, rng)
    assert sigma.kept.shape == (3, 2) and (sigma.seen, sigma.since) == (6, 6)
    sigma.recompute(np.array([[0.0, 1.0]] * 3, np.float32))  # the same three rows, seen differently now
    assert sigma.matrix == pytest.approx(np.diag([1.0, 7.0])) and sigma.since == 0
    assert sigma.rank == pytest.approx(6 / 7)


def test_a_sample_of_all_rows_is_kept_evenly():
    rng, counts = np.random.default_rng(0), np.zeros(40)
    for _ in range(400):
        sigma = Covariance(1, 1.0, 10)
        for start in range(0, 40, 8):
            sigma.keep(np.arange(start, start + 8, dtype=np.float32)[:, None], rng)
        counts[sigma.kept[:, 0].astype(int)] += 1
    assert counts == pytest.approx(np.full(40, 100), abs=40)


@pytest.mark.parametrize("options", [{}, {"phi": "random"}, {"phi": "outer", "normalize_obs": "none"}])
def test_it_keeps_the_contract(options):
    check_reward(made(spaces.Box(-1, 1, (4,)), again=1, **options))


def test_too_many_products_are_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"phi=outer has 4000 features, more than 2048; take contrast"):
        made(spaces.Box(-1, 1, (2000,)), phi="outer")
    assert made(spaces.Box(-1, 1, (1,))).score(rollout([[0.0], [1.0]]).flatten()).shape == (2,)
