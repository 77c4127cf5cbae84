"""Planners: near the Riccati optimum of a double integrator, and where UPMPC's uncertainty leads."""

import functools

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agents.dynamics import Predicted
from agents.dynamics.planners import CEM, MPPI, UPMPC, returns
from agents.dynamics.rollout import imagine
from agents.networks.actor_critic import SpaceEncoding

GAMMA = 1.0
A = torch.tensor([[1.0, 0.2], [0.0, 1.0]], dtype=torch.float64)
B = torch.tensor([[0.02], [0.2]], dtype=torch.float64)
Q, R = torch.diag(torch.tensor([1.0, 0.1], dtype=torch.float64)), 0.1
STARTS = torch.tensor([[0.3, 0.0], [-0.3, 0.2], [0.0, -0.35]], dtype=torch.float64)
HORIZON = 12
CODEC = SpaceEncoding(spaces.Box(-9, 9, (2,), np.float32), spaces.Box(-1, 1, (1,), np.float32))


class Integrator:
    members, differentiable = 1, True

    def step(self, obs, action, *, sample=True, member_predictions=False):
        reward = -((obs @ Q) * obs).sum(-1) - R * action.square().sum(-1)
        return Predicted(obs @ A.T + action @ B.T, reward)


def task(obs, action, next_obs, task, terminated, step):
    return task


DREAM = functools.partial(imagine, Integrator(), reward_function=task, ends=None)


def riccati(steps):
    """Cost-to-go matrices and gains of the best feedback, for `steps` and fewer steps to go."""
    P, found = torch.zeros_like(Q), []
    for _ in range(steps):
        K = torch.linalg.solve(R + B.T @ P @ B, B.T @ P @ A)
        P = Q + A.T @ P @ (A - B @ K)
        found.append((P, K))
    return found


def cost(plan):
    """Of open-loop plans (B, H, 1) from the starts."""
    imagined = DREAM(act=lambda obs, t: (plan[:, t], None), obs=STARTS, horizon=HORIZON)
    return -returns(imagined, imagined.reward, GAMMA)


@pytest.mark.parametrize("kind", [CEM, MPPI])
def test_plans_cost_within_a_twentieth_of_the_optimum(kind):
    options = {"temperature": 20.0} if kind is MPPI else {}
    planner = kind(CODEC, horizon=HORIZON, samples=300, iterations=12, elites=30, gamma=GAMMA, **options)
    first = planner.plan(DREAM, STARTS)
    best = ((STARTS @ riccati(HORIZON)[-1][0]) * STARTS).sum(-1)
    found = cost(planner.mean)
    assert (found >= best - 1e-9).all()
    assert (found <= 1.05 * best).all(), found / best
    assert first.shape == (3, 1) and torch.equal(first, planner.mean[:, 0])


def test_planning_at_every_step_drives_the_state_to_rest():
    P, _ = riccati(60)[-1]
    planner = CEM(CODEC, horizon=5, samples=150, iterations=5, elites=15, gamma=GAMMA)
    obs, rewards = STARTS, torch.zeros(3, dtype=torch.float64)
    for _ in range(30):
        outcome = Integrator().step(obs, planner.plan(DREAM, obs, value=lambda obs: -((obs @ P) * obs).sum(-1)))
        obs, rewards = outcome.next_obs, rewards + outcome.reward
    best = ((STARTS @ riccati(30)[-1][0]) * STARTS).sum(-1)
    assert (-rewards <= 1.05 * best).all(), -rewards / best


def test_a_value_stands_for_what_follows_the_horizon():
    P, K = riccati(60)[-1]
    planner = CEM(CODEC, horizon=2, samples=400, iterations=10, elites=40, gamma=GAMMA)
    first = planner.plan(DREAM, STARTS, value=lambda obs: -((obs @ P) * obs).sum(-1))
    assert torch.allclose(first, -STARTS @ K.T, atol=0.02)


def test_returns_by_hand():
    def ends(obs, action, next_obs):
        return next_obs[:, 0] > 0.55  # the first start moves on at 0.5 + 0.02 a

    def act(obs, t):
        return torch.ones(2, 1, dtype=torch.float64), None

    def reward_function(obs, action, next_obs, task, terminated, step):
        return 1.0 + step

    start = torch.tensor([[0.5, 0.5], [-9.0, 0.0]], dtype=torch.float64)
    imagined = imagine(Integrator(), act, reward_function, ends, start, 3)
    found = returns(imagined, imagined.reward, 0.5, lambda obs: torch.full((2,), 80.0, dtype=torch.float64))
    assert found.tolist() == [1.0, 1 + 1 + 0.75 + 80 / 8]


def test_new_plans_are_near_the_elites_by_hand():
    mean, std = torch.zeros(1, 1, 1), torch.full((1, 1, 1), 2.0)
    best, score = torch.tensor([1.0, 3.0]).view(1, 2, 1, 1), torch.tensor([[0.0, 2 * np.log(3)]])
    found = CEM(CODEC, momentum=0.1)._refit(mean, std, best, score)
    assert [x.item() for x in found[:2]] == pytest.approx([0.9 * 2, (0.9 * 1 + 0.1 * 4) ** 0.5])
    assert found[2].tolist() == [[1, 1]]
    planner = MPPI(CODEC, temperature=0.5)  # the second elite counts three times as much
    mean, spread, weight = planner._refit(mean, std, best, score)
    assert weight[0].tolist() == pytest.approx([1 / 4, 3 / 4])
    assert mean.item() == pytest.approx(2.5) and spread.item() == pytest.approx((1.5**2 / 4 + 0.5**2 * 3 / 4) ** 0.5)
    assert planner._refit(mean, std, best[:, 1:], score[:, 1:])[1].item() == pytest.approx(planner.lowest)


