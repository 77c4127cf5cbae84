"""Forward prediction: by hand, and that its bonus ends at what cannot be predicted."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rewards.check import random_rollout
from rewards.exploration.forward import Forward, ForwardConfig

BOX, ACTIONS = spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(4)
GREY = spaces.Box(0, 255, (4, 40, 40), np.uint8)
MOVES = np.float32([[1, 0], [-1, 0], [0, 1], [0, -1]])


def make(space=BOX, actions=ACTIONS, **options):
    return Forward(ForwardConfig(**options), space, actions)


def walks(count, seed, noise):
    """Two numbers that the action moves by one, and two of fresh noise of that deviation."""
    rng = np.random.default_rng(seed)
    batch = random_rollout(BOX, ACTIONS, steps=count, envs=1).flatten()
    action, place = rng.integers(0, 4, count), rng.uniform(-1, 1, (count, 2))
    one, two = rng.normal(0, 1, (2, count, 2)) * noise
    obs, next_obs = np.hstack([place, one]), np.hstack([place + MOVES[action], two])
    return batch.replace(obs=obs.astype(np.float32), next_obs=next_obs.astype(np.float32), action=action)


def test_the_reward_is_the_squared_error_of_the_prediction_by_hand():
    space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    forward = make(space, spaces.Discrete(2))
    forward.model = torch.nn.Linear(4, 2, bias=False)
    forward.model.weight.data = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 2.0, 0.0, 0.0]])  # (x_0 + (a == 1), 2 x_1)
    forward.statistics.mean, forward.statistics.var = np.array([1.0, 0.0]), np.array([4.0, 1.0])
    batch = random_rollout(space, spaces.Discrete(2), steps=3, envs=1).flatten()
    batch = batch.replace(
        obs=np.float32([[1, 1], [3, 1], [5, 0]]),
        next_obs=np.float32([[1, 2], [3, 0], [-3, 1]]),
        action=np.array([0, 1, 0]),
    )
    # whitened (0, 1), (1, 1), (2, 0) become (0, 2), (1, 0), (-2, 1), foretold as (0, 2), (2, 2), (2, 0)
    np.testing.assert_allclose(forward.score(batch), [0, 1 + 4, 16 + 1])


@pytest.mark.parametrize(("noise", "floor"), [pytest.param(0.0, 0.0, marks=pytest.mark.nightly), (3.0, 2.0)])
def test_the_bonus_falls_to_the_variance_of_the_noise(noise, floor):
    forward = make(learning_rate=1e-3, epochs=4)
    for seed in range(12):
        forward.update(walks(1024, seed, noise))
    # two whitened numbers of variance 1 cannot be predicted; what can be is learnt in both worlds
    assert forward.score(walks(4000, 99, noise)).mean() == pytest.approx(floor, abs=0.12)


def test_images_are_predicted_as_features_of_a_network_that_never_learns():
    forward = make(GREY, features=8, hidden=16)
    data = random_rollout(GREY, ACTIONS)
    before = [parameter.clone() for parameter in forward.features.parameters()]
    forward.update(data)
    x, _, after = forward.columns(data.flatten())
    assert x.shape == after.shape == (24, 8)
    assert all(map(torch.equal, before, forward.features.parameters()))
    assert not any(parameter.requires_grad for parameter in forward.features.parameters())  # nor costs gradients
    assert make().features is None


def test_one_network_of_two_hidden_layers_takes_the_observation_and_the_action():
    widths = [tuple(layer.weight.shape) for layer in make(hidden=32).model if hasattr(layer, "weight")]
    assert widths == [(32, 8), (32, 32), (4, 32)]
