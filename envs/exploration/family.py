"""Environments that separate methods of exploration: rooms with noise that never ends, and a deep dive.

    lodestar/NoisyRooms-v0   a row of rooms and no task: what is explored, and does noise hold the agent?
    lodestar/DeepSea-v0      one treasure among 2^size ways down, each step towards it costs: does exploration go deep?
    lodestar/PointMaze-v0    a point in corridors like a T, two ends that people may want: whose reward is it?

Sources: NoisyRooms, the mazes with a noisy television of Burda et al. 2018 (arXiv 1808.04355) and Jarrett et al. 2023
(2211.10515); DeepSea, Osband et al. 2019, "Behaviour Suite for Reinforcement Learning" (1908.03568).

Differences: NoisyRooms is a grid whose cells can be counted, so coverage is known exactly; the noise is a few numbers
beside the code of the cell. DeepSea's last observation is the column where the dive ended, in the bottom row once more;
bsuite shows zeros, which would hide from a novelty bonus what the last action did; its maps are other ones.

They offer to a study: `n_cells`, and `info["cell"]`, an int in [0, n_cells), at every reset and step.

In pictures the agent is blue, rooms are set row by row. Limits: a one-hot cell does not show which are neighbours.
"""

import math
from abc import abstractmethod
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envs.family import Family, aims_of, class_name, simulator
from envs.types import Array, EnvReset, EnvStep, Info, Notes, Options

# Cells along a room.
ROOM_SIDE = 5
# Cells from a room to the next: the room's own, row by row, and the door to its right.
PERIOD = ROOM_SIDE * ROOM_SIDE + 1
# The centre of the first room.
START_CELL = ROOM_SIDE * ROOM_SIDE // 2
# By action, (right, down): stay, left, right, up, down.
MOVES = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
STAY = 0
# A walking noise number is a multiple of 1 / LEVELS.
LEVELS = 7
ROOM_NOISES = ("off", "brownian", "pixels", "on_demand")
ROOM_CODES = ("one_hot", "dense")
# Pixels of a picture along a cell.
PIXELS = 16
WALL_RGB = (120, 126, 136)
FLOOR_RGB = (238, 238, 232)
AGENT = (36, 96, 200)
TREASURE = (250, 190, 20)


