"""A planner that knows MiniGrid's rules, and a teacher that repeats it with a given accuracy.

It plans backwards from what is wanted: on the cheapest way there, whatever bars it is a subgoal, and a locked door
first asks for its key. What is wanted is read off the grid: the green goal; else, behind locked doors, the box where a
key lies open (UnlockPickup), the ball (KeyCorridor), the blue one of several (ObstructedMaze); else a locked door
(Unlock). Environments whose mission says more than their grid (Fetch, PutNear, most of BabyAI) have no plan.

Source: Ruiz-Gonzalez et al. 2024, "Words as Beacons", arXiv 2410.08632, section 4; `PUBLISHED` is what the authors
measured and ship with their code to simulate a language model.
Differences: doors that cannot be walked round are subgoals too, and so is the key that a box hides; a wrong object is
any other thing of the level, a wrong position any cell that far away.
When it fails: what a box hides cannot be seen, so the nearest box is opened, which may hold another key.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from envs.settings import setting
from rewards.language.teacher import BALL, BOX, DOOR, EMPTY, GOAL, KEY, LAVA, WALL, Level, Row, Teacher

GO, TAKE, OPEN = 1, 2, 3  # kinds of subgoals
BLUE, LOCKED = 2, 2
COST = {KEY: 50, BALL: 50, BOX: 50}  # steps of a detour that are preferred to moving a thing
DOOR_COST = (0, 20, 1000)  # open, closed, locked

# (environment, model) -> accuracy of objects and sentences; accuracy, mean and deviation of the error of positions
PUBLISHED: dict[tuple[str, str], tuple[float, float, float, float]] = {
    ("KeyCorridorS3R3", "llama"): (0.9847, 0.9743, 0.18, 1.20),
    ("KeyCorridorS3R3", "deepseek"): (0.9063, 0.3337, 2.57, 2.54),
    ("KeyCorridorS3R3", "qwen"): (0.9957, 0.9810, 0.07, 0.63),
    ("KeyCorridorS6R3", "llama"): (0.9323, 0.9137, 1.47, 5.02),
    ("KeyCorridorS6R3", "deepseek"): (0.7617, 0.3650, 7.24, 7.47),
    ("KeyCorridorS6R3", "qwen"): (0.9587, 0.8810, 1.34, 4.25),
    ("ObstructedMaze-1Dlh", "llama"): (0.9887, 0.9880, 0.08, 0.82),
    ("ObstructedMaze-1Dlh", "deepseek"): (0.7390, 0.4300, 2.98, 3.41),
    ("ObstructedMaze-1Dlh", "qwen"): (0.7417, 0.6687, 2.18, 3.53),
    ("ObstructedMaze-1Dlhb", "llama"): (0.4858, 0.4485, 4.33, 4.21),
    ("ObstructedMaze-1Dlhb", "deepseek"): (0.5182, 0.2288, 4.49, 3.39),
    ("ObstructedMaze-1Dlhb", "qwen"): (0.4820, 0.4050, 3.85, 3.71),
    ("MultiRoom-N2-S4", "llama"): (0.9295, 0.9210, 0.26, 1.01),
    ("MultiRoom-N2-S4", "deepseek"): (0.2731, 0.3518, 2.91, 2.54),
    ("MultiRoom-N2-S4", "qwen"): (0.5585, 0.7135, 1.12, 2.05),
    ("MultiRoom-N4-S5", "llama"): (0.5480, 0.5397, 3.69, 4.65),
    ("MultiRoom-N4-S5", "deepseek"): (0.1753, 0.1294, 7.92, 4.64),
    ("MultiRoom-N4-S5", "qwen"): (0.3521, 0.3604, 5.23, 4.94),
}


@dataclass(eq=False)
class NoisyPlanner(Teacher):
    """The planner's subgoals, each right with probability `accuracy`; the same level always gets the same plan."""

    form: str = setting(
        "object", "position: a wrong subgoal is a cell some steps off; object or sentence: it is another thing"
    )
    accuracy: float = setting(1.0, "probability that a subgoal is right", low=0, high=1)
    error: tuple[float, float] = setting(
        (3.0, 2.0), "mean and deviation of a wrong position's distance, cells; below 1 counts as 1", low=0
    )
    published: str = setting("", "ENVIRONMENT MODEL, as in KeyCorridorS3R3 llama: accuracy and error from `PUBLISHED`")
    seed: int = setting(0, "of the mistakes")

    name = "simulated"

    def __post_init__(self) -> None:
        if self.published:
            environment, _, model = self.published.partition(" ")
            if (environment, model.lower()) not in PUBLISHED:
                known = ", ".join(map(" ".join, PUBLISHED))
                raise ValueError(f"published={self.published!r} was never measured; give one of {known}")
            objects, positions, mean, deviation = PUBLISHED[environment, model.lower()]
            self.accuracy, self.error = (positions if self.form == "position" else objects), (mean, deviation)
        super().__post_init__()
        if len(self.error) != 2:
            raise ValueError(f"error={self.error} is no mean and standard deviation; give two numbers of cells")

    def ask(self, levels: list[Level]) -> list[list[Row] | None]:
        return [self._spoil(level, solve(level)) for level in levels]

    def _spoil(self, level: Level, rows: list[Row]) -> list[Row]:
        rng = np.random.default_rng([self.seed, int(level.key, 16)])
        spoiled = [row if rng.random() < self.accuracy else self._wrong(level, row, rng) for row in rows]
        return [row for row in spoiled if row is not None]

    def _wrong(self, level: Level, row: Row, rng: np.random.Generator) -> Row | None:
        """Another subgoal than this one; None where the level has no other."""
        things = level.grid[..., 0]
        ys, xs = np.indices(things.shape)
        if self.form == "position":
            distance = max(int(rng.normal(*self.error)), 1)
            able = (np.abs(xs - row[1]) + np.abs(ys - row[2]) == distance) & ~np.isin(things, (WALL, LAVA))
        else:
            able = np.isin(things, (DOOR, KEY, BALL, BOX, GOAL)) & ((xs != row[1]) | (ys != row[2]))
        places = np.argwhere(able)
        if len(places) == 0:
            return None
        y, x = map(int, places[rng.integers(len(places))])
        thing, colour, state = map(int, level.grid[y, x])
        kind = OPEN if thing == DOOR else TAKE if thing in COST else GO
        return kind, x, y, thing, colour, state

    def notes(self) -> list[str]:
        return [
            f"subgoals come from a planner that is right {self.accuracy:.0%} of the time, not from a language model"
        ]


