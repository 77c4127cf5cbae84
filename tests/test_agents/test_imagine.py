"""Imagination: every rule of a rollout, hand-computed, and gradients against finite differences."""

import torch

from agents.dynamics import Predicted
from agents.dynamics.rollout import Adaptive, disagreement, imagine

NAN, INF = float("nan"), float("inf")


class Linear:
    """s' = s + b a, reward = s_0; `odd(obs, next_obs)` may spoil an outcome. Two members, `apart` from each other."""

    members, differentiable = 2, True

    def __init__(self, b=1.0, odd=None, terminated=None, apart=None):
        self.b, self.odd, self.terminated, self.apart = b, odd, terminated, apart

    def step(self, obs, action, *, sample=True, member_predictions=False):
        next_obs = obs + self.b * action
        if self.odd is not None:
            next_obs = self.odd(obs, next_obs)
        ends = None if self.terminated is None else self.terminated(next_obs)
        means = None
        if member_predictions:
            half = self.apart(obs)[:, None].expand_as(obs)
            means = torch.stack([next_obs - half, next_obs + half])
        return Predicted(next_obs, obs[:, 0], ends, means)


def always(action):
    return lambda obs, t: (torch.full_like(obs, action), None)


def task(obs, action, next_obs, task, terminated, step):
    return task


def column(*values):
    return torch.tensor(values, dtype=torch.float32)[:, None]


def test_a_rollout_is_rewarded_step_by_step():
    seen = []

    def reward_function(obs, action, next_obs, task, terminated, step):
        seen.append(step.tolist())
        return 10 * task + action[:, 0] + 100 * next_obs[:, 0]

    with torch.no_grad():
        rollout = imagine(Linear(), always(2.0), reward_function, None, column(1, 5), 3, step=torch.tensor([0, 7]))
    assert rollout.obs[..., 0].tolist() == [[1, 5], [3, 7], [5, 9]]
    assert rollout.next_obs[..., 0].tolist() == [[3, 7], [5, 9], [7, 11]]
    assert rollout.task.tolist() == [[1, 5], [3, 7], [5, 9]]
    assert rollout.reward.tolist() == [[312, 752], [532, 972], [752, 1192]]
    assert rollout.step.tolist() == seen == [[0, 7], [1, 8], [2, 9]]
    assert rollout.alive.all() and not rollout.terminated.any() and rollout.continues.all()
    assert rollout.log_prob is None and int(rollout.diverged) == 0


def test_the_same_is_imagined_with_gradients_and_without():
    def act(obs, t):
        return 0.1 * obs + t, obs[:, 0] / 2

    def rollout():
        return imagine(Linear(), act, task, lambda obs, action, next_obs: next_obs[:, 0] > 4, column(1, 5, -2), 4)

    with torch.no_grad():
        written = rollout()
    stacked = rollout()
    for name in vars(written):
        assert torch.equal(getattr(written, name), getattr(stacked, name)), name


def test_rewards_are_zero_after_the_end_and_the_last_transition_has_one():
    with torch.no_grad():
        rollout = imagine(
            Linear(), always(1.0), task, lambda obs, action, next_obs: next_obs[:, 0] >= 3, column(0, 1), 4
        )
    assert rollout.alive.T.tolist() == [[True, True, True, False], [True, True, False, False]]
    assert rollout.terminated.T.tolist() == [[False, False, True, False], [False, True, False, False]]
    assert rollout.reward.T.tolist() == [[0, 1, 2, 0], [1, 2, 0, 0]]
    assert not rollout.continues.any()


def test_what_the_model_has_learned_of_the_end_counts_where_nothing_else_is_known():
    model = Linear(terminated=lambda next_obs: torch.sigmoid(next_obs[:, 0] - 2))  # above one half beyond 2
    with torch.no_grad():
        rollout = imagine(model, always(1.0), task, None, column(0, -9), 4)
        known = imagine(model, always(1.0), task, lambda *_: torch.tensor([False, True]), column(0, -9), 4)
    assert rollout.terminated.T.tolist() == [[False, False, True, False], [False] * 4]
    assert known.terminated[:, 1].tolist() == [True, False, False, False] and not known.terminated[:, 0].any()


def test_a_row_that_is_no_number_is_cut_counted_and_leaves_the_others_alone():
    def odd(obs, next_obs):
        return torch.where(obs > 2.5, NAN, next_obs)

    gain = torch.tensor(1.0, requires_grad=True)
    rollout = imagine(Linear(odd=odd), lambda obs, t: (gain * torch.ones_like(obs), None), task, None, column(0, 2), 4)
    assert rollout.alive.T.tolist() == [[True, True, True, False], [True, False, False, False]]
    assert int(rollout.diverged) == 2
    assert all(x.isfinite().all() for x in (rollout.obs, rollout.next_obs, rollout.reward))
    rollout.reward.sum().backward()
    assert gain.grad == 0 + 1 + 2  # of the sound row alone: rewards are s_0 = 0, gain, 2 gain


