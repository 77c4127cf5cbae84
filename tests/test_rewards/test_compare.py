"""Distances between rewards: cases worked out by hand, and what each distance must not see."""

import numpy as np
import pytest

from envs.transitions import Transitions
from rewards.compare import (
    auroc,
    epic,
    epic_canonical,
    fit_canonical,
    interval,
    midranks,
    pearson,
    spearman,
    starc,
    starc_canonical,
    starc_distance,
    starc_on_distribution,
    state_features,
)

GAMMA = 0.9


def test_pearson_of_points_on_a_line_and_off_it():
    assert pearson([1, 2, 3], [2, 4, 6]) == 1.0 and pearson([1, 2, 3], [6, 4, 2]) == -1.0
    assert pearson([1, 2, 3], [1, 3, 2]) == pytest.approx(0.5)  # 1 / sqrt(2 * 2)
    assert pearson([1, 2, 3], [5, 5, 5]) == 0.0
    assert pearson(np.full(9, 0.1, np.float32), np.arange(9)) == 0.0


def test_equal_values_share_the_mean_of_their_ranks():
    np.testing.assert_array_equal(midranks([10, 20, 20, 5]), [2, 3.5, 3.5, 1])
    assert spearman([1, 10, 100], [0, 1, 2]) == pytest.approx(1.0)
    assert spearman([1, 10, 100], [2, 1, 0]) == pytest.approx(-1.0)


def test_the_auroc_counts_pairs_in_order_and_ties_half():
    assert auroc([1, 2, 3, 4], [False, False, True, True]) == 1.0
    assert auroc([1, 2, 3, 4], [True, True, False, False]) == 0.0
    assert auroc([1, 3, 2, 4], [False, False, True, True]) == pytest.approx(3 / 4)  # (2,1) (4,1) (4,3), but not (2,3)
    assert auroc([1, 1, 1], [True, False, False]) == 0.5
    assert np.isnan(auroc([1, 2], [True, True]))


def test_epic_of_a_reward_of_the_state_is_its_correlation_as_a_distance():
    assert epic([1, 2, 3], [2, 4, 6]) == 0.0 and epic([1, 2, 3], [3, 2, 1]) == 1.0
    assert epic([1, 2, 3], [1, 3, 2]) == pytest.approx(0.5)  # sqrt((1 - 0.5) / 2)
    goal = np.array([1, 0, 0, 0, 1, 0], bool)
    reward = np.array([0.9, 0.1, 0.4, 0.2, 0.6, 0.3])
    # Lemma 1 of VLM-RM: rho = sigma(goal) / sigma(reward) * (mean at the goal - mean elsewhere).
    rho = goal.std() / reward.std() * (reward[goal].mean() - reward[~goal].mean())
    assert epic(reward, goal) == pytest.approx(np.sqrt((1 - rho) / 2))


def world(seed, states=6, actions=3):
    rng = np.random.default_rng(seed)
    transition = rng.dirichlet(np.full(states, 0.3), size=(states, actions))
    return rng, transition, rng.normal(size=(states, actions, states))


def shaped(reward, phi, scale=1.0):
    return scale * reward + GAMMA * phi[None, None, :] - phi[:, None, None]


def test_starc_by_hand_in_an_environment_of_two_states():
    # Action 0 stays, action 1 changes the state; only staying in state 1 pays.
    transition = np.zeros((2, 2, 2))
    transition[0, 0, 0] = transition[0, 1, 1] = transition[1, 0, 1] = transition[1, 1, 0] = 1
    reward = np.zeros((2, 2, 2))
    reward[1, 0, 1] = 1
    # Uniform policy: V(0) = 0.45 (V0 + V1), V(1) = 0.5 + 0.45 (V0 + V1), so V0 + V1 = 5, V = (2.25, 2.75).
    expected = [[0.9 * 2.25 - 2.25, 0.9 * 2.75 - 2.25], [1 + 0.9 * 2.75 - 2.75, 0.9 * 2.25 - 2.75]]
    np.testing.assert_allclose(starc_canonical(reward, transition, gamma=GAMMA), expected)
    assert starc(reward, reward, transition, gamma=GAMMA) == 0.0
    assert starc(reward, np.zeros_like(reward), transition, gamma=GAMMA) == pytest.approx(0.5)  # nothing to want


