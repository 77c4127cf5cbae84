"""A replay buffer of Stable-Baselines3 as transitions; nothing of that library is imported here."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from envs.datasets.dataset import steps_since
from envs.observations import plain, plain_space
from envs.recording import by_environment
from envs.transitions import Transitions, join, map_obs
from envs.types import Obs


def from_sb3(buffer: Any, *, scaled: bool = True) -> Transitions:
    """What a `ReplayBuffer` or a `DictReplayBuffer` holds, as a flat batch (N,), one environment after the other.

    Where a full buffer has lost the first steps of an episode, the rest of that begins at step 1. Without
    `handle_timeout_termination` every end counts as terminated, as it does for the agents that learn from it.

    Args:
        buffer: a buffer, as in `from_sb3(model.replay_buffer)`.
        scaled: whether actions in a Box stand in [-1, 1], as those of its agents do, and not in the space's range.

    Raises:
        ValueError: if it is empty, or has overwritten the last observations of episodes.
    """
    if getattr(buffer, "optimize_memory_usage", False):
        raise ValueError(
            "a replay buffer with optimize_memory_usage=True has overwritten the last observations of its episodes; "
            "collect with optimize_memory_usage=False"
        )
    if not buffer.size():
        raise ValueError("the replay buffer is empty; collect transitions first")
    order = (np.arange(buffer.size()) + (buffer.pos if buffer.full else 0)) % buffer.buffer_size
    count, space = (len(order), buffer.n_envs), buffer.action_space
    action = buffer.actions[order].reshape(*count, *space.shape)
    if isinstance(space, spaces.Box):
        action = space.low + 0.5 * (action + 1.0) * (space.high - space.low) if scaled else action
    action = action.astype(space.dtype, copy=False)
    timeouts = getattr(buffer, "timeouts", np.zeros_like(buffer.dones))[order] > 0
    ended = buffer.dones[order] > 0
    first = int(buffer.full)
    rewards = buffer.task_rewards if hasattr(buffer, "task_rewards") else buffer.rewards  # ours scores when read
    seen = [_seen(buffer.observation_space, x, order) for x in (buffer.observations, buffer.next_observations)]
    return by_environment(
        Transitions(
            obs=seen[0],
            action=action,
            reward=np.asarray(rewards[order], np.float32),
            next_obs=seen[1],
            terminated=ended & ~timeouts,
            truncated=timeouts,
            valid=np.ones(count, bool),
            step=np.stack([steps_since(column, first) for column in ended.T], 1),
        )
    )


def _seen(space: spaces.Space, values: Any, order: np.ndarray) -> Obs:
    """Observations (T, N, ...) in the order of time, as `PlainObservation` returns them."""
    if isinstance(space, spaces.Dict):
        return {key: _seen(part, values[key], order) for key, part in space.spaces.items()}
    shaped = values[order].reshape(*values[order].shape[:2], *(space.shape or ()))
    if plain_space(space) == space:
        return shaped
    rows = [[plain(space, x) for x in row] for row in shaped]
    return map_obs(np.asarray, join(np.stack, [join(np.stack, row) for row in rows]))
