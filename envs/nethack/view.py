"""NetHack's observations: the game's own arrays, and one flat float32 vector made of them, for N games at once.

Observation, (1386,) with the default crop of 9:
    9 * 9 * 16 = 1296   what stands on the cells around the agent, one-hot over `KINDS`; outside the map: dark
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
from envs.observations import WORDS, Recorded, hashed_words

KINDS = (
    *("dark", "wall", "open way", "closed door", "floor", "corridor", "stairs up", "stairs down", "furniture"),
    *("hazard", "monster", "pet", "food", "gold", "object", "boulder"),
)
ROWS, COLUMNS = 21, 79
CELLS = ROWS * COLUMNS
NUMBERS = 27  # of the status line; the next names are places in it
X, Y, SCORE, HP, DEPTH, GOLD = 0, 1, 9, 10, 12, 13
LEVEL, POINTS, TIME, HUNGER, DUNGEON, DUNGEON_LEVEL, CONDITION = 18, 19, 20, 21, 23, 24, 25
LEAKS = (SCORE, DEPTH, POINTS, DUNGEON, DUNGEON_LEVEL)  # what the rewards of the tasks are computed from
_READ = ("glyphs", "blstats", "message", "program_state", "internal")

# The map symbols of NetHack 3.6 in order: (first symbol after the run, kind of the run).
_SYMBOLS = (
    *((1, "dark"), (12, "wall"), (15, "open way"), (17, "closed door")),
    *((19, "wall"), (21, "floor"), (23, "corridor")),  # iron bars and tree are walls
    *((24, "stairs up"), (25, "stairs down"), (26, "stairs up"), (27, "stairs down")),  # the latter two are ladders
    *((32, "furniture"), (33, "hazard"), (34, "floor"), (35, "hazard")),  # then water, ice, lava
    *((37, "open way"), (39, "closed door")),  # a drawbridge, lowered and raised
    *((40, "floor"), (65, "hazard")),  # air; cloud, water, traps
)


class Games:
    """The arrays into which N NLE games write themselves at every step, a row each; nothing else if `narrow`."""

    glyphs: np.ndarray  # int16 (N, 21, 79)
    blstats: np.ndarray  # int64 (N, 27)
    message: np.ndarray  # uint8 (N, 256), zeros from its end on
    program_state: np.ndarray  # int32 (N, ...), as NLE has it; so is the next
    internal: np.ndarray

    def __init__(self, inners: Sequence[Any], narrow: bool = True) -> None:
        from nle import nethack

        self.playing = [inner.nethack._pynethack for inner in inners]
        for key in _READ:
            shape, dtype = nethack.OBSERVATION_DESC[key]["shape"], nethack.OBSERVATION_DESC[key]["dtype"]
            setattr(self, key, np.zeros((len(inners), *shape), dtype))
        nothing = np.zeros(0, np.uint8)
        for row, inner in enumerate(inners):
            others = {} if narrow else inner.nethack._obs_buffers
            buffers = {**others, **{key: getattr(self, key)[row] for key in _READ}}
            inner.nethack._pynethack.set_buffers(**buffers)
            inner.nethack._obs_buffers = buffers
            inner.nethack._obs = tuple(buffers.get(key, nothing) for key in inner._observation_keys)

    def normal(self) -> np.ndarray:
        """Bool (N,): the game is on; before it began and after it ended the status line is empty."""
        return np.array([game.in_normal_game() for game in self.playing])

    def over(self) -> np.ndarray:
        return np.array([game.done() for game in self.playing])

    def text_of(self, row: int) -> bytes:
        raw = self.message[row].tobytes()
        return raw[: raw.index(0)] if raw[0] else b""


@functools.cache
def around(crop: int) -> tuple[np.ndarray, np.ndarray]:
    """For each cell of the map the numbers of those around it, int64 (1659, crop * crop), and 1 for those on it."""
    steps = np.arange(crop) - crop // 2
    y, x = np.divmod(np.arange(CELLS), COLUMNS)
    rows, columns = y[:, None, None] + steps[:, None], x[:, None, None] + steps
    inside = (rows >= 0) & (rows < ROWS) & (columns >= 0) & (columns < COLUMNS)
    cells = np.where(inside, rows * COLUMNS + columns, 0)
    return cells.reshape(CELLS, -1), inside.reshape(CELLS, -1).astype(np.int64)


def neighbours(games: Games, rows: np.ndarray, blstats: np.ndarray, crop: int) -> tuple[np.ndarray, np.ndarray]:
    """The glyphs of the square around the agents of games `rows` (K,), (K, crop * crop), and 1 for those on the map."""
    cells, inside = around(crop)
    place = blstats[:, Y] * COLUMNS
    place += blstats[:, X]
    at = cells.take(place, 0)
    at += (rows * CELLS)[:, None]
    return games.glyphs.reshape(-1).take(at), inside.take(place, 0)


class View:
    """The encoder of a game's observation; `crop` is the side of the square of cells, odd, from 3 to 21.

    `message`, `leak`: whether the words of the message, and the numbers `LEAKS`, which are zero else, are observed.
    """

    def __init__(self, crop: int = 9, message: bool = True, leak: bool = True) -> None:
        if crop not in range(3, 22, 2):
            raise ValueError(f"crop={crop} is out of range; give an odd number of cells from 3 to 21")
        self.crop, self.message = crop, message
        self._kind = glyph_kinds()
        self._scale = np.full(NUMBERS, 0.1)
        self._scale[[] if leak else list(LEAKS)] = 0.0
        self._size = np.array([COLUMNS, ROWS], np.float64)
        cells = crop * crop * len(KINDS)
        status = slice(cells, cells + NUMBERS - 1)
        self.length = status.stop + (WORDS if message else 0)  # of an observation
        self.parts = {"cells": slice(0, cells), "status": status, "words": slice(status.stop, self.length)}
        self._begin = np.zeros((0, crop * crop), np.int64)  # where the first kind of each cell is in N observations

    def space(self) -> spaces.Box:
        """Of one observation; its `parts` name slices, for networks that treat them differently."""
        low, high = np.zeros(self.length, np.float32), np.ones(self.length, np.float32)
        status = slice(self.parts["status"].start + 2, self.parts["status"].stop)
        low[status], high[status] = -5.0, 5.0  # log(1 + 2**63) / 10 is 4.4
        space: Any = spaces.Box(low, high, dtype=np.float32)
        space.parts, space.shape_of_cells = dict(self.parts), (self.crop, self.crop, len(KINDS))
        return space

    def write(self, games: Games, rows: np.ndarray, out: np.ndarray) -> None:
        """Write the observations of some games, int (K,), into `out`, float32 (K, length), in one piece."""
        blstats = games.blstats[rows]
        glyphs, inside = neighbours(games, rows, blstats, self.crop)
        hot = self._kind.take(glyphs)
        hot *= inside  # 0 is dark
        if len(rows) > len(self._begin):
            first = np.arange(0, len(rows) * self.length, self.length)[:, None]
            self._begin = first + np.arange(self.crop * self.crop) * len(KINDS)
        hot += self._begin[: len(rows)]
        out.fill(0.0)
        out.reshape(-1)[hot] = 1.0
        squashed = np.log1p(np.abs(blstats))
        squashed *= np.sign(blstats)
        squashed *= self._scale
        status = out[:, self.parts["status"]]
        status[:, :TIME] = squashed[:, :TIME]
        status[:, TIME:] = squashed[:, TIME + 1 :]
        status[:, :2] = blstats[:, :2] / self._size
        if self.message:
            words = out[:, self.parts["words"]]
            for k, row in enumerate(rows.tolist()):
                if text := games.text_of(row):
                    words[k] = hashed_words(text)


class GameObservation(Recorded, gym.ObservationWrapper):
    """NLE's glyphs, status and message by a `View`; `leak`: True with NLE's ids unless given; `status`: caption it."""

    def __init__(
        self, env: gym.Env, crop: int = 9, message: bool = True, leak: bool | None = None, status: bool = False
    ) -> None:
        super().__init__(env, crop=crop, message=message, leak=leak, status=status)
        inner = simulator(env)
        ours = env.spec is not None and env.spec.namespace == "lodestar"
        minihack = type(inner).__module__.startswith("minihack.")  # its rewards read the screen
        self.view = View(crop, message, not ours if leak is None else leak)
        self.status = status
        # Nothing else is read: the game need not write its other arrays, which pictures are drawn from.
        inner.games = self._games = Games([inner], narrow=not minihack and inner.render_mode in (None, "pixel"))
        self._row = np.zeros(1, np.int64)
        self.observation_space = self.view.space()

    def observation(self, observation: Any) -> np.ndarray:
        out = np.empty((1, self.view.length), np.float32)
        self.view.write(self._games, self._row, out)
        return out[0]


@functools.cache
def glyph_kinds() -> np.ndarray:
    """Int64 (MAX_GLYPH + 1,): the index into KINDS of every glyph."""
    from nle import nethack

    kind = {name: number for number, name in enumerate(KINDS)}
    table = np.full(nethack.MAX_GLYPH + 1, kind["dark"])
    runs = {"MON": "monster", "PET": "pet", "INVIS": "monster", "BODY": "food", "RIDDEN": "monster", "OBJ": "object"}
    runs |= {"CMAP": "dark", "EXPLODE": "hazard", "SWALLOW": "monster", "STATUE": "boulder"}
    offsets = {getattr(nethack, f"GLYPH_{run}_OFF"): name for run, name in runs.items()}
    for offset in sorted(offsets):
        table[offset:] = kind[offsets[offset]]
    table[nethack.MAX_GLYPH :] = kind["dark"]  # NO_GLYPH
    special = {nethack.COIN_CLASS: "gold", nethack.FOOD_CLASS: "food", nethack.ROCK_CLASS: "boulder"}
    for glyph in range(nethack.GLYPH_OBJ_OFF, nethack.GLYPH_CMAP_OFF):
        table[glyph] = kind[special.get(ord(nethack.objclass(nethack.glyph_to_obj(glyph)).oc_class), "object")]
    for last, name in reversed(_SYMBOLS):
        table[nethack.GLYPH_CMAP_OFF : nethack.GLYPH_CMAP_OFF + last] = kind[name]
    return table
