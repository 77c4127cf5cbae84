"""NetHack's observations: the game's own arrays, and one flat float32 vector made of them, for N games at once.

Observation, (1386,) with the default crop of 9:
    9 * 9 * 16 = 1296   what stands on the cells around the agent, one-hot over `NETHACK_KINDS`; outside the map: dark
                   26   the status line: x / 79 and y / 21, the rest as sign(v) log(1 + |v|) / 10; all of NLE's 27
                        numbers but the turn counter, which would make every moment look new to a novelty bonus
                   64   the message's words, hashed

When it fails: more is needed than the crop shows, such as the inventory or a far monster.
"""

import functools
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envs.family import simulator
from envs.observations import WORD_FEATURES, Recorded, hashed_words

NETHACK_KINDS = (
    "dark",
    "wall",
    "open way",
    "closed door",
    "floor",
    "corridor",
    "stairs up",
    "stairs down",
    "furniture",
    "hazard",
    "monster",
    "pet",
    "food",
    "gold",
    "object",
    "boulder",
)
# The size of the map, in cells.
MAP_ROWS = 21
MAP_COLUMNS = 79
MAP_CELLS = MAP_ROWS * MAP_COLUMNS
# How many numbers the status line has; the next names are columns of it.
NUMBERS = 27
STAT_X = 0
STAT_Y = 1
STAT_SCORE = 9
STAT_HP = 10
STAT_DEPTH = 12
STAT_GOLD = 13
STAT_LEVEL = 18
STAT_POINTS = 19
STAT_TIME = 20
STAT_HUNGER = 21
STAT_DUNGEON = 23
STAT_DUNGEON_LEVEL = 24
STAT_CONDITION = 25
# The rewards of the tasks are computed from these.
LEAKS = (STAT_SCORE, STAT_DEPTH, STAT_POINTS, STAT_DUNGEON, STAT_DUNGEON_LEVEL)
_ARRAY_NAMES = ("glyphs", "blstats", "message", "program_state", "internal")

# The map symbols of NetHack 3.6 in order: first symbol after a run -> kind of the run.
_SYMBOL_RUNS = {
    1: "dark",
    12: "wall",
    15: "open way",
    17: "closed door",
    # Iron bars and trees are walls.
    19: "wall",
    21: "floor",
    23: "corridor",
    # The latter two are ladders.
    24: "stairs up",
    25: "stairs down",
    26: "stairs up",
    27: "stairs down",
    # Furniture, then water, ice and lava.
    32: "furniture",
    33: "hazard",
    34: "floor",
    35: "hazard",
    # A drawbridge, lowered and raised.
    37: "open way",
    39: "closed door",
    # Air; then cloud, water and traps.
    40: "floor",
    65: "hazard",
}


class Games:
    """The arrays into which N NLE games write themselves at every step, a row each; nothing else if `narrow`."""

    # int16 (N, 21, 79)
    glyphs: np.ndarray
    # int64 (N, 27)
    blstats: np.ndarray
    # uint8 (N, 256), zeros from the end of the text on
    message: np.ndarray
    # int32 (N, ...) as NLE has them
    program_state: np.ndarray
    internal: np.ndarray

    def __init__(self, inners: Sequence[Any], narrow: bool = True) -> None:
        from nle import nethack

        self.playing = [inner.nethack._pynethack for inner in inners]
        for name in _ARRAY_NAMES:
            form = nethack.OBSERVATION_DESC[name]
            setattr(self, name, np.zeros((len(inners), *form["shape"]), form["dtype"]))
        unused = np.zeros(0, np.uint8)
        for row, inner in enumerate(inners):
            buffers: dict[str, np.ndarray] = {}
            if not narrow:
                buffers.update(inner.nethack._obs_buffers)
            for name in _ARRAY_NAMES:
                buffers[name] = getattr(self, name)[row]
            inner.nethack._pynethack.set_buffers(**buffers)
            inner.nethack._obs_buffers = buffers
            inner.nethack._obs = tuple(buffers.get(key, unused) for key in inner._observation_keys)

    def normal(self) -> np.ndarray:
        """Bool (N,): the game is on; before it began and after it ended the status line is empty."""
        return np.array([game.in_normal_game() for game in self.playing])

    def are_over(self) -> np.ndarray:
        return np.array([game.done() for game in self.playing])

    def text_of(self, row: int) -> bytes:
        return self.message[row].tobytes().partition(b"\0")[0]


