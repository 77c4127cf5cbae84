"""Rollouts whose only content is captions."""

import numpy as np

from envs.types import Transitions

GOOD = ["You pick up the yellow key.", "You open the yellow door.", "You reach the green goal."]
BAD = ["You bump into the wall.", "The door is locked.", "You drop the yellow key.", "Nothing happens."]


def rollout(texts, ended=None, valid=None):
    """A rollout (T, N) whose states have these captions; (T,) is that of one environment."""
    text = np.array(texts, object)
    text = text[:, None] if text.ndim == 1 else text
    no = np.zeros(text.shape, bool)
    return Transitions(
        obs=np.zeros((*text.shape, 4), np.float32),
        action=np.zeros(text.shape, np.int64),
        reward=np.zeros(text.shape, np.float32),
        next_obs=np.zeros((*text.shape, 4), np.float32),
        terminated=no if ended is None else np.array(ended, bool),
        truncated=no,
        valid=~no if valid is None else np.array(valid, bool),
        step=np.zeros(text.shape, np.int64),
        text=text,
    )


def rewards_of(reward, texts):
    """Rewards of captions, each in an episode of its own."""
    return reward.scan(rollout([texts]), reward.initial_memory(len(texts)))[0][0].tolist()
