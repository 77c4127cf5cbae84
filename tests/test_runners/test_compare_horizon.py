"""The report card's line about the effective horizon."""

import math
from pathlib import Path

import pytest

from agents.effective_horizon import EffectiveHorizon
from envs.make import make
from rewards.base import Reward, RewardConfig
from runners.compare import __main__ as compare
from runners.compare.card import effective_horizon, horizon_text
from runners.run.config import UsageError

GRID = "MiniGrid-Empty-5x5-v0"


def horizon(k, m):
    solved = {} if k is None else {k: m}
    return EffectiveHorizon(k, m, math.inf if k is None else k + math.log(m, 4), 0, solved)


def test_the_sentence_says_whether_the_reward_helped():
    assert horizon_text(horizon(1, 4), horizon(2, 4)) == (
        "k=1 with m=4 (H=2.00); the task's own reward: k=2 with m=4 (H=3.00): it made the task easier"
    )
    assert horizon_text(horizon(None, None), horizon(1, 1)).endswith(
        "not solved; the task's own reward: k=1 with m=1 (H=1.00): it made the task harder"
    )
    assert horizon_text(horizon(1, 4), horizon(1, 4)).endswith("k=1 with m=4 (H=2.00)")


class Away(Reward):
    """The opposite of the task's reward."""

    requires = frozenset({"reward"})
    role = "goal"

    def score(self, batch, memory=None):
        return -batch.reward


def test_a_reward_that_points_away_makes_the_task_harder():
    env = make(GRID)
    reward = Away(RewardConfig(), env.observation_space, env.action_space)
    assert effective_horizon(GRID, 1, None).m == 1
    assert effective_horizon(GRID, 1, None, reward, RewardConfig(weight=2.0)).k is None


def test_where_it_cannot_be_computed_one_sentence_explains_why():
    with pytest.raises(UsageError, match=r"horizon=2 cannot be found: .*give Discrete"):
        effective_horizon("Pendulum-v1", 2, None)
    with pytest.raises(UsageError, match=r"solved=much"):
        compare.main.parse([f"env={GRID}", "reward=count", "solved=much"])


def test_the_card_shows_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert compare.main([f"env={GRID}", "reward=count", "frames=20", "horizon=1", "page=page.html"]) == 0
    out = capsys.readouterr().out
    assert "effective horizon" in out and "k=1 with m=1" in out
    assert "effective horizon" in Path("page.html").read_text()
