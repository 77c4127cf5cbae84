"""A mean from few dear numbers and many cheap ones that go with them: multi-fidelity Monte Carlo (MFMC).

    mu = mean_N(dear) + a (mean_M(cheap) - mean_N(cheap)),  a = cov / var;  variance: 1 - correlation^2 (1 - N / M)

Source: Peherstorfer, Willcox, Gunzburger 2016, "Optimal model management for multifidelity Monte Carlo estimation".
Difference: each dear number has a of the other pairs, as one that was fitted to its own is biased for few of them.
When it fails: cheap numbers that say nothing of the dear ones save nothing; the interval is Student's, so it is too
short for a few returns with rare disasters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Controlled(NamedTuple):
    """A mean by `mfmc`, its 95 % interval, and what made it."""

    value: float
    low: float
    high: float
    correlation: float  # of dear and cheap
    ratio: float  # of its variance to that of the mean of the dear ones alone: 1 - correlation^2 (1 - N / M)


def mfmc(dear: Sequence[float], cheap: Sequence[float]) -> Controlled:
    """The mean of `dear` (N,), given `cheap` (M,), whose first N belong to them; ValueError unless 3 <= N < M.

    Example:
        >>> mfmc([1, 2, 3], [0, 1, 2, -0.5, 0.25, 0.25]).value
        1.5
    """
    high, low = np.asarray(dear, np.float64), np.asarray(cheap, np.float64)
    n, m, pairs = len(high), len(low), low[: len(high)]
    if not 3 <= n < m:
        raise ValueError(
            f"{n} whole episodes and {m} cheap ones make no estimate; give at least 3, and more cheap ones"
        )
    terms = np.empty(n)
    for i in range(n):
        x, y = np.delete(pairs, i), np.delete(high, i)
        var = x.var()
        a = np.mean((x - x.mean()) * (y - y.mean())) / var if var > 0 else 0.0
        terms[i] = high[i] + a * (low.mean() - pairs[i])
    alike = bool(np.ptp(pairs) == 0 or np.ptp(high) == 0)
    correlation = 0.0 if alike else float(np.corrcoef(high, pairs)[0, 1])
    ratio = 1 - correlation**2 * (1 - n / m)
    from scipy import stats

    half = float(stats.t.ppf(0.975, n - 1)) * math.sqrt(high.var(ddof=1) / n * ratio)
    value = float(terms.mean())
    return Controlled(value, value - half, value + half, correlation, ratio)
