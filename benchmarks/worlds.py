"""Worlds of studies: CartPole and Pendulum among numbers that say nothing, mazes, noise that wanders, a field to see.

env=benchmarks.worlds:Distracted-v0    env=benchmarks.worlds:DistractedPendulum-v0    env=benchmarks.worlds:HardMaze-v0
env=benchmarks.worlds:Crossings-v0    env=benchmarks.worlds:WanderingNoise-v0    env=benchmarks.worlds:Field-v0
env=benchmarks.worlds:MazeLevel-v0    env=benchmarks.worlds:NoisyPendulum-v0    env=benchmarks.worlds:Hill-v0
env=benchmarks.worlds:Drifting-v0    env=benchmarks.worlds:Reach-v0    env=benchmarks.worlds:Wear-v0
env=benchmarks.worlds:Bandit-v0    env=benchmarks.worlds:DarkRoom-v0    env=benchmarks.worlds:WhitenedHopper-v0
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.classic_control.mountain_car import MountainCarEnv
from gymnasium.envs.classic_control.pendulum import PendulumEnv

from envs.exploration.factored import distances, maze, next_cells
from envs.exploration.family import CellWorld, PointMaze, one_hot
from envs.types import EnvReset, EnvStep

# Numbers beside the observation of Distracted.
NOISE = 20
# Steps of HardMaze.
STEPS = 100
# Cells along each axis of WanderingNoise, and how far its noise is seen.
SIZE = 14
NOISE_SIGHT = 2
# The last level of Wear.
WORN = 10
# Cells along each axis of Field, and how far one sees there.
SIDE = 15
SIGHT = 2
# Arms of a bandit, and cells along each axis of DarkRoom.
BANDIT_ARMS = 10
ROOM_SIDE = 7
# How a field's actions move column and row.
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
# Of HardMaze, seen from above: # is a wall, and a number the reward of a corner.
PLAN = (
    *("1...#....2", "....#.....", "....#.....", "###.#..###", "....#....."),
    *("..........", "....####..", "..###.....", "....#.....", "....#....3"),
)
CORNERS = {1: (-0.9, 0.9), 2: (0.9, 0.9), 3: (0.9, -0.9)}


def widen_box(box: Any, limits: np.ndarray) -> gym.spaces.Box:
    """The space of a box's numbers and of others behind them, as far as `limits` from 0."""
    low = np.r_[box.low, -limits]
    high = np.r_[box.high, limits]
    return gym.spaces.Box(low, high, dtype=np.float32)


class Beside(gym.Env):
    """Twenty random numbers in [-1, 1] beside the observation, other ones at every step."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)  # type: ignore[call-arg]
        box: Any = self.observation_space
        self.observation_space = widen_box(box, np.ones(NOISE, np.float32))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> EnvReset:
        obs, info = super().reset(seed=seed, options=options)
        return self._beside(obs), info

    def step(self, action: Any) -> EnvStep:
        obs, reward, terminated, truncated, info = super().step(action)
        return self._beside(obs), float(reward), terminated, truncated, info

    def _beside(self, obs: np.ndarray) -> np.ndarray:
        noise = self.np_random.uniform(-1, 1, NOISE)
        return np.r_[obs, noise].astype(np.float32)


class Distracted(Beside, CartPoleEnv):  # type: ignore[misc]
    """Gymnasium's CartPole with numbers beside it that say nothing."""


class DistractedPendulum(Beside, PendulumEnv):  # type: ignore[misc]
    """Gymnasium's Pendulum with numbers beside it that say nothing."""


