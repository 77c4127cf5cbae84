"""The task's own reward passes through untouched."""

import numpy as np
from gymnasium import spaces

from rewards.check import check_reward, random_rollout
from rewards.task import Task, TaskConfig

BOX, ACTIONS = spaces.Box(-1.0, 1.0, (4,), np.float32), spaces.Discrete(3)


def test_task_keeps_the_contract():
    check_reward(Task)


def test_the_score_is_the_environments_reward_in_float32_and_a_copy():
    batch = random_rollout(BOX, ACTIONS).flatten()
    batch = batch.replace(reward=np.arange(24, dtype=np.float64))
    score = Task(TaskConfig(), BOX, ACTIONS).score(batch)
    assert score.dtype == np.float32
    assert score.tolist() == list(range(24))
    score[:] = 7.0
    assert batch.reward[0] == 0.0
