"""Figures of a study from the rows of its runs, with intervals, and the interval of the difference of two figures.

A figure is a statistic over the seeds of one cell. A share is a formula over figures. Their intervals are those of
`runners.report.statistics`: a bootstrap over seeds, each cell resampled on its own, stretched for few seeds.

Two figures are compared by the interval of their difference, and never by whether their own intervals overlap: that
rule finds an effect of two deviations with five seeds in 22 % of the cases, the difference in 68 %
(`python -m benchmarks rule`). Where two cells have the same seeds and their scores are correlated by more than 0.3, the
difference is taken seed by seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from runners.evaluation.play import interval
from runners.report import statistics

PAIRED_CORRELATION = 0.3  # from which on runs that share a seed are compared seed by seed
Keys = dict[str, Any]
Rows = list[dict[str, Any]]
Shares = Mapping[str, list[str]]  # key -> its formula, see the head of `benchmarks.study`

# Each takes scores (..., R) of R runs and gives (...).
STATISTICS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "iqm": statistics.iqm,
    "mean": lambda values: np.mean(values, -1),
    "median": lambda values: np.median(values, -1),
    "min": lambda values: np.min(values, -1),
    "max": lambda values: np.max(values, -1),
    "count": lambda values: np.full(values.shape[:-1], values.shape[-1], np.float64),
}
# Statistics whose bootstrap interval means something for a handful of runs.
WITH_INTERVAL = ("iqm", "mean")
# Each takes K figures (K, ...) and gives (...).
EXTREMES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "least": lambda values: values.min(0),
    "mean": lambda values: values.mean(0),
    "most": lambda values: values.max(0),
    "gap": lambda values: 1 - values.min(0),
    "doubling": lambda values: np.apply_along_axis(doubling, 0, values),
}


class Specification(Protocol):
    """What figures need to know of a study; see the head of `benchmarks.study`."""

    @property
    def tasks(self) -> Mapping[str, Keys]:
        """Keys of each task."""
        ...

    @property
    def arms(self) -> Mapping[str, Keys | str]:
        """Keys of each arm, or the policy that it is."""
        ...

    @property
    def score(self) -> str:
        """The column that is drawn."""
        ...

    @property
    def threshold(self) -> float | None:
        """When a run counts as solved."""
        ...

    @property
    def figures(self) -> Mapping[str, str]:
        """Figure by figure: of every cell, as in "{task}_{arm}"."""
        ...

    @property
    def shares(self) -> Shares:
        """Formulas over figures."""
        ...


class Sample(NamedTuple):
    """The runs behind one figure."""

    column: str
    statistic: str
    seeds: list[str]
    values: np.ndarray  # (R,); inf for a run that never did what is measured

    @property
    def value(self) -> float:
        """The figure itself."""
        return float(STATISTICS[self.statistic](self.values))


def figures(study: Specification, rows: Rows) -> dict[str, float]:
    """All figures and shares that rows allow, with KEY_low and KEY_high where there is an interval."""
    samples = samples_of(study, rows)
    found: dict[str, float] = {}
    for key, sample in samples.items():
        if np.isfinite(sample.value):
            found |= _with_interval(key, sample.value, _sample_interval(sample))
    for key in study.shares:
        leaves = leaves_of(key, study.shares)
        if not samples.keys() >= leaves:
            continue
        point = {leaf: np.asarray(samples[leaf].value) for leaf in leaves}
        value = float(evaluate(key, study.shares, point))
        if np.isfinite(value):
            found |= _with_interval(key, value, _share_interval(key, study.shares, samples))
    return found


def samples_of(study: Specification, rows: Rows) -> dict[str, Sample]:
    """The runs behind every figure that has some."""
    found: dict[str, Sample] = {}
    for task, about in study.tasks.items():
        score = about.get("score", study.score)
        timed = about.get("threshold", study.threshold) is not None
        for arm, keys in study.arms.items():
            own_rows = [row for row in rows if row["task"] == task and row["arm"] == arm]
            for key, wanted in study.figures.items():
                if "solved_at" in wanted and (not timed or isinstance(keys, str)):
                    continue
                sample = read_sample(wanted.replace("score", score), own_rows)
                if sample is not None:
                    found[key.format(task=task, arm=arm)] = sample
    return found


def read_sample(wanted: str, rows: Rows) -> Sample | None:
    """The runs of a cell that a figure is about; None if there are none.

    Args:
        wanted: "COLUMN" or "STATISTIC COLUMN [else COLUMN] [where COLUMN]". For a statistic, a run without a number
            counts as inf, or as the column after `else`; without one, it is left out.
        rows: of the cell.
    """
    wanted, _, condition = wanted.partition(" where ")
    if condition:
        rows = [row for row in rows if read_number(row[condition]) is not None]
    wanted, _, instead = wanted.partition(" else ")
    statistic, _, column = wanted.rpartition(" ")
    return make_sample(rows, column, statistic, instead)


def make_sample(rows: Rows, column: str, statistic: str = "", instead: str = "") -> Sample | None:
    """The values of a column, one a run; see `read_sample`."""
    seeds: list[str] = []
    values: list[float] = []
    for row in rows:
        number = read_number(row[column])
        if number is None and not statistic:
            continue
        if number is None:
            number = float(row[instead]) if instead else np.inf
        seeds.append(str(row["seed"]))
        values.append(number)
    if not values:
        return None
    return Sample(column, statistic or "iqm", seeds, np.array(values))


def read_number(text: str | None) -> float | None:
    """The number in a cell of a CSV; None if the cell is empty."""
    return float(text) if text not in (None, "", "None") else None


def leaves_of(key: str, shares: Shares) -> set[str]:
    """The figures that a figure or a share is made of."""
    parts = shares.get(key)
    if parts is None:
        return {key}
    if parts[0] in EXTREMES:
        parts = parts[1:]
    return set().union(*(leaves_of(part, shares) for part in parts))


def evaluate(key: str, shares: Shares, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """A figure or a share of figures (...), all of one shape; nan where a share's denominator is not above 0."""
    parts = shares.get(key)
    if parts is None:
        return values[key]
    if parts[0] in EXTREMES:
        return EXTREMES[parts[0]](np.stack([evaluate(part, shares, values) for part in parts[1:]]))
    of = evaluate(parts[0], shares, values)
    low = evaluate(parts[1], shares, values) if len(parts) > 2 else np.zeros_like(of)
    high = evaluate(parts[-1], shares, values) if len(parts) > 1 else np.ones_like(of)
    span = np.where(high > low, high - low, np.nan)
    return (of - low) / span


