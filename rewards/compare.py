"""Distances between two rewards, without training anything.

    pearson, spearman   do they rise and fall together?                               [-1, 1], 0 where one is constant
    auroc               does the reward put goal states above the others?             [0, 1], 0.5 is chance
    epic                Pearson as a distance, blind to potential shaping and scale   [0, 1]
    starc               distance that bounds regret from both sides                   [0, 1]
    interval            bootstrap interval of any of them, over rows

Sources:
    EPIC    Gleave et al. 2021, "Quantifying Differences in Reward Functions" (arXiv 2006.13900), definitions 4.1, 4.6.
    goals   Rocamonde et al. 2023 (arXiv 2310.12921), lemma 1: for rewards of a state EPIC is sqrt((1 - rho) / 2).
    STARC   Skalse et al. 2024, "STARC: A General Framework For Quantifying Differences Between Reward Functions"
            (arXiv 2309.15257): value-adjusted levelling (VAL), L2 norm, L2 metric, uniform policy.
Differences: EPIC's expectations use the same S' and A for every row, so potential shaping cancels exactly. The suite's
own `shape=potential` does not where episodes end: its potential is 0 at an end, whatever the state (.159 is left where
12 % of the rows are ends). STARC's metric is halved, so that the worst is 1. `starc_on_distribution` fits the values by
least squares on the batch, with one S' for each (s, a): exact where they lie in the span of the features and the
environment is deterministic, else an estimate without the source's guarantees, ill-posed as the discount nears 1 where
rows do not follow each other.
When it fails: all of it holds for the distribution of the rows. A policy that goes elsewhere meets another reward.
EPIC uses transitions that cannot happen; two rewards that order all policies alike may be far apart in it.
"""

from collections.abc import Callable

import numpy as np

from envs.transitions import Transitions, map_obs
from envs.types import Array

FOURIER = 128  # random features of a state at most, for a fitted value
TINY = 1e-12


def pearson(a: Array, b: Array) -> float:
    """Correlation of two arrays (N,), in [-1, 1]; 0 where one of them is constant."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    a, b = a - a.mean(), b - b.mean()
    length = np.sqrt((a @ a) * (b @ b))
    small = length <= TINY * max(len(a), 1)
    return 0.0 if small else float(np.clip(a @ b / length, -1.0, 1.0))


def midranks(values: Array) -> np.ndarray:
    """Ranks from 1 (N,); equal values share the mean of theirs."""
    _, place, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


def spearman(a: Array, b: Array) -> float:
    """Pearson's correlation of the ranks."""
    return pearson(midranks(a), midranks(b))


def auroc(score: Array, positive: Array) -> float:
    """Probability that a row of `positive` (bool (N,)) scores above another; ties count half; NaN without both."""
    positive = np.asarray(positive, bool)
    many, few = int(positive.sum()), int((~positive).sum())
    if many == 0 or few == 0:
        return float("nan")
    return float((midranks(score)[positive].sum() - many * (many + 1) / 2) / (many * few))


def epic(a: Array, b: Array) -> float:
    """sqrt((1 - rho) / 2) of canonical rewards (N,); a reward of the next state alone is canonical as it is."""
    return float(np.sqrt((1 - pearson(a, b)) / 2))


def epic_canonical(
    score: Callable[[Transitions], np.ndarray],
    batch: Transitions,
    *,
    gamma: float,
    samples: int = 64,
    rng: np.random.Generator,
) -> np.ndarray:
    """C(R)(s, a, s') = R(s, a, s') + E[gamma R(s', A, S') - R(s, A, S') - gamma R(S, A, S')], for the rows of a batch.

    `score` gives rewards of any flat batch, float32 (M,), without reading `reward`. S, A and S' are drawn from the
    rows, independently, `samples` for each expectation, and rows * samples transitions scored, twice. Float64 (N,).
    """

    def joined(start: Array, state: Array, action: Array, after: Array) -> Transitions:
        """From `start[state]`, by the action of row `action`, to row `after`'s successor."""
        return batch[after].replace(obs=map_obs(lambda x: x[state], start), action=batch.action[action])

    n = batch.shape[0]
    state, action, after = (rng.integers(n, size=samples) for _ in range(3))
    mean = float(score(joined(batch.obs, state, action, after)).mean())
    rows, tile = np.repeat(np.arange(n), samples), np.tile(np.arange(samples), n)
    expected = []
    for start in (batch.next_obs, batch.obs):
        made = joined(start, rows, action[tile], after[tile])
        expected.append(np.asarray(score(made), np.float64).reshape(n, samples).mean(1))
    return np.asarray(score(batch), np.float64) + gamma * expected[0] - expected[1] - gamma * mean


