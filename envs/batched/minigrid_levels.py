"""MiniGrid's cells as small integers, and its levels, many at once.

A cell is one small integer for object, colour and state (`code`). `generate` makes P levels at once, from the
distributions of the originals. Where those draw places until one is free, it draws uniformly among the free ones, the
same distribution; where KeyCorridor draws doors until all rooms are connected, it takes the possible doors in a random
order. MultiRoom rejects as its original does: chains of rooms that do not fit are dropped, a few thousand at a time.

Source: minigrid 3.2 (Farama Foundation): core/roomgrid.py; envs/empty.py, doorkey.py, fourrooms.py, keycorridor.py,
lockedroom.py, multiroom.py, obstructedmaze.py, obstructedmaze_v1.py. Limits: the registered ids of these; FourRooms
without fixed positions, KeyCorridor with any object; no moving lava, and boxes hold nothing but ObstructedMaze's keys.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from minigrid.core.constants import COLOR_TO_IDX, DIR_TO_VEC, IDX_TO_COLOR, OBJECT_TO_IDX, STATE_TO_IDX
from minigrid.envs import KeyCorridorEnv, LockedRoomEnv, ObstructedMaze_Full_V1
from minigrid.envs.obstructedmaze import ObstructedMazeEnv
from numpy.random import Generator

from envs.minigrid.family import CELL_PART_SIZES

N_OBJECTS, N_COLOURS, N_STATES = CELL_PART_SIZES
# What a cell can look like.
N_LOOKS = N_OBJECTS * N_COLOURS * N_STATES
# The steps (4, 2) along x and y to the right, down, left and up.
DIRECTIONS = np.array(DIR_TO_VEC)

Levels = dict[str, np.ndarray]


def code(kind: Any, colour: Any = 0, state: Any = 0) -> Any:
    """A cell as one small integer: MiniGrid's three numbers, of an object, its colour and its state."""
    return (kind * N_COLOURS + colour) * N_STATES + state


EMPTY_CELL_CODE = code(OBJECT_TO_IDX["empty"])
WALL_CODE = code(OBJECT_TO_IDX["wall"], COLOR_TO_IDX["grey"])
GOAL_CODE = code(OBJECT_TO_IDX["goal"], COLOR_TO_IDX["green"])
DOOR_KIND = OBJECT_TO_IDX["door"]
KEY_KIND = OBJECT_TO_IDX["key"]
BALL_KIND = OBJECT_TO_IDX["ball"]
BOX_KIND = OBJECT_TO_IDX["box"]
DOOR_CLOSED = STATE_TO_IDX["closed"]
DOOR_LOCKED = STATE_TO_IDX["locked"]

# MiniGrid's encoding hides what is in a box. Codes of our own are a grey box with a key in it, by
# the key's colour. Table of (N_CODES,): what a code looks like.
BOX_WITH_KEY = N_LOOKS + np.arange(N_COLOURS)
N_CODES = N_LOOKS + N_COLOURS
LOOK_OF_CODE = np.arange(N_CODES)
LOOK_OF_CODE[BOX_WITH_KEY] = code(BOX_KIND, COLOR_TO_IDX["grey"])

# ObstructedMaze's ball to pick up, and those that stand before its doors.
BLUE_BALL = code(BALL_KIND, COLOR_TO_IDX["blue"])
GREEN_BALL = code(BALL_KIND, COLOR_TO_IDX["green"])
# The columns and lines of its rooms beside the middle one, and of its corners, quarter by quarter.
SIDE_ROOMS = ((2, 1), (1, 2), (0, 1), (1, 0))
CORNER_ROOMS = np.array([(2, 0), (2, 2), (0, 2), (0, 0)])

# The sides of MultiRoom's rooms have at least so many cells, and each room has so many tries to
# fit. So many chains of rooms are tried at once at most.
MIN_ROOM_SIZE = 4
ROOM_TRIES = 8
MAX_CHAIN_TRIES = 2**15


def generate(original: Any, rng: Generator, count: int) -> Levels:
    """`count` fresh levels of `original`, a MiniGrid environment without wrappers, by the generator of its class.

    Returns "grid" uint8 (P, H, W) of cell codes, "x", "y", "direction" and "mission" int64 (P,).
    """
    return GENERATORS[type(original).__name__](original, rng, count)


