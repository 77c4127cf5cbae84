"""Captions of N MiniGrid environments in a step: those of `envs.minigrid.captions`, by tables, step by step the same.

    events    what was looked up in the rules (action, cell ahead, hands) -> event
    sights    cell -> one bit; a view is the bits of its cells, and the lowest bit that is new gets into the caption

Strings come from arrays of strings; joined are only those rows where an event meets a sight, a picture is shown, or
captions are varied.
"""

from __future__ import annotations

import numpy as np

from envs.batched.minigrid.levels import CODES, COLOURS, DOOR, KEY, LOCKED, STATES
from envs.minigrid import captions as single
from envs.minigrid.captions import KINDS, RANK, called

THINGS = CODES // STATES  # kinds times colours
PICKUP, DROP = 3, 4  # actions


class Captions:
    """The captions of N environments, the last ones in `text`, object (N,) of str.

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
        bits = [1 << RANK[thing] if thing in RANK else 0 for thing in range(THINGS)]
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
    """What happens, int16 (actions * CODES * hands,): THINGS * event + thing, 0 for nothing.

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
        single.PICKED: (action == PICKUP) & (held != hands),
        single.DROPPED: (action == DROP) & (held != hands),
        single.OPENED: toggled & (is_box | ((kind == DOOR) & (state != 0) & (state != LOCKED))),
        single.CLOSED: toggled & (kind == DOOR) & (state == 0),
        single.UNLOCKED: toggled & (kind == DOOR) & (state == LOCKED),
        single.BUMPED: (action == single.FORWARD) & (moved == 0) & (kind > 1),
        single.LOCKED: (action == single.TOGGLE) & ~toggled & (kind == DOOR) & (state == LOCKED),
    }
    thing = np.where(action == DROP, KEY * COLOURS + hands - 1, cell // STATES)
    events = np.zeros(len(rules), np.int16)
    for event, where in happens.items():
        if full or event not in single.MORE:
            events[where] = event * THINGS + thing[where]
    return events
