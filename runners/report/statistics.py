"""Statistics of a handful of runs, with intervals that cover as often as they claim.

Everything is an interquartile mean (IQM) or a share, over runs that are strata: tasks, each with its seeds. Intervals
come from the stratified bootstrap of

    Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice", arXiv 2108.13264

with one difference. Resampling R runs shrinks their variance by (R - 1) / R and takes no account of how badly so few
runs estimate it, so that with five seeds a percentile interval meant to be of 95 % covers the truth in 86 to 93 %
(`python -m benchmarks coverage`). Both arms of the interval are therefore stretched by

    sqrt(R / (R - 1)) * t / z        t: Student's quantile, its degrees of freedom Welch and Satterthwaite's over strata

which brings it to 93 to 97. As R grows the factor goes to 1.

When it fails: with two or three seeds of something that succeeds or fails outright, all of them may agree by accident,
which no resampling can detect. One run has no interval: it is nan.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

Strata = Sequence[np.ndarray]
Statistic = Callable[[list[np.ndarray]], np.ndarray]  # arrays (B, R_k) -> (B, ...): B times the statistic of all strata

LEVEL, RESAMPLES = 0.95, 2000


class Estimate(NamedTuple):
    """A number or an array, and the ends of its interval."""

    value: Any
    low: Any
    high: Any


def iqm(values: Any, axis: int = -1) -> Any:
    """Interquartile mean: of what is left without the lowest and the highest quarter (of 5 values, one each)."""
    ordered = np.sort(np.asarray(values, np.float64), axis)
    n = ordered.shape[axis]
    cut = n // 4
    return ordered.take(range(cut, n - cut), axis).mean(axis)


def aggregate(scores: Strata) -> Estimate:
    """IQM of all runs of all tasks together; scores are (R_k,) for each task, in a common unit if there are several."""
    return interval(scores, lambda parts: iqm(np.concatenate(parts, 1)))


def mean_interval(values: Sequence[float]) -> Estimate:
    """The mean of two numbers or more, and Student's interval."""
    from scipy.stats import t

    numbers = np.asarray(values, np.float64)
    mean = float(numbers.mean())
    half = float(t.ppf((1 + LEVEL) / 2, len(numbers) - 1) * numbers.std(ddof=1) / np.sqrt(len(numbers)))
    return Estimate(mean, mean - half, mean + half)


def curve(values: np.ndarray) -> Estimate:
    """IQM over runs at each of P points: (R, P) -> arrays (P,). The band holds at each point, not for all at once."""
    return interval([np.asarray(values, np.float64)], lambda parts: iqm(parts[0], 1))


def profile(scores: Strata, thresholds: np.ndarray) -> Estimate:
    """Performance profile: the share of runs above each of K thresholds, mean over tasks; arrays (K,)."""
    limits = np.asarray(thresholds, np.float64)

    def shares(parts: list[np.ndarray]) -> np.ndarray:
        return np.mean([(part[:, :, None] > limits).mean(1) for part in parts], 0)

    return within(interval(scores, shares), 0, 1)


def probability_of_improvement(x: Strata, y: Strata) -> Estimate:
    """How often a run of x beats one of y on the same task, ties by half, mean over tasks; a point where all do."""
    _same(x, y)

    def wins(parts: list[np.ndarray]) -> np.ndarray:
        signs = [np.sign(a[:, :, None] - b[:, None, :]) for a, b in zip(parts[: len(x)], parts[len(x) :])]
        return np.mean([0.5 + 0.5 * sign.mean((1, 2)) for sign in signs], 0)

    return within(interval([*x, *y], wins), 0, 1)


def paired_difference(x: Strata, y: Strata) -> Estimate:
    """IQM of x - y, run by run: the i-th runs of a task share a seed; a ValueError if a task's cannot be paired."""
    _same(x, y)
    for one, other in zip(x, y):
        if len(one) != len(other):
            raise ValueError(f"{len(one)} and {len(other)} runs cannot be paired; give the seeds that both have")
    return aggregate([np.asarray(a, np.float64) - np.asarray(b, np.float64) for a, b in zip(x, y)])


def steps_to_threshold(steps: np.ndarray, values: np.ndarray, threshold: float) -> float:
    """The step, (P,) ascending, at which a curve (P,) first reaches a threshold, between points; inf for never."""
    reached = np.flatnonzero(np.asarray(values) >= threshold)
    if not len(reached):
        return float("inf")
    i = int(reached[0])
    if i == 0:
        return float(steps[0])
    rise = (threshold - values[i - 1]) / (values[i] - values[i - 1])
    return float(steps[i - 1] + rise * (steps[i] - steps[i - 1]))


def interval(strata: Strata, statistic: Statistic) -> Estimate:
    """A statistic and its stretched bootstrap interval, nan if a stratum has one run only; see the head of this file.

    `strata` are (R_k, ...) each, resampled on their own along the first axis; `statistic` takes arrays (B, R_k, ...)
    and gives (B, ...). A ValueError if there are no runs, or a score is nan.
    """
    parts = [np.asarray(part, np.float64) for part in strata]
    if not parts or min(map(len, parts)) == 0:
        raise ValueError("a task without runs has no score; leave it out, or run it")
    if not all(np.isfinite(part).all() for part in parts):
        raise ValueError("a score is nan or infinite; leave the run out and name it")
    value = statistic([part[None] for part in parts])[0]
    if min(map(len, parts)) == 1:
        return Estimate(value, np.full_like(value, np.nan)[()], np.full_like(value, np.nan)[()])
    low, high = percentiles(parts, statistic)
    stretch = _stretch(parts, statistic)
    return Estimate(value, (value + (low - value) * stretch)[()], (value + (high - value) * stretch)[()])


