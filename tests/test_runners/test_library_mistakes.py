"""Mistakes in a script of the user's own, and environments with habits of their own: a sentence each, or they work."""

import threading

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import agents
import lodestar as ld
import rewards
from agents.sb3.agent import make_venv
from envs.make import make, make_vec, spec_of
from rewards.adapters.gym import RewardWrapper

BOX = spaces.Box(-1, 1, (3,))


class Odd(gym.Env):
    """An environment whose habits are its options; its constructor has no render_mode."""

    observation_space, action_space = BOX, spaces.Discrete(2)

    def __init__(self, reward=1.0, size=6, start=0, broken=False, wide="", terminated=False, truncated=False):
        assert size > 5
        if broken:
            raise RuntimeError("no display")
        self.value, self.ends, self.wide = reward, (terminated, truncated), wide
        if start:
            self.action_space = spaces.Discrete(3, start=start)
            self.observation_space = spaces.MultiDiscrete([3, 4], start=[start, start])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observed(self.wide == "always"), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        return self.observed(bool(self.wide)), self.value, *self.ends, {}

    def observed(self, wide):
        """What is seen, with an axis too many if it is wide."""
        obs = self.observation_space.sample()
        return obs[None] if wide else obs


gym.register("Odd-v0", entry_point=Odd, max_episode_steps=20)


@pytest.fixture(scope="module")
def cartpoles():
    envs = make_vec("CartPole-v1", 2)
    yield envs
    envs.close()


def single(envs):
    return envs.single_observation_space, envs.single_action_space


def test_a_single_name_of_a_reward_is_asked_for_as_a_list(cartpoles):
    with pytest.raises(ValueError, match=r"rewards='rnd' is a text; give a list: \['task', 'rnd'\]"):
        rewards.make("rnd", *single(cartpoles))
    assert list(rewards.make(("task", "count"), *single(cartpoles)).streams) == ["task", "count"]


def test_options_that_are_a_dict_or_anothers_are_answered_with_the_config_to_give(cartpoles):
    assert rewards.make({"rnd": {"features": 8}}, *single(cartpoles)).streams["rnd"].reward.config.features == 8
    with pytest.raises(ValueError, match=r"'feature' is no option of the reward 'rnd'; did you mean 'features'"):
        rewards.make({"rnd": {"feature": 8}}, *single(cartpoles))
    with pytest.raises(ValueError, match=r"options \{'hidden': 8\} are no RNDConfig; give RNDConfig\(hidden=8\)"):
        rewards.get("rnd")({"hidden": 8}, *single(cartpoles))
    with pytest.raises(ValueError, match="options of type ICMConfig are no RNDConfig"):
        rewards.get("rnd")(rewards.get("icm").Config(), *single(cartpoles))
    with pytest.raises(ValueError, match=r"are no PPOConfig; give PPOConfig\(gamma=0.9\)"):
        agents.get("ppo")(cartpoles, {"gamma": 0.9})
    with pytest.raises(ValueError, match=r"are no DQNConfig; give DQNConfig\(gamma=0.9\)"):
        agents.get("dqn").build({"gamma": 0.9}, make_venv("CartPole-v1", 1, 0), seed=0)


def test_the_spaces_of_a_vector_are_refused_by_the_first_batch(cartpoles):
    mix = rewards.make(["task", "rnd"], cartpoles.observation_space, cartpoles.action_space)
    wrapped = RewardWrapper(make("CartPole-v1"), mix)
    wrapped.reset(seed=0)
    with pytest.raises(ValueError, match=r"'rnd' was made for observations of shape \(2, 4\) and is given \(4,\)"):
        wrapped.step(0)
    with pytest.raises(ValueError, match=r"is no vector; give gymnasium\.make_vec"):
        agents.get("ppo")(make("CartPole-v1"))


@pytest.mark.parametrize("name", agents.names())
def test_an_observation_of_another_shape_is_told_the_shapes_that_fit(name):
    agent = agents.get(name)
    env = "Pendulum-v1" if spaces.Box in getattr(agent, "actions", ()) and len(agent.actions) == 1 else "CartPole-v1"
    own = agent.driver in ("scorer", "recording")
    envs = make_vec(env, 1) if own else make_venv(env, 1, 0)
    model = agent.build(agent.Config(), envs, seed=0, device="cpu")
    size = model.observation_space.shape[0]
    for shape in [(5,), (2, 5), (2, 2, size)]:
        with pytest.raises(ValueError, match=rf"shape .*\({size},\) or \("):
            model.predict(np.zeros(shape, np.float32))
    for observation in ({"x": np.zeros(size)}, None):
        with pytest.raises((ValueError, AssertionError), match=r"observation|shape"):
            model.predict(observation)


@pytest.mark.filterwarnings("ignore:.*render_mode")
def test_an_environment_without_a_render_mode_trains_but_cannot_be_drawn():
    assert make("Odd-v0").reset(seed=0)[0].shape == (3,)
    for wish in ({"frame_size": 64}, {"render_mode": "rgb_array"}):
        with pytest.raises(ValueError, match="Odd-v0 cannot draw itself: its constructor has no argument render_mode"):
            make("Odd-v0", **wish)


