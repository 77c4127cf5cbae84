"""MiniGrid and BabyAI: grid worlds with keys, doors and missions in words.

Observation, flat float32 in {0, 1}, for the default view of 7 x 7 cells:
    980  the view: each cell's object (11), colour (6) and state (3: open, closed, locked), one-hot
      4  the direction the agent faces, one-hot
     64  the mission's words, hashed; only where missions vary, or as the `mission` option says

Options of the adapter: `mission` = "auto" (words where missions vary), "words" or "drop"; of `info["text"]`,
`captions` = "events" or "full", `chatter` and `varied` (false), see `envs.minigrid.captions`.

Signals, float32 (7 + 3 * width * height,):
    agent_x, agent_y, agent_direction   from the upper left corner, (0, 0); 0 right, 1 down, 2 left, 3 up
    carried_object, carried_colour      MiniGrid's numbers of what is carried; 1 (empty) and 0 for nothing
    grid_width, max_steps               cells in a row; steps after which the world itself ends an episode
    cell_X_Y_object, cell_X_Y_colour, cell_X_Y_state    row by row, MiniGrid's encoding; the agent is in no cell
What lies in a box cannot be seen in them.

Scattered states have the agent on any free cell, every seventh time on the goal, doors open or closed, and something
in its hands; it may stand behind a locked door. Success is a positive task return.
"""

import functools
import itertools
from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, load_env_creator

from envs.family import Family, Goal, aims_of, simulator
from envs.minigrid.captions import Speech, caption
from envs.observations import WORD_FEATURES, Recorded, hashed_words
from envs.render import name_of
from envs.types import EnvReset, EnvStep

# How many objects, colours and states MiniGrid's encoding has.
CELL_PART_SIZES = (11, 6, 3)


class GridObservation(Recorded, gym.ObservationWrapper):
    """MiniGrid's dict as one flat float32 vector; values beyond its own tables count as their last entry."""

    def __init__(
        self,
        env: gym.Env,
        mission: str = "auto",
        captions: str = "events",
        chatter: bool | int = False,
        varied: bool = False,
    ) -> None:
        if mission not in ("auto", "words", "drop"):
            raise ValueError(f'mission={mission!r} is unknown; give "auto", "words" or "drop"')
        self.speech = Speech(captions, chatter, varied)
        super().__init__(env, mission=mission, captions=captions, chatter=chatter, varied=varied)
        space: Any = env.observation_space
        if not isinstance(space, spaces.Dict) or not {"image", "direction", "mission"} <= set(space):
            raise TypeError(
                f"{name_of(env)} returns {space}, not MiniGrid's image, direction and mission; make it with adapt=False"
            )
        # MiniGrid's image has the axes x, y, part.
        image: Any = space["image"]
        width, height, n_parts = image.shape
        entries = sum(CELL_PART_SIZES)
        self._words = mission == "words" or (mission == "auto" and varies(space["mission"]))
        self._view = width * height * entries
        # Where the entries of each (x, y, part) begin in the vector.
        part_starts = np.cumsum([0, *CELL_PART_SIZES[:-1]])
        cell_starts = np.arange(0, self._view, entries)[:, None]
        self._begin = (cell_starts + part_starts).reshape(width, height, n_parts)
        self._last = np.array(CELL_PART_SIZES) - 1
        self._length = self._view + 4 + WORD_FEATURES * self._words
        # For callers that show parts of an observation: cells row by row, as on screen.
        self.shape_of_cells = (height, width, entries)
        by_column = np.arange(self._view).reshape(width, height, entries)
        self.parts = {
            "cells": by_column.swapaxes(0, 1).ravel(),
            "direction": slice(self._view, self._view + 4),
            "mission": slice(self._view + 4, self._length),
        }
        self.observation_space = spaces.Box(0.0, 1.0, (self._length,), np.float32)

    def reset(self, **kwargs: Any) -> EnvReset:
        result = super().reset(**kwargs)
        self.speech.action = -1
        if self.speech.chatter:
            self.speech.salt = int(self.unwrapped.np_random.integers(1 << 32))
        return result

    def step(self, action: Any) -> EnvStep:
        self.speech.action = action
        return super().step(action)

    def observation(self, observation: Any) -> np.ndarray:
        self.speech.view = observation["image"]
        flat = np.zeros(self._length, dtype=np.float32)
        flat[self._begin + np.minimum(observation["image"], self._last)] = 1.0
        flat[self._view + int(observation["direction"])] = 1.0
        if self._words:
            flat[self._view + 4 :] = hashed_words(observation["mission"].encode())
        return flat


