"""MiniGrid as an array program: its rules are one table, its view is three.

A cell is one small integer for object, colour and state (`levels.code`), a grid is padded with walls as wide as the
view reaches, and a position is an index into the flat padded grid, so that the view is one gather.

    rules     (action, cell ahead, what is carried) -> (cell ahead, what is carried, whether to move, how it ends)
    view      direction -> offsets of the 7 x 7 cells the agent faces
    shadows   (cells of a row that light reaches, cells that let it through) -> (cells seen, light for the row ahead)
    one-hot   cell -> 20 floats
    events    the situation looked up in `rules` -> its caption

Source: minigrid 3.2 (Farama Foundation): minigrid_env.py (step, gen_obs_grid) and core/grid.py (process_vis); the
observation is that of `envs.minigrid.family.GridObservation`. Limits: the families of `levels.py`; no lava that moves,
no boxes with something in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from minigrid.core.actions import Actions
from minigrid.core.constants import COLOR_TO_IDX, IDX_TO_COLOR, OBJECT_TO_IDX

from envs.batched.base import BatchedEnv
from envs.batched.minigrid import levels
from envs.batched.minigrid.levels import CODES, COLOURS, DOOR, EMPTY, KEY, LOCKED, STATES, WALL, code
from envs.family import simulator
from envs.minigrid import captions as single
from envs.minigrid.captions import KINDS, RANK, called
from envs.minigrid.family import PARTS
from envs.observations import WORDS, hashed_words
from envs.types import Array

THINGS = tuple(OBJECT_TO_IDX[name] for name in ("key", "ball", "box"))  # what can be carried
HANDS = 1 + len(THINGS) * COLOURS  # nothing, or a thing of a colour
FAILS, SUCCEEDS = 1, 2
NO_SIGHT = np.zeros((0, 0), np.uint8)
NAMED = CODES // STATES  # kinds times colours
# Tables of (CODES,): a cell's kind, its state, whether one sees what is behind it; of (HANDS,): the cell for what is
# carried.
KIND, STATE = np.arange(CODES) // (COLOURS * STATES), np.arange(CODES) % STATES
CLEAR = ((KIND != OBJECT_TO_IDX["wall"]) & ((KIND != DOOR) | (STATE == 0))).astype(np.float32)
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
        strides = levels.DIRECTIONS @ [1, self._wide]
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
        self._pixels, self._words = array(one_hot), array(_words(original))
        self._clear, self._place = array(CLEAR), array(_places(self._size))
        self._seen, self._beam, self._bits = (array(table) for table in _shadows(self._size))
        self._compass = array(np.eye(4, dtype=np.float32))
        self._situation, self._sight = array(np.zeros(n, np.int64)), NO_SIGHT
        self._speech = original.get_wrapper_attr("speech")
        self._captions: Captions | None = None
        if "text" in self.modalities:
            self._captions = Captions(self._speech, rules, _missions(original), self.max_steps, n)
            self.modalities["text"] = self._captions.text

    def _generate(self, rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
        fresh = levels.generate(self.world, rng, count)
        state = self._state(*(fresh[key] for key in ("grid", "x", "y", "direction", "mission")))
        return state | ({"salt": rng.integers(1 << 32, size=count)} if self._speech.chatter else {})

    def _state(self, grid: np.ndarray, x: Any, y: Any, direction: Any, mission: Any) -> dict[str, np.ndarray]:
        """P levels (P, H, W) as entries of the state."""
        count, pad = len(grid), self._pad
        padded = np.pad(grid, ((0, 0), (pad, pad), (pad, pad)), constant_values=WALL)
        position = (np.asarray(y) + pad) * self._wide + np.asarray(x) + pad
        state = {"grid": padded.reshape(count, -1), "position": position, "direction": direction}
        return {**state, "hands": np.zeros(count, np.int64), "mission": mission}

    def _read(self, original: Any) -> dict[str, Any]:
        encoded = original.grid.encode().astype(np.int64)  # (W, H, 3)
        grid = code(*encoded.transpose(2, 1, 0))[None].astype(np.uint8)
        colour = COLOR_TO_IDX[original.obj.color] if hasattr(original, "obj") else 0
        x, y = original.agent_pos
        state = self._state(grid, [x], [y], np.array([original.agent_dir]), np.array([colour]))
        return {key: value[0] for key, value in state.items()}

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

    def load(self, originals: Sequence[gym.Env]) -> Array:
        obs = super().load(originals)
        if self._speech.chatter:
            self.state["salt"] = self.arrays.array([one.get_wrapper_attr("speech").salt for one in originals])
        return obs

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


def _places(size: int) -> np.ndarray:
    """float32 (size * size, size): what a cell adds to the number of its row, 2 to the power of its column."""
    column, row = np.divmod(np.arange(size * size), size)
    return np.where(row[:, None] == np.arange(size), 2.0 ** column[:, None], 0.0).astype(np.float32)


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


def _words(original: gym.Env) -> np.ndarray:
    """float32 (missions, 64): the words of each mission, by the prize's colour where there is one; else empty."""
    inner = simulator(original)
    view = inner.agent_view_size**2 * sum(PARTS) + 4
    if original.observation_space.shape == (view,):
        return np.zeros((0, WORDS), np.float32)
    return np.stack([hashed_words(mission.encode()) for mission in _missions(original)])


def _missions(original: gym.Env) -> list[str]:
    """The missions by their numbers in `state`."""
    inner = simulator(original)
    if hasattr(inner, "obj_type"):
        return [inner._gen_mission(IDX_TO_COLOR[colour], inner.obj_type) for colour in range(COLOURS)]
    return [inner.mission]
