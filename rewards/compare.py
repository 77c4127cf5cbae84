"""Distances between two rewards, without training anything.

    pearson, spearman   do they rise and fall together?                               [-1, 1], 0 where one is constant
    kendall             does a reward rank episodes by their outcomes?                   [-1, 1]
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

from envs.transitions import Transitions, index_obs
from envs.types import Array

# Random features of a state that a value is fitted with, at most.
MAX_COSINES = 128


def pearson(a: Array, b: Array) -> float:
    """Correlation of two arrays (N,), in [-1, 1]; 0 where one of them is constant."""
    a = np.asarray(a, np.float64)
    b = np.asarray(b, np.float64)
    a = a - a.mean()
    b = b - b.mean()
    length = np.sqrt((a @ a) * (b @ b))
    if length <= 1e-12 * max(len(a), 1):
        return 0.0
    return float(np.clip(a @ b / length, -1.0, 1.0))


def midranks(values: Array) -> np.ndarray:
    """Ranks from 1 (N,); equal values share the mean of theirs."""
    _, place, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    return ranks[place]


def spearman(a: Array, b: Array) -> float:
    """Pearson's correlation of the ranks."""
    return pearson(midranks(a), midranks(b))


def auroc(score: Array, positive: Array) -> float:
    """Probability that a row of `positive` (bool (N,)) scores above another; ties count half; NaN without both."""
    positive = np.asarray(positive, bool)
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if positives == 0 or negatives == 0:
        return float("nan")
    rank_sum = midranks(score)[positive].sum()
    # Less the least rank sum, which positives have where all are below the others (Mann and Whitney).
    wins = rank_sum - positives * (positives + 1) / 2
    return float(wins / (positives * negatives))


def kendall(score: Array, rank: Array) -> float:
    """Of the pairs with different ranks, the share in the order of the scores less that against it; ties count 0.

    NaN without such a pair. Where all ranks differ it is Kendall's tau-a.
    """
    score = np.asarray(score, np.float64)
    rank = np.asarray(rank, np.float64)
    above = np.triu(np.sign(rank[:, None] - rank[None]), 1)
    pairs = np.abs(above).sum()
    if not pairs:
        return float("nan")
    return float((above * np.sign(score[:, None] - score[None])).sum() / pairs)


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
    n = batch.shape[0]
    # Rows that S, A and S' are taken from.
    state = rng.integers(n, size=samples)
    action = rng.integers(n, size=samples)
    after = rng.integers(n, size=samples)
    draws = np.arange(samples)

    def score_from(start: Array, rows: Array, draws: Array) -> np.ndarray:
        """Scores from `start[rows]`, by the actions of these draws, to their successors."""
        obs = index_obs(start, rows)
        actions = batch.action[action[draws]]
        transitions = batch[after[draws]].replace(obs=obs, action=actions)
        return score(transitions)

    def expected_score(start: Array) -> np.ndarray:
        """E[R(start, A, S')] of each row, float64 (N,)."""
        rows = np.repeat(np.arange(n), samples)
        scores = score_from(start, rows, np.tile(draws, n))
        scores = np.asarray(scores, np.float64)
        return scores.reshape(n, samples).mean(1)

    mean = float(score_from(batch.obs, state, draws).mean())
    after_next = expected_score(batch.next_obs)
    after_obs = expected_score(batch.obs)
    scores = np.asarray(score(batch), np.float64)
    return scores + gamma * after_next - after_obs - gamma * mean


def starc_canonical(reward: np.ndarray, transition: np.ndarray, *, gamma: float) -> np.ndarray:
    """VAL: c(R)(s, a) = E[R(s, a, S') + gamma V(S') - V(s)], V the uniform policy's value: float64 (S, A).

    Takes rewards (S, A, S), 0 in rows of an absorbing end, probabilities (S, A, S), and a discount in [0, 1).
    """
    if reward.shape != transition.shape:
        raise ValueError(f"a reward of shape {reward.shape} and transitions {transition.shape} must both be (S, A, S)")
    if not 0 <= gamma < 1:
        raise ValueError(f"gamma={gamma} leaves values without end; give a discount in [0, 1)")
    expected = (transition * reward).sum(-1)
    # The uniform policy's value solves V = r + gamma P V, with r and P averaged over the actions.
    system = np.eye(len(expected)) - gamma * transition.mean(1)
    value = np.linalg.solve(system, expected.mean(1))
    return expected + gamma * transition @ value - value[:, None]


