"""Streams balanced by their policy gradients: a direction in which no stream loses, instead of weights tuned by hand.

    g_k = mean of A_k grad log pi, on part of the rollout        u_k = g_k / |g_k|        A = sum_k p_k A_k / |g_k|

    min_norm   p_k ~ w_k a_k, a = argmin over the simplex of |sum_k a_k u_k|^2 = |d|^2: no d . u_k is below |d|^2
    normalize  no gradients: A = sum_k w_k (A_k - mean A_k) / std A_k over the rollout, each stream of equal size
    project    from each w_k g_k what it has against another is taken, (g_k . g_j / |g_j|^2) g_j where that is negative;
               p_k is the share of u_k in the sum of what is left

Once a rollout, then ordinary epochs: the surrogate is linear in A. p moves as an average over rollouts (0.9). A stream
whose gradient is below 1e-3 of the longest has nothing to learn yet and is left out until it has. Streams that are not
balanced are added by their weights, and the balanced part is as large as without balance.

Sources: "MARBLE: Multi-Aspect Reward Balance for Diffusion RL", its abstract: min_norm, once a rollout, averaged; by
Frank and Wolfe's method with pairwise steps, Lacoste-Julien & Jaggi 2015, arXiv 1511.05932, section 2; Yu et al. 2020,
arXiv 2001.06782, algorithm 1: project; "GDPO: Group reward-Decoupled Normalization Policy Optimization" 2026, arXiv
2601.05242: normalize, there over a group of answers.
Differences: the vectors have length 1, so a reward's scale does not matter to min_norm; other weights than 1 give up
its guarantee, 0 removes a stream, a negative one turns its gradient round; project takes streams in order, not at
random.
Fails when: a stream is noise, with a veto like every other (see `balance_only`); one goal must lose first for the other
to win: a pendulum that should be upright with little torque hangs still (`python -m benchmarks balance`).
"""

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from agents.ppo.seams import Combiner, ScoredRollout

if TYPE_CHECKING:
    from agents.ppo.agent import PPO

# How much of the shares' average is kept from one rollout to the next.
SHARE_MEMORY = 0.9
# Of the longest gradient: a stream with a shorter one has nothing to learn yet.
MIN_GRADIENT_SHARE = 1e-3
# Steps of Frank and Wolfe's method for each stream, at most, and the slope where it has arrived.
STEPS_A_STREAM = 50
SLOPE_TOLERANCE = 1e-9
# An advantage is divided by at least this deviation.
MIN_ADVANTAGE_DEVIATION = 1e-8


