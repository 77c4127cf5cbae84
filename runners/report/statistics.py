"""Statistics of a handful of runs, with intervals that cover as often as they claim.

Everything is an interquartile mean (IQM) or a share, over runs that are strata: tasks, each with its seeds. Intervals
come from the stratified bootstrap of

    Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice", arXiv 2108.13264

with one difference. Resampling R runs shrinks their variance by (R - 1) / R and takes no account of how badly so few
runs estimate it, so that with five seeds a percentile interval meant to be of 95 % covers the truth in 86 to 93 %
(`python -m benchmarks coverage`). Both arms of the interval are therefore stretched by

    sqrt(R / (R - 1)) * t / z        t: Student's quantile, its degrees of freedom Welch and Satterthwaite's over strata

which brings it to 93 to 97. As R grows the factor goes to 1.

When it fails: with two or three seeds of something that either succeeds or fails, all of them may agree by accident,
which no resampling can detect. One run has no interval: it is nan.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri, stdtrit

# An array of scores for each task, (R_k,).
Strata = Sequence[np.ndarray]
# Arrays (B, R_k) of B resamples -> (B, ...), the statistic of all strata in each.
Statistic = Callable[[list[np.ndarray]], np.ndarray]

CONFIDENCE = 0.95
# Quantiles at which such an interval ends.
LOWER_QUANTILE = (1 - CONFIDENCE) / 2
UPPER_QUANTILE = (1 + CONFIDENCE) / 2
RESAMPLES = 2000


class Estimate(NamedTuple):
    """A number or an array, and the ends of its interval."""

    value: Any
    low: Any
    high: Any


def iqm(values: Any, axis: int = -1) -> Any:
    """Interquartile mean: without the lowest and the highest quarter (of 5 values, one each)."""
    ordered = np.sort(np.asarray(values, np.float64), axis)
    size = ordered.shape[axis]
    return ordered.take(range(size // 4, size - size // 4), axis).mean(axis)


def aggregate(scores: Strata) -> Estimate:
    """IQM of all runs of all tasks; scores are (R_k, ...) for each task, several in a common unit.

    Of curves (R_k, P) it is the IQM at each of P points, whose band holds at each point, not for all of them at once.
    """
    return interval(scores, lambda parts: iqm(np.concatenate(parts, 1), 1))


def mean_interval(values: Sequence[float]) -> Estimate:
    """The mean of two numbers or more, and Student's interval."""
    numbers = np.asarray(values, np.float64)
    size = len(numbers)
    mean = float(numbers.mean())
    half = float(stdtrit(size - 1, UPPER_QUANTILE) * numbers.std(ddof=1) / np.sqrt(size))
    return Estimate(mean, mean - half, mean + half)


def profile(scores: Strata, thresholds: np.ndarray) -> Estimate:
    """Performance profile, arrays (K,): the share of runs above each threshold, mean over tasks."""

    def shares_above(parts: list[np.ndarray]) -> np.ndarray:
        return np.mean([(part[:, :, None] > thresholds).mean(1) for part in parts], 0)

    return clip_interval(interval(scores, shares_above), 0, 1)


def probability_of_improvement(x: Strata, y: Strata) -> Estimate:
    """How often a run of x beats one of y on the same task, ties by half, mean over tasks.

    The interval is a point if every run of one side beats every run of the other.
    """
    _check_same_tasks(x, y)

    def share_of_wins(parts: list[np.ndarray]) -> np.ndarray:
        shares = []
        for ours, theirs in zip(parts[: len(x)], parts[len(x) :]):
            signs = np.sign(ours[:, :, None] - theirs[:, None, :])
            shares.append(0.5 + 0.5 * signs.mean((1, 2)))
        return np.mean(shares, 0)

    return clip_interval(interval([*x, *y], share_of_wins), 0, 1)


