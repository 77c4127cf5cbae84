from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from scripted import ScriptedWorld, script
from stable_baselines3 import DQN, SAC, HerReplayBuffer
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import DummyVecEnv

import rewards
from rewards.adapters.sb3 import RelabelCallback, relabelling
from rewards.base import Reward, RewardConfig
from rewards.mix.mix import Mix, Stream

SPACES = ScriptedWorld.observation_space, ScriptedWorld.action_space


class Level(Reward):
    """Pays a number that can be changed: is the newest one paid for old transitions?"""

    level = 1.0

    def score(self, batch, memory=None):
        return np.full(batch.shape, self.level, np.float32)


class Push(Reward):
    """Pays the action."""

    requires = frozenset({"action"})

    def score(self, batch, memory=None):
        return batch.action.reshape(len(batch.action), -1)[:, 0].astype(np.float32)


def one(reward, observation_space=SPACES[0], action_space=SPACES[1], **config):
    return Mix([Stream("it", reward(RewardConfig(**config), observation_space, action_space), gamma=0.9)])


def fill(buffer_class, mix, steps=30, **kwargs):
    env = DummyVecEnv([lambda i=i: ScriptedWorld(i) for i in range(2)])
    buffer = relabelling(buffer_class)(200, *SPACES, device="cpu", n_envs=2, mix=mix, **kwargs)
    obs = env.reset()
    buffer.attach(env)
    for _ in range(steps):
        actions = script(obs)
        new_obs, paid, dones, infos = env.step(actions)
        true = new_obs.copy()
        for i in np.flatnonzero(dones):
            true[i] = infos[i]["terminal_observation"]
        buffer.add(obs, true, actions, paid, dones, infos)
        obs = new_obs
    return buffer


def test_old_transitions_are_scored_by_the_newest_reward_and_nothing_learned_is_stored():
    mix = one(Level)
    buffer = fill(ReplayBuffer, mix)
    assert buffer.sample(16).rewards.unique().tolist() == [1]
    mix.streams["it"].reward.level = 5.0
    assert buffer.sample(16).rewards.unique().tolist() == [5]
    assert np.abs(buffer.task_rewards).max() <= 1  # cosines: the task's own


def test_n_step_returns_add_up_the_relabelled_rewards():
    buffer = fill(NStepReplayBuffer, one(Level), n_steps=3, gamma=0.5)
    returns = buffer.sample(256).rewards.unique().tolist()
    assert set(returns) <= {1.0, 1.5, 1.75}  # one, two or three steps before the episode ends
    assert 1.75 in returns


def test_dict_observations_are_relabelled():
    space = spaces.Dict({"x": spaces.Box(-1, 1, (2,), np.float32)})
    buffer = relabelling(DictReplayBuffer)(
        10, space, SPACES[1], device="cpu", mix=one(Level, space), update_every=10**6
    )
    obs = {"x": np.zeros((1, 2), np.float32)}
    buffer.add(obs, obs, np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])
    assert buffer.sample(4).rewards.tolist() == [[1.0]] * 4


def test_box_actions_reach_the_reward_in_the_environments_own_range():
    env = gym.make("Pendulum-v1")  # torque in [-2, 2], which SB3 stores as [-1, 1]
    mix = one(Push, env.observation_space, env.action_space)
    model = SAC(
        "MlpPolicy", DummyVecEnv([lambda: env]), buffer_size=100, learning_starts=200, device="cpu", seed=0,
        replay_buffer_class=relabelling(ReplayBuffer), replay_buffer_kwargs={"mix": mix},
    )  # fmt: skip
    taken = []
    step = env.unwrapped.step
    env.unwrapped.step = lambda action: taken.append(float(action[0])) or step(action)
    model.learn(40, callback=RelabelCallback())
    paid = model.replay_buffer.rewards[np.arange(40), np.zeros(40, int)]
    np.testing.assert_allclose(paid, taken, atol=1e-5)
    assert np.abs(paid).max() > 1.2


