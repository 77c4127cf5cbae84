"""SAC and DQN as learners: hand-computed losses, bounds that hold, and small problems solved to the digit."""

import math
from typing import NamedTuple

import pytest
import torch
from sample import mostly_at_night
from torch import Tensor
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from agents.off_policy.dqn import DeepQ
from agents.off_policy.sac import LearnerConfig, SoftActorCritic, squash
from lodestar.state import all_finite


class Rows(NamedTuple):
    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    discount: Tensor


def rows(size=32, obs=3, action=2, seed=0):
    draw = torch.Generator().manual_seed(seed)
    numbers = [torch.randn(size, n, generator=draw) for n in (obs, action, obs)]
    reward = torch.randn(size, generator=draw)
    discount = 0.99 * (torch.rand(size, generator=draw) > 0.2)
    return Rows(numbers[0], numbers[1].tanh(), reward, numbers[2], discount)


def small(**options):
    return LearnerConfig(**{"net_arch": [16, 16], **options})


OPTIONS = [
    {},
    {"norm": "layer", "critics": 5, "target": "mean", "dropout": 0.01, "bounded_targets": True},
    {"norm": "batch"},
    {"lipschitz": "spectral"},
    {"lipschitz": "robust"},
    {"head": "hl_gauss", "activation": "silu"},
    {"head": "two_hot", "entropy": 0.2},
]
NAMES = ["plain", "dhmbpo", "crossq", "spectral", "robust", "hl_gauss", "two_hot"]


def moved(learner):
    """All that an update changes, as one vector."""
    return torch.cat([learner.critic_flat.value, learner.actor_flat.value, learner.log_alpha, learner.target_flat])


