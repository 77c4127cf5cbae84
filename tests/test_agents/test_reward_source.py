"""Imagined transitions get the rewards of real ones, or the error is known."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import rewards
from agents.base import TaskScorer
from agents.dynamics.rollout import RewardHead, RewardSource, spread
from agents.networks.actor_critic import SpaceEncoding
from agents.replay.replay import Replay, Rows
from envs.transitions import Transitions
from lodestar.state import pack, unpack
from rewards.base import Reward, RewardConfig
from rewards.mix.mix import Mix, Stream

PENDULUM = gym.make("Pendulum-v1")
CARTPOLE = gym.make("CartPole-v1")
IMAGES = gym.spaces.Box(0, 255, (1, 8, 8), np.uint8)


class Signed(Reward):
    """The pendulum's own reward, as a function of state and action; its sign can be turned."""

    requires = frozenset({"obs", "action"})
    sign = 1.0

    def score(self, batch, memory=None):
        cosine, sine, speed = batch.obs.T
        angle = np.arctan2(sine, cosine)
        cost = angle**2 + 0.1 * speed**2 + 0.001 * batch.action[:, 0] ** 2
        return -self.sign * cost.astype(np.float32)


class Ends(Reward):
    """Rewards the end of an episode, and its step."""

    requires = frozenset({"terminated", "step", "action", "next_obs"})

    def score(self, batch, memory=None):
        numbers = 100.0 * batch.terminated + batch.step + 10 * batch.action
        return (numbers + batch.next_obs[:, 0]).astype(np.float32)


def mix_of(env, *names, **weights):
    configs = {
        name: rewards.get(name).Config(**({"weight": weights[name]} if name in weights else {})) for name in names
    }
    return rewards.make(configs, env.observation_space, env.action_space, gamma=0.99)


def mix_around(reward, env):
    return Mix([Stream("it", reward(RewardConfig(), env.observation_space, env.action_space), gamma=0.99)])


def swung(scorer, steps=600, n=4):
    """A replay of pendulums, 50 steps each from a random state."""
    encoding = SpaceEncoding(PENDULUM.observation_space, PENDULUM.action_space)
    replay = Replay(10_000, n, encoding, scorer, gamma=0.99)
    env = gym.make("Pendulum-v1").unwrapped
    rng = np.random.default_rng(0)
    for t in range(steps):
        rows = []
        for _ in range(n):
            env.state = np.array([rng.uniform(-np.pi, np.pi), rng.uniform(-8, 8)])
            env.last_u = None
            action = rng.uniform(-2, 2, 1).astype(np.float32)
            obs = env._get_obs()
            next_obs, reward, *_ = env.step(action)
            rows.append((obs, action, reward, next_obs))
        obs, action, reward, next_obs = (np.stack(x).astype(np.float32) for x in zip(*rows))
        no, step = np.zeros(n, bool), np.full(n, t % 50)
        replay.add(Transitions(obs, action, reward, next_obs, no, step == 49, ~no, step))
    return replay


def imagined(encoding, count=64):
    generator = torch.Generator().manual_seed(0)
    obs, next_obs = torch.randn(2, count, encoding.obs_size, generator=generator)
    action = torch.rand(count, encoding.action_size, generator=generator) * 2 - 1
    task = torch.randn(count, generator=generator)
    return obs, action, next_obs, task, torch.arange(count) % 3 == 0, torch.arange(count)


@pytest.mark.parametrize(
    ("make", "how", "why"),
    [
        (lambda: TaskScorer(0.99), "model", "the task's own reward is used"),
        (lambda: mix_of(CARTPOLE, "task"), "model", "the task's own reward is used"),
        (lambda: mix_of(CARTPOLE, "task", task=0.5), "call", "by the reward itself"),
        (lambda: mix_of(CARTPOLE, "task", "rnd"), "call", "by the reward itself"),
        (lambda: mix_of(CARTPOLE, "oni"), "head", "the reward reads text, which no model imagines"),
        (lambda: mix_of(CARTPOLE, "rnd", "e3b"), "head", "the reward depends on the episode before"),
        (lambda: mix_of(CARTPOLE, "count"), "head", "the reward depends on the episode before"),
    ],
)
def test_the_source_of_imagined_rewards_follows_from_what_the_reward_reads(make, how, why):
    encoding = SpaceEncoding(CARTPOLE.observation_space, CARTPOLE.action_space)
    reward_source = RewardSource(make(), encoding)
    assert reward_source.how == how and why in reward_source.reason
    assert (reward_source.head is not None) == (how == "head")


