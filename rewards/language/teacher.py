"""Teachers: plans of subgoals for a level of MiniGrid.

    level       the grid at an episode's beginning, from the signals of `envs.minigrid.family`
    plan        int16 (K, 6): rows (kind, x, y, object, colour, state), in order; zeros behind the last

    simulated   a planner that knows the rules, seen through a measured accuracy
    recorded    plans from a file: of another run's model, or written by a person
    openai      any server with OpenAI's chat completions, asked once a level, its answers kept in such a file

Source: Ruiz-Gonzalez et al. 2024, "Words as Beacons", arXiv 2410.08632, section 4.
Differences: a plan belongs to a level, found by a hash of its grid, where the source looks it up by the environment's
seed. The planner plans backwards from what is wanted: on the cheapest way there, whatever bars it is a subgoal, and a
locked door first asks for its key. What is wanted is read off the grid: the green goal; else, behind locked doors, the
box where a key lies open (UnlockPickup), the ball (KeyCorridor), the blue one of several (ObstructedMaze); else a
locked door (Unlock). Environments whose mission says more than their grid (Fetch, PutNear, most of BabyAI) have no
plan. Doors that cannot be walked round are subgoals too, and so is the key that a box hides; a wrong object is any
other thing of the level, a wrong position any cell that far away.
When it fails: the nearest box, opened for a hidden key, may hold another; at a level never met before all environments
wait for the server, which is not asked for a minute after three failures in a row.
"""

import hashlib
import heapq
import itertools
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from envs.minigrid.family import HEAD
from lodestar.settings import setting
from rewards.llm.client import JudgeError, ModelJudge, PausedError, answer_form
from rewards.llm.judges.base import Judge
from rewards.llm.judges.prompts import sections
from rewards.llm.store import read_rows

KINDS = ("", "go to", "pick up", "open")  # "" is no subgoal
OBJECTS = ("unseen", "empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava", "agent")
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
STATES = ("open", "closed", "locked")
EMPTY, WALL, DOOR, KEY, BALL, BOX, GOAL, LAVA = 1, 2, 4, 5, 6, 7, 8, 9
WIDTH = 6  # numbers of a subgoal
CACHE = 4096  # levels whose plan is kept at hand
GO, TAKE, OPEN = 1, 2, 3  # kinds of subgoals
BLUE, LOCKED = 2, 2
COST = {KEY: 50, BALL: 50, BOX: 50}  # steps of a detour that are preferred to moving a thing
DOOR_COST = (0, 20, 1000)  # open, closed, locked
MODELS = ("llama", "deepseek", "qwen")
# as measured, of each model: accuracy of objects and sentences; accuracy, mean and deviation of the error of positions
PUBLISHED: dict[str, tuple[tuple[float, float, float, float], ...]] = {
    "KeyCorridorS3R3": ((0.9847, 0.9743, 0.18, 1.20), (0.9063, 0.3337, 2.57, 2.54), (0.9957, 0.9810, 0.07, 0.63)),
    "KeyCorridorS6R3": ((0.9323, 0.9137, 1.47, 5.02), (0.7617, 0.3650, 7.24, 7.47), (0.9587, 0.8810, 1.34, 4.25)),
    "ObstructedMaze-1Dlh": ((0.9887, 0.9880, 0.08, 0.82), (0.7390, 0.4300, 2.98, 3.41), (0.7417, 0.6687, 2.18, 3.53)),
    "ObstructedMaze-1Dlhb": ((0.4858, 0.4485, 4.33, 4.21), (0.5182, 0.2288, 4.49, 3.39), (0.4820, 0.4050, 3.85, 3.71)),
    "MultiRoom-N2-S4": ((0.9295, 0.9210, 0.26, 1.01), (0.2731, 0.3518, 2.91, 2.54), (0.5585, 0.7135, 1.12, 2.05)),
    "MultiRoom-N4-S5": ((0.5480, 0.5397, 3.69, 4.65), (0.1753, 0.1294, 7.92, 4.64), (0.3521, 0.3604, 5.23, 4.94)),
}

Row = tuple[int, int, int, int, int, int]  # kind, x, y, object, colour, state


class Level(NamedTuple):
    """How an episode begins."""

    grid: np.ndarray  # int (H, W, 3): object, colour, state of each cell, as MiniGrid encodes them
    x: int  # the agent's cell
    y: int
    key: str  # 16 hexadecimal digits; equal levels, equal keys


def level_of(signals: np.ndarray) -> Level | None:
    """The level that signals (K,) describe; None where they are not those of a MiniGrid."""
    head = len(HEAD)
    if len(signals) <= head or not np.isfinite(signals).all():
        return None
    numbers = np.rint(signals).astype(np.int64)
    width, cells = int(numbers[5]), len(numbers) - head
    if width < 1 or cells % (3 * width):
        return None
    digest = hashlib.sha256(numbers.astype("<i2").tobytes()).hexdigest()[:16]
    return Level(numbers[head:].reshape(-1, width, 3), int(numbers[0]), int(numbers[1]), digest)


