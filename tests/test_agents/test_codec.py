"""Spaces as vectors and back: nothing is lost, whatever the space."""

import numpy as np
import pytest
from gymnasium import spaces

from agents.networks.actor_critic import SpaceEncoding

BOX = spaces.Box(-2.0, 4.0, (3,), np.float32)


@pytest.mark.parametrize(
    "space",
    [
        BOX,
        spaces.Box(-1, 1, (2, 3), np.float64),
        spaces.Discrete(5, start=2),
        spaces.MultiDiscrete([2, 3, 4]),
        spaces.MultiBinary(4),
        spaces.Box(0, 255, (3, 8, 8), np.uint8),
        spaces.Dict(
            {"image": spaces.Box(0, 255, (1, 4, 4), np.uint8), "n": spaces.Discrete(3), "x": spaces.Box(-1, 1, (2,))}
        ),
    ],
)
def test_an_observation_comes_back_as_it_was(space):
    encoding = SpaceEncoding(space, BOX)
    space.seed(0)
    batch = [space.sample() for _ in range(6)]
    stacked = (
        {k: np.stack([b[k] for b in batch]) for k in batch[0]} if isinstance(space, spaces.Dict) else np.stack(batch)
    )
    vector = encoding.vector(stacked)
    assert vector.shape == (6, encoding.obs_size) and vector.dtype == np.float32
    back = encoding.obs(vector, encoding.pixels(stacked))
    for key in back if isinstance(back, dict) else [None]:
        was, now = (stacked[key], back[key]) if key else (stacked, back)
        assert now.dtype == was.dtype and now.shape == was.shape
        np.testing.assert_allclose(now, was, atol=1e-6)


def test_continuous_actions_are_scaled_to_one_and_back():
    encoding = SpaceEncoding(BOX, BOX)
    action = np.array([[-2.0, 1.0, 4.0]], np.float32)
    assert encoding.encode(action).tolist() == [[-1.0, 0.0, 1.0]]
    assert encoding.decode(np.array([[-3.0, 0.0, 1.0]], np.float32)).tolist() == [[-2.0, 1.0, 4.0]]


def test_discrete_actions_are_one_hot_from_wherever_they_start():
    encoding = SpaceEncoding(BOX, spaces.Discrete(3, start=1))
    assert encoding.discrete and encoding.action_size == 3
    assert encoding.encode(np.array([1, 3])).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert encoding.decode(np.array([[0.1, 0.7, 0.2]])).tolist() == [2]


@pytest.mark.parametrize("space", [spaces.MultiDiscrete([2, 2]), spaces.Box(-np.inf, np.inf, (2,))])
def test_actions_that_cannot_be_predicted_from_are_refused(space):
    with pytest.raises(ValueError, match=r"Discrete, or a Box of floats with finite bounds"):
        SpaceEncoding(BOX, space)