class Balance(Combiner):
    """Turns the advantages of streams into one; its state is the average of the shares p."""

    saved = ("shares",)
    needs_gradients = True

    def __init__(self, agent: "PPO") -> None:
        super().__init__()
        config = agent.config
        streams = list(agent.streams)
        self.names = config.balance_only or streams
        unknown = [name for name in self.names if name not in streams]
        if unknown:
            raise ValueError(
                f"agent.balance_only names {unknown[0]!r}, which is no stream of this reward; give at least two of "
                f"{', '.join(streams)}"
            )
        repeats = len({*self.names}) < len(self.names)
        if len(self.names) < 2 or repeats:
            raise ValueError(
                f"agent.balance={config.balance} has only {', '.join(self.names)} to balance; give at least two "
                "streams, each once, as in reward=[task,rnd], and agent.streams=separate"
            )
        self.method = {"min_norm": min_norm, "project": project}.get(config.balance)
        self.needs_gradients = self.method is not None
        self.columns = [streams.index(name) for name in self.names]
        even_share = 1 / len(self.names)
        self.shares = np.full(len(self.names), even_share)

    def combine(self, scored: ScoredRollout) -> np.ndarray:
        advantage = scored.advantages
        gradients = scored.gradients
        weights = scored.weights * scored.seen
        valid = scored.transitions.valid
        if self.method is None:
            return self._add_normalized(advantage, weights, valid)
        deviation = advantage[valid].std(0)[self.columns]
        weight = weights.mean((0, 1))[self.columns]
        # What a negative weight asks for is the opposite gradient, with the size of the weight.
        sign = np.sign(weight)
        weight = np.abs(weight)
        norm = np.zeros(len(self.names))
        for column, name in enumerate(self.names):
            if name in gradients:
                norm[column] = float(gradients[name].norm())

        # A gradient's length for an advantage of deviation 1, whatever the scale of the reward.
        counts = (deviation > 0) & (weight > 0)
        whitened = np.divide(norm, deviation, out=np.zeros_like(norm), where=counts)
        live = np.flatnonzero(whitened > MIN_GRADIENT_SHARE * whitened.max())
        self.metrics = {f"stream/{name}/share": 0.0 for name in self.names}
        others = np.delete(advantage * weights, self.columns, -1).sum(-1)
        if not len(live):
            return others

        live_gradients = torch.stack([gradients[self.names[column]] for column in live])
        directions = live_gradients.double().cpu().numpy() * sign[live, None]
        live_shares = self.shares[live]
        new_shares = self.method(directions, weight[live])
        mixed = SHARE_MEMORY * live_shares / live_shares.sum() + (1 - SHARE_MEMORY) * new_shares
        self.shares[live] = live_shares.sum() * mixed
        for place, share in zip(live.tolist(), mixed.tolist()):
            self.metrics[f"stream/{self.names[place]}/share"] = share

        # As large as the sum it stands for, so that the weights of the others keep their meaning.
        factors = mixed / norm[live]
        sum_size = np.square(weight * deviation)[live].sum()
        size = np.square(factors * deviation[live]).sum()
        factors *= math.sqrt(sum_size / size)
        signed = (sign[live] * factors).astype(np.float32)
        columns = [self.columns[column] for column in live]
        return advantage[..., columns] @ signed + others

    def _add_normalized(self, advantage: np.ndarray, weights: np.ndarray, valid: np.ndarray) -> np.ndarray:
        """One advantage (T, N) of those of all streams, (T, N, K), the balanced ones with mean 0 and deviation 1."""
        advantage = advantage.copy()
        columns = advantage[..., self.columns]
        deviation = np.maximum(columns[valid].std(0), MIN_ADVANTAGE_DEVIATION)
        centred = columns - columns[valid].mean(0)
        advantage[..., self.columns] = centred / deviation
        return (advantage * weights).sum(-1)


def min_norm(gradients: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Shares (K,) of unit vectors: the shortest vector in the convex hull of the directions of (K, P), then weighted.

    Example:
        >>> min_norm(np.array([[3.0, 0.0], [0.0, 0.1]]), np.ones(2)).tolist()
        [0.5, 0.5]
    """
    units = gradients / np.linalg.norm(gradients, axis=1, keepdims=True)
    shares = weights * frank_wolfe(units @ units.T)
    return shares / shares.sum()


def frank_wolfe(products: np.ndarray) -> np.ndarray:
    """argmin of a @ products @ a over the simplex, (K,), by pairwise steps; (K, K) inner products."""
    point = np.full(len(products), 1 / len(products))
    for _ in range(STEPS_A_STREAM * len(point)):
        # Move weight from the corner where the slope is steepest to the one where it is least.
        slope = products @ point
        to = int(slope.argmin())
        live_slope = np.where(point > 0, slope, -np.inf)
        away = int(live_slope.argmax())
        descent = slope[away] - slope[to]
        squares = products[to, to] + products[away, away]
        curvature = squares - 2 * products[to, away]
        if descent <= SLOPE_TOLERANCE or curvature <= 0:
            break
        step = min(descent / curvature, point[away])
        point[to] += step
        point[away] -= step
    return point


def project(gradients: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Shares (K,) of unit vectors in the sum of what weighted gradients (K, P) are without their conflicts.

    Example:
        >>> project(np.array([[2.0, 0.0], [1.0, 0.0]]), np.ones(2)).round(2).tolist()  # no conflict: the sum
        [0.67, 0.33]
    """
    weighted = gradients * weights[:, None]
    products = weighted @ weighted.T
    # Row k: stream k's gradient without its conflicts, in terms of the weighted gradients.
    coefficients = np.eye(len(weights))
    for k, row in enumerate(coefficients):
        for j in range(len(coefficients)):
            if j != k:
                conflict = min(float(row @ products[j]), 0.0)
                row[j] -= conflict / products[j, j]
    shares = coefficients.sum(0) * np.sqrt(np.diag(products))
    return shares / shares.sum()
