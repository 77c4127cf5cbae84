"""An adviser that learns what its agent can do: `reward=benchmarks.adviser:Advised`, of the study `adviser`.

    advice       one thing of the level to pick up or to open; the agent observes where it lies
    r(s') = 1 - 0.9 steps / within     when it is reached within so many steps, else 0; each thing once an episode
    choice       the advice of which a model of texts is least sure whether the agent will reach it: min |f(text)|
    f            fitted to the texts of past advice and whether it was reached; adapted every `every` steps, or once

A text says the advice, what is held, the state of a door and how far the thing is: "open the locked red door, holding
the red key, near". Before the first fit the choice is a hash of where agent and things are.

Source: Zhang, Lu 2023, "AdaRefiner: Refining Decisions of Language Models with Adaptive Feedback" (RLAdapter), arXiv
2309.17176: a language model that advises is tuned on how well the agent follows its advice.
Differences: a model of hashed n-grams is fitted here, no language model is tuned; the advice is chosen, not generated.
When it fails: what is of middling difficulty need not lead to the goal.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from envs.transitions import Transitions
from envs.types import Array, Memory
from lodestar.settings import setting
from lodestar.state import Stateful
from rewards.language.label_models import LabelModel
from rewards.language.subgoals import Subgoals, SubgoalsConfig, agent_and_side
from rewards.language.teacher import (
    COLOUR_NAMES,
    DOOR_STATES,
    OBJECT_BALL,
    OBJECT_BOX,
    OBJECT_DOOR,
    OBJECT_KEY,
    OBJECT_NAMES,
    OPEN,
    TAKE,
    Row,
    level_of,
    sentence,
)

# What advice is about, and what there is to do with it.
KINDS = {OBJECT_DOOR: OPEN, OBJECT_KEY: TAKE, OBJECT_BALL: TAKE, OBJECT_BOX: TAKE}
MODELS = ("adapted", "frozen", "shuffled")
# Cells of a level in which something may have been reached.
MAX_CELLS = 1024
# Of the past advice, the newest is learnt from, with so many gradient steps.
MAX_OUTCOMES = 4000
FIT_STEPS = 150
# How far is near: steps to walk, were there no walls.
NEAR_STEPS = 4


@dataclass
class AdvisedConfig(SubgoalsConfig):
    """Settings of advised."""

    model: str = setting(
        "adapted",
        "fitted every so many steps, frozen after the first fit, or fitted to shuffled outcomes",
        choices=MODELS,
    )
    every: int = setting(20_000, "steps between two fits of the model", low=1)
    within: int = setting(60, "steps in which advice must be reached", low=1)


class Adviser(Stateful):
    """The model of what the agent reaches, and the advice that it will be fitted to."""

    saved = ("steps", "fits", "outcomes", "model", "memory")

    def __init__(self, config: AdvisedConfig, seed: int) -> None:
        self.config = config
        self.seed = seed
        self.steps = 0
        self.fits = 0
        # Advice since the last fit, and 1 where it was reached.
        self.outcomes: list[tuple[str, float]] = []
        self.model = self._make_model()
        # That of the environments whose rollouts are learnt from.
        self.memory: Memory = None
        # |f| of texts, until the next fit.
        self._doubts: dict[str, float] = {}

    def doubt(self, texts: list[str], place: bytes) -> list[float]:
        """|f| of texts (B,), the least where the model is least sure; by chance, for a place, before the first fit."""
        if not self.fits:
            return [float(zlib.crc32(text.encode() + place)) for text in texts]
        new = [text for text in texts if text not in self._doubts]
        if new:
            self._doubts.update(zip(new, np.abs(self.model.predict(new)).tolist()))
        return [self._doubts[text] for text in texts]

    def learn(self, outcomes: list[tuple[str, float]], steps: int) -> dict[str, float]:
        """Take in what became of advice during so many steps, and refit the model when it is time."""
        metrics = {}
        if outcomes:
            texts, labels = zip(*outcomes)
            metrics["reached"] = float(np.mean(labels))
            if self.fits:
                is_right = (self.model.predict(texts) > 0) == (np.array(labels) > 0)
                metrics["accuracy"] = float(is_right.mean())
        self.outcomes = [*self.outcomes, *outcomes][-MAX_OUTCOMES:]
        fits_due = (self.steps + steps) // self.config.every
        is_time = fits_due > self.steps // self.config.every
        self.steps += steps
        if is_time and self.outcomes and not (self.fits and self.config.model == "frozen"):
            metrics["loss"] = self._fit()
        return metrics

    def _fit(self) -> float:
        texts, labels = zip(*self.outcomes)
        reached = np.array(labels)
        if self.config.model == "shuffled":
            reached = np.random.default_rng([self.seed, self.fits]).permutation(reached)
        self.model = self._make_model()
        loss = self.model.fit(texts, reached, FIT_STEPS)
        self.fits += 1
        self.outcomes = []
        self._doubts = {}
        return loss

    def _make_model(self) -> LabelModel:
        return LabelModel("ngrams", learning_rate=0.01, seed=self.seed)


class Advised(Subgoals):
    """r(s') = 1 - 0.9 steps / within when the advice is reached, which a model of the agent's abilities chose."""

    Config = AdvisedConfig
    config: AdvisedConfig

    def build(self) -> None:
        super().build()
        # A plan is one piece of advice.
        self.most = 1
        self.adviser = Adviser(self.config, self.seed)

    def initial_memory(self, n: int) -> Memory:
        memory = super().initial_memory(n)
        # Of the episode's things those that were reached, by cell; and what the text of the advice said beside it:
        # thing and colour in hand, and whether it was near.
        memory["reached"] = np.zeros((n, MAX_CELLS), bool)
        memory["told"] = np.zeros((n, 3), np.int16)
        return memory

    def begin(self, memory: Memory, modalities: Mapping[str, Array], mask: np.ndarray) -> Memory:
        after = {name: value.copy() for name, value in memory.items()}
        signals = np.asarray(modalities["signals"])
        after["reached"][mask] = False
        after["plan"][mask] = 0
        after["agent"][mask] = agent_and_side(signals[mask])
        self._advise(after, signals, mask)
        return after

    def score(self, batch: Transitions, memory: Memory = None) -> tuple[np.ndarray, Memory]:
        if batch.signals is None or batch.obs_signals is None:
            return np.zeros(batch.shape, np.float32), memory
        value, _, after = self._follow(batch, memory)
        return value, after

    def update(self, batch: Transitions) -> dict[str, float]:
        """The advice of a rollout is followed once more, to learn what became of it."""
        if self.adviser.memory is None:
            self.adviser.memory = self.initial_memory(batch.shape[1])
        outcomes: list[tuple[str, float]] = []
        for row in range(batch.shape[0]):
            _, new, self.adviser.memory = self._follow(batch[row], self.adviser.memory)
            outcomes += new
        return self.adviser.learn(outcomes, int(np.asarray(batch.valid).sum()))

    def _follow(self, batch: Transitions, memory: Memory) -> tuple[np.ndarray, list[tuple[str, float]], Memory]:
        """One step: rewards (N,), the texts of advice that is over with 1 where it was reached, the memory after."""
        valid = np.asarray(batch.valid)
        starts = (batch.step == 0) & valid
        if starts.any():
            memory = self.begin(memory, {"signals": batch.obs_signals}, starts)
        after = {name: value.copy() for name, value in memory.items()}
        advice = memory["plan"][:, 0]
        active = (advice[:, 0] > 0) & valid
        reached, _ = self._find_reached(batch.obs_signals, batch.signals, advice, active)
        steps = memory["steps"] + active
        after["steps"] = steps
        value = np.where(reached, 1 - 0.9 * steps / self.config.within, 0).astype(np.float32)
        over = active & (reached | (steps >= self.config.within))
        outcomes = [(_text_told(memory, row), float(reached[row])) for row in np.flatnonzero(over).tolist()]
        for row in np.flatnonzero(reached):
            after["reached"][row, _cell(advice[row], np.asarray(batch.signals)[row])] = True
        after["agent"] = np.where(valid[:, None], agent_and_side(batch.signals), memory["agent"])
        idle = valid & (over | (advice[:, 0] == 0))
        if idle.any():
            self._advise(after, batch.signals, idle)
        return value, outcomes, after

    def _advise(self, memory: Memory, signals: Array, mask: np.ndarray) -> None:
        """Write new advice for the environments of `mask` into the memory, another one than before if there is any."""
        for row in np.flatnonzero(mask).tolist():
            found = self._choices(memory, signals, row)
            memory["steps"][row] = 0
            memory["plan"][row, 0] = 0
            if not found:
                continue
            doubt = self.adviser.doubt([text for _, text, _ in found], memory["agent"][row].tobytes())
            advice, _, near = found[int(np.argmin(doubt))]
            memory["plan"][row, 0] = advice
            memory["told"][row] = (*signals[row, 3:5], near)

    def _choices(self, memory: Memory, signals: Array, row: int) -> list[tuple[Row, str, bool]]:
        """Advice that can be given: each with its text, and whether its thing is near."""
        level = level_of(signals[row])
        if level is None:
            return []
        held = (int(signals[row, 3]), int(signals[row, 4]))
        before = tuple(memory["plan"][row, 0, 1:3].tolist())
        found = []
        for y, x in np.argwhere(np.isin(level.grid[..., 0], tuple(KINDS))).tolist():
            thing, colour, state = map(int, level.grid[y, x])
            advice = (KINDS[thing], x, y, thing, colour, state)
            is_open = thing == OBJECT_DOOR and state == 0
            if is_open or memory["reached"][row, _cell(np.array(advice), signals[row])]:
                continue
            near = abs(x - level.x) + abs(y - level.y) <= NEAR_STEPS
            found.append((advice, describe(advice, held, near), near))
        others = [one for one in found if one[0][1:3] != before]
        return others or found


def describe(advice: Row, held: tuple[int, int], near: bool) -> str:
    """In words: "open the locked red door, holding the red key, near"."""
    kind, _, _, thing, colour, state = map(int, advice)
    words = sentence(kind, thing, colour)
    if thing == OBJECT_DOOR:
        words = words.replace("the ", f"the {DOOR_STATES[state]} ", 1)
    holding = "nothing"
    if held[0] in KINDS:
        same = "that" if thing == OBJECT_DOOR and held == (OBJECT_KEY, colour) else "another"
        holding = f"the {COLOUR_NAMES[held[1]]} {OBJECT_NAMES[held[0]]}, {same} colour"
    return f"{words}, holding {holding}, {'near' if near else 'far'}"


def _text_told(memory: Memory, row: int) -> str:
    thing, colour, near = map(int, memory["told"][row])
    return describe(tuple(memory["plan"][row, 0].tolist()), (thing, colour), bool(near))


def _cell(advice: np.ndarray, signals: np.ndarray) -> int:
    """The number of the cell of advice, in a level as wide as the signals say."""
    return int(advice[2] * int(signals[5]) + advice[1]) % MAX_CELLS
