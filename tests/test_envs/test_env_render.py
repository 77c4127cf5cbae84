"""Frames: squashed by area averaging, never silently black."""

import os
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest

from envs import render
from envs.make import make


def test_resizing_averages_areas_and_squashes_to_a_square() -> None:
    image = np.zeros((4, 8, 3), dtype=np.uint8)
    image[:2, 4:] = (200, 100, 40)
    image[0, 0] = 80  # one of the eight pixels of its block
    small = render.resize(image, 2)
    assert small.shape == (2, 2, 3) and small.dtype == np.uint8
    np.testing.assert_array_equal(small[0, 1], (200, 100, 40))
    np.testing.assert_array_equal(small[0, 0], (10, 10, 10))
    np.testing.assert_array_equal(small[1], 0)


def test_far_shrinking_keeps_the_mean() -> None:
    image = np.random.default_rng(0).integers(0, 256, (400, 600, 3), dtype=np.uint8)
    small = render.resize(image, 64)
    np.testing.assert_allclose(small.mean(axis=(0, 1)), image.mean(axis=(0, 1)), atol=1.0)


class _Fixed(gym.Env):
    render_mode = "rgb_array"
    observation_space = action_space = gym.spaces.Discrete(1)

    def __init__(self, image: object) -> None:
        self.image = image

    def render(self) -> object:
        return self.image


@pytest.mark.parametrize(
    ("shape", "size"), [((400, 600), (299, 448)), ((600, 400), (448, 299)), ((90, 90), (448, 448))]
)
def test_circles_stay_circles_in_pictures_for_people_and_not_in_what_rewards_read(shape, size) -> None:
    y, x = np.mgrid[: shape[0], : shape[1]]
    disc = (y - shape[0] / 2) ** 2 + (x - shape[1] / 2) ** 2 < (0.3 * min(shape)) ** 2
    image = np.repeat(255 * disc[..., None], 3, 2).astype(np.uint8)
    seen = render.picture(_Fixed(image), 448)
    assert seen.shape == (*size, 3)
    high, wide = (np.flatnonzero((seen[..., 0] > 127).any(axis)).size for axis in (1, 0))
    assert abs(high - wide) <= 2
    assert render.frame(_Fixed(image), 64).shape == (64, 64, 3)


def test_a_picture_of_one_colour_is_refused_in_one_sentence() -> None:
    with pytest.raises(RuntimeError) as caught:
        render.frame(_Fixed(np.zeros((90, 90, 3), dtype=np.uint8)), 64)
    assert str(caught.value).startswith("_Fixed rendered one single colour (0 everywhere), which no reward can read; ")
    assert "MUJOCO_GL=" in str(caught.value)


def test_no_picture_is_refused_in_one_sentence() -> None:
    with pytest.raises(RuntimeError, match=r"_Fixed rendered NoneType, not an image .*; make it with"):
        render.frame(_Fixed(None), 64)


def test_prepare_chooses_only_without_a_screen_and_says_what() -> None:
    code = "from envs import render; print(render.prepare())"
    names = ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL", "SDL_VIDEODRIVER", "XDG_RUNTIME_DIR")
    clean = {key: value for key, value in os.environ.items() if key not in names}

    def said(**extra: str) -> str:
        done = subprocess.run([sys.executable, "-c", code], env={**clean, **extra}, capture_output=True, text=True)
        return done.stdout.strip()

    if sys.platform == "linux":
        assert said() == "MUJOCO_GL=egl, SDL_VIDEODRIVER=dummy"
        assert said(MUJOCO_GL="osmesa") == "MUJOCO_GL=osmesa, SDL_VIDEODRIVER=dummy"
        assert said(DISPLAY=":0") == "MUJOCO_GL=the default, SDL_VIDEODRIVER=the default"


@pytest.mark.parametrize("env_id", ["highway-fast-v0", "NetHackScore-v0", "CarRacing-v3", "MiniGrid-Empty-8x8-v0"])
def test_frames_of_every_renderer_show_something_and_change(env_id: str) -> None:
    env = make(env_id, frame_size=64, seed=0)
    _, info = env.reset()
    first = info["frame"]
    assert first.shape == (64, 64, 3) and first.std() > 3
    changed = False
    for _ in range(8):
        changed |= bool((env.step(env.action_space.sample())[-1]["frame"] != first).any())
    assert changed


def test_highway_does_not_draw_frames_that_nobody_asked_for() -> None:
    env = make("highway-fast-v0", frame_size=64, seed=0, config={"vehicles_count": 3})
    env.reset()
    viewer, drawn = env.unwrapped.viewer, []
    display = viewer.display
    viewer.display = lambda: (drawn.append(1), display())
    env.step(1)
    assert len(drawn) == 1


def test_mujoco_frames_survive_the_closing_of_another_environment() -> None:
    first = make("HalfCheetah-v5", frame_size=64, seed=0)
    try:
        _, info = first.reset()
    except Exception as error:  # no EGL, no OSMesa: nothing to check on this machine
        pytest.skip(f"MuJoCo cannot render here: {error}")
    second = make("Hopper-v5", frame_size=32, seed=0)
    second.reset()
    np.testing.assert_array_equal(render.frame(first, 64), info["frame"])
    second.close()
    np.testing.assert_array_equal(render.frame(first, 64), info["frame"])


@pytest.mark.nightly
def test_torch_can_compile_after_mujoco_has_drawn() -> None:
    """Both bring an LLVM; in the wrong order the process dies (see `render.before_opengl`)."""
    program = (
        "from envs.make import make\n"
        "try:\n    make('HalfCheetah-v5', frame_size=32).reset()\n"
        "except Exception as error:\n    print('fine', error); raise SystemExit\n"  # no OpenGL on this machine
        "import torch\n"
        "torch.optim.Adam(torch.nn.Linear(2, 2).parameters())\n"
        "print('fine')\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.startswith("fine"), (result.returncode, result.stderr[-500:])
