"""The first command's figures, and the picture of its run."""

import imageio.v2 as imageio
import numpy as np
from PIL import Image

from benchmarks.checks import first_run


def test_the_figures_are_the_task_returns_of_the_closing_table():
    scores = {
        "this run": {"task_return": 200.0},
        "this run, mode": {"task_return": 199.0},
        "random": {"task_return": 39.85},
        "control: clip.weights=untrained": {"task_return": 20.7},
    }
    assert first_run.figures_of(scores) == {
        "first_run_this_run": 200.0,
        "first_run_mode": 199.0,
        "first_run_random": 39.85,
        "first_run_control": 20.7,
    }


def test_the_picture_has_frames_in_proportion_above_the_curve(tmp_path):
    shades = [np.full((64, 96, 3), shade, np.uint8) for shade in np.linspace(0, 200, 11)]
    imageio.mimwrite(tmp_path / "video.mp4", shades, fps=10, macro_block_size=1)
    Image.new("RGB", (600, 200), "red").save(tmp_path / "curve.png")
    first_run.draw(tmp_path, tmp_path / "picture.png")
    picture = np.asarray(Image.open(tmp_path / "picture.png").convert("RGB")).astype(int)
    width = (first_run.WIDTH + first_run.GAP) // 3 - first_run.GAP
    height = round(64 * width / 96)
    assert picture.shape == (height + 400, 1200, 3)
    shown = [picture[height // 2, number * (width + first_run.GAP) + width // 2, 0] for number in range(3)]
    np.testing.assert_allclose(shown, [0, 60, 200], atol=8)
    assert picture[height + 200, 600].tolist() == [255, 0, 0]
