"""Boosted oblivious trees: values by hand, PPO's steps with them, what is refused, and that a run continues exactly."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

import envs.make
import rewards
from agents.networks.actor_critic import Actions, Inputs
from agents.ppo.agent import PPO, PPOConfig
from agents.ppo.seams import Batch, Targets
from agents.ppo.trees import TreePolicy, TreesUpdate
from lodestar.numerics.descent import Flat
from lodestar.numerics.trees import Bins, Trees, fit
from runners.explain.reading import splits
from tests.rollouts import cut

SMALL = {"n_steps": 32, "batch_size": 32, "n_epochs": 2, "net": "trees"}


def score(x, gradient, feature, threshold, node):
    """By the formula, node by node, of one question."""
    total = 0.0
    for number in np.unique(node):
        for side in (x[:, feature] > threshold, x[:, feature] <= threshold):
            rows = side & (node == number)
            total += np.square(gradient[rows].sum(0)).sum() / max(rows.sum(), 1)
    return total


def test_two_signs_are_parted_between_them():
    x, gradient = np.float32([[0], [1], [2], [3]]), np.array([[1.0], [1], [-1], [-1]])
    tree = fit(Bins.of(x, 32), gradient, 1)
    assert (tree.threshold.tolist(), tree.leaf.ravel().tolist(), tree.gain.tolist()) == ([1.5], [1, -1], [[4.0]])
    assert tree.at(np.float32([[1.5], [1.6]])).ravel().tolist() == [1, -1]


def test_each_level_asks_the_question_of_the_highest_score_and_leaves_hold_means():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    gradient = rng.normal(size=(40, 2)) + np.c_[x[:, 1] > 0, 3.0 * (x[:, 2] > 0.5)]
    tree, unit = fit(Bins.of(x, 64), gradient, 3), gradient / np.sqrt(np.square(gradient).mean(0))
    node, before = np.zeros(40, int), np.square(unit.sum(0)).sum() / 40
    for level in range(3):
        values = [np.sort(x[:, f]) for f in range(3)]
        found = {(f, t): score(x, unit, f, t, node) for f in range(3) for t in (values[f][1:] + values[f][:-1]) / 2}
        (feature, threshold), best = max(found.items(), key=lambda item: item[1])
        assert tree.feature[level] == feature and tree.threshold[level] == pytest.approx(threshold)
        assert tree.gain[level].sum() == pytest.approx(best - before, rel=1e-5)
        node, before = 2 * node + (x[:, feature] > threshold), best
    for number in np.unique(node):
        np.testing.assert_allclose(tree.leaf[number], gradient[node == number].mean(0), rtol=1e-5)
    np.testing.assert_array_equal(tree.at(x), tree.leaf[node])


def test_the_scale_of_an_output_does_not_choose_the_questions():
    rng = np.random.default_rng(1)
    x, gradient = rng.normal(size=(200, 4)).astype(np.float32), rng.normal(size=(200, 2))
    one, other = (fit(Bins.of(x, 16), gradient * scale, 4) for scale in ([1, 1], [1, 1e4]))
    assert (one.feature == other.feature).all() and (one.threshold == other.threshold).all()
    np.testing.assert_allclose(one.leaf * [1, 1e4], other.leaf, rtol=1e-4, atol=1e-6)


def test_inputs_that_never_vary_are_not_asked_about_and_many_values_share_bins():
    x = np.float32(np.c_[np.ones(300), np.arange(300), np.arange(300) % 3])
    bins = Bins.of(x, 8)
    assert set(bins.feature) == {1, 2} and np.bincount(bins.feature).tolist() == [0, 8, 3]
    assert np.bincount(bins.place[:, 0]).tolist() == pytest.approx([300 / 8] * 8, abs=1)
    still = fit(Bins.of(np.ones((4, 2), np.float32), 8), np.array([[1.0], [1], [1], [2]]), 2)
    assert still.at(np.ones((1, 2), np.float32)).tolist() == [[1.25]] and not still.gain.any()


def test_an_ensemble_is_the_sum_of_its_trees_in_rows_of_any_number(monkeypatch):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(50, 3)).astype(np.float32)
    grown = [fit(Bins.of(x, 8), rng.normal(size=(50, 2)), 3) for _ in range(7)]
    trees = Trees(3, 2, 3)
    assert not trees(torch.from_numpy(x)).any()
    trees.grow(grown[:4])
    trees.grow(grown[4:])
    for cells in (2**20, 100):
        monkeypatch.setattr("lodestar.numerics.trees.MAX_CELLS_A_PART", cells)
        found = trees(torch.from_numpy(x))
        np.testing.assert_allclose(found.detach(), sum(tree.at(x) for tree in grown), rtol=1e-5, atol=1e-6)
    gains = np.zeros((3, 2))
    for tree in grown:
        np.add.at(gains, tree.feature, tree.gain)
    np.testing.assert_allclose(trees.importance, gains, rtol=1e-5)


def test_fewer_trees_say_nearly_the_same_at_the_rows_they_are_distilled_at():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    bins = Bins.of(x, 16)
    trees = Trees(3, 2, 3)
    goal = np.c_[x[:, 0] > 0, 10 * (x[:, 1] > 0.5)].astype(np.float32)
    trees.grow([tree._replace(leaf=tree.leaf / 40) for tree in [fit(bins, goal, 3)] * 40])
    before = trees(torch.from_numpy(x)).detach().numpy()
    # Each tree takes three tenths of what is missing, and one tree can say it all: 0.7^20 is left.
    trees.distil(x, bins, 20)
    after = trees(torch.from_numpy(x)).detach().numpy()
    assert len(trees.leaf) == len(trees.feature) == 20
    np.testing.assert_allclose(after, before * (1 - 0.7**20), rtol=1e-3, atol=1e-3)
    # The third input says nothing.
    assert (trees.importance.sum(1) > 0).tolist() == [True, True, False]
    # Importance counts the new trees alone, so that as many trees of the same outputs have the same.
    importance = trees.importance.clone()
    trees.distil(x, bins, 20)
    np.testing.assert_allclose(trees.importance, importance, rtol=0.02)


def test_one_epoch_of_one_minibatch_is_the_policy_gradient():
    model = agent("lodestar/ProbeJoint-v0", ["task"], n=2, n_epochs=1, batch_size=64)
    model.learn(64)
    # Where the policy is still the one that acted, no ratio is clipped.
    assert len(model.policy.trunk.leaf) == 1
    assert (model.metrics["train/clip_fraction"], model.metrics["train/approx_kl"]) == (0, pytest.approx(0, abs=1e-6))


def test_beyond_their_limit_trees_are_replaced_by_half_as_many():
    model = agent(tree_limit=10).learn(64 * 2)
    assert len(model.policy.trunk.leaf) == 8
    obs = torch.from_numpy(model.collector.vector[:-1].reshape(-1, 4))
    model.learn(64)
    assert len(model.policy.trunk.leaf) == 5
    assert model.policy(obs, {})[1].abs().sum() > 0


def policy(action_space, streams=1, **changes):
    torch.manual_seed(0)
    net = TreePolicy(Inputs(spaces.Box(-9, 9, (1,))), Actions(action_space), streams, 2)
    return TreesUpdate(net, Flat.of_parameters(net.ordered()), PPOConfig(net="trees", tree_depth=2, **changes))


def test_a_minibatch_moves_the_outputs_by_the_gradient_of_each_row():
    update = policy(spaces.Discrete(2), tree_rate=0.5, tree_value_rate=0.1)
    x, action, advantage = np.float32([[0], [1], [2], [3]]), np.array([[1], [0], [1], [1]]), [1.0, 1, -1, -1]
    returns = np.float32([10, 0, 0, -20])
    numbers = np.c_[np.full(4, np.log(0.5)), advantage, returns].astype(np.float32)
    batch = update.begin_update(Batch(x, {}, action, Targets(numbers)))
    assert update.update(batch, np.array([2, 0, 3, 1]), True)["value_loss"] == pytest.approx(125)
    update.end_update()
    outputs, values = update.net(torch.from_numpy(x), {})
    # d L / d logits = -A (onehot - p) with A normalised to 1 / std = 1 / sqrt(4 / 3), and V - R = -R, each row alone.
    slope = np.array(advantage)[:, None] * (np.eye(2)[action[:, 0]] - 0.5) * 0.75**0.5
    np.testing.assert_allclose(outputs.detach(), 0.5 * slope, rtol=1e-5)
    np.testing.assert_allclose(values.detach()[:, 0], 0.1 * returns, rtol=1e-5)
    np.testing.assert_allclose(update.evaluate(x, {}, action)[0], values.detach())


def test_the_deviation_of_a_gaussian_is_moved_by_adam():
    update = policy(spaces.Box(-1, 1, (1,)))
    x, numbers = np.float32([[0], [1]]), np.float32([[-0.92, 1, 0], [-2.92, -1, 0]])
    batch = Batch(x, {}, np.float32([[0.0], [2.0]]), Targets(numbers))
    update.update(update.begin_update(batch), np.arange(2))
    assert update.net.log_std.item() == pytest.approx(-3e-4, rel=1e-3)  # the likelier action was the better one


def agent(env="CartPole-v1", names=("task", "count"), n=2, **changes):
    made = envs.make.make_vec(env, n, seed=0)
    mix = rewards.make(list(names), made.single_observation_space, made.single_action_space, seed=0)
    return PPO(made, PPOConfig(**{**SMALL, **changes}), scorer=mix, seed=0)


def test_what_depends_on_the_observation_is_learned_by_few_trees():
    model = agent("lodestar/ProbeJoint-v0", ["task"], n=4, tree_rate=0.3).learn(128 * 8)
    assert model.predict(np.float32([[-1], [1]]), deterministic=True)[0].tolist() == [0, 1]
    assert len(model.policy.trunk.leaf) == 8 * 2 * 4
    assert splits(model, ["x"])["parts"] == [{"part": "x", "shares": [1.0, pytest.approx(1.0)]}]


@pytest.mark.parametrize("changes", [{}, {"balance": "min_norm"}], ids=str)
def test_trees_are_saved_with_a_run_that_continues_exactly(changes):
    whole, second = cut(lambda: agent(**changes), 64 * 2)
    assert torch.equal(second.policy.trunk.leaf, whole.policy.trunk.leaf) and len(whole.policy.trunk.leaf) == 16
    assert torch.equal(second.policy.trunk.importance, whole.policy.trunk.importance)


def test_a_file_brings_the_trees_back_and_a_new_stream_begins_at_0(tmp_path):
    model = agent().learn(128)
    model.save(str(tmp_path / "a"))
    obs = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    rows, values = torch.from_numpy(obs), model.policy(torch.from_numpy(obs), {})[1]
    again = PPO.load(str(tmp_path / "a"), model.envs, scorer=model.scorer)
    assert torch.equal(again.policy(rows, {})[1], values)
    other = rewards.make(["rnd", "task"], model.observation_space, model.action_space)
    model.set_reward(other)
    after = model.policy(rows, {})[1]
    assert torch.equal(after[:, 1], values[:, 0]) and values[:, 0].any() and not after[:, 0].any()
    alone = PPO.load(str(tmp_path / "a"), model.envs)  # of the task's own reward
    assert torch.equal(alone.policy(rows, {})[1], values[:, :1])
    assert len(model.learn(64).policy.trunk.leaf) == 12


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"gru": 8}, "agent.gru=8 is for networks, and agent.net=trees has no use for it; leave one out"),
        ({"normalize_obs": True}, "agent.normalize_obs=True is for networks"),
        ({"blend": "aligned"}, "agent.blend=aligned is for networks"),
        ({"tree_limit": 1}, "agent.tree_limit=1 leaves no tree; give 2 or more"),
        ({"tree_depth": 0}, r"agent.tree_depth=0 is out of range; give a number in \[1, 10\]"),
    ],
)
def test_what_trees_cannot_do_is_one_sentence_at_construction(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        PPOConfig(net="trees", **changes)


def test_images_are_refused():
    with pytest.raises(ValueError, match="reads numbers, and these observations have images"):
        TreePolicy(Inputs(spaces.Box(0, 255, (3, 8, 8), np.uint8)), Actions(spaces.Discrete(2)), 1, 4)