def epic_canonical_table(reward: np.ndarray, *, gamma: float) -> np.ndarray:
    """EPIC's canonical form of a table R (S, A, S), with S, A and S' uniform; float64 (S, A, S)."""
    from_state = reward.mean(axis=(1, 2))  # E_{A, S'} R(s, A, S')
    return reward + gamma * from_state[None, None, :] - from_state[:, None, None] - gamma * reward.mean()


@pytest.mark.parametrize("seed", range(5))
def test_shaping_and_scaling_are_no_difference_and_the_negative_is_the_greatest(seed):
    rng, transition, reward = world(seed)
    same = shaped(reward, rng.normal(size=6), scale=3.0)
    assert starc(reward, same, transition, gamma=GAMMA) == pytest.approx(0, abs=1e-7)
    assert starc(reward, -same, transition, gamma=GAMMA) == pytest.approx(1)
    first, second = (epic_canonical_table(r, gamma=GAMMA).ravel() for r in (reward, same))
    assert epic(first, second) == pytest.approx(0, abs=1e-7) and epic(first, -second) == pytest.approx(1)
    assert epic(reward.ravel(), same.ravel()) > 0.1  # without canonicalisation they look different


@pytest.mark.parametrize("seed", range(5))
def test_what_moves_a_reward_between_successors_is_seen_by_epic_and_not_by_starc(seed):
    rng, transition, reward = world(seed)
    noise = rng.normal(size=reward.shape)
    moved = reward + noise - (transition * noise).sum(-1, keepdims=True)
    assert starc(reward, moved, transition, gamma=GAMMA) == pytest.approx(0, abs=1e-7)
    assert epic(*(epic_canonical_table(r, gamma=GAMMA).ravel() for r in (reward, moved))) > 0.2


def test_a_trivial_reward_stays_zero_and_a_wrong_shape_is_refused():
    rng, transition, _ = world(0)
    nothing = shaped(np.zeros_like(transition), rng.normal(size=6))
    assert starc(nothing, np.zeros_like(nothing), transition, gamma=GAMMA) == 0.0
    assert starc_distance([1, 0], [0, 1]) == pytest.approx(np.sqrt(2) / 2)
    with pytest.raises(ValueError, match=r"shape \(6, 3\)"):
        starc_canonical(nothing[..., 0], transition, gamma=GAMMA)
    with pytest.raises(ValueError, match=r"gamma=1.0"):
        starc_canonical(nothing, transition, gamma=1.0)


def walk(n=400, seed=0):
    """A deterministic line world: the state moves by the action; states, actions and successors as transitions."""
    rng = np.random.default_rng(seed)
    state = rng.uniform(-1, 1, (n, 2)).astype(np.float32)
    action = rng.integers(0, 2, n)
    after = (state + 0.2 * (2 * action[:, None] - 1)).astype(np.float32)
    zeros = np.zeros(n, bool)
    return Transitions(state, action, np.zeros(n, np.float32), after, zeros, zeros, ~zeros, np.zeros(n, np.int64))


def linear_shaping(batch):
    return GAMMA * batch.next_obs @ [3.0, -2.0] - batch.obs @ [3.0, -2.0]


def plain(batch):
    return np.abs(batch.next_obs).sum(1) + 0.3 * batch.action