def test_gradients_need_a_head_unless_the_model_predicts_the_reward():
    encoding = SpaceEncoding(CARTPOLE.observation_space, CARTPOLE.action_space)
    wanted = RewardSource(mix_of(CARTPOLE, "rnd"), encoding, differentiable=True)
    assert wanted.how == "head" and "gradients" in wanted.reason
    assert RewardSource(TaskScorer(0.99), encoding, differentiable=True).how == "model"


def test_frames_and_images_need_a_head():
    class Watching(Signed):
        requires = frozenset({"frame"})

    encoding = SpaceEncoding(PENDULUM.observation_space, PENDULUM.action_space)
    assert "reads frame, which no model imagines" in RewardSource(mix_around(Watching, PENDULUM), encoding).reason
    assert (
        "reads images"
        in RewardSource(mix_around(Signed, PENDULUM), SpaceEncoding(IMAGES, PENDULUM.action_space)).reason
    )


def test_the_reward_itself_scores_imagined_transitions_as_real_ones():
    encoding = SpaceEncoding(CARTPOLE.observation_space, CARTPOLE.action_space)
    mix = mix_of(CARTPOLE, "task", "rnd", rnd="linear:1:0:1000")
    mix.streams["rnd"].warmup = 0
    obs, action, next_obs, task, terminated, step = imagined(encoding)
    reward_source = RewardSource(mix, encoding)
    reward_source.timesteps = 300
    scored = reward_source(obs, action, next_obs, task, terminated, step)
    batch = Transitions(
        obs.numpy(), action.argmax(-1).numpy(), task.numpy(), next_obs.numpy(), terminated.numpy(),
        np.zeros(64, bool), np.ones(64, bool), step.numpy(),
    )  # fmt: skip
    np.testing.assert_allclose(scored, mix.total(batch, None, 300)[0], atol=1e-6)
    assert not torch.equal(scored, task)


def test_ends_steps_and_actions_reach_the_reward_in_its_own_units():
    encoding = SpaceEncoding(CARTPOLE.observation_space, CARTPOLE.action_space)
    obs, action, next_obs, task, terminated, step = imagined(encoding)
    reward_source = RewardSource(mix_around(Ends, CARTPOLE), encoding)
    expected = 100 * terminated.float() + step + 10 * action.argmax(-1) + next_obs[:, 0]
    torch.testing.assert_close(reward_source(obs, action, next_obs, task, terminated, step), expected)


def test_the_models_word_is_passed_on_with_its_gradient():
    encoding = SpaceEncoding(CARTPOLE.observation_space, CARTPOLE.action_space)
    rows = list(imagined(encoding))
    rows[3].requires_grad_()
    reward_source = RewardSource(TaskScorer(0.99), encoding)
    reward_source(*rows).sum().backward()
    assert rows[3].grad.unique().tolist() == [1]
    assert reward_source.fit(None, 10) == {}


def test_a_head_learns_a_reward_and_tells_when_it_has_changed():
    mix = mix_around(Signed, PENDULUM)
    replay = swung(mix)
    reward_source = RewardSource(mix, replay.encoding, differentiable=True, seed=0)
    first = reward_source.fit(replay, 200)
    assert first["head_gap"] > 0.5 and first["head_refits"] == 1
    for _ in range(8):
        metrics = reward_source.fit(replay, 50)
    assert metrics["head_gap"] < 0.1 and metrics["head_refits"] == 0
    mix.streams["it"].reward.sign = -1.0
    turned = reward_source.fit(replay, 50)
    assert turned["head_gap"] > 1.5 and turned["head_refits"] == 1
    rows = replay.sample(512)
    scored = reward_source(rows.obs, rows.action, rows.next_obs, rows.reward * 0, rows.discount == 0, rows.step)
    assert (scored - rows.reward).square().mean().sqrt() / spread(rows.reward) < 0.3
    assert replay.rows(rows.index).reward.mean() > 0  # costs, the other way round


