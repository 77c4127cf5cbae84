"""Streams balanced by their policy gradients: a direction in which no stream loses, instead of weights tuned by hand.

    g_k = mean of A_k grad log pi, on part of the rollout        u_k = g_k / |g_k|        A = sum_k p_k A_k / |g_k|

    min_norm   p_k ~ w_k a_k, a = argmin over the simplex of |sum_k a_k u_k|^2 = |d|^2: no d . u_k is below |d|^2
    project    from each w_k g_k what it has against another is taken, (g_k . g_j / |g_j|^2) g_j where that is negative;
               p_k is the share of u_k in the sum of what is left

Once a rollout, then ordinary epochs: the surrogate is linear in A. p moves as an average over rollouts (0.9). A stream
whose gradient is below 1e-3 of the longest has nothing to learn yet and is left out until it has. Streams that are not
balanced are added by their weights, and the balanced part is as large as without balance.

Sources: "MARBLE: Multi-Aspect Reward Balance for Diffusion RL", its abstract: min_norm, once a rollout, averaged; by
Frank and Wolfe's method with pairwise steps, Lacoste-Julien & Jaggi 2015, arXiv 1511.05932, section 2; Yu et al. 2020,
arXiv 2001.06782, algorithm 1: project. Differences: the vectors have length 1, so a reward's scale does not matter to
min_norm; other weights than 1 give up its guarantee, 0 removes a stream, a negative one turns its gradient round;
project takes streams in order, not at random.
Fails when: a stream is noise, with a veto like every other (see `balance_only`); one goal must lose first for the other
to win: a pendulum that should be upright with little torque hangs still (`python -m benchmarks balance`).
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from agents.ppo.config import PPOConfig
from lodestar.state import Stateful

RHO = 0.9  # of the average over rollouts
LEAST = 1e-3  # of the longest gradient
ROUNDS = 50  # for each stream


class Balance(Stateful):
    """Turns the advantages of streams into one; its state is the average of the shares p."""

    saved = ("shares",)

    def __init__(self, config: PPOConfig, streams: Sequence[str]) -> None:
        self.names = config.balance_only or list(streams)
        if unknown := [name for name in self.names if name not in streams]:
            raise ValueError(
                f"agent.balance_only names {unknown[0]!r}, which is no stream of this reward; give at least two of "
                f"{', '.join(streams)}"
            )
        if len(self.names) < 2 or len({*self.names}) < len(self.names):
            raise ValueError(
                f"agent.balance={config.balance} has only {', '.join(self.names)} to balance; give at least two "
                "streams, each once, as in reward=[task,rnd], and agent.streams=separate"
            )
        self.method = {"min_norm": min_norm, "project": project}[config.balance]
        self.columns = [list(streams).index(name) for name in self.names]
        self.shares = np.full(len(self.names), 1 / len(self.names))
        self.metrics: dict[str, float] = {}  # tags of the last rollout

    def __call__(
        self, pulls: Mapping[str, Tensor], advantage: np.ndarray, weights: np.ndarray, valid: np.ndarray
    ) -> np.ndarray:
        """One advantage (T, N) of those of all streams, (T, N, K); `pulls` are stream -> its policy gradient (P,)."""
        size, weight = advantage[valid].std(0)[self.columns], weights.mean((0, 1))[self.columns]
        norm = np.array([float(pulls[name].norm()) if name in pulls else 0.0 for name in self.names])
        # What a negative weight asks for is the opposite gradient, with the size of the weight.
        sign, weight = np.sign(weight), np.abs(weight)
        whitened = np.divide(norm, size, out=np.zeros_like(norm), where=(size > 0) & (weight > 0))
        live = np.flatnonzero(whitened > LEAST * whitened.max())
        others = np.delete(advantage * weights, self.columns, -1).sum(-1)
        self.metrics = {f"stream/{name}/share": 0.0 for name in self.names}
        if not len(live):
            return others
        rows = torch.stack([pulls[self.names[k]] for k in live]).double().cpu().numpy() * sign[live, None]
        before, found = self.shares[live], self.method(rows, weight[live])
        mixed = RHO * before / before.sum() + (1 - RHO) * found
        self.shares[live] = before.sum() * mixed
        self.metrics |= {f"stream/{self.names[k]}/share": float(share) for k, share in zip(live, mixed)}
        factors = mixed / norm[live]
        # As large as the sum it stands for, so that the weights of the others keep their meaning.
        factors *= math.sqrt(np.square(weight * size)[live].sum() / np.square(factors * size[live]).sum())
        signed = (sign[live] * factors).astype(np.float32)
        return advantage[..., [self.columns[k] for k in live]] @ signed + others


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
    found = np.full(len(products), 1 / len(products))
    for _ in range(ROUNDS * len(found)):
        slope = products @ found
        to, out = int(slope.argmin()), int(np.where(found > 0, slope, -np.inf).argmax())
        curvature = products[to, to] + products[out, out] - 2 * products[to, out]
        if slope[out] - slope[to] <= 1e-9 or curvature <= 0:
            break
        step = min((slope[out] - slope[to]) / curvature, found[out])
        found[to] += step
        found[out] -= step
    return found


def project(gradients: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Shares (K,) of unit vectors in the sum of what weighted gradients (K, P) are without their conflicts.

    Example:
        >>> project(np.array([[2.0, 0.0], [1.0, 0.0]]), np.ones(2)).round(2).tolist()  # no conflict: the sum
        [0.67, 0.33]
    """
    weighted = gradients * weights[:, None]
    products, parts = weighted @ weighted.T, np.eye(len(weights))
    for k, part in enumerate(parts):
        for j in range(len(parts)):
            if j != k:
                part[j] -= min(float(part @ products[j]), 0.0) / products[j, j]
    shares = parts.sum(0) * np.sqrt(np.diag(products))
    return shares / shares.sum()
