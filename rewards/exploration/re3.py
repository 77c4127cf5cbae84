"""RE3: a bonus for states far from their neighbours in the features of a random network that never learns.

The log of the distance to the k-th nearest neighbour estimates the entropy of the states visited, up to a constant.
Source: Seo, Chen, Shin, Lee, Abbeel, Lee 2021, State Entropy Maximization with Random Encoders for Efficient
Exploration, arXiv 2102.09430, equations 3 and 4.
Differences: neighbours are sought among what this episode has seen, where the paper takes the replay buffer or the
rollout: a bonus for spread within an episode that does not fade; the state that an episode begins in is seen; while
there are fewer than k, the farthest one counts; observations are whitened first; vectors pass dense layers.
Fails when: observations contain noise, or much that does not matter: a random network weighs all of it alike.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from envs.types import Obs
from lodestar.settings import setting
from rewards.exploration.learned import Learned, LearnedConfig
from rewards.exploration.memories import Episodic, NeighbourMemory


@dataclass
class RE3Config(LearnedConfig):
    """Settings of RE3; the paper's value in brackets where it differs. `learning_rate` and its like have no effect."""

    weight: Any = 0.01  # of a bonus whose deviation is 1 [0.05 of the bare one, fading]
    scale: str = "ema"
    learning_rate: float = setting(1e-3, tune=())
    update_proportion: float = setting(1.0, tune=())
    features: int = setting(64, "size of the random embedding [50]")
    k: int = setting(3, "which neighbour counts", ">= 1", tune=(1, 10))
    capacity: int = setting(1024, "states that an episode remembers", ">= 1")


class RE3(Episodic, Learned):
    """r(s') = log(1 + |y - y_k|), y the random embedding of s' and y_k its k-th nearest neighbour in the episode."""

    Config = RE3Config
    learns = False
    requires = frozenset({"obs", "next_obs", "step"})

    def build(self) -> None:
        super().build()
        config = self.config
        self.encoder = self.net(config.hidden, config.features).requires_grad_(False)
        self.memory = NeighbourMemory(config.capacity, config.features, config.k)
        self.memory.kernel = self.compiled.kernel

    def phi(self, obs: Obs) -> np.ndarray:
        return self.values(self.encoder, obs)

    def bonus(self, answers: np.ndarray) -> np.ndarray:
        # While there are fewer than k neighbours, the farthest one counts.
        farthest = np.where(np.isfinite(answers), answers, 0).max(axis=-1)
        return np.log1p(np.sqrt(farthest)).astype(np.float32)
