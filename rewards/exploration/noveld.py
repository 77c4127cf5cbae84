"""NovelD: a bonus for stepping from the known to the new, once an episode for each state.

The novelty of a state is RND's error; rewarding its rise instead of its height keeps the agent at the border of what it
knows, and evens out how often each part of the border is tried.
Source: Zhang, Xu, Wang, Wu, Keutzer, Gonzalez, Tian 2021, NovelD: A Simple yet Effective Exploration Criterion, NeurIPS
2021, equations 2 and 3; BeBold, arXiv 2012.08621, is its earlier form with alpha 1.
Differences: those of RND; the state that an episode begins in counts as visited; cells are as in `count`.
Fails when: RND's error does (noise that no network can predict), or no two observations are alike.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from envs.transitions import Transitions
from envs.types import Memory, Obs
from lodestar.settings import setting
from rewards.base import Walk
from rewards.exploration.count import CellSettings, Hash
from rewards.exploration.memories import CountMemory, Episodic, values_at_both
from rewards.exploration.rnd import RND, RNDConfig


@dataclass
class NovelDConfig(RNDConfig, CellSettings):
    """Settings of NovelD, beside RND's."""

    weight: Any = 0.03  # of a bonus whose discounted return has a deviation of 1, for a task that pays 1
    alpha: float = setting(0.5, "share of e(s) that e(s') has to exceed", "[0, 1]", tune=(0.0, 1.0))


class NovelD(Episodic, RND):  # type: ignore[misc]  # it has a memory, RND has none
    """r(s, s') = max(e(s') - alpha e(s), 0) at the episode's first visit of s', else 0; e = |predictor - target|."""

    Config = NovelDConfig
    requires = frozenset({"obs", "next_obs", "step"})

    def build(self) -> None:
        super().build()
        config = self.config
        self.hash = Hash(self.observation_space, config.keys, config.bin, config.name)
        self.memory = CountMemory(config.capacity)

    def scan(self, batch: Transitions, memory: Memory) -> Walk:
        before, after = values_at_both(self.novelty, batch)
        n, memory = self.walk(batch, memory, self.hash)
        rise = np.maximum(after - np.float32(self.config.alpha) * before, 0)
        # Only the first visit in an episode is rewarded.
        return np.where(n == 1, rise, np.float32(0)), memory

    def novelty(self, obs: Obs) -> np.ndarray:
        """e of observations (M, ...), float32 (M,)."""
        # RND's error is the mean over the features; the norm is the root of the sum.
        mean = self.in_pieces(self.error, *self.pair(obs))
        return (mean * self.config.features).sqrt().cpu().numpy()
