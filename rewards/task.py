"""The environment's own reward, as a stream beside the learned ones.

Source: none needed. Every comparison starts here: a learned reward is judged by what it does to this number.
"""

from dataclasses import dataclass

import numpy as np

from envs.transitions import Transitions
from envs.types import Memory
from rewards.base import Reward, RewardConfig


@dataclass
class TaskConfig(RewardConfig):
    """Nothing of its own: weight, scale and gamma are the stream's."""


class Task(Reward):
    """r(s, a, s') = the environment's reward."""

    Config = TaskConfig
    requires = frozenset({"reward"})
    role = "goal"  # it stands alone: nothing is added to it by default

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        return np.array(batch.reward, dtype=np.float32)
