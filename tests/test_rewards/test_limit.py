"""A limit on a stream: its multiplier by hand, what agents learn from, saved state, and what has no meaning."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import rewards
from agents.dyna.agent import Dyna, DynaConfig
from agents.ppo.agent import PPO, PPOConfig
from envs.make import make_vec
from rewards.adapters.costs import meter_costs
from rewards.adapters.gym import RewardWrapper
from rewards.base import RewardConfig
from rewards.design.signal import SignalConfig
from rewards.mix.limit import UPDATES_BEFORE_WARNING, Limit

PENDULUM = (spaces.Box(-8, 8, (3,), np.float32), spaces.Box(-2, 2, (1,), np.float32))
CARTPOLE = (spaces.Box(-5, 5, (4,), np.float32), spaces.Discrete(2))


def limited(space=PENDULUM, **options):
    """The task, and a cost of 1 where the first number of the observation is below 0."""
    cost = SignalConfig(of="obs", column=0, below=0.0, **{"limit": 0.25} | options)
    return rewards.make({"task": None, "signal": cost}, *space)


def test_the_multiplier_by_hand():
    limit = Limit("speed", 0.5, "step", rate=0.1)
    # Error (1 - .5) / 1; integral .1 * .5, proportional .5 * .5.
    limit.observe(cost=2.0, count=2)
    assert limit.integral == pytest.approx(0.05)
    assert limit.multiplier == pytest.approx(0.3)
    # Running mean (.9 * 2) / (.9 * 2 + 2) = .4737; error (0 - .5) / .5.
    limit.observe(cost=0.0, count=2)
    assert limit.mean == pytest.approx(1.8 / 3.8)
    assert (limit.integral, limit.multiplier) == (0, 0)


def test_above_the_price_a_step_is_relative_to_the_multiplier():
    limit = Limit("speed", 0.5, "step", rate=0.1, multiplier=4.0)
    limit.observe(cost=1.0, count=1)
    assert limit.integral == pytest.approx(4 + 0.1 * 4 * 0.5)
    assert limit.multiplier == pytest.approx(4.2 + 4.2 * 0.5 * 0.5)


def test_the_price_is_where_one_cost_counts_as_one_steps_other_rewards():
    mix = limited((Walk.observation_space, Walk.action_space), limit_rate=0.0)
    env = RewardWrapper(Walk(), mix, update_every=4)
    env.reset()
    for _ in range(4):
        env.step(0)
    assert mix.limits["signal"].price == 1
    small = rewards.make(
        {"task": {"weight": 0.01}, "signal": {"of": "obs", "column": 0, "limit": 0.1, "limit_start": 3.0}},
        *(Walk.observation_space, Walk.action_space),
    )
    env = RewardWrapper(Walk(), small, update_every=4)
    env.reset()
    for _ in range(4):
        env.step(0)
    assert small.limits["signal"].price == pytest.approx(0.01)


def test_a_limit_an_episode_waits_for_the_end_of_one():
    limit = Limit("crashed", 0.5, "episode", rate=0.1)
    limit.observe(cost=1.0, count=0)
    assert limit.multiplier == 0
    limit.observe(cost=1.0, count=4)
    assert limit.newest == 0.5
    assert limit.multiplier == 0


@pytest.mark.parametrize("size", [0.01, 1.0, 100.0])
def test_it_settles_where_the_cost_is_the_limit_whatever_its_unit(size):
    rng = np.random.default_rng(0)
    limit = Limit("cost", 0.2 * size, "step", rate=0.1)
    means = []
    for _ in range(400):
        # A learner whose cost falls with the multiplier, seen through noise.
        cost = size / (1 + limit.multiplier)
        means.append(cost)
        limit.observe(cost * rng.gamma(4.0) / 4.0 * 64, 64)
    assert np.mean(means[200:]) == pytest.approx(0.2 * size, rel=0.1)


def test_a_limit_of_zero_and_a_cost_of_zero_move_nothing():
    limit = Limit("cost", 0.0, "step", rate=0.1)
    limit.observe(0.0, 8)
    assert limit.multiplier == 0


def test_ppo_follows_the_cost_against_the_rest_by_the_multiplier():
    mix = limited(limit_start=3.0, limit_rate=0.0)
    agent = PPO(make_vec("Pendulum-v1", 2), PPOConfig(n_steps=32, batch_size=32, n_epochs=1), scorer=mix)
    agent.learn(64)
    scored = agent._scored
    assert list(agent.streams) == ["task", "signal"]
    np.testing.assert_allclose(scored.weights[..., 0], 1 / 4)
    np.testing.assert_allclose(scored.weights[..., 1], -3 / 4)
    np.testing.assert_array_equal(scored.rewards[..., 1], scored.transitions.next_obs[..., 0] < 0)
    by_hand = (scored.advantages[..., 0] - 3 * scored.advantages[..., 1]) / 4
    np.testing.assert_allclose(agent.combiner.combine(scored), by_hand, rtol=1e-5, atol=1e-5)


def test_a_replay_is_relabelled_by_the_multiplier_of_now():
    mix = limited(limit_rate=0.0)
    config = DynaConfig(preset="sac", net_arch=[8], learning_starts=16, batch_size=8, updates_per_step=0.1)
    agent = Dyna(make_vec("Pendulum-v1", 1), config, scorer=mix).learn(40)
    rows = agent.replay.rows(agent.replay.sampler.in_order())
    task = agent.replay.table[rows.index, agent.replay._task].numpy()
    np.testing.assert_allclose(rows.reward, task, rtol=1e-6)
    mix.limits["signal"].multiplier = 3.0
    rows = agent.replay.rows(agent.replay.sampler.in_order())
    cost = (rows.next_obs[:, 0] < 0).numpy()
    assert 0 < cost.mean() < 1
    np.testing.assert_allclose(rows.reward, (task - 3 * cost) / 4, rtol=1e-5)


def test_metrics_and_the_name_of_a_run_tell_the_limit():
    mix = limited()
    assert mix.describe() == "task + signal (at most 0.25 a step)"
    agent = PPO(make_vec("Pendulum-v1", 2), PPOConfig(n_steps=32, batch_size=32, n_epochs=1), scorer=mix)
    metrics = agent.learn(64).scorer.update(agent._scored.transitions, agent._scored.raw)
    cost = float((agent._scored.transitions.next_obs[..., 0] < 0).mean())
    assert metrics["limit/signal"] == 0.25
    assert metrics["limit/signal_cost"] == pytest.approx(cost)
    assert metrics["limit/signal_multiplier"] == mix.limits["signal"].multiplier > 0


def test_a_saved_multiplier_goes_on_to_the_last_bit():
    mix = limited()
    limit = mix.limits["signal"]
    agent = PPO(make_vec("Pendulum-v1", 2), PPOConfig(n_steps=32, batch_size=32, n_epochs=1), scorer=mix)
    agent.learn(64)
    assert limit.multiplier > 0
    other = limited()
    other.load_state_dict(mix.state_dict())
    for each in (limit, other.limits["signal"]):
        each.observe(5.0, 9)
    assert str(vars(other.limits["signal"])) == str(vars(limit))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"limit": -0.1}, r"reward.signal.limit=-0.1 is out of range; give a number at least 0"),
        ({"shape": "potential"}, r"limit=0.25 has no meaning with shape=potential"),
        ({"shape": "clip"}, r"limit=0.25 has no meaning with shape=clip"),
        ({"weight": 0.5}, r"limit=0.25 beside weight=0.5: the multiplier decides .* leave reward.signal.weight=1"),
        ({"scale": "ema"}, r"limit=0.25 beside scale=ema"),
        ({"credit": "soft_min"}, r"limit=0.25 beside credit=soft_min"),
    ],
)
def test_what_is_no_cost_has_no_limit(options, said):
    with pytest.raises(ValueError, match=said):
        limited(**options)


def test_a_limit_needs_a_reward_beside_it_and_a_score_that_does_not_drift():
    with pytest.raises(ValueError, match=r"reward.task.limit=0.5 leaves nothing to learn beside a cost; name a reward"):
        rewards.make({"task": {"limit": 0.5}}, *CARTPOLE)
    with pytest.raises(ValueError, match=r"reward.rnd.limit=0.5 has no meaning: the scores of rnd drift"):
        rewards.make({"task": None, "rnd": {"limit": 0.5}}, *CARTPOLE)
    # What has a fixed unit may be the task's own reward, beside another one.
    mix = rewards.make({"task": {"limit": 0.5}, "rnd": None}, *CARTPOLE)
    assert list(mix.limits) == ["task"]
    assert RewardConfig().limit is None


def test_a_limit_that_is_not_held_is_said_once_with_what_was_reached():
    limit = Limit("signal", 0.05, "step", rate=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(UPDATES_BEFORE_WARNING - 1):
            limit.observe(2.0, 10)
    with pytest.warns(RuntimeWarning, match=r"limit=0.05 was not held in 50 updates: the mean cost a step is 0.2, at"):
        limit.observe(2.0, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        limit.observe(2.0, 10)


class Walk(gym.Env):
    """Episodes of four steps in which the only number is -1, -1, -1, 1."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        number = -1.0 if self.t < 4 else 1.0
        return np.array([number], np.float32), 1.0, self.t == 4, False, {}


@pytest.mark.parametrize(("per", "mean"), [("step", 0.75), ("episode", 3.0)])
def test_an_evaluation_measures_the_mean_cost(per, mean):
    mix = limited((Walk.observation_space, Walk.action_space), limit_per=per)
    env = meter_costs(Walk(), mix)
    for _ in range(2):
        env.reset()
        for _ in range(4):
            env.step(0)
    assert env.means() == {"signal": mean}
    plain = Walk()
    assert meter_costs(plain, rewards.make(["task"], plain.observation_space, plain.action_space)) is plain


def test_a_wrapper_gives_the_reward_less_the_cost():
    mix = limited((Walk.observation_space, Walk.action_space), limit_start=1.0, limit_rate=0.0)
    env = RewardWrapper(Walk(), mix)
    env.reset()
    assert [env.step(0)[1] for _ in range(4)] == [0, 0, 0, 0.5]