def starc_distance(first: Array, second: Array) -> float:
    """Half the L2 distance of two canonical rewards of length one, in [0, 1]; a trivial one (all zero) stays zero."""
    difference = _direction(first) - _direction(second)
    return float(np.linalg.norm(difference) / 2)


def _direction(canonical: Array) -> np.ndarray:
    """A canonical reward, flat and of length one; zeros for a trivial one."""
    flat = np.asarray(canonical, np.float64).ravel()
    length = np.linalg.norm(flat)
    if length > 1e-9 * np.sqrt(len(flat)):
        return flat / length
    return np.zeros_like(flat)


def starc(first: np.ndarray, second: np.ndarray, transition: np.ndarray, *, gamma: float) -> float:
    """STARC distance of two tables of rewards (S, A, S) in a known environment, exactly."""
    one = starc_canonical(first, transition, gamma=gamma)
    two = starc_canonical(second, transition, gamma=gamma)
    return starc_distance(one, two)


def fit_canonical(
    rewards: Array, now: Array, after: Array, terminated: Array, *, gamma: float, ridge: float = 1e-6
) -> np.ndarray:
    """VAL on a batch: r + gamma V(s') - V(s), V by least-squares temporal differences.

    Takes and returns rewards (N, R), float64, one column a reward; actions of the rows are the uniform policy's. `now`
    and `after` are features (N, D) of s and s', the first one a constant; `terminated` is bool (N,). `ridge` pulls the
    other weights to zero, in units of a feature's mean square.
    """
    rewards = np.asarray(rewards, np.float64)
    now = np.asarray(now, np.float64)
    after = np.asarray(after, np.float64)
    continues = ~np.asarray(terminated, bool)
    change = now - gamma * after * continues[:, None]
    width = now.shape[1]
    penalty = ridge * np.trace(now.T @ now) / width * np.eye(width)
    # The constant is free, as the level of a reward is no error.
    penalty[0, 0] = 0
    weights = np.linalg.solve(now.T @ change + penalty, now.T @ rewards)
    return rewards - change @ weights


def starc_on_distribution(
    first: Array, second: Array, now: Array, after: Array, terminated: Array, *, gamma: float = 0.9, ridge: float = 1e-3
) -> float:
    """STARC distance of two rewards (N,) on the batch's own distribution; arguments as in `fit_canonical`."""
    rewards = np.stack([first, second], 1)
    canonical = fit_canonical(rewards, now, after, terminated, gamma=gamma, ridge=ridge)
    return starc_distance(canonical[:, 0], canonical[:, 1])


def state_features(batch: Transitions, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features of obs and next_obs, float64 (N, D): one, the whitened observation if short, a cosine for ten rows."""
    states = np.concatenate([_flatten(batch.obs), _flatten(batch.next_obs)])
    std = states.std(0)
    varies = std > 1e-6
    states = (states - states.mean(0))[:, varies] / std[varies]
    rows, width = states.shape
    # `states` holds two of each row, so that there is a cosine for ten rows.
    count = min(MAX_COSINES, rows // 20)
    rng = np.random.default_rng(seed)
    slopes = rng.normal(size=(width, count)) / np.sqrt(max(width, 1))
    phases = rng.uniform(0, 2 * np.pi, count)
    columns = [np.ones((rows, 1)), np.cos(states @ slopes + phases)]
    if width <= count:
        columns.insert(1, states)
    before, after = np.split(np.concatenate(columns, 1), 2)
    return before, after


def _flatten(obs: Array) -> np.ndarray:
    """Observations (N, ...), or dicts of them, as float64 (N, D)."""
    if isinstance(obs, dict):
        parts = [_flatten(obs[key]) for key in sorted(obs)]
        return np.concatenate(parts, 1)
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
    finite = values[np.isfinite(values)]
    if len(finite) < resamples / 2:
        return float("nan"), float("nan")
    low, high = np.quantile(finite, [0.025, 0.975])
    return float(low), float(high)