def starc_canonical(reward: np.ndarray, transition: np.ndarray, *, gamma: float) -> np.ndarray:
    """VAL: c(R)(s, a) = E[R(s, a, S') + gamma V(S') - V(s)], V the uniform policy's value: float64 (S, A).

    Takes rewards (S, A, S), 0 in rows of an absorbing end, probabilities (S, A, S), and a discount in [0, 1).
    """
    if reward.shape != transition.shape:
        raise ValueError(f"a reward of shape {reward.shape} and transitions {transition.shape} must both be (S, A, S)")
    if not 0 <= gamma < 1:
        raise ValueError(f"gamma={gamma} leaves values without end; give a discount in [0, 1)")
    expected = (transition * reward).sum(-1)
    value = np.linalg.solve(np.eye(len(expected)) - gamma * transition.mean(1), expected.mean(1))
    return expected + gamma * transition @ value - value[:, None]


def starc_distance(first: Array, second: Array) -> float:
    """Half the L2 distance of two canonical rewards of length one, in [0, 1]; a trivial one (all zero) stays zero."""
    parts = []
    for canonical in (first, second):
        flat = np.asarray(canonical, np.float64).ravel()
        length = np.linalg.norm(flat)
        parts.append(flat / length if length > 1e-9 * np.sqrt(len(flat)) else np.zeros_like(flat))
    return float(np.linalg.norm(parts[0] - parts[1]) / 2)


def starc(first: np.ndarray, second: np.ndarray, transition: np.ndarray, *, gamma: float) -> float:
    """STARC distance of two tables of rewards (S, A, S) in a known environment, exactly."""
    return starc_distance(*(starc_canonical(reward, transition, gamma=gamma) for reward in (first, second)))


def fit_canonical(
    rewards: Array, now: Array, after: Array, terminated: Array, *, gamma: float, ridge: float = 1e-6
) -> np.ndarray:
    """VAL on a batch: r + gamma V(s') - V(s), V by least-squares temporal differences.

    Takes and returns rewards (N, R), float64, one column a reward; actions of the rows are the uniform policy's. `now`
    and `after` are features (N, D) of s and s', the first one a constant; `terminated` is bool (N,). `ridge` pulls the
    other weights to zero, in units of a feature's mean square.
    """
    rewards, now, after = (np.asarray(x, np.float64) for x in (rewards, now, after))
    change = now - gamma * after * ~np.asarray(terminated, bool)[:, None]
    pull = ridge * np.trace(now.T @ now) / now.shape[1] * np.eye(now.shape[1])
    pull[0, 0] = 0
    weights = np.linalg.solve(now.T @ change + pull, now.T @ rewards)
    return rewards - change @ weights


def starc_on_distribution(
    first: Array, second: Array, now: Array, after: Array, terminated: Array, *, gamma: float = 0.9, ridge: float = 1e-3
) -> float:
    """STARC distance of two rewards (N,) on the batch's own distribution; arguments as in `fit_canonical`."""
    columns = fit_canonical(np.stack([first, second], 1), now, after, terminated, gamma=gamma, ridge=ridge)
    return starc_distance(columns[:, 0], columns[:, 1])


def state_features(batch: Transitions, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features of obs and next_obs, float64 (N, D): one, the whitened observation if short, a cosine for ten rows."""
    both = [_flat(x) for x in (batch.obs, batch.next_obs)]
    mean, std = np.concatenate(both).mean(0), np.concatenate(both).std(0)
    whitened = [(x - mean)[:, std > 1e-6] / std[std > 1e-6] for x in both]
    width = whitened[0].shape[1]
    rng = np.random.default_rng(seed)
    many = min(FOURIER, len(whitened[0]) // 10)
    slopes = rng.normal(size=(width, many)) / np.sqrt(max(width, 1))
    phases = rng.uniform(0, 2 * np.pi, many)
    now, after = (
        np.concatenate([np.ones((len(x), 1)), *([x] if width <= many else []), np.cos(x @ slopes + phases)], 1)
        for x in whitened
    )
    return now, after


def _flat(obs: Array) -> np.ndarray:
    if isinstance(obs, dict):
        return np.concatenate([_flat(obs[key]) for key in sorted(obs)], 1)
    return np.asarray(obs, np.float64).reshape(len(obs), -1)


def interval(
    function: Callable[..., float], *arrays: Array, resamples: int = 200, seed: int = 0
) -> tuple[float, float]:
    """95 % percentile bootstrap of `function(*arrays)` over rows; NaN where too few draws have a value."""
    rng = np.random.default_rng(seed)
    n = len(arrays[0])
    values = np.empty(resamples)
    for i in range(resamples):
        rows = rng.integers(n, size=n)
        values[i] = function(*(x[rows] for x in arrays))
    known = values[np.isfinite(values)]
    if len(known) < resamples / 2:
        return float("nan"), float("nan")
    low, high = np.quantile(known, [0.025, 0.975])
    return float(low), float(high)