def test_log_densities_equal_those_of_a_gaussian_behind_a_tanh():
    draw = torch.Generator().manual_seed(0)
    outputs, noise = torch.randn(50, 6, generator=draw), torch.randn(50, 3, generator=draw)
    action, log_prob = squash(outputs, noise)
    mean, raw = outputs.chunk(2, -1)
    log_std = -5 + 3.5 * (raw.tanh() + 1)
    reference = TransformedDistribution(Independent(Normal(mean, log_std.exp()), 1), [TanhTransform(cache_size=1)])
    before = mean + log_std.exp() * noise
    kept = before.abs().amax(-1) < 5  # beyond that torch's inverse is not exact
    expected = reference.base_dist.log_prob(before) - reference.transforms[0].log_abs_det_jacobian(
        before, before.tanh()
    ).sum(-1)
    torch.testing.assert_close(log_prob[kept], expected[kept], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(log_prob[kept], reference.log_prob(action)[kept], atol=2e-2, rtol=2e-3)
    assert squash(torch.full((1, 2), 1e3), torch.ones(1, 1))[1].isfinite().all()


def test_targets_by_hand():
    learner, batch = SoftActorCritic(3, 2, small(entropy=0.3)), rows()
    learner.target_flat.mul_(0.5)  # the targets are elsewhere than the critics
    state = learner.generator.get_state()
    with torch.no_grad():
        value = learner.next_value(batch.next_obs)
        learner.generator.set_state(state)
        action, log_prob = learner.sample(batch.next_obs)
        q = learner.q(batch.next_obs, action, target=True)
    torch.testing.assert_close(value, torch.minimum(q[0], q[1]) - 0.3 * log_prob)
    learner.config.target = "mean"
    torch.testing.assert_close(learner.aggregate(q), (q[0] + q[1]) / 2)


def test_targets_of_crossq_come_from_the_second_half_of_the_same_batch():
    learner, batch, told = SoftActorCritic(3, 2, small(norm="batch", entropy=0.3)), rows(), {}
    out = torch.arange(128.0).view(2, 64, 1, 1)  # of two critics, for 32 states and their 32 successors
    learner._outputs = lambda x, **options: out
    learner.regress = lambda x, now, target, action, reward: told.update(now=now, target=target)
    state = learner.generator.get_state()
    learner._joint_step(batch)
    learner.generator.set_state(state)
    log_prob = learner.sample(batch.next_obs)[1]
    assert torch.equal(told["now"], out[:, :32])
    follows = torch.arange(32.0, 64) - 0.3 * log_prob  # the smaller critic's
    torch.testing.assert_close(told["target"], batch.reward + batch.discount * follows)


@pytest.mark.parametrize("fused", [True, False])
def test_one_step_is_that_of_three_losses_written_down_separately(fused):
    batch = rows()
    learner, reference = (SoftActorCritic(3, 2, small(max_grad_norm=1e9), seed=3, fused=fused) for _ in range(2))
    metrics = learner.update(batch)

    def adam(loss, parameters):  # the first step of Adam: the gradient's sign, softened by epsilon
        grads = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for p, grad in zip(parameters, grads):
                p -= 3e-4 * grad / (grad.abs() + 1e-5)

    with torch.no_grad():
        next_action, next_log_prob = reference.sample(batch.next_obs)
        next_q = reference.q(batch.next_obs, next_action, target=True).amin(0)
        target = batch.reward + batch.discount * (next_q - 1.0 * next_log_prob)
    q = reference.q(batch.obs, batch.action)
    critic_loss = 0.5 * (q[0] - target).square().mean() + 0.5 * (q[1] - target).square().mean()
    old = reference.critic_flat.value.clone()
    adam(critic_loss, list(reference.critic.parameters()))
    action, log_prob = reference.sample(batch.obs)
    actor_loss = (log_prob - torch.minimum(*reference.q(batch.obs, action))).mean()
    adam(actor_loss, list(reference.actor.parameters()))
    slope = -(log_prob.mean() - 2)  # target entropy -2
    assert not any(value.requires_grad for value in metrics.values())  # they are kept until the next row of the log
    torch.testing.assert_close(metrics["critic_loss"], critic_loss.detach())
    torch.testing.assert_close(metrics["actor_loss"], actor_loss.detach())
    torch.testing.assert_close(learner.critic_flat.value, reference.critic_flat.value, atol=2e-6, rtol=0)
    torch.testing.assert_close(learner.actor_flat.value, reference.actor_flat.value, atol=2e-6, rtol=0)
    torch.testing.assert_close(
        learner.target_flat, old + 0.005 * (reference.critic_flat.value - old), atol=1e-6, rtol=0
    )
    assert learner.log_alpha.item() == pytest.approx(-3e-4 * slope.sign().item(), rel=1e-3)


@pytest.mark.parametrize("options", [{}, {"target": "mean", "critics": 3, "entropy": 0.1}, {"bounded_targets": True}])
def test_the_closed_form_step_equals_autograd(options):
    learner, reference = (SoftActorCritic(3, 2, small(**options), seed=3, fused=fused) for fused in (True, False))
    assert learner.fused is not None
    assert reference.fused is None
    for model in (learner, reference):
        model.whiten(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1.0, 2.0, 0.5]))
    for number in range(5):
        batch = rows(size=32 - number, seed=number)
        one, other = learner.update(batch), reference.update(batch)
        assert one.keys() == other.keys()
        for name in one:
            torch.testing.assert_close(one[name], other[name], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(moved(learner), moved(reference), atol=5e-6, rtol=0)


@pytest.mark.parametrize("options", OPTIONS, ids=NAMES)
def test_updates_follow_from_the_seed_and_resume_exactly(options):
    batch = rows()
    one, two = (SoftActorCritic(3, 2, small(**options), seed=1) for _ in range(2))
    before = torch.random.get_rng_state()
    for _ in range(3):
        one.update(batch)
        two.update(batch)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(moved(one), moved(two))
    fresh = SoftActorCritic(3, 2, small(**options), seed=7)
    assert not torch.equal(moved(one), moved(fresh))
    fresh.load_state_dict(one.state_dict())
    for _ in range(3):
        metrics = one.update(batch)
        fresh.update(batch)
    assert torch.equal(moved(one), moved(fresh))
    assert torch.equal(one.act(batch.obs), fresh.act(batch.obs))
    assert all(value.isfinite().all() for value in metrics.values())


@pytest.mark.parametrize("options", mostly_at_night(OPTIONS, {}), ids=NAMES)
def test_a_bandit_is_solved(options):
    """r = -(a - 0.3)^2, every episode one step long: the best action is 0.3 everywhere."""
    learner = SoftActorCritic(
        1, 1, small(**{"net_arch": [16], "learning_rate": 2e-2, **options, "entropy": 1e-3}), seed=2
    )
    draw = torch.Generator().manual_seed(5)
    for number in range(200):
        if number == 150:
            learner.config.learning_rate /= 10
        obs, action = torch.randn(64, 1, generator=draw), 2 * torch.rand(64, 1, generator=draw) - 1
        reward = -(action[:, 0] - 0.3).square()
        learner.update(Rows(obs, action, reward, obs, torch.zeros(64)))
    action = learner.act(torch.linspace(-1, 1, 9)[:, None], deterministic=True)
    torch.testing.assert_close(action, torch.full((9, 1), 0.3), atol=0.15, rtol=0)


def test_networks_read_deviations_from_the_mean_cut_at_ten():
    learner = SoftActorCritic(3, 2, small())
    learner.whiten(
        torch.tensor([1.0, -2.0, 5.0]), torch.tensor([2.0, 0.5, 1e-9])
    )  # of what never changes: 1e-3 at least
    read = learner.inputs(torch.tensor([[4.0, -2.25, 5.002], [1.0, 9.0, 4.0]]))
    torch.testing.assert_close(read, torch.tensor([[1.5, -0.5, 2.0], [0.0, 10.0, -10.0]]), atol=1e-3, rtol=0)


@pytest.mark.parametrize("norm", ["none", "layer", "batch"])
def test_whitening_again_leaves_values_and_actions_as_they_were(norm):
    learner, batch = SoftActorCritic(3, 2, small(norm=norm)), rows()
    fresh = learner.act(batch.obs, True)
    learner.whiten(torch.tensor([0.5, 0.0, -0.3]), torch.tensor([2.0, 0.5, 1.0]))
    assert not torch.equal(learner.act(batch.obs, True), fresh)  # the first time networks know nothing yet
    for _ in range(30):
        learner.update(batch)
    before = [
        learner.act(batch.obs, True),
        learner.q(batch.obs, batch.action),
        learner.q(batch.obs, batch.action, True),
    ]
    learner.whiten(torch.tensor([1.0, 0.2, 0.0]), torch.tensor([1.0, 1.5, 3.0]))
    after = [learner.act(batch.obs, True), learner.q(batch.obs, batch.action), learner.q(batch.obs, batch.action, True)]
    for old, new in zip(before, after):
        torch.testing.assert_close(new, old, atol=1e-3 if norm == "batch" else 1e-5, rtol=1e-4)


def test_a_spectral_bound_holds_for_random_pairs_of_critics_and_targets():
    learner = SoftActorCritic(3, 2, small(lipschitz="spectral", lipschitz_bound=0.8, learning_rate=1e-2))
    for number in range(200):
        batch = rows(seed=number)
        learner.update(batch._replace(reward=100 * batch.reward))
    one, other = rows(500, seed=1), rows(500, seed=2)
    apart = torch.cat([one.obs - other.obs, one.action - other.action], -1).norm(dim=-1)
    for target in (False, True):
        gap = (learner.q(one.obs, one.action, target) - learner.q(other.obs, other.action, target)).abs()
        assert (gap <= 1.02 * 0.8**3 * apart).all()
        assert (gap / apart).max() > 0.1
    for weight in learner.critic.weights()[::2]:
        assert torch.linalg.matrix_norm(weight, 2).max() <= 1.02 * 0.8


def test_the_robust_penalty_is_the_change_under_the_worst_sign_and_zero_for_constants():
    learner, batch = SoftActorCritic(3, 2, small(net_arch=[], lipschitz="robust", lipschitz_radius=0.2)), rows()
    x = torch.cat([batch.obs, batch.action], -1)
    weight = learner.critic.stack[0]
    change = 0.2 * weight[:, :3, 0].abs().sum(-1)  # a linear Q moves by radius * |w|_1
    q = learner.q(batch.obs, batch.action)
    torch.testing.assert_close(learner.robust_penalty(x, q, batch.action), change.square().sum())
    with torch.no_grad():
        weight.zero_()
    assert learner.robust_penalty(x, learner.q(batch.obs, batch.action), batch.action).item() == 0


def test_bounded_targets_stay_within_what_rewards_can_sum_up_to():
    learner = SoftActorCritic(3, 2, small(gamma=0.9, bounded_targets=True))
    learner.watch(torch.linspace(1, 3, 201))
    assert learner.low.item() == pytest.approx(1.02)
    assert learner.high.item() == pytest.approx(2.98)
    bounded = learner.clip_target(torch.tensor([-5.0, 7.0, 100.0]))
    torch.testing.assert_close(bounded, torch.tensor([0.0, 7.0, 29.8]))
    learner.watch(torch.full((10,), 5.02))
    assert learner.low.item() == pytest.approx((1.02 + 5.02) / 2)
    learner.low.fill_(-3.0), learner.high.fill_(-1.0)
    torch.testing.assert_close(learner.clip_target(torch.tensor([-99.0, -7.0, 5.0])), torch.tensor([-30.0, -7.0, 0.0]))


def test_the_entropy_s_weight_is_learned_or_fixed():
    assert SoftActorCritic(3, 2, small(entropy="auto_0.1")).alpha.item() == pytest.approx(0.1)
    learner = SoftActorCritic(3, 2, small(entropy=0))
    learner.update(rows())
    assert learner.alpha.item() == 0
    assert all_finite(learner.state_dict())
    assert learner.target_entropy == -2
    assert squash(learner.actor(torch.zeros(1, 3))[0], torch.zeros(1, 2))[1].item() < 0  # it begins nearly uniform
    assert SoftActorCritic(3, 2, small(target_entropy=-0.5)).target_entropy == -0.5


CHAIN = 5  # states in a row: action 1 goes right, 0 left; the step beyond the right end is worth 1 and ends


def chain():
    state, action = torch.arange(CHAIN).repeat_interleave(2), torch.tensor([0, 1]).repeat(CHAIN)
    after = (state + 2 * action - 1).clamp(0, CHAIN - 1)
    ends = (state == CHAIN - 1) & (action == 1)
    eye = torch.eye(CHAIN)
    return Rows(eye[state], torch.eye(2)[action], ends.float(), eye[after], 0.9 * ~ends)


@pytest.mark.parametrize(
    "options",
    mostly_at_night([{}, {"learning_rate": 0.005, "net_arch": [64], "head": "hl_gauss", "norm": "layer"}], {}),
    ids=["plain", "bins"],
)
def test_dqn_solves_a_chain_exactly(options):
    numbers = {"net_arch": [], "learning_rate": 0.02, "gamma": 0.9, "tau": 0.1, **options}
    learner, batch = DeepQ(CHAIN, 2, LearnerConfig(**numbers), seed=0), chain()
    for number in range(900):
        if number == 700:
            learner.config.learning_rate /= 10
        learner.update(batch)
    right = [0.9 ** (CHAIN - 1 - s) for s in range(CHAIN)]
    left = [0.9 * right[max(s - 1, 0)] for s in range(CHAIN)]
    expected = torch.tensor([left, right]).T
    q = learner.q_all(torch.eye(CHAIN))
    torch.testing.assert_close(q, expected.expand_as(q), atol=2e-3 if not options else 0.03, rtol=0)
    assert learner.act(torch.eye(CHAIN), True).argmax(-1).tolist() == [1] * CHAIN


def test_dqn_lets_one_network_choose_and_the_other_value():
    learner = DeepQ(2, 2, LearnerConfig(net_arch=[], critics=1))
    with torch.no_grad():
        for stack, best in ((learner.critic.weights(), 0), (learner.target, 1)):
            stack[0].zero_()
            stack[1].copy_(torch.tensor([[[5.0, 1.0]]]) if best == 0 else torch.tensor([[[2.0, 9.0]]]))
    assert learner.next_value(torch.zeros(1, 2)).item() == 2


def test_dqn_explores_by_epsilon_and_resumes_exactly():
    learner = DeepQ(3, 4, small(), seed=1)
    obs = rows(2000).obs
    best = learner.act(obs, True)
    assert torch.equal(learner.sample(obs)[0], best)
    learner.epsilon.fill_(0.4)
    share = (learner.act(obs) * best).sum(-1).mean().item()
    assert share == pytest.approx(1 - 0.4 * 3 / 4, abs=0.03)
    reference = DeepQ(3, 4, small(), seed=2)
    reference.load_state_dict(learner.state_dict())
    assert torch.equal(reference.act(obs), learner.act(obs))


def test_settings_out_of_range_and_contradictions_are_refused():
    for change, words in [
        ({"head": "c51"}, r"agent\.head='c51' is unknown; give one of mse, hl_gauss, two_hot"),
        ({"tau": 0.0}, r"agent\.tau=0\.0 is out of range; give a number in \(0, 1\]"),
        ({"critics": 0}, r"agent\.critics=0 is out of range; give a number at least 1"),
        ({"entropy": "automatic"}, r"agent\.entropy='automatic'; give auto, auto_0\.1, or a number"),
        ({"entropy": -1.0}, r"agent\.entropy=-1\.0"),
        ({"lipschitz": "spectral", "norm": "layer"}, r"lipschitz=spectral bounds nothing behind agent\.norm=layer"),
        ({"bounded_targets": True, "gamma": 1.0}, r"bounded_targets=True needs a discount below 1"),
        ({"dropout": 1.0}, r"agent\.dropout=1\.0 is out of range"),
        ({"lipschitz_radius": math.inf}, r"agent\.lipschitz_radius=inf is out of range"),
    ]:
        with pytest.raises(ValueError, match=words):
            LearnerConfig(**change)
    with pytest.raises(ValueError, match=r"agent\.norm=batch is CrossQ's"):
        DeepQ(2, 2, LearnerConfig(norm="batch"))