def missions(original: Any) -> list[str]:
    """The missions by their numbers in a level: KeyCorridor's by the prize's colour, LockedRoom's by two colours."""
    colours = [IDX_TO_COLOR[colour] for colour in range(N_COLOURS)]
    if isinstance(original, KeyCorridorEnv):
        return [original._gen_mission(colour, original.obj_type) for colour in colours]
    if isinstance(original, LockedRoomEnv):
        # The locked door's colour, and that of the room with the key.
        pairs = itertools.product(colours, colours)
        return [original._gen_mission(door, key_room, door) for door, key_room in pairs]
    return [original.mission]


def prizes(original: Any) -> np.ndarray:
    """The codes, int64 (K,), of the things that end an episode well when they are picked up."""
    if isinstance(original, KeyCorridorEnv):
        return code(OBJECT_TO_IDX[original.obj_type], np.arange(N_COLOURS))
    if isinstance(original, ObstructedMazeEnv):
        return np.array([BLUE_BALL])
    return np.zeros(0, np.int64)


def _empty_levels(original: Any, count: int) -> np.ndarray:
    """Empty levels with a wall around them."""
    grid = np.full((count, original.height, original.width), WALL_CODE, np.uint8)
    grid[:, 1:-1, 1:-1] = EMPTY_CELL_CODE
    return grid


def _choose(rng: Generator, allowed: np.ndarray) -> tuple[np.ndarray, ...]:
    """One true entry of each `allowed[p]`, uniformly: its indices along the other axes, int64 (P,) each."""
    flat = allowed.reshape(len(allowed), -1)
    priority = np.where(flat, rng.random(flat.shape, np.float32), np.float32(-1.0))
    return np.unravel_index(priority.argmax(1), allowed.shape[1:])  # type: ignore[return-value]


def _put(rng: Generator, grid: np.ndarray, allowed: np.ndarray, thing: Any) -> None:
    """Put a thing, one code or codes (P,), on one of the allowed cells of each level."""
    y, x = _choose(rng, allowed)
    grid[np.arange(len(grid)), y, x] = thing


def _rectangle_mask(grid: np.ndarray, left: Any, top: Any, width: Any, height: Any) -> np.ndarray:
    """Bool (P, H, W): the cells of one rectangle in each level."""
    y, x = np.ogrid[: grid.shape[1], : grid.shape[2]]
    left, top, width, height = (np.reshape(value, (-1, 1, 1)) for value in (left, top, width, height))
    in_columns = (x >= left) & (x < left + width)
    in_rows = (y >= top) & (y < top + height)
    return in_columns & in_rows


def _levels(rng: Generator, grid: np.ndarray, y: Any, x: Any, direction: Any = None) -> Levels:
    """Levels whose agents stand at `x` and `y`, looking in a random direction unless one is given."""
    count = len(grid)
    if direction is None:
        direction = rng.integers(0, 4, count)
    levels = {"grid": grid}
    for name, value in (("x", x), ("y", y), ("direction", direction), ("mission", 0)):
        levels[name] = np.broadcast_to(value, count).astype(np.int64)
    return levels


def _generate_empty(original: Any, rng: Generator, count: int) -> Levels:
    grid = _empty_levels(original, count)
    grid[:, -2, -2] = GOAL_CODE
    if original.agent_start_pos is None:
        y, x = _choose(rng, grid == EMPTY_CELL_CODE)
        return _levels(rng, grid, y, x)
    x, y = original.agent_start_pos
    return _levels(rng, grid, y, x, original.agent_start_dir)


def _generate_door_key(original: Any, rng: Generator, count: int) -> Levels:
    grid = _empty_levels(original, count)
    rows = np.arange(count)
    grid[:, -2, -2] = GOAL_CODE
    yellow = COLOR_TO_IDX["yellow"]

    # The agent and the key are left of a wall with a locked door, the goal is right of it.
    wall_x = rng.integers(2, original.width - 2, count)
    grid[rows, :, wall_x] = WALL_CODE
    free = (grid == EMPTY_CELL_CODE) & _rectangle_mask(grid, 0, 0, wall_x, original.height)
    y, x = _choose(rng, free)
    free[rows, y, x] = False
    door_y = rng.integers(1, original.height - 2, count)
    grid[rows, door_y, wall_x] = code(DOOR_KIND, yellow, DOOR_LOCKED)
    _put(rng, grid, free, code(KEY_KIND, yellow))
    return _levels(rng, grid, y, x)