def test_a_gap_is_answered_by_more_steps_where_it_jumps_beyond_three_times_the_usual():
    encoding, steps = SpaceEncoding(PENDULUM.observation_space, PENDULUM.action_space), []
    source = RewardSource(mix_of(PENDULUM, "rnd"), encoding, differentiable=True)
    source.head.predict = lambda x: torch.zeros(len(x))
    source.head.fit = lambda x, y, count: steps.append(count) or torch.zeros(())

    def rows(reward):
        zeros = [torch.zeros(len(reward), k) for k in (3, 1)]
        return Rows(*zeros, torch.tensor(reward), zeros[0], zeros[1][:, 0], zeros[1][:, 0], zeros[1][:, 0])

    class Told(list):
        added = 0
        sample = staticmethod(lambda count: rows([4.0, 8.0]))  # of deviation 2

    gaps = []
    for newest in (4.0, 2.0, 6.4, 7.6, 0.8):
        replay = Told()
        replay.newest = lambda count, newest=newest: rows([newest, -newest])
        gaps.append(float(source.fit(replay, 10)["head_gap"]))
    assert gaps == pytest.approx([2.0, 1.0, 3.2, 3.8, 0.4])  # the usual rises slowly: 2, 1, 0.9 + 0.32 = 1.22
    assert steps == [210, 10, 210, 210, 10]
    assert source._usual == pytest.approx(0.4)


def test_a_head_has_the_gradient_of_the_reward():
    mix = mix_around(Signed, PENDULUM)
    replay = swung(mix)
    reward_source = RewardSource(mix, replay.encoding, differentiable=True)
    reward_source.fit(replay, 300)
    rows = replay.sample(256)
    obs = rows.obs.clone().requires_grad_()
    reward_source(obs, rows.action, rows.next_obs, rows.reward, rows.discount == 0, rows.step).sum().backward()
    speed = rows.obs[:, 2]
    together = torch.stack([obs.grad[:, 2], -0.2 * speed])  # of -0.1 speed^2, in part known from next_obs
    assert torch.corrcoef(together)[0, 1] > 0.6


def test_rewards_that_are_all_alike_are_learned_without_a_division_by_zero():
    head = RewardHead(2)
    x = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    head.fit(x, torch.full((100,), -3.0), 20)
    assert torch.allclose(head.predict(x), torch.tensor(-3.0), atol=1e-3)
    assert torch.isfinite(head.predict(x + 1)).all()


def test_no_global_random_numbers_are_used():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    head = RewardHead(2)
    head.fit(torch.ones(4, 2), torch.arange(4.0), 3)
    assert torch.equal(torch.rand(3), expected)


def test_a_saved_source_continues_equally():
    mix = mix_around(Signed, PENDULUM)
    replay = swung(mix, steps=100)
    sources = [RewardSource(mix, replay.encoding, differentiable=True, seed=seed) for seed in (0, 1)]
    sources[0].fit(replay, 30)
    sources[1].load_state_dict(unpack(*pack(sources[0].state_dict())))
    state = copy.deepcopy(replay.state_dict())
    gaps = []
    for reward_source in sources:
        replay.load_state_dict(copy.deepcopy(state))
        gaps.append(reward_source.fit(replay, 30)["head_gap"])
    assert gaps[0] == gaps[1]
    rows = imagined(replay.encoding)
    assert torch.equal(sources[0](*rows), sources[1](*rows))


def test_whole_numbers_are_rounded_before_a_reward_reads_them():
    class First(Reward):
        def score(self, batch, memory=None):
            return batch.next_obs[:, 0].astype(np.float32)

    encoding = SpaceEncoding(spaces.Box(0, 255, (2,), np.uint8), spaces.Discrete(2))
    space = spaces.Box(0, 255, (2,), np.uint8)
    mix = Mix([Stream("it", First(RewardConfig(), space, spaces.Discrete(2)), gamma=0.9)])
    values = torch.tensor([[4.9, 0.0], [-0.4, 0.0], [300.0, 0.0], [7.2, 0.0]])
    task, no = torch.zeros(4), torch.zeros(4, dtype=torch.bool)
    scored = RewardSource(mix, encoding)(values, torch.eye(2)[[0, 0, 1, 1]], values, task, no, no.long())
    assert scored.tolist() == [5, 0, 255, 7]
