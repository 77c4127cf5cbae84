"""Spaces as numbers: observations and actions as flat vectors for networks that predict them, and back.

encoding = SpaceEncoding(observation_space, action_space)
encoding.vector(obs)            (N, D)   boxes ravelled, Discrete and MultiDiscrete one-hot; images apart, `pixels`
encoding.obs(vector, pixels)    the observation again, as the environment gives it
encoding.encode(action)         (N, A)   a Box scaled to [-1, 1], Discrete one-hot
encoding.decode(vector)         the action again, as the environment takes it
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from agents.networks.actor_critic import Inputs
from envs.types import Obs


class SpaceEncoding(Inputs):
    """`Inputs` and actions, in both directions.

    Attributes:
        obs_size: D, length of an observation's flat part.
        discrete: whether one of A actions is chosen; else an action is A numbers in [-1, 1].
        action_size: A.

    Raises:
        ValueError: for observations without an array form, and for actions that are neither Discrete nor a Box of
            floats with finite bounds.
    """

    def __init__(self, observation_space: gym.Space, action_space: gym.Space) -> None:
        self.observation_space: Any = observation_space
        self.action_space: Any = action_space
        super().__init__(observation_space)
        self.obs_size = self.size
        space: Any = action_space
        self.discrete = isinstance(space, spaces.Discrete)
        if self.discrete:
            self.action_size = int(space.n)
            return
        if not (isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating) and space.is_bounded()):
            raise ValueError(
                f"actions from {space} cannot be predicted from; give Discrete, or a Box of floats with finite "
                "bounds (gymnasium.wrappers.RescaleAction, FlattenObservation), or use agent=ppo"
            )
        self.action_size = int(np.prod(space.shape))
        self._low, self._high = (np.asarray(b, np.float32).ravel() for b in (space.low, space.high))

    def obs(self, vector: np.ndarray, pixels: dict[str, np.ndarray] | None = None) -> Obs:
        """The observation whose `vector` (*leading axes, D) and `pixels` these are.

        A one-hot is its largest entry; whole numbers are rounded, and cut at the space's bounds.
        """
        leading = vector.shape[:-1]
        parts: dict[str, np.ndarray] = dict(pixels or {})
        begin = 0
        for key, (kind, sizes, length) in self.flat.items():
            space = self.observation_space if self.bare else self.observation_space[key]
            value = vector[..., begin : begin + length]
            begin += length
            if kind == "one-hot":
                ends = np.cumsum(sizes)
                chosen = [value[..., end - n : end].argmax(-1) for n, end in zip(sizes, ends)]
                value = np.stack(chosen, -1) + self.starts[key]
            elif np.issubdtype(space.dtype, np.integer):  # a model's guess lies between whole numbers, and outside
                low, high = (space.low, space.high) if isinstance(space, spaces.Box) else (0, 1)
                value = np.clip(np.rint(value), np.ravel(low), np.ravel(high))
            parts[key] = value.reshape(*leading, *space.shape).astype(space.dtype, copy=False)
        return parts[""] if self.bare else {key: parts[key] for key in self.observation_space.spaces}

    def encode(self, action: Any) -> np.ndarray:
        """Actions (*leading axes, *shape) as float32 (*leading axes, A)."""
        action = np.asarray(action)
        if self.discrete:
            return np.eye(self.action_size, dtype=np.float32)[action - self.action_space.start]
        leading = action.shape[: action.ndim - len(self.action_space.shape)]
        value = action.reshape(*leading, self.action_size).astype(np.float32, copy=False)
        return 2 * (value - self._low) / (self._high - self._low) - 1

    def decode(self, vector: np.ndarray) -> np.ndarray:
        """The inverse of `encode`; numbers outside [-1, 1] are cut."""
        if self.discrete:
            return vector.argmax(-1) + self.action_space.start
        value = self._low + (np.clip(vector, -1, 1) + 1) / 2 * (self._high - self._low)
        return value.reshape(*vector.shape[:-1], *self.action_space.shape).astype(self.action_space.dtype, copy=False)
