"""Dyna on a recording alone (MOPO): a model is fitted to it, and what that imagines is worth less where it is unsure.

Source: Yu et al. 2020, "MOPO: Model-based Offline Policy Optimization", arXiv 2005.13239, algorithm 2. Other presets of
`agents.dyna.config` work, too: `mbpo` has no penalty, `sac` no model.

Differences: the model is fitted on whenever imagination begins; the ends of episodes are learned from the recording.
When it fails: as the model does, where all members agree on what none has seen; a long `agent.horizon`.
"""

from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from agents.base import OnStep
from agents.dyna.agent import Dyna
from agents.dyna.config import DynaConfig
from envs.transitions import Transitions


@dataclass
class OfflineDynaConfig(DynaConfig):
    """Settings of `OfflineDyna`: those of `Dyna`."""

    preset: str = "mopo"


class Nowhere(gym.vector.VectorEnv):
    """What an agent takes for environments where there is a recording alone: it has spaces, and no step."""

    def __init__(self, observation_space: gym.Space, action_space: gym.Space) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.num_envs = 1
        self.single_observation_space = observation_space
        self.single_action_space = action_space


class OfflineDyna(Dyna):
    """A `Dyna` that takes minibatches for steps; `OfflineDyna.load(path, Nowhere(*spaces))` reads it back."""

    Config = OfflineDynaConfig

    @classmethod
    def of(
        cls, config: OfflineDynaConfig, *spaces: gym.Space, data: Transitions, signal: Any = None, **place: Any
    ) -> "OfflineDyna":
        """An agent whose replay holds the recording, with the rewards of `signal` where there is one."""
        if config.model == "true":
            raise ValueError("agent.model=true asks the simulator, and a recording is all there is; use ensemble")
        if signal is not None:
            data = data.replace(reward=np.asarray(signal, np.float32))
        config = replace(config, buffer_size=max(data.shape[0], 2))
        agent = cls(Nowhere(*spaces), config, **place)
        for row in np.flatnonzero(data.valid):
            agent.replay.add(data[row : row + 1])
        return agent

    def begin_rollout(self) -> None:
        """There is nothing to reset."""

    def collect(self, on_step: OnStep) -> bool:
        config = self.config
        # Minibatches between two fits of the model.
        every = max(1, round(config.model_every * (config.updates_per_step or 1)))
        since_fit = self.num_timesteps % every
        if since_fit == 0:
            self._fit()
        remaining = self._total_timesteps - self.num_timesteps
        count = min(config.rollout, every - since_fit, remaining)
        if config.updates_per_step:
            self._update(count)
        self.num_timesteps += count
        return on_step(np.zeros(1, np.float32), np.zeros(1, bool), None)
