"""RDD, DRND and CFN: values by hand, the law of 1/n, and a reservoir that is fair."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rewards.check import random_rollout
from rewards.exploration.rdd import RDD, RDDConfig, VisitReplay
from rewards.exploration.rnd import RND, RNDConfig

BOX, ACTIONS = spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Discrete(2)
WIDE = dict(learning_rate=1e-3, hidden=256, features=256, max_grad_norm=10.0)


def make(space=BOX, seed=0, **options):
    return RDD(RDDConfig(**options), space, ACTIONS, seed=seed)


def visits(states, count):
    """Transitions that end in `states` (N,) of a world of `count`."""
    states = np.asarray(states, np.int64)
    batch = random_rollout(spaces.Discrete(count), ACTIONS, steps=1, envs=1).flatten()
    return batch[np.zeros(len(states), int)].replace(obs=states, next_obs=states)


def ranks(x):
    return np.argsort(np.argsort(x))


def rank_correlation(one, two):
    return np.corrcoef(ranks(one), ranks(two))[0, 1]


def constant(values):
    """A network that says `values` whatever it sees."""
    layer = torch.nn.Linear(2, len(values))
    layer.weight.data, layer.bias.data = torch.zeros(len(values), 2), torch.tensor(values)
    return layer


# -- values by hand ----------------------------------------------------------------------------------------------------


def test_the_gaussian_bonus_is_the_distance_to_the_mean_of_the_draws_not_to_a_draw():
    rdd = make(features=2, sigma=5.0)
    rdd.target.dense, rdd.predictor.dense = constant([1.0, 2.0]), constant([3.0, 2.0])
    data = random_rollout(BOX, ACTIONS).flatten()
    np.testing.assert_allclose(rdd.score(data), (2**2 + 0) / 2)


@pytest.mark.parametrize("alpha", [0.0, 0.9, 1.0])
def test_the_ensembles_bonus_by_hand(alpha):
    rdd = make(target="ensemble", members=2, features=3, alpha=alpha)
    # means 2, 0, 1; second moments 5, 4, 1.  The last member of each pair is 1, -2, 1.
    rdd.targets[0].dense, rdd.targets[1].dense = constant([3.0, 2.0, 1.0]), constant([1.0, -2.0, 1.0])
    rdd.predictor.dense = constant([2.1, 1.0, 4.0])
    first = 0.1**2 + 1 + 3**2
    # (2.1**2 - 4) / 1 = 0.41; (1 - 0) / 4; |16 - 1| over a variance of nothing is cut at 1
    second = (np.sqrt(0.41) + 0.5 + 1) / 3
    score = rdd.score(random_rollout(BOX, ACTIONS).flatten())
    np.testing.assert_allclose(score, alpha * first + (1 - alpha) * second, rtol=1e-5)


def test_the_coin_flips_bonus_is_the_root_of_the_mean_square_of_the_prediction():
    rdd = make(target="coin_flip", features=2)
    rdd.predictor.dense = constant([3.0, -4.0])
    np.testing.assert_allclose(rdd.score(random_rollout(BOX, ACTIONS).flatten()), np.sqrt((9 + 16) / 2), rtol=1e-6)


def test_draws_have_the_mean_and_deviation_that_they_should():
    x = torch.zeros(20_000, 2)
    gaussian = make(features=2, sigma=0.5)
    gaussian.target.dense = constant([1.0, 2.0])
    draws = gaussian.draw(x).numpy()
    np.testing.assert_allclose(draws.mean(axis=0), [1, 2], atol=0.02)
    np.testing.assert_allclose(draws.std(axis=0), 0.5, rtol=0.02)
    flips = make(target="coin_flip", features=2).draw(x).numpy()
    assert set(flips.ravel()) == {-1.0, 1.0}
    np.testing.assert_allclose(flips.mean(axis=0), 0, atol=0.02)
    assert abs(np.mean(flips[:, 0] * flips[:, 1])) < 0.02  # one coin for each feature
    ensemble = make(target="ensemble", members=2, features=2)
    ensemble.targets[0].dense, ensemble.targets[1].dense = constant([0.0, 1.0]), constant([2.0, 5.0])
    draws = ensemble.draw(x).numpy()
    assert {tuple(row) for row in draws} == {(0.0, 1.0), (2.0, 5.0)}  # a member answers for the whole row
    np.testing.assert_allclose(draws.mean(axis=0), [1, 3], atol=0.05)


@pytest.mark.parametrize("target", ["gaussian", "ensemble", "coin_flip"])
def test_a_draw_stays_within_an_update_and_is_made_anew_in_the_next(target, monkeypatch):
    seen = []
    rdd = make(spaces.Discrete(6), target=target, epochs=3, features=8)
    learn = rdd.loss
    monkeypatch.setattr(rdd, "loss", lambda x, draws: seen.append((x.argmax(dim=1), draws)) or learn(x, draws))
    for _ in range(2):
        rdd.update(visits(np.arange(6), 6))
    in_order = [draws[torch.argsort(state)] for state, draws in seen]
    assert torch.equal(in_order[0], in_order[1])
    assert torch.equal(in_order[0], in_order[2])
    assert not torch.equal(in_order[2], in_order[3])
    assert torch.equal(in_order[3], in_order[5])


# -- the law of 1/n ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "sigma"), [("gaussian", 0.5), pytest.param("coin_flip", 1.0, marks=pytest.mark.nightly)]
)
def test_a_predictor_trained_on_n_visits_is_off_by_the_variance_over_n(target, sigma):
    n = np.array([1, 2, 4, 8, 16, 32, 64])
    rdd = make(spaces.Discrete(7), target=target, sigma=sigma, epochs=100, normalize_obs="bounds", **WIDE)
    states = np.repeat(np.arange(7), n)
    columns = rdd.columns(visits(states, 7))
    rdd.fit(columns)
    rdd.config.learning_rate = 1e-4  # to the bottom
    rdd.train_on(rdd.predictor)
    rdd.fit(columns)
    bonus = rdd.score(visits(np.arange(7), 7))
    bonus = bonus**2 if target == "coin_flip" else bonus  # which gives about 1/sqrt(n)
    np.testing.assert_allclose(bonus * n, sigma**2, rtol=0.25)
    # that is the error of the mean of these very draws, by hand
    means = np.stack([columns[1][states == state].numpy().mean(axis=0) for state in range(7)])
    x = rdd.inputs(np.arange(7))
    truth = rdd.target(x).numpy() if target == "gaussian" else 0
    np.testing.assert_allclose(bonus, np.square(means - truth).mean(axis=1), rtol=0.1)


def one_pass(reward, n):
    """Bonus of each state after a life in which state k is visited n[k] times, in any order, 128 visits an update."""
    life = np.random.default_rng(0).permutation(np.repeat(np.arange(len(n)), n))
    for i in range(0, len(life), 128):
        reward.update(visits(life[i : i + 128], len(n)))
    return reward.score(visits(np.arange(len(n)), len(n)))


@pytest.mark.nightly
def test_over_a_life_the_bonus_follows_one_over_the_visits_where_that_of_rnd_vanishes():
    n = np.geomspace(1, 300, 24).round().astype(int)
    rdd = one_pass(make(spaces.Discrete(24), replay=20_000, epochs=10, **WIDE), n)
    rnd = one_pass(RND(RNDConfig(epochs=10, **WIDE), spaces.Discrete(24), ACTIONS), n)
    assert rank_correlation(rdd, 1 / n) > 0.95
    often = n >= 20  # seldom visited states are not learnt in a few steps
    slope = np.polyfit(np.log(n[often]), np.log(rdd[often]), 1)[0]
    assert slope == pytest.approx(-1, abs=0.25)
    assert np.all((rdd * n)[often] < 4)
    assert np.all((rdd * n)[often] > 1)
    assert np.all((rnd * n)[n >= 100] < 0.1)  # what it can predict it has learnt, visits or not


# -- the replay --------------------------------------------------------------------------------------------------------


def test_the_reservoir_keeps_every_visit_with_the_same_probability():
    kept = np.zeros(60)
    for seed in range(2000):
        rng = np.random.default_rng(seed)
        reservoir = VisitReplay(10, 1, 1)
        for start, stop in ((0, 4), (4, 25), (25, 60)):  # filling, overfilling, full
            numbers = np.arange(start, stop, dtype=np.float32)[:, None]
            reservoir.add(rng, numbers, -numbers)
        assert len(set(reservoir.rows[:, 0])) == 10
        assert np.array_equal(reservoir.draws, -reservoir.rows)
        kept[reservoir.rows[:, 0].astype(int)] += 1
    # 2000 times 10 of 60, deviation sqrt(2000 p (1 - p)) = 16.7
    assert np.abs(kept - 2000 / 6).max() < 4 * 16.7


def test_a_sample_of_the_reservoir_has_only_what_was_put_in():
    rng, reservoir = np.random.default_rng(0), VisitReplay(10, 1, 2)
    reservoir.add(rng, np.float32([[1], [2]]), np.float32([[1, 1], [2, 2]]))
    found, draws = reservoir.sample(rng, 100)
    assert set(found[:, 0]) == {1.0, 2.0}
    assert np.array_equal(draws, np.hstack([found, found]))


def test_with_replay_every_pass_learns_from_twice_as_many_visits_of_all_so_far_as_are_new():
    rdd = make(replay=100, features=3)
    data = random_rollout(BOX, ACTIONS).flatten()
    passes = [rdd.epoch(rdd.columns(data)) for _ in range(2)]
    assert [(x.shape, draws.shape) for x, draws in passes] == [((48, 2), (48, 3))] * 2
    assert rdd.replay.seen == 48
    columns = rdd.columns(data)
    assert not torch.equal(rdd.epoch(columns)[0], rdd.epoch(columns)[0])  # drawn again
    plain = make()
    columns = plain.columns(data)
    assert plain.epoch(columns) is columns


def test_old_visits_are_whitened_by_the_newest_statistics():
    rdd = make(replay=100)
    columns = rdd.columns(random_rollout(BOX, ACTIONS).flatten())
    rdd.statistics.mean = rdd.statistics.mean + 100
    assert float(rdd.epoch(columns)[0].max()) == -5


def test_the_reservoir_is_saved_with_the_draws_and_continues_as_if_nothing_had_happened():
    rdd, data = make(replay=30), random_rollout(BOX, ACTIONS)
    rdd.update(data)
    other = make(replay=30, seed=7)
    other.load_state_dict(copy.deepcopy(rdd.state_dict()))
    for _ in range(3):
        assert rdd.update(data) == other.update(data)
    assert np.array_equal(rdd.replay.rows, other.replay.rows)
    assert np.array_equal(rdd.replay.draws, other.replay.draws)