def test_epic_on_samples_cancels_shaping_exactly_and_leaves_a_reward_of_the_next_state_alone():
    batch = walk(100)

    def canonical(score):
        return epic_canonical(score, batch, gamma=GAMMA, samples=16, rng=np.random.default_rng(1))

    first, second = canonical(plain), canonical(lambda b: 2 * plain(b) + linear_shaping(b))
    assert epic(first, second) == pytest.approx(0, abs=1e-6)
    assert epic(first, -second) == pytest.approx(1)

    def of_state(b):
        return b.next_obs[:, 0] ** 2

    assert pearson(canonical(of_state), of_state(batch)) == pytest.approx(1)


def test_starc_on_a_batch_sees_no_shaping_and_no_scale():
    batch = walk()
    now, after = state_features(batch)
    assert now.shape == after.shape == (400, 1 + 2 + 40)  # one random feature for ten rows
    reward, potential = plain(batch), linear_shaping(batch)
    args = (now, after, batch.terminated)
    assert starc_on_distribution(reward, 5 * reward + potential, *args, gamma=GAMMA, ridge=1e-6) < 1e-3
    assert starc_on_distribution(reward, 5 * reward + potential, *args) < 0.01
    assert starc_on_distribution(reward, -reward, *args) == pytest.approx(1)
    # The state moves up with action 1, and down with 0: paying the state or the action orders policies alike.
    assert starc_on_distribution(batch.action, batch.next_obs[:, 0], *args) < 0.05
    assert starc_on_distribution(batch.action, -batch.next_obs[:, 0], *args) > 0.95
    noise = np.random.default_rng(0).normal(size=400)
    assert starc_on_distribution(reward, noise, *args) == pytest.approx(np.sqrt(2) / 2, abs=0.05)


def test_a_fitted_canonical_reward_is_the_exact_one_where_features_are_one_hot():
    rng, _, _ = world(3)
    leads = rng.integers(0, 6, (6, 3))
    transition = np.zeros((6, 3, 6))
    np.put_along_axis(transition, leads[..., None], 1, -1)
    reward = rng.normal(size=(6, 3, 6))
    exact = starc_canonical(reward, transition, gamma=GAMMA)
    s, a = (x.ravel() for x in np.indices((6, 3)))
    paid, eye = reward[s, a, leads[s, a]], np.eye(6)
    fitted = fit_canonical(paid[:, None], eye[s], eye[leads[s, a]], np.zeros(18, bool), gamma=GAMMA)
    np.testing.assert_allclose(fitted[:, 0], exact.ravel(), atol=1e-4)


def test_a_fitted_value_is_nothing_behind_an_end():
    # State 0 leads to state 1 for nothing or ends for 1, state 1 ends for 3; next_obs of an end is another state.
    now, after, ends = np.eye(2)[[0, 0, 1]], np.eye(2)[[1, 0, 0]], np.array([False, True, True])
    fitted = fit_canonical(np.array([[0.0], [1.0], [3.0]]), now, after, ends, gamma=0.9)
    # V(1) = 3 and V(0) = (0.9 * 3 + 1) / 2 = 1.85: 0.9 * 3 - 1.85, 1 - 1.85 and 3 - 3.
    np.testing.assert_allclose(fitted[:, 0], [0.85, -0.85, 0], atol=1e-5)
    # Where state 1 ends for 1.5 its value is still worth more than an end at once, 1.35 and 1: same order.
    apart = starc_on_distribution([0, 1, 3], [0, 1, 1.5], now, after, ends, gamma=0.9, ridge=1e-6)
    assert apart == pytest.approx(0, abs=1e-4)


def test_the_interval_holds_the_value_shrinks_with_rows_and_is_seeded():
    rng = np.random.default_rng(0)
    x = rng.normal(size=1000)
    y = x + rng.normal(size=1000)
    low, high = interval(pearson, x, y)
    few_low, few_high = interval(pearson, x[:50], y[:50])
    assert low < pearson(x, y) < high and high - low < 0.5 * (few_high - few_low)
    assert interval(pearson, x, y) == (low, high)
    assert all(np.isnan(interval(auroc, x[:5], np.ones(5, bool))))
