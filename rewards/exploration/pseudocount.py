"""Episodic pseudo-counts: a bonus by how far a state is, in an embedding, from what this episode has seen.

Near neighbours count as visits, so that 1/sqrt(n) makes sense where observations never repeat.
Source: Badia et al. 2020, Never Give Up: Learning Directed Exploration Strategies, arXiv 2002.06038, section 2.1,
algorithm 1: the episodic half of NGU.
Differences: a neighbour that an episode does not have yet counts as one at the mean distance, or the first step would
get 1/c; the mean distance moves in `update` alone, by a walk with an empty memory; the state that an episode begins in
is seen; an episode remembers its latest `capacity` states (30,000 there). With the paper's k of 10 its `s_max` of 8
never cuts anything off.
Fails when: the embedding keeps noise, or moves so fast that old neighbours look far; cost grows with `capacity`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from envs.transitions import Transitions
from lodestar.settings import setting
from rewards.base import MIN_DEVIATION, Metrics, RunningMeanStd
from rewards.exploration.learned import InverseDynamics, LearnedConfig
from rewards.exploration.memories import Episodic, NeighbourMemory, Visits

# Distances, and errors in NGU, that a running mean remembers: embeddings and predictors move.
RECENT_DISTANCES = 10_000


@dataclass
class PseudoCountConfig(LearnedConfig):
    """Settings of the pseudo-counts; the paper's value in brackets where it differs."""

    weight: Any = 0.01  # of a bonus whose deviation is 1 [up to 0.3 of the bare one, which lies between 0.3 and 10]
    scale: str = "ema"
    features: int = setting(64, "size of the embedding [32]")
    k: int = setting(10, "neighbours", ">= 1", tune=(3, 30, "log"))
    kernel: float = setting(1e-3, "share of the mean square that counts half", "> 0", tune=(1e-4, 1e-1, "log"))
    cluster: float = setting(
        0.008, "neighbours nearer than this share of the mean squared distance count whole", ">= 0"
    )
    constant: float = setting(1e-3, "c, beside the root of the kernel sum", "> 0")
    s_max: float = setting(8.0, "above this root the bonus is 0", "> 0")
    capacity: int = setting(1024, "states that an episode remembers [30,000]", ">= 1")


class PseudoCount(Episodic, InverseDynamics):
    """r(s') = 1 / (sqrt(sum over k neighbours of K) + c), K = kernel / (max(d2/mean - cluster, 0) + kernel)."""

    Config = PseudoCountConfig
    requires = InverseDynamics.requires | {"step"}

    def build(self) -> None:
        super().build()
        config = self.config
        self.memory = NeighbourMemory(config.capacity, config.features, config.k)
        self.memory.kernel = self.compiled.kernel
        self.distance = RunningMeanStd(window=RECENT_DISTANCES)
        self.distance.mean = np.ones(())
        self.train_on(self.encoder, self.prediction)

    def update(self, batch: Transitions) -> Metrics:
        metrics = super().update(batch)
        # Transitions without an axis of time are walked as if they were one episode.
        if len(batch.shape) == 1:
            batch = batch[:, None]
        visits = Visits(batch)
        fresh = self.memory.initial(batch.shape[1])
        x = visits.apply(self.phi)
        squares, _ = self.memory.walk(fresh, x, visits.valid, visits.ended)
        squares = squares[visits.valid]
        self.distance.update(squares[np.isfinite(squares)])
        return metrics

    def bonus(self, squares: np.ndarray) -> np.ndarray:
        """Squared distances (..., k), infinite where there is no neighbour -> rewards float32 (...)."""
        config = self.config
        mean = max(float(self.distance.mean), MIN_DEVIATION)
        # A missing neighbour counts as one at the mean distance.
        share = np.where(np.isfinite(squares), squares / mean, 1)
        kernel = config.kernel / (np.maximum(share - config.cluster, 0) + config.kernel)
        root = np.sqrt(kernel.sum(axis=-1)) + config.constant
        return np.where(root > config.s_max, 0, 1 / root).astype(np.float32)
