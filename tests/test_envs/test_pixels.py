"""The pendulum that is only seen: pictures tell the angle, clouds tell nothing, physics is Pendulum's."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from envs.make import make

PIXELS = "lodestar/PixelPendulum-v0"


@pytest.mark.parametrize("background", ["none", "video"])
def test_it_keeps_gymnasiums_contract(background):
    check_env(gym.make(PIXELS, background=background).unwrapped, skip_render_check=True)


def test_rewards_are_pendulums():
    seen, plain = make(PIXELS), make("Pendulum-v1")
    seen.reset(seed=3)
    plain.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(50):
        action = rng.uniform(-2, 2, 1).astype(np.float32)
        assert seen.step(action)[1] == plain.step(action)[1]


def test_the_rod_shows_the_angle_before_every_background():
    for background in ("none", "video"):
        env = make(PIXELS, background=background)
        env.reset(seed=0)
        world = env.unwrapped
        red = []
        for angle in (0.0, np.pi):
            world.state = np.array([angle, 0.0])
            picture = world._get_obs().astype(float)
            greener = picture[0] - picture[1] - (world.clouds()[0] - world.clouds()[1] if background == "video" else 0)
            red.append(greener.clip(0).sum(1))  # of each row
        height = [np.average(np.arange(32), weights=rows) for rows in red]
        assert height[0] < 14 and height[1] > 17  # above and below the axle


def test_clouds_drift_slowly_and_differ_between_episodes():
    env = make(PIXELS, background="video")
    env.reset(seed=0)
    world = env.unwrapped
    first = world.clouds()
    env.step(np.zeros(1, np.float32))
    second = world.clouds()
    assert first.min() >= 60 and first.max() <= 255 and first.std() > 30
    assert 0 < np.abs(second - first).mean() < 40
    env.reset(seed=1)
    assert np.abs(world.clouds() - first).mean() > 30
    env.reset(seed=0)
    assert np.array_equal(world.clouds(), first)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match=r"background='cats' is unknown; give one of none, video"):
        make(PIXELS, background="cats")
    with pytest.raises(ValueError, match=r"size=8 is too small"):
        make(PIXELS, size=8)
