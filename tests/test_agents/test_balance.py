"""Streams balanced by their policy gradients: values by hand, what is refused, and that a run continues exactly."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import envs.make
import rewards
from agents.ppo.agent import PPO, PPOConfig
from agents.ppo.plugins.balance import Balance, frank_wolfe, min_norm, project
from tests.rollouts import cut

SMALL = {"n_steps": 16, "batch_size": 32, "n_epochs": 2, "net_arch": [16], "sequence": 8}
TWO = np.array([[1.0, 0.0], [-0.5, 1.0]])


def test_the_shortest_vector_between_two_gradients_serves_both_alike():
    shares = frank_wolfe(TWO @ TWO.T)
    assert shares == pytest.approx([0.53846, 0.46154], abs=1e-5)
    direction = shares @ TWO
    assert direction == pytest.approx([0.30769, 0.46154], abs=1e-5)
    assert TWO @ direction == pytest.approx([0.30769, 0.30769], abs=1e-5)


def test_no_stream_loses_by_the_shortest_vector_whatever_their_lengths():
    rows = np.array([[1, 0, 0], [1, 0.2, 0], [-0.9, 1, 0.1]])
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    shares = min_norm(rows * [[1], [100], [1e-3]], np.ones(3))
    direction = shares @ units
    assert shares.sum() == pytest.approx(1) and shares.min() >= 0
    assert (units @ direction >= direction @ direction - 1e-3).all() and (units @ units.sum(0)).min() < -0.1
    assert min_norm(TWO, np.array([3.0, 1.0])) == pytest.approx([0.75, 0.25])


def test_what_a_gradient_has_against_another_is_taken_away():
    # g1 + 0.4 g2 and g2 + 0.5 g1, so 1.5 and 1.4 of vectors of length 1 and sqrt(1.25).
    lengths = np.array([1.5, 1.4 * np.sqrt(1.25)])
    assert project(TWO, np.ones(2)) == pytest.approx(lengths / lengths.sum())
    assert project(np.abs(TWO), np.array([2.0, 1.0])) == pytest.approx(np.array([2, 1.25**0.5]) / (2 + 1.25**0.5))


def make_balance(method="min_norm", only=(), streams=("task", "clip", "rnd")):
    config = PPOConfig(balance=method, balance_only=list(only))
    return Balance(SimpleNamespace(config=config, streams=dict.fromkeys(streams)))


def combine(balance, gradients, advantages, weights, valid):
    transitions = SimpleNamespace(valid=valid)
    seen = np.ones(advantages.shape[-1], bool)
    scored = SimpleNamespace(
        gradients=gradients, advantages=advantages, weights=weights, seen=seen, transitions=transitions
    )
    return balance.combine(scored)


def rollout(scale=1.0, weight=1.0):
    """Gradients and advantages (5, 4, 3) of task, clip and rnd, with weights; clip's in units of `scale`."""
    advantage = np.random.default_rng(0).normal(size=(5, 4, 3)).astype(np.float32)
    advantage /= advantage.std((0, 1))
    advantage[..., 1] *= scale
    vectors = torch.tensor(np.r_[TWO, [[0.3, 0.3]]])
    pulls = {"task": vectors[0], "clip": scale * vectors[1], "rnd": vectors[2]}
    weights = np.broadcast_to(np.float32([1, weight, 0.5]), advantage.shape)
    return pulls, advantage, weights, np.ones((5, 4), bool)


@pytest.mark.parametrize("method", ["min_norm", "project"])
def test_a_negative_weight_asks_for_the_opposite(method):
    """As a stream whose rewards have the other sign, with a weight that is positive."""
    pulls, advantage, weights, valid = rollout()
    turned = dict(pulls, clip=-pulls["clip"]), advantage * np.float32([1, -1, 1]), weights, valid
    expected = make_balance(method, only=["task", "clip"])
    negative = make_balance(method, only=["task", "clip"])
    total = combine(negative, pulls, advantage, weights * np.float32([1, -1, 1]), valid)
    np.testing.assert_allclose(total, combine(expected, *turned), rtol=1e-5)
    assert negative.shares.min() > 0
    assert negative.shares == pytest.approx(expected.shares)


