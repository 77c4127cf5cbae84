"""An environment whose forbidden actions raise, for tests of action masks; workers import it, so it needs no torch."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Doors(gym.Env):
    """Some of six doors are open, one of them right; a closed one raises.

    `way` says how masks are given: in info, by the method, or not at all; `bad` breaks the one of that step.
    """

    def __init__(self, way="info", space=None, bad=None, at=3):
        self.observation_space = spaces.Box(0, 1, (6,), np.float32)
        self.action_space = spaces.Discrete(6) if space is None else space
        self.sizes = [6] if space is None else space.nvec.tolist()
        self.way, self.bad, self.at, self.shared = way, bad, at, {}
        if way == "method":
            self.action_masks = lambda: self.mask

    def _next(self):
        self.mask = self.np_random.random(sum(self.sizes)) < 0.3
        begins = np.cumsum([0, *self.sizes[:-1]])
        self.right = [int(self.np_random.integers(n)) for n in self.sizes]
        self.mask[begins + self.right] = True
        obs = np.zeros(6, np.float32)
        obs[self.right[0]] = 1
        self.shared.clear()  # always the same dict
        if self.way == "info" and not (self.bad == "missing" and self.k == self.at):
            given = {"shape": np.ones(5, bool), "none": np.zeros(6, bool)}.get(self.bad, self.mask.astype(np.int8))
            self.shared["action_mask"] = given if self.k == self.at else self.mask
        return obs

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.k = 0
        return self._next(), self.shared

    def step(self, action):
        chosen = np.ravel(action)
        if not self.mask[chosen + np.cumsum([0, *self.sizes[:-1]])].all():
            raise RuntimeError(f"{action} is closed")
        self.k += 1
        reward = float(chosen[0] == self.right[0])
        return self._next(), reward, self.k == 7, False, self.shared


gym.register("MaskDoors-v0", Doors, max_episode_steps=5)
gym.register("MaskDoorsLong-v0", Doors)
