"""Reward for staying close to the origin of the observation."""

from dataclasses import dataclass

import numpy as np

from lodestar.settings import setting
from rewards.base import Reward, RewardConfig


@dataclass
class NearbyConfig(RewardConfig):
    radius: float = setting(1.0, "distance at which the reward has fallen to 1/e, in units of the observation", "> 0")


class Nearby(Reward):
    """r(s') = exp(-|s'|**2 / radius**2)."""

    Config = NearbyConfig

    def build(self):
        if getattr(self.observation_space, "dtype", None) != np.float32:
            raise ValueError(f"reward nearby reads a Box of float32, not {self.observation_space}")

    def score(self, batch, memory=None):
        return np.exp(-np.square(batch.next_obs / self.config.radius).sum(axis=1)).astype(np.float32)
