"""Effect: half a point for an action that changed what is seen.

The signal for executed actions that stepwise progress is used with, so that what does nothing earns less than what
might help. Source: "SPA-RL: Reinforcing LLM Agents via Stepwise Progress Attribution", 2025; the progress itself is
return decomposition, `reward=lare` without code: `preset=spa` is both.
Differences: they ask the environment whether an action was valid; here an observation that changed says so.
When it fails: observations that change by themselves (noise, clocks, gravity), where it is a constant.
"""

from dataclasses import dataclass

import numpy as np

from envs.transitions import Transitions
from envs.types import Memory
from rewards.base import Reward, RewardConfig


@dataclass
class EffectConfig(RewardConfig):
    """Nothing of its own."""


class Effect(Reward):
    """r = 1/2 if any entry of s' differs from s's, else 0."""

    Config = EffectConfig
    requires = frozenset({"obs", "next_obs"})

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        # An observation that is no dict is read as its only entry.
        entries = batch.obs if isinstance(batch.obs, dict) else [...]
        changed = np.zeros(batch.shape, bool)
        for key in entries:
            differs = batch.obs[key] != batch.next_obs[key]
            changed |= differs.reshape(len(changed), -1).any(axis=1)
        return np.float32(0.5) * changed
