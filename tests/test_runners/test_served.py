"""Scores of a policy for each user that it serves, and of a new one; who cannot be asked, and what cannot serve."""

import dataclasses
import json

import numpy as np
import pytest

import rewards
from agents.ppo.agent import PPOConfig
from runners.evaluate import evaluation, table
from runners.evaluate import main as evaluate
from runners.run.build import build
from runners.run.config import TrainConfig, UsageError
from runners.run.served import new_judge, play_episodes, scores_by_user
from runners.train import main as train

SMALL = {"length": 5, "latent": 2, "hidden": 8, "features": 8, "seed_steps": 64, "every": 64, "queries": 8}
SMALL |= {"epochs": 2, "budget": 16}


@pytest.fixture(scope="module")
def parts():
    users = rewards.config_of("users", {**SMALL, "user": "all"})
    agent = PPOConfig(n_steps=32, batch_size=32, n_epochs=1, net_arch=[8])
    config = TrainConfig(env="lodestar/PointMaze-v0", reward={"users": users}, agent_name="ppo", agent=agent, n_envs=2)
    made = build(config)
    made.mix.streams["users"].reward.labelled.z[:] = [[1, 0], [-1, 0]]
    yield config, made
    made.venv.close()


def to_its_end(obs, begins):
    """Up the stem, then to the end that the first number of z beside the place points to."""
    sideways = obs[2] if obs[1] > 0.6 else -obs[0]
    return np.float32([sideways, 1])


def test_each_user_is_served_and_their_own_judge_says_whether_it_succeeded(parts):
    config, made = parts
    found = dict(scores_by_user(config, to_its_end, made.mix, 6, 100))
    assert list(found) == ["for", "against"]
    assert [len(one.returns) for one in found.values()] == [3, 3]
    assert min(found["for"].returns) > 10 and max(found["against"].returns) < -10
    assert found["for"].successes == found["against"].successes == [True] * 3
    made.mix.streams["users"].reward.labelled.z[:] = [[-1, 0], [1, 0]]  # each is served the other's
    found = dict(scores_by_user(config, to_its_end, made.mix, 6, 100))
    made.mix.streams["users"].reward.labelled.z[:] = [[1, 0], [-1, 0]]
    assert found["for"].successes == found["against"].successes == [False] * 3


def test_the_evaluation_has_a_column_a_user_and_its_table_says_what_success_is(parts):
    config, made = parts
    short = dataclasses.replace(config, eval_steps=60)  # An episode has 50 steps.
    assert [len(one.step) for one in play_episodes(short, to_its_end, made.mix, 6, 100)] == [50, 50]
    scores = evaluation(config, made.model, made.mix, 2, 0)
    assert list(scores) == ["this run", "random", "told: for", "told: against"]
    assert scores["told: for"]["episodes"] == 1 and scores["told: for"]["success"] in (0, 1)
    assert table(scores).splitlines()[-1].startswith("told: a user's success is that their own judge")


def test_somebody_new_is_served_after_a_few_answers(tmp_path, capsys, monkeypatch):
    # Who answers nothing is asked about every pair.
    monkeypatch.setattr("rewards.preference.users.CANDIDATE_PAIRS", 20)
    options = [f"reward.users.{key}={value}" for key, value in SMALL.items()]
    agent = ["agent=ppo", "agent.n_steps=32", "agent.batch_size=32", "agent.n_epochs=1", "preset=none", "n_envs=2"]
    run = ["env=lodestar/PointMaze-v0", "total_timesteps=256", f"run_dir={tmp_path}/run", "control=none", "video=false"]
    assert train([*run, *agent, "reward=users", "reward.users.user=all", "eval_episodes=2", *options]) == 0
    scores = json.loads((tmp_path / "run" / "result.json").read_text())
    assert list(scores) == ["this run", "random", "told: for", "told: against"]
    capsys.readouterr()
    asked = [f"run={tmp_path}/run", "episodes=2", "video=false", "new_user=scripted"]
    assert evaluate([*asked, "new_user.mistakes=1.0", "answers=3"]) == 0
    assert "told: a new user, 3 answers" in capsys.readouterr().out
    assert evaluate([*asked, "new_user.skip=1.0"]) == 2
    assert "new_user=scripted answered no question" in capsys.readouterr().err


def test_who_cannot_be_asked_or_served_is_refused(parts):
    _, made = parts
    with pytest.raises(UsageError, match="new_user=human answers later; annotate first and give new_user=recorded"):
        new_judge(made.mix, "human", {})
    with pytest.raises(UsageError, match="new_user=scripted has nothing to be asked about: this checkpoint holds 0"):
        new_judge(made.mix, "scripted", {})
    made.mix.streams["users"].reward.segments.pool.extend([None, None])
    with pytest.raises(ValueError, match="no judge 'scripetd'; did you mean 'scripted'"):
        new_judge(made.mix, "scripetd", {})
    spaces = made.venv.single_observation_space, made.venv.single_action_space
    task = rewards.make(["task"], *spaces)
    with pytest.raises(UsageError, match=r"new_user=scripted needs a run of reward=users with reward\.users\.user=all"):
        new_judge(task, "scripted", {})
    assert list(scores_by_user(parts[0], to_its_end, task, 2, 0)) == []
