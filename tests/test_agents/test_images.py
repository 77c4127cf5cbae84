"""Images are stored once, and the last one of an episode is not lost."""

import numpy as np
import torch

from agents.replay.replay import Images
from lodestar.state import pack, unpack

SHAPE = (1, 2, 2)


def picture(number):
    return np.full((1, *SHAPE), number, np.uint8)


def turned(steps, length=6, ends=(3, 4, 9, 15)):
    """Images of one environment whose picture is the time, 100 more after an end; and what followed each row."""
    images = Images({"x": SHAPE}, length, 1, "cpu", True)
    follows = {}
    for t in range(steps):
        after = 100 + t if t in ends else t + 1
        images.write(t % length, {"x": picture(t)}, {"x": picture(after)}, np.array([t - 1 in ends]))
        follows[t % length] = (t, after)
        follows.pop((t + 1) % length, None)
    return images, follows


def test_what_follows_is_the_next_row_or_the_final_image():
    for steps in range(1, 30):
        images, follows = turned(steps)
        rows = np.array(sorted(follows))
        assert images.at(rows)["x"][:, 0, 0, 0].tolist() == [follows[r][0] for r in rows]
        assert images.after(rows)["x"][:, 0, 0, 0].tolist() == [follows[r][1] for r in rows]


def test_places_of_finals_are_used_again():
    images, _ = turned(120, ends=tuple(range(0, 120, 2)))
    assert len(images.finals["x"]) == 16 and (images.slot >= 0).sum() <= 3
    assert len(images._free) + (images.slot >= 0).sum() == 16


def test_without_questions_about_what_follows_nothing_more_is_kept():
    images = Images({"x": SHAPE}, 3, 2, "cpu", False)
    for t in range(5):
        images.write(t % 3, {"x": np.repeat(picture(t), 2, 0)}, {}, np.array([True, False]))
    assert images.table["x"][:, 0, 0, 0].tolist() == [3, 3, 4, 4, 2, 2]
    assert len(images.finals["x"]) == 0 and len(images.slot) == 0


def test_saved_images_come_back():
    for steps in (4, 20):
        images, follows = turned(steps)
        other = Images({"x": SHAPE}, 6, 1, "cpu", True)
        other.load_state_dict(unpack(*pack(images.state_dict(min(steps, 6)))))
        rows = np.array(sorted(follows))
        np.testing.assert_array_equal(other.after(rows)["x"], images.after(rows)["x"])
        assert torch.equal(other.finals["x"], images.finals["x"])