class Drifting(gym.ObservationWrapper):  # type: ignore[type-arg]
    """A world of numbers with `beside` more that say nothing and drift as an Ornstein-Uhlenbeck process of deviation 1.

    Each remembers KEPT of itself at a step, so that a model can predict it, at the expense of what else it could.
    """

    KEPT = 0.95
    # Gymnasium reads it of the class, where a wrapper has none.
    metadata: ClassVar = {"render_modes": []}  # type: ignore[misc]

    def __init__(self, world: str = "Pendulum-v1", beside: int = 32, render_mode: str | None = None) -> None:
        super().__init__(gym.make(world, render_mode=render_mode))
        self.drift = np.zeros(beside)
        box: Any = self.env.observation_space
        self.observation_space = widen_box(box, np.full(beside, np.inf, np.float32))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> EnvReset:
        obs, info = self.env.reset(seed=seed, options=options)
        self.drift = self._draw()
        return self._beside(obs), info

    def observation(self, obs: np.ndarray) -> np.ndarray:
        # The share of fresh noise keeps the deviation at 1.
        fresh_share = (1 - self.KEPT**2) ** 0.5
        self.drift = self.KEPT * self.drift + fresh_share * self._draw()
        return self._beside(obs)

    def _draw(self) -> np.ndarray:
        return self.unwrapped.np_random.normal(size=len(self.drift))

    def _beside(self, obs: np.ndarray) -> np.ndarray:
        return np.r_[obs, self.drift].astype(np.float32)


class Reach(gym.Env):
    """A point on a line goes to a place that is another one in each episode: x' = x + 0.2 u, in [-1, 1], 50 steps.

    Observation, float32 (2,): the point and the place. A step earns 1 less the distance from it.
    """

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> EnvReset:
        super().reset(seed=seed)
        self.point, self.place = self.np_random.uniform(-1, 1, 2)
        return self._obs(), {}

    def step(self, action: Any) -> EnvStep:
        throttle = np.asarray(action).ravel()[0]
        throttle = np.clip(throttle, -1, 1)
        self.point = np.clip(self.point + 0.2 * throttle, -1, 1)
        distance = abs(float(self.point - self.place))
        return self._obs(), 1 - distance, False, False, {}

    def _obs(self) -> np.ndarray:
        return np.array([self.point, self.place], np.float32)


