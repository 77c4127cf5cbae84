"""Curiosity in hindsight: values by hand, a critic that measures information, and chance that is no longer rewarded."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rewards.check import random_rollout
from rewards.exploration.forward import Forward, ForwardConfig
from rewards.exploration.hindsight import Bank, Hindsight, HindsightConfig

BOX, ACTIONS = spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Discrete(4)
MOVES = np.float32([[1, 0], [-1, 0], [0, 1], [0, -1]])


def make(space=BOX, actions=ACTIONS, **options):
    return Hindsight(HindsightConfig(**options), space, actions)


def coins(count, seed):
    """Two numbers that the action moves by one, and a coin that is thrown at every step."""
    rng = np.random.default_rng(seed)
    batch = random_rollout(BOX, ACTIONS, steps=count, envs=1).flatten()
    action, place = rng.integers(0, 4, count), rng.uniform(-1, 1, (count, 2))
    one, two = rng.integers(0, 2, (2, count, 1)) * 2 - 1
    obs, next_obs = np.hstack([place, one]), np.hstack([place + MOVES[action], two])
    return batch.replace(obs=obs.astype(np.float32), next_obs=next_obs.astype(np.float32), action=action)


def linear(rows):
    rows = torch.tensor(rows)
    layer = torch.nn.Linear(rows.shape[1], rows.shape[0], bias=False)
    layer.weight.data = rows
    return layer


def same_weights(one, two):
    return all(map(torch.equal, one.parameters(), two.parameters()))


# -- values by hand ----------------------------------------------------------------------------------------------------


def by_hand(temper=1.0, skip=False, **options):
    """z = tanh(x' - x), f = x + 2 z, g = a_0 z for one number x and one action of a Box; `skip` adds x' and -5 z."""
    space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    sizes = {"chance": 1, "noise": 1, "hidden": 1, "bank": 2}
    reward = make(space, space, **sizes, temper=temper, skip=skip, normalize_obs="none", **options)
    reward.generator_net = linear([[-1.0, 0.0, 1.0, 7.0]])  # of x, a, x', and the noise that is 0 in a score
    reward.reconstructor = linear([[1.0, 0.0, 2.0]])
    if skip:
        reward.outcome_to_z = linear([[1.0]])
        reward.z_to_outcome = linear([[-5.0]])
    reward.critic = torch.nn.ModuleList([linear([[0.0, 1.0]]), linear([[1.0]])])
    batch = random_rollout(space, space, steps=2, envs=1).flatten()
    batch = batch.replace(obs=np.float32([[1], [0]]), action=np.float32([[2], [-1]]), next_obs=np.float32([[1], [3]]))
    return reward, batch


@pytest.mark.parametrize(("temper", "weight"), [(1.0, 1.0), (0.5, 1.0), (1.0, 3.0)])
def test_the_reward_is_reconstruction_over_lambda_and_weighted_information_by_hand(temper, weight):
    reward, batch = by_hand(temper=temper, invariance=weight)
    z = np.tanh([0.0, 3.0])
    rebuilt = np.square([1 - 1, 0 + 2 * z[1] - 3]) / temper
    np.testing.assert_allclose(reward.score(batch), rebuilt, rtol=1e-5)  # the bank is empty yet
    reward.negatives.add(torch.tensor([[0.5], [-1.0]]))
    others = [np.array([own, 0.5, -1.0]) for own in z]
    information = [a * own - np.log(np.mean(np.exp(a * other))) for a, own, other in zip([2, -1], z, others)]
    np.testing.assert_allclose(reward.score(batch), rebuilt + weight * np.array(information), rtol=1e-5)


def test_skip_connections_add_the_outcome_to_z_and_z_to_the_prediction_by_hand():
    reward, batch = by_hand(skip=True)
    # x' - x + x' before the tanh, and a prediction of x + 2 z - 5 z.
    z = np.tanh([1.0, 6.0])
    rebuilt = np.square([1 - 3 * z[0] - 1, 0 - 3 * z[1] - 3])
    np.testing.assert_allclose(reward.score(batch), rebuilt, rtol=1e-5)


def test_the_optimiser_moves_both_skip_connections_and_a_state_without_them_is_that_of_earlier_versions():
    reward = make()
    before = [copy.deepcopy(reward.outcome_to_z), copy.deepcopy(reward.z_to_outcome)]
    reward.update(coins(64, 0))
    assert not same_weights(before[0], reward.outcome_to_z)
    assert not same_weights(before[1], reward.z_to_outcome)
    added = set(reward.state_dict()) - set(make(skip=False).state_dict())
    assert added == {"outcome_to_z", "z_to_outcome"}


def test_without_invariance_the_critic_neither_learns_nor_adds_reward():
    reward, batch = by_hand(invariance=0.0)
    reward.negatives.add(torch.tensor([[0.5], [-1.0]]))
    np.testing.assert_allclose(reward.score(batch), [0, (2 * np.tanh(3) - 3) ** 2], rtol=1e-5)
    reward = make(invariance=0.0)
    before = copy.deepcopy(reward.critic)
    assert set(reward.update(coins(64, 0))) == {"reconstruction_loss"}
    assert same_weights(before, reward.critic)


def test_the_mean_over_a_minibatch_is_that_of_its_rows_with_the_others_as_negatives():
    reward, _ = by_hand()
    given = torch.tensor([[1.0, 2.0], [0.0, -1.0], [0.0, 0.5]])
    z = torch.tensor([[0.1], [0.9], [-0.4]])
    rows = [reward.information(given[i : i + 1], z[i : i + 1], z[np.arange(3) != i]) for i in range(3)]
    torch.testing.assert_close(reward.batch_information(given, z), torch.cat(rows).mean())


# -- the critic --------------------------------------------------------------------------------------------------------


def known(copies):
    """Information, in nats, that a trained critic finds in a z of one sign, a copy of the action or a coin of its own.

    Returns the mean over fresh rows, and over the bank's negatives.
    """
    reward = make(actions=spaces.Discrete(2), chance=1, hidden=64, learning_rate=3e-3)
    rng = torch.Generator().manual_seed(0)

    def draw(count):
        action = torch.randint(0, 2, (count,), generator=rng)
        sign = action if copies else torch.randint(0, 2, (count,), generator=rng)
        x = torch.randn(count, 3, generator=rng)
        return torch.cat([x, torch.eye(2)[action]], dim=1), 2.0 * sign[:, None] - 1

    for _ in range(200):
        reward.critic_optimizer.grad.zero_()
        (-reward.batch_information(*draw(256))).backward()
        reward.critic_optimizer.step(reward.config.learning_rate)
    given, z = draw(2000)
    with torch.no_grad():
        return float(reward.information(given, z, draw(2000)[1]).mean())


def test_the_critic_finds_one_bit_in_a_copy_of_the_action_and_nothing_in_a_coin():
    assert known(copies=True) == pytest.approx(np.log(2), abs=0.02)
    assert known(copies=False) == pytest.approx(0, abs=0.02)


def test_the_critic_raises_the_information_and_the_generator_lowers_it(monkeypatch):
    reward = make(critic_steps=1, learning_rate=1e-3, invariance=1.0)
    reward.watch(coins(256, 0))
    start, columns, seen = copy.deepcopy(reward), reward.columns(coins(256, 0)), []
    chance = reward.chance
    monkeypatch.setattr(reward, "chance", lambda *given: seen.append(given) or chance(*given))

    def information(critic, generator):
        with torch.no_grad():
            return float(critic.batch_information(seen[0][0], generator.chance(*seen[0])))

    losses = reward.loss(*columns)
    assert same_weights(start.generator_net, reward.generator_net)
    raised = information(reward, start)
    assert raised > information(start, start)
    assert float(losses["information"].detach()) == pytest.approx(raised, abs=1e-6)
    critic = copy.deepcopy(reward.critic)
    reward.descend(losses["information"])
    assert same_weights(critic, reward.critic)
    assert information(reward, reward) < raised


@pytest.mark.parametrize("steps", [1, 3])
def test_the_critic_takes_its_own_steps_before_each_of_the_generators(steps, monkeypatch):
    reward, taken = make(critic_steps=steps, invariance=1.0, batch_size=32), []
    step = reward.critic_optimizer.step
    monkeypatch.setattr(reward.critic_optimizer, "step", lambda *rates: taken.append(1) or step(*rates))
    reward.update(coins(64, 0))
    assert len(taken) == 2 * steps


# -- the bank ----------------------------------------------------------------------------------------------------------


def test_the_bank_keeps_the_newest():
    bank = Bank(4, 1)
    assert bank.kept_rows(torch.device("cpu")) is None
    bank.add(torch.tensor([[1.0], [2.0], [3.0]]))
    assert sorted(bank.kept_rows(torch.device("cpu")).flatten().tolist()) == [1, 2, 3]
    bank.add(torch.tensor([[4.0], [5.0]]))
    kept = bank.kept_rows(torch.device("cpu")).flatten().tolist()
    assert {4, 5} < set(kept)
    assert len(kept) == 4
    bank.add(torch.arange(10.0)[:, None])
    assert sorted(bank.kept_rows(torch.device("cpu")).flatten().tolist()) == [6, 7, 8, 9]


def test_a_rows_score_does_not_depend_on_the_rows_beside_it():
    reward, batch = make(), coins(200, 1)
    reward.update(coins(200, 0))
    whole = reward.score(batch)
    np.testing.assert_allclose(reward.score(batch[:1]), whole[:1], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(reward.score(batch[150:]), whole[150:], rtol=1e-4, atol=1e-6)


def test_the_bank_and_the_critics_optimiser_are_saved_and_loaded():
    reward, data = make(bank=40), coins(64, 0)
    reward.update(data)
    other = Hindsight(HindsightConfig(bank=40), BOX, ACTIONS, seed=9)
    other.load_state_dict(copy.deepcopy(reward.state_dict()))
    assert other.negatives.filled == 40
    for _ in range(2):
        assert torch.equal(reward.negatives.rows, other.negatives.rows)
        assert np.array_equal(reward.score(data), other.score(data))
        assert reward.update(data) == other.update(data)


# -- what it is for ----------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_coin_stops_being_rewarded_where_forward_prediction_keeps_its_variance():
    settings = dict(learning_rate=1e-3, epochs=4)
    hindsight = make(temper=1.0, invariance=1.0, critic_steps=1, chance=4, **settings)
    forward, test = Forward(ForwardConfig(**settings), BOX, ACTIONS), coins(2000, 99)
    for seed in range(8):
        hindsight.update(coins(1024, seed))
        forward.update(coins(1024, seed))
    assert forward.score(test).mean() == pytest.approx(1, abs=0.1)  # the whitened coin
    assert hindsight.score(test).mean() < 0.1
    new = test.replace(next_obs=test.next_obs + np.float32([3, 3, 0]))  # what never happened is no chance
    assert hindsight.score(new).mean() > 10 * hindsight.score(test).mean()


BITS = 64
CELLS = 64
SEEN = 32  # cells that `among_bits` visits


def among_bits(count, seed):
    """A ring of the first SEEN cells, one-hot, where the action steps by 0 to 3; in every second row random bits."""
    space = spaces.Box(0, 1, (CELLS + BITS,), np.float32)
    rng = np.random.default_rng(seed)
    batch = random_rollout(space, ACTIONS, steps=count, envs=1).flatten()
    cell = rng.integers(0, SEEN, count)
    action = rng.integers(0, 4, count)
    codes = np.eye(CELLS, dtype=np.float32)
    bits = rng.integers(0, 2, (2, count, BITS)).astype(np.float32)
    bits[:, ::2] = 0
    obs = np.hstack([codes[cell], bits[0]])
    next_obs = np.hstack([codes[(cell + action) % SEEN], bits[1]])
    return space, batch.replace(obs=obs, next_obs=next_obs, action=action)


def noise_and_novelty(**options):
    """Rewards, after 32 minibatches, of bits in known cells and of silent cells that were never seen."""
    space, test = among_bits(500, 99)
    # A larger rate and a lighter critic than the defaults, so that the test takes a second.
    reward = make(space, learning_rate=1e-2, critic_steps=1, **options)
    for seed in range(8):
        reward.update(among_bits(1024, seed)[1])
    noise = reward.score(test)[1::2]
    silent = test.obs.copy()
    silent[:, CELLS:] = 0
    new = np.zeros_like(test.next_obs)
    new[np.arange(500), SEEN + np.arange(500) % (CELLS - SEEN)] = 1
    novelty = reward.score(test.replace(obs=silent, next_obs=new))
    return noise.mean(), novelty.mean()


@pytest.mark.nightly
def test_skip_connections_let_noise_of_many_bits_pay_less_than_a_new_cell():
    noise, novelty = noise_and_novelty()
    assert noise < 0.9 * novelty
    noise, novelty = noise_and_novelty(skip=False)
    assert noise > 2 * novelty