def test_a_constructor_that_asserts_is_named_with_its_line():
    with pytest.raises(ValueError, match=r"Odd-v0 cannot be made with the arguments \['size'\]: assert .* > 5 \(.*py:"):
        make("Odd-v0", size=5)


def test_a_constructor_that_raises_is_the_environments_failure(capsys):
    from runners.train import main

    assert main(["env=Odd-v0", "env.broken=true", "root=unused"]) == 6
    assert "the environment failed after 0 steps: RuntimeError: no display (" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:.*The reward returned")
@pytest.mark.parametrize("reward", [np.ones(1), np.ones(2), None])
def test_a_reward_that_is_no_number_is_shown(reward):
    env = make("Odd-v0", reward=reward)
    env.reset(seed=0)
    with pytest.raises(TypeError, match=r"the environment.s reward is .*; return a number, as in float"):
        env.step(0)
    assert make("Odd-v0", reward=np.array(2.0)).unwrapped.value == 2


@pytest.mark.filterwarnings("ignore:.*")
@pytest.mark.parametrize(
    "returned, kind, words",
    [
        ({"reward": "1.5"}, TypeError, r"the environment's reward is '1\.5'; return a number"),
        ({"terminated": None}, TypeError, "the environment's terminated is None; return True or False"),
        ({"truncated": "no"}, TypeError, "the environment's truncated is 'no'; return True or False"),
    ],
)
@pytest.mark.parametrize("wrap", [make, lambda *_, **given: ld.wrap(gym.make("Odd-v0", **given), "rnd")])
def test_results_of_a_wrong_type_are_not_converted_in_silence(wrap, returned, kind, words):
    env = wrap("Odd-v0", **returned)
    env.reset(seed=0)
    with pytest.raises(kind, match=words):
        env.step(0)


@pytest.mark.filterwarnings("ignore:.*")
@pytest.mark.parametrize("late", [False, True])
def test_an_observation_of_another_shape_is_not_broadcast(late):
    env = make("Odd-v0", wide="late" if late else "always")
    words = r"the environment's observation has the shape \(1, 3\), its space \(3,\)"
    with pytest.raises(ValueError, match=words):
        env.reset(seed=0)
        env.step(0)


@pytest.mark.parametrize("name", ["ppo", "dyna", "dqn", "sb3_ppo"])
def test_spaces_that_do_not_start_at_zero_are_counted_from_zero(name):
    agent = agents.get(name)
    if agent.driver in ("scorer", "recording"):
        model = agent.build(agent.Config(), make_vec("Odd-v0", 2, backend="gym", start=-10), seed=0).learn(40)
    else:
        few = {"learning_starts": 10} if name == "dqn" else {"n_steps": 16, "batch_size": 16}
        venv = make_venv("Odd-v0", 2, 0, start=-10)
        model = agent.build(agent.Config(**few), venv, seed=0, device="cpu").learn(40)
    assert model.action_space == spaces.Discrete(3) and np.all(model.observation_space.start == 0)
    env = make("Odd-v0", start=-10)
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs) and env.unwrapped.action_space.start == -10
    env.step(model.predict(obs)[0])  # asserts what it is given
    with pytest.raises(ValueError, match=r"DQN counts from 0, but Discrete\(3, start=-10\) does not"):
        agents.get("dqn").check(BOX, spaces.Discrete(3, start=-10))


def test_memory_that_is_not_there_is_said_in_gibibytes_before_training(cartpoles):
    dyna = agents.get("dyna")
    with pytest.raises(
        ValueError, match=r"a replay of 1,000,000,000,000 transitions, \d+ bytes each, needs [\d,.]+ GiB"
    ):
        dyna(make_vec("Pendulum-v1", 1), dyna.Config(buffer_size=10**12))
    dqn = agents.get("dqn")
    with pytest.raises(ValueError, match=r"agent.buffer_size=1,000,000,000,000, 52 bytes each, needs 48,428.8 GiB"):
        dqn.build(dqn.Config(buffer_size=10**12), make_venv("CartPole-v1", 1, 0), seed=0)


def test_a_command_runs_in_a_thread(tmp_path):
    from runners.train import main

    codes = []
    line = ["env=CartPole-v1", "total_timesteps=64", "agent.n_steps=8", "agent.batch_size=8", "eval_episodes=0"]
    line += ["video=false", f"root={tmp_path}"]
    thread = threading.Thread(target=lambda: codes.append(main(line)))
    thread.start()
    thread.join()
    assert codes == [0]


def test_a_folder_of_recordings_is_told_from_a_recording(tmp_path, capsys):
    from runners.offline import main

    assert main([f"data={tmp_path}"]) == 2
    assert f"{tmp_path} is a folder; give the recordings in it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("CartPole-v9", "CartPole-v1"),
        ("ALE/Pong-v5", "ale_py:ALE/Pong-v5"),
        ("gymnasium:CartPole-v9", "gymnasium:CartPole-v1"),
        ("lodestar/NoisyRoom-v0", "lodestar/NoisyRooms-v0"),
    ],
)
def test_the_nearest_environment_keeps_its_module(given, meant):
    with pytest.raises(ValueError, match=f"unknown environment '{given}'; did you mean '{meant}'"):
        spec_of(given)
