"""MiniGrid's level generators as array programs: P levels at once, from the distributions of the originals.

    generate(original, rng, P) -> {"grid": uint8 (P, H, W) of cell codes, "x", "y", "direction", "mission": int64 (P,)}

Where the originals draw places until one is free, these draw uniformly among the free ones, the same distribution;
where KeyCorridor draws doors until all rooms are connected, these take the possible doors in a random order.
MultiRoom rejects as its original does: chains of rooms that do not fit are dropped, a few thousand at a time.

Source: minigrid 3.2 (Farama Foundation): envs/empty.py, doorkey.py, fourrooms.py, keycorridor.py, multiroom.py and
core/roomgrid.py. Limits: the registered ids of these five; FourRooms without fixed positions, MultiRoom with a fixed
number of rooms, KeyCorridor with any object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from minigrid.core.constants import COLOR_TO_IDX, DIR_TO_VEC, OBJECT_TO_IDX, STATE_TO_IDX

from envs.minigrid.family import PARTS

OBJECTS, COLOURS, STATES = PARTS
CODES = OBJECTS * COLOURS * STATES
DIRECTIONS = np.array(DIR_TO_VEC)  # (4, 2): x, y of right, down, left, up

Levels = dict[str, np.ndarray]


def code(kind: Any, colour: Any = 0, state: Any = 0) -> Any:
    """A cell as one small integer: MiniGrid's three numbers, of an object, its colour and its state."""
    return (kind * COLOURS + colour) * STATES + state


EMPTY = code(OBJECT_TO_IDX["empty"])
WALL = code(OBJECT_TO_IDX["wall"], COLOR_TO_IDX["grey"])
GOAL = code(OBJECT_TO_IDX["goal"], COLOR_TO_IDX["green"])
DOOR, KEY = OBJECT_TO_IDX["door"], OBJECT_TO_IDX["key"]
CLOSED, LOCKED = STATE_TO_IDX["closed"], STATE_TO_IDX["locked"]


def generate(original: Any, rng: np.random.Generator, count: int) -> Levels:
    """`count` fresh levels of `original`, a MiniGrid environment without wrappers, by the generator of its class."""
    return GENERATORS[type(original).__name__](original, rng, count)


def _room(original: Any, count: int) -> np.ndarray:
    """Empty levels with a wall around them."""
    grid = np.full((count, original.height, original.width), WALL, np.uint8)
    grid[:, 1:-1, 1:-1] = EMPTY
    return grid


def _choose(rng: np.random.Generator, allowed: np.ndarray) -> tuple[np.ndarray, ...]:
    """One true entry of each `allowed[p]`, uniformly: its indices along the other axes, int64 (P,) each."""
    flat = allowed.reshape(len(allowed), -1)
    best = np.where(flat, rng.random(flat.shape, np.float32), np.float32(-1.0)).argmax(1)
    return np.unravel_index(best, allowed.shape[1:])  # type: ignore[return-value]


def _within(grid: np.ndarray, left: Any, top: Any, width: Any, height: Any) -> np.ndarray:
    """Bool (P, H, W): the cells of one rectangle in each level."""
    y, x = np.ogrid[: grid.shape[1], : grid.shape[2]]
    left, top, width, height = (np.reshape(v, (-1, 1, 1)) for v in (left, top, width, height))
    return (x >= left) & (x < left + width) & (y >= top) & (y < top + height)


def _levels(rng: np.random.Generator, grid: np.ndarray, y: Any, x: Any, direction: Any = None) -> Levels:
    count = len(grid)
    direction = rng.integers(0, 4, count) if direction is None else direction
    place = {"x": x, "y": y, "direction": direction, "mission": 0}
    return {"grid": grid, **{key: np.broadcast_to(value, count).astype(np.int64) for key, value in place.items()}}


def _empty(original: Any, rng: np.random.Generator, count: int) -> Levels:
    grid = _room(original, count)
    grid[:, -2, -2] = GOAL
    if original.agent_start_pos is None:
        return _levels(rng, grid, *_choose(rng, grid == EMPTY))
    x, y = original.agent_start_pos
    return _levels(rng, grid, y, x, original.agent_start_dir)


def _door_key(original: Any, rng: np.random.Generator, count: int) -> Levels:
    grid, rows = _room(original, count), np.arange(count)
    grid[:, -2, -2] = GOAL
    split = rng.integers(2, original.width - 2, count)
    grid[rows, :, split] = WALL
    free = (grid == EMPTY) & _within(grid, 0, 0, split, original.height)
    y, x = _choose(rng, free)
    free[rows, y, x] = False
    grid[rows, rng.integers(1, original.height - 2, count), split] = code(DOOR, COLOR_TO_IDX["yellow"], LOCKED)
    grid[rows, *_choose(rng, free)] = code(KEY, COLOR_TO_IDX["yellow"])
    return _levels(rng, grid, y, x)


