"""Finds the stairs of a NetHack level by what is seen: to the nearest cell beside the dark, then down."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from envs.nethack.tasks import ACTIONS
from envs.nethack.view import NETHACK_KINDS, STAT_X, STAT_Y, glyph_kinds

# In the order of NLE's eight compass actions, which follow MORE: (row, column).
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1), (-1, 1), (1, 1), (1, -1), (-1, -1))
DOWN = ACTIONS.index(ord(">"))
_KIND = {name: number for number, name in enumerate(NETHACK_KINDS)}
_WALKED = ("open way", "floor", "corridor", "stairs up", "stairs down", "food", "gold", "object", "furniture", "pet")
_DOORS = ("open way", "closed door")


def _next_move(kinds: np.ndarray, here: tuple, goals: set, shut: set) -> int | None:
    """The first move of a shortest way to one of the goals; doors are not passed diagonally."""
    free = np.isin(kinds, [_KIND[name] for name in (*_WALKED, "closed door")])
    door = np.isin(kinds, [_KIND[name] for name in _DOORS])
    came: dict[tuple, tuple | None] = {here: None}
    queue = deque([here])
    while queue:
        cell = queue.popleft()
        if cell in goals and cell != here:
            while came[cell] != here:
                cell = came[cell]
            return MOVES.index((cell[0] - here[0], cell[1] - here[1]))
        for dy, dx in MOVES:
            to = (cell[0] + dy, cell[1] + dx)
            if to in came or not (0 <= to[0] < 21 and 0 <= to[1] < 79) or not free[to] or (cell, to) in shut:
                continue
            if not (dy and dx and (door[cell] or door[to])):
                came[to] = cell
                queue.append(to)
    return None


def way_down(env: Any, limit: int = 300) -> tuple[list[int], list[tuple]]:
    """Play until the agent has pressed DOWN on stairs; returns the actions, and (reward, terminated) of each step."""
    games, actions, results = env.unwrapped.games, [], []
    seen: set[tuple] = set()
    shut: set[tuple] = set()
    while len(actions) < limit:
        kinds = glyph_kinds()[games.glyphs[0]]
        here = (int(games.blstats[0, STAT_Y]), int(games.blstats[0, STAT_X]))
        seen.add(here)
        if games.internal[0, 4]:
            move = DOWN
        else:
            stairs = {tuple(cell) for cell in np.argwhere(kinds == _KIND["stairs down"]).tolist()}
            dark = np.pad(kinds == 0, 1)
            beside = sum(dark[1 + dy : 22 + dy, 1 + dx : 80 + dx] for dy, dx in MOVES) > 0
            new = {tuple(cell) for cell in np.argwhere((kinds > 1) & beside).tolist()} - seen
            direction = _next_move(kinds, here, stairs, shut)
            direction = _next_move(kinds, here, new, shut) if direction is None else direction
            if direction is None:
                break
            move = 1 + direction
        _, reward, terminated, truncated, _ = env.step(move)
        actions.append(move)
        results.append((reward, terminated))
        if terminated or truncated or move == DOWN:
            break
        if here == (int(games.blstats[0, STAT_Y]), int(games.blstats[0, STAT_X])):
            shut.add((here, (here[0] + MOVES[direction][0], here[1] + MOVES[direction][1])))
    return actions, results