def test_gradients_stay_finite_through_a_row_whose_outcome_explodes():
    def odd(obs, next_obs):
        return next_obs + torch.exp(torch.where(obs > 2.5, 200 * obs, -INF))  # its slope is infinite too

    gain = torch.tensor(1.0, requires_grad=True)
    rollout = imagine(
        Linear(odd=odd), lambda obs, t: (gain * torch.ones_like(obs), None), task, None, column(0, 2.0), 3
    )
    assert int(rollout.diverged) == 1 and rollout.alive.sum() == 4
    rollout.reward.sum().backward()
    assert gain.grad == 0 + 1 + 2  # the other row is at 2, where nothing explodes, and at 3, where it is cut


def test_gradients_equal_finite_differences():
    torch.manual_seed(0)
    start = torch.randn(5, 2, dtype=torch.float64)

    def value(weight):
        model = Linear(b=0.3, odd=lambda obs, next_obs: torch.sin(next_obs))
        rollout = imagine(
            model,
            lambda obs, t: (torch.tanh(obs @ weight), (obs @ weight).sum(-1)),
            lambda obs, action, next_obs, task, terminated, step: task + (action * next_obs).sum(-1),
            lambda obs, action, next_obs: next_obs[:, 0] > 0.9,
            start,
            6,
        )
        return rollout.reward.sum() + 0.1 * rollout.log_prob.sum()

    weight = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(value, weight, check_undefined_grad=False)


def test_a_penalty_is_subtracted_from_the_reward():
    model = Linear(apart=lambda obs: obs[:, 0] / 4)
    with torch.no_grad():
        rollout = imagine(model, always(1.0), task, None, column(4), 2, penalty=lambda p: 2 * disagreement(p))
    assert rollout.penalty[:, 0].tolist() == [2.0, 2.5]
    assert rollout.task[:, 0].tolist() == [4.0, 5.0]
    assert rollout.reward[:, 0].tolist() == [2.0, 2.5]


def test_the_filter_picks_an_outcome_and_ends_what_it_does_not_believe():
    class Branching(Linear):
        def step(self, obs, action, *, sample=True, member_predictions=False):
            n = len(obs) // 3
            found = super().step(obs, action, sample=sample, member_predictions=member_predictions)
            found.next_obs = found.next_obs + torch.arange(3).repeat_interleave(n)[:, None] * 10.0
            found.reward = found.next_obs[:, 0]
            return found

    def choose(obs, action, outcomes):
        assert outcomes.shape == (3, 2, 1)
        assert outcomes[1].equal(outcomes[0] + 10)
        return torch.tensor([1, 2]), outcomes[0, :, 0] < 13

    with torch.no_grad():
        rollout = imagine(Branching(), always(1.0), task, None, column(0, 0), 3, choose=choose, candidates=3)
    assert rollout.next_obs[:2, :, 0].tolist() == [[11, 21], [22, 21]]  # the second ends before 32
    assert rollout.reward.tolist() == [[11, 21], [22, 0], [0, 0]]
    assert rollout.alive.tolist() == [[True, True], [True, False], [False, False]]
    assert not rollout.terminated.any() and int(rollout.diverged) == 0


def test_a_cut_leaves_rows_of_any_length():
    model, lengths = Linear(apart=lambda obs: obs[:, 0]), torch.tensor([1, 3, 2])
    with torch.no_grad():
        rollout = imagine(model, always(1.0), task, None, column(0, 0, 0), 3, cut=lambda _, t: t >= lengths)
    assert rollout.alive.sum(0).tolist() == [1, 3, 2] and not rollout.terminated.any()


def test_states_are_held_within_the_data_and_cut_far_from_it():
    bounds = torch.tensor([0.0, 0.0]), torch.tensor([10.0, 0.0])

    def act(obs, t):
        return torch.tensor([[4.0, 0.1], [8.0, 0.1], [400.0, 0.1]]), None

    with torch.no_grad():
        start = torch.tensor([[5.0, 0.0]] * 3)
        rollout = imagine(Linear(), act, task, None, start, 2, bounds=bounds)
    assert rollout.next_obs[:, 0].tolist() == [[9, 0], [11, 0]]  # 13 is held at 10 + a tenth of 10
    assert rollout.next_obs[:, 1].tolist() == [[11, 0], [11, 0]]
    assert rollout.alive.T.tolist() == [[True, True], [True, True], [False, False]]
    assert int(rollout.diverged) == 1


def test_a_rollout_is_cut_where_members_disagree_more_than_at_its_start():
    model = Linear(apart=lambda obs: obs[:, 0])
    adaptive = Adaptive(factor=2.0, quantile=0.5, decay=0.5)
    with torch.no_grad():
        rollout = imagine(model, always(1.0), task, None, column(1, 2, 3), 4, cut=adaptive)
        assert adaptive.threshold == 4.0  # twice the median of 1, 2, 3
        assert rollout.alive.sum(0).tolist() == [4, 3, 2]
        imagine(model, always(1.0), task, None, column(4, 4, 4), 1, cut=adaptive)
    assert adaptive.threshold == 6.0  # half way from 4 to 8
    other = Adaptive(factor=2.0, quantile=0.5, decay=0.5)
    other.load_state_dict(adaptive.state_dict())
    assert other.threshold == 6.0