def test_her_scores_the_learned_part_for_virtual_goals_too():
    env = DummyVecEnv([lambda: BitFlippingEnv(n_bits=4, continuous=False)])
    mix = Mix(
        [
            Stream("task", rewards.get("task")(RewardConfig(), env.observation_space, env.action_space), gamma=0.9),
            Stream("it", Level(RewardConfig(weight=10.0), env.observation_space, env.action_space), gamma=0.9),
        ]
    )
    model = DQN(
        "MultiInputPolicy", env, learning_starts=1000, buffer_size=500, device="cpu", seed=0,
        replay_buffer_class=relabelling(HerReplayBuffer), replay_buffer_kwargs={"mix": mix, "n_sampled_goal": 4},
    )  # fmt: skip
    model.learn(100, callback=RelabelCallback())
    values = set(model.replay_buffer.sample(128).rewards.flatten().tolist())
    assert values == {9.0, 10.0}  # the task pays -1 or 0 (virtual goals reach 0), the reward 10


def test_episodic_scores_are_kept_from_the_time_they_were_earned():
    buffer = fill(ReplayBuffer, rewards.make(["count"], *SPACES, gamma=0.9))
    buffer.flush()
    # a world never comes back to a state within an episode: each first visit pays 1, weighed 0.01
    rows, columns = np.broadcast_arrays(np.arange(30)[:, None], np.arange(2))
    np.testing.assert_allclose(buffer.rewards[rows, columns], 0.01)


def test_fresh_transitions_are_learnt_from_once_in_time_order():
    mix = one(Level)
    seen = []
    mix.update = lambda batch, raw, timesteps: seen.append(batch.obs.copy()) or {}
    buffer = fill(ReplayBuffer, mix, steps=30, update_every=20)
    assert [x.shape for x in seen] == [(10, 2, 4)] * 3
    np.testing.assert_array_equal(np.concatenate(seen), buffer.observations[:30])


def test_what_the_rewards_say_of_an_update_is_logged_once():
    callback, logged = RelabelCallback(SimpleNamespace(metrics={"reward/level": 2.0})), {}
    callback.model = SimpleNamespace(logger=SimpleNamespace(record=logged.__setitem__))
    assert callback._on_step() and logged == {"reward/level": 2.0}
    logged.clear()
    assert callback._on_step() and not logged


def test_a_saved_buffer_continues_equally():
    from agents.sb3.agent import _buffer_state, load_buffer

    buffer = fill(ReplayBuffer, rewards.make(["task", "count"], *SPACES, gamma=0.9), steps=25)
    copy = relabelling(ReplayBuffer)(
        200, *SPACES, device="cpu", n_envs=2, mix=rewards.make(["task", "count"], *SPACES, gamma=0.9)
    )
    load_buffer(copy, _buffer_state(buffer))
    rows, columns = np.broadcast_arrays(np.arange(25)[:, None], np.arange(2))
    np.testing.assert_array_equal(copy.rewards[rows, columns], buffer.rewards[rows, columns])
    assert copy.pos == 25
    assert copy.timesteps == 50
    assert copy.tracker.cursor.step.tolist() == buffer.tracker.cursor.step.tolist()


def test_the_memory_saving_buffer_is_refused():
    with pytest.raises(ValueError, match="drops the true successors"):
        relabelling(ReplayBuffer)(
            10, *SPACES, mix=one(Level), optimize_memory_usage=True, handle_timeout_termination=False
        )


def test_n_steps_that_would_be_ignored_are_refused_and_those_of_the_buffer_are_taken():
    env = DummyVecEnv([lambda: gym.make("CartPole-v1")])
    mix = one(Level, env.observation_space, env.action_space)

    def learn(buffer_class, n=3, **given):
        buffer = {"replay_buffer_class": relabelling(buffer_class), "replay_buffer_kwargs": {"mix": mix, **given}}
        model = DQN("MlpPolicy", env, n_steps=n, gamma=0.5, learning_starts=8, batch_size=8, buffer_size=50, **buffer)
        return model.learn(30, callback=RelabelCallback())

    with pytest.warns(UserWarning, match="n_steps=3"):  # SB3's own, before ours
        for buffer_class, given in ((ReplayBuffer, {}), (NStepReplayBuffer, {"n_steps": 3, "gamma": 0.9})):
            with pytest.raises(ValueError, match=r"n_steps=3 of DQN does not reach.*NStepReplayBuffer.*\"gamma\": 0.5"):
                learn(buffer_class, **given)
        buffer = learn(NStepReplayBuffer, n_steps=3, gamma=0.5).replay_buffer
    assert set(buffer.sample(64).rewards.unique().tolist()) <= {1.0, 1.5, 1.75}
    assert learn(NStepReplayBuffer, n=1, n_steps=1, gamma=0.9).replay_buffer.gamma == 0.9  # one step is not discounted