def difference(samples: Mapping[str, Sample], shares: Shares, left: str, right: str) -> statistics.Estimate:
    """Figure `left` minus figure `right`, or of shares, with its interval.

    Raises:
        KeyError: if a figure has no sample.
        ValueError: if a run never did what is measured; a figure with `else` says what such a run counts as.
    """
    if left in samples and right in samples:
        paired = pair_samples(samples[left], samples[right])
        if paired is not None:
            return statistics.interval([paired], lambda parts: STATISTICS[samples[left].statistic](parts[0]))

    def subtract(values: Mapping[str, np.ndarray]) -> np.ndarray:
        return evaluate(left, shares, values) - evaluate(right, shares, values)

    return _bootstrap(leaves_of(left, shares) | leaves_of(right, shares), samples, subtract)


def pair_samples(left: Sample, right: Sample) -> np.ndarray | None:
    """Differences (R,) seed by seed; None unless seeds and statistic are the same and scores go together."""
    if left.seeds != right.seeds or left.statistic != right.statistic or len(left.seeds) < 3:
        return None
    if np.ptp(left.values) == 0 or np.ptp(right.values) == 0:
        return None
    correlation = np.corrcoef(left.values, right.values)[0, 1]
    return left.values - right.values if correlation > PAIRED_CORRELATION else None


def recorded_difference(left: Sequence[float], right: Sequence[float]) -> tuple[float, float]:
    """The interval of a difference where only (value, low, high) of both sides are recorded.

    Source: Zou and Donner 2008, "Construction of confidence limits about effect measures: a general approach" (MOVER).

    Example:
        >>> recorded_difference((2.0, 1.7, 2.3), (1.0, 0.6, 1.4))
        (0.5, 1.5)
    """
    value = left[0] - right[0]
    down = np.hypot(left[0] - left[1], right[2] - right[0])
    up = np.hypot(left[2] - left[0], right[0] - right[1])
    return round(float(value - down), 12), round(float(value + up), 12)


def doubling(values: np.ndarray) -> float:
    """The ratio of costs at which two halves first reach the highest value that both do, linear between the values."""
    halves = [np.maximum.accumulate(half) for half in np.split(np.asarray(values), 2)]
    goal = min(half[-1] for half in halves)
    costs: list[float] = []
    for half in halves:
        first = int(np.argmax(half >= goal))
        position = float(first)
        if first:
            position += (goal - half[first - 1]) / (half[first] - half[first - 1]) - 1
        costs.append(position)
    return float(2.0 ** (costs[0] - costs[1]))


def _with_interval(key: str, value: float, ends: tuple[float, float] | None) -> Iterator[tuple[str, float]]:
    yield key, value
    if ends is not None:
        yield f"{key}_low", ends[0]
        yield f"{key}_high", ends[1]


def _sample_interval(sample: Sample) -> tuple[float, float] | None:
    if sample.statistic not in WITH_INTERVAL or not np.isfinite(sample.values).all():
        return None
    if sample.statistic == "iqm":
        low, high = interval(list(sample.values))
    elif len(sample.values) > 1:
        _, low, high = statistics.interval([sample.values], lambda parts: STATISTICS["mean"](parts[0]))
    else:
        return None
    if sample.column == "success":
        low, high = np.clip([low, high], 0, 1)
    return float(low), float(high)


def _share_interval(key: str, shares: Shares, samples: Mapping[str, Sample]) -> tuple[float, float] | None:
    leaves = leaves_of(key, shares)
    if not all(np.isfinite(samples[leaf].values).all() for leaf in leaves):
        return None
    _, low, high = _bootstrap(leaves, samples, lambda values: evaluate(key, shares, values))
    if not np.isfinite([low, high]).all():
        return None
    return float(low), float(high)


def _bootstrap(
    leaves: set[str],
    samples: Mapping[str, Sample],
    formula: Callable[[Mapping[str, np.ndarray]], np.ndarray],
) -> statistics.Estimate:
    """A formula of figures with its interval: the runs of every figure are resampled on their own."""
    ordered = sorted(leaves)

    def statistic(parts: list[np.ndarray]) -> np.ndarray:
        values = {leaf: STATISTICS[samples[leaf].statistic](part) for leaf, part in zip(ordered, parts)}
        return formula(values)

    return statistics.interval([samples[leaf].values for leaf in ordered], statistic)
