"""Streams without a discount: differential values of chains one can compute by hand, ends, resume, refusals."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import envs.make
import rewards
from agents.dyna.agent import Dyna, DynaConfig
from agents.ppo.agent import PPO, PPOConfig
from agents.ppo.plugins.average import AverageEstimator
from agents.ppo.seams import GAEInputs
from rewards.adapters.sb3 import RewardCallback

AVERAGE = {"task": {"gamma": "average", "episodic": False}}


class Stream:
    """What an estimator reads of a stream."""

    credit = "sum"

    def __init__(self, average):
        self.average = average


def column(numbers):
    return np.float32(numbers).reshape(-1, 1, 1)


def estimate(estimator, rewards_, values, last=None, terminated=(), truncated=(), invalid=(), gae_lambda=0.5):
    """Advantages (T,) of one environment; rows that ended, and rows that are no transition, by their numbers."""
    length = len(rewards_)
    flags = []
    for rows in (terminated, truncated, invalid):
        flag = np.zeros((length, 1), bool)
        flag[list(rows)] = True
        flags.append(flag)
    last = column([0] * length if last is None else last)
    gamma = np.ones(1, np.float32)
    ends = (flags[0], flags[1], ~flags[2])
    inputs = GAEInputs(column(rewards_), column(values), last, *ends, gamma, gae_lambda, np.zeros(1, bool))
    return estimator(inputs).ravel()


def make_estimator(streams):
    return AverageEstimator(SimpleNamespace(config=PPOConfig(), streams=streams, metrics={}))


def one_stream():
    return make_estimator({"task": Stream(True)})


def test_the_advantages_of_a_chain_by_hand():
    # Rewards 1, 0, 1, 0: rho = 1/2, and from values 0 delta = 1/2, -1/2, 1/2, -1/2.
    got = estimate(one_stream(), [1, 0, 1, 0], [0, 0, 0, 0, 0])
    assert got == pytest.approx([0.3125, -0.375, 0.25, -0.5])


def test_the_differential_values_of_two_states_are_the_fixed_point():
    # V(0) - V(1) = 1/2 satisfies V(s) = r - rho + V(s'), and the pull makes the mean 0.
    value = np.array([3.0, 1.0])
    estimator = one_stream()
    for _ in range(400):
        values = value[[0, 1, 0, 1, 0]]
        returns = estimate(estimator, [1, 0, 1, 0], values) + values[:-1]
        value = returns.reshape(2, 2).mean(0)
    assert value == pytest.approx([0.25, -0.25], abs=1e-4)
    assert estimate(estimator, [1, 0, 1, 0], values) == pytest.approx([0, 0, 0, 0], abs=1e-4)


def test_a_termination_is_a_step_to_the_next_start_and_a_time_limit_is_bootstrapped():
    # Rho is 0. The next episode's first state has the value 4; the last observation before a time limit has 8.
    assert estimate(one_stream(), [0, 0], [0, 4, 0], terminated=[0], gae_lambda=0)[0] == pytest.approx(4 - 0.1 * 2)
    cut = estimate(one_stream(), [0, 0], [0, 4, 0], last=[8, 0], truncated=[0], gae_lambda=1)
    # Nothing of the next episode is added up.
    assert cut == pytest.approx([8 - 0.1 * 2, -4 - 0.1 * 2])
    # A row that only resets counts in no mean and has no advantage.
    reset = estimate(one_stream(), [1, 9, 1], [0, 7, 0, 0], terminated=[0], invalid=[1])
    assert reset == pytest.approx([0, 0, 0])


def test_the_means_count_the_first_rollouts_equally_and_then_a_tenth():
    estimator = make_estimator({"task": Stream(True)})
    metrics = estimator.metrics
    for mean in range(10):
        estimate(estimator, [mean, mean], [2, 2, 5])
    assert metrics == pytest.approx({"train/average_reward_task": 4.5})
    assert estimator.values_mean == pytest.approx([2])
    estimate(estimator, [14.5, 14.5], [2, 2, 5])
    assert metrics["train/average_reward_task"] == pytest.approx(5.5)


def test_other_streams_are_estimated_as_without_it():
    ones = np.ones((3, 1, 2), np.float32)
    values = np.zeros((4, 1, 2), np.float32)
    no = np.zeros((3, 1), bool)
    estimator = make_estimator({"task": Stream(False), "rnd": Stream(True)})
    inputs = GAEInputs(ones, values, ones, no, no, ~no, np.float32([0.5, 1]), 1.0, np.array([True, False]))
    got = estimator(inputs)
    assert got[:, 0, 0] == pytest.approx([1.75, 1.5, 1])
    assert got[:, 0, 1] == pytest.approx([0, 0, 0])


class Alternating(gym.Env):
    """State 0 pays 1 and leads to state 1, which pays 0 and leads to state 0; actions change nothing; it never ends."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = int(self.np_random.integers(2))
        return np.float32([self.state]), {}

    def step(self, action):
        reward = 1.0 - self.state
        self.state = 1 - self.state
        return np.float32([self.state]), reward, False, False, {}


