"""The simulator as a model: what is imagined is what happens."""

import json

import numpy as np
import pytest
import torch

from agents.dynamics.true import TrueModel
from agents.networks.actor_critic import SpaceEncoding
from benchmarks import results
from benchmarks.checks import oracle
from envs.make import make

ONE_STEP = (
    "MountainCar-v0",
    "lodestar/CartPoleUpright-v0",
    "lodestar/MountainCarGoal-v0",
    "lodestar/PendulumUpright-v0",
    "lodestar/PendulumSparse-v0",
    "lodestar/MountainCarSparse-v0",
    "lodestar/CartPoleSwingUpSparse-v0",
    "InvertedDoublePendulum-v5",
    "Swimmer-v5",
    "Reacher-v5",
    "HumanoidStandup-v5",
    "Hopper-v4",
)


@pytest.mark.parametrize("task", oracle.TASKS)
def test_imagined_returns_are_real_returns(task):
    found = oracle.compare(task, episodes=3)
    assert found["error"] <= 1e-5 and found["state_error"] <= 1e-4
    assert found["ends"] and found["steps"] >= 60


def model_of(env_id, **options):
    env = make(env_id, seed=0, **options)
    encoding = SpaceEncoding(env.observation_space, env.action_space)
    return env, encoding, TrueModel(env_id, encoding, **options)


def real_steps(env, encoding, count):
    obs, _ = env.reset()
    rows = []
    for _ in range(count):
        action = env.action_space.sample()
        after, reward, terminated, truncated, _ = env.step(action)
        rows.append((obs, encoding.encode(np.asarray(action)[None])[0], after, reward, terminated))
        obs = env.reset()[0] if terminated or truncated else after
    return [np.array(column) for column in zip(*rows)]


def float_tensor(x):
    return torch.as_tensor(x, dtype=torch.float32)


@pytest.mark.parametrize("env_id", ONE_STEP)
def test_every_real_step_is_predicted(env_id):
    env, encoding, model = model_of(env_id)
    obs, action, after, reward, terminated = real_steps(env, encoding, 60 if "-v5" in env_id else 300)
    outcome = model.step(float_tensor(obs), float_tensor(action), member_predictions=True)
    width = np.abs(after).max(0) + 1e-3
    assert (np.abs(outcome.next_obs.numpy() - after) / width).max() < 2e-5
    assert np.abs(outcome.reward.numpy() - reward).max() < 2e-6 * max(1.0, np.abs(reward).max())
    assert np.array_equal(outcome.terminated.numpy() > 0.5, terminated)
    assert torch.equal(outcome.means, outcome.next_obs[None]) and outcome.next_obs.dtype == torch.float32


def test_options_of_the_environment_are_those_of_the_model():
    env, encoding, model = model_of("lodestar/PendulumUpright-v0", torques=3)
    obs, action, after, *_ = real_steps(env, encoding, 50)
    np.testing.assert_allclose(model.step(float_tensor(obs), float_tensor(action)).next_obs, after, atol=1e-5)
    env, encoding, model = model_of(
        "Hopper-v5", exclude_current_positions_from_observation=False, forward_reward_weight=7
    )
    obs, action, after, reward, _ = real_steps(env, encoding, 30)
    outcome = model.step(float_tensor(obs), float_tensor(action))
    np.testing.assert_allclose(outcome.next_obs, after, atol=1e-4)
    np.testing.assert_allclose(outcome.reward, reward, atol=1e-4)


def test_outcomes_do_not_depend_on_earlier_calls():
    env, encoding, model = model_of("HalfCheetah-v5")
    obs, action, *_ = (float_tensor(x) for x in real_steps(env, encoding, 20))
    first = model.step(obs, action)
    again = model.step(obs.flip(0), action.flip(0))
    assert torch.equal(first.next_obs, again.next_obs.flip(0)) and torch.equal(first.reward, again.reward.flip(0))


def test_there_is_nothing_to_learn():
    _, _, model = model_of("Pendulum-v1")
    assert model.fit(None) == {} and model.state_dict() == {}
    model.load_state_dict({})


@pytest.mark.parametrize("env_id", ["Pusher-v5", "MiniGrid-Empty-5x5-v0", "lodestar/ProbeValue-v0"])
def test_states_that_cannot_be_read_are_refused(env_id):
    with pytest.raises(ValueError, match=r"model=true supports classic .*, not of .*; use model=ensemble"):
        TrueModel(env_id, None)


def test_the_bench_writes_a_row_a_task_and_the_largest_error(tmp_path, monkeypatch):
    monkeypatch.setattr(oracle, "TASKS", ("CartPole-v1", "Pendulum-v1"))
    figures = oracle.run(tmp_path)
    rows = (tmp_path / "oracle.csv").read_text().splitlines()
    assert rows[0] == "task,error,state_error,ends,steps" and len(rows) == 3
    assert 0 < figures["oracle_error"] <= 1e-5 and figures["oracle_tasks"] == 2
    results.write_figures(tmp_path / "oracle.json", "oracle", figures)
    assert 0 < json.loads((tmp_path / "oracle.json").read_text())["figures"]["oracle_error"] <= 1e-5
