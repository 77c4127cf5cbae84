"""Judges of segments that need no person: synthetic teachers, an order of importance, CLIP, and labels from a file.

    scripted   the task's own return decides, with the faults of B-Pref's teachers. Synthetic: it knows the answer.
    circle     each discrete action beats the one before it, the first the last: stone, paper, scissors. Synthetic.
    heron      signals in order of importance decide: the first that differs by more than its margin.
    clip       the segment that looks more like a sentence, as CLIP sees it.
    recorded   labels from a file; in front of another judge it asks about each pair once. A person's (`human`), too.

Sources: Lee, Smith, Dragan, Abbeel 2021, "B-Pref", arXiv 2111.03026, section 4 (the teachers); Bukharin et al. 2023,
"Deep Reinforcement Learning from Hierarchical Preference Design" (HERON), arXiv 2309.02632 (the lexicographic
comparison); Rocamonde et al. 2023, arXiv 2310.12921 (the reward behind `clip`).
Differences: `scripted` skips pairs at random, where B-Pref's skips those without anything good; `heron` calls pairs
without a difference equal, where the source drops them.
When they fail: `scripted` and `heron` read the simulator, so they show how well learning from comparisons works, not
where comparisons come from; `clip` is as blind as its model (see `rewards.vision.clip`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from envs.driving.vehicle import VEHICLE
from envs.transitions import Transitions
from lodestar.settings import setting
from lodestar.state import Stateful
from rewards.base import RunningMeanStd
from rewards.llm.judges.base import SegmentJudge, make_judge
from rewards.llm.store import AnswerStore, Item, Label
from rewards.preference.answers import KeptAnswers, fingerprint


@dataclass(eq=False)
class Scripted(Stateful, SegmentJudge):
    """Synthetic labels: the segment with the higher sum of the task's reward is better, but the teacher has faults."""

    mistakes: float = setting(0.0, "share of the answers that are inverted", "[0, 1]")
    rationality: float = setting(math.inf, "beta of P(second) = sigmoid(beta * gap); infinity never errs")
    skip: float = setting(0.0, "share of the pairs that stay unanswered", "[0, 1]")
    margin: float = setting(0.0, "pairs whose sums differ by no more are equal, in the task's units", ">= 0")
    myopia: float = setting(1.0, "weight of a step relative to the next one; 1 weighs all alike", "(0, 1]")
    seed: int = setting(0, "of the faults")

    name = "scripted"
    synthetic = True
    saved = ("rng",)
    requires = frozenset({"reward"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rationality > 0:
            raise ValueError(f"judge scripted: rationality={self.rationality} must be above 0; infinity never errs")
        self.rng = np.random.default_rng(self.seed)

    def compare(self, first: Transitions, second: Transitions) -> np.ndarray:
        step_weights = self.myopia ** np.arange(first.shape[0] - 1, -1, -1.0)
        gap = step_weights @ np.asarray(second.reward - first.reward, np.float64)
        # Always three numbers a pair, so that one fault does not shift another.
        choice, inversion, skip = self.rng.random((3, len(gap)))
        if math.isinf(self.rationality):
            second_is_better = gap > 0
        else:
            logits = np.clip(self.rationality * gap, -50, 50)
            second_is_better = choice < 1 / (1 + np.exp(-logits))
        label = (second_is_better ^ (inversion < self.mistakes)).astype(np.float32)
        label[np.abs(gap) <= self.margin] = 0.5
        label[skip < self.skip] = np.nan
        return label

    def notes(self) -> list[str]:
        return ["labels are synthetic: a scripted judge compares the task's own rewards, no person and no model does"]


def lexicographic_preference(
    first: np.ndarray, second: np.ndarray, margins: np.ndarray, signs: np.ndarray
) -> np.ndarray:
    """HERON's comparison: the most important signal that differs by more than its margin decides.

    Signals are (B, K), the most important first; margins (K,), at least 0, in their units; signs (K,) +1 where more is
    better, -1 where less is. Returns float32 (B,): 1 where the second is better, 0 where the first is, 0.5 for neither.
    """
    gap = (second - first) * signs
    differs = np.abs(gap) > margins
    # The first signal that differs, column 0 if none does.
    decisive = differs.argmax(axis=1)[:, None]
    label = (np.take_along_axis(gap, decisive, axis=1)[:, 0] > 0).astype(np.float32)
    label[~differs.any(axis=1)] = 0.5
    return label


@dataclass(eq=False)
class Circle(SegmentJudge):
    """Synthetic labels without an order: of two last actions in a circle the one within half a turn ahead is better."""

    arms: int = setting(3, "discrete actions in the circle, the first of them 0", ">= 3")

    name = "circle"
    synthetic = True
    requires = frozenset({"action"})

    def compare(self, first: Transitions, second: Transitions) -> np.ndarray:
        # How many places the second's action is ahead of the first's.
        ahead = (np.asarray(second.action[-1]) - first.action[-1]).reshape(first.shape[1]) % self.arms
        is_tie = (ahead == 0) | (2 * ahead == self.arms)
        return np.where(is_tie, 0.5, 2 * ahead < self.arms).astype(np.float32)

    def notes(self) -> list[str]:
        return ["labels are synthetic: each action beats the one before it, so that none is best"]


@dataclass(eq=False)
class Heron(Stateful, SegmentJudge):
    """Synthetic labels from signals of the simulator in order of importance; a segment's signal is its mean."""

    order: Sequence[str | int] = setting(help="names or columns, the most important first; a minus: less is better")
    margins: float | Sequence[float] = setting(0.5, "for all, or each: a difference no larger does not count", ">= 0")
    unit: str = setting("std", "of the margins: running deviations of signals, or their own", "std | own")
    names: Sequence[str] = setting(VEHICLE, "of the columns of `signals`; a vehicle's unless given")

    name = "heron"
    synthetic = True
    saved = ("statistics",)
    requires = frozenset({"signals"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.order:
            raise ValueError("judge heron: order is empty; name signals, the most important first, as in [speed,-gap]")
        # A column may be given as a number, and is a text with its sign.
        signals = list(map(str, self.order))
        self.signs = np.where(np.strings.startswith(signals, "-"), -1.0, 1.0)
        self.columns = [self._column(signal.lstrip("+-")) for signal in signals]
        margins = np.asarray(self.margins, np.float64)
        count = len(signals)
        if margins.ndim and len(margins) != count:
            raise ValueError(f"judge heron: {len(margins)} margins for {count} signals; give one, or one for each")
        self.thresholds = np.broadcast_to(margins, count)
        self.statistics = RunningMeanStd((count,))

    def compare(self, first: Transitions, second: Transitions) -> np.ndarray:
        width = "no" if first.signals is None else first.signals.shape[-1]
        if width != len(self.names):
            raise ValueError(f"there are {width} signals, and names for {len(self.names)}; name them in names=[...]")
        means = [np.asarray(side.signals, np.float64)[..., self.columns].mean(axis=0) for side in (first, second)]
        margins = self.thresholds
        # Margins in deviations need no knowledge of the signals' units.
        if self.unit == "std":
            self.statistics.update(np.concatenate(means))
            margins = margins * self.statistics.std
        return lexicographic_preference(means[0], means[1], margins, self.signs)

    def notes(self) -> list[str]:
        return ["labels are synthetic: signals of the simulator are compared in order of importance"]

    def _column(self, signal: str) -> int:
        """The column of a signal, given by its name or as a number."""
        names = list(self.names)
        if signal in names:
            return names.index(signal)
        if signal.isdigit() and int(signal) < len(names):
            return int(signal)
        raise ValueError(f"judge heron: order names {signal!r}, which is no signal; choose among {', '.join(names)}")


@dataclass(eq=False)
class ClipJudge(SegmentJudge):
    """The segment whose frames look more like a sentence on average, as the reward `clip` rates them."""

    goal: str = setting(help="as in reward.clip; so are the next four")
    baseline: str = setting("")
    alpha: float = setting(0.0)
    model: str = setting("lodestar")
    weights: str = setting("")
    margin: float = setting(0.0, "pairs whose mean scores differ by no more are equal, in cosines", ">= 0")
    seed: int = setting(0, "of untrained weights")
    device: str = setting("cpu", "of the model")

    name = "clip"
    requires = frozenset({"frame"})

    def __post_init__(self) -> None:
        from rewards.vision.clip import Clip, ClipConfig

        super().__post_init__()
        config = ClipConfig(
            goal=self.goal, baseline=self.baseline, alpha=self.alpha, model=self.model, weights=self.weights
        )
        # CLIP reads frames only, whatever the spaces are.
        space = gym.spaces.Discrete(1)
        self.reward = Clip(config, space, space, seed=self.seed, device=self.device)
        self.frame_size = self.reward.frame_size
        self.embedding = self.reward.embedding

    def compare(self, first: Transitions, second: Transitions) -> np.ndarray:
        gap = self._mean_score(second) - self._mean_score(first)
        return np.where(np.abs(gap) <= self.margin, 0.5, gap > 0).astype(np.float32)

    def _mean_score(self, segments: Transitions) -> np.ndarray:
        """The mean of CLIP's scores over each segment (L, B): (B,)."""
        scores = self.reward.rate(self.reward.frame_embeddings(segments.flatten()))
        return scores.reshape(segments.shape).mean(axis=0)

    def embed(self, batch: Transitions) -> np.ndarray:
        return self.reward.embed(batch)

    def notes(self) -> list[str]:
        return ["labels are CLIP's, no person gives them", *self.reward.notes()]


class RecordedPreferences(SegmentJudge):
    """Labels from a file, found by the segments' fingerprints; unknown pairs are asked of `judge`, if any, and kept.

    The file is an `AnswerStore`, or without a judge also JSON lines or CSV: `first` and `second` (`fingerprint` of a
    segment), `label` in [0, 1]. From a person's answers, which come with their segments, the reward learns at once.
    """

    name = "recorded"
    source: SegmentJudge | KeptAnswers

    def __init__(self, path: str, judge: SegmentJudge | None = None) -> None:
        self.path = path
        self.judge = judge
        self.labels: dict[Item, float] = {}
        if judge is not None:
            self.requires = judge.requires
            self.frame_size = judge.frame_size
            self.embedding = judge.embedding
            # The judge's own state goes into checkpoints; the answers are in the file already.
            self.store = AnswerStore(path)
            self.source = judge
        elif Path(path).is_file():
            self.source = KeptAnswers(path)
            self.labels = dict(self.source.labels.items())
        else:
            raise ValueError(f"judge recorded: there is no file {path}; give one with labels")

    def ask(self, first: Transitions, second: Transitions, most: int) -> tuple[Transitions, Transitions, np.ndarray]:
        if isinstance(self.source, KeptAnswers) and self.source.has_segments:
            return self.source.take(first, most)
        return super().ask(first, second, most)

    def compare(self, first: Transitions, second: Transitions) -> np.ndarray:
        keys = list(zip(fingerprint(first), fingerprint(second)))
        if self.judge is not None:
            self.labels = self.store.get(self.judge.name, [*keys, *(key[::-1] for key in keys)])
        # A pair may have been compared the other way round.
        answers = [self.labels.get(key, 1 - self.labels.get(key[::-1], math.nan)) for key in keys]
        label = np.array(answers, np.float32)
        unknown = np.flatnonzero(np.isnan(label))
        if self.judge is not None and len(unknown):
            label[unknown] = self.judge.compare(first[:, unknown], second[:, unknown])
            new = [Label(keys[i], float(label[i])) for i in unknown if not math.isnan(label[i])]
            self.store.put(self.judge.name, new)
        return label

    def embed(self, batch: Transitions) -> np.ndarray:
        return super().embed(batch) if self.judge is None else self.judge.embed(batch)

    def reach(self) -> str:
        return "" if self.judge is None else self.judge.reach()

    def notes(self) -> list[str]:
        use = f"{len(self.labels)} labels are read from" if self.judge is None else "labels are kept in"
        return [f"{use} {self.path}", *self.source.notes()]

    def state_dict(self) -> dict[str, Any]:
        return self.source.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.source.load_state_dict(state)


def make_segment_judge(name: str, *, cached: str = "", **options: Any) -> SegmentJudge:
    """A judge of segments by its name; its answers are kept in the file `cached`, so that no pair is asked twice."""
    if cached and name == "human":
        raise ValueError(f"cached={cached}: the judge human keeps its answers itself; give answers=FILE instead")
    judge: SegmentJudge = make_judge(name, "segments", **options)
    if cached:
        return RecordedPreferences(cached, judge)
    return judge
