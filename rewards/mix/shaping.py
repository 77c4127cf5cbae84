"""Ways to turn a score into a reward that an agent cannot farm.

A positive score as the reward of every step makes staying there the best plan: an optimal policy
then never finishes a task that ends. `potential`, `delta` and `clip` remove the reason to stay; a sigmoid, though
bounded, does not. `clip` can still make the way costly: a large weight keeps an agent from crossing a valley of the
score. `benchmarks shaping_grid` shows all of this on a grid whose optimal policies are known.

Sources: Ng, Harada, Russell 1999 (potential-based shaping leaves the optimal policies as they are); Gao et al. 2024,
arXiv 2410.15115 (clip, delta); Fu et al. 2025, arXiv 2502.18770 (centred sigmoid).
"""

from __future__ import annotations

import numpy as np


def potential(phi: np.ndarray, next_phi: np.ndarray, terminated: np.ndarray, gamma: float) -> np.ndarray:
    """gamma * phi(s') - phi(s), with phi = 0 at a terminal state and the real phi(s') where time merely ran out.

    `gamma` must be the learner's: over an episode the rewards, discounted by it, telescope to gamma^T phi(s_T) -
    phi(s_0).
    """
    return (gamma * np.where(terminated, 0.0, next_phi) - phi).astype(np.float32)


def delta(phi: np.ndarray, next_phi: np.ndarray) -> np.ndarray:
    """phi(s') - phi(s): what the step gained. Undiscounted, the rewards of an episode sum to phi(s_T) - phi(s_0)."""
    return (next_phi - phi).astype(np.float32)


def clip(score: np.ndarray, at: float) -> np.ndarray:
    """min(score - at, 0): nothing is earned above `at`, so finishing is never worse than lingering."""
    return np.minimum(score - at, 0).astype(np.float32)


def sigmoid(score: np.ndarray, at: float, slope: float) -> np.ndarray:
    """1 / (1 + exp(-slope (score - at))) - 1/2: bounded, zero at `at`; not enough in a task that terminates."""
    return (0.5 * np.tanh(0.5 * slope * (score - at))).astype(np.float32)
