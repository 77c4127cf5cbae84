"""Stable-Baselines3's DQN and sb3-contrib's MaskablePPO with action masks (`envs.masks`), which `predict` then needs.

DQN explores, chooses and bootstraps among allowed actions only: the mask of each next observation is a column of the
replay (`rewards.adapters.sb3`). In environments without masks it is Stable-Baselines3's to the last digit.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3 import DQN
from torch import Tensor

from agents.networks.actor_critic import mask_outputs
from envs.masks import require_mask, sample
from envs.steps import innermost_vec_env
from envs.types import MASK, Obs


def _batch_tensors(policy: Any, obs: Obs) -> tuple[Any, int]:
    """Observations as tensors with a batch axis, and how many there are."""
    tensors, _ = policy.obs_to_tensor(obs)
    first = next(iter(tensors.values())) if isinstance(tensors, dict) else tensors
    return tensors, len(first)


class MaskedDQN(DQN):
    """DQN with a relabelling replay; `masked`: whether the environments mask actions, as their first reset says."""

    masked = False
    # Bool (N, n), of the observations to act on next.
    _mask: np.ndarray | None = None

    def _setup_learn(self, *args: Any, **kwargs: Any) -> Any:
        obs_before = self._last_obs
        result = super()._setup_learn(*args, **kwargs)
        # Another observation: the environments have been reset.
        if self._last_obs is not obs_before:
            self._read_masks(innermost_vec_env(self.env).reset_infos)
        return result

    def _read_masks(self, infos: Sequence[Any]) -> None:
        self.masked = MASK in infos[0]
        self._mask = None
        if self.masked:
            masks = np.stack([info[MASK] for info in infos])
            self._mask = masks.astype(bool)

    def _sample_action(self, learning_starts: int, action_noise: Any = None, n_envs: int = 1) -> tuple[Any, Any]:
        if self._mask is None:
            return super()._sample_action(learning_starts, action_noise, n_envs)
        if self.num_timesteps < learning_starts:
            actions = self._random_actions(self._mask)
        else:
            actions, _ = self.predict(self._last_obs, mask=self._mask)  # type: ignore[arg-type]
        return actions, actions

    def _random_actions(self, mask: np.ndarray) -> np.ndarray:
        return np.array([sample(self.action_space, row) for row in mask])

    def _store_transition(
        self, replay_buffer: Any, buffer_action: Any, new_obs: Any, reward: Any, dones: Any, infos: Any
    ) -> None:
        super()._store_transition(replay_buffer, buffer_action, new_obs, reward, dones, infos)
        if self.masked:
            # Where an episode has ended, the next observation is that of a reset.
            next_infos = list(infos)
            reset_infos = innermost_vec_env(self.env).reset_infos
            for row in np.flatnonzero(dones):
                next_infos[row] = reset_infos[row]
            self._read_masks(next_infos)

    def predict(  # type: ignore[override]
        self,
        observation: Obs,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        mask: Any = None,
    ) -> tuple[np.ndarray, Any]:
        """As SB3's; `mask`, bool (n,) or (B, n): the allowed actions, needed if training had masks."""
        if not self.masked:
            return super().predict(observation, state, episode_start, deterministic)
        obs, n_rows = _batch_tensors(self.policy, observation)
        mask = require_mask(mask, self.action_space, n_rows)
        # SB3 draws from NumPy's global generator, too.
        if not deterministic and np.random.rand() < self.exploration_rate:  # noqa: NPY002
            actions = self._random_actions(mask)
        else:
            self.policy.set_training_mode(False)
            with torch.no_grad():
                values = mask_outputs(self.q_net(obs), mask)
                actions = values.argmax(1).cpu().numpy()
        if not self.policy.is_vectorized_observation(observation):
            actions = actions[0]
        return actions, state

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """As SB3's; the best next action is one that the mask of the next observation allows."""
        if not self.masked:
            super().train(gradient_steps, batch_size)
            return
        hook = self.q_net_target.register_forward_hook(self._mask_next_values)
        try:
            super().train(gradient_steps, batch_size)
        finally:
            hook.remove()

    def _mask_next_values(self, net: Any, inputs: Any, values: Tensor) -> Tensor:
        buffer: Any = self.replay_buffer
        return mask_outputs(values, buffer.columns[MASK][buffer.sampled])


class MaskedPPO(MaskablePPO):
    """sb3-contrib's MaskablePPO, which refuses to act without a mask."""

    masked = True

    def predict(  # type: ignore[override]
        self,
        observation: Obs,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: Any = None,
        mask: Any = None,
    ) -> tuple[np.ndarray, Any]:
        """As sb3-contrib's; `mask` is another name for `action_masks`, bool (n,) or (B, n)."""
        if mask is None:
            mask = action_masks
        _, n_rows = _batch_tensors(self.policy, observation)
        mask = require_mask(mask, self.action_space, n_rows)
        return super().predict(observation, state, episode_start, deterministic, action_masks=mask)
