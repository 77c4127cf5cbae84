"""Teachers: plans of subgoals for a level of MiniGrid.

    level       the grid at an episode's beginning, from the signals of `envs.minigrid.family`
    plan        int16 (K, 6): rows (kind, x, y, object, colour, state), in order; zeros behind the last

    simulated   a planner that knows the rules, seen through a measured accuracy (`rewards.language.oracle`)
    recorded    plans from a file: of another run's model, or written by a person
    openai      any server with OpenAI's chat completions, asked once a level, its answers kept in such a file

Source: Ruiz-Gonzalez et al. 2024, "Words as Beacons", arXiv 2410.08632, section 4.
Differences: a plan belongs to a level, found by a hash of its grid; the source looks it up by the environment's seed,
and a reset with another seed then gets another level's plan.
When it fails: at a level never met before all environments wait for the server; use a recording where that is too slow.
A server that fails three times in a row is not asked for a minute; until then there is no subgoal, and the level is
asked about again when it comes again.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from envs.minigrid.family import HEAD
from envs.settings import setting
from rewards.llm.client import PausedError
from rewards.llm.judges.base import Judge
from rewards.llm.judges.model import ModelJudge
from rewards.llm.store import read_rows

KINDS = ("", "go to", "pick up", "open")  # "" is no subgoal
OBJECTS = ("unseen", "empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava", "agent")
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
STATES = ("open", "closed", "locked")
EMPTY, WALL, DOOR, KEY, BALL, BOX, GOAL, LAVA = 1, 2, 4, 5, 6, 7, 8, 9
WIDTH = 6  # numbers of a subgoal
CACHE = 4096  # levels whose plan is kept at hand

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
        failed = set()
        for level, rows in zip(new.values(), self.ask(list(new.values())) if new else []):
            if rows is None:
                failed.add(level.key)
                rows = []
            plan = np.zeros((most, WIDTH), np.int16)
            rows = sensible(level, rows)[:most]
            plan[: len(rows)] = np.array(rows, np.int16).reshape(-1, WIDTH)
            self._known[level.key] = plan
        nothing = np.zeros((most, WIDTH), np.int16)
        answer = np.stack([nothing if level is None else self._known[level.key] for level in levels])
        for key in [*failed, *list(self._known)[: max(len(self._known) - CACHE, 0)]]:
            self._known.pop(key, None)
        return answer


def sensible(level: Level, rows: Sequence[Row]) -> list[Row]:
    """The subgoals that the agent could ever come to: inside the grid, no wall, not walled in."""
    height, width = level.grid.shape[:2]
    shut = np.isin(level.grid[..., 0], (WALL, LAVA))
    seen = np.zeros((height, width), bool)
    queue = deque([(level.x, level.y)] if 0 <= level.x < width and 0 <= level.y < height else [])
    while queue:
        x, y = queue.popleft()
        if 0 <= x < width and 0 <= y < height and not seen[y, x] and not shut[y, x]:
            seen[y, x] = True
            queue.extend(((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)))
    return [row for row in rows if 0 <= row[1] < width and 0 <= row[2] < height and seen[row[2], row[1]]]


def sentence(kind: int, thing: int, colour: int) -> str:
    """A subgoal in words: `pick up the yellow key`; "" for none."""
    if not kind:
        return ""
    name = OBJECTS[thing] if thing not in (EMPTY, 3) else "floor"
    return f"{KINDS[kind]} the {COLOURS[colour]} {name}" if name != "floor" else f"{KINDS[kind]} the place"


@dataclass(eq=False)
class RecordedPlans(Teacher):
    """Plans from a file, one a line.

    A line is {"level": key, "plan": [{"do": "pick up", "x": 3, "y": 1, "thing": "yellow key"}]}, with other keys
    ignored; of lines about the same level the last one holds. `thing` may be left out.

    Raises:
        ValueError: if there is no such file, or a line of it is no plan.
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

    @property
    def identity(self) -> str:
        return f"teacher {self.model}"

    def ask(self, levels: list[Level]) -> list[list[Row] | None]:
        new = {level.key: level for level in levels if level.key not in self.table}
        for key, answer in self.ask_kept(new, self._one).items():
            if isinstance(answer, str):
                self.table[key] = json.loads(answer)
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


_STEP = {
    "type": "object",
    "properties": {
        "do": {"type": "string", "enum": list(KINDS[1:])},
        "thing": {"type": "string"},
        "x": {"type": "integer"},
        "y": {"type": "integer"},
    },
    "required": ["do", "thing", "x", "y"],
}
_SCHEMA = {
    "type": "object",
    "properties": {"subgoals": {"type": "array", "items": _STEP}},
    "required": ["subgoals"],
}


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
    lines = [
        "You plan for an agent in a world of square cells. It walks on empty cells, carries one thing at a time, opens",
        "a closed door by hand and a locked door with a key of the same colour; boxes may hide keys. It wants to reach",
        "the green goal if there is one, else to pick up the ball or the box behind the locked door, else to open it.",
        "Name the subgoals in the order in which they must be reached: each with what to do, the thing (colour and",
        "name) and the cell it is in. The cell (0, 0) is the upper left corner, x grows to the right, y downwards.",
        "",
        f"The world is {width} cells wide and {height} cells high; # is a wall:",
        *rows,
        f"The agent stands at ({level.x}, {level.y}).",
        "Things: " + ("; ".join(things) or "none"),
    ]
    return "\n".join(lines)


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
    """Level and plan of a line of a recording, or of a row that `ModelTeacher` kept."""
    level, plan = (row["level"], row["plan"]) if "level" in row else (row["text"], json.loads(row["raw"]))
    for step in plan:
        if step["do"] not in KINDS[1:] or not all(type(step[name]) is int for name in ("x", "y")):
            raise ValueError(f"the subgoal {step}")
    return str(level), plan