def solve(level: Level) -> list[Row]:
    """The subgoals that lead to what is wanted; empty where that is unknown or out of reach."""
    planner = _Planner(level)
    try:
        if target := planner.prize():
            planner.reach(*target)
    except _NoWayError:
        return []
    return planner.rows


class _NoWayError(Exception):
    pass


class _Planner:
    def __init__(self, level: Level) -> None:
        self.grid = level.grid.copy()
        self.at = (level.x, level.y)
        self.held: set[int] = set()  # colours of the keys picked up so far
        self.sought: set[int] = set()  # colours of the keys looked for so far
        self.rows: list[Row] = []

    def prize(self) -> tuple[int, int, int] | None:
        """What is wanted: x, y and what to do there."""
        goals, balls, boxes, keys = (self._all(thing) for thing in (GOAL, BALL, BOX, KEY))
        locked = [cell for cell in self._all(DOOR) if self._is_locked(*cell)]
        if goals:
            return *goals[0], GO
        if locked and boxes and keys:
            return *boxes[0], TAKE
        if locked and balls:
            blue = [(x, y) for x, y in balls if self.grid[y, x, 1] == BLUE]
            return (*blue[0], TAKE) if blue else (*balls[0], TAKE) if len(balls) == 1 else None
        return (*locked[0], OPEN) if locked else None

    def reach(self, x: int, y: int, kind: int) -> None:
        """Append the subgoals up to this one, and change the grid as if they were met."""
        if self._is_locked(x, y):
            self._fetch(int(self.grid[y, x, 1]))
        while (bar := next((cell for cell in self._path((x, y))[:-1] if self._bars(*cell)), None)) is not None:
            thing = self.grid[bar[1], bar[0], 0]
            if thing != DOOR:
                self.reach(*bar, TAKE)
            elif self._is_locked(*bar) or not self._has_way((x, y), without=bar):
                self.reach(*bar, OPEN)
            else:
                self.grid[bar[1], bar[0], 2] = 0  # one way of several: no subgoal
        thing, colour, state = map(int, self.grid[y, x])
        self.rows.append((kind, x, y, thing, colour, state))
        if thing == DOOR:
            self.grid[y, x, 2] = 0
        elif thing in COST:
            self.grid[y, x] = (EMPTY, 0, 0)
        if thing == KEY:
            self.held.add(colour)
        self.at = (x, y)

    def _fetch(self, colour: int) -> None:
        """Pick up the key of this colour, out of the nearest box if none lies open."""
        if colour in self.held:
            return
        if colour in self.sought:
            raise _NoWayError
        self.sought.add(colour)
        keys = [(x, y) for x, y in self._all(KEY) if self.grid[y, x, 1] == colour]
        if not keys:
            boxes = [cell for cell in self._all(BOX) if self._has_way(cell)]
            if not boxes:
                raise _NoWayError
            box = min(boxes, key=lambda cell: len(self._path(cell)))
            self.reach(*box, OPEN)
            self.grid[box[1], box[0]] = (KEY, colour, 0)
            keys = [box]
        self.reach(*keys[0], TAKE)

    def _all(self, thing: int) -> list[tuple[int, int]]:
        return [(int(x), int(y)) for y, x in np.argwhere(self.grid[..., 0] == thing)]

    def _is_locked(self, x: int, y: int) -> bool:
        return bool(self.grid[y, x, 0] == DOOR and self.grid[y, x, 2] == LOCKED)

    def _bars(self, x: int, y: int) -> bool:
        thing, _, state = self.grid[y, x]
        return bool(thing in COST or (thing == DOOR and state > 0))

    def _has_way(self, target: tuple[int, int], without: tuple[int, int] | None = None) -> bool:
        try:
            self._path(target, without)
        except _NoWayError:
            return False
        return True

    def _path(self, target: tuple[int, int], without: tuple[int, int] | None = None) -> list[tuple[int, int]]:
        """The cells of the cheapest way from where the agent is to `target`, both included; Dijkstra's."""
        height, width = self.grid.shape[:2]
        came: dict[tuple[int, int], tuple[int, int]] = {}
        queue = [(0, self.at, self.at)]
        while queue:
            spent, cell, before = heapq.heappop(queue)
            if cell in came:
                continue
            came[cell] = before
            if cell == target:
                path = [cell]
                while path[-1] != self.at:
                    path.append(came[path[-1]])
                return path[::-1]
            for x, y in ((cell[0] + dx, cell[1] + dy) for dx, dy in ((1, 0), (0, 1), (-1, 0), (0, -1))):
                if 0 <= x < width and 0 <= y < height and (x, y) not in came and (x, y) != without:
                    thing, _, state = map(int, self.grid[y, x])
                    if thing not in (WALL, LAVA):
                        detour = DOOR_COST[state] if thing == DOOR else COST.get(thing, 0)
                        heapq.heappush(queue, (spent + 1 + detour, (x, y), cell))
        raise _NoWayError
