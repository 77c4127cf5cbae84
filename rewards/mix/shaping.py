"""Shapes: how a score becomes a reward that an agent cannot farm.

A positive score as the reward of every step makes staying there the best plan: an optimal policy then never finishes a
task that ends. `potential`, `delta` and `clip` remove the reason to stay; a sigmoid, though bounded, does not. `clip`
can still make the way costly: a large weight keeps an agent from crossing a valley of the score. `par` bounds a score
by what it was before any learning, and is a potential of that. `benchmarks shaping_grid` shows all of this.

Sources: Ng, Harada, Russell 1999 (potential-based shaping leaves the optimal policies as they are); Gao et al. 2024,
arXiv 2410.15115 (clip, delta); Fu et al. 2025, arXiv 2502.18770 (centred sigmoid; preference as reward, PAR).
Differences: the delta of Gao et al. is s_t - s_{t+1}, which fits only scores that are values already; here it is what
the step gained. References of PAR are answers to the same prompt, by a reward that learns no more; here scores of steps
from before training, or of a recording. PAR's slope is 1, for scores of language models that lie several units apart.
The default is 10 here, for scores that lie tenths apart, such as cosines: with other units set `slope`.
When it fails: `par` over a reward that learns on, as its references keep their scores while all others drift.
"""

from pathlib import Path
from typing import Any

import numpy as np

from envs import recording
from envs.transitions import Transitions
from lodestar.state import Stateful

PAIRED = ("potential", "delta", "par")  # shapes that compare two states
RELATIVE = ("par", "par_step")  # shapes that have references


def potential(phi: np.ndarray, next_phi: np.ndarray, terminated: np.ndarray, gamma: float) -> np.ndarray:
    """gamma * phi(s') - phi(s), with phi = 0 at a terminal state and the real phi(s') where time merely ran out.

    Over an episode the rewards, discounted by the learner's `gamma`, telescope to gamma^T phi(s_T) - phi(s_0).

    Example:
        >>> potential(np.array([1.0, 2.0]), np.array([2.0, 3.0]), np.array([False, True]), gamma=0.5).tolist()
        [0.0, -2.0]
    """
    after = np.where(terminated, 0.0, next_phi)
    return (gamma * after - phi).astype(np.float32)


def delta(phi: np.ndarray, next_phi: np.ndarray) -> np.ndarray:
    """phi(s') - phi(s): what the step gained. Undiscounted, the rewards of an episode sum to phi(s_T) - phi(s_0).

    Example:
        >>> delta(np.float32([1, 2]), np.float32([2, 0])).tolist()
        [1.0, -2.0]
    """
    return (next_phi - phi).astype(np.float32)


def clip(score: np.ndarray, at: float) -> np.ndarray:
    """min(score - at, 0): nothing is earned above `at`, so finishing is never worse than lingering."""
    return np.minimum(score - at, 0).astype(np.float32)


def sigmoid(score: np.ndarray, at: float | np.ndarray, slope: float) -> np.ndarray:
    """1 / (1 + exp(-slope (score - at))) - 1/2: bounded, zero at `at`; not enough in a task that terminates."""
    # tanh(x / 2) / 2 is the logistic function of x less 1/2, and does not overflow.
    half = 0.5 * slope * (score - at)
    return (0.5 * np.tanh(half)).astype(np.float32)


def par(score: np.ndarray, references: np.ndarray, slope: float) -> np.ndarray:
    """How often a score is preferred to the references (M,): the mean of 1 / (1 + exp(-slope (score - reference))).

    Example:
        >>> round(float(par(np.array([1.5]), np.array([0.5, 1.0, 2.0]), slope=1.0)[0]), 5)
        0.57702
    """
    preference = sigmoid(score[..., None], references, slope)
    return preference.mean(axis=-1, dtype=np.float32) + np.float32(0.5)


class References(Stateful):
    """Quantiles, `count`, of the scores that a reward gave before training, frozen once there are `enough`.

    Were they to follow the policy, its reward would stay the same however much better it got. Scores that are all equal
    are passed over: a reward that has not learned anything yet gives 0 to everything. `path` names a recording whose
    scores they are, instead, of observations of this `shape`.
    """

    saved = ("scores", "gathered")

    def __init__(self, count: int, enough: int, path: str = "", shape: Any = None) -> None:
        self.count = count
        self.enough = max(enough, count)
        self.scores = np.zeros(0, np.float32)  # (M,), once they are known
        self.gathered = np.zeros(0, np.float32)
        self.recorded: Transitions | None = None
        if path:
            self.recorded, _ = recording.load(Path(path))
            # Observations that are dicts have no shape to compare.
            recorded_shape = getattr(self.recorded.next_obs, "shape", (None,))[1:]
            if shape is not None and recorded_shape != shape:
                raise ValueError(
                    f"{path} has observations of shape {recorded_shape}, these environments {shape}; record them again"
                )

    def __call__(self, score: np.ndarray, slope: float) -> np.ndarray:
        """`par` of a score, float32; 0 while there are no references."""
        if len(self.scores) == 0:
            return np.zeros_like(score)
        return par(score, self.scores, slope)

    def take(self, scores: np.ndarray) -> None:
        """Take in scores (N,) of the latest transitions, or of all of the recording."""
        if len(scores) and (len(self.gathered) or scores.min() < scores.max()):
            self.gathered = np.concatenate([self.gathered, scores])
        enough = self.enough if self.recorded is None else 1
        if len(self.gathered) >= enough:
            quantiles = (np.arange(self.count) + 0.5) / self.count
            self.scores = np.quantile(self.gathered, quantiles).astype(np.float32)
            self.gathered = self.gathered[:0]
            self.recorded = None
