"""Random transitions for any spaces, to test a reward on."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import gymnasium as gym
import numpy as np

from envs.driving.vehicle import VEHICLE
from envs.types import Transitions, map_obs

SENTENCES = ("you see a door", "a key lies here", "you hit the newt", "nothing happens")


def random_rollout(
    observation_space: gym.Space,
    action_space: gym.Space,
    requires: Collection[str] = (),
    frame_size: int = 64,
    *,
    steps: int = 6,
    envs: int = 4,
    seed: int = 0,
) -> Transitions:
    """A rollout (steps, envs) in time order; the first episode of environment 0 terminates, that of 1 is truncated.

    Frames (random pixels), texts and signals (as many as a vehicle has) are there if `requires` names them; the
    spaces' own generators are left alone.
    """
    rng = np.random.default_rng(seed)
    states = _sample(observation_space, steps + 1, envs, seed)
    starts = _sample(observation_space, steps, envs, seed + 1)
    terminated, truncated = np.zeros((2, steps, envs), bool)
    terminated[steps // 3, 0] = truncated[steps // 2, 1 % envs] = True
    step = np.zeros((steps, envs), np.int64)
    for t in range(1, steps):
        step[t] = np.where((terminated | truncated)[t - 1], 0, step[t - 1] + 1)
    frames = rng.integers(0, 256, (steps + 1, envs, frame_size, frame_size, 3), dtype=np.uint8)
    texts = np.array(SENTENCES, dtype=object)[rng.integers(0, len(SENTENCES), (steps + 1, envs))]
    signals = rng.normal(size=(steps + 1, envs, len(VEHICLE))).astype(np.float32)
    return Transitions(
        obs=_where(step == 0, starts, map_obs(lambda x: x[:-1], states)),
        action=_sample(action_space, steps, envs, seed),
        reward=rng.normal(size=(steps, envs)).astype(np.float32),
        next_obs=map_obs(lambda x: x[1:], states),
        terminated=terminated,
        truncated=truncated,
        valid=np.ones((steps, envs), bool),
        step=step,
        frame=frames[1:] if "frame" in requires else None,
        obs_frame=frames[:-1] if "obs_frame" in requires else None,
        text=texts[1:] if "text" in requires else None,
        obs_text=texts[:-1] if "obs_text" in requires else None,
        signals=signals[1:] if "signals" in requires else None,
        obs_signals=signals[:-1] if "obs_signals" in requires else None,
    )


def _sample(space: gym.Space, steps: int, envs: int, seed: int) -> Any:
    """Random members of a space, (steps, envs, ...)."""
    many = gym.vector.utils.batch_space(space, steps * envs)
    many.seed(seed)
    return map_obs(lambda x: x.reshape(steps, envs, *x.shape[1:]), many.sample())


def _where(mask: np.ndarray, one: Any, other: Any) -> Any:
    """`one` in the rows of `mask` (steps, envs), `other` elsewhere; dicts entry by entry."""
    if isinstance(one, dict):
        return {key: _where(mask, one[key], other[key]) for key in one}
    return np.where(mask.reshape(*mask.shape, *[1] * (one.ndim - 2)), one, other)