class NoisyPendulum(PendulumEnv):
    """Gymnasium's Pendulum, whose reward, -16 to 0, has noise of deviation `noise` added."""

    def __init__(self, noise: float = 10.0, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.noise = noise

    def step(self, u: Any) -> EnvStep:
        obs, reward, terminated, truncated, info = super().step(u)
        noise = self.np_random.normal(0, self.noise)
        return obs, float(reward + noise), terminated, truncated, info


class Hill(MountainCarEnv):
    """Gymnasium's MountainCar, 0.0025 of gravity, with another one."""

    def __init__(self, gravity: float = 0.0025, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.gravity = gravity


def whitened_hopper(render_mode: str | None = None) -> gym.Env:
    """Gymnasium's Hopper, its observations whitened by statistics that move at every step, and clipped at 10."""
    whitened: gym.Env = gym.wrappers.NormalizeObservation(gym.make("Hopper-v5", render_mode=render_mode))
    space = gym.spaces.Box(-10, 10, whitened.observation_space.shape, np.float32)
    return gym.wrappers.TransformObservation(whitened, lambda obs: np.clip(obs, -10, 10).astype(np.float32), space)


def clip(x: float) -> float:
    """The nearest number in [-1, 1]."""
    return min(max(x, -1), 1)


class HardMaze(PointMaze):
    """The point of `lodestar/PointMaze-v0` among the walls of PLAN, from the bottom left, for 100 steps.

    The last one is rewarded, by 1, 2 or 3, if it ends in the corner that PLAN names so, within 0.15 along both axes.
    """

    STATE = ("place", "left")  # type: ignore[assignment]
    PLAN = PLAN

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> EnvReset:
        super().reset(seed=seed)
        self.place = np.array([-0.9, -0.9], np.float32)
        self.left = STEPS
        return self._obs(), {}

    def _move(self, action: Any) -> None:
        for axis in (0, 1):
            moved = self.place.copy()
            step = 0.1 * clip(action[axis])
            moved[axis] = clip(moved[axis] + step)
            column = self._index(moved[0])
            row = self._index(-moved[1])
            if self.PLAN[row][column] != "#":
                self.place = moved

    def _index(self, x: float) -> int:
        """The number of the column or row at a coordinate."""
        return min(int(5 * (x + 1)), 9)

    def step(self, action: Any) -> EnvStep:
        self._move(action)
        self.left -= 1
        reward = 0.0
        if not self.left:
            reward = self._prize()
        return self._obs(), reward, False, False, {}

    def _prize(self) -> float:
        """What the corner is worth that the point is in."""
        for prize, corner in CORNERS.items():
            distance = np.abs(self.place - corner).max()
            if distance < 0.15:
                return float(prize)
        return 0.0


class Crossings(HardMaze):
    """The point in two corridors, joined by a third, whose five ends are exits; the one at the top left is worth 1.

    It starts at the lower crossing, with `upper` at the upper one, within 0.05. An episode that leaves by the exit that
    is worth something succeeds; one lasts 50 steps at most.
    """

    STATE = ("place",)  # type: ignore[assignment]
    PLAN = ("..........", *6 * ("####..####",), "..........", *2 * ("####..####",))

    def __init__(self, upper: bool = False, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        y = 0.9 if upper else -0.5
        self.first = np.array([0, y], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> EnvReset:
        super().reset(seed=seed)
        shift = self.np_random.uniform(-0.05, 0.05, 2).astype(np.float32)
        self.place = self.first + shift
        return self._obs(), {}

    def step(self, action: Any) -> EnvStep:
        self._move(action)
        x, y = map(float, self.place)
        is_success = x < -0.9 and y > 0.5
        terminated = abs(x) > 0.9 or y < -0.95
        return self._obs(), float(is_success), terminated, False, {"is_success": is_success}


class Level(CellWorld):
    """One maze of size x size cells, the same in every episode, from cell 0 to a goal worth 1, for 60 steps.

    `kind` spreads another 0.4 over the steps that come nearer to it, and takes it for those away (hint), ends at a
    second cell with a reward of 0.2 (decoy), or neither (sparse). Actions: 0 left, 1 right, 2 up, 3 down; a wall stops
    the agent.
    Observation: one-hot of its cell, float32 (size * size,).
    """

    STATE = ("cell",)

    def __init__(self, size: int = 4, level: int = 0, kind: str = "sparse", render_mode: str | None = None) -> None:
        rng = np.random.default_rng([size, level])
        self.kind = kind
        self.n_cells = size * size
        self.ways = next_cells(maze(size, rng))
        others = 1 + rng.permutation(self.n_cells - 1)
        self.goal = int(others[0])
        self.decoy = int(others[1])
        # From each cell to the goal.
        self.far = distances(self.ways, [self.goal])
        self._setup(render_mode, self.n_cells, 4)
        self._begin()

    def _begin(self) -> None:
        self.cell = 0

    def step(self, action: Any) -> EnvStep:
        before = self.cell
        self.cell = int(self.ways[before, action])
        is_success = self.cell == self.goal
        is_decoy = self.kind == "decoy" and self.cell == self.decoy
        reward = is_success + 0.2 * is_decoy
        if self.kind == "hint":
            nearer = float(self.far[before] - self.far[self.cell])
            reward = reward + 0.4 * (nearer / float(self.far[0]))
        return self._obs(), reward, is_success or is_decoy, False, {"is_success": is_success}

    def _obs(self) -> np.ndarray:
        return one_hot(self.cell, self.n_cells)


class Wear(CellWorld):
    """A machine that wears: a task that never ends, whose decisions pay hundreds of steps later.

    Of WORN + 1 levels of wear, 0 is new. Action 0 works: the reward falls evenly from 1 at level 0 to 0 at the last,
    and the level rises with a chance of `wear`. Action 1 repairs: no reward, and with a chance of `repair` the machine
    is new again. Time limits look at 1,000 steps at once; nothing ends.
    Observation: one-hot of its level, float32 (WORN + 1,).
    """

    STATE = ("level",)

    def __init__(self, wear: float = 0.01, repair: float = 0.01, render_mode: str | None = None) -> None:
        self.wear = wear
        self.repair = repair
        self._setup(render_mode, WORN + 1, 2)
        self._begin()

    def _begin(self) -> None:
        self.level = 0

    def step(self, action: Any) -> EnvStep:
        reward = 0.0
        chance = self.repair
        following = 0
        if action == 0:
            reward = 1 - self.level / WORN
            chance = self.wear
            following = min(self.level + 1, WORN)
        if self.np_random.random() < chance:
            self.level = following
        return self._obs(), reward, False, False, {}

    def _obs(self) -> np.ndarray:
        return one_hot(self.level, WORN + 1)


class WanderingNoise(CellWorld):
    """A maze of SIZE x SIZE cells, the same in every run, and a source of noise that walks through it at random.

    The agent begins in a corner; there is no reward. Actions: 0 stays, 1 left, 2 right, 3 up, 4 down; a wall stops it.
    Observation: one-hot of its cell, float32 (SIZE * SIZE,), then `bits` numbers: random bits, other ones at every
    step, while the source is within 2 cells along both axes, seen through walls; else zeros. The source begins where
    the agent does, and moves at every second step.
    """

    STATE = ("cell", "source", "noise", "late")

    def __init__(self, bits: int = 0, render_mode: str | None = None) -> None:
        self.bits = bits
        self.n_cells = SIZE * SIZE
        stays = np.arange(self.n_cells)
        walls = maze(SIZE, np.random.default_rng(1))
        self.ways = np.c_[stays, next_cells(walls)]
        self._setup(render_mode, self.n_cells + bits, 5)
        self._begin()

    def _begin(self) -> None:
        self.cell = 0
        self.source = 0
        self.noise = np.zeros(self.bits, np.float32)
        # Whether the source moves at the next step.
        self.late = False

    def step(self, action: Any) -> EnvStep:
        self.cell = int(self.ways[self.cell, action])
        if self.late:
            direction = self.np_random.integers(1, 5)
            self.source = int(self.ways[self.source, direction])
        self.late = not self.late
        row, column = divmod(self.cell, SIZE)
        source_row, source_column = divmod(self.source, SIZE)
        distance = max(abs(row - source_row), abs(column - source_column))
        bits = self.np_random.integers(2, size=self.bits)
        self.noise = (distance <= NOISE_SIGHT) * bits.astype(np.float32)
        return self._obs(), 0.0, False, False, self._info()

    def _obs(self) -> np.ndarray:
        cell = one_hot(self.cell, self.n_cells)
        return np.r_[cell, self.noise]


class Field(CellWorld):
    """An open field of SIDE x SIDE cells, seen from any of them as far as SIGHT, for 40 steps from a cell at random.

    A step is rewarded with the number of cells that it is the first of its episode to see, those seen from where the
    episode began apart. Actions: 0 left, 1 right, 2 up, 3 down; at the edge the agent stays.
    Observation: column and row, float32 (2,).
    """

    STATE = ("place", "seen")

    def __init__(self, render_mode: str | None = None) -> None:
        self._setup(render_mode, 2, 4)
        self.observation_space = gym.spaces.Box(0, SIDE - 1, (2,), np.float32)
        self.cells = np.indices((SIDE, SIDE)).transpose(1, 2, 0)
        self._begin()

    def _begin(self) -> None:
        self.place = self.np_random.integers(SIDE, size=2)
        self.seen = self._sight()

    def _sight(self) -> np.ndarray:
        squares = np.square(self.cells - self.place)
        return squares.sum(-1) <= SIGHT**2

    def step(self, action: Any) -> EnvStep:
        self.place = np.clip(self.place + MOVES[action], 0, SIDE - 1)
        new = self._sight() & ~self.seen
        self.seen = self.seen | new
        return self._obs(), float(new.sum()), False, False, {}

    def _obs(self) -> np.ndarray:
        return self.place.astype(np.float32)


class HiddenTask(CellWorld):
    """A world whose reward is drawn when it is reset with a seed, is not observed, and stays until the next seed."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> EnvReset:
        first = super().reset(seed=seed)
        if seed is not None:
            self._draw_task()
        return first

    @abstractmethod
    def _draw_task(self) -> None:
        """Set what is rewarded."""


class Bandit(HiddenTask):
    """BANDIT_ARMS arms, each rewarded by 1 with a chance of its own, uniform in [0, 1]; every pull is an episode."""

    STATE = ("means",)

    def __init__(self, render_mode: str | None = None) -> None:
        self._setup(render_mode, 1, BANDIT_ARMS)
        self._draw_task()

    def _begin(self) -> None:
        """There is no state."""

    def _draw_task(self) -> None:
        self.means = self.np_random.random(BANDIT_ARMS)

    def step(self, action: Any) -> EnvStep:
        reward = float(self.np_random.random() < self.means[action])
        return self._obs(), reward, True, False, {}

    def _obs(self) -> np.ndarray:
        return np.zeros(1, np.float32)


class DarkRoom(HiddenTask):
    """An empty room of ROOM_SIDE x ROOM_SIDE cells; each of ten steps that ends in the goal, which nothing shows, is 1.

    The agent begins in the centre. Actions: 0 stays, 1 and 2 change the row, 3 and 4 the column, walls stop it. Every
    fifth cell but the centre is a goal only where `held_out`, the others are only where it is not.
    Observation: one-hot of its row, then of its column, float32 (2 * ROOM_SIDE,).
    """

    STATE = ("place", "goal")

    def __init__(self, held_out: bool = False, render_mode: str | None = None) -> None:
        self._setup(render_mode, 2 * ROOM_SIDE, 5)
        self.centre = np.full(2, ROOM_SIDE // 2)
        cells = np.argwhere(np.ones((ROOM_SIDE, ROOM_SIDE)))
        cells = cells[(cells != self.centre).any(1)]
        is_held_out = np.arange(len(cells)) % 5 == 2
        self.goals = cells[is_held_out == held_out]
        self._begin()
        self._draw_task()

    def _begin(self) -> None:
        self.place = self.centre

    def _draw_task(self) -> None:
        self.goal = self.np_random.choice(self.goals)

    def step(self, action: Any) -> EnvStep:
        if action > 0:
            self.place = np.clip(self.place + MOVES[action - 1], 0, ROOM_SIDE - 1)
        return self._obs(), float((self.place == self.goal).all()), False, False, {}

    def _obs(self) -> np.ndarray:
        return np.concatenate([one_hot(index, ROOM_SIDE) for index in self.place])


gym.register("Bandit-v0", f"{__name__}:Bandit", max_episode_steps=1)
gym.register("DarkRoom-v0", f"{__name__}:DarkRoom", max_episode_steps=10)
gym.register("Distracted-v0", f"{__name__}:Distracted", max_episode_steps=500)
gym.register("DistractedPendulum-v0", f"{__name__}:DistractedPendulum", max_episode_steps=200)
gym.register("Drifting-v0", f"{__name__}:Drifting")
gym.register("Reach-v0", f"{__name__}:Reach", max_episode_steps=50)
gym.register("NoisyPendulum-v0", f"{__name__}:NoisyPendulum", max_episode_steps=200)
gym.register("Hill-v0", f"{__name__}:Hill", max_episode_steps=200)
gym.register("HardMaze-v0", f"{__name__}:HardMaze", max_episode_steps=STEPS)
gym.register("Crossings-v0", f"{__name__}:Crossings", max_episode_steps=50)
gym.register("MazeLevel-v0", f"{__name__}:Level", max_episode_steps=60)
gym.register("Wear-v0", f"{__name__}:Wear", max_episode_steps=1000)
gym.register("WhitenedHopper-v0", f"{__name__}:whitened_hopper")
gym.register("WanderingNoise-v0", f"{__name__}:WanderingNoise", max_episode_steps=200)
gym.register("Field-v0", f"{__name__}:Field", max_episode_steps=40)
