"""Learned weights: the bandit by hand, what moves them, what is refused, and that a run continues exactly."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch

import envs.make
import rewards
from agents.dyna.agent import Dyna
from agents.ppo.agent import PPO, PPOConfig
from agents.ppo.plugins.blend import SEARCH_STEP, SEARCH_WINDOW_ROLLOUTS, Blend, inverse_hessian_products, phi_of, solve
from lodestar.numerics.descent import Flat
from rewards.adapters.gym import VectorRewardWrapper
from rewards.base import Reward, RewardConfig
from tests.rollouts import cut

SMALL = {"n_steps": 16, "batch_size": 32, "n_epochs": 2, "net_arch": [16], "sequence": 8}


def bandit(theta, weight):
    """Two arms, p = sigma(theta), rewards (1, 0) and (0, 1): the gradients of both, and of their weighted sum."""
    logit = torch.tensor([theta], dtype=torch.float64, requires_grad=True)
    p = torch.sigmoid(logit)
    (task,) = torch.autograd.grad(p.sum(), logit, retain_graph=True)
    (aux,) = torch.autograd.grad((1 - p).sum(), logit, retain_graph=True)
    (slope,) = torch.autograd.grad((p + weight * (1 - p)).sum(), logit, create_graph=True)
    return logit, task, aux, slope


@pytest.mark.parametrize(("weight", "theta", "expected"), [(0.0, 1.495618, -0.114830), (0.5, 0.988343, -0.269062)])
def test_the_implicit_gradient_of_a_bandit_is_what_finite_differences_give(weight, theta, expected):
    logit, task, aux, slope = bandit(theta, weight)
    assert float((slope - 0.1 * logit).detach()) == pytest.approx(
        0, abs=1e-6
    )  # where the policy ends with lambda = 0.1
    (direction,) = inverse_hessian_products(slope, [logit], [aux], 0.1)
    assert float(task @ direction) == pytest.approx(expected, abs=1e-6)


def test_one_step_of_the_inner_says_that_the_other_arms_reward_harms():
    _, task, aux, _ = bandit(0.0, 1.0)
    assert float(task @ aux) == pytest.approx(-0.0625)


def test_conjugate_gradients_solve_and_give_up_where_the_curvature_turns():
    matrix = torch.tensor([[4.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.5, 2.0]])
    goal = torch.tensor([1.0, 2.0, -3.0])
    torch.testing.assert_close(matrix @ solve(lambda x: matrix @ x, goal), goal)
    assert torch.equal(solve(lambda x: -x, goal), goal)


def made(blend="aligned", streams=("task", "good", "bad"), **options):
    """A blend of two learned weights, and the streams."""
    found = {name: SimpleNamespace(learned=name != "task", weight=SimpleNamespace(start=1.0)) for name in streams}
    config = PPOConfig(blend=blend, **options)
    return Blend(SimpleNamespace(config=config, streams=found, seed=0, device=torch.device("cpu")))


def play_one(blend, gradients, reward=1.0, flat=None):
    """Let it learn from a rollout with these gradients of the streams."""
    rollout = SimpleNamespace(
        reward=np.full((3, 2), reward), valid=np.ones((3, 2), bool), ended=np.eye(3, 2, dtype=bool)
    )
    scored = SimpleNamespace(gradients=gradients, collector=SimpleNamespace(rollout=rollout))
    blend.after_update(SimpleNamespace(flat=flat), scored)


def test_weights_follow_the_next_rollouts_task_gradient_and_their_sum_does_not_grow():
    blend = made(blend_rate=0.2)
    first = {"task": torch.tensor([0.0, 1.0]), "good": torch.tensor([2.0, 0.0]), "bad": torch.tensor([-3.0, 0.0])}
    play_one(blend, first)
    assert blend.weights.tolist() == [1, 1]  # the same rollout's gradient is not asked
    play_one(blend, {"task": torch.tensor([5.0, 0.0])})
    first_step = 0.2 * 0.1 * 10 / np.sqrt(0.1 * 10**2)  # <g, d> = 10, over its root mean square
    phi = np.log(np.e - 1) + np.array([first_step, -first_step])
    raw = np.log1p(np.exp(phi))
    assert blend.weights == pytest.approx(raw * min(1, 2 / raw.sum())) and blend.weights.sum() <= 2
    before = blend.weights
    play_one(blend, first, reward=0.0)
    assert (blend.weights == before).all()  # no task reward: nothing is known
    for _ in range(200):
        play_one(blend, first | {"task": torch.tensor([1.0, 0.0])})
    assert blend.weights == pytest.approx([2.0, 0.0], abs=1e-3)


def test_search_keeps_the_better_of_two_windows_and_moves_towards_its_weights():
    blend, flat = made("search", streams=("task", "aux")), Flat(torch.zeros(3))

    def play(earned):
        flat.value += 1
        flat.steps += 1
        play_one(blend, {}, earned, flat)

    play(0.0)
    up, down = (np.log1p(np.exp(phi_of(np.ones(1)) + side * SEARCH_STEP)) for side in (1, -1))
    sign = 1 if blend.trial["signs"][0] > 0 else -1
    for side, earned in ((sign, 3.0), (-sign, 1.0)):
        assert flat.value.tolist() == [1, 1, 1] and float(flat.steps) == 1  # both begin alike
        assert blend.weights == pytest.approx(np.minimum(up if side > 0 else down, 1))
        for _ in range(SEARCH_WINDOW_ROLLOUTS):
            play(earned)
    assert flat.value.tolist() == [1 + SEARCH_WINDOW_ROLLOUTS] * 3  # that of the first window
    assert blend.trial["phi"] == pytest.approx(phi_of(np.minimum(up if sign > 0 else down, 1)))


class Arms(gym.Env):
    """One step, three arms; the task likes arm 0."""

    observation_space, action_space = gym.spaces.Box(0, 1, (1,), np.float32), gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        return np.ones(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), float(action == 0), True, False, {}


class Arm1(Reward):
    """Likes arm 1."""

    Config, requires, relabelable = RewardConfig, frozenset({"action"}), True

    def score(self, batch):
        return (np.asarray(batch.action) == 1).astype(np.float32)


def arms(blend, steps, **changes):
    vector = gym.vector.SyncVectorEnv([Arms] * 8, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    given = {"task": None, Arm1: {"weight": "learned"}}
    mix = rewards.make(given, vector.single_observation_space, vector.single_action_space, seed=0)
    settings = {"n_steps": 16, "batch_size": 32, "n_epochs": 4, "net_arch": [8], "learning_rate": 3e-3, **changes}
    return PPO(vector, PPOConfig(blend=blend, **settings), scorer=mix, seed=0).learn(8 * 16 * steps)


@pytest.mark.parametrize(
    ("blend", "path"), [("aligned", "auto"), pytest.param("implicit", "eager", marks=pytest.mark.nightly)]
)
def test_a_reward_for_the_wrong_arm_loses_its_weight_and_the_task_is_learned(blend, path):
    model = arms(blend, 40, path=path)
    weight = model.scorer.weights(0)["arm1"]
    assert weight < 0.5 and model.extensions.blend.metrics == {"stream/arm1/weight": weight}
    assert model.predict(np.ones((1, 1), np.float32), deterministic=True)[0] == 0


def cartpole(blend="aligned", names=("task", "count"), weight="learned", **changes):
    vector = envs.make.make_vec("CartPole-v1", 2, seed=0)
    given = {name: {"weight": weight} if name == "count" else None for name in names}
    mix = rewards.make(given, vector.single_observation_space, vector.single_action_space, seed=0)
    return PPO(vector, PPOConfig(**{**SMALL, "blend": blend, **changes}), scorer=mix, seed=0)


@pytest.mark.parametrize(
    "changes",
    [{}, {"blend": "implicit"}, {"blend": "search"}, pytest.param({"gru": 8}, marks=pytest.mark.nightly)],
    ids=str,
)
def test_a_run_that_learns_weights_continues_exactly(changes):
    whole, second = cut(lambda: cartpole(**changes), 2 * 16 * 7)
    ours, theirs = (model.extensions.blend.weights for model in (second, whole))
    assert torch.equal(second.flat.value, whole.flat.value) and (ours == theirs).all()
    assert theirs[0] != 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"blend": "none"}, "reward.count.weight=learned needs agent.blend=aligned, implicit or search"),
        ({"weight": 1.0}, "agent.blend=aligned has no weight to learn; mark a stream"),
        ({"names": ["rnd", "count"]}, r"learns what serves the task, which must be a stream.*reward=\[task,count\]"),
        ({"streams": "sum"}, "weight=learned needs whole rollouts and a value for every stream, which this PPO has"),
        ({"balance": "project"}, "both decide what a stream counts; give one of them"),
        ({"blend": "implicit", "gru": 8}, "needs second derivatives, which agent.gru=8 lacks"),
    ],
)
def test_what_cannot_be_learned_is_one_sentence_at_construction(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        cartpole(**options)


def test_what_adds_rewards_up_refuses_learned_weights():
    vector = envs.make.make_vec("Pendulum-v1", 2, seed=0)
    spaces = vector.single_observation_space, vector.single_action_space
    mix = rewards.make({"task": None, "rnd": {"weight": "learned"}}, *spaces)
    assert mix.streams["rnd"].freeze == 256 and mix.describe() == "task + learned * rnd (/ return, non-episodic)"
    with pytest.raises(ValueError, match=r"weight=learned .* a wrapper has not; take agent=ppo with agent\.blend"):
        VectorRewardWrapper(vector, mix)
    with pytest.raises(ValueError, match=r"weight=learned .* this Dyna has not"):
        Dyna(vector, scorer=mix)
