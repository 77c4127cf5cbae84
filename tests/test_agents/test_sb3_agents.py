import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import DummyVecEnv

import agents
from agents.sb3.agent import get_state, policy_name, set_state


def venv(env_id, n=1, **kwargs):
    made = DummyVecEnv([lambda: gym.make(env_id, **kwargs)] * n)
    made.seed(0)
    return made


SMALL = {
    "sb3_ppo": {"n_steps": 16, "batch_size": 16, "n_epochs": 1},
    "a2c": {},
    "maskable_ppo": {"n_steps": 16, "batch_size": 16, "n_epochs": 1},
    "recurrent_ppo": {"n_steps": 16, "batch_size": 16, "n_epochs": 1},
}
OFF = {"learning_starts": 8, "batch_size": 8, "buffer_size": 200}


def build(name, n=2, seed=0):
    cls = agents.get(name)
    env_id = "Pendulum-v1" if name in ("sac", "td3", "tqc", "crossq") else "CartPole-v1"
    # CrossQ's own layers have 1024 units.
    config = cls.Config(net_arch=[16], **SMALL.get(name, OFF))
    if name == "maskable_ppo":
        made = venv("tests.masked_env:MaskDoors-v0", n, way="method")
    else:
        made = venv(env_id, n)
    return cls.build(config, made, seed=seed, device="cpu")


def weights(model):
    return {key: value.clone() for key, value in model.policy.state_dict().items()}


@pytest.mark.parametrize(
    "name", [name for name in agents.names() if agents.TABLE[name].startswith("agents.sb3.agent:")]
)
def test_every_agent_learns_and_its_whole_state_moves_to_a_fresh_one(name):
    model = build(name)
    before = weights(model)
    model.learn(48)
    assert any((before[key] != value).any() for key, value in weights(model).items())
    state = copy.deepcopy(get_state(model))
    fresh = build(name, seed=1)
    if name == "recurrent_ppo":
        fresh.learn(32)  # gives it an LSTM state to overwrite
    fresh.set_logger(model.logger)
    set_state(fresh, state)
    for key, value in weights(model).items():
        torch.testing.assert_close(fresh.policy.state_dict()[key], value, rtol=0, atol=0)
    if name == "recurrent_ppo":
        for ours, theirs in zip(model._last_lstm_states, fresh._last_lstm_states):
            assert ours[0].any() and all(map(torch.equal, ours, theirs))
    assert fresh.num_timesteps == model.num_timesteps
    assert fresh.action_space.sample() == pytest.approx(model.action_space.sample())
    np.testing.assert_array_equal(fresh._last_obs, model._last_obs)
    if agents.get(name).driver == "relabel":
        np.testing.assert_array_equal(
            fresh.replay_buffer.observations[: model.replay_buffer.pos],
            model.replay_buffer.observations[: model.replay_buffer.pos],
        )
        set_random_seed(0)
        model.train(1, 8)
        set_random_seed(0)
        fresh.train(1, 8)  # optimisers, targets and the entropy's temperature moved along
        for key, value in weights(model).items():
            torch.testing.assert_close(fresh.policy.state_dict()[key], value, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["sac", "tqc", "crossq"])
def test_gsde_begins_with_the_deviation_asked_for_and_draws_anew_each_round(name):
    config = agents.get(name).Config(**OFF, use_sde=True, log_std_init=-1.0, train_freq=4)
    model = agents.get(name).build(config, venv("Pendulum-v1"), seed=0, device="cpu")
    assert (model.actor.log_std == -1).all()
    drawn = []
    for _ in range(2):
        model.learn(4, reset_num_timesteps=False)
        drawn.append(model.actor.action_dist.exploration_mat.clone())
    assert model.actor.use_sde and (drawn[0] != drawn[1]).any()


@pytest.mark.parametrize(
    ("name", "env_id", "words"),
    [
        ("dqn", "Pendulum-v1", r"DQN cannot choose actions from Box\(.*use agent=sac, td3, tqc, crossq or ppo"),
        ("sac", "CartPole-v1", r"SAC cannot choose actions from Discrete\(2\); use agent=ppo, a2c, dqn or qrdqn"),
    ],
)
def test_an_action_space_the_agent_cannot_handle_is_named_with_those_that_can(name, env_id, words):
    cls = agents.get(name)
    with pytest.raises(ValueError, match=words):
        cls.build(cls.Config(), venv(env_id), seed=0, device="cpu")


def test_text_observations_are_refused_with_a_way_out():
    space = spaces.Dict({"mission": spaces.Text(10), "image": spaces.Box(0, 255, (3, 40, 40), np.uint8)})
    with pytest.raises(ValueError, match="cannot read observations from Text"):
        agents.get("ppo").check(space, spaces.Discrete(2))


@pytest.mark.parametrize(
    ("name", "field", "value", "words"),
    [
        ("ppo", "gamma", 99, r"agent.gamma=99 is out of range; give a number in \(0, 1\]"),
        ("ppo", "learning_rate", 0, r"agent.learning_rate=0 is out of range; give a number in \(0, 1\]"),
        ("ppo", "n_steps", -3, "agent.n_steps=-3 is out of range; give a number at least 1"),
        ("dqn", "exploration_final_eps", 2, "agent.exploration_final_eps=2 is out of range"),
        ("sac", "net_arch", [64, 0], r"agent.net_arch=\[64, 0\] is out of range; give a number at least 1"),
    ],
)
def test_numbers_out_of_range_are_refused_at_construction(name, field, value, words):
    with pytest.raises(ValueError, match=words):
        agents.get(name).Config(**{field: value})


def test_unknown_agents_get_the_nearest_name():
    with pytest.raises(ValueError, match="there is no agent 'ppp'; did you mean 'ppo'"):
        agents.get("ppp")


def test_policies_fit_the_observation():
    assert policy_name("auto", spaces.Box(0, 255, (3, 64, 64), np.uint8)) == "CnnPolicy"
    assert policy_name("auto", spaces.Box(-1, 1, (4,))) == "MlpPolicy"
    assert policy_name("auto", spaces.Dict({"x": spaces.Box(-1, 1, (4,))})) == "MultiInputPolicy"
    assert policy_name("auto", spaces.Box(-1, 1, (4,)), lstm=True) == "MlpLstmPolicy"
    assert policy_name("CnnPolicy", spaces.Box(-1, 1, (4,))) == "CnnPolicy"


@pytest.mark.parametrize(("n", "given", "said"), [(4, {}, 1), (1, {}, 0), (4, {"gradient_steps": -1}, 0)])
def test_updates_that_several_environments_dilute_are_spoken_of(n, given, said, recwarn):
    cls = agents.get("dqn")
    cls.build(cls.Config(**OFF, **given), venv("CartPole-v1", n), seed=0, device="cpu")
    words = "agent.gradient_steps=1 is one update for 16 transitions with 4 environments, 4 with one"
    assert sum(words in str(warning.message) for warning in recwarn) == said