def _generate_four_rooms(original: Any, rng: Generator, count: int) -> Levels:
    grid = _empty_levels(original, count)
    rows = np.arange(count)
    half = original.width // 2
    grid[:, half, :] = WALL_CODE
    grid[:, :, half] = WALL_CODE
    for begin, end in ((1, half), (half + 1, original.width - 1)):
        grid[rows, rng.integers(begin, end, count), half] = EMPTY_CELL_CODE
        grid[rows, half, rng.integers(begin, end, count)] = EMPTY_CELL_CODE
    free = grid == EMPTY_CELL_CODE
    y, x = _choose(rng, free)
    free[rows, y, x] = False
    _put(rng, grid, free, GOAL_CODE)
    return _levels(rng, grid, y, x)


class _Rooms:
    """Levels of equal rooms in columns and lines, `grid` uint8 (P, H, W), while they are furnished.

    Neighbours share a wall, so the walls are `size` cells apart, one less than a room's own size.
    """

    def __init__(self, original: Any, rng: Generator, count: int) -> None:
        self._original = original
        self._rng = rng
        self._rows = np.arange(count)
        self.size = original.room_size - 1
        self.grid = np.full((count, original.height, original.width), EMPTY_CELL_CODE, np.uint8)
        self.grid[:, :: self.size, :] = WALL_CODE
        self.grid[:, :, :: self.size] = WALL_CODE

    def _free_cells(self, column: Any, line: Any) -> np.ndarray:
        """Bool (P, H, W): the empty cells of a room, whose column and line are int or int (P,)."""
        room = _rectangle_mask(self.grid, column * self.size, line * self.size, self.size + 1, self.size + 1)
        return room & (self.grid == EMPTY_CELL_CODE)

    def place(self, column: Any, line: Any, thing: Any) -> None:
        """Put a thing, one code or codes (P,), on any free cell of a room."""
        # The original's agent waits in a middle room while things are placed at least two steps
        # away.
        original = self._original
        half = original.room_size // 2
        wait_x = original.num_cols // 2 * self.size + half
        wait_y = original.num_rows // 2 * self.size + half
        y, x = np.ogrid[: original.height, : original.width]
        is_far = abs(x - wait_x) + abs(y - wait_y) >= 2
        _put(self._rng, self.grid, self._free_cells(column, line) & is_far, thing)

    def add_door(self, column: int, line: int, wall: int, door: Any, blocked: bool = False) -> None:
        """Put a door, codes (P,), anywhere in a wall, numbered as `DIRECTIONS`; blocked, with a ball before it."""
        dx, dy = DIRECTIONS[wall]
        # Along an axis a door is anywhere in the wall (0), at the room's end (1) or its beginning
        # (-1).
        place = (self._rng.integers(1, self.size, len(self._rows)), self.size, 0)
        x = column * self.size + place[dx]
        y = line * self.size + place[dy]
        self.grid[self._rows, y, x] = door
        if blocked:
            # As in the original the ball replaces what is there.
            self.grid[self._rows, y - dy, x - dx] = GREEN_BALL

    def levels(self, column: int, line: int) -> Levels:
        """Levels whose agents begin in one room, and face nothing or a wall."""
        is_start = self._free_cells(column, line)
        may_face = (self.grid == EMPTY_CELL_CODE) | (self.grid == WALL_CODE)
        allowed = []
        for dx, dy in DIRECTIONS:
            allowed.append(is_start & np.roll(may_face, (-dy, -dx), (1, 2)))
        direction, y, x = _choose(self._rng, np.stack(allowed, 1))
        return _levels(self._rng, self.grid, y, x, direction)


