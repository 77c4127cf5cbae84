"""Metrics of a mix, from values derived by hand."""

import numpy as np
import pytest

from envs.transitions import Transitions
from rewards.mix.mix import MixMetrics


def rollout(task, valid=None, terminated=None):
    task = np.asarray(task, np.float32)
    no = np.zeros(task.shape, bool)
    return Transitions(
        obs=None, action=None, reward=task, next_obs=None, step=np.zeros(task.shape, int), truncated=no,
        terminated=no if terminated is None else np.array(terminated), valid=~no if valid is None else np.array(valid),
    )  # fmt: skip


def test_means_shares_and_correlations_by_hand():
    task = [[1.0], [3.0]]
    raw = {"task": np.array(task), "bonus": np.array([[8.0], [4.0]])}
    metrics = MixMetrics().update(rollout(task), raw, {"task": raw["task"], "bonus": raw["bonus"] / 6})
    assert metrics["reward/task"] == 2 and metrics["reward/bonus"] == 6
    assert metrics["reward/task_share"] == pytest.approx(2 / 3) and metrics["reward/bonus_share"] == pytest.approx(
        1 / 3
    )
    assert metrics["reward/bonus_corr"] == pytest.approx(-1) and "reward/task_corr" not in metrics
    assert metrics["reward/total"] == pytest.approx(3)


def test_rows_that_are_no_transitions_are_left_out_and_episodes_are_added_up_across_rollouts():
    metrics_of = MixMetrics()
    task = np.array([[1.0], [9.0], [2.0]])
    batch = rollout(task, valid=[[True], [False], [True]], terminated=[[True], [True], [False]])
    metrics = metrics_of.update(batch, {"task": task}, {"task": task})
    assert metrics["reward/task"] == 1.5 and metrics["rollout/ep_learned_mean"] == 1
    metrics = metrics_of.update(rollout([[4.0]], terminated=[[True]]), {"task": task[:1]}, {"task": np.array([[4.0]])})
    assert metrics["rollout/ep_learned_mean"] == (1 + 6) / 2
    saved = MixMetrics()
    saved.load_state_dict(metrics_of.state_dict())
    assert saved.returns == metrics_of.returns and saved.running == metrics_of.running == 0