@functools.cache
def cells_around(crop: int) -> tuple[np.ndarray, np.ndarray]:
    """For each cell of the map the numbers of those around it, int64 (1659, crop * crop), and 1 for those on it."""
    steps = np.arange(crop) - crop // 2
    y, x = np.divmod(np.arange(MAP_CELLS), MAP_COLUMNS)
    # Axes: cell of the map, row of the square, column of the square.
    rows = y[:, None, None] + steps[:, None]
    columns = x[:, None, None] + steps
    inside = (rows >= 0) & (rows < MAP_ROWS) & (columns >= 0) & (columns < MAP_COLUMNS)
    cells = np.where(inside, rows * MAP_COLUMNS + columns, 0)
    return cells.reshape(MAP_CELLS, -1), inside.reshape(MAP_CELLS, -1).astype(np.int64)


def neighbours(games: Games, rows: np.ndarray, blstats: np.ndarray, crop: int) -> tuple[np.ndarray, np.ndarray]:
    """The glyphs of the square around the agents of games `rows` (K,), (K, crop * crop), and 1 for those on the map."""
    cells, inside = cells_around(crop)
    place = blstats[:, STAT_Y] * MAP_COLUMNS
    place += blstats[:, STAT_X]
    # Indices into the maps of all games, one after the other.
    map_index = cells.take(place, 0)
    map_index += (rows * MAP_CELLS)[:, None]
    return games.glyphs.reshape(-1).take(map_index), inside.take(place, 0)


class View:
    """The encoder of a game's observation; `crop` is the side of the square of cells, odd, from 3 to 21.

    `message`, `leak`: whether the words of the message, and the numbers `LEAKS`, which are zero else, are observed.
    """

    def __init__(self, crop: int = 9, message: bool = True, leak: bool = True) -> None:
        if crop not in range(3, 22, 2):
            raise ValueError(f"crop={crop} is out of range; give an odd number of cells from 3 to 21")
        self.crop = crop
        self.message = message
        self._kind = glyph_kinds()
        self._scale = np.full(NUMBERS, 0.1)
        if not leak:
            self._scale[list(LEAKS)] = 0.0
        self._size = np.array([MAP_COLUMNS, MAP_ROWS], np.float64)
        cells_end = crop * crop * len(NETHACK_KINDS)
        status_end = cells_end + NUMBERS - 1
        # The length of an observation.
        self.length = status_end
        if message:
            self.length += WORD_FEATURES
        self.parts = {
            "cells": slice(0, cells_end),
            "status": slice(cells_end, status_end),
            "words": slice(status_end, self.length),
        }
        # Where the first kind of each cell stands in the observations of N games.
        self._first_kind = np.zeros((0, crop * crop), np.int64)

    def space(self) -> spaces.Box:
        """Of one observation; its `parts` name slices, for networks that treat them differently."""
        low = np.zeros(self.length, np.float32)
        high = np.ones(self.length, np.float32)
        # After x and y come logarithms; the largest, log(1 + 2**63) / 10, is 4.4.
        logarithms = slice(self.parts["status"].start + 2, self.parts["status"].stop)
        low[logarithms] = -5.0
        high[logarithms] = 5.0
        space: Any = spaces.Box(low, high, dtype=np.float32)
        space.parts = dict(self.parts)
        space.shape_of_cells = (self.crop, self.crop, len(NETHACK_KINDS))
        return space

    def write(self, games: Games, rows: np.ndarray, out: np.ndarray) -> None:
        """Write the observations of some games, int (K,), into `out`, float32 (K, length), in one piece."""
        # Every step of every game passes here: arrays are changed in place, as new ones cost more.
        blstats = games.blstats[rows]
        glyphs, inside = neighbours(games, rows, blstats, self.crop)
        hot = self._kind.take(glyphs)
        # Kind 0 is dark.
        hot *= inside
        if len(rows) > len(self._first_kind):
            observation_starts = np.arange(0, len(rows) * self.length, self.length)
            cell_starts = np.arange(self.crop * self.crop) * len(NETHACK_KINDS)
            self._first_kind = observation_starts[:, None] + cell_starts
        hot += self._first_kind[: len(rows)]
        out.fill(0.0)
        out.reshape(-1)[hot] = 1.0
        # sign(v) log(1 + |v|) / 10, for all numbers but the turn counter.
        squashed = np.log1p(np.abs(blstats))
        squashed *= np.sign(blstats)
        squashed *= self._scale
        status = out[:, self.parts["status"]]
        status[:, :STAT_TIME] = squashed[:, :STAT_TIME]
        status[:, STAT_TIME:] = squashed[:, STAT_TIME + 1 :]
        status[:, :2] = blstats[:, :2] / self._size
        if self.message:
            words = out[:, self.parts["words"]]
            for k, row in enumerate(rows.tolist()):
                text = games.text_of(row)
                if text:
                    words[k] = hashed_words(text)


