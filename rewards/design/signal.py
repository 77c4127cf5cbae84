"""Signal: the reward is one number that the environment tells, or whether it is beyond a threshold.

    r(s') = x                     x one of the environment's signals, or with `of=obs` a number of its observation
    r(s') = 1 if x > above        with `above`; with `below`, 1 if x < below; else 0

What it is for: costs. With a limit it becomes what the agent may do only so often (`rewards.mix.limit`):

    lodestar train env=highway-fast-v0 reward=signal reward.signal.signal=crashed reward.signal.limit=0.05
        reward.signal.limit_per=episode
    lodestar train env=Hopper-v5 reward=signal reward.signal.of=obs reward.signal.column=5 reward.signal.above=1
        reward.signal.limit=0.05

Source: none needed; `lodestar list ENV` shows the names of an environment's signals.
When it fails: the signal is no cause of what is unwanted, as a speed is none of a collision.
"""

from dataclasses import dataclass

import numpy as np
from gymnasium.spaces import Box

from envs.transitions import Transitions
from envs.types import Memory
from lodestar.settings import setting
from rewards.base import Reward, RewardConfig


@dataclass
class SignalConfig(RewardConfig):
    """Settings of signal."""

    signal: str = setting("", "the signal's name, where the environment's family has names for them")
    column: int = setting(-1, "its place, from 0; -1: that of the name", ">= -1")
    of: str = setting("signals", "where it stands, in a flat observation for obs", "signals | obs")
    above: float | None = setting(None, "threshold: 1 where it is above, else 0")
    below: float | None = setting(None, "threshold: 1 where it is below, else 0")


class Signal(Reward):
    """r(s') = a signal of the environment, or whether it is beyond a threshold."""

    Config = SignalConfig
    config: SignalConfig

    def build(self) -> None:
        config = self.config
        config.refuse_if(
            config.above is not None and config.below is not None,
            "reward.signal.above={above} and reward.signal.below={below} are two thresholds; give one",
        )
        self.requires = frozenset({"signals" if config.of == "signals" else "next_obs"})
        config.refuse_if(
            config.column < 0,
            "reward.signal.signal={signal} has no known place among the {of} here; give reward.signal.column=, from 0",
        )
        space = self.observation_space
        if config.of == "obs":
            if not isinstance(space, Box) or len(space.shape) != 1:
                raise ValueError(f"reward.signal.of=obs reads flat observations, not {space}; leave of=signals")
            self._refuse_beyond(space.shape[0])

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        config = self.config
        numbers = np.asarray(batch.next_obs if config.of == "obs" else batch.signals)
        self._refuse_beyond(numbers.shape[-1])
        value = numbers[..., config.column].astype(np.float32)
        if config.above is not None:
            return (value > config.above).astype(np.float32)
        if config.below is not None:
            return (value < config.below).astype(np.float32)
        return value

    def _refuse_beyond(self, count: int) -> None:
        """A ValueError for a column that is not there."""
        column = self.config.column
        if column >= count:
            raise ValueError(f"reward.signal.column={column} is beyond the last of {count}; give 0 to {count - 1}")