def varies(space: Any) -> bool:
    """Whether a mission space holds more than one sentence."""
    placeholders = getattr(space, "ordered_placeholders", None)
    if placeholders is None:
        # BabyAI's spaces have no placeholders: they hold whatever its grammar makes.
        return type(space).__name__ != "MissionSpace"
    return any(len(choices) > 1 for choices in placeholders)


HEAD = ("agent_x", "agent_y", "agent_direction", "carried_object", "carried_colour", "grid_width", "max_steps")
# MiniGrid's encoding of an empty cell.
EMPTY_CODE = (1, 0, 0)
_SIZES: dict[str, tuple[int, int]] = {}
_ENCODED: dict[tuple[str, str], bytes] = {}


@functools.cache
def _signal_names(width: int, height: int) -> tuple[str, ...]:
    cells = itertools.product(range(height), range(width), ("object", "colour", "state"))
    return (*HEAD, *(f"cell_{x}_{y}_{part}" for y, x, part in cells))


def _sense(env: gym.Env) -> np.ndarray:
    inner = simulator(env)
    grid = inner.grid
    # The object's and the colour's number.
    carried = EMPTY_CODE[:2]
    if inner.carrying is not None:
        carried = inner.carrying.encode()[:2]
    head = np.array([*inner.agent_pos, inner.agent_dir, *carried, grid.width, inner.max_steps], np.float32)
    codes = b"".join(map(_encode_cell, grid.grid))
    return np.append(head, np.frombuffer(codes, np.uint8).astype(np.float32))


def _encode_cell(cell: Any) -> bytes:
    """MiniGrid's encoding of a cell; only a door has a state, so the others are looked up."""
    if cell is None:
        return bytes(EMPTY_CODE)
    if cell.type == "door":
        return bytes(cell.encode())
    key = (cell.type, cell.color)
    if key not in _ENCODED:
        _ENCODED[key] = bytes(cell.encode())
    return _ENCODED[key]


def _size(spec: EnvSpec) -> tuple[int, int]:
    """Width and height of a world; only the world itself knows them, so one is made, once."""
    options = dict(spec.kwargs)
    options.pop("render_mode", None)
    key = f"{spec.entry_point} {sorted(options.items())}"
    if key not in _SIZES:
        create: Any = spec.entry_point
        if isinstance(create, str):
            create = load_env_creator(create)
        world: Any = create(**options)
        _SIZES[key] = (int(world.width), int(world.height))
        world.close()
    return _SIZES[key]


def _randomise_level(env: gym.Env, rng: np.random.Generator) -> bool:
    """The agent anywhere in a MiniGrid; BabyAI, whose missions remember what happened, is left alone."""
    inner = simulator(env)
    if type(inner).__module__.startswith("minigrid.envs.babyai"):
        return False
    grid = inner.grid
    things = [thing for thing in grid.grid if thing is not None]
    for door in _doors(inner):
        door.is_open = bool(rng.random() < 0.5)
        door.is_locked = door.is_locked and not door.is_open
    portable = [thing for thing in things if thing.can_pickup()]
    if portable and rng.random() < 1 / 3:
        inner.carrying = portable[rng.integers(len(portable))]
        grid.grid[grid.grid.index(inner.carrying)] = None
        inner.carrying.cur_pos = np.array([-1, -1])
    free: list[tuple[int, ...]] = []
    goals: list[tuple[int, ...]] = []
    for place in np.ndindex(grid.width, grid.height):
        cell = grid.get(*place)
        if cell is not None and cell.type == "goal" and cell.can_overlap():
            goals.append(place)
        elif cell is None or (cell.can_overlap() and cell.type != "lava"):
            free.append(place)
    # Drawn evenly, the goal as one cell among many would hardly ever be seen.
    if goals and rng.random() < 1 / 7:
        free = goals
    inner.agent_pos = tuple(map(int, free[rng.integers(len(free))]))
    inner.agent_dir = int(rng.integers(4))
    return True