def _generate_key_corridor(original: Any, rng: Generator, count: int) -> Levels:
    # Rooms form three columns, of which the middle one is a corridor without inner walls.
    rooms = _Rooms(original, rng, count)
    grid = rooms.grid
    size = rooms.size
    lines = original.num_rows
    grid[:, size:-1:size, size + 1 : 2 * size] = EMPTY_CELL_CODE

    # The locked room is in the column on the right.
    locked_line = rng.integers(0, lines, count)
    colour = rng.integers(0, N_COLOURS, count)
    door_y = locked_line * size + rng.integers(1, size, count)
    grid[np.arange(count), door_y, 2 * size] = code(DOOR_KIND, colour, DOOR_LOCKED)

    mission = rng.integers(0, N_COLOURS, count)
    prize = code(OBJECT_TO_IDX[original.obj_type], mission)
    key_line = rng.integers(0, lines, count)
    rooms.place(2, locked_line, prize)
    rooms.place(0, key_line, code(KEY_KIND, colour))

    levels = rooms.levels(1, lines // 2)
    _connect(grid, rng, size, lines, locked_line)
    levels["mission"] = mission
    return levels


def _connect(grid: np.ndarray, rng: Generator, size: int, lines: int, locked: np.ndarray) -> None:
    """Add doors of random colours until every room can be reached; the locked one already can."""
    count = len(grid)
    levels = np.arange(count)

    # All E doors that there may be, through walls to the right and through floors of the two outer
    # columns. A row holds the column and the line of the rooms on both sides.
    doors = []
    for column in (0, 1):
        doors += [(column, line, column + 1, line) for line in range(lines)]
    for column in (0, 2):
        doors += [(column, line, column, line + 1) for line in range(lines - 1)]
    one_column, one_line, other_column, other_line = np.array(doors).T
    one = one_column + 3 * one_line
    other = other_column + 3 * other_line
    locked_room = 2 + 3 * locked
    shut = locked_room[:, None]
    is_possible = (one != shut) & (other != shut)

    # Places and colours of all doors, (P, E).
    offset = rng.integers(1, size, (count, len(doors)))
    is_sideways = one_column != other_column
    x = np.where(is_sideways, other_column * size, one_column * size + offset)
    y = np.where(is_sideways, one_line * size + offset, other_line * size)
    colour = rng.integers(0, N_COLOURS, offset.shape)

    # Rooms with equal numbers are connected. The corridor is one room, and the locked room has its
    # door to it.
    component = np.tile(np.arange(3 * lines), (count, 1))
    component[:, 1::3] = 1
    component[levels, locked_room] = 1
    order = np.argsort(rng.random(offset.shape), axis=1)
    for edge in order.T:
        is_apart = (component != component[:, :1]).any(1)
        rows = np.flatnonzero(is_apart & is_possible[levels, edge])
        edge = edge[rows]
        grid[rows, y[rows, edge], x[rows, edge]] = code(DOOR_KIND, colour[rows, edge], DOOR_CLOSED)
        one_component = component[rows, one[edge]][:, None]
        other_component = component[rows, other[edge]][:, None]
        joined = component[rows]
        component[rows] = np.where(joined == other_component, one_component, joined)


def _generate_two_rooms(original: Any, rng: Generator, count: int) -> Levels:
    rooms = _Rooms(original, rng, count)
    colour = rng.integers(0, N_COLOURS, count)
    rooms.add_door(0, 0, 0, code(DOOR_KIND, colour, DOOR_LOCKED), original.blocked)
    rooms.place(0, 0, _key_code(original, colour))
    rooms.place(1, 0, BLUE_BALL)
    return rooms.levels(0, 0)


def _generate_obstructed_maze(original: Any, rng: Generator, count: int) -> Levels:
    rooms = _Rooms(original, rng, count)
    # The colours in a random order, (colours, P).
    colours = np.argsort(rng.random((count, N_COLOURS)), axis=1).T
    # Version 0 places a key right after its door, so the next door's ball may replace it.
    keys_come_last = isinstance(original, ObstructedMaze_Full_V1)
    for wall, (column, line) in enumerate(SIDE_ROOMS[: original.num_quarters]):
        rooms.add_door(1, 1, wall, code(DOOR_KIND, colours[wall], DOOR_CLOSED))
        keys = []
        # The locked doors are in the walls to both sides of the way to the middle.
        for side in (wall - 1, wall + 1):
            colour = colours[side % N_COLOURS]
            rooms.add_door(column, line, side % 4, code(DOOR_KIND, colour, DOOR_LOCKED), original.blocked)
            keys.append(_key_code(original, colour))
            if not keys_come_last:
                rooms.place(column, line, keys.pop())
        for key in keys:
            rooms.place(column, line, key)
    ball_column, ball_line = CORNER_ROOMS[rng.integers(0, original.num_quarters, count)].T
    rooms.place(ball_column, ball_line, BLUE_BALL)
    return rooms.levels(*original.agent_room)


def _key_code(original: Any, colour: np.ndarray) -> np.ndarray:
    """Keys, in boxes if the maze has them, codes (P,)."""
    return BOX_WITH_KEY[colour] if original.key_in_box else code(KEY_KIND, colour)


def _generate_locked_room(original: Any, rng: Generator, count: int) -> Levels:
    # Three rooms on each side of a hallway, whose walls are `left` and `right`; a room's number is
    # 2 * line + side.
    grid = _empty_levels(original, count)
    rows = np.arange(count)
    left = original.width // 2 - 2
    right = original.width // 2 + 2
    size = original.height // 3
    grid[:, :, left] = WALL_CODE
    grid[:, :, right] = WALL_CODE
    for line in range(3):
        grid[:, line * size, :left] = WALL_CODE
        grid[:, line * size, right:] = WALL_CODE

    # All doors have different colours, (P, rooms).
    colours = np.argsort(rng.random((count, N_COLOURS)), axis=1)
    locked = rng.integers(0, 6, count)
    for room in range(6):
        state = np.where(locked == room, DOOR_LOCKED, DOOR_CLOSED)
        grid[:, room // 2 * size + 3, right if room % 2 else left] = code(DOOR_KIND, colours[:, room], state)

    # The key is in any other room.
    key_room = (locked + rng.integers(1, 6, count)) % 6
    door_colour = colours[rows, locked]
    for place, thing in ((locked, GOAL_CODE), (key_room, code(KEY_KIND, door_colour))):
        x = place % 2 * right + rng.integers(1, left, count)
        y = place // 2 * size + rng.integers(1, size, count)
        grid[rows, y, x] = thing

    hallway = _rectangle_mask(grid, left, 0, right - left, original.height)
    y, x = _choose(rng, (grid == EMPTY_CELL_CODE) & hallway)
    levels = _levels(rng, grid, y, x)
    levels["mission"] = door_colour * N_COLOURS + colours[rows, key_room]
    return levels


def _generate_multi_room(original: Any, rng: Generator, count: int) -> Levels:
    n_rooms = rng.integers(original.minNumRooms, original.maxNumRooms + 1, count)
    numbers, counts = np.unique(n_rooms, return_counts=True)
    # Levels of equally many rooms are made together, so they come in the order of their numbers.
    parts = [_generate_rooms(original, rng, *pair) for pair in zip(numbers.tolist(), counts.tolist())]
    place = np.argsort(np.argsort(n_rooms, kind="stable"))
    levels = {}
    for name in parts[0]:
        levels[name] = np.concatenate([part[name] for part in parts])[place]
    return levels


def _generate_rooms(original: Any, rng: Generator, n_rooms: int, count: int) -> Levels:
    """`count` levels of MultiRoom with so many rooms each."""
    rooms: np.ndarray = np.zeros((0, n_rooms, 6), np.int64)
    tries = 4 * count
    while len(rooms) < count:
        rooms = np.concatenate([rooms, _generate_chains(original, rng, n_rooms, tries)])
        # Of 12 rooms of up to 10 cells one chain in 1,200 fits.
        if 2 * len(rooms) < count:
            tries = min(2 * tries, MAX_CHAIN_TRIES)
    rooms = rooms[:count]
    rows = np.arange(count)
    grid = np.full((count, original.height, original.width), EMPTY_CELL_CODE, np.uint8)
    colour = rng.integers(0, N_COLOURS, count)
    for number, room_numbers in enumerate(rooms.transpose(1, 2, 0)):
        left, top, width, height, door_x, door_y = room_numbers
        inside = _rectangle_mask(grid, left + 1, top + 1, width - 2, height - 2)
        grid[_rectangle_mask(grid, left, top, width, height) & ~inside] = WALL_CODE
        if number > 0:
            grid[rows, door_y, door_x] = code(DOOR_KIND, colour, DOOR_CLOSED)
            # The next door has any other colour.
            colour = (colour + rng.integers(1, N_COLOURS, count)) % N_COLOURS
    free = grid == EMPTY_CELL_CODE
    first_room = _rectangle_mask(grid, *rooms[:, 0, :4].T)
    last_room = _rectangle_mask(grid, *rooms[:, -1, :4].T)
    y, x = _choose(rng, free & first_room)
    _put(rng, grid, free & last_room, GOAL_CODE)
    return _levels(rng, grid, y, x)


def _generate_chains(original: Any, rng: Generator, n_rooms: int, count: int) -> np.ndarray:
    """Try `count` times to chain rooms; int64 (K, n_rooms, 6), left, top, width, height, door x and y, of what fits.

    As in the original each room has eight tries, of which the first that fits counts, and no chain is taken back.
    """
    max_size = original.maxRoomSize + 1
    door = rng.integers(0, original.width - 2, (count, 1, 2))
    size = rng.integers(MIN_ROOM_SIZE, max_size, (2, count, 1))
    rooms = np.concatenate([door[:, 0], size[0], size[1], door[:, 0]], 1)[:, None]
    # The wall with the door by which a room is entered, numbered as `DIRECTIONS`: right, down,
    # left, up.
    entry = np.full(count, 2)
    fits = _fits(original, rooms, rooms[:, :0])[:, 0]
    for _ in range(n_rooms - 1):
        rooms = rooms[fits]
        entry = entry[fits]
        rows = np.arange(len(rooms))

        # The exit is a door in any other wall of the last room; all that follows is (K, tries).
        left, top, width, height = rooms[:, -1:, :4].transpose(2, 0, 1)
        wall = (entry[:, None] + rng.integers(1, 4, (len(rooms), ROOM_TRIES))) % 4
        along_x = rng.integers(1, width - 1, wall.shape)
        along_y = rng.integers(1, height - 1, wall.shape)
        door_x = left + np.choose(wall, [width - 1, along_x, 0, along_x])
        door_y = top + np.choose(wall, [along_y, height - 1, along_y, 0])

        # The next room lies beyond that wall, shifted along it at random so that the door is not in
        # its corner.
        width, height = rng.integers(MIN_ROOM_SIZE, max_size, (2, *wall.shape))
        shifted_left = door_x - rng.integers(1, width - 1)
        shifted_top = door_y - rng.integers(1, height - 1)
        far_left = door_x - width + 1
        far_top = door_y - height + 1
        new_left = np.choose(wall, [door_x, shifted_left, far_left, shifted_left])
        new_top = np.choose(wall, [shifted_top, door_y, shifted_top, far_top])
        # Six numbers for each try, in the order of `rooms`.
        tries = np.stack([new_left, new_top, width, height, door_x, door_y], 2)
        try_fits = _fits(original, tries, rooms[:, :-1])
        first = try_fits.argmax(1)
        fits = try_fits[rows, first]
        entry = (wall[rows, first] + 2) % 4
        rooms = np.concatenate([rooms, tries[rows, first][:, None]], 1)
    return rooms[fits]


def _fits(original: Any, tries: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Bool (K, tries): in the grid, and clear of `others` (K, rooms, 6), by the original's uneven comparisons."""
    left, top, width, height = tries.transpose(2, 0, 1)[:4]
    right = left + width
    bottom = top + height
    fits = (left >= 0) & (top >= 0)
    fits &= (right <= original.width) & (bottom < original.height)
    for other in others.transpose(1, 2, 0)[..., None]:
        other_left, other_top, other_width, other_height = other[:4]
        is_beside = (right < other_left) | (other_left + other_width <= left)
        is_above_or_below = (bottom < other_top) | (other_top + other_height <= top)
        fits &= is_beside | is_above_or_below
    return fits


GENERATORS: dict[str, Callable[[Any, Generator, int], Levels]] = {
    "EmptyEnv": _generate_empty,
    "DoorKeyEnv": _generate_door_key,
    "FourRoomsEnv": _generate_four_rooms,
    "KeyCorridorEnv": _generate_key_corridor,
    "LockedRoomEnv": _generate_locked_room,
    "MultiRoomEnv": _generate_multi_room,
    "ObstructedMaze_1Dlhb": _generate_two_rooms,
    "ObstructedMaze_Full": _generate_obstructed_maze,
    "ObstructedMaze_Full_V1": _generate_obstructed_maze,
}
