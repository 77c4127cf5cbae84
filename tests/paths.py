"""Rollouts along given states, for bonuses whose values are done by hand."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from envs.transitions import Transitions

LINE = spaces.Box(-np.inf, np.inf, (1,), np.float32)
PLANE = spaces.Box(-np.inf, np.inf, (2,), np.float32)
IMAGE = spaces.Box(0, 255, (3, 7, 7), np.uint8)
MANY = spaces.Dict({"image": IMAGE, "pose": PLANE, "key": spaces.Discrete(3)})
TWO = spaces.Discrete(2)
SPACES = [spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(5), IMAGE, MANY]


def path(*episodes):
    """Episodes of one environment in a row, each a list of states, as a rollout (T, 1); all but the last one end."""
    episodes = [np.asarray(states, np.float32).reshape(len(states), -1) for states in episodes]
    lengths = [len(states) - 1 for states in episodes]
    ends = np.zeros((sum(lengths), 1), bool)
    ends[np.cumsum(lengths)[:-1] - 1] = True
    return Transitions(
        obs=np.concatenate([states[:-1] for states in episodes])[:, None],
        action=np.zeros(ends.shape, np.int64),
        reward=np.zeros(ends.shape, np.float32),
        next_obs=np.concatenate([states[1:] for states in episodes])[:, None],
        terminated=ends,
        truncated=np.zeros_like(ends),
        valid=np.ones_like(ends),
        step=np.concatenate([np.arange(length) for length in lengths])[:, None],
    )


def scan_rewards(reward, batch):
    """Rewards along a rollout (T, 1): a list of T numbers."""
    return reward.scan(batch, reward.initial_memory(1))[0][:, 0].tolist()


def identity_embedding(reward):
    """Let observations be their own embedding."""
    reward.values = lambda encoder, obs: np.asarray(obs, np.float32)
    return reward
