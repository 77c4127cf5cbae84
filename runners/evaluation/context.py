"""Playing new tasks with a policy that learns in its context, as `agents.offline.ad`: scores episode by episode.

An environment draws its task when it is reset with a seed, and keeps it when it is reset without one.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from types import MappingProxyType
from typing import Any

import numpy as np

from envs.make import make_vec
from runners.evaluation.play import SEED, Scores

# New tasks that the command plays.
NEW_TASKS = 20


def play_tasks(
    act: Callable[..., Any],
    env_id: str,
    tasks: int,
    episodes: int,
    seed: int = 0,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> list[Scores]:
    """The scores of each episode, over tasks; `act` takes observations, which episodes begin, the last rewards or None.

    Task i is that of the seed `SEED + 1000 * seed + i`, which no training has.
    """
    returns = np.zeros((episodes, tasks))
    lengths = np.zeros((episodes, tasks), int)
    # Episodes that each task has had.
    played = np.zeros(tasks, int)
    begins = np.ones(tasks, bool)
    reward = None
    first_seed = SEED + 1000 * seed
    with closing(make_vec(env_id, tasks, seed=first_seed, backend="gym", **options)) as envs:
        obs, _ = envs.reset(seed=first_seed)
        while played.min() < episodes:
            action = act(obs, begins, reward)
            obs, rewards, terminated, truncated, _ = envs.step(action)
            # A vector may write its next rewards into the same array.
            reward = np.array(rewards, np.float32)
            rows = np.flatnonzero(played < episodes)
            returns[played[rows], rows] += reward[rows]
            lengths[played[rows], rows] += 1
            begins = terminated | truncated
            played += begins
    return [Scores(*lists, actions="sampled") for lists in zip(returns.tolist(), lengths.tolist())]
