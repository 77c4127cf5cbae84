"""Judges that need no person: made-up teachers, an order of importance, CLIP, and labels from a file.

    scripted   the task's own return decides, with the faults of B-Pref's teachers. Synthetic: it knows the answer.
    heron      signals in order of importance decide: the first that differs by more than its margin.
    clip       the segment that looks more like a sentence, as CLIP sees it.
    recorded   labels from a file; in front of another judge it asks about each pair once.

Sources: Lee, Smith, Dragan, Abbeel 2021, "B-Pref", arXiv 2111.03026, section 4 (the teachers); Bukharin et al. 2023,
"Deep Reinforcement Learning from Hierarchical Preference Design" (HERON), arXiv 2309.02632 (the lexicographic
comparison); Rocamonde et al. 2023, arXiv 2310.12921 (the reward behind `clip`).
Differences: `scripted` skips a share of the pairs at random, where B-Pref's teacher skips pairs without anything good
in them; `heron` calls pairs without a difference equal, where the source drops them.
When they fail: `scripted` and `heron` read the simulator, so they say how well learning from comparisons works, not
where comparisons come from; `clip` is as blind as its model (see `rewards.vision.clip`).
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np

from envs.driving.vehicle import VEHICLE
from envs.types import Transitions, map_obs
from rewards.mix.scale import RunningMeanStd
from rewards.preference.judge import Judge


class Scripted(Judge):
    """Synthetic labels: the segment with the higher sum of the task's reward is better, but the teacher has faults.

    Args:
        mistakes: share of the answers that are turned round, in [0, 1].
        rationality: beta of P(second) = sigmoid(beta * gap), in one over the task's units; infinity never errs.
        skip: share of the pairs that stay unanswered, in [0, 1].
        margin: pairs whose sums differ by no more are equal, in the task's units.
        myopia: in (0, 1]; each step counts so many times as much as the one after it. 1 forgets nothing.
        seed: of the faults.
    """

    name = "scripted"
    requires = frozenset({"reward"})

    def __init__(
        self,
        mistakes: float = 0.0,
        rationality: float = math.inf,
        skip: float = 0.0,
        margin: float = 0.0,
        myopia: float = 1.0,
        seed: int = 0,
    ) -> None:
        for key, value in (("mistakes", mistakes), ("skip", skip)):
            if not 0 <= value <= 1:
                raise ValueError(f"judge scripted: {key}={value} is no share; give a number in [0, 1]")
        if not rationality > 0:
            raise ValueError(f"judge scripted: rationality={rationality} must be above 0; infinity never errs")
        if not 0 <= margin < math.inf:
            raise ValueError(f"judge scripted: margin={margin} must be 0 or more, in units of the task's reward")
        if not 0 < myopia <= 1:
            raise ValueError(f"judge scripted: myopia={myopia} is outside (0, 1]; 1 counts every step alike")
        self.mistakes, self.rationality, self.skip = mistakes, rationality, skip
        self.margin, self.myopia = margin, myopia
        self.rng = np.random.default_rng(seed)

    def compare(self, first: Transitions, second: Transitions) -> np.ndarray:
        length = first.shape[0]
        gap = np.asarray(second.reward - first.reward, np.float64)
        gap = self.myopia ** np.arange(length - 1, -1, -1.0) @ gap
        drawn = self.rng.random((3, len(gap)))  # always three a pair: one fault does not shift another
        if math.isinf(self.rationality):
            label = (gap > 0).astype(np.float32)
        else:
            chance = 1 / (1 + np.exp(-np.clip(self.rationality * gap, -50, 50)))
            label = (drawn[0] < chance).astype(np.float32)
        label = np.where(drawn[1] < self.mistakes, 1 - label, label)
        label[np.abs(gap) <= self.margin] = 0.5
        label[drawn[2] < self.skip] = np.nan
        return label.astype(np.float32)

    def notes(self) -> list[str]:
        return ["labels are synthetic: a scripted judge compares the task's own rewards, no person and no model does"]

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]


def lexicographic_preference(
    first: np.ndarray, second: np.ndarray, margins: Sequence[float] | np.ndarray, signs: Sequence[float] | np.ndarray
) -> np.ndarray:
    """HERON's comparison: the most important signal that differs by more than its margin decides.

    Args:
        first: signals (B, K), the most important first.
        second: signals (B, K).
        margins: (K,), at least 0, in units of the signals.
        signs: (K,), +1 where more is better, -1 where less is.

    Returns:
        float32 (B,): 1 where the second is better, 0 where the first is, 0.5 where none of the signals differs.
    """
    gap = (np.asarray(second) - np.asarray(first)) * np.asarray(signs)
    differs = np.abs(gap) > np.asarray(margins)
    decides = differs.argmax(axis=1)[:, None]  # the first that differs; column 0 if none does
    label = (np.take_along_axis(gap, decides, axis=1)[:, 0] > 0).astype(np.float32)
    label[~differs.any(axis=1)] = 0.5
    return label


class Heron(Judge):
    """Synthetic labels from signals of the simulator in order of importance; a segment's signal is its mean.

    Args:
        order: names or column numbers, the most important first; a minus before one says that less is better.
        margins: a number for all, or one for each: a difference that is no larger does not count.
        unit: of the margins. `std` is the running deviation of the segments' signals; `own` is that of the signal.
        names: what the columns of `signals` are called; a vehicle's unless given.
    """

    name = "heron"
    requires = frozenset({"signals"})

    def __init__(
        self,
        order: Sequence[str | int],
        margins: float | Sequence[float] = 0.5,
        unit: str = "std",
        names: Sequence[str] = VEHICLE,
    ) -> None:
        if not order:
            raise ValueError("judge heron: order is empty; name signals, the most important first, as in [speed,-gap]")
        if unit not in ("std", "own"):
            raise ValueError(f"judge heron: unit={unit!r} is neither std nor own")
        self.signs = np.array([-1.0 if str(signal).startswith("-") else 1.0 for signal in order])
        self.width = len(names)
        self.columns = [_column(str(signal).lstrip("+-"), names) for signal in order]
        given = np.asarray(margins, np.float64)
        if given.ndim and len(given) != len(order):
            raise ValueError(f"judge heron: {len(given)} margins for {len(order)} signals; give one, or one for each")
        self.margins = np.broadcast_to(given, len(order))
        if not (self.margins >= 0).all():
            raise ValueError(f"judge heron: margins={margins} must be 0 or more")
        self.unit = unit
        self.statistics = RunningMeanStd((len(order),))

    def compare(self, first: Transitions, second: Transitions) -> np.ndarray:
        if first.signals is None or first.signals.shape[-1] != self.width:
            found = "no" if first.signals is None else first.signals.shape[-1]
            raise ValueError(f"there are {found} signals, and names for {self.width}; name them in names=[...]")
        means = [np.asarray(side.signals, np.float64)[..., self.columns].mean(axis=0) for side in (first, second)]
        margins = self.margins
        if self.unit == "std":
            self.statistics.update(np.concatenate(means))
            margins = margins * self.statistics.std
        return lexicographic_preference(means[0], means[1], margins, self.signs)

    def notes(self) -> list[str]:
        return ["labels are synthetic: signals of the simulator are compared in order of importance"]

    def state_dict(self) -> dict[str, Any]:
        return {"statistics": self.statistics.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.statistics.load_state_dict(state["statistics"])


def _column(signal: str, names: Sequence[str]) -> int:
    if signal in names:
        return list(names).index(signal)
    if signal.isdigit() and int(signal) < len(names):
        return int(signal)
    raise ValueError(f"judge heron: order names {signal!r}, which is no signal; choose among {', '.join(names)}")


class Clip(Judge):
    """The segment whose frames look more like a sentence on average, as the reward `clip` rates them.

    Args:
        goal: as in `reward.clip`; so are baseline, alpha, model and weights.
        baseline: the sentence for any frame.
        alpha: goal-baseline regularisation, in [0, 1].
        model: `lodestar`, or another that `reward.clip.model` takes.
        weights: as `reward.clip.weights`.
        margin: pairs whose mean scores differ by no more are equal, in cosines.
        seed: of untrained weights.
        device: of the model.
    """

    name = "clip"
    requires = frozenset({"frame"})

    def __init__(
        self,
        goal: str,
        baseline: str = "",
        alpha: float = 0.0,
        model: str = "lodestar",
        weights: str = "",
        margin: float = 0.0,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        from rewards.vision.clip import Clip as Reward
        from rewards.vision.clip import ClipConfig

        if not margin >= 0:
            raise ValueError(f"judge clip: margin={margin} must be 0 or more, in cosines")
        config = ClipConfig(goal=goal, baseline=baseline, alpha=alpha, model=model, weights=weights)
        nowhere = gym.spaces.Discrete(1)  # CLIP looks at frames, whatever the spaces are
        self.reward = Reward(config, nowhere, nowhere, seed=seed, device=device)
        self.frame_size, self.embedding, self.margin = self.reward.frame_size, self.reward.embedding, margin

    def compare(self, first: Transitions, second: Transitions) -> np.ndarray:
        one, two = (self.reward.score(side.flatten()).reshape(side.shape).mean(axis=0) for side in (first, second))
        gap = two - one
        return np.where(np.abs(gap) <= self.margin, 0.5, gap > 0).astype(np.float32)

    def embed(self, batch: Transitions) -> np.ndarray:
        return self.reward.embed(batch)

    def notes(self) -> list[str]:
        return ["labels are CLIP's, no person gives them", *self.reward.notes()]


class Recorded(Judge):
    """Labels from a file, found by what the segments contain; what is not there is asked of `judge`, and written.

    A line of the file is one pair: `first` and `second` (`fingerprint` of a segment), `label` in [0, 1], `judge` (who
    said it). JSON lines, or CSV if the name ends in .csv. Without a judge, unknown pairs stay unanswered. What a judge
    did not answer is not written, and is asked again.

    Args:
        path: the file; made when the first label comes.
        judge: who is asked; none replays only.

    Raises:
        ValueError: for a line that is no label, or one of another judge.
    """

    name = "recorded"

    def __init__(self, path: str, judge: Judge | None = None) -> None:
        self.path, self.judge = Path(path), judge
        if judge is None and not self.path.is_file():
            raise ValueError(f"judge recorded: there is no file {path}; give one with labels")
        if judge is not None:
            self.requires, self.frame_size, self.embedding = judge.requires, judge.frame_size, judge.embedding
        self.labels: dict[tuple[str, str], float] = {}
        for number, row in enumerate(self._read(), start=1):
            try:
                label = float(row["label"])
                key = str(row["first"]), str(row["second"])
            except (KeyError, TypeError, ValueError):
                label = -1.0
            if not 0 <= label <= 1:
                raise ValueError(f"{path}, label {number} is {row}; it needs first, second and a label in [0, 1]")
            if judge is not None and row.get("judge", judge.name) != judge.name:
                raise ValueError(
                    f"{path}, label {number} is of the judge {row['judge']}, not {judge.name}; use a new file"
                )
            self.labels[key] = label

    def compare(self, first: Transitions, second: Transitions) -> np.ndarray:
        keys = list(zip(fingerprint(first), fingerprint(second)))
        label = np.array([self._known(key) for key in keys], np.float32)
        unknown = np.flatnonzero(np.isnan(label))
        if self.judge is not None and len(unknown):
            label[unknown] = self.judge.compare(first[:, unknown], second[:, unknown])
            new = [(keys[i], float(label[i])) for i in unknown if not math.isnan(label[i])]
            self.labels.update(new)
            self._write(new)
        return label

    def embed(self, batch: Transitions) -> np.ndarray:
        return super().embed(batch) if self.judge is None else self.judge.embed(batch)

    def notes(self) -> list[str]:
        known = f"{len(self.labels)} labels are read from {self.path}" if self.labels else f"labels go to {self.path}"
        return [known, *(self.judge.notes() if self.judge else [])]

    def state_dict(self) -> dict[str, Any]:
        return self.judge.state_dict() if self.judge else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.judge:
            self.judge.load_state_dict(state)

    def _known(self, key: tuple[str, str]) -> float:
        if key in self.labels:
            return self.labels[key]
        return 1 - self.labels.get(key[::-1], math.nan)

    def _read(self) -> list[dict[str, Any]]:
        if not self.path.is_file():
            return []
        with self.path.open(newline="", encoding="utf-8") as file:
            if self.path.suffix == ".csv":
                return list(csv.DictReader(file))
            rows = []
            for number, line in enumerate(file, start=1):
                try:
                    rows += [dict(json.loads(line))] if line.strip() else []
                except (TypeError, ValueError):
                    raise ValueError(f"{self.path}, line {number} is no JSON object; is it a file of labels?") from None
            return rows

    def _write(self, new: list[tuple[tuple[str, str], float]]) -> None:
        if not new:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        begun = self.path.is_file()
        name = cast(Judge, self.judge).name
        rows = [{"first": one, "second": two, "label": label, "judge": name} for (one, two), label in new]
        with self.path.open("a", newline="", encoding="utf-8") as file:
            if self.path.suffix == ".csv":
                writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                if not begun:
                    writer.writeheader()
                writer.writerows(rows)
            else:
                file.writelines(json.dumps(row) + "\n" for row in rows)


def fingerprint(segments: Transitions) -> list[str]:
    """What names each of B segments (L, B) in a file of labels: 16 hexadecimal digits of its states and actions."""
    columns: list[np.ndarray] = []
    for part in (segments.obs, segments.action, segments.next_obs):
        map_obs(columns.append, part)
    names = []
    for b in range(segments.shape[1]):
        digest = hashlib.sha256()
        for column in columns:
            digest.update(np.ascontiguousarray(column[:, b]).tobytes())
        names.append(digest.hexdigest()[:16])
    return names
