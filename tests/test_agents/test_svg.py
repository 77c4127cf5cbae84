"""Stochastic value gradients: hand-computed returns, and gradients that ascend the true objective."""

import copy
import functools

import pytest
import torch

from agents.dyna.svg import model_return, svg_update
from agents.dynamics import Predicted
from agents.dynamics.rollout import Imagined, imagine
from agents.off_policy.sac import LearnerConfig, SoftActorCritic

GAMMA = 0.5


class Linear:
    """x' = x + u, reward -x'^2; dynamics without learning."""

    members, differentiable = 1, True

    def step(self, obs, action, *, sample=True, member_predictions=False):
        next_obs = obs + action
        return Predicted(next_obs, -next_obs.square().sum(-1))


def reward_function(obs, action, next_obs, task, terminated, step):
    return task


def learner(seed=0, **changes):
    config = LearnerConfig(**{"net_arch": [32], "entropy": 0.01, "learning_rate": 3e-3, **changes})
    return SoftActorCritic(1, 1, config, seed=seed)


def updated(agent, model, start, horizon, gamma=GAMMA):
    step = torch.zeros(len(start), dtype=torch.int64)
    rollout = functools.partial(imagine, model, reward_function=reward_function, ends=None)
    svg_update(agent, rollout, start, step, horizon=horizon, gamma=gamma)


def imagined(reward, alive, terminated, log_prob=None):
    reward, alive, terminated = torch.tensor(reward), torch.tensor(alive), torch.tensor(terminated)
    horizon, rows = reward.shape
    nothing, zero = torch.zeros(horizon, rows, 1), torch.zeros(())
    log_prob = None if log_prob is None else torch.tensor(log_prob)
    step = torch.zeros(horizon, rows, dtype=torch.int64)
    return Imagined(nothing, nothing, nothing, reward, reward, 0 * reward, terminated, alive, log_prob, step, zero)


def test_the_return_of_a_rollout_that_continues_ends_or_is_cut_is_the_hand_computed_one():
    rollouts = imagined(
        reward=[[1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 0.0, 2.0], [4.0, 0.0, 0.0, 0.0]],
        alive=[[True] * 4, [True, True, False, True], [True, False, False, False]],
        terminated=[[False] * 4, [False, True, False, False], [False] * 4],
    )
    value = torch.tensor([8.0, 8.0, 8.0, 8.0])
    whole = 1 + 2 / 2 + 4 / 4 + 8 / 8  # three rewards and what follows
    ended = 1 + 2 / 2  # the second transition terminated
    cut_at_once = 1 + 8 / 2  # goes on with the value of the state reached
    cut_later = 1 + 2 / 2 + 8 / 4
    expected = torch.tensor([whole, ended, cut_at_once, cut_later])
    torch.testing.assert_close(model_return(rollouts, torch.tensor(0.0), GAMMA, value), expected)


def test_entropy_counts_from_the_second_action_on_and_only_where_it_was_taken():
    rollouts = imagined(
        reward=[[0.0, 0.0], [0.0, 0.0]],
        alive=[[True, True], [True, False]],
        terminated=[[False, True], [False, False]],
        log_prob=[[100.0, 100.0], [3.0, 7.0]],
    )
    got = model_return(rollouts, torch.tensor(2.0), GAMMA, torch.zeros(2))
    assert got.tolist() == [-2.0 * 3.0 / 2, 0.0]


def test_the_critic_regresses_the_models_return_and_the_targets_value_after_it_the_actor_ascends_the_critics():
    agent, told = learner(), {}
    agent.target_flat.mul_(0.5)  # the targets are elsewhere than the critics
    step = agent.critic_step
    agent.critic_step = lambda obs, action, target, reward: (
        told.update(target=target, action=action) or step(obs, action, target, reward)
    )
    climb = agent.actor_step
    agent.actor_step = lambda objective, log_prob: (
        told.update(objective=objective.detach()) or climb(objective, log_prob)
    )
    reference = copy.deepcopy(agent.state_dict())
    start = torch.linspace(-1, 1, 5)[:, None]
    updated(agent, Linear(), start, horizon=2)

    other = learner()
    other.load_state_dict(reference)
    with torch.no_grad():  # the same noise, one action after the other
        a0, log0 = other.sample(start)
        s1 = start + a0
        a1, log1 = other.sample(s1)
        s2 = s1 + a1
        a2, log2 = other.sample(s2)
        two_steps = -(s1[:, 0] ** 2) + GAMMA * (-(s2[:, 0] ** 2) - 0.01 * log1)
        slow, fast = (other.q(s2, a2, target=target).amin(0) - 0.01 * log2 for target in (True, False))
    torch.testing.assert_close(told["target"], two_steps + GAMMA**2 * slow)
    torch.testing.assert_close(told["objective"], two_steps + GAMMA**2 * fast - 0.01 * log0)
    torch.testing.assert_close(told["action"], a0)


def test_one_update_climbs_the_true_objective():
    def worth(agent):
        with torch.no_grad():
            action = agent.act(start, deterministic=True)
            return -(start + action).square().mean().item()

    start = torch.linspace(-0.8, 0.8, 64)[:, None]
    for seed in range(5):
        agent = learner(seed)
        before = worth(agent)
        for _ in range(3):
            updated(agent, Linear(), start, horizon=1, gamma=1e-6)
        assert worth(agent) > before


@pytest.mark.parametrize("horizon", [pytest.param(1, marks=pytest.mark.nightly), 3])
def test_it_finds_the_best_action_of_linear_dynamics(horizon):
    agent = learner(learning_rate=6e-3)
    draw = torch.Generator().manual_seed(0)
    for _ in range(150):
        updated(agent, Linear(), torch.rand(64, 1, generator=draw) * 1.6 - 0.8, horizon)
    start = torch.linspace(-0.7, 0.7, 15)[:, None]
    assert (agent.act(start, deterministic=True) + start).abs().max() < 0.1  # u = -x
    value = agent.q(start, -start).amin(0)
    assert value.abs().max() < 0.2  # and then nothing is lost any more, but for the entropy


def test_a_rollout_that_ends_gives_no_gradient_from_beyond_its_end():
    class Ending(Linear):
        def step(self, obs, action, **kwargs):
            predicted = super().step(obs, action)
            predicted.terminated = torch.ones(len(obs))
            return predicted

    agent = learner()
    told = {}
    step = agent.actor_step
    agent.actor_step = lambda objective, log_prob: (
        told.update(objective=objective.detach()) or step(objective, log_prob)
    )
    reference = copy.deepcopy(agent.state_dict())
    start = torch.linspace(-1, 1, 5)[:, None]
    updated(agent, Ending(), start, horizon=3)
    other = learner()
    other.load_state_dict(reference)
    action, log_prob = other.sample(start)
    torch.testing.assert_close(told["objective"], (-((start + action)[:, 0] ** 2) - 0.01 * log_prob).detach())
