"""Stable-Baselines3 over watchdogged workers: the numbers of a DummyVecEnv, and what a lost worker costs."""

import os
import signal

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.vec_env import DummyVecEnv

import rewards
from agents.sb3.agent import SAC, SB3PPO, SACConfig, SB3PPOConfig, WorkerVecEnv, make_venv
from envs.steps import Cursor, from_sb3_step
from rewards.adapters.sb3 import RelabelCallback, RewardCallback, RewardVecEnv, relabelling


def _pair(env_id: str, n: int, **options) -> tuple[DummyVecEnv, WorkerVecEnv]:
    here = make_venv(env_id, n, 5, **options)
    there = make_venv(env_id, n, 5, workers={"processes": 2}, **options)
    assert isinstance(here, DummyVecEnv) and isinstance(there, WorkerVecEnv)
    return here, there


def _same(a, b) -> None:
    assert isinstance(a, dict) == isinstance(b, dict)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            _same(a[key], b[key])
    else:
        np.testing.assert_array_equal(a, b)


def _lose(venv: WorkerVecEnv, worker: int) -> None:
    venv.say = lambda sentence: None
    os.kill(venv.workers._workers[worker].process.pid, signal.SIGKILL)
    venv.workers._workers[worker].process.join(10)


def _runs(process) -> bool:
    try:
        return process.is_alive()
    except ValueError:  # it was closed
        return False


def test_a_step_says_what_dummy_vec_env_says() -> None:
    here, there = _pair("MiniGrid-Empty-5x5-v0", 3, max_episode_steps=12, text=True, frame_size=16)
    _same(here.reset(), there.reset())
    rng, ends = np.random.default_rng(0), 0
    for _ in range(40):
        actions = rng.integers(3, size=3)
        (*one, infos), (*other, told) = here.step(actions), there.step(actions)
        for ours, theirs in zip(one, other):
            _same(ours, theirs)
        for row in range(3):
            ends += int("episode" in told[row])
            assert told[row].get("episode", {"t": 0}).pop("t") >= 0
            infos[row].get("episode", {"t": 0}).pop("t")
            _same({name: infos[row][name] for name in told[row]}, told[row])
            reset = there.reset_infos[row]
            _same({name: here.reset_infos[row][name] for name in reset}, reset)
    assert ends >= 9
    here.close()
    processes = [worker.process for worker in there.workers._workers]
    there.close()
    assert len(processes) == 2 and not any(_runs(process) for process in processes)


def test_attributes_and_methods_reach_the_environments_they_are_meant_for() -> None:
    here, there = _pair("CartPole-v1", 3)
    assert there.get_attr("gravity") == here.get_attr("gravity") == [9.8] * 3
    assert there.has_attr("gravity") and not there.has_attr("levity")
    there.set_attr("mood", "calm", indices=[1])
    assert there.get_attr("mood", indices=[1]) == ["calm"]
    assert there.env_is_wrapped(gym.wrappers.TimeLimit) == here.env_is_wrapped(gym.wrappers.TimeLimit) == [True] * 3
    assert there.render_mode is None and there.num_envs == 3
    there.reset()
    assert there.env_method("snapshot", indices=[2])[0]["seed"] == 7
    there.set_options([{"low": -0.1}, {}, {}])
    with pytest.raises(ValueError, match=r"reset with the same options; give set_options one dict"):
        there.reset()
    there.close()
    there.close()


@pytest.mark.parametrize(
    ("kind", "config", "env_id", "n", "steps"),
    [
        (SB3PPO, SB3PPOConfig(n_steps=32, batch_size=16, n_epochs=2), "CartPole-v1", 2, 128),
        (SAC, SACConfig(learning_starts=40, batch_size=16, net_arch=[16]), "Pendulum-v1", 2, 100),
    ],
    ids=["ppo", "sac"],
)
def test_an_agent_learns_the_same_weights_as_over_dummy_vec_env(kind, config, env_id, n, steps) -> None:
    weights = []
    for venv in _pair(env_id, n, max_episode_steps=30):
        model = kind.build(config, venv, seed=3, device="cpu")
        model.learn(steps)
        weights.append({name: value.numpy() for name, value in model.policy.state_dict().items()})
        assert [e["l"] for e in model.ep_info_buffer]
        venv.close()
    _same(*weights)


def test_a_snapshot_goes_on_to_the_same_numbers() -> None:
    here, there = _pair("CartPole-v1", 3)
    _same(here.reset(), there.reset())
    for _ in range(15):
        here.step(np.ones(3, int))
        there.step(np.ones(3, int))
    saved = there.snapshot()
    fresh = make_venv("CartPole-v1", 3, 99, workers={"processes": 1})
    fresh.reset()
    fresh.restore(saved)
    for _ in range(30):
        for ours, theirs in zip(fresh.step(np.zeros(3, int))[:3], here.step(np.zeros(3, int))[:3]):
            _same(ours, theirs)
    for venv in (here, there, fresh):
        venv.close()


