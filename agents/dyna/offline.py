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

from agents.base import OnStep
from agents.dyna.agent import Dyna
from agents.dyna.config import DynaConfig
from envs.datasets.recordings import RecordedEnvs
from envs.transitions import Transitions
from lodestar.settings import setting


@dataclass
class OfflineDynaConfig(DynaConfig):
    """Settings of `OfflineDyna`: those of `Dyna`."""

    preset: str = "mopo"
    members: int = setting(None, tune=(3, 7))
    horizon: Any = setting(None, tune=(1, 3, 5, 10, 20, "choice"))
    penalty_weight: float = setting(None, "of the penalty; below 0 it rewards uncertainty", tune=(0.1, 10.0, "log"))


class OfflineDyna(Dyna):
    """A `Dyna` that takes minibatches for steps, of `envs.datasets.recordings.RecordedEnvs`; on others it only acts."""

    Config = OfflineDynaConfig
    driver = "recording"

    @classmethod
    def of(
        cls, config: OfflineDynaConfig, *spaces: gym.Space, data: Transitions, signal: Any = None, **place: Any
    ) -> "OfflineDyna":
        """An agent whose replay holds the recording, with the rewards of `signal` where there is one."""
        if signal is not None:
            data = data.replace(reward=np.asarray(signal, np.float32))
        observation_space, action_space = spaces
        return cls(RecordedEnvs(observation_space, action_space, data), config, **place)

    def _set_up(self) -> None:
        if self.config.model == "true":
            raise ValueError("agent.model=true asks the simulator, and a recording is all there is; use ensemble")
        data = getattr(self.envs, "data", None)
        if data is None:
            super()._set_up()
            return
        self.config = replace(self.config, buffer_size=max(data.shape[0], 2))
        super()._set_up()
        for row in np.flatnonzero(data.valid):
            self.replay.add(data[row : row + 1])

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
