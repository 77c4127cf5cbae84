"""Stable-Baselines3's manners for agents of our own: logger, callbacks, the account of steps, files.

With them a callback, an evaluation or a logger written for Stable-Baselines3 serves our agents as it is.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any, ClassVar, Self

import numpy as np
import torch

from envs.types import Obs


class OwnAgent:
    """What `learn` needs around the learning, and what is done with an agent that has learnt.

    Attributes:
        envs: the `gymnasium.vector.VectorEnv`; config: a dataclass; scorer: what pays; policy: the torch module.
        num_timesteps: environment steps so far, summed over environments.
    """

    Config: ClassVar[type[Any]]
    recovers: ClassVar[bool] = False  # whether it goes back to sound weights by itself
    envs: Any
    config: Any
    scorer: Any
    policy: Any  # a torch.nn.Module
    device: torch.device
    ep_info_buffer: Any
    ep_success_buffer: Any

    def __init__(self) -> None:
        self.num_timesteps = self._total_timesteps = self._n_updates = 0
        self._logger: Any = None

    @property
    def logger(self) -> Any:
        """Stable-Baselines3's logger; it writes nowhere until `set_logger`."""
        if self._logger is None:
            from stable_baselines3.common.logger import Logger

            self._logger = Logger(None, [])
        return self._logger

    def set_logger(self, logger: Any) -> None:
        """Where numbers go: what `stable_baselines3.common.logger.configure` returns."""
        self._logger = logger

    def get_env(self) -> Any:
        """The vector environment."""
        return self.envs

    def get_vec_normalize_env(self) -> None:
        """None: these agents normalise by themselves."""

    def _begin(self, total: int, callback: Any, reset: bool, progress_bar: bool) -> Any:
        """Start counting; returns the callback, ready."""
        from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback, ProgressBarCallback

        if reset:
            self.num_timesteps = 0
        self._began, self._began_at = time.perf_counter(), self.num_timesteps
        self._total_timesteps = total + self.num_timesteps
        if callback is None or isinstance(callback, list | tuple):
            callback = CallbackList([c for c in callback or [] if c is not None])
        elif not isinstance(callback, BaseCallback):
            callback = ConvertCallback(callback)
        if progress_bar:
            callback = CallbackList([callback, ProgressBarCallback()])
        callback.init_callback(self)
        callback.on_training_start({"self": self, "total_timesteps": total}, {})
        return callback

    def dump_logs(self, iteration: int = 0) -> None:
        """Write a row of the log, with Stable-Baselines3's tags."""
        elapsed = max(time.perf_counter() - self._began, 1e-9)
        if iteration > 0:
            self.logger.record("time/iterations", iteration, exclude="tensorboard")
        if self.ep_info_buffer:
            self.logger.record("rollout/ep_rew_mean", float(np.mean([e["r"] for e in self.ep_info_buffer])))
            self.logger.record("rollout/ep_len_mean", float(np.mean([e["l"] for e in self.ep_info_buffer])))
        if self.ep_success_buffer:
            self.logger.record("rollout/success_rate", float(np.mean(self.ep_success_buffer)))
        self.logger.record("time/fps", int((self.num_timesteps - self._began_at) / elapsed))
        self.logger.record("time/time_elapsed", int(elapsed), exclude="tensorboard")
        self.logger.record("time/total_timesteps", self.num_timesteps, exclude="tensorboard")
        self.logger.dump(step=self.num_timesteps)

    def save(self, path: str) -> None:
        """Write weights and configuration to one safetensors file; nothing in it is ever executed."""
        from safetensors.torch import save_file

        tensors = {key: value.detach().cpu().clone() for key, value in self.policy.state_dict().items()}
        save_file(tensors, path, {"agent": type(self).__name__, "config": json.dumps(asdict(self.config))})

    @classmethod
    def load(cls, path: str, envs: Any, *, scorer: Any = None, seed: int = 0, device: str = "cpu") -> Self:
        """Read an agent back, for environments with the same spaces and a reward with as many streams.

        Raises:
            ValueError: if the file holds another kind of agent, or does not fit.
        """
        from safetensors import safe_open

        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no dict)
        if metadata.get("agent") != cls.__name__:
            raise ValueError(f"{path} holds no {cls.__name__} (but {metadata.get('agent')}); give a file it saved")
        model = cls(envs, cls.Config(**json.loads(metadata["config"])), scorer=scorer, seed=seed, device=device)  # type: ignore[call-arg]
        try:
            model.policy.load_state_dict(tensors)
        except RuntimeError as error:
            raise ValueError(f"{path} does not fit these environments and this reward: {error}") from None
        return model


def is_single(observation: Obs, space: Any) -> bool:
    """Whether an observation is one of `space`, and not a batch of them."""
    if isinstance(observation, dict):
        key = next(iter(observation))
        return is_single(observation[key], space[key])
    return np.ndim(observation) == len(space.shape)
