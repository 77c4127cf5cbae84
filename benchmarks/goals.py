"""Hand-written goals for the studies balance, blend, driving, gate and hacking: coins, wishes, a farm, a car, a hint.

    env=benchmarks.goals:Coins-v0 reward=[benchmarks.goals:Gold,benchmarks.goals:Copper]

Each score is 0 to 1 a step, gold's 0 or 100, so that a sum of them forgets copper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.pendulum import PendulumEnv

from envs.driving.vehicle import read
from envs.transitions import Transitions
from envs.types import EnvReset, EnvStep, Memory
from lodestar.settings import setting
from rewards.base import Reward, RewardConfig
from rewards.vision.synthesis import Synthesis, SynthesisConfig

SIDE, STEPS = 5, 50
MOVES = np.array([[-1, 0], [1, 0], [0, -1], [0, 1]])


class Worse:
    """Two sums of an episode; what the smaller of them grows by is the reward, so a return is the smaller sum."""

    def begin(self) -> None:
        self.sums = np.zeros(2)

    def grow(self, *scores: float) -> float:
        before = self.sums.min()
        self.sums += scores
        return float(self.sums.min() - before)


class Coins(Worse, gym.Env):
    """A grid with a gold and a copper coin; one that is taken lies elsewhere at once. 50 steps.

    Observation, float32 (8,): the agent's cell, the way to gold and to copper in sides of the grid, whether this step
    took gold and whether it took copper. The return is the smaller number of coins, which no agent here is given.
    """

    observation_space = gym.spaces.Box(-1.0, 1.0, (8,), np.float32)
    action_space = gym.spaces.Discrete(len(MOVES))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> EnvReset:
        super().reset(seed=seed)
        self.begin()
        self.cells = self.np_random.integers(SIDE, size=(3, 2))
        self.taken = np.zeros(2, bool)
        return self._obs(), {}

    def step(self, action: Any) -> EnvStep:
        self.cells[0] = np.clip(self.cells[0] + MOVES[action], 0, SIDE - 1)
        self.taken = (self.cells[1:] == self.cells[0]).all(1)
        self.cells[1:][self.taken] = self.np_random.integers(SIDE, size=(int(self.taken.sum()), 2))
        return self._obs(), self.grow(*self.taken), False, False, {}

    def _obs(self) -> np.ndarray:
        agent, *coins = self.cells / (SIDE - 1)
        return np.concatenate([agent, *(coin - agent for coin in coins), self.taken]).astype(np.float32)


class Wishes(Worse, PendulumEnv):
    """Gymnasium's Pendulum, whose return is the smaller of two sums: how upright it is, how little torque is used."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> EnvReset:
        self.begin()
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> EnvStep:
        obs, _, terminated, truncated, info = super().step(action)
        torque = min(abs(float(np.asarray(action).ravel()[0])), self.max_torque)
        return obs, self.grow((1 + float(obs[0])) / 2, 1 - torque / 2), terminated, truncated, info


class Farm(gym.Env):
    """A row of 11 cells: the episode begins in the middle, the goal is at the right end, and a cell is the farm.

    Observation, float32 (2,): the cell, 0 to 1, and whether it is the farm. The goal ends the episode with 1.
    """

    observation_space = gym.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, farm: int) -> None:
        self.farm = farm

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> EnvReset:
        super().reset(seed=seed)
        self.cell = 5
        return self._obs(), {}

    def step(self, action: Any) -> EnvStep:
        self.cell = int(np.clip(self.cell + action - 1, 0, 10))
        return self._obs(), float(self.cell == 10), self.cell == 10, False, {}

    def _obs(self) -> np.ndarray:
        return np.array([self.cell / 10, self.cell == self.farm], np.float32)


class Speed(gym.Env):
    """A car that random play drives slowly: v' = 0.9 v + 0.3 u, 100 steps. A step earns |v| up to 1, and 2 - |v| above.

    Observation, float32 (1,): v, -3 to 3. Half throttle is best: among slow episodes the faster is always the better.
    """

    observation_space = gym.spaces.Box(-3.0, 3.0, (1,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> EnvReset:
        super().reset(seed=seed)
        self.v = 0.0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> EnvStep:
        self.v = 0.9 * self.v + 0.3 * float(np.clip(np.asarray(action).ravel()[0], -1, 1))
        return np.array([self.v], np.float32), 1 - abs(1 - abs(self.v)), False, False, {}


for name, cell in {"FarmAside-v0": 2, "FarmOnTheWay-v0": 7}.items():
    gym.register(name, f"{__name__}:Farm", max_episode_steps=STEPS, kwargs={"farm": cell})
gym.register("Speed-v0", f"{__name__}:Speed", max_episode_steps=100)
gym.register("Coins-v0", f"{__name__}:Coins", max_episode_steps=STEPS)
gym.register("Wishes-v0", f"{__name__}:Wishes", max_episode_steps=200)


class Written(Reward):
    """A reward without options of its own."""

    Config = RewardConfig
    requires = frozenset({"next_obs"})
    role = "goal"


class Gold(Written):
    """100 for a step that takes gold."""

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        return 100 * np.asarray(batch.next_obs, np.float32)[:, -2]


class Copper(Written):
    """1 for a step that takes copper."""

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        return np.asarray(batch.next_obs, np.float32)[:, -1]


class HalfRight(Written):
    """How far up a pendulum stands, -1 to 1, with the wrong sign where it leans to the left."""

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        height, left = np.asarray(batch.next_obs, np.float32).T[:2]
        return np.where(left < 0, height, -height)


class Upright(Written):
    """How far up a pendulum stands, 0 to 1."""

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        return (1 + np.asarray(batch.next_obs, np.float32)[:, 0]) / 2


class Harvest(Written):
    """0.1 for a step that ends on the farm."""

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        return 0.1 * np.asarray(batch.next_obs, np.float32)[:, 1]


class Thrift(Written):
    """How little torque is used, 0 to 1: 1 - |u| / 2."""

    requires = frozenset({"action"})

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        return 1 - np.abs(np.asarray(batch.action, np.float32)[:, 0]) / 2


@dataclass
class HintConfig(RewardConfig):
    """Which hint."""

    kind: str = setting("good", "good, the height; harmful, minus that; noise", "good | harmful | noise")


class Hint(Written):
    """The height of CartPoleUpright's pole or of MountainCarGoal's car, -1 to 1; minus that; or noise."""

    Config = HintConfig

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        obs = np.asarray(batch.next_obs, np.float32)
        if self.config.kind == "noise":
            return np.sin(1e4 * obs.sum(1))
        return (obs[:, 2] if obs.shape[1] == 5 else np.sin(3 * obs[:, 0])) * (
            -1 if self.config.kind == "harmful" else 1
        )


@dataclass
class GapAdvisedConfig(SynthesisConfig):
    """No picture."""

    semantics: str = "constant"


class GapAdvised(Synthesis):
    """Synthesis whose advice is the true gap to the car ahead: full speed from 50 m on, none at a bumper."""

    Config = GapAdvisedConfig

    def _advised_share(self, batch: Transitions) -> np.ndarray:
        assert batch.signals is not None
        return np.clip(read(batch.signals).gap / 50, 0, 1).astype(np.float32)