class Teacher(Judge):
    """Plans for levels; the latest are cached."""

    @cached_property
    def _known(self) -> dict[str, np.ndarray]:
        return {}

    @abstractmethod
    def ask(self, levels: list[Level]) -> list[list[Row] | None]:
        """A plan for each level; an empty one where the teacher knows none, None where it failed to answer."""

    def plans(self, signals: np.ndarray, most: int) -> np.ndarray:
        """Plans for episodes that begin with signals (N, K): int16 (N, most, 6). What makes no sense is left out."""
        levels = [level_of(row) for row in signals]
        new = {level.key: level for level in levels if level is not None and level.key not in self._known}
        answers = np.zeros((len(levels), most, WIDTH), np.int16)
        for level, rows in zip(new.values(), self.ask(list(new.values())) if new else []):
            if rows is not None:
                self._known[level.key] = np.array(sensible(level, rows)[:most], np.int16).reshape(-1, WIDTH)
        for answer, known in zip(answers, levels):
            if known is not None and known.key in self._known:
                plan = self._known[known.key]
                answer[: len(plan)] = plan
        for key in list(self._known)[: max(len(self._known) - CACHE, 0)]:
            del self._known[key]
        return answers


def sensible(level: Level, rows: Sequence[Row]) -> list[Row]:
    """The subgoals that the agent could ever come to: inside the grid, no wall, not walled in."""
    from scipy.ndimage import label

    height, width = level.grid.shape[:2]
    rooms = label(~np.isin(level.grid[..., 0], (WALL, LAVA)))[0]  # the number of what is connected, 0 for what is shut
    own = rooms[level.y, level.x] if 0 <= level.x < width and 0 <= level.y < height else 0
    inside = [row for row in rows if 0 <= row[1] < width and 0 <= row[2] < height]
    return [row for row in inside if rooms[row[2], row[1]] == own > 0]


def sentence(kind: int, thing: int, colour: int) -> str:
    """A subgoal in words: `pick up the yellow key`; "" for none."""
    if not kind:
        return ""
    name = OBJECTS[thing] if thing not in (EMPTY, 3) else "floor"
    return f"{KINDS[kind]} the {COLOURS[colour]} {name}" if name != "floor" else f"{KINDS[kind]} the place"


@dataclass(eq=False)
class RecordedPlans(Teacher):
    """Plans from a file, one a line, the last about a level counts; ValueError if there is no such file, or for a line:

    {"level": key, "plan": [{"do": "pick up", "x": 3, "y": 1, "thing": "yellow key"}]}    `thing` may be left out
    """

    file: str = setting(help="the file with the plans: JSON lines, or what a model's teacher kept")

    name = "recorded"

    def __post_init__(self) -> None:
        if not Path(self.file).is_file():
            raise ValueError(f"file={self.file!r} does not exist; give the file with the plans")
        example = '{"level": "0123456789abcdef", "plan": [{"do": "pick up", "x": 3, "y": 1}]}'
        self.table = dict(read_rows(self.file, _plan, f"no plan; write one as {example}", torn=False))

    def ask(self, levels: list[Level]) -> list[list[Row] | None]:
        return [_rows(level, self.table.get(level.key, [])) for level in levels]

    def notes(self) -> list[str]:
        return [f"subgoals are those recorded for {len(self.table):,} levels in {self.file}; others have none"]


@dataclass(eq=False)
class ModelTeacher(ModelJudge, Teacher):
    """A language model on a server reads the level in words and answers with a plan."""

    attempts: int = 2
    failures: int = 3

    name = "openai"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.table: dict[str, list[dict[str, Any]]] = {}
        self.asked = self.failed = 0
        self._identity = f"teacher {self.model}"

    def ask(self, levels: list[Level]) -> list[list[Row] | None]:
        new = {level.key: level for level in levels if level.key not in self.table}
        kept, asked = self.ask_kept(new, self._one, lambda words: _plan({"text": "", "raw": words})[1])
        for key, answer in (kept | asked).items():
            if not isinstance(answer, JudgeError):
                self.table[key] = answer
            elif not isinstance(answer, PausedError):
                self.failed += 1
        return [_rows(level, self.table[level.key]) if level.key in self.table else None for level in levels]

    def _one(self, level: Level) -> str:
        self.asked += 1
        steps = self.chat.ask([question(level)], schema=_SCHEMA)["subgoals"]
        return json.dumps([{name: step[name] for name in ("do", "x", "y", "thing")} for step in steps])

    def metrics(self) -> dict[str, float]:
        return {"teacher_asked": float(self.asked), "teacher_failed": float(self.failed)}

    def notes(self) -> list[str]:
        return [f"subgoals come from {self.model} at {self.url}, asked once a level while training waits"]


