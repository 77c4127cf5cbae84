"""MiniGrid as an array program: its rules are one table, its view is three, its captions one.

A cell is one small integer for object, colour and state (`code`), a grid is padded with walls as wide as the view
reaches, and a position is an index into the flat padded grid, so that the view is one gather.

`generate` makes P levels at once, from the distributions of the originals. Where those draw places until one is free,
it draws uniformly among the free ones, the same distribution; where KeyCorridor draws doors until all rooms are
connected, it takes the possible doors in a random order. MultiRoom rejects as its original does: chains of rooms that
do not fit are dropped, a few thousand at a time.

Source: minigrid 3.2 (Farama Foundation): minigrid_env.py (step, gen_obs_grid), core/grid.py (process_vis) and
core/roomgrid.py; envs/empty.py, doorkey.py, fourrooms.py, keycorridor.py, multiroom.py. The observation is that of
`envs.minigrid.family.GridObservation`. Limits: the registered ids of these five; FourRooms without fixed positions,
MultiRoom with a fixed number of rooms, KeyCorridor with any object; no moving lava, no boxes with something in them.
"""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from minigrid.core.actions import Actions
from minigrid.core.constants import COLOR_TO_IDX, DIR_TO_VEC, IDX_TO_COLOR, OBJECT_TO_IDX, STATE_TO_IDX

from envs.batched.base import BatchedEnv
from envs.minigrid import captions as single
from envs.minigrid.captions import KINDS, RANK, called
from envs.minigrid.family import PARTS
from envs.observations import WORDS, hashed_words
from envs.types import Array

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
THINGS = tuple(OBJECT_TO_IDX[name] for name in ("key", "ball", "box"))  # what can be carried
HANDS = 1 + len(THINGS) * COLOURS  # nothing, or a thing of a colour
FAILS, SUCCEEDS = 1, 2
NO_SIGHT = np.zeros((0, 0), np.uint8)
NAMED = CODES // STATES  # kinds times colours
# Tables of (CODES,): a cell's kind, its state, whether one sees what is behind it; of (HANDS,): the cell for what is
# carried.
KIND, STATE = np.arange(CODES) // (COLOURS * STATES), np.arange(CODES) % STATES
CLEAR = ((OBJECT_TO_IDX["wall"] != KIND) & ((KIND != DOOR) | (STATE == 0))).astype(np.float32)
HELD = np.array([EMPTY, *code(np.repeat(THINGS, COLOURS), np.tile(np.arange(COLOURS), len(THINGS)))], np.uint8)


