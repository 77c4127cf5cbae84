"""Worlds that go wrong in one way each, registered as a user's own would be: env=faulty_worlds:Name-v0."""

import os
import time

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Plain(gym.Env):
    """Forty steps of nothing; subclasses spoil the hundredth step."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)
    render_mode = None

    def __init__(self, render_mode=None):
        self.t = self.total = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def _obs(self):
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def step(self, action):
        self.t += 1
        self.total += 1
        reward = self.spoil() if self.total == 100 else 1.0
        return self._obs(), reward, False, self.t == 40, {}

    def spoil(self):
        return 1.0


class NotANumber(Plain):
    def spoil(self):
        return float("nan")


class Raises(Plain):
    def spoil(self):
        raise KeyError("the door")


class Divides(Plain):
    """As NumPy does where np.seterr(all="raise") was called."""

    def spoil(self):
        raise FloatingPointError("divide by zero encountered in divide")


class Wanders(Plain):
    """Makes another folder the working directory, in the hundredth step."""

    def __init__(self, to="", render_mode=None):
        super().__init__(render_mode)
        self.to = to

    def spoil(self):
        os.chdir(self.to)
        return 1.0


class Sleeps(Plain):
    def spoil(self):
        time.sleep(60)
        return 1.0


class Exits(Plain):
    def spoil(self):
        raise SystemExit(0)


class Vanishes(Plain):
    def spoil(self):
        os._exit(0)


class Level(Plain):
    """Pays `level` a step."""

    def __init__(self, level=1):
        super().__init__()
        self.level = level

    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, self.level * reward, *rest


for name in ("Plain", "NotANumber", "Raises", "Divides", "Wanders", "Sleeps", "Exits", "Vanishes", "Level"):
    gym.register(f"{name}-v0", f"{__name__}:{name}")
gym.register("Any-v0", lambda level=1, **words: Level(level))
