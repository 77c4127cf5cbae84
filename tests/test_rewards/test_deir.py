"""DEIR: the quotient by hand, the walk against plain Python, and what the discriminator learns."""

import numpy as np
import pytest
import torch
from paths import LINE, PLANE, TWO, path, scan_rewards

from rewards.check import random_rollout
from rewards.exploration.deir import DEIR, DEIRConfig, TrajectoryQuotient


def make(space=LINE, **options):
    return DEIR(DEIRConfig(**options), space, TWO)


def test_distances_are_squares_of_observations_over_lengths_of_ways():
    # observations 3 apart, ways (3, 4) apart: 9 / 5
    x, y = np.float32([[[0, 0, 0, 0]]]), np.float32([[[3, 0, 3, 4], [0, 0, 1, 1]]])
    np.testing.assert_allclose(TrajectoryQuotient(8, 4, 1).distances(x, y), [[[9 / 5, 0]]], rtol=1e-5)


def test_it_gives_the_smallest_quotient_over_the_states_of_the_episode():
    deir = make(PLANE, features=3, hidden=8)
    episodes = np.random.default_rng(0).normal(size=(2, 9, 2)).astype(np.float32)
    expected = []
    with torch.no_grad():
        for episode in episodes:
            h, e, ways = torch.zeros(1, 3), deir.encoder(deir.inputs(episode)), []
            for t in range(9):
                if t:
                    squares = (e[:t] - e[t]).square().sum(dim=1)
                    lengths = (torch.cat(ways) - h).norm(dim=1)
                    expected.append(float((squares / (lengths + 1e-6)).min()))
                ways.append(h)
                h = deir.trajectory(e[t : t + 1], h)
    np.testing.assert_allclose(scan_rewards(deir, path(*episodes)), expected, rtol=1e-3)


def test_a_state_of_this_episode_gives_no_reward_again():
    bonus = scan_rewards(make(), path([0, 1, 2, 1, 0]))
    assert min(bonus[:2]) > 1e-4
    np.testing.assert_allclose(bonus[2:], 0, atol=1e-6)


@pytest.mark.nightly
def test_the_discriminator_learns_which_successor_is_true_where_actions_decide():
    rng = np.random.default_rng(0)
    action = rng.integers(0, 2, 2048)
    data = random_rollout(LINE, TWO, steps=2048, envs=1).flatten()
    data = data.replace(action=action, next_obs=np.float32(2 * action[:, None] - 1))
    deir = make(learning_rate=3e-3)
    losses = [deir.update(data)["loss"] for _ in range(14)]
    # half of the false successors equal the true one and do not count: chance is log(2) / 2
    assert losses[0] == pytest.approx(np.log(2) / 2, rel=0.5)
    assert losses[-1] < 0.05


def test_observations_that_never_change_give_no_reward_and_teach_nothing():
    deir, data = make(), path(np.full(50, 7.0))
    assert deir.update(data)["loss"] == 0
    np.testing.assert_allclose(scan_rewards(deir, data), 0, atol=1e-4)


def test_episodes_of_one_step_and_a_full_memory_are_finite():
    deir = make(capacity=2)
    assert np.isfinite(scan_rewards(deir, path([0, 1], [1, 1], [1, 2]))).all()
    assert np.isfinite(scan_rewards(deir, path(np.arange(300)))).all()