def make_agent(**settings):
    vector = SyncVectorEnv([Alternating] * 4, autoreset_mode=AutoresetMode.SAME_STEP)
    mix = rewards.make(AVERAGE, vector.single_observation_space, vector.single_action_space)
    settings = {"n_steps": 32, "batch_size": 32, "n_epochs": 4, "net_arch": [16], "learning_rate": 1e-2} | settings
    return PPO(vector, PPOConfig(**settings), scorer=mix)


def test_ppo_learns_the_differential_values():
    agent = make_agent().learn(60 * 4 * 32)
    assert agent.metrics["train/average_reward_task"] == pytest.approx(0.5)
    values = agent.policy(torch.tensor([[0.0], [1.0]]), {})[1].ravel().tolist()
    assert values == pytest.approx([0.25, -0.25], abs=0.03)


def test_a_run_continues_exactly():
    first = make_agent().learn(2 * 128)
    second = make_agent()
    second.set_state(first.get_state())
    estimator = second.extensions.average
    assert estimator.rollouts == 2 and estimator.rewards_mean == pytest.approx([0.5])
    # A third rollout counts a third, so that a forgotten number of rollouts would show.
    for agent in (first, second):
        estimate(agent.extensions.average, [2, 2], [0, 0, 0])
    assert first.extensions.average.rewards_mean.tolist() == second.extensions.average.rewards_mean.tolist()
    assert estimator.rewards_mean == pytest.approx([1.0])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"gamma": "average"}, "give reward.task.episodic=false, or a discount"),
        ({"gamma": "average", "episodic": False, "scale": "return"}, "give reward.task.scale=ema or std"),
        ({"gamma": "average", "episodic": False, "credit": "soft_min"}, "give credit=sum, or a discount"),
        ({"gamma": "mean"}, r"gamma='mean' is no discount; give a number in \(0, 1\], or average"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        rewards.make({"task": options}, Alternating.observation_space, Alternating.action_space)


def test_agents_without_a_value_for_every_stream_refuse_it():
    pendulum = envs.make.make_vec("Pendulum-v1", 1, seed=0)
    mix = rewards.make(AVERAGE, pendulum.single_observation_space, pendulum.single_action_space)
    with pytest.raises(ValueError, match="gamma=average needs whole rollouts and a value for every stream, which this"):
        Dyna(pendulum, DynaConfig(preset="sac"), scorer=mix)
    with pytest.raises(ValueError, match="a model of Stable-Baselines3 has not; take agent=ppo"):
        RewardCallback(mix)
    for settings, sentence in (({"streams": "sum"}, "gamma=average needs"), ({"imitate": 0.1}, "gamma=average out")):
        with pytest.raises(ValueError, match=sentence):
            make_agent(**settings)
