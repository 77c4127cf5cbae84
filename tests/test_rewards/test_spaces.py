"""An observation as one row of numbers: vectors first, then images, with the mean and variance of a uniform draw."""

import numpy as np
import pytest
from gymnasium import spaces

from rewards.exploration.learned import Layout, numeric_spaces

MIXED = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (2, 4, 4), np.uint8),
        "place": spaces.Discrete(3, start=5),
        "speed": spaces.Box(np.float32([-1, -np.inf]), np.float32([3, np.inf])),
    }
)


def layout(space=MIXED, keys=(), channels=0, smallest_image=4):
    return Layout(space, keys, "rnd", channels=channels, smallest_image=smallest_image)


def test_vectors_come_first_discrete_ones_one_hot_then_images():
    image = np.arange(32, dtype=np.uint8).reshape(1, 2, 4, 4)
    obs = {"image": image, "place": np.array([6]), "speed": np.float32([[0.5, 7]])}
    row = layout().flatten(obs)
    assert row.dtype == np.float32 and row.shape == (1, layout().size) == (1, 3 + 2 + 32)
    assert row[0, :5].tolist() == [0, 1, 0, 0.5, 7]
    assert row[0, 5:].tolist() == list(range(32))
    assert layout().images == {"image": (2, 4, 4)} and layout().vector == 5


def test_channels_are_counted_from_the_last_and_small_images_are_vectors():
    obs = {"image": np.arange(32, dtype=np.uint8).reshape(1, 2, 4, 4)}
    assert layout(keys=["image"], channels=1).flatten(obs)[0].tolist() == list(range(16, 32))
    small = layout(keys=["image"], smallest_image=5)
    assert small.images == {} and small.vector == 32


def test_the_prior_is_that_of_a_uniform_draw_and_one_where_there_are_no_bounds():
    mean, variance = layout(keys=["place", "speed"]).prior()
    np.testing.assert_allclose(mean, [0.5, 0.5, 0.5, 1, 0])
    np.testing.assert_allclose(variance, [1 / 12, 1 / 12, 1 / 12, 16 / 12, 1])


def test_no_rows_make_no_rows():
    assert layout(spaces.Box(-1, 1, (2, 3))).flatten(np.zeros((0, 2, 3), np.float32)).shape == (0, 6)


def test_what_cannot_be_read_is_named():
    with pytest.raises(ValueError, match=r"reward rnd cannot read the observation space Text\(.*\(entry 'word'\)"):
        numeric_spaces(spaces.Dict({"word": spaces.Text(5)}), [], "rnd")
    with pytest.raises(ValueError, match=r"names 'sound', which the observation does not have; choose among \['image'"):
        numeric_spaces(MIXED, ["sound"], "rnd")
    with pytest.raises(ValueError, match="needs a Dict observation"):
        numeric_spaces(spaces.Discrete(2), ["image"], "rnd")
    with pytest.raises(ValueError, match="channels=3, but the image has 2"):
        layout(channels=3)
