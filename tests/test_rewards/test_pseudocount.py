"""Pseudo-counts: the kernel done by hand, neighbours that are missing, the mean distance."""

import numpy as np
import pytest
from paths import LINE, PLANE, TWO, identity_embedding, path, scan_rewards

from rewards.check import random_rollout
from rewards.exploration.pseudocount import PseudoCount, PseudoCountConfig


def make(space=LINE, **options):
    return PseudoCount(PseudoCountConfig(**options), space, TWO)


def by_hand(**options):
    """On the line, mean squared distance 1, embedding one number."""
    return identity_embedding(make(features=1, **options))


def test_it_gives_one_over_the_root_of_the_kernel_sum():
    reward = by_hand(k=1, kernel=0.1, cluster=0.0, constant=0.5)
    # squared distances to the nearest: 4, 0, 1
    expected = [1 / (np.sqrt(0.1 / (d + 0.1)) + 0.5) for d in (4, 0, 1)]
    np.testing.assert_allclose(scan_rewards(reward, path([0, 2, 2, 3])), expected, rtol=1e-6)


def test_a_neighbour_that_is_missing_counts_as_one_at_the_mean_distance():
    reward = by_hand(k=3, kernel=0.1, cluster=0.0, constant=0.5)
    far = 0.1 / 1.1
    expected = 1 / (np.sqrt(0.1 / 4.1 + 2 * far) + 0.5), 1 / (np.sqrt(1 + 0.1 / 4.1 + far) + 0.5)
    np.testing.assert_allclose(scan_rewards(reward, path([0, 2, 2])), expected, rtol=1e-6)


def test_visits_of_one_state_give_one_over_the_root_of_their_number_up_to_k():
    bonus = scan_rewards(by_hand(k=4, kernel=1e-6, constant=1e-6), path([3] * 8))
    np.testing.assert_allclose(bonus, np.array([1, 2, 3, 4, 4, 4, 4]) ** -0.5, rtol=1e-4)


def test_neighbours_within_the_cluster_count_whole_and_too_many_give_no_reward():
    near = path([0, 0.05, 0.1])  # squared distances of 0.0025 and 0.01, below 0.02
    np.testing.assert_allclose(scan_rewards(by_hand(k=1, cluster=0.02, constant=1.0), near), [0.5, 0.5])
    assert scan_rewards(by_hand(k=2, cluster=0.02, constant=1e-3, s_max=1.2), near)[1] == 0


def test_the_mean_distance_is_that_of_each_state_to_its_neighbours_in_the_episode():
    reward = by_hand(k=2, learning_rate=1e-9)
    reward.update(path([0, 1, 3], [5, 6]))  # 1; 4 and 9; 1
    assert float(reward.distance.mean) == pytest.approx((1 + 4 + 9 + 1) / 4)
    assert reward.distance.count == 4


def test_rows_that_are_no_transitions_do_not_move_the_mean_distance():
    reward, batch = by_hand(k=2, learning_rate=1e-9), path([0, 1, 3, 99], [5, 6])
    valid = (np.arange(4) != 2)[:, None]  # the first episode was lost at 3
    reward.update(batch.replace(valid=valid, truncated=~valid))
    assert float(reward.distance.mean) == pytest.approx((1 + 4 + 9 + 1) / 4)


def test_distances_are_in_units_of_their_mean():
    bonus = []
    for width in (1, 100):
        reward = by_hand(k=2, cluster=0.0)
        reward.distance.mean = np.array(float(width**2))
        bonus.append(scan_rewards(reward, path(width * np.array([0, 1, 3, 3, 0]))))
    np.testing.assert_allclose(*bonus, rtol=1e-5)


def test_observations_that_never_change_are_visits_of_one_state():
    reward, data = make(), path(np.full(20, 7.0))
    for _ in range(2):
        reward.update(data)
    assert float(reward.distance.mean) == pytest.approx(0, abs=1e-9)
    bonus = scan_rewards(reward, data)
    assert np.isfinite(bonus).all()
    np.testing.assert_allclose(bonus[9:], 1 / (np.sqrt(10) + 1e-3), rtol=1e-3)


def test_one_row_and_a_full_memory_are_no_trouble():
    reward = make(PLANE, capacity=3)
    reward.update(random_rollout(PLANE, TWO).flatten()[:1])
    assert np.isfinite(scan_rewards(reward, path(np.random.default_rng(0).normal(size=(300, 2))))).all()
