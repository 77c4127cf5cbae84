"""MiniGrid in numbers: where the agent stands, what it carries, and the whole grid, cell by cell.

Signals, float32 (7 + 3 * width * height,):
    agent_x, agent_y        the agent's cell, from the upper left corner, which is (0, 0)
    agent_direction         0 right, 1 down, 2 left, 3 up
    carried_object          MiniGrid's number of what is carried, 1 (empty) for nothing
    carried_colour          MiniGrid's number of its colour, 0 for nothing
    grid_width              cells in a row, so that a reader can fold the grid again
    max_steps               steps after which the world itself ends an episode
    cell_X_Y_object, cell_X_Y_colour, cell_X_Y_state    row by row, MiniGrid's encoding; the agent is in no cell

What lies hidden in a box cannot be seen in them. Source: minigrid 3.2 (Farama Foundation), core/grid.py, Grid.encode.
"""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator

HEAD = ("agent_x", "agent_y", "agent_direction", "carried_object", "carried_colour", "grid_width", "max_steps")
NOTHING = (1, 0, 0)  # MiniGrid's encoding of an empty cell
_EMPTY = bytes(NOTHING)


def signals(spec: EnvSpec) -> tuple[str, ...]:
    """Names of the numbers; a larger grid has more of them."""
    return HEAD + _cells(*_size(spec))


def sense(env: gym.Env) -> np.ndarray:
    """The state of a MiniGrid in numbers, float32 (K,), as `signals` names them."""
    inner: Any = env.unwrapped
    grid, carried = inner.grid, inner.carrying
    held = NOTHING if carried is None else carried.encode()
    values = np.empty(len(HEAD) + 3 * len(grid.grid), np.float32)
    x, y = inner.agent_pos
    values[: len(HEAD)] = (x, y, inner.agent_dir, held[0], held[1], grid.width, inner.max_steps)
    values[len(HEAD) :] = np.frombuffer(b"".join(map(_encoded, grid.grid)), np.uint8)
    return values


def _encoded(cell: Any) -> bytes:
    """MiniGrid's encoding of a cell; only a door has a state, so the others are looked up."""
    if cell is None:
        return _EMPTY
    if cell.type == "door":
        return bytes(cell.encode())
    key = (cell.type, cell.color)
    if key not in _ENCODED:
        _ENCODED[key] = bytes(cell.encode())
    return _ENCODED[key]


@functools.cache
def _cells(width: int, height: int) -> tuple[str, ...]:
    parts = ("object", "colour", "state")
    return tuple(f"cell_{x}_{y}_{part}" for y in range(height) for x in range(width) for part in parts)


_SIZES: dict[str, tuple[int, int]] = {}
_ENCODED: dict[tuple[str, str], bytes] = {}


def _size(spec: EnvSpec) -> tuple[int, int]:
    """Width and height of a world; only the world itself knows them, so one is made, once."""
    options = {key: value for key, value in spec.kwargs.items() if key != "render_mode"}
    key = f"{spec.entry_point} {sorted(options.items())}"
    if key not in _SIZES:
        create = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
        assert create is not None
        world: Any = create(**options)
        _SIZES[key] = (int(world.width), int(world.height))
        world.close()
    return _SIZES[key]
