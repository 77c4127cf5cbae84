"""Worlds of the studies `trees`, `qd` and `stitching`: CartPole among numbers that say nothing, and two mazes.

env=benchmarks.worlds:Distracted-v0    env=benchmarks.worlds:HardMaze-v0    env=benchmarks.worlds:Crossings-v0
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from envs.exploration.family import PointMaze
from envs.types import EnvReset, EnvStep

NOISE = 20  # numbers beside the observation of Distracted
STEPS = 100  # of HardMaze
PLAN = (
    *("1...#....2", "....#.....", "....#.....", "###.#..###", "....#....."),
    *("..........", "....####..", "..###.....", "....#.....", "....#....3"),
)
CORNERS = {1: (-0.9, 0.9), 2: (0.9, 0.9), 3: (0.9, -0.9)}


class Distracted(CartPoleEnv):
    """Gymnasium's CartPole with twenty random numbers in [-1, 1] beside the observation, other ones at every step."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        box: Any = self.observation_space
        noise = np.ones(NOISE, np.float32)
        self.observation_space = gym.spaces.Box(np.r_[box.low, -noise], np.r_[box.high, noise], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> EnvReset:
        obs, info = super().reset(seed=seed, options=options)
        return self._beside(obs), info

    def step(self, action: Any) -> EnvStep:
        obs, reward, terminated, truncated, info = super().step(action)
        return self._beside(obs), float(reward), terminated, truncated, info

    def _beside(self, obs: np.ndarray) -> np.ndarray:
        return np.r_[obs, self.np_random.uniform(-1, 1, NOISE)].astype(np.float32)


class HardMaze(PointMaze):
    """The point of `lodestar/PointMaze-v0` among the walls of PLAN, from the bottom left, for 100 steps.

    The last one is rewarded, by 1, 2 or 3, if it ends in the corner that PLAN names so, within 0.15 along both axes.
    """

    STATE = ("place", "left")  # type: ignore[assignment]
    PLAN = PLAN

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> EnvReset:
        super().reset(seed=seed)
        self.place, self.left = np.array([-0.9, -0.9], np.float32), STEPS
        return self._obs(), {}

    def _move(self, action: Any) -> None:
        for axis in (0, 1):
            moved = self.place.copy()
            moved[axis] = min(max(moved[axis] + 0.1 * min(max(action[axis], -1), 1), -1), 1)
            column, row = (min(int(5 * (x + 1)), 9) for x in (moved[0], -moved[1]))
            self.place = self.place if self.PLAN[row][column] == "#" else moved

    def step(self, action: Any) -> EnvStep:
        self._move(action)
        self.left -= 1
        near = [prize for prize, corner in CORNERS.items() if np.abs(self.place - corner).max() < 0.15]
        return self._obs(), float(near[0] if near and not self.left else 0), False, False, {}


class Crossings(HardMaze):
    """The point in two corridors, joined by a third, whose five ends are exits; the one at the top left is worth 1.

    It starts at the lower crossing, with `upper` at the upper one, within 0.05. An episode that leaves by the exit that
    is worth something succeeds; one lasts 50 steps at most.
    """

    STATE = ("place",)  # type: ignore[assignment]
    PLAN = ("..........", *6 * ("####..####",), "..........", *2 * ("####..####",))

    def __init__(self, upper: bool = False, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.first = np.array([0, 0.9 if upper else -0.5], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> EnvReset:
        super().reset(seed=seed)
        self.place = self.first + self.np_random.uniform(-0.05, 0.05, 2).astype(np.float32)
        return self._obs(), {}

    def step(self, action: Any) -> EnvStep:
        self._move(action)
        x, y = map(float, self.place)
        found = x < -0.9 and y > 0.5
        return self._obs(), float(found), abs(x) > 0.9 or y < -0.95, False, {"is_success": found}


gym.register("Distracted-v0", f"{__name__}:Distracted", max_episode_steps=500)
gym.register("HardMaze-v0", f"{__name__}:HardMaze", max_episode_steps=STEPS)
gym.register("Crossings-v0", f"{__name__}:Crossings", max_episode_steps=50)
