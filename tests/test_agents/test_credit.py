import numpy as np
import pytest

import envs.make
import rewards
from agents.ppo.agent import PPO, PPOConfig
from agents.ppo.plugins.credit import soften, weakest_link
from agents.ppo.seams import GAEInputs

R = np.float32([0.8, -0.6, 0.4]).reshape(3, 1, 1)
NO, END = np.zeros((3, 1), bool), np.array([[False], [False], [True]])
VALID = ~NO


def inputs_of(rewards_, values, last=0.0, terminated=NO, truncated=NO, valid=VALID):
    """One stream without a discount; neither estimator reads what stands behind `valid`."""
    v = np.float32(values).reshape(-1, 1, 1)
    ends = (terminated, truncated, valid)
    return GAEInputs(rewards_, v, np.full_like(rewards_, last), *ends, np.ones(1), 1.0, np.ones(1, bool))


def least(rewards_, values, **options):
    inputs = inputs_of(rewards_, values, **options)
    return (weakest_link(inputs) + inputs.values[:-1]).ravel().tolist()


def soft(rewards_, credit="soft_min", terminated=NO, valid=VALID):
    inputs = inputs_of(rewards_, np.zeros(len(rewards_) + 1), terminated=terminated, truncated=NO[:1], valid=valid)
    return soften(inputs, [credit])


def test_the_return_is_the_least_reward_that_follows():
    assert least(R, [0.1, 0.2, 0.3, 9], terminated=END) == pytest.approx([-0.6, -0.6, 0.4])


def test_what_goes_on_is_bootstrapped_with_its_value():
    assert least(R, [0, 0, 0, 0.3]) == pytest.approx([-0.6, -0.6, 0.3])  # the rollout ended
    assert least(R, [0, 0, 0, 9], last=-1.0, truncated=END) == pytest.approx([-1, -1, -1])  # time ran out
    middle = np.array([[True], [False], [False]])
    assert least(R, [0, 0, 0, 0.3], terminated=middle) == pytest.approx([0.8, -0.6, 0.3])


def test_a_row_that_is_no_transition_is_passed_over_and_a_lost_episode_is_bootstrapped():
    gone = np.array([[False], [True], [False]])
    assert least(R, [0, 7, 0, 9], valid=~gone) == pytest.approx([0.4, 7, 0.4])
    assert least(R, [0, 0.5, 0, 9], valid=~gone, truncated=gone) == pytest.approx([0.5, 0.5, 0.4])


def test_the_soft_form_weighs_each_episode_by_itself(monkeypatch):
    monkeypatch.setattr("agents.ppo.plugins.credit.SOFT_MIN_TEMPERATURE", 1.0)
    weighted = soft(R).ravel()
    weights = np.array([0.15274, 0.61940, 0.22786])
    assert weighted == pytest.approx(weights * R.ravel(), abs=1e-5)
    assert weighted.sum() == pytest.approx(-0.15830, abs=1e-5)
    monkeypatch.setattr("agents.ppo.plugins.credit.SOFT_MIN_TEMPERATURE", 0.1)
    assert soft(R).sum() == pytest.approx(-0.59995, abs=1e-5)
    two = np.concatenate([R, R])
    ends = np.concatenate([END, NO])
    assert soft(two, terminated=ends, valid=np.ones((6, 1), bool))[3:].ravel() == pytest.approx(soft(R).ravel())
    assert soft(R, "sum") is R


def test_ppo_learns_the_least_reward_and_refuses_to_add_it_up():
    vector = envs.make.make_vec("CartPole-v1", 2, backend="batched", seed=0)
    space = vector.single_observation_space, vector.single_action_space
    mix = rewards.make({"task": {"credit": "min"}}, *space)
    agent = PPO(vector, PPOConfig(n_steps=32, batch_size=16), scorer=mix).learn(64)
    values = agent.collector.values
    kept = {}
    agent.begin_rollout(), agent.collect(lambda *_: True)
    kept = agent.update()
    returns = kept["advantages"] + agent.collector.values[:-1]
    assert np.isfinite(values).all() and returns.max() <= 1  # every reward of CartPole is 1
    with pytest.raises(ValueError, match="credit=min needs whole rollouts and a value for every stream"):
        PPO(vector, PPOConfig(n_steps=32, batch_size=16, streams="sum"), scorer=mix)
