"""A pendulum seen only as pixels, with a distracting background: does a world model waste capacity on it?

    lodestar/PixelPendulum-v0    Pendulum-v1's physics, reward and torques; the observation is a picture

What it tests: an agent must find in the picture what it can act on. With `background="video"` clouds drift behind the
rod, in other colours for every episode: they can be predicted, they fill most of the pixels, and nothing depends on
them. A model that reconstructs pixels spends its capacity on them; one that predicts rewards, or what its actions
change, need not.

Observations uint8 (3, size, size): one picture, which does not show the velocity. Actions float32 (1,) in [-2, 2].
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.pendulum import PendulumEnv

from envs.classic.view import ClassicPainter
from envs.types import EnvReset, EnvStep

BACKGROUNDS = ("none", "video")
WAVES = 6  # plane waves that make a cloud


class PixelPendulum(PendulumEnv):
    """Swing a pendulum up and hold it there, seeing only pictures, before white ("none") or drifting clouds ("video").

    Raises:
        ValueError: for another background, or a size too small to see the rod.
    """

    STATE = ("state", "last_u", "time", "waves")  # see `envs.snapshots.snapshots`

    def __init__(self, render_mode: str | None = None, size: int = 32, background: str = "none") -> None:
        if background not in BACKGROUNDS:
            raise ValueError(f"background={background!r} is unknown; give one of {', '.join(BACKGROUNDS)}")
        if size < 16:
            raise ValueError(f"size={size} is too small to see a pendulum; give 16 pixels or more")
        super().__init__(render_mode=render_mode)
        self.size, self.background = size, background
        self.observation_space: Any = gym.spaces.Box(0, 255, (3, size, size), np.uint8)
        self.time = 0
        self.waves = np.zeros((3, WAVES, 4))  # of each colour: two wave numbers, speed, phase
        self._view = ClassicPainter(self, size)
        self._grid = np.linspace(0, 1, size, endpoint=False)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> EnvReset:
        super().reset(seed=seed, options=options)
        self.time = 0
        if self.background == "video":
            low, high = np.array([-2.5, -2.5, -0.1, 0.0]), np.array([2.5, 2.5, 0.1, 1.0])
            self.waves = self.np_random.uniform(low, high, (3, WAVES, 4))
        return self._get_obs(), {}

    def step(self, u: Any) -> EnvStep:
        self.time += 1
        obs, reward, terminated, truncated, info = super().step(np.atleast_1d(u))
        return obs, float(reward), terminated, truncated, info

    def _get_obs(self) -> np.ndarray:
        picture = self._view.draw(np.asarray(self.state, np.float32)[None])[0].transpose(2, 0, 1)
        if self.background == "none":
            return np.ascontiguousarray(picture)
        return (picture / 255.0 * self.clouds()).astype(np.uint8)

    def clouds(self) -> np.ndarray:
        """The background as it is now, float64 (3, size, size) in [60, 255]: plane waves that drift."""
        across, up, speed, phase = np.moveaxis(self.waves, -1, 0)[..., None, None]
        turns = across * self._grid + up * self._grid[:, None] + speed * self.time + phase
        cloud = np.sin(2 * math.pi * turns).sum(1) / math.sqrt(WAVES / 2)  # deviation 1
        return 255 - 195 / (1 + np.exp(-2 * cloud))
