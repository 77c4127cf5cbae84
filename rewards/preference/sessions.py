"""What rewards learned from comparisons have in common: segments are gathered, judges asked, answers kept and counted.

A subclass sets `segments` and `labelled` when it is built, and defines `session`: draw pairs, `ask`, learn.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from envs.transitions import Transitions
from lodestar.settings import setting
from lodestar.state import Stateful
from rewards.base import JudgeUse
from rewards.exploration.learned import Learned, LearnedConfig
from rewards.llm.judges.base import SegmentJudge
from rewards.preference.segments import Segments

# Fewer labels held out say nothing about when to stop.
MIN_HELD_OUT = 10


class ComparedPairs(NamedTuple):
    """Pairs of segments (L, B), and the judge's labels, float32 (B,)."""

    first: Transitions
    second: Transitions
    label: np.ndarray


@dataclass
class SessionsConfig(LearnedConfig):
    """When and how often judges are asked, and for how long their answers are learnt from."""

    scale: str = "none"
    gamma: float | None = None
    length: int = setting(25, "steps of a segment, L [50; 1 for frames]", ">= 1")
    pool: int = setting(400, "newest segments that pairs are drawn from, with frames where a judge reads them", ">= 2")
    seed_steps: int = setting(1000, "transitions before the first queries", ">= 0")
    every: int = setting(
        1000, "transitions from one session of queries to the next, at most one in each update", ">= 1"
    )
    queries: int = setting(20, "pairs that are labelled in one session", ">= 1")
    budget: int = setting(1000, "labels in total", ">= 1")
    epochs: int = setting(50, "most passes over the labels in one session")
    held_out: float = setting(0.1, "share of the labels that are kept to judge the reward by", "[0, 1)")
    batch_size: int = setting(32, "pairs in a minibatch [128]")
    max_grad_norm: float = 10.0


class LabelledPairs(Stateful):
    """Labelled pairs as the networks read them, and counts."""

    columns: ClassVar[tuple[str, ...]] = ("rows", "actions", "label", "held")
    saved = (*columns, "seen", "due", "asked", "fits")

    def __init__(self, due: int) -> None:
        # Inputs of n pairs, (n, 2, L, ...); the rows are not whitened.
        self.rows = self.actions = np.zeros((0, 2, 1, 1), np.float32)
        # The chance that the second is better, (n,); and which labels are held out to judge the reward by.
        self.label = np.zeros(0, np.float32)
        self.held = np.zeros(0, bool)
        # Transitions so far, and their number at which the next session is due.
        self.seen = 0
        self.due = due
        # Pairs that were asked about, and sessions that were learnt from.
        self.asked = 0
        self.fits = 0

    def __len__(self) -> int:
        return len(self.label)

    def add(self, *columns: np.ndarray) -> None:
        for name, new in zip(self.columns, columns):
            setattr(self, name, np.concatenate([getattr(self, name), new]) if len(self) else new)

    def split(self) -> tuple[np.ndarray, np.ndarray]:
        """Places of the labels to learn from, and of those held out; where all are held out, these serve as both."""
        held_out = np.flatnonzero(self.held)
        learnt = np.flatnonzero(~self.held)
        return learnt if len(learnt) else held_out, held_out


def passes_since_best(losses: list[float]) -> int:
    """How many passes ago the least of the losses on the labels held out was."""
    return len(losses) - 1 - losses.index(min(losses)) if losses else 0


class Sessions(Learned):
    """Base class: collects segments, and asks and learns when due."""

    Config = SessionsConfig
    role = "goal"
    segments: Segments
    labelled: LabelledPairs
    failure = ""

    @abstractmethod
    def session(self, most: int) -> dict[str, float]:
        """Ask about pairs of segments, and learn from `most` answers at most; a failing judge changes nothing."""

    def update(self, batch: Transitions) -> dict[str, float]:
        fresh = int(np.sum(batch.valid))
        if not fresh:
            return {}
        self.segments.add(batch)
        self.labelled.seen += fresh
        metrics: dict[str, float] = {}
        config = self.config
        pairs = self.labelled
        if pairs.seen >= pairs.due and len(pairs) < config.budget and len(self.segments) > 1:
            pairs.due += config.every * ((pairs.seen - pairs.due) // config.every + 1)
            metrics = self.session(config.budget - len(pairs))
        return {**metrics, "labels": float(len(pairs))}

    def judge_use(self) -> JudgeUse | None:
        return self._use_of(self.labelled.asked)

    def _use_of(self, asked: int) -> JudgeUse:
        """What a judge was asked, `asked` questions in this run; labels beyond them are answers from a file."""
        labels = len(self.labelled)
        answered = min(labels, asked)
        return JudgeUse(asked, answered, cached=labels - answered, labels=labels, failure=self.failure)

    def draw(self, queries: int) -> tuple[np.ndarray, np.ndarray]:
        """Places in the pool of the first and the second segment of each pair, never the same one."""
        count = len(self.segments)
        one = self.rng.integers(count, size=queries)
        offset = 1 + self.rng.integers(count - 1, size=queries)
        return one, (one + offset) % count

    def ask(self, judge: SegmentJudge, first: Transitions, second: Transitions, most: int) -> ComparedPairs | None:
        """What a judge says of pairs, or of earlier ones, NaN where unsure; None if it failed: `failure` says how."""
        try:
            first, second, answers = judge.ask(first, second, most)
            label = np.asarray(answers, np.float32)
            queries = first.shape[1]
            if label.shape != (queries,) or (label < 0).any() or (label > 1).any():
                raise ValueError(f"it answered {label} to {queries} pairs; give one number in [0, 1], or NaN, for each")
        # A judge may be anything, and training does not depend on its health.
        except Exception as error:
            self.failure = f"the judge {judge.name} failed and was left out of a session: {error}"
            return None
        if queries and np.isnan(label).all():
            self.failure = f"the judge {judge.name} answered none of {queries} pairs"
        return ComparedPairs(first, second, label)

    def is_undecided(self) -> bool:
        """Whether there is nothing to learn from the labels so far, as `failure` then says."""
        label = self.labelled.label
        if (label > 0.5).any() and (label < 0.5).any():
            return False
        which = "that both are equal" if (label == 0.5).all() else "for the same side"
        self.failure = f"all {len(label)} labels so far are {which}, which says nothing about a reward; check the judge"
        return True

    def notes(self) -> list[str]:
        return [self.failure] if self.failure else []