def paired_difference(x: Strata, y: Strata) -> Estimate:
    """IQM of x - y, run by run: the i-th runs of a task share a seed.

    Raises a ValueError if the runs of a task cannot be paired.
    """
    _check_same_tasks(x, y)
    differences = []
    for ours, theirs in zip(x, y):
        if len(ours) != len(theirs):
            raise ValueError(f"{len(ours)} and {len(theirs)} runs cannot be paired; give the seeds that both have")
        differences.append(np.asarray(ours, np.float64) - np.asarray(theirs, np.float64))
    return aggregate(differences)


def steps_to_threshold(steps: np.ndarray, values: np.ndarray, threshold: float) -> float:
    """The step at which a curve first reaches a threshold, between its points; inf for never.

    `steps` (P,) are ascending, `values` (P,).
    """
    reached = np.flatnonzero(np.asarray(values) >= threshold)
    if not len(reached):
        return float("inf")
    after = int(reached[0])
    if after == 0:
        return float(steps[0])
    before = after - 1
    share = (threshold - values[before]) / (values[after] - values[before])
    return float(steps[before] + share * (steps[after] - steps[before]))


def interval(strata: Strata, statistic: Statistic) -> Estimate:
    """A statistic and its stretched bootstrap interval; see the head of this file.

    `strata` are (R_k, ...) each, resampled on their own along the first axis; `statistic` takes
    arrays (B, R_k, ...) and gives (B, ...). The ends are NaN if a stratum has one run only.
    Raises a ValueError if there are no runs, or a score is NaN or infinite.
    """
    fewest = min(map(len, strata), default=0)
    if fewest == 0:
        raise ValueError("a task without runs has no score; leave it out, or run it")
    parts = []
    for stratum in strata:
        part = np.asarray(stratum, np.float64)
        if not np.isfinite(part).all():
            raise ValueError("a score is nan or infinite; leave the run out and name it")
        parts.append(part)
    value = statistic([part[None] for part in parts])[0]
    if fewest == 1:
        no_end = value * np.nan
        return Estimate(value, no_end, no_end)
    low, high = value + (percentiles(parts, statistic) - value) * _stretch(parts, statistic)
    return Estimate(value, low, high)


def clip_interval(estimate: Estimate, low: float, high: float) -> Estimate:
    """An estimate, its interval cut to the possible range, which a stretched one may leave."""
    value, *ends = estimate
    return Estimate(value, *np.clip(ends, low, high))


def percentiles(strata: Strata, statistic: Statistic, *, resamples: int = RESAMPLES) -> np.ndarray:
    """The ends (2, ...) of the plain percentile interval of the stratified bootstrap."""
    # A fixed seed: the same numbers give the same interval.
    generator = np.random.default_rng(0)
    samples = []
    for part in strata:
        rows = generator.integers(len(part), size=(resamples, len(part)))
        samples.append(part[rows])
    return np.quantile(statistic(samples), [LOWER_QUANTILE, UPPER_QUANTILE], axis=0)


def _stretch(parts: list[np.ndarray], statistic: Statistic) -> Any:
    """The factor for both arms of an interval, of the statistic's shape."""
    runs = np.array(list(map(len, parts)), np.float64)
    if len(parts) == 1:
        # It has all of the variance. The jackknife would take memory that grows with the square of the runs.
        growth = runs[0] / (runs[0] - 1)
        freedom = runs[0] - 1
        return np.sqrt(growth) * stdtrit(freedom, UPPER_QUANTILE) / ndtri(UPPER_QUANTILE)
    # Each stratum weighs by its share of the statistic's variance, on the last axis.
    variance = np.stack([_jackknife(parts, stratum, statistic) for stratum in range(len(parts))], -1)
    total = variance.sum(-1)[..., None]
    share = np.where(total > 0, variance / np.where(total > 0, total, 1), 1 / len(parts))
    growth = 1 / (share * (runs - 1) / runs).sum(-1)
    # The equation of Welch and Satterthwaite.
    freedom = 1 / (share**2 / (runs - 1)).sum(-1)
    return np.sqrt(growth) * stdtrit(freedom, UPPER_QUANTILE) / ndtri(UPPER_QUANTILE)


