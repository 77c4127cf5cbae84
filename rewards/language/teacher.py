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
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from envs.minigrid.family import HEAD
from lodestar.settings import setting
from rewards.llm.client import JudgeError, PausedError, answer_form
from rewards.llm.judges.base import Judge
from rewards.llm.judges.prompts import sections
from rewards.llm.judges.served import ModelJudge
from rewards.llm.store import read_rows

# Kind 0 is no subgoal.
SUBGOAL_KINDS = ("", "go to", "pick up", "open")
OBJECT_NAMES = ("unseen", "empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava", "agent")
COLOUR_NAMES = ("red", "green", "blue", "purple", "yellow", "grey")
DOOR_STATES = ("open", "closed", "locked")
# Places in `OBJECT_NAMES`.
OBJECT_EMPTY, OBJECT_WALL, OBJECT_FLOOR, OBJECT_DOOR, OBJECT_KEY, OBJECT_BALL, OBJECT_BOX, OBJECT_GOAL, OBJECT_LAVA = (
    range(1, 10)
)
# Places in `SUBGOAL_KINDS`.
GO, TAKE, OPEN = 1, 2, 3
# A place in `COLOUR_NAMES` and one in `DOOR_STATES`.
BLUE = 2
STATE_LOCKED = 2
# Numbers of a subgoal: kind, x, y, object, colour, state.
SUBGOAL_NUMBERS = 6
# How many levels keep their plan.
MAX_CACHED_PLANS = 4096
# Steps of a detour that the planner prefers to moving a thing, and to a door that is open, closed, locked.
THING_DETOUR = {OBJECT_KEY: 50, OBJECT_BALL: 50, OBJECT_BOX: 50}
DOOR_DETOUR = (0, 20, 1000)
# Kind, x, y, object, colour, state.
Row = tuple[int, int, int, int, int, int]
Cell = tuple[int, int]
# Steps, each with what to do and the cell x, y.
Plan = list[dict[str, Any]]


