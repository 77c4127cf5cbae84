"""RE3: distances to neighbours on a ruler; the encoder never learns."""

import copy

import numpy as np
import torch
from paths import LINE, PLANE, TWO, path, scan_rewards
from torch import nn

from rewards.check import random_rollout
from rewards.exploration.re3 import RE3, RE3Config


def make(space=LINE, **options):
    return RE3(RE3Config(**options), space, TWO)


def by_hand(**options):
    """On the line, where an unbounded space whitens nothing before the first update and the encoder is the identity."""
    re3 = make(features=1, **options)
    re3.encoder.dense = nn.Linear(1, 1, bias=False)
    re3.encoder.dense.weight.data = torch.ones(1, 1)
    return re3


def test_it_gives_the_log_of_one_plus_the_distance_to_the_kth_neighbour_or_the_farthest_while_there_are_fewer():
    states = [0, 3, 1, 1, 5]
    # nearest: 3, 1, 0, 2; second nearest: 3 (only one there), 2, 1, 4
    np.testing.assert_allclose(scan_rewards(by_hand(k=1), path(states)), np.log1p([3, 1, 0, 2]), atol=1e-6)
    np.testing.assert_allclose(scan_rewards(by_hand(k=2), path(states)), np.log1p([3, 2, 1, 4]), atol=1e-6)


def test_a_new_episode_knows_only_the_state_that_it_begins_in():
    np.testing.assert_allclose(scan_rewards(by_hand(k=1), path([0, 1], [4, 1, 0])), np.log1p([1, 3, 1]), atol=1e-6)


def test_an_episode_forgets_its_oldest_state_when_it_is_full():
    np.testing.assert_allclose(scan_rewards(by_hand(k=1, capacity=1), path([0, 4, 0])), np.log1p([4, 4]), atol=1e-6)


def test_only_the_whitening_learns():
    re3, data = make(PLANE), random_rollout(PLANE, TWO)
    before = copy.deepcopy(re3.encoder.state_dict())
    assert re3.update(data) == {}
    assert all(torch.equal(before[key], value) for key, value in re3.encoder.state_dict().items())
    assert re3.statistics.count == 24


def test_observations_that_never_change_give_no_reward():
    re3, data = make(), path(np.full(50, 7.0))
    re3.update(data)
    np.testing.assert_allclose(scan_rewards(re3, data), 0, atol=1e-5)