def test_a_lost_worker_truncates_its_episodes_and_they_are_no_transitions() -> None:
    venv = make_venv("CartPole-v1", 3, 0, workers={"processes": 2})
    before = venv.reset()
    cursor = Cursor(3)
    _lose(venv, 1)
    obs, rewards_, dones, infos = venv.step(np.zeros(3, int))
    assert dones.tolist() == [False, True, False] and rewards_.tolist() == [1.0, 0.0, 1.0]
    assert infos[1]["lost"] and infos[1]["TimeLimit.truncated"] and "episode" not in infos[1]
    np.testing.assert_array_equal(infos[1]["terminal_observation"], before[1])
    batch = from_sb3_step(cursor, before, np.zeros(3, int), rewards_, obs, dones, infos, venv.reset_infos)
    assert batch.valid.tolist() == [True, False, True] and batch.ended.tolist() == [False, True, False]
    assert cursor.step.tolist() == [1, 0, 1] and venv.restarts == 1
    assert not venv.step(np.zeros(3, int))[2].any()
    venv.close()


def test_an_on_policy_agent_gets_no_bonus_and_no_advantage_for_a_lost_row() -> None:
    venv = make_venv("CartPole-v1", 2, 0, workers={"processes": 2})
    mix = rewards.make(["task", "rnd"], venv.observation_space, venv.action_space, gamma=0.99, seed=0)
    model = SB3PPO.build(SB3PPOConfig(n_steps=16, batch_size=16, n_epochs=1), venv, seed=0, device="cpu")
    seen = {}

    class Watch(RewardCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == 16:
                _lose(venv, 0)  # so that step 8 of environment 0 is lost
            return super()._on_step()

        def _on_rollout_end(self) -> None:
            super()._on_rollout_end()
            buffer = self.model.rollout_buffer
            seen.update(valid=self.batch.valid.copy(), advantages=buffer.advantages.copy())
            seen.update(returns=buffer.returns.copy(), values=buffer.values.copy(), rewards=buffer.rewards.copy())

    model.learn(32, callback=Watch(mix))
    assert np.argwhere(~seen["valid"]).tolist() == [[8, 0]]
    assert seen["advantages"][8, 0] == 0 and seen["returns"][8, 0] == seen["values"][8, 0]
    delta = seen["rewards"][7, 0] + 0.99 * seen["values"][8, 0] - seen["values"][7, 0]
    np.testing.assert_allclose(seen["advantages"][7, 0], delta, rtol=1e-5)
    venv.close()


def test_a_relabelling_replay_repeats_the_transition_before_instead_of_the_lost_row() -> None:
    venv = make_venv("Pendulum-v1", 2, 0, workers={"processes": 2})
    mix = rewards.make(["task", "rnd"], venv.observation_space, venv.action_space, gamma=0.99, seed=0)
    from stable_baselines3.common.buffers import ReplayBuffer

    buffer = (relabelling(ReplayBuffer), {"mix": mix})
    model = SAC.build(SACConfig(learning_starts=10, batch_size=8), venv, seed=0, device="cpu", buffer=buffer)

    class Lose(RelabelCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == 10:
                _lose(venv, 1)  # so that row 5 of environment 1 is lost
            return super()._on_step()

    model.learn(24, callback=Lose())
    replay = model.replay_buffer
    for array in (replay.observations, replay.next_observations, replay.actions, replay.task_rewards, replay.steps):
        np.testing.assert_array_equal(array[5, 1], array[4, 1])
        assert (array[5, 0] != array[4, 0]).any()
    assert replay.dones[3:7].tolist() == [[0, 0], [0, 1], [0, 1], [0, 0]]
    np.testing.assert_array_equal(replay.timeouts, replay.dones)
    assert replay.steps[6, 1] == 0
    venv.close()


def test_the_reward_around_a_vec_env_pays_nothing_for_a_lost_row() -> None:
    venv = make_venv("CartPole-v1", 2, 0, workers={"processes": 2})
    mix = rewards.make(["task", "rnd"], venv.observation_space, venv.action_space, gamma=0.99, seed=0)
    paid = RewardVecEnv(venv, mix)
    paid.reset()
    paid.step(np.zeros(2, int))
    assert (paid.driver.raw["rnd"] > 0).all()
    _lose(venv, 0)
    total = paid.step(np.zeros(2, int))[1]
    assert total.tolist() == [0, 1]  # the bonus is still warming up
    assert paid.driver.raw["rnd"][0] == 0 < paid.driver.raw["rnd"][1]
    assert paid.driver.timesteps == 3
    venv.close()