def within(estimate: Estimate, low: float, high: float) -> Estimate:
    """An estimate whose interval is cut to the possible range, which a stretched one may leave."""
    return Estimate(estimate.value, np.clip(estimate.low, low, high), np.clip(estimate.high, low, high))


def percentiles(strata: Strata, statistic: Statistic, *, resamples: int = RESAMPLES) -> tuple[Any, Any]:
    """The plain percentile interval of the stratified bootstrap."""
    generator = np.random.default_rng(0)  # the same numbers give the same interval
    drawn = [part[generator.integers(len(part), size=(resamples, len(part)))] for part in strata]
    low, high = np.quantile(statistic(drawn), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return low, high


def _stretch(parts: list[np.ndarray], statistic: Statistic) -> Any:
    """The factor for both arms, of the statistic's shape."""
    from scipy.stats import norm, t

    runs = np.array([len(part) for part in parts], np.float64)
    if len(parts) == 1:
        return float(np.sqrt(runs[0] / (runs[0] - 1)) * t.ppf((1 + LEVEL) / 2, runs[0] - 1) / norm.ppf((1 + LEVEL) / 2))
    variance = np.stack([_jackknife(parts, k, statistic) for k in range(len(parts))], -1)  # (..., K)
    total = variance.sum(-1)
    known = total > 0
    share = np.where(known[..., None], variance / np.where(known, total, 1)[..., None], 1 / len(parts))
    shrunk = (share * (runs - 1) / runs).sum(-1)
    freedom = 1 / (share**2 / (runs - 1)).sum(-1)
    return np.sqrt(1 / shrunk) * t.ppf((1 + LEVEL) / 2, freedom) / norm.ppf((1 + LEVEL) / 2)


def _jackknife(parts: list[np.ndarray], k: int, statistic: Statistic) -> np.ndarray:
    """What stratum k adds to the statistic's variance, by leaving out its runs one at a time."""
    n = len(parts[k])
    rows = np.array([[i for i in range(n) if i != left] for left in range(n)])
    without = statistic([part[rows] if i == k else part[None].repeat(n, 0) for i, part in enumerate(parts)])
    return (n - 1) / n * ((without - without.mean(0)) ** 2).sum(0)


class Controlled(NamedTuple):
    """A mean by `mfmc`, its 95 % interval, and what made it."""

    value: float
    low: float
    high: float
    correlation: float  # of dear and cheap
    ratio: float  # of its variance to that of the mean of the dear ones alone: 1 - correlation^2 (1 - N / M)


def mfmc(dear: Sequence[float], cheap: Sequence[float]) -> Controlled:
    """The mean of `dear` (N,), given `cheap` (M,), whose first N belong to them; ValueError unless 4 <= N < M.

        mu = mean_N(dear) + a (mean_M(cheap) - mean_N(cheap)),  a = cov / var;  variance: 1 - correlation^2 (1 - N / M)

    A mean from few dear numbers and many cheap ones that go with them: multi-fidelity Monte Carlo (MFMC).

    Source: Peherstorfer, Willcox, Gunzburger 2016, "Optimal model management for multifidelity Monte Carlo estimation".
    Difference: each dear number has a of the other pairs, as one that was fitted to its own is biased for few of them.
    The interval is t(N - 2) sqrt(var(terms) / N + mean(a)^2 var(cheap) / M), where terms are the N numbers whose mean
    is mu: it knows that a was fitted, and it covers as often as it says for 4 dear numbers, too
    (`mfmc_coverage_n4` of `python -m benchmarks repairs3:statistics`).
    When it fails: cheap numbers that say nothing of the dear ones save nothing; the interval is Student's, so it is too
    short for a few returns with rare disasters.

    Example:
        >>> mfmc([1, 2, 3, 4], [0, 1, 2, 3, -1, 1]).value
        2.0
    """
    from scipy import stats

    high, low = np.asarray(dear, np.float64), np.asarray(cheap, np.float64)
    n, m, pairs = len(high), len(low), low[: len(high)]
    if not 4 <= n < m:
        raise ValueError(f"{n} whole episodes and {m} cheap ones make no estimate; give 4 or more, and more cheap ones")
    slopes = np.array([_slope(np.delete(pairs, i), np.delete(high, i)) for i in range(n)])
    terms = high + slopes * (low.mean() - pairs)
    alike = bool(np.ptp(pairs) == 0 or np.ptp(high) == 0)
    correlation = 0.0 if alike else float(np.corrcoef(high, pairs)[0, 1])
    variance = terms.var(ddof=1) / n + slopes.mean() ** 2 * low.var() / m
    half = float(stats.t.ppf((1 + LEVEL) / 2, n - 2) * np.sqrt(variance))
    value = float(terms.mean())
    return Controlled(value, value - half, value + half, correlation, 1 - correlation**2 * (1 - n / m))


def _slope(x: np.ndarray, y: np.ndarray) -> float:
    """Of the least-squares line through points, 0 where all x are equal."""
    variance = x.var()
    return float(np.mean((x - x.mean()) * (y - y.mean())) / variance) if variance > 0 else 0.0


def _same(x: Strata, y: Strata) -> None:
    if len(x) != len(y):
        raise ValueError(f"{len(x)} and {len(y)} tasks cannot be compared; give the tasks that both have")
