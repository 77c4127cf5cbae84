"""RIDE: distances over roots of counts, done by hand."""

import numpy as np
import pytest
import torch
from paths import LINE, PLANE, TWO, identity_embedding, path, scan_rewards

from rewards.check import random_rollout
from rewards.exploration.ride import RIDE, RIDEConfig


def make(space=PLANE, **options):
    return RIDE(RIDEConfig(**options), space, TWO)


def test_it_gives_the_length_of_the_change_over_the_root_of_the_visits_and_the_first_state_is_one():
    ride = identity_embedding(make())
    states = [[0, 0], [3, 4], [3, 4], [0, 0], [3, 4]]
    np.testing.assert_allclose(scan_rewards(ride, path(states)), [5, 0, 5 / 2**0.5, 5 / 3**0.5], rtol=1e-6)


def test_a_new_episode_counts_afresh_and_does_not_see_the_way_back_to_its_start():
    ride = identity_embedding(make(LINE))
    np.testing.assert_allclose(
        scan_rewards(ride, path([0, 2, 0], [5, 2], [2, 2, 3])), [2, 2 / 2**0.5, 3, 0, 1], rtol=1e-6
    )


def test_bin_decides_which_states_are_the_same():
    fine, coarse = (
        scan_rewards(identity_embedding(make(LINE, bin=width)), path([0, 1.0, 0.1])) for width in (0.1, 5.0)
    )
    np.testing.assert_allclose(fine, [1, 0.9], rtol=1e-6)
    np.testing.assert_allclose(coarse, [2**-0.5, 0.9 / 3**0.5], rtol=1e-6)


def test_an_episode_forgets_its_oldest_cell_when_it_is_full():
    ride = identity_embedding(make(LINE, capacity=2))
    np.testing.assert_allclose(scan_rewards(ride, path([1, 2, 3, 2, 1])), [1, 1, 2**-0.5, 1], rtol=1e-6)


def test_losses_are_weighted_and_what_weighs_nothing_is_nothing():
    data = random_rollout(PLANE, TWO)
    one, two = (make(inverse_weight=weight).update(data) for weight in (1.0, 2.0))
    assert two["inverse_loss"] == pytest.approx(2 * one["inverse_loss"])
    assert two["forward_loss"] == pytest.approx(one["forward_loss"])
    assert make(forward_weight=0).update(data)["forward_loss"] == 0


def test_the_embedding_learns_to_be_predicted_too():
    ride = make(features=2, forward_weight=10.0)
    ride.encode = lambda x, after: (x, after)
    for parameter in ride.forward.parameters():
        parameter.data.zero_()  # it predicts (0, 0)
    after = torch.tensor([[3.0, 4.0]], requires_grad=True)
    loss = ride.loss(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]), after)["forward_loss"]
    assert loss.item() == pytest.approx(10 * (9 + 16) / 2)
    assert torch.autograd.grad(loss, after)[0].tolist() == [[30, 40]]  # 10 * 2 * (3, 4) / 2


@pytest.mark.nightly
def test_both_models_learn_an_environment_that_its_actions_move():
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(2048, 1)).astype(np.float32)
    action = rng.integers(0, 2, 2048)
    data = random_rollout(LINE, TWO, steps=2048, envs=1).flatten()
    data = data.replace(obs=obs, action=action, next_obs=obs + np.float32(2 * action[:, None] - 1))
    ride = make(LINE, epochs=4)
    losses = [ride.update(data) for _ in range(10)]
    assert losses[-1]["inverse_loss"] < 0.3 * losses[0]["inverse_loss"]
    assert losses[-1]["forward_loss"] < 0.3 * losses[0]["forward_loss"]


def test_observations_that_never_change_give_no_reward():
    ride, data = make(LINE), path(np.full(50, 7.0))
    ride.update(data)
    assert scan_rewards(ride, data) == [0] * 49


def test_an_observation_that_is_not_a_number_is_refused():
    with pytest.raises(FloatingPointError, match=r"reward ride was given an observation with nan"):
        scan_rewards(make(LINE), path([0, np.nan, 1]))