_PLACE: dict[str, Any] = {"type": "integer"}
_DO = {"type": "string", "enum": list(KINDS[1:])}
_STEP = answer_form(do=_DO, thing={"type": "string"}, x=_PLACE, y=_PLACE)
_SCHEMA = answer_form(subgoals={"type": "array", "items": _STEP})


def question(level: Level) -> str:
    """The level in words, and what is asked about it; what never changes comes first."""
    height, width = level.grid.shape[:2]
    things = []
    for y, x in np.ndindex(height, width):
        thing, colour, state = map(int, level.grid[y, x])
        if thing not in (EMPTY, WALL):
            door = f"{STATES[state]} " if thing == DOOR else ""
            things.append(f"({x}, {y}): {door}{COLOURS[colour]} {OBJECTS[thing]}")
    rows = ["".join("#" if thing == WALL else "." for thing in row) for row in level.grid[..., 0]]
    return sections("levels")["plan"].format(
        width=width, height=height, rows="\n".join(rows), x=level.x, y=level.y, things="; ".join(things) or "none"
    )


def _rows(level: Level, plan: list[dict[str, Any]]) -> list[Row]:
    """A plan as rows; steps outside the grid, or that name a thing which is not there, are left out."""
    height, width = level.grid.shape[:2]
    rows: list[Row] = []
    for step in plan:
        x, y = step["x"], step["y"]
        if not (0 <= x < width and 0 <= y < height):
            continue
        thing, colour, state = map(int, level.grid[y, x])
        words = str(step.get("thing") or "").lower().split()
        named = next((OBJECTS.index(word) for word in words if word in OBJECTS), thing)
        if named == KEY and thing == BOX:  # the key that the box hides
            thing, state = KEY, 0
            colour = next((COLOURS.index(word) for word in words if word in COLOURS), colour)
        if named == thing:
            rows.append((KINDS.index(step["do"]), x, y, thing, colour, state))
    return rows


def _plan(row: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    level, plan = (row["level"], row["plan"]) if "level" in row else (row["text"], json.loads(row["raw"]))
    for step in plan:
        if step["do"] not in KINDS[1:] or not all(type(step[name]) is int for name in ("x", "y")):
            raise ValueError(f"the subgoal {step}")
    return str(level), plan


@dataclass(eq=False)
class NoisyPlanner(Teacher):
    """The planner's subgoals, each right with probability `accuracy`; the same level always gets the same plan."""

    form: str = setting("object", "position: a wrong one is a cell some steps off; object or sentence: another thing")
    accuracy: float = setting(1.0, "probability that a subgoal is right", low=0, high=1)
    error: tuple[float, float] = setting((3.0, 2.0), "mean and deviation of a wrong position's distance, cells", low=0)
    published: str = setting("", "ENVIRONMENT MODEL, as in KeyCorridorS3R3 llama: accuracy and error from `PUBLISHED`")
    seed: int = setting(0, "of the mistakes")

    name = "simulated"

    def __post_init__(self) -> None:
        if self.published:
            environment, _, model = self.published.partition(" ")
            if environment not in PUBLISHED or model.lower() not in MODELS:
                known = ", ".join(map(" ".join, itertools.product(PUBLISHED, MODELS)))
                raise ValueError(f"published={self.published!r} was never measured; give one of {known}")
            objects, positions, mean, deviation = PUBLISHED[environment][MODELS.index(model.lower())]
            self.accuracy, self.error = (positions if self.form == "position" else objects), (mean, deviation)
        super().__post_init__()
        if len(self.error) != 2:
            raise ValueError(f"error={self.error} is no mean and standard deviation; give two numbers of cells")

    def ask(self, levels: list[Level]) -> list[list[Row] | None]:
        plans: list[list[Row] | None] = []
        for level in levels:
            rng = np.random.default_rng([self.seed, int(level.key, 16)])
            rows = (row if rng.random() < self.accuracy else self._wrong(level, row, rng) for row in solve(level))
            plans.append([row for row in rows if row is not None])
        return plans

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
        share = f"{self.accuracy:.0%}"
        return [f"subgoals come from a planner that is right {share} of the time, not from a language model"]


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
        if colour in self.held:
            return
        if colour in self.sought:
            raise _NoWayError
        self.sought.add(colour)
        keys = [(x, y) for x, y in self._all(KEY) if self.grid[y, x, 1] == colour]
        if not keys:
            if not (boxes := [cell for cell in self._all(BOX) if self._has_way(cell)]):
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
        with suppress(_NoWayError):
            return bool(self._path(target, without))
        return False

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