def test_plans_go_on_where_the_last_ones_ended_and_forget_ended_episodes():
    planner = CEM(CODEC, horizon=3, samples=10, iterations=1, elites=2)
    planner.plan(DREAM, STARTS)
    before = planner.mean.clone()
    planner.reset(torch.tensor([True, False, False]))
    last = planner.mean
    begun = []
    planner._spread = lambda mean, std: begun.append(mean) or std
    for obs, warm in ((STARTS, True), (STARTS, False), (STARTS[:2], True)):
        planner.mean = last
        planner.plan(DREAM, obs, warm=warm)
    warm, cold, other = begun
    assert torch.equal(warm[1:, :2], before[1:, 1:]) and not warm[0].any() and not warm[:, 2].any()
    assert not cold.any() and not other.any()


def test_a_restored_planner_plans_the_same():
    for kind in (CEM, MPPI):
        one, two = (kind(CODEC, horizon=3, samples=40, elites=5, seed=seed) for seed in (0, 1))
        one.plan(DREAM, STARTS)
        two.load_state_dict(one.state_dict())
        assert torch.equal(one.plan(DREAM, STARTS, deterministic=False), two.plan(DREAM, STARTS, deterministic=False))


def test_what_the_policy_proposes_is_among_what_mppi_weighs():
    gain = riccati(60)[-1][1]

    def policy(obs, t):
        return -obs @ gain.T, None

    planner = MPPI(CODEC, horizon=HORIZON, samples=40, iterations=1, elites=1, policy_samples=39, gamma=GAMMA)
    assert torch.allclose(planner.plan(DREAM, STARTS, policy=policy), policy(STARTS, 0)[0])


def test_a_plan_that_is_cut_loses_to_a_loss():
    class Cliff(Integrator):  # pushing right is free, and leaves all numbers behind
        def step(self, obs, action, *, sample=True, member_predictions=False):
            next_obs = torch.where(action > 0, torch.inf, obs)
            return Predicted(next_obs, -torch.ones_like(obs[:, 0]))

    rollout = functools.partial(imagine, Cliff(), reward_function=task, ends=None)
    action = CEM(CODEC, horizon=1, samples=50, iterations=3, elites=5).plan(rollout, STARTS)
    assert (action < 0).all()


class Fork:
    """One step: a reward of `pay[i]` for action i, and members that disagree by `uncertainty[i]`."""

    members, differentiable = 2, False

    def __init__(self, reward_function, uncertainty):
        self.reward_function, self.uncertainty = torch.tensor(reward_function), torch.tensor(uncertainty)

    def step(self, obs, action, *, sample=True, member_predictions=False):
        half = (action * self.uncertainty).sum(-1)[:, None].expand_as(obs)
        return Predicted(obs, (action * self.reward_function).sum(-1), None, torch.stack([obs - half, obs + half]))


def proposals(obs, t):
    """Each of three actions for a third of the rows, which are K = 3 copies of the states."""
    return torch.eye(3).repeat_interleave(len(obs) // 3, 0), None


def test_upmpc_picks_the_best_return_and_uncertainty_attracts_or_repels():
    obs, reward_function, uncertainty = torch.zeros(4, 2), [1.0, 1.2, -1.0], [0.1, 1.0, 5.0]

    def chosen(alpha, ends=None):
        rollout = functools.partial(imagine, Fork(reward_function, uncertainty), reward_function=task, ends=ends)
        action = UPMPC(candidates=3, horizon=2, alpha=alpha).plan(rollout, proposals, obs)
        assert action.shape == (4, 3)
        return action.argmax(-1).tolist()

    assert chosen(0.0) == [1] * 4
    assert chosen(1.0) == [2] * 4
    assert chosen(-1.0) == [0] * 4


def test_upmpc_counts_nothing_after_the_end_and_a_value_where_there_is_none():
    reward_function, uncertainty, obs = [3.0, 2.0, 0.0], [0.0, 0.0, 0.0], torch.zeros(1, 2)
    rollout = functools.partial(
        imagine,
        Fork(reward_function, uncertainty),
        reward_function=task,
        ends=lambda obs, action, next_obs: action[:, 0] > 0,
    )
    alone = UPMPC(candidates=1, horizon=1)
    alone.plan(rollout, lambda obs, t: (torch.eye(3)[:1], None), obs)
    assert alone.square == 9
    planner = UPMPC(candidates=3, horizon=2, alpha=0.0, gamma=0.5)
    assert planner.plan(rollout, proposals, obs).argmax() == 0  # 3 and over against 2 + 1
    assert planner.square == pytest.approx((9 + 4 + 4) / 5)  # over the alive transitions
    planner.horizon = 3
    assert planner.plan(rollout, proposals, obs).argmax() == 1  # 2 + 1 + 0.5


def test_upmpc_chooses_the_same_in_any_unit_of_reward():
    obs = torch.zeros(1, 2)
    for unit in (1e-3, 1.0, 1e3):
        model = Fork([1.0 * unit, 1.5 * unit, 0.0], [0.0, 0.6, 0.0])
        rollout = functools.partial(imagine, model, reward_function=task, ends=None)
        planner = UPMPC(candidates=3, horizon=1, alpha=-0.5)  # scale sqrt(3.25 / 3): 0.96 against 1.44 - 0.3
        assert planner.plan(rollout, proposals, obs).argmax() == 1
        planner.alpha = -1.0  # 1.44 - 0.6
        assert planner.plan(rollout, proposals, obs).argmax() == 0
