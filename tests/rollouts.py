"""Transitions and rollouts that are zero but for the fields a test is about; and runs that are cut in two."""

import copy

import numpy as np

from envs.transitions import Transitions

GOOD = ["You pick up the yellow key.", "You open the yellow door.", "You reach the green goal."]
BAD = ["You bump into the wall.", "The door is locked.", "You drop the yellow key.", "Nothing happens."]


def blank(*shape, **fields):
    """Valid transitions of this leading shape, all zeros but for `fields`."""
    zeros, no = np.zeros(shape, np.float32), np.zeros(shape, bool)
    given = dict.fromkeys(("obs", "action", "reward", "next_obs"), zeros) | {"terminated": no, "truncated": no}
    return Transitions(**{**given, "valid": ~no, "step": np.zeros(shape, np.int64), **fields})


def rollout(texts, ended=None, valid=None):
    """A rollout (T, N) whose states have these captions; (T,) is that of one environment."""
    text = np.array(texts, object)
    text = text[:, None] if text.ndim == 1 else text
    obs = np.zeros((*text.shape, 4), np.float32)
    flags = {} if ended is None else {"terminated": np.array(ended, bool)}
    flags |= {} if valid is None else {"valid": np.array(valid, bool)}
    return blank(*text.shape, obs=obs, next_obs=obs, action=np.zeros(text.shape, np.int64), text=text, **flags)


def rewards_of(reward, texts):
    """Rewards of captions, each in an episode of its own."""
    return reward.scan(rollout([texts]), reward.initial_memory(len(texts)))[0][0].tolist()


def cut(build, steps):
    """An agent that learned 2 * steps, and one that went on after `steps` from another's saved state and worlds."""
    whole, first, second = build().learn(2 * steps), build().learn(steps), build()
    state = copy.deepcopy((first.get_state(), first.scorer.state_dict()))
    snapshots = first.envs.call("snapshot")
    second.envs.reset(seed=0)
    for env, snapshot in zip(second.envs.envs, snapshots):
        env.get_wrapper_attr("restore")(snapshot)
    second.set_state(state[0])
    second.scorer.load_state_dict(state[1])
    return whole, second.learn(steps, reset_num_timesteps=False)