class CellWorld(gym.Env):
    """What environments made of cells share: flat observations, pictures drawn with NumPy."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}
    # The names of the variables that make up the state; see `envs.snapshots.snapshots`.
    STATE: tuple[str, ...]
    # The number of the agent's cell, where cells are counted.
    cell: Any = None

    def _setup(self, render_mode: str | None, width: int, actions: int, low: float = 0.0) -> None:
        if render_mode not in (None, "rgb_array"):
            name = type(self).__name__
            raise ValueError(f'render_mode={render_mode!r} is unknown to {name}; give "rgb_array" or None')
        self.render_mode = render_mode
        self.observation_space: Any = spaces.Box(low, 1.0, (width,), np.float32)
        self.action_space: Any = spaces.Discrete(actions)

    def reset(self, *, seed: int | None = None, options: Options | None = None) -> EnvReset:
        super().reset(seed=seed)
        self._begin()
        return self._obs(), self._info()

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        return None if self.render_mode is None else self._picture()

    @abstractmethod
    def _begin(self) -> None:
        """Set the state that an episode begins in."""

    @abstractmethod
    def _obs(self) -> np.ndarray:
        """The observation of the state, float32 (width,)."""

    @abstractmethod
    def _picture(self) -> np.ndarray:
        """The state as a picture, uint8 (H, W, 3)."""

    def _info(self) -> Info:
        return {} if self.cell is None else {"cell": self.cell}


class NoisyRooms(CellWorld):
    """A corridor of rooms of 5 x 5 cells, joined by doors of one cell, and noise that changes without end.

    The agent starts in the centre of the first room. No reward, no termination; an episode lasts 200 steps and succeeds
    if the last room was entered. Cells are numbered room by room: 25 of a room, then the door to its right.

    Actions: 0 stays, 1 left, 2 right, 3 up, 4 down; a wall stops the agent. Observation, float32 (D + bits,): the code
    of the cell, "one_hot" or `dense_size` numbers in [-1, 1], the same in every run; then the noise, in [0, 1]: "off",
    zeros; "brownian", numbers that walk by 1/7 a step, reflected; "pixels", each a fresh random bit with probability
    1/4; "on_demand", fresh random bits whenever the agent stays, zeros when it moves. Pictures show it below the rooms.
    """

    STATE = ("cell", "arrived", "noise")

    def __init__(
        self,
        rooms: int = 8,
        noise: str = "off",
        bits: int = 8,
        code: str = "one_hot",
        dense_size: int = 8,
        render_mode: str | None = None,
    ) -> None:
        at_least(rooms=(rooms, 1), bits=(bits, 0), dense_size=(dense_size, 1))
        for name, value, choices in (("noise", noise, ROOM_NOISES), ("code", code, ROOM_CODES)):
            if value not in choices:
                raise ValueError(f"{name}={value!r} is unknown; give one of {', '.join(choices)}")
        self.rooms = rooms
        self.kind = noise
        self.bits = bits
        self.leads = corridor(rooms)
        self.n_cells = len(self.leads)
        # None where cells are coded one-hot.
        self.codes: np.ndarray | None = None
        if code == "dense":
            # Uniform in [-1, 1] and part of the environment, so the same in every run.
            self.codes = np.random.default_rng(0).uniform(-1.0, 1.0, (self.n_cells, dense_size)).astype(np.float32)
            self._setup(render_mode, dense_size + bits, len(MOVES), low=-1.0)
        else:
            self._setup(render_mode, self.n_cells + bits, len(MOVES))
        self.cell = START_CELL
        self.arrived = False
        self.noise = np.zeros(bits, np.float32)

    def room_of(self, cell: Any) -> Any:
        """The room of a cell, from 0; a door counts to the room on its left. Takes and gives an int or an array."""
        return cell // PERIOD

    def _begin(self) -> None:
        self.cell = START_CELL
        self.arrived = self.rooms == 1
        self.noise = first_noise(self.kind, self.np_random, (self.bits,))

    def step(self, action: Any) -> EnvStep:
        self.cell = int(self.leads[self.cell, action])
        self.arrived |= self.room_of(self.cell) == self.rooms - 1
        if self.kind != "off":
            chance = self.np_random.random(self.bits, np.float32)
            self.noise[:] = next_noise(self.kind, self.noise, chance, action == STAY)
        return self._obs(), 0.0, False, False, self._info()

    def _picture(self) -> np.ndarray:
        """The noise fills the last lines."""
        # As near to a square as rooms allow.
        columns = math.isqrt(self.rooms - 1) + 1
        room_width = ROOM_SIDE + 1
        room, place = np.divmod(np.arange(self.n_cells), PERIOD)
        y, x = np.divmod(place, ROOM_SIDE)
        is_door = place == PERIOD - 1
        y[is_door] = ROOM_SIDE // 2
        x[is_door] = ROOM_SIDE
        y = y + room // columns * room_width + 1
        x = x + room % columns * room_width + 1
        plan = np.full((y.max() + 2, columns * room_width + 1, 3), WALL_RGB, np.uint8)
        plan[y, x] = FLOOR_RGB
        plan[y[self.cell], x[self.cell]] = AGENT
        width = plan.shape[1]
        noise_lines = np.full((math.ceil(self.bits / width), width, 3), WALL_RGB, np.uint8)
        noise_lines.reshape(-1, 3)[: self.bits] = 255 * self.noise[:, None]
        return enlarge(np.concatenate([plan, noise_lines]))

    def _obs(self) -> np.ndarray:
        if self.codes is None:
            code = one_hot(self.cell, self.n_cells)
        else:
            code = self.codes[self.cell]
        return np.concatenate([code, self.noise])


class DeepSea(CellWorld):
    """A dive through size x size cells from the top left: a row a step, a column to the left or right.

    Which of the actions 0 and 1 means right differs from cell to cell; `mapping_seed` names the map. Each move to the
    right costs 0.01 / size; the treasure, in the bottom right cell, is 1: a return of 0.99 for the one way there. An
    episode lasts `size` steps. Observation, float32 (size * size,): one-hot of the cell, row by row. If `stochastic`, a
    move to the right fails with probability 1 / size, and N(0, 1) is added to the rewards of both bottom corners.
    """

    STATE = ("cell", "treasure")

    def __init__(
        self,
        size: int = 10,
        stochastic: bool = False,
        mapping_seed: int = 0,
        render_mode: str | None = None,
    ) -> None:
        at_least(size=(size, 2), mapping_seed=(mapping_seed, 0))
        self.size = size
        self.stochastic = stochastic
        self.n_cells = size * size
        # The first cell of the bottom row.
        self.bottom = self.n_cells - size
        # Axes: cell; whether the move goes right.
        self.rewards = np.tile([0.0, -0.01 / size], (self.n_cells, 1))
        self.rewards[-1, 1] += 1.0
        # By cell, the action that means right.
        self.right = np.random.default_rng(mapping_seed).integers(2, size=self.n_cells)
        self.leads = descent(size)
        self._setup(render_mode, self.n_cells, 2)
        self._begin()

    def _begin(self) -> None:
        self.cell = 0
        self.treasure = False

    def step(self, action: Any) -> EnvStep:
        cell = self.cell
        right = bool(action == self.right[cell])
        self.treasure = right and cell == self.n_cells - 1
        reward = float(self.rewards[cell, int(right)])
        # A column of `leads`: 0 left, 1 straight down, 2 right.
        drift = 2 * right
        if self.stochastic:
            if cell in (self.bottom, self.n_cells - 1):
                reward += self.np_random.normal()
            drift -= right and self.np_random.random() < 1 / self.size
        self.cell = int(self.leads[cell, drift])
        return self._obs(), reward, cell >= self.bottom, False, self._info()

    def _obs(self) -> np.ndarray:
        return one_hot(self.cell, self.n_cells)

    def _picture(self) -> np.ndarray:
        """A column further to the right can be reached with every row."""
        plan = np.where(np.tri(self.size, dtype=bool)[:, :, None], FLOOR_RGB, WALL_RGB).astype(np.uint8)
        plan[-1, -1] = TREASURE
        plan[divmod(self.cell, self.size)] = AGENT
        return enlarge(plan)


class PointMaze(CellWorld):
    """A point (x, y) in [-1, 1]^2 that moves by up to 0.1 a step along each axis, in a T: a stem, and a bar above it.

    Observation: its place, float32 (2,). Action: its step over 0.1, (2,) in [-1, 1]; walls stop the axis that leads
    into them. It starts anywhere. The task's reward is x, so its goal is the right end of the bar; people may prefer
    the left one. An episode lasts 50 steps and succeeds if it ends at the right, x > 0.8.
    """

    STATE = ("place",)

    def __init__(self, render_mode: str | None = None) -> None:
        self._setup(render_mode, 2, 2, low=-1.0)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.place = np.zeros(2, np.float32)

    def _begin(self) -> None:
        tries = self.np_random.uniform(-1, 1, (64, 2)).astype(np.float32)
        self.place = tries[in_the_t(tries).argmax()]

    def step(self, action: Any) -> EnvStep:
        for axis in (0, 1):
            target = self.place.copy()
            step = 0.1 * np.clip(action[axis], -1, 1)
            target[axis] = np.clip(target[axis] + step, -1, 1)
            if in_the_t(target):
                self.place = target
        return self._obs(), float(self.place[0]), False, False, self._info()

    def _obs(self) -> np.ndarray:
        return self.place.copy()

    def _picture(self) -> np.ndarray:
        across = np.linspace(-1, 1, 21, dtype=np.float32)
        cells = np.stack(np.meshgrid(across, -across), axis=-1)
        plan = np.where(in_the_t(cells)[..., None], FLOOR_RGB, WALL_RGB).astype(np.uint8)
        nearest = np.abs(cells - self.place).sum(axis=-1).argmin()
        plan[np.unravel_index(nearest, plan.shape[:2])] = AGENT
        return enlarge(plan)


def in_the_t(place: np.ndarray) -> np.ndarray:
    """Whether places (..., 2) in [-1, 1]^2 are in the corridors, bool (...)."""
    return (np.abs(place[..., 0]) <= 0.2) | (place[..., 1] >= 0.6)


def corridor(rooms: int) -> np.ndarray:
    """NoisyRooms: (cell, action) -> cell, int64 (n_cells, 5)."""
    room_width = ROOM_SIDE + 1
    # The number of each cell on a map; -1 is a wall, also all around.
    plan = np.full((ROOM_SIDE + 2, rooms * room_width + 1), -1)
    room_cells = np.arange(ROOM_SIDE * ROOM_SIDE).reshape(ROOM_SIDE, ROOM_SIDE)
    for room in range(rooms):
        left = room * room_width + 1
        plan[1:-1, left : left + ROOM_SIDE] = room * PERIOD + room_cells
        if room < rooms - 1:
            plan[1 + ROOM_SIDE // 2, left + ROOM_SIDE] = room * PERIOD + ROOM_SIDE * ROOM_SIDE
    y, x = np.nonzero(plan >= 0)
    here = plan[y, x]
    leads = np.empty((len(here), len(MOVES)), np.int64)
    for action, (right, down) in enumerate(MOVES):
        there = plan[y + down, x + right]
        leads[here, action] = np.where(there < 0, here, there)
    return leads


def descent(size: int) -> np.ndarray:
    """DeepSea: (cell, drift 0 left, 1 straight down, 2 right) -> cell, int64 (size * size, 3)."""
    row, column = np.divmod(np.arange(size * size), size)
    row_below = np.minimum(row + 1, size - 1)
    columns = np.clip(column[:, None] + [-1, 0, 1], 0, size - 1)
    return row_below[:, None] * size + columns


def first_noise(kind: str, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """The noise at the start of an episode, float32: as it is in the long run; zeros where it comes on demand."""
    if kind == "brownian":
        # A reflected walk is at an end half as often as at each level between.
        level = rng.integers(1, 2 * LEVELS + 1, shape) // 2
        return (level / np.float32(LEVELS)).astype(np.float32)
    high = 2 if kind == "pixels" else 1
    return rng.integers(0, high, shape).astype(np.float32)


def next_noise(kind: str, noise: Array, chance: Array, stayed: Any) -> Array:
    """What follows `noise`, float32 (..., bits), NumPy or torch, from as many numbers in [0, 1) and `stayed`."""
    if kind == "brownian":
        # Whole levels, so that a number comes back to exactly where it was.
        level = abs((noise * LEVELS).round() + 1.0 - 2.0 * (chance < 0.5))
        return (LEVELS - abs(LEVELS - level)) / LEVELS
    if kind == "pixels":
        # A quarter of the numbers is drawn again: a one below an eighth, a zero above.
        return noise * (chance >= 0.25) + (chance < 0.125)
    return (chance < 0.5) & stayed


def one_hot(cell: int, count: int) -> np.ndarray:
    """float32 (count,)."""
    out = np.zeros(count, np.float32)
    out[cell] = 1.0
    return out


def at_least(**numbers: tuple[int, int]) -> None:
    """Refuse a number that is below its least value, the second one."""
    for name, (value, least) in numbers.items():
        if value < least:
            raise ValueError(f"{name}={value} is out of range; give at least {least}")


def enlarge(plan: np.ndarray) -> np.ndarray:
    """uint8 (H, W, 3), PIXELS times as high and as wide."""
    return plan.repeat(PIXELS, axis=0).repeat(PIXELS, axis=1)


def _caption(env: gym.Env, memory: Notes) -> str:
    inner = simulator(env)
    if isinstance(inner, PointMaze):
        x, y = inner.place
        if y < 0.6:
            return "the point is in the stem"
        return f"the point is {'left' if x < 0 else 'right'}"
    if isinstance(inner, DeepSea):
        row, column = divmod(inner.cell, inner.size)
        return f"the diver is in row {row + 1} and column {column + 1} of {inner.size}"
    room = inner.room_of(inner.cell) + 1
    if inner.cell % PERIOD == PERIOD - 1:
        return f"the agent is in the door between rooms {room} and {room + 1}"
    return f"the agent is in room {room} of {inner.rooms}"


def _success(env: gym.Env, episode_return: float, terminated: bool, info: Info) -> bool | None:
    inner = simulator(env)
    if isinstance(inner, PointMaze):
        return bool(inner.place[0] > 0.8)
    if isinstance(inner, DeepSea):
        return bool(inner.treasure)
    return bool(inner.arrived)


EXPLORATION_FAMILY = Family(
    name="exploration",
    description="rooms with endless noise, a treasure that only deep exploration finds, a point with two goals",
    ids=("lodestar/NoisyRooms-v0", "lodestar/DeepSea-v0", "lodestar/PointMaze-v0"),
    entries=("envs.exploration.family:",),
    caption=_caption,
    aim=aims_of("exploration", class_name),
    success=_success,
)
