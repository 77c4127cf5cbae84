"""NGU, never give up: episodic pseudo-counts, times how new a state is in the whole of training.

The episodic half rewards every state again in every episode, so it never dries up; RND's error, in deviations above its
mean, raises what is new.
Source: Badia et al. 2020, Never Give Up: Learning Directed Exploration Strategies, arXiv 2002.06038, equation 1 and
section 2.1.
Differences: those of `pseudocount` and of `rnd`; the RND half whitens for itself; its error's mean and deviation are
those of the last 10,000 transitions or so; one weight instead of 32 mixtures of task and bonus.
Fails when: either half does; the product keeps an agent busy that should turn to the task, unless the weight ends.
"""

from dataclasses import dataclass, fields

import numpy as np

from envs.transitions import Transitions
from envs.types import Memory
from lodestar.settings import setting
from rewards.base import Metrics, RunningMeanStd, Walk
from rewards.exploration.learned import LearnedConfig
from rewards.exploration.pseudocount import RECENT_DISTANCES, PseudoCount, PseudoCountConfig
from rewards.exploration.rnd import RND, RNDConfig


@dataclass
class NGUConfig(PseudoCountConfig):
    """Settings of NGU, beside those of the pseudo-counts."""

    max_factor: float = setting(5.0, "L, the largest factor of lifelong novelty", ">= 1", tune=(1.0, 10.0))
    rnd_learning_rate: float = setting(1e-4, "of the RND half [5e-4]", "> 0", tune=(1e-5, 1e-2, "log"))


class NGU(PseudoCount):
    """r(s') = pseudocount(s') * clip(1 + (e - mean(e)) / std(e), 1, max_factor), e RND's error at s'."""

    Config = NGUConfig

    def build(self) -> None:
        super().build()
        shared = {field.name: getattr(self.config, field.name) for field in fields(LearnedConfig)}
        shared["learning_rate"] = self.config.rnd_learning_rate
        spaces = (self.observation_space, self.action_space)
        # Another seed, or both halves would draw the same weights.
        self.rnd = RND(RNDConfig(**shared), *spaces, seed=self.seed + 1, device=self.device)
        self.error = RunningMeanStd(window=RECENT_DISTANCES)

    def scan(self, batch: Transitions, memory: Memory) -> Walk:
        episodic, memory = super().scan(batch, memory)
        factor = self.factor(self.rnd.score(batch.flatten()))
        return episodic * factor.reshape(batch.shape), memory

    def update(self, batch: Transitions) -> Metrics:
        metrics = super().update(batch)
        flat = batch.flatten()
        # The errors from before RND learns from these transitions, as `scan` sees them.
        error = self.rnd.score(flat)
        self.error.update(error[flat.valid])
        for name, value in self.rnd.update(flat).items():
            metrics[f"rnd_{name}"] = value
        return metrics

    def factor(self, error: np.ndarray) -> np.ndarray:
        """RND's errors (M,) -> what the episodic bonus is multiplied with, float32 (M,); 1 before the first update."""
        if self.error.count == 0:
            return np.ones_like(error)
        alpha = 1 + (error - self.error.mean) / self.error.std
        return np.clip(alpha, 1, self.config.max_factor).astype(np.float32)