class GameObservation(Recorded, gym.ObservationWrapper):
    """NLE's glyphs, status and message by a `View`; `leak`: True with NLE's ids unless given; `status`: caption it."""

    def __init__(
        self,
        env: gym.Env,
        crop: int = 9,
        message: bool = True,
        leak: bool | None = None,
        status: bool = False,
    ) -> None:
        super().__init__(env, crop=crop, message=message, leak=leak, status=status)
        inner = simulator(env)
        if leak is None:
            leak = env.spec is None or env.spec.namespace != "lodestar"
        self.view = View(crop, message, leak)
        self.status = status
        # Nothing but the arrays of `Games` is read, so the game need not write the others; only
        # pictures are drawn from those, and MiniHack's rewards read the screen.
        is_minihack = type(inner).__module__.startswith("minihack.")
        narrow = not is_minihack and inner.render_mode in (None, "pixel")
        self._games = Games([inner], narrow=narrow)
        inner.games = self._games
        self._row = np.zeros(1, np.int64)
        self.observation_space = self.view.space()

    def observation(self, observation: Any) -> np.ndarray:
        out = np.empty((1, self.view.length), np.float32)
        self.view.write(self._games, self._row, out)
        return out[0]


@functools.cache
def glyph_kinds() -> np.ndarray:
    """Int64 (MAX_GLYPH + 1,): the index into NETHACK_KINDS of every glyph."""
    from nle import nethack

    number = {name: k for k, name in enumerate(NETHACK_KINDS)}
    table = np.full(nethack.MAX_GLYPH + 1, number["dark"])

    # NetHack numbers its glyphs in runs, each with the offset at which it begins.
    runs = {
        nethack.GLYPH_MON_OFF: "monster",
        nethack.GLYPH_INVIS_OFF: "monster",
        nethack.GLYPH_RIDDEN_OFF: "monster",
        nethack.GLYPH_SWALLOW_OFF: "monster",
        nethack.GLYPH_PET_OFF: "pet",
        nethack.GLYPH_BODY_OFF: "food",
        nethack.GLYPH_OBJ_OFF: "object",
        nethack.GLYPH_CMAP_OFF: "dark",
        nethack.GLYPH_EXPLODE_OFF: "hazard",
        nethack.GLYPH_STATUE_OFF: "boulder",
    }
    for offset, name in sorted(runs.items()):
        table[offset:] = number[name]
    # The last entry is NO_GLYPH.
    table[nethack.MAX_GLYPH :] = number["dark"]

    classes = {
        nethack.COIN_CLASS: "gold",
        nethack.FOOD_CLASS: "food",
        nethack.ROCK_CLASS: "boulder",
    }
    for glyph in range(nethack.GLYPH_OBJ_OFF, nethack.GLYPH_CMAP_OFF):
        object_class = nethack.objclass(nethack.glyph_to_obj(glyph)).oc_class
        table[glyph] = number[classes.get(ord(object_class), "object")]

    # From the last run to the first, so that each overwrites the part before its own end.
    first_symbol = nethack.GLYPH_CMAP_OFF
    for end, name in reversed(_SYMBOL_RUNS.items()):
        table[first_symbol : first_symbol + end] = number[name]
    return table