def _four_rooms(original: Any, rng: np.random.Generator, count: int) -> Levels:
    grid, rows = _room(original, count), np.arange(count)
    half, last = original.width // 2, original.width - 1
    grid[:, half, :] = WALL
    grid[:, :, half] = WALL
    for begin, end in ((1, half), (half + 1, last)):
        grid[rows, rng.integers(begin, end, count), half] = EMPTY
        grid[rows, half, rng.integers(begin, end, count)] = EMPTY
    free = grid == EMPTY
    y, x = _choose(rng, free)
    free[rows, y, x] = False
    grid[rows, *_choose(rng, free)] = GOAL
    return _levels(rng, grid, y, x)


def _key_corridor(original: Any, rng: np.random.Generator, count: int) -> Levels:
    size, lines, rows = original.room_size - 1, original.num_rows, np.arange(count)
    grid = np.full((count, original.height, original.width), EMPTY, np.uint8)
    grid[:, ::size, :] = WALL
    grid[:, :, ::size] = WALL
    grid[:, size:-1:size, size + 1 : 2 * size] = EMPTY  # the rooms in the middle are one corridor
    line = rng.integers(0, lines, count)  # the row of the locked room, which is on the right
    colour = rng.integers(0, COLOURS, count)
    grid[rows, line * size + rng.integers(1, size, count), 2 * size] = code(DOOR, colour, LOCKED)
    half = original.room_size // 2
    middle = size + half, lines // 2 * size + half  # where the original's agent waits meanwhile
    y, x = np.ogrid[: original.height, : original.width]
    far = abs(x - middle[0]) + abs(y - middle[1]) >= 2
    mission = rng.integers(0, COLOURS, count)
    prize = code(OBJECT_TO_IDX[original.obj_type], mission)
    for column, row, thing in ((2, line, prize), (0, rng.integers(0, lines, count), code(KEY, colour))):
        room = _within(grid, column * size, row * size, size + 1, size + 1)
        grid[rows, *_choose(rng, (grid == EMPTY) & room & far)] = thing
    here = (grid == EMPTY) & _within(grid, size, (lines // 2) * size, size + 1, size + 1)
    clear = (grid == EMPTY) | (grid == WALL)  # what the agent may face when it begins
    allowed = np.stack([here & np.roll(clear, (-dy, -dx), (1, 2)) for dx, dy in DIRECTIONS], 1)
    direction, agent_y, agent_x = _choose(rng, allowed)
    _connect(grid, rng, size, lines, line)
    return {**_levels(rng, grid, agent_y, agent_x, direction), "mission": mission}


def _connect(grid: np.ndarray, rng: np.random.Generator, size: int, lines: int, locked: np.ndarray) -> None:
    """Add doors of random colours until every room can be reached; the locked one already can."""
    sides = [(column, row, column + 1, row) for column in (0, 1) for row in range(lines)]
    floors = [(column, row, column, row + 1) for column in (0, 2) for row in range(lines - 1)]
    doors = np.array(sides + floors)  # (E, 4): column and row of the rooms on both sides
    count, one, other = len(grid), doors[:, 0] + 3 * doors[:, 1], doors[:, 2] + 3 * doors[:, 3]
    shut = 2 + 3 * locked[:, None]
    possible = (one != shut) & (other != shut)  # (P, E)
    offset = rng.integers(1, size, (count, len(doors)))
    beside = doors[:, 0] != doors[:, 2]
    x = np.where(beside, doors[:, 2] * size, doors[:, 0] * size + offset)
    y = np.where(beside, doors[:, 1] * size + offset, doors[:, 3] * size)
    colour = rng.integers(0, COLOURS, (count, len(doors)))
    part = np.tile(np.arange(3 * lines), (count, 1))  # rooms with equal numbers are connected
    part[:, 1::3] = 1
    part[np.arange(count), shut[:, 0]] = 1
    for edge in np.argsort(rng.random((count, len(doors))), axis=1).T:
        apart = (part != part[:, :1]).any(1)
        rows = np.flatnonzero(apart & possible[np.arange(count), edge])
        edge = edge[rows]
        grid[rows, y[rows, edge], x[rows, edge]] = code(DOOR, colour[rows, edge], CLOSED)
        joined = part[rows, other[edge]][:, None]
        part[rows] = np.where(part[rows] == joined, part[rows, one[edge]][:, None], part[rows])


def _multi_room(original: Any, rng: np.random.Generator, count: int) -> Levels:
    rooms: np.ndarray = np.zeros((0, original.maxNumRooms, 6), np.int64)
    while len(rooms) < count:
        rooms = np.concatenate([rooms, _chains(original, rng, 4 * count)])
    rooms = rooms[:count]
    rows = np.arange(count)
    grid = np.full((count, original.height, original.width), EMPTY, np.uint8)
    colour = rng.integers(0, COLOURS, count)
    for number in range(rooms.shape[1]):
        left, top, width, height, door_x, door_y = rooms[:, number].T
        inside = _within(grid, left + 1, top + 1, width - 2, height - 2)
        grid[_within(grid, left, top, width, height) & ~inside] = WALL
        if number > 0:
            grid[rows, door_y, door_x] = code(DOOR, colour, CLOSED)
            colour = (colour + rng.integers(1, COLOURS, count)) % COLOURS  # never that of the door before
    free = grid == EMPTY
    y, x = _choose(rng, free & _within(grid, *rooms[:, 0, :4].T))
    grid[rows, *_choose(rng, free & _within(grid, *rooms[:, -1, :4].T))] = GOAL
    return _levels(rng, grid, y, x)


def _chains(original: Any, rng: np.random.Generator, count: int) -> np.ndarray:
    """Try `count` times to chain rooms; int64 (K, rooms, 6), left, top, width, height, door x, door y, of what fits.

    As in the original each room has eight tries, of which the first that fits counts, and no chain is taken back.
    """
    door = rng.integers(0, original.width - 2, (count, 1, 2))
    width, height = rng.integers(4, original.maxRoomSize + 1, (2, count, 1))
    rooms = np.concatenate([door[..., 0], door[..., 1], width, height, door[..., 0], door[..., 1]], 1)[:, None]
    entry = np.full(count, 2)  # the wall with the door: right, down, left, up
    fits = _fits(original, rooms, rooms[:, :0])[:, 0]
    for _ in range(original.maxNumRooms - 1):
        rooms, entry = rooms[fits], entry[fits]
        rows = np.arange(len(rooms))
        left, top, width, height = rooms[:, -1:, :4].transpose(2, 0, 1)
        wall = (entry[:, None] + rng.integers(1, 4, (len(rooms), 8))) % 4  # of the exit: any but the entry's
        along_x, along_y = rng.integers(1, width - 1, wall.shape), rng.integers(1, height - 1, wall.shape)
        door_x = left + np.choose(wall, [width - 1 + 0 * wall, along_x, 0 * wall, along_x])
        door_y = top + np.choose(wall, [along_y, height - 1 + 0 * wall, along_y, 0 * wall])
        width, height = rng.integers(4, original.maxRoomSize + 1, (2, *wall.shape))
        inner_x, inner_y = door_x - rng.integers(1, width - 1), door_y - rng.integers(1, height - 1)
        new_left = np.choose(wall, [door_x, inner_x, door_x - width + 1, inner_x])
        new_top = np.choose(wall, [inner_y, door_y, inner_y, door_y - height + 1])
        tries = np.stack([new_left, new_top, width, height, door_x, door_y], 2)  # (K, 8, 6)
        fit = _fits(original, tries, rooms[:, :-1])
        first = fit.argmax(1)
        fits = fit[rows, first]
        entry = (wall[rows, first] + 2) % 4
        rooms = np.concatenate([rooms, tries[rows, first][:, None]], 1)
    return rooms[fits]


def _fits(original: Any, tries: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Bool (K, tries): in the grid, and clear of `others` (K, rooms, 6), by the original's uneven comparisons."""
    left, top, width, height = tries.transpose(2, 0, 1)[:4]
    fits = (left >= 0) & (top >= 0) & (left + width <= original.width) & (top + height < original.height)
    for other in others.transpose(1, 2, 0)[..., None]:
        x, y, w, h = other[:4]
        fits &= (left + width < x) | (x + w <= left) | (top + height < y) | (y + h <= top)
    return fits


GENERATORS: dict[str, Callable[[Any, np.random.Generator, int], Levels]] = {
    "EmptyEnv": _empty,
    "DoorKeyEnv": _door_key,
    "FourRoomsEnv": _four_rooms,
    "KeyCorridorEnv": _key_corridor,
    "MultiRoomEnv": _multi_room,
}