class BatchedMiniGrid(BatchedEnv):
    """N MiniGrid worlds of one id.

    State: `grid` uint8 (N, H * W) of cell codes, padded; `position` int64 (N,) in it; `direction`, `hands` (what is
    carried) and `mission` int64 (N,); with chatter `salt` int64 (N,), which names the episode.
    """

    def _setup(self, original: gym.Env) -> None:
        n, array = self.num_envs, self.arrays.array
        self._size = self.world.agent_view_size
        self._pad = self._size - 2  # an agent is never on the border itself
        self._wide = self.world.width + 2 * self._pad
        area = (self.world.height + 2 * self._pad) * self._wide
        strides = DIRECTIONS @ [1, self._wide]
        turns = np.zeros(len(Actions), np.int64)
        turns[Actions.left], turns[Actions.right] = -1, 1
        self._ahead, self._turn = array(strides), array(turns)
        self._base = array(np.arange(n) * area)
        self._view = array(_view(strides, self._size))
        rules = _rules(getattr(self.world, "obj_type", None))
        self._rules = array(rules)
        self._held = array(HELD)
        parts = np.unravel_index(np.arange(CODES), PARTS)
        # float32 (CODES, 20): the adapter's one-hot of a cell; a cell out of sight is code 0.
        one_hot = np.concatenate([np.eye(size, dtype=np.float32)[part] for size, part in zip(PARTS, parts)], axis=1)
        # float32 (missions, 64): the words of each mission; empty where the observation has none.
        texts = _missions(self.world) if self._obs.shape[1] > self._size**2 * sum(PARTS) + 4 else []
        words = np.array([hashed_words(text.encode()) for text in texts], np.float32).reshape(-1, WORDS)
        self._pixels, self._words = array(one_hot), array(words)
        column, row = np.divmod(np.arange(self._size**2), self._size)
        # What a cell adds to the number of its row: 2 to the power of its column.
        place = np.where(row[:, None] == np.arange(self._size), 2.0 ** column[:, None], 0.0).astype(np.float32)
        self._clear, self._place = array(CLEAR), array(place)
        self._seen, self._beam, self._bits = (array(table) for table in _shadows(self._size))
        self._compass = array(np.eye(4, dtype=np.float32))
        self._situation, self._sight = array(np.zeros(n, np.int64)), NO_SIGHT
        self._speech = original.get_wrapper_attr("speech")
        self._captions: Captions | None = None
        if "text" in self.modalities:
            self._captions = Captions(self._speech, rules, _missions(self.world), self.max_steps, n)
            self.modalities["text"] = self._captions.text

    def _generate(self, rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
        fresh = generate(self.world, rng, count)
        state = self._state(*(fresh[key] for key in ("grid", "x", "y", "direction", "mission")))
        return state | ({"salt": rng.integers(1 << 32, size=count)} if self._speech.chatter else {})

    def _state(self, grid: np.ndarray, x: Any, y: Any, direction: Any, mission: Any) -> dict[str, np.ndarray]:
        """P levels (P, H, W) as entries of the state."""
        count, pad = len(grid), self._pad
        padded = np.pad(grid, ((0, 0), (pad, pad), (pad, pad)), constant_values=WALL)
        position = (np.asarray(y) + pad) * self._wide + np.asarray(x) + pad
        state = {"grid": padded.reshape(count, -1), "position": position, "direction": direction}
        return {**state, "hands": np.zeros(count, np.int64), "mission": mission}

    def _advance(self, actions: Array) -> tuple[Array, Array]:
        state, gather = self.state, self.arrays.gather
        direction, stride = state["direction"], gather(self._ahead, state["direction"])
        cells = state["grid"].reshape(-1)
        ahead = self._base + state["position"] + stride
        situation = self._situation = (actions * CODES + cells[ahead]) * HANDS + state["hands"]
        cell, hands, moves, ends = gather(self._rules, situation).T
        cells[ahead] = cell
        state["hands"][...] = hands
        state["position"] += stride * moves
        direction += gather(self._turn, actions)
        direction &= 3
        rewards = (ends == SUCCEEDS) * (1 - 0.9 * (self._steps / self.world.max_steps))
        return rewards, ends > 0

    def _observe(self, state: dict[str, Array], out: Array) -> None:
        gather, size = self.arrays.gather, self._size
        count = len(out)
        index = gather(self._view, state["direction"])
        index += (self._base[:count] + state["position"])[:, None]
        view = gather(state["grid"].reshape(-1), index)  # (K, 49), column by column as MiniGrid has it
        if not self.world.see_through_walls:
            view = view * self._visible(view)
        view[:, size * size // 2 + size // 2] = gather(self._held, state["hands"])
        self._sight = view
        pixels = size * size * sum(PARTS)
        out[:, :pixels] = gather(self._pixels, view).reshape(count, pixels)
        out[:, pixels : pixels + 4] = gather(self._compass, state["direction"])
        if len(self._words):
            out[:, pixels + 4 :] = gather(self._words, state["mission"])

    def _visible(self, view: Array) -> Array:
        """Which cells of a view (K, 49) no wall and no closed door hides, uint8 (K, 49) in {0, 1}."""
        size, gather = self._size, self.arrays.gather
        # (K, rows), whose bits are the columns: a product of whole numbers below 128, exact in any precision
        clear = self.arrays.like(gather(self._clear, view) @ self._place, self._base)
        beam = 1 << (size // 2 + size)
        seen = self.xp.empty_like(clear)
        for row in range(size - 1, -1, -1):
            lit = clear[:, row] + beam
            seen[:, row] = gather(self._seen, lit)
            beam = gather(self._beam, lit)
        return gather(self._bits, seen).swapaxes(1, 2).reshape(view.shape)

    def _show(self, rows: Array) -> None:
        if self._captions is None:
            return
        host, captions = self.arrays.numpy, self._captions
        sight = host(self._sight) if captions.full else NO_SIGHT
        if len(rows) < self.num_envs or self._steps[0] == 0:
            captions.begin(host(rows), host(self.state["mission"][rows]), sight)
        else:  # a step; or a snapshot, whose texts are put back by `restore`
            salt = host(self.state["salt"]) if captions.chatter else None
            captions.step(host(self._situation), sight, host(self._steps), salt)
        self.modalities["text"] = captions.text

    def _success(self, terminated: Array) -> Array:
        return self._returns > 0

    def snapshot(self) -> dict[str, Any]:
        text = {} if self._captions is None else {"text": self._captions.text.tolist()}
        return super().snapshot() | text

    def restore(self, state: dict[str, Any]) -> Array:
        obs = super().restore(state)
        if self._captions is not None and "text" in state:
            self._captions.text[:] = state["text"]
        return obs


class Captions:
    """The captions of N environments, step by step those of `envs.minigrid.captions`; the last in `text`, object (N,).

    What was looked up in the rules (action, cell ahead, hands) leads to an event. A cell has one bit of a sight; a view
    has the bits of its cells, and the lowest bit that is new gets into the caption. Strings come from arrays of
    strings; joined are only those rows where an event meets a sight, a picture is shown, or captions are varied.

    `rules` are the environment's, int (actions * CODES * hands, 4): cell ahead, hands, moves, ends; `limit` is an
    episode's number of steps.
    """

    def __init__(self, speech: single.Speech, rules: np.ndarray, missions: list[str], limit: int, n: int) -> None:
        self.text = np.full(n, "", object)
        self.full, self.chatter, self.varied = speech.captions == "full", bool(speech.chatter), speech.varied
        self._pictures = speech.pictures
        self._events = _events(rules, self.full)
        self._done = single.DONE * (len(rules) // 7)  # situations from here on are of the action `done`
        names = [called(kind, colour) for kind in KINDS for colour in single.COLOURS]
        # Every event with every thing in words.
        self._phrases = np.array([event.format(name) for event in single.EVENTS for name in names], object)
        self._missions = np.array([f"mission: {mission}" for mission in missions], object)
        self._left = np.array([single.left(limit - step) for step in range(limit + 1)] if self.varied else [], object)
        bits = [1 << RANK[thing] if thing in RANK else 0 for thing in range(NAMED)]
        self._bits = np.repeat(np.array(bits, np.int64), STATES)  # (CODES,): the sight in a cell, 0 for none
        sights = ["sees " + called(*thing) for thing in single.SEEN]
        self._sights = np.array([sights, [f", {sight}" for sight in sights]], object)
        self._seen = np.zeros(n, np.int64)

    def begin(self, rows: np.ndarray, mission: np.ndarray, view: np.ndarray) -> None:
        """Episodes begin in rows (K,), with missions, int64 (K,), and cells in view, uint8 (K, size * size)."""
        text = self._missions[mission]
        self.text[rows] = text + self._left[0] if self.varied else text
        if self.full:
            self._seen[rows] = self._bits_of(view)

    def step(self, situation: np.ndarray, view: np.ndarray, steps: np.ndarray, salt: np.ndarray | None) -> None:
        """All environments have made a step: the rows looked up in the rules, and more of each, all (N, ...)."""
        text = self._phrases.take(self._events.take(situation))
        if self.chatter and salt is not None:
            rows = (situation >= self._done).nonzero()[0]
            text[rows] = [*map(single.chatters, single.picture(salt[rows], steps[rows], self._pictures).tolist())]
        if self.full:
            self._add_sights(text, self._bits_of(view))
        if self.varied:
            rows = (text != "").nonzero()[0]
            text[rows] += self._left[steps[rows]]
        self.text = text

    def _bits_of(self, view: np.ndarray) -> np.ndarray:
        """The sights in views (K, cells), int64 (K,) of bits."""
        return np.bitwise_or.reduce(self._bits.take(view), axis=1)

    def _add_sights(self, text: np.ndarray, seen: np.ndarray) -> None:
        """Add to `text` the first of the sights, bits (N,), that are seen now and were not before."""
        new = seen & ~self._seen
        self._seen = seen
        rows = new.nonzero()[0]
        new, before = new[rows], text[rows]
        first = np.bitwise_count((new & -new) - 1)  # the place of the lowest bit
        text[rows] = before + self._sights[(before != "").astype(np.int64), first]


def _events(rules: np.ndarray, full: bool) -> np.ndarray:
    """What happens, int16 (actions * CODES * hands,): NAMED * event + thing, 0 for nothing.

    Bumps and locked doors are events only in `full` captions.
    """
    hands_count = len(rules) // (7 * CODES)
    action, cell, hands = np.unravel_index(np.arange(len(rules)), (7, CODES, hands_count))
    after, held, moved, _ = rules.T.astype(np.int64)
    kind, state = cell // (COLOURS * STATES), cell % STATES
    is_goal, is_lava, is_box = (kind == KINDS.index(name) for name in ("goal", "lava", "box"))
    toggled = (action == single.TOGGLE) & (after != cell)
    happens = {
        single.REACHED: (moved > 0) & is_goal,
        single.FELL: (moved > 0) & is_lava,
        single.PICKED: (action == Actions.pickup) & (held != hands),
        single.DROPPED: (action == Actions.drop) & (held != hands),
        single.OPENED: toggled & (is_box | ((kind == DOOR) & (state != 0) & (state != LOCKED))),
        single.CLOSED: toggled & (kind == DOOR) & (state == 0),
        single.UNLOCKED: toggled & (kind == DOOR) & (state == LOCKED),
        single.BUMPED: (action == single.FORWARD) & (moved == 0) & (kind > 1),
        single.LOCKED: (action == single.TOGGLE) & ~toggled & (kind == DOOR) & (state == LOCKED),
    }
    thing = np.where(action == Actions.drop, KEY * COLOURS + hands - 1, cell // STATES)
    events = np.zeros(len(rules), np.int16)
    for event, where in happens.items():
        if full or event not in single.MORE:
            events[where] = event * NAMED + thing[where]
    return events


def _view(strides: np.ndarray, size: int) -> np.ndarray:
    """int64 (4, size * size): offsets of the cells in view, whose agent stands in the middle of the last row."""
    right = np.roll(strides, -1)[:, None]  # what lies right of a direction is the next direction
    column, row = np.divmod(np.arange(size * size), size)
    return strides[:, None] * (size - 1 - row) + right * (column - size // 2)


def _rules(prize: str | None) -> np.ndarray:
    """What an action does, uint8 (actions * CODES * HANDS, 4): new cell ahead, new hands, moves, ends.

    Picking up an object called `prize` ends the episode well.
    """
    cell, hands = np.ogrid[:CODES, :HANDS]
    kind, colour, state = KIND[:, None], cell // STATES % COLOURS, cell % STATES
    table = np.zeros((len(Actions), CODES, HANDS, 4), np.uint8)
    table[..., 0], table[..., 1] = cell, hands

    free = np.isin(kind, [OBJECT_TO_IDX[name] for name in ("empty", "floor", "goal", "lava")])
    table[Actions.forward, ..., 2] = free | ((kind == DOOR) & (state == 0))
    ends = FAILS * (kind == OBJECT_TO_IDX["lava"]) + SUCCEEDS * (kind == OBJECT_TO_IDX["goal"])
    table[Actions.forward, ..., 3] = ends

    taken = np.isin(kind, THINGS) & (hands == 0)
    full = np.where(taken, 1 + (kind - KEY) * COLOURS + colour, hands)
    table[Actions.pickup, ..., 0] = np.where(taken, EMPTY, cell)
    table[Actions.pickup, ..., 1] = full
    if prize is not None:
        table[Actions.pickup, ..., 3] = SUCCEEDS * (KIND[HELD[full]] == OBJECT_TO_IDX[prize])

    dropped = (cell == EMPTY) & (hands > 0)
    table[Actions.drop, ..., 0] = np.where(dropped, HELD[hands], cell)
    table[Actions.drop, ..., 1] = np.where(dropped, 0, hands)

    opened, unlocks = cell - state, hands == 1 + colour
    door = np.where(state == 0, opened + 1, np.where((state == LOCKED) & ~unlocks, cell, opened))
    box = kind == OBJECT_TO_IDX["box"]
    table[Actions.toggle, ..., 0] = np.where(kind == DOOR, door, np.where(box, EMPTY, cell))
    return table.reshape(-1, 4)


def _shadows(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How light goes through a row of cells, as `Grid.process_vis` lets it: to the right, then back to the left.

    Returns:
        The bits of the cells seen and of the light for the row ahead, the latter shifted left by `size`, both int64
        (4 ** size,) by (incoming light << size) + transparent cells; and the bits of a number, uint8 (2 ** size, size).
    """
    number = np.arange(4**size)
    clear, light = ([(number >> shift + bit) & 1 for bit in range(size)] for shift in (0, size))
    ahead = [np.zeros_like(number) for _ in range(size)]
    for order, side in ((range(size - 1), 1), (range(size - 1, 0, -1), -1)):
        for cell in order:
            through = light[cell] & clear[cell]
            light[cell + side] = light[cell + side] | through
            ahead[cell] = ahead[cell] | through
            ahead[cell + side] = ahead[cell + side] | through
    seen, beam = (sum(bits << place for place, bits in enumerate(row)) for row in (light, ahead))
    bits = np.arange(2**size)[:, None] >> np.arange(size) & 1
    return np.asarray(seen), np.asarray(beam) << size, bits.astype(np.uint8)


def _missions(original: Any) -> list[str]:
    """The missions by their numbers in `state`, which are the prize's colour where there is one."""
    if hasattr(original, "obj_type"):
        return [original._gen_mission(IDX_TO_COLOR[colour], original.obj_type) for colour in range(COLOURS)]
    return [original.mission]


def generate(original: Any, rng: np.random.Generator, count: int) -> Levels:
    """`count` fresh levels of `original`, a MiniGrid environment without wrappers, by the generator of its class.

    Returns "grid" uint8 (P, H, W) of cell codes, "x", "y", "direction" and "mission" int64 (P,).
    """
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