def _read_published() -> dict[str, list[float]]:
    """ENVIRONMENT MODEL -> accuracies of objects and of positions, mean and deviation of the error of positions."""
    published = {}
    text = Path(__file__).with_name("teachers.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if not line.startswith("#"):
            environment, model, *numbers = line.split()
            published[f"{environment} {model}"] = list(map(float, numbers))
    return published


PUBLISHED = _read_published()


class Level(NamedTuple):
    """How an episode begins: the grid, int (H, W, 3), the agent's cell, and a key of 16 hexadecimal digits.

    A cell of the grid is object, colour and state, as MiniGrid encodes them. Equal levels have equal keys.
    """

    grid: np.ndarray
    x: int
    y: int
    key: str


def level_of(signals: np.ndarray) -> Level | None:
    """The level that signals (K,) describe; None where they are not those of a MiniGrid."""
    head = len(HEAD)
    if len(signals) <= head or not np.isfinite(signals).all():
        return None
    numbers = np.rint(signals).astype(np.int64)
    width = int(numbers[5])
    cells = numbers[head:]
    if width < 1 or len(cells) % (3 * width):
        return None
    digest = hashlib.sha256(numbers.astype("<i2").tobytes()).hexdigest()
    return Level(cells.reshape(-1, width, 3), int(numbers[0]), int(numbers[1]), digest[:16])


class Teacher(Judge):
    """Plans for levels; the latest are cached."""

    @cached_property
    def _plans(self) -> dict[str, np.ndarray]:
        """Key of a level -> its plan; the oldest first."""
        return {}

    # Key of a level -> its plan in words, of a teacher that has them.
    table: dict[str, Plan]

    def ask(self, levels: list[Level]) -> list[list[Row] | None]:
        """A plan for each level; an empty one where it leads nowhere, None where the teacher has no answer."""
        plans: list[list[Row] | None] = []
        for level in levels:
            plan = self.table.get(level.key)
            plans.append(None if plan is None else _plan_rows(level, plan))
        return plans

    def plans(self, signals: np.ndarray, most: int) -> np.ndarray:
        """Plans for episodes that begin with signals (N, K): int16 (N, most, 6). What makes no sense is left out."""
        levels = list(map(level_of, signals))
        new = {}
        for level in levels:
            if level is not None and level.key not in self._plans:
                new[level.key] = level
        if new:
            new_levels = list(new.values())
            for new_level, rows in zip(new_levels, self.ask(new_levels)):
                if rows is not None:
                    plan = np.array(reachable_subgoals(new_level, rows)[:most], np.int16)
                    self._plans[new_level.key] = plan.reshape(-1, SUBGOAL_NUMBERS)
        plans = np.zeros((len(levels), most, SUBGOAL_NUMBERS), np.int16)
        for row, level in zip(plans, levels):
            if level is not None and level.key in self._plans:
                plan = self._plans[level.key]
                row[: len(plan)] = plan
        surplus = max(len(self._plans) - MAX_CACHED_PLANS, 0)
        for key in list(self._plans)[:surplus]:
            del self._plans[key]
        return plans


def _index_of_first(words: list[str], names: Sequence[str], default: int) -> int:
    """The place among the names of the first word that is one of them."""
    for word in words:
        if word in names:
            return names.index(word)
    return default


def reachable_subgoals(level: Level, rows: Sequence[Row]) -> list[Row]:
    """The subgoals that the agent could ever come to: inside the grid, no wall, not walled in."""
    from scipy.ndimage import label

    height, width = level.grid.shape[:2]
    if not (0 <= level.x < width and 0 <= level.y < height):
        return []
    # The number of the connected region that each cell belongs to; 0 for walls and lava.
    regions, _ = label(~np.isin(level.grid[..., 0], (OBJECT_WALL, OBJECT_LAVA)))
    agent_region = regions[level.y, level.x]
    if agent_region == 0:
        return []
    reachable = []
    for row in rows:
        _, x, y, *_ = row
        if 0 <= x < width and 0 <= y < height and regions[y, x] == agent_region:
            reachable.append(row)
    return reachable


def sentence(kind: int, thing: int, colour: int) -> str:
    """A subgoal in words: `pick up the yellow key`; "" for none."""
    if not kind:
        return ""
    if thing in (OBJECT_EMPTY, OBJECT_FLOOR):
        return f"{SUBGOAL_KINDS[kind]} the place"
    return f"{SUBGOAL_KINDS[kind]} the {COLOUR_NAMES[colour]} {OBJECT_NAMES[thing]}"


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
        self.table = dict(read_rows(self.file, _parse_plan, f"no plan; write one as {example}", torn=False))

    def notes(self) -> list[str]:
        return [f"subgoals are those recorded for {len(self.table):,} levels in {self.file}; others have none"]


@dataclass(eq=False)
class ModelTeacher(ModelJudge, Teacher):
    """A language model on a server reads the level in words and answers with a plan."""

    attempts: int = 2
    failures: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        self.table = {}
        self.asked = 0
        self.failed = 0
        self._identity = f"teacher {self.model}"

    def ask(self, levels: list[Level]) -> list[list[Row] | None]:
        new = {}
        for level in levels:
            if level.key not in self.table:
                new[level.key] = level
        stored, answered = self.ask_kept(new, self._ask_model, _parse_raw_plan)
        for key, answer in (stored | answered).items():
            if not isinstance(answer, JudgeError):
                self.table[key] = answer
            elif not isinstance(answer, PausedError):
                self.failed += 1
        return super().ask(levels)

    def _ask_model(self, level: Level) -> str:
        self.asked += 1
        answer = self.chat.ask([question(level)], schema=_PLAN_SCHEMA)
        # A server without schemas may add other fields, which are not kept.
        steps = []
        for step in answer["subgoals"]:
            steps.append({name: step[name] for name in ("do", "x", "y", "thing")})
        return json.dumps(steps)

    def metrics(self) -> dict[str, float]:
        return {"teacher_asked": float(self.asked), "teacher_failed": float(self.failed)}

    def notes(self) -> list[str]:
        return [f"subgoals come from {self.model} at {self.url}, asked once a level while training waits"]


_STEP_SCHEMA = answer_form(
    do={"type": "string", "enum": list(SUBGOAL_KINDS[1:])},
    thing={"type": "string"},
    x={"type": "integer"},
    y={"type": "integer"},
)
_PLAN_SCHEMA = answer_form(subgoals={"type": "array", "items": _STEP_SCHEMA})


def question(level: Level) -> str:
    """The level in words, and what is asked about it; what never changes comes first."""
    height, width = level.grid.shape[:2]
    things = []
    for y, x in np.ndindex(height, width):
        thing, colour, state = map(int, level.grid[y, x])
        if thing not in (OBJECT_EMPTY, OBJECT_WALL):
            door = f"{DOOR_STATES[state]} " if thing == OBJECT_DOOR else ""
            things.append(f"({x}, {y}): {door}{COLOUR_NAMES[colour]} {OBJECT_NAMES[thing]}")
    # A picture of the grid, a line a row.
    walls = np.where(level.grid[..., 0] == OBJECT_WALL, "#", ".")
    lines = list(map("".join, walls))
    return sections("levels")["plan"].format(
        width=width,
        height=height,
        rows="\n".join(lines),
        x=level.x,
        y=level.y,
        things="; ".join(things) or "none",
    )


def _plan_rows(level: Level, plan: Plan) -> list[Row]:
    """A plan as rows; steps outside the grid, or that name a thing which is not there, are left out."""
    height, width = level.grid.shape[:2]
    rows: list[Row] = []
    for step in plan:
        x = step["x"]
        y = step["y"]
        if not (0 <= x < width and 0 <= y < height):
            continue
        thing, colour, state = map(int, level.grid[y, x])
        words = str(step.get("thing") or "").lower().split()
        named_thing = _index_of_first(words, OBJECT_NAMES, thing)
        # A key where a box is means the key that the box hides.
        if named_thing == OBJECT_KEY and thing == OBJECT_BOX:
            thing = OBJECT_KEY
            state = 0
            colour = _index_of_first(words, COLOUR_NAMES, colour)
        if named_thing == thing:
            rows.append((SUBGOAL_KINDS.index(step["do"]), x, y, thing, colour, state))
    return rows


def _parse_plan(row: Mapping[str, Any]) -> tuple[str, Plan]:
    """A level's key and its plan, from a line of a file or from a row that a model's teacher kept."""
    if "level" in row:
        level = row["level"]
        plan = row["plan"]
    else:
        level = row["text"]
        plan = json.loads(row["raw"])
    for step in plan:
        if step["do"] not in SUBGOAL_KINDS[1:] or type(step["x"]) is not int or type(step["y"]) is not int:
            raise ValueError(f"the subgoal {step}")
    return str(level), plan


def _parse_raw_plan(words: str) -> Plan:
    _, plan = _parse_plan({"text": "", "raw": words})
    return plan


@dataclass(eq=False)
class NoisyPlanner(Teacher):
    """The planner's subgoals, each right with probability `accuracy`; the same level always gets the same plan."""

    form: str = setting("object", "position: a wrong one is a cell some steps off; object or sentence: another thing")
    accuracy: float = setting(1.0, "probability that a subgoal is right", "[0, 1]")
    error: tuple[float, float] = setting((3.0, 2.0), "mean and deviation of a wrong position's distance, cells", ">= 0")
    published: str = setting("", "ENVIRONMENT MODEL, as in KeyCorridorS3R3 llama: accuracy and error from `PUBLISHED`")
    seed: int = setting(0, "of the mistakes")

    name = "simulated"

    def __post_init__(self) -> None:
        if self.published:
            environment, _, model = self.published.partition(" ")
            name = f"{environment} {model.lower()}"
            if name not in PUBLISHED:
                measured = ", ".join(PUBLISHED)
                raise ValueError(f"published={self.published!r} was never measured; give one of {measured}")
            objects, positions, mean, deviation = PUBLISHED[name]
            self.accuracy = positions if self.form == "position" else objects
            self.error = (mean, deviation)
        super().__post_init__()
        if len(self.error) != 2:
            raise ValueError(f"error={self.error} is no mean and standard deviation; give two numbers of cells")

    def ask(self, levels: list[Level]) -> list[list[Row] | None]:
        plans: list[list[Row] | None] = []
        for level in levels:
            rng = np.random.default_rng([self.seed, int(level.key, 16)])
            plan: list[Row] = []
            for row in solve(level):
                answer = row if rng.random() < self.accuracy else self._draw_wrong(level, row, rng)
                if answer is not None:
                    plan.append(answer)
            plans.append(plan)
        return plans

    def _draw_wrong(self, level: Level, row: Row, rng: np.random.Generator) -> Row | None:
        """Another subgoal than this one; None where the level has no other."""
        things = level.grid[..., 0]
        ys, xs = np.indices(things.shape)
        if self.form == "position":
            # A cell at a drawn distance, counted in steps.
            distance = max(int(rng.normal(*self.error)), 1)
            is_that_far = np.abs(xs - row[1]) + np.abs(ys - row[2]) == distance
            candidates = is_that_far & ~np.isin(things, (OBJECT_WALL, OBJECT_LAVA))
        else:
            is_elsewhere = (xs != row[1]) | (ys != row[2])
            candidates = is_elsewhere & np.isin(things, (OBJECT_DOOR, OBJECT_KEY, OBJECT_BALL, OBJECT_BOX, OBJECT_GOAL))
        cells = np.argwhere(candidates)
        if len(cells) == 0:
            return None
        y, x = map(int, cells[rng.integers(len(cells))])
        thing, colour, state = map(int, level.grid[y, x])
        if thing == OBJECT_DOOR:
            kind = OPEN
        elif thing in THING_DETOUR:
            kind = TAKE
        else:
            kind = GO
        return kind, x, y, thing, colour, state

    def notes(self) -> list[str]:
        share = f"{self.accuracy:.0%}"
        return [f"subgoals come from a planner that is right {share} of the time, not from a language model"]


def solve(level: Level) -> list[Row]:
    """The subgoals that lead to what is wanted; empty where that is unknown or out of reach."""
    planner = _Planner(level)
    try:
        target = planner.prize()
        if target is not None:
            planner.reach(*target)
    except _NoWayError:
        return []
    return planner.rows


class _NoWayError(Exception):
    pass


class _Planner:
    """Plans backwards from what is wanted, on a copy of the grid in which each subgoal so far is met."""

    def __init__(self, level: Level) -> None:
        self.grid = level.grid.copy()
        self.agent: Cell = (level.x, level.y)
        # Colours of the keys picked up so far, and of those looked for.
        self.held: set[int] = set()
        self.sought: set[int] = set()
        self.rows: list[Row] = []

    def prize(self) -> tuple[int, int, int] | None:
        """What the level is about, read off its grid: cell and kind of the last subgoal; None where that is unknown."""
        goals = self._cells_of(OBJECT_GOAL)
        if goals:
            return *goals[0], GO
        locked = [cell for cell in self._cells_of(OBJECT_DOOR) if self._is_locked(*cell)]
        if not locked:
            return None
        boxes = self._cells_of(OBJECT_BOX)
        balls = self._cells_of(OBJECT_BALL)
        if boxes and self._cells_of(OBJECT_KEY):
            return *boxes[0], TAKE
        if not balls:
            return *locked[0], OPEN
        # Of several balls the blue one is wanted.
        if len(balls) > 1:
            balls = [(x, y) for x, y in balls if self.grid[y, x, 1] == BLUE]
        return (*balls[0], TAKE) if balls else None

    def reach(self, x: int, y: int, kind: int) -> None:
        """Append the subgoals up to this one, and change the grid as if they were met."""
        if self._is_locked(x, y):
            self._fetch_key(int(self.grid[y, x, 1]))
        bar = self._first_bar((x, y))
        while bar is not None:
            if self.grid[bar[1], bar[0], 0] != OBJECT_DOOR:
                self.reach(*bar, TAKE)
            elif self._is_locked(*bar) or not self._has_path((x, y), without=bar):
                self.reach(*bar, OPEN)
            else:
                # A door on one way of several is no subgoal.
                self.grid[bar[1], bar[0], 2] = 0
            bar = self._first_bar((x, y))
        thing, colour, state = map(int, self.grid[y, x])
        self.rows.append((kind, x, y, thing, colour, state))
        if thing == OBJECT_DOOR:
            self.grid[y, x, 2] = 0
        elif thing in THING_DETOUR:
            self.grid[y, x] = (OBJECT_EMPTY, 0, 0)
        if thing == OBJECT_KEY:
            self.held.add(colour)
        self.agent = (x, y)

    def _fetch_key(self, colour: int) -> None:
        if colour in self.held:
            return
        # A key behind the door that it opens.
        if colour in self.sought:
            raise _NoWayError
        self.sought.add(colour)
        keys = []
        for x, y in self._cells_of(OBJECT_KEY):
            if self.grid[y, x, 1] == colour:
                keys.append((x, y))
        if not keys:
            keys = [self._open_box(colour)]
        self.reach(*keys[0], TAKE)

    def _open_box(self, colour: int) -> Cell:
        """Open the nearest box, as if it hid the key of this colour; returns its cell."""
        boxes = [cell for cell in self._cells_of(OBJECT_BOX) if self._has_path(cell)]
        if not boxes:
            raise _NoWayError
        box = min(boxes, key=lambda cell: len(self._path(cell)))
        self.reach(*box, OPEN)
        self.grid[box[1], box[0]] = (OBJECT_KEY, colour, 0)
        return box

    def _cells_of(self, thing: int) -> list[Cell]:
        rows, columns = np.nonzero(self.grid[..., 0] == thing)
        return list(zip(columns.tolist(), rows.tolist()))

    def _is_locked(self, x: int, y: int) -> bool:
        return bool(self.grid[y, x, 0] == OBJECT_DOOR and self.grid[y, x, 2] == STATE_LOCKED)

    def _first_bar(self, target: Cell) -> Cell | None:
        """The first cell on the way to the target that cannot be walked through as it is."""
        for x, y in self._path(target)[:-1]:
            thing, _, state = self.grid[y, x]
            if thing in THING_DETOUR or (thing == OBJECT_DOOR and state > 0):
                return x, y
        return None

    def _has_path(self, target: Cell, without: Cell | None = None) -> bool:
        with suppress(_NoWayError):
            return bool(self._path(target, without))
        return False

    def _path(self, target: Cell, without: Cell | None = None) -> list[Cell]:
        """The cells of the cheapest way from where the agent is to `target`, both included; Dijkstra's."""
        height, width = self.grid.shape[:2]
        # Each cell that is settled, with the one before it on the cheapest way.
        previous: dict[Cell, Cell] = {}
        queue = [(0, self.agent, self.agent)]
        while queue:
            cost, cell, before = heapq.heappop(queue)
            if cell in previous:
                continue
            previous[cell] = before
            if cell == target:
                path = [cell]
                while path[-1] != self.agent:
                    path.append(previous[path[-1]])
                return path[::-1]
            for dx, dy in ((1, 0), (0, 1), (-1, 0), (0, -1)):
                x = cell[0] + dx
                y = cell[1] + dy
                if not (0 <= x < width and 0 <= y < height) or (x, y) in previous or (x, y) == without:
                    continue
                thing, _, state = map(int, self.grid[y, x])
                if thing in (OBJECT_WALL, OBJECT_LAVA):
                    continue
                detour = DOOR_DETOUR[state] if thing == OBJECT_DOOR else THING_DETOUR.get(thing, 0)
                heapq.heappush(queue, (cost + 1 + detour, (x, y), cell))
        raise _NoWayError
