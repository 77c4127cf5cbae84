"""Worlds of studies: CartPole among numbers that say nothing, mazes, and a source of noise that wanders.

env=benchmarks.worlds:Distracted-v0    env=benchmarks.worlds:HardMaze-v0    env=benchmarks.worlds:Crossings-v0
env=benchmarks.worlds:WanderingNoise-v0
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from envs.exploration.factored import leads, maze
from envs.exploration.family import CellWorld, PointMaze, one_hot
from envs.types import EnvReset, EnvStep

NOISE = 20  # numbers beside the observation of Distracted
STEPS = 100  # of HardMaze
SIZE = 14  # of WanderingNoise
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


class WanderingNoise(CellWorld):
    """A maze of SIZE x SIZE cells, the same in every run, and a source of noise that walks through it at random.

    The agent begins in a corner; there is no reward. Actions: 0 stays, 1 left, 2 right, 3 up, 4 down; a wall stops it.
    Observation: one-hot of its cell, float32 (SIZE * SIZE,), then `bits` numbers: random bits, other ones at every
    step, while the source is within 2 cells along both axes, seen through walls; else zeros. The source begins where
    the agent does, and moves at every second step.
    """

    STATE = ("cell", "source", "noise", "late")

    def __init__(self, bits: int = 0, render_mode: str | None = None) -> None:
        self.bits, self.n_cells = bits, SIZE * SIZE
        self.ways = np.c_[np.arange(self.n_cells), leads(maze(SIZE, np.random.default_rng(1)))]
        self._setup(render_mode, self.n_cells + bits, 5)
        self._begin()

    def _begin(self) -> None:
        self.cell = self.source = 0
        self.noise, self.late = np.zeros(self.bits, np.float32), False

    def step(self, action: Any) -> EnvStep:
        self.cell = int(self.ways[self.cell, action])
        if self.late:
            self.source = int(self.ways[self.source, self.np_random.integers(1, 5)])
        self.late = not self.late
        (row, column), (y, x) = divmod(self.cell, SIZE), divmod(self.source, SIZE)
        near = max(abs(row - y), abs(column - x)) <= 2
        self.noise = near * self.np_random.integers(2, size=self.bits).astype(np.float32)
        return self._obs(), 0.0, False, False, self._info()

    def _obs(self) -> np.ndarray:
        return np.r_[one_hot(self.cell, self.n_cells), self.noise]


gym.register("Distracted-v0", f"{__name__}:Distracted", max_episode_steps=500)
gym.register("HardMaze-v0", f"{__name__}:HardMaze", max_episode_steps=STEPS)
gym.register("Crossings-v0", f"{__name__}:Crossings", max_episode_steps=50)
gym.register("WanderingNoise-v0", f"{__name__}:WanderingNoise", max_episode_steps=200)
