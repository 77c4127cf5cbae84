"""Subgoals in order: a teacher plans an episode at its beginning; the agent observes and is rewarded for the next one.

    r(s') = 1 - steps spent on the subgoal / max_steps    when it is reached, else 0

A subgoal is reached when the agent stands on its cell, or what is in the cell changes: a key picked up, a door opened.
The policy reads the current subgoal beside its observation (`guide`; `rewards.adapters.guided` puts it there).

Source: Ruiz-Gonzalez et al. 2024, "Words as Beacons: Guiding RL Agents with High-Level Language Prompts", arXiv
2410.08632, sections 4 and 5; the weight 0.2 is theirs.
Differences: plans belong to levels, not to seeds (`rewards.language.teacher`), and live in the memory; the last subgoal
is observed too; positions are divided by the longer side of the grid; objects are encoded as they were planned, in [0,
1]; what lies outside the grid, in a wall or walled in is left out of a plan.
When it fails: a wrong subgoal that can be reached must be reached before the next one follows; half of them wrong
taught a fifth of what right ones did, and all of them nothing. MiniGrid only: it reads `envs.minigrid.family`.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from envs.minigrid.family import HEAD
from envs.transitions import Transitions, map_obs
from envs.types import Array, Memory
from lodestar.settings import setting
from rewards.base import Reward, RewardConfig
from rewards.language.teacher import COLOUR_NAMES, DOOR_STATES, OBJECT_NAMES, SUBGOAL_KINDS, SUBGOAL_NUMBERS, sentence
from rewards.llm.judges.base import JUDGES, make_judge

TEACHERS = tuple(JUDGES["subgoals"])
# What the policy observes, and how many numbers that is.
FORMS = {"position": 2, "object": 3, "sentence": 384}


@dataclass
class SubgoalsConfig(RewardConfig):
    """Settings of subgoals."""

    weight: Any = setting(0.2, "of a subgoal reached at once; 0.2 in the source")
    form: str = setting(
        "position",
        "what the policy observes of the current subgoal: `position` (relative to the agent), `object` (object, colour "
        'and state) or `sentence` (the embedding of "pick up the yellow key")',
        choices=tuple(FORMS),
    )
    teacher: str = setting("simulated", "`simulated` (a planner that errs), `recorded` or `openai`", choices=TEACHERS)
    teacher_options: dict[str, Any] = setting({}, 'as in {"accuracy": 0.9} or {"published": "KeyCorridorS3R3 llama"}')
    most: int = setting(16, "subgoals of a plan; what is longer is cut", ">= 1")


class Subgoals(Reward):
    """r(s') = (1 - steps / max_steps) * 1[the current subgoal is reached]."""

    Config = SubgoalsConfig
    config: SubgoalsConfig
    requires = frozenset({"signals", "obs_signals"})
    # A transition does not show which subgoal was current.
    relabelable = False

    def build(self) -> None:
        config = self.config
        self.form = config.form
        self.most = config.most
        self.guides = FORMS[config.form]
        # The mistakes of the simulated teacher depend on the form.
        form = {"form": config.form} if config.teacher == "simulated" else {}
        self.teacher = make_judge(config.teacher, "subgoals", seed=self.seed, **form, **config.teacher_options)
        self._sentences = _embed_sentences() if config.form == "sentence" else None

    def initial_memory(self, n: int) -> Memory:
        # index: of the current subgoal; steps: spent on it so far; agent: x, y and the longer side of the grid.
        return {
            "plan": np.zeros((n, self.most, SUBGOAL_NUMBERS), np.int16),
            "index": np.zeros(n, np.int64),
            "steps": np.zeros(n, np.int64),
            "agent": np.ones((n, 3), np.float32),
        }

    def begin(self, memory: Memory, modalities: Mapping[str, Array], mask: np.ndarray) -> Memory:
        """The memory, with plans for the environments of `mask`, whose episodes begin as `modalities` says."""
        after = map_obs(np.copy, memory)
        signals = np.asarray(modalities["signals"])[mask]
        after["plan"][mask] = self.teacher.plans(signals, self.most)
        after["index"][mask] = 0
        after["steps"][mask] = 0
        after["agent"][mask] = agent_and_side(signals)
        return after

    def score(self, batch: Transitions, memory: Memory = None) -> tuple[np.ndarray, Memory]:
        # A report card may show an environment without signals.
        if batch.signals is None or batch.obs_signals is None:
            return np.zeros(batch.shape, np.float32), memory
        starts = (batch.step == 0) & batch.valid
        if starts.any():
            memory = self.begin(memory, {"signals": batch.obs_signals}, starts)
        subgoal = _current_subgoals(memory)
        active = subgoal[:, 0] > 0
        reached, limit = self._find_reached(batch.obs_signals, batch.signals, subgoal, active)
        steps = memory["steps"] + active
        share_left = np.maximum(1 - steps / limit, 0)
        value = np.where(reached, share_left, 0).astype(np.float32)
        after = {
            "plan": memory["plan"],
            "index": memory["index"] + reached,
            "steps": np.where(reached, 0, steps),
            "agent": agent_and_side(batch.signals),
        }
        return value, after

    def _find_reached(
        self, before: Array, now: Array, subgoal: np.ndarray, active: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Whether the current subgoals (N, 6) are reached, bool (N,), and the steps an episode may last, (N,)."""
        reached = np.zeros(len(active), bool)
        limit = np.ones(len(active))
        # Signals that are no grid have no plan, and are not looked at.
        rows = np.flatnonzero(active)
        if len(rows) == 0:
            return reached, limit
        before = before[rows]
        now = now[rows]
        x = subgoal[rows, 1]
        y = subgoal[rows, 2]
        # The signals: agent's x and y first, the width as number 5, the limit as number 6; three a cell behind `HEAD`.
        width = now[:, 5].astype(np.int64)
        cell = len(HEAD) + 3 * (y.astype(np.int64) * width + x)
        columns = cell[:, None] + np.arange(3)
        cell_before = np.take_along_axis(before, columns, 1)
        cell_now = np.take_along_axis(now, columns, 1)
        changed = (cell_before != cell_now).any(axis=1)
        is_there = (now[:, 0] == x) & (now[:, 1] == y)
        reached[rows] = changed | is_there
        limit[rows] = np.maximum(now[:, 6], 1)
        return reached, limit

    def guide(self, memory: Memory) -> np.ndarray:
        """The current subgoal as the policy reads it, float32 (N, guides); none is 0, and -1 as an object."""
        subgoal = _current_subgoals(memory)
        active = subgoal[:, :1] > 0
        if self.form == "position":
            agent = memory["agent"]
            offset = (subgoal[:, 1:3] - agent[:, :2]) / agent[:, 2:]
            return np.where(active, offset, 0).astype(np.float32)
        if self.form == "object":
            largest = np.array((len(OBJECT_NAMES) - 1, len(COLOUR_NAMES) - 1, len(DOOR_STATES) - 1), np.float32)
            return np.where(active, subgoal[:, 3:] / largest, -1).astype(np.float32)
        assert self._sentences is not None
        kind, thing, colour = subgoal[:, [0, 3, 4]].T.astype(np.int64)
        return self._sentences[kind, thing, colour]

    def update(self, batch: Transitions) -> dict[str, float]:
        return self.teacher.metrics()

    def notes(self) -> list[str]:
        return self.teacher.notes()

    def preflight(self) -> str:
        return str(self.teacher.reach())


@functools.cache
def _embed_sentences() -> np.ndarray:
    """(kind, object, colour) -> the embedding of the sentence, float32 (4, 11, 6, 384), without one 0."""
    from rewards.llm.judges.embedding import encode

    shape = (len(SUBGOAL_KINDS), len(OBJECT_NAMES), len(COLOUR_NAMES))
    # Many places have the same words, and those of no subgoal, "", come first.
    words, place = np.unique([sentence(*indices) for indices in np.ndindex(shape)], return_inverse=True)
    none = np.zeros((1, FORMS["sentence"]), np.float32)
    vectors = np.concatenate([none, encode(words[1:].tolist())])
    return vectors[place].reshape(*shape, -1)


def _current_subgoals(memory: Memory) -> np.ndarray:
    """The current subgoals, int16 (N, 6); zeros behind the last."""
    plan = memory["plan"]
    index = memory["index"]
    last = plan.shape[1] - 1
    row = plan[np.arange(len(plan)), np.minimum(index, last)]
    return np.where((index <= last)[:, None], row, np.int16(0))


def agent_and_side(signals: Array) -> np.ndarray:
    """The agent's cell and the longer side of its grid, float32 (N, 3)."""
    signals = np.asarray(signals, np.float32)
    width = np.maximum(signals[:, 5], 1)
    height = (signals.shape[1] - len(HEAD)) / 3 / width
    side = np.maximum(np.maximum(width, height), 1)
    return np.stack([signals[:, 0], signals[:, 1], side], axis=1)