def _jackknife(parts: list[np.ndarray], stratum: int, statistic: Statistic) -> np.ndarray:
    """What a stratum adds to the statistic's variance, by leaving out its runs one at a time."""
    runs = parts[stratum]
    size = len(runs)
    resampled = [part[None].repeat(size, 0) for part in parts]
    resampled[stratum] = np.stack([np.delete(runs, left_out, 0) for left_out in range(size)])
    values = statistic(resampled)
    return (size - 1) / size * ((values - values.mean(0)) ** 2).sum(0)


class Controlled(NamedTuple):
    """A mean by `mfmc` and its 95 % interval.

    `correlation` is the one of full and cheap returns. `ratio` is the mean's variance divided by
    that of the mean of the full returns alone: 1 - correlation^2 (1 - N / M).
    """

    value: float
    low: float
    high: float
    correlation: float
    ratio: float


def mfmc(full: Sequence[float], cheap: Sequence[float]) -> Controlled:
    """The mean of `full` (N,), given `cheap` (M,), whose first N belong to the full ones.

        mu = mean_N(full) + a (mean_M(cheap) - mean_N(cheap)),  a = cov / var
        variance: 1 - correlation^2 (1 - N / M) of that of the mean of `full`

    A mean from few full returns and many cheap ones that are correlated with them: multi-fidelity
    Monte Carlo (MFMC). Raises a ValueError unless 4 <= N < M.

    Source: Peherstorfer, Willcox, Gunzburger 2016, "Optimal model management for multifidelity
    Monte Carlo estimation".
    Difference: each full return has the slope a of the other pairs, as one that was fitted to its
    own pair is biased if there are few. The interval is
    t(N - 2) sqrt(var(terms) / N + mean(a)^2 var(cheap) / M), where terms are the N numbers whose
    mean is mu. It accounts for a being fitted, and covers as often as it says for 4 full returns,
    too (`mfmc_coverage_n4` of `python -m benchmarks repairs3:statistics`).
    When it fails: cheap returns that are not correlated with the full ones save nothing; the
    interval is Student's, so it is too short for a few returns with rare disasters.

    Example:
        >>> mfmc([1, 2, 3, 4], [0, 1, 2, 3, -1, 1]).value
        2.0
    """
    full_returns = np.asarray(full, np.float64)
    cheap_returns = np.asarray(cheap, np.float64)
    n = len(full_returns)
    m = len(cheap_returns)
    if not 4 <= n < m:
        raise ValueError(f"{n} whole episodes and {m} cheap ones make no estimate; give 4 or more, and more cheap ones")
    paired = cheap_returns[:n]
    slopes = np.zeros(n)
    for i in range(n):
        slopes[i] = _slope(np.delete(paired, i), np.delete(full_returns, i))
    terms = full_returns + slopes * (cheap_returns.mean() - paired)
    correlation = 0.0
    if np.ptp(paired) != 0 and np.ptp(full_returns) != 0:
        correlation = float(np.corrcoef(full_returns, paired)[0, 1])
    variance = terms.var(ddof=1) / n + slopes.mean() ** 2 * cheap_returns.var() / m
    half = float(stdtrit(n - 2, UPPER_QUANTILE) * np.sqrt(variance))
    value = float(terms.mean())
    return Controlled(value, value - half, value + half, correlation, 1 - correlation**2 * (1 - n / m))


def _slope(x: np.ndarray, y: np.ndarray) -> float:
    """Of the least-squares line through points, 0 where all x are equal."""
    variance = x.var()
    if not variance > 0:
        return 0.0
    return float(np.mean((x - x.mean()) * (y - y.mean())) / variance)


def _check_same_tasks(x: Strata, y: Strata) -> None:
    if len(x) != len(y):
        raise ValueError(f"{len(x)} and {len(y)} tasks cannot be compared; give the tasks that both have")