def _nearness_to_goal(env: gym.Env) -> float:
    """Minus the steps from a MiniGrid's agent to the green square, through doors; without a way, minus all cells."""
    inner = simulator(env)
    grid = inner.grid
    start = tuple(map(int, inner.agent_pos))
    # Breadth-first search: the steps from the agent to each cell that was reached.
    distance = {start: 0}
    queue = deque([start])
    while queue:
        x, y = queue.popleft()
        cell = grid.get(x, y)
        if cell is not None and cell.type == "goal":
            return -float(distance[x, y])
        for neighbour in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)):
            thing = grid.get(*neighbour)
            is_passable = thing is None or thing.type not in ("wall", "lava")
            if neighbour not in distance and is_passable:
                distance[neighbour] = distance[x, y] + 1
                queue.append(neighbour)
    return -float(grid.width * grid.height)


def _at_goal(env: gym.Env) -> bool:
    inner = simulator(env)
    under = inner.grid.get(*inner.agent_pos)
    return under is not None and under.type == "goal"


def _doors(inner: Any) -> list[Any]:
    return [thing for thing in inner.grid.grid if thing is not None and thing.type == "door"]


def _door_is_open(env: gym.Env) -> bool:
    return any(door.is_open for door in _doors(simulator(env)))


_GOAL = Goal(
    "goal",
    "a red triangle on the green square",
    "a red triangle in a grid of rooms",
    _at_goal,
    "a red triangle far from the green square",
    _nearness_to_goal,
)
_DOOR = Goal("door", "the door is open", "a grid of rooms", _door_is_open, "the door is closed")
_WITH_GOAL = ("Empty", "DoorKey", "FourRooms", "MultiRoom", "Crossing", "LavaGap", "DistShift")
_WITH_DOOR = ("DoorKey", "MultiRoom", "Unlock", "KeyCorridor", "LockedRoom")


def _goals(spec: EnvSpec) -> list[Goal]:
    candidates = ((_GOAL, _WITH_GOAL), (_DOOR, _WITH_DOOR))
    return [goal for goal, words in candidates if any(word in spec.id for word in words)]


MINIGRID_FAMILY = Family(
    name="minigrid",
    description="MiniGrid and BabyAI: grid worlds with keys, doors and missions in words",
    ids=(
        "MiniGrid-Empty-8x8-v0",
        "MiniGrid-DoorKey-5x5-v0",
        "MiniGrid-DoorKey-8x8-v0",
        "MiniGrid-DoorKey-16x16-v0",
        "MiniGrid-KeyCorridorS3R1-v0",
        "MiniGrid-KeyCorridorS3R2-v0",
        "MiniGrid-KeyCorridorS3R3-v0",
        "MiniGrid-MultiRoom-N2-S4-v0",
        "MiniGrid-MultiRoom-N4-S5-v0",
        "MiniGrid-MultiRoom-N6-v0",
        "MiniGrid-ObstructedMaze-1Dlh-v0",
        "MiniGrid-ObstructedMaze-2Dlh-v0",
        "MiniGrid-LavaCrossingS9N1-v0",
        "MiniGrid-FourRooms-v0",
        "MiniGrid-Unlock-v0",
        "MiniGrid-UnlockPickup-v0",
        "BabyAI-GoToRedBall-v0",
        "BabyAI-GoToObj-v0",
    ),
    entries=("minigrid.",),
    module="minigrid",
    adapt=GridObservation,
    options=frozenset({"mission", "captions", "chatter", "varied"}),
    caption=caption,
    goals=_goals,
    aim=aims_of("minigrid", lambda spec: spec.name.partition("-")[2]),
    signals=lambda spec: _signal_names(*_size(spec)),
    sense=_sense,
    scatter=_randomise_level,
    returns=lambda spec: (0.0, 1.0),
    success=lambda env, episode_return, terminated, info: episode_return > 0,
)
