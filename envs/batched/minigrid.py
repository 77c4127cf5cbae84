"""MiniGrid as an array program: its rules are one table, its view is three, its captions one.

A cell is one small integer for object, colour and state (`minigrid_levels.code`), a grid is padded with walls as wide
as the view reaches, and a position is an index into the flat padded grid, so that the view is one gather. Levels are
those of `minigrid_levels.generate`.

Source: minigrid 3.2 (Farama Foundation): minigrid_env.py (step, gen_obs_grid) and core/grid.py (process_vis). The
observation is that of `envs.minigrid.family.GridObservation`; limits stand in `minigrid_levels`.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from minigrid.core.actions import Actions
from minigrid.core.constants import OBJECT_TO_IDX

from envs.batched.base import BatchedEnv, Outcome, State
from envs.batched.minigrid_levels import (
    BALL_KIND,
    BOX_KIND,
    BOX_WITH_KEY,
    DIRECTIONS,
    DOOR_CLOSED,
    DOOR_KIND,
    DOOR_LOCKED,
    EMPTY_CELL_CODE,
    KEY_KIND,
    LOOK_OF_CODE,
    N_CODES,
    N_COLOURS,
    N_LOOKS,
    N_STATES,
    WALL_CODE,
    Levels,
    code,
    generate,
    missions,
    prizes,
)
from envs.minigrid import captions as single
from envs.minigrid.captions import RANK, object_name
from envs.minigrid.family import CELL_PART_SIZES
from envs.observations import WORD_FEATURES, hashed_words
from envs.types import Array, StateDict

# What can be carried; a hand is empty or holds one of these in one colour, or a box with a key in
# it.
CARRIED_KINDS = (KEY_KIND, BALL_KIND, BOX_KIND)
# How an action may end an episode.
FAILS = 1
SUCCEEDS = 2
NO_SIGHT = np.zeros((0, 0), np.uint8)
# A thing is a kind with a colour.
N_THINGS = N_LOOKS // N_STATES

# Tables of (N_CODES,): a cell's thing, kind, state, whether one sees what is behind it.
THING_OF_CODE = LOOK_OF_CODE // N_STATES
KIND_OF_CODE = THING_OF_CODE // N_COLOURS
STATE_OF_CODE = LOOK_OF_CODE % N_STATES
IS_CLOSED_DOOR = (KIND_OF_CODE == DOOR_KIND) & (STATE_OF_CODE != 0)
IS_SEE_THROUGH = ((OBJECT_TO_IDX["wall"] != KIND_OF_CODE) & ~IS_CLOSED_DOOR).astype(np.float32)
# Table of (HANDS,): the cell for what is carried.
_CARRIED_CODES = code(np.repeat(CARRIED_KINDS, N_COLOURS), np.tile(np.arange(N_COLOURS), len(CARRIED_KINDS)))
CODE_IN_HANDS = np.array([EMPTY_CELL_CODE, *_CARRIED_CODES, *BOX_WITH_KEY], np.uint8)
HANDS = len(CODE_IN_HANDS)


class BatchedMiniGrid(BatchedEnv):
    """N MiniGrid worlds of one id.

    State: `grid` uint8 (N, H * W) of cell codes, padded; `position` int64 (N,) in it; `direction`, `hands` (what is
    carried) and `mission` int64 (N,); with chatter `salt` int64 (N,), which names the episode.
    """

    def _setup(self, original: gym.Env) -> None:
        n = self.num_envs
        array = self.arrays.array
        self._size = self.world.agent_view_size
        # An agent never stands on the border itself, so one cell less than the view's reach is
        # enough.
        self._pad = self._size - 2
        self._wide = self.world.width + 2 * self._pad
        area = (self.world.height + 2 * self._pad) * self._wide
        self._base = array(np.arange(n) * area)

        strides = DIRECTIONS @ [1, self._wide]
        turns = np.zeros(len(Actions), np.int64)
        turns[Actions.left] = -1
        turns[Actions.right] = 1
        self._ahead = array(strides)
        self._turn = array(turns)
        self._view = array(_view_offsets(strides, self._size))
        rules = _rules(prizes(self.world))
        self._rules = array(rules)
        self._held = array(CODE_IN_HANDS)
        self._set_up_observation()
        self._set_up_sight()

        self._situation = array(np.zeros(n, np.int64))
        self._speech = original.get_wrapper_attr("speech")
        self._captions: Any = None
        if "text" in self.modalities:
            self._captions = Captions(self._speech, rules, missions(self.world), self.max_steps, n)
            self.modalities["text"] = self._captions.text

    def _set_up_observation(self) -> None:
        """Tables of what cells, directions and missions look like in an observation."""
        # float32 (N_CODES, 20): the adapter's one-hot of a cell; a cell out of sight is code 0.
        parts = np.unravel_index(LOOK_OF_CODE, CELL_PART_SIZES)
        one_hot = [np.eye(size, dtype=np.float32)[part] for size, part in zip(CELL_PART_SIZES, parts)]
        self._pixels = self.arrays.array(np.concatenate(one_hot, axis=1))
        self._compass = self.arrays.array(np.eye(4, dtype=np.float32))

        # float32 (missions, 64): the words of each mission; empty where the observation has none.
        words = np.zeros((0, WORD_FEATURES), np.float32)
        size_without_words = self._size**2 * sum(CELL_PART_SIZES) + 4
        if self._obs.shape[1] > size_without_words:
            words = np.array([hashed_words(text.encode()) for text in missions(self.world)], np.float32)
        self._words = self.arrays.array(words)

    def _set_up_sight(self) -> None:
        """Tables of how light goes through a view."""
        array = self.arrays.array
        column, row = np.divmod(np.arange(self._size**2), self._size)
        # What a cell adds to the number of its row: 2 to the power of its column.
        place = np.eye(self._size)[row] * 2.0 ** column[:, None]
        self._clear = array(IS_SEE_THROUGH)
        self._place = array(place.astype(np.float32))
        seen, beam, bits = _spread_light(self._size)
        self._seen = array(seen)
        self._beam = array(beam)
        self._bits = array(bits)

    def _generate(self, rng: np.random.Generator, count: int) -> State:
        state = self._state(generate(self.world, rng, count))
        if self._speech.chatter:
            state["salt"] = rng.integers(1 << 32, size=count)
        return state

    def _state(self, levels: Levels) -> State:
        """P levels as entries of the state."""
        pad = self._pad
        grid = np.pad(levels["grid"], ((0, 0), (pad, pad), (pad, pad)), constant_values=WALL_CODE)
        count = len(grid)
        return {
            "grid": grid.reshape(count, -1),
            "position": (levels["y"] + pad) * self._wide + levels["x"] + pad,
            "direction": levels["direction"],
            "hands": np.zeros(count, np.int64),
            "mission": levels["mission"],
        }

    def _advance(self, actions: Array) -> Outcome:
        state = self.state
        gather = self.arrays.gather
        direction = state["direction"]
        stride = gather(self._ahead, direction)
        cells = state["grid"].reshape(-1)
        ahead = self._base + state["position"] + stride
        # A row of the rules: the action, the cell ahead and what is carried, as one number.
        situation = (actions * N_CODES + cells[ahead]) * HANDS + state["hands"]
        cell, hands, moves, ends = gather(self._rules, situation).T
        self._situation = situation
        cells[ahead] = cell
        state["hands"][...] = hands
        state["position"] += stride * moves
        direction += gather(self._turn, actions)
        direction &= 3
        speed_bonus = 1 - 0.9 * (self._steps / self.world.max_steps)
        return (ends == SUCCEEDS) * speed_bonus, ends > 0

    def _observe(self, state: State, out: Array) -> None:
        gather = self.arrays.gather
        size = self._size
        count = len(out)
        index = gather(self._view, state["direction"])
        index += (self._base[:count] + state["position"])[:, None]
        # (K, 49), column by column as MiniGrid has it.
        view = gather(state["grid"].reshape(-1), index)
        if not self.world.see_through_walls:
            view = view * self._visible_cells(view)
        # The agent's own cell shows what it carries.
        view[:, size * size // 2 + size // 2] = gather(self._held, state["hands"])
        self._sight = view
        pixels = size * size * sum(CELL_PART_SIZES)
        out[:, :pixels] = gather(self._pixels, view).reshape(count, pixels)
        out[:, pixels : pixels + 4] = gather(self._compass, state["direction"])
        if len(self._words):
            out[:, pixels + 4 :] = gather(self._words, state["mission"])

    def _visible_cells(self, view: Array) -> Array:
        """Which cells of a view (K, 49) no wall and no closed door hides, uint8 (K, 49) in {0, 1}."""
        size = self._size
        gather = self.arrays.gather
        # (K, rows), whose bits are the columns: a product of whole numbers below 128, exact in any
        # precision.
        clear = self.arrays.like(gather(self._clear, view) @ self._place, self._base)
        seen = self.xp.empty_like(clear)
        # Light starts at the agent, in the middle of the last row, and goes on row by row.
        beam = 1 << (size // 2 + size)
        for row in range(size - 1, -1, -1):
            lit = clear[:, row] + beam
            seen[:, row] = gather(self._seen, lit)
            beam = gather(self._beam, lit)
        return gather(self._bits, seen).swapaxes(1, 2).reshape(view.shape)

    def _show(self, rows: Array) -> None:
        captions = self._captions
        host = self.arrays.numpy
        sight = host(self._sight) if captions.full else NO_SIGHT
        if len(rows) < self.num_envs or self._steps[0] == 0:
            captions.begin(host(rows), host(self.state["mission"][rows]), sight)
        else:
            # All rows are shown after a step, or after a snapshot, whose texts `restore` writes
            # over these.
            salt = host(self.state["salt"]) if captions.chatter else None
            captions.step(host(self._situation), sight, host(self._steps), salt)
        self.modalities["text"] = captions.text

    def _success(self, terminated: Array) -> Array:
        return self._returns > 0

    def snapshot(self) -> StateDict:
        state = super().snapshot()
        if self._captions is not None:
            state["text"] = self._captions.text.tolist()
        return state

    def restore(self, state: StateDict) -> Array:
        obs = super().restore(state)
        if self._captions is not None and "text" in state:
            self._captions.text[:] = state["text"]
        return obs


class Captions:
    """The captions of N environments, step by step those of `envs.minigrid.captions`; the last in `text`, object (N,).

    What was looked up in the rules (action, cell ahead, hands) leads to an event. A cell has one bit of a sight; a view
    has the bits of its cells, and the lowest bit that is new gets into the caption. Strings come from arrays of
    strings; joined are only those rows where an event meets a sight, a picture is shown, or captions are varied.

    `rules` are the environment's, int (actions * N_CODES * hands, 4): cell ahead, hands, moves, ends; `limit` is an
    episode's number of steps.
    """

    def __init__(self, speech: single.Speech, rules: np.ndarray, missions: list[str], limit: int, n: int) -> None:
        self.text = np.full(n, "", object)
        self.full = speech.captions == "full"
        self.chatter = bool(speech.chatter)
        self.varied = speech.varied
        self._pictures = speech.pictures
        self._events = _events(rules, self.full)
        # Situations from this number on are of the action `done`.
        self._done = single.DONE * N_CODES * HANDS

        # Every event with every thing in words.
        names = [object_name(*thing) for thing in single.THINGS]
        phrases = [event.format(name) for event in single.EVENT_WORDS for name in names]
        self._phrases = np.array(phrases, object)
        self._missions = np.array([f"mission: {mission}" for mission in missions], object)
        # How many moves are left after each step.
        steps = range(limit + 1) if self.varied else []
        self._left = np.array([single.left(limit - step) for step in steps], object)

        # (N_CODES,): the bit of the sight in a cell, 0 for none.
        bits = np.zeros(N_THINGS, np.int64)
        for thing, rank in RANK.items():
            bits[thing] = 1 << rank
        self._bits = bits[THING_OF_CODE]
        # (2, sights): alone, and behind an event.
        sights = ["sees " + object_name(*thing) for thing in single.SEEN]
        self._sights = np.array([sights, [f", {sight}" for sight in sights]], object)
        self._seen = np.zeros(n, np.int64)

    def begin(self, rows: np.ndarray, mission: np.ndarray, view: np.ndarray) -> None:
        """Episodes begin in rows (K,), with missions, int64 (K,), and cells in view, uint8 (K, size * size)."""
        text = self._missions[mission]
        if self.varied:
            text = text + self._left[0]
        self.text[rows] = text
        if self.full:
            self._seen[rows] = self._bits_of(view)

    def step(self, situation: np.ndarray, view: np.ndarray, steps: np.ndarray, salt: np.ndarray | None) -> None:
        """All environments have made a step: the rows looked up in the rules, and more of each, all (N, ...)."""
        text = self._phrases.take(self._events.take(situation))
        if salt is not None:
            rows = (situation >= self._done).nonzero()[0]
            pictures = single.picture(salt[rows], steps[rows], self._pictures)
            text[rows] = [single.chatters(number) for number in pictures.tolist()]
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
        new = new[rows]
        event = text[rows]
        has_event = (event != "").astype(np.int64)
        # The lowest bit that is set has as many bits below it as its place says.
        text[rows] = event + self._sights[has_event, np.bitwise_count((new & -new) - 1)]


def _events(rules: np.ndarray, full: bool) -> np.ndarray:
    """What happens, int16 (actions * N_CODES * hands,): N_THINGS * event + thing, 0 for nothing.

    Bumps and locked doors are events only in `full` captions.
    """
    action, cell, hands = np.unravel_index(np.arange(len(rules)), (len(Actions), N_CODES, HANDS))
    new_cell, new_hands, moved, _ = rules.T.astype(np.int64)
    kind = KIND_OF_CODE[cell]
    # Of what is no door, no state.
    door_state = np.where(kind == DOOR_KIND, STATE_OF_CODE[cell], -1)
    is_locked = door_state == DOOR_LOCKED
    enters = moved > 0
    changes_hands = new_hands != hands
    toggles = action == single.TOGGLE
    toggled = toggles & (new_cell != cell)
    happens = {
        single.EVENT_REACHED: enters & (kind == OBJECT_TO_IDX["goal"]),
        single.EVENT_FELL: enters & (kind == OBJECT_TO_IDX["lava"]),
        single.EVENT_PICKED: (action == Actions.pickup) & changes_hands,
        single.EVENT_DROPPED: (action == Actions.drop) & changes_hands,
        single.EVENT_OPENED: toggled & ((kind == BOX_KIND) | (door_state == DOOR_CLOSED)),
        single.EVENT_CLOSED: toggled & (door_state == 0),
        single.EVENT_UNLOCKED: toggled & is_locked,
        single.EVENT_BUMPED: (action == single.FORWARD) & ~enters & (kind > 1),
        single.EVENT_LOCKED: toggles & ~toggled & is_locked,
    }
    dropped_thing = THING_OF_CODE[CODE_IN_HANDS[hands]]
    thing = np.where(action == Actions.drop, dropped_thing, THING_OF_CODE[cell])
    events = np.zeros(len(rules), np.int16)
    for event, where in happens.items():
        if full or event not in single.MORE:
            events[where] = event * N_THINGS + thing[where]
    return events


def _view_offsets(strides: np.ndarray, size: int) -> np.ndarray:
    """int64 (4, size * size): offsets of the cells in view, whose agent stands in the middle of the last row."""
    # What lies right of a direction is the next direction.
    right = np.roll(strides, -1)[:, None]
    column, row = np.divmod(np.arange(size * size), size)
    forward_steps = size - 1 - row
    right_steps = column - size // 2
    return strides[:, None] * forward_steps + right * right_steps


def _rules(prize_codes: np.ndarray) -> np.ndarray:
    """What an action does, uint8 (actions * N_CODES * HANDS, 4): new cell ahead, new hands, moves, ends.

    Picking up one of the prizes ends the episode well.
    """
    cell, hands = np.ogrid[:N_CODES, :HANDS]
    kind = KIND_OF_CODE[:, None]
    colour = THING_OF_CODE[:, None] % N_COLOURS
    state = STATE_OF_CODE[:, None]
    is_door = kind == DOOR_KIND
    table = np.zeros((len(Actions), N_CODES, HANDS, 4), np.uint8)
    # Views of the table's columns, (actions, N_CODES, HANDS).
    new_cell, new_hands, moves, ends = np.moveaxis(table, -1, 0)
    new_cell[...] = cell
    new_hands[...] = hands

    is_goal = kind == OBJECT_TO_IDX["goal"]
    is_lava = kind == OBJECT_TO_IDX["lava"]
    is_free = np.isin(kind, [OBJECT_TO_IDX[name] for name in ("empty", "floor", "goal", "lava")])
    moves[Actions.forward] = is_free | (is_door & (state == 0))
    ends[Actions.forward] = FAILS * is_lava + SUCCEEDS * is_goal

    picks_up = np.isin(kind, CARRIED_KINDS) & (hands == 0)
    hand_of_code = np.zeros(N_CODES, np.int64)
    hand_of_code[CODE_IN_HANDS] = np.arange(HANDS)
    hands_after = np.where(picks_up, hand_of_code[cell], hands)
    new_cell[Actions.pickup] = np.where(picks_up, EMPTY_CELL_CODE, cell)
    new_hands[Actions.pickup] = hands_after
    ends[Actions.pickup] = SUCCEEDS * np.isin(CODE_IN_HANDS[hands_after], prize_codes)

    drops = (cell == EMPTY_CELL_CODE) & (hands > 0)
    new_cell[Actions.drop] = np.where(drops, CODE_IN_HANDS[hands], cell)
    new_hands[Actions.drop] = np.where(drops, 0, hands)

    # A door has three states in this order: open, closed, locked. It opens if closed, or locked and
    # the key fits.
    opened = cell - state
    has_key = hands == 1 + colour
    door_opens = (state != DOOR_LOCKED) | has_key
    toggled_door = np.where(door_opens, opened, cell)
    toggled_door = np.where(state == 0, opened + 1, toggled_door)
    # A box is replaced by what is in it.
    toggled_other = np.where(kind == BOX_KIND, EMPTY_CELL_CODE, cell)
    toggled_other[BOX_WITH_KEY, 0] = code(KEY_KIND, np.arange(N_COLOURS))
    new_cell[Actions.toggle] = np.where(is_door, toggled_door, toggled_other)
    return table.reshape(-1, 4)


def _spread_light(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How light goes through a row of cells, as `Grid.process_vis` lets it: to the right, then back to the left.

    Returns:
        The bits of the cells seen and of the light for the row ahead, the latter shifted left by `size`, both int64
        (4 ** size,) by (incoming light << size) + transparent cells; and the bits of a number, uint8 (2 ** size, size).
    """
    # All (size, 4 ** size): a row is one cell, for every number.
    number = np.arange(4**size)
    bit = np.arange(size)[:, None]
    clear = (number >> bit) & 1
    light = (number >> size + bit) & 1
    ahead = np.zeros_like(light)
    rightwards = range(size - 1)
    leftwards = range(size - 1, 0, -1)
    for order, side in ((rightwards, 1), (leftwards, -1)):
        for cell in order:
            through = light[cell] & clear[cell]
            light[cell + side] |= through
            ahead[cell] |= through
            ahead[cell + side] |= through
    bits = np.arange(2**size)[:, None] >> np.arange(size) & 1
    return (light << bit).sum(0), (ahead << (bit + size)).sum(0), bits.astype(np.uint8)
