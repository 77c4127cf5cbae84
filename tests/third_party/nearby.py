"""Pay for staying close to the origin of the observation."""

from dataclasses import dataclass

import numpy as np

from rewards.base import Reward, RewardConfig


@dataclass
class NearbyConfig(RewardConfig):
    radius: float = 1.0  # distance at which the reward has fallen to 1/e, in units of the observation


class Nearby(Reward):
    """r(s') = exp(-|s'|**2 / radius**2)."""

    Config = NearbyConfig

    def __init__(self, config, observation_space, action_space, *, seed=0, device="cpu"):
        super().__init__(config, observation_space, action_space, seed=seed, device=device)
        if getattr(observation_space, "dtype", None) != np.float32:
            raise ValueError(f"reward nearby reads a Box of float32, not {observation_space}")

    def score(self, batch, memory=None):
        return np.exp(-np.square(batch.next_obs / self.config.radius).sum(axis=1)).astype(np.float32)