def test_the_scale_of_a_reward_does_not_matter_and_others_are_added_by_their_weights():
    one, other = (make_balance(only=["task", "clip"]) for _ in range(2))
    pulls, advantage, weights, valid = rollout()
    total, large = combine(one, pulls, advantage, weights, valid), combine(other, *rollout(scale=100.0))
    # The shares are halves, so factors are as 1 to 1 / sqrt(1.25), and as large as a sum with the factors 1 and 1.
    factors = np.array([1, 0.8**0.5]) * np.sqrt(2 / 1.8)
    np.testing.assert_allclose(total, advantage @ np.float32([*factors, 0.5]), rtol=1e-4)
    bonus = 0.5 * advantage[..., 2]
    assert np.corrcoef((total - bonus).ravel(), (large - bonus).ravel())[0, 1] == pytest.approx(1)
    assert one.metrics == pytest.approx({"stream/task/share": 0.5, "stream/clip/share": 0.5})


def test_shares_are_averages_over_rollouts():
    balance = make_balance("project", only=["task", "clip"])
    found = project(TWO, np.ones(2))
    for expected in (0.9 * 0.5 + 0.1 * found[0], 0.9 * (0.9 * 0.5 + 0.1 * found[0]) + 0.1 * found[0]):
        combine(balance, *rollout())
        assert balance.metrics["stream/task/share"] == pytest.approx(expected)


def test_a_stream_without_a_gradient_is_left_out_until_it_has_one_and_weight_0_removes_a_stream():
    balance = make_balance(only=["task", "clip"])
    pulls, advantage, weights, valid = rollout()
    total = combine(balance, {**pulls, "clip": 1e-4 * pulls["clip"]}, advantage, weights, valid)
    np.testing.assert_allclose(total, advantage @ np.float32([1, 0, 0.5]), rtol=1e-5)
    assert balance.metrics["stream/clip/share"] == 0
    combine(balance, pulls, advantage, weights, valid)
    assert balance.metrics["stream/clip/share"] == pytest.approx(0.5)
    total = combine(balance, *rollout(weight=0.0))
    np.testing.assert_allclose(total, advantage @ np.float32([1, 0, 0.5]), rtol=1e-5)
    nothing = combine(balance, {}, advantage, weights, valid)
    np.testing.assert_allclose(nothing, 0.5 * advantage[..., 2], rtol=1e-5)


def agent(names=("task", "count"), **changes):
    made = envs.make.make_vec("CartPole-v1", 2, seed=0)
    given = {name: {"gamma": 0.5, "episodic": False} if name == "count" else None for name in names}
    mix = rewards.make(given, made.single_observation_space, made.single_action_space, seed=0)
    return PPO(made, PPOConfig(**{**SMALL, "balance": "min_norm", **changes}), scorer=mix, seed=0)


@pytest.mark.parametrize("changes", [{}, {"balance": "project", "path": "eager"}, {"gru": 8}], ids=str)
def test_a_balanced_run_continues_exactly(changes):
    def build():
        return agent(["task", "rnd", "count"], balance_only=["task", "count"], **changes)

    whole, second = cut(build, 2 * 16 * 2)
    ours, theirs = (model.extensions.balance for model in (second, whole))
    assert torch.equal(second.flat.value, whole.flat.value) and (ours.shares == theirs.shares).all()
    assert theirs.metrics.keys() == {"stream/task/share", "stream/count/share"}


def test_normalised_streams_are_of_equal_size_and_the_others_as_they_were():
    made = agent(["task", "rnd", "count"], balance="normalize", balance_only=["task", "count"])
    made.learn(64)
    scored = made._scored
    assert scored.gradients == {}
    task, rnd, count = np.moveaxis(scored.advantages, -1, 0)
    weights = scored.weights[0, 0] * made.seen
    by_hand = weights[0] * (task - task.mean()) / task.std() + weights[1] * rnd
    by_hand += weights[2] * (count - count.mean()) / count.std()
    np.testing.assert_allclose(made.combiner.combine(scored), by_hand, rtol=1e-4, atol=1e-5)


def test_both_paths_balance_alike_and_otherwise_than_the_sum():
    fast, eager, plain = (agent(**changes).learn(96) for changes in ({}, {"path": "eager"}, {"balance": "none"}))
    torch.testing.assert_close(fast.flat.value, eager.flat.value, rtol=0, atol=1e-4)
    assert (fast.flat.value - plain.flat.value).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("names", "changes", "sentence"),
    [
        (["task"], {}, "agent.balance=min_norm has only task to balance; give at least two streams"),
        (["task", "count"], {"streams": "sum"}, "has only task to balance"),
        (["task", "count"], {"balance_only": ["task"]}, "has only task to balance"),
        (["task", "count"], {"balance_only": ["task", "clip"]}, "names 'clip', which is no stream.*of task, count"),
        (["task", "count"], {"balance": "none", "balance_only": ["task"]}, "balances nothing; give agent.balance="),
    ],
)
def test_what_cannot_be_balanced_is_one_sentence_at_construction(names, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        agent(names, **changes)
