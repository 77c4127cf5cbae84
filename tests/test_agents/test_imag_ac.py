"""Actor-critic in imagination: hand-computed returns, scales, policies and losses; and the optimum is found."""

import math

import pytest
import torch
from gymnasium import spaces
from torch import nn

from agents.networks.actor_critic import SpaceEncoding
from agents.networks.heads import Mse
from agents.world_model.config import WorldModelConfig
from agents.world_model.imag_ac import (
    STD,
    UNIFORM_SHARE,
    ImagActorCritic,
    LatentPolicy,
    Replayed,
    ReturnRange,
    _replay_returns,
    lambda_returns,
)
from agents.world_model.td3 import n_step


def column(*numbers):
    return torch.tensor(numbers)[:, None]


def random(seed=0):
    return torch.Generator().manual_seed(seed)


def test_lambda_returns_are_the_hand_computed_one():
    got = lambda_returns(column(1.0, 2.0), column(0.5, 0.5), column(9.0, 4.0, 8.0), lambda_=0.5)
    last = 2 + 0.5 * 8  # nothing follows but the value
    assert got.flatten().tolist() == pytest.approx([1 + 0.5 * (0.5 * 4 + 0.5 * last), last])


def test_lambda_one_sums_rewards_and_lambda_zero_asks_the_next_value():
    reward, discount, value = column(1.0, 2.0, 3.0), column(0.9, 0.9, 0.9), column(5.0, 6.0, 7.0, 8.0)
    whole = 1 + 0.9 * (2 + 0.9 * (3 + 0.9 * 8))
    assert lambda_returns(reward, discount, value, 1.0)[0].item() == pytest.approx(whole)
    assert lambda_returns(reward, discount, value, 0.0).flatten().tolist() == pytest.approx(
        [1 + 0.9 * 6, 2 + 0.9 * 7, 3 + 0.9 * 8]
    )


def test_nothing_is_worth_anything_after_an_end():
    got = lambda_returns(column(1.0, 2.0), column(0.0, 0.9), column(9.0, 4.0, 8.0), lambda_=0.95)
    assert got[0].item() == 1.0


def test_the_scale_of_returns_is_their_inner_range_and_never_below_one():
    scale = ReturnRange()
    scale.update(torch.linspace(0, 100, 101))
    assert scale().item() == pytest.approx(90)  # from 5 to 95, at once the first time
    scale.update(torch.full((10,), 50.0))
    assert scale().item() == pytest.approx((95 + 0.01 * (50 - 95)) - (5 + 0.01 * (50 - 5)))
    small = ReturnRange()
    small.update(torch.linspace(0, 0.1, 50))
    assert small().item() == 1.0


def test_n_step_sums_until_the_end_of_the_episode():
    # columns: goes on; terminates at the second step; is cut after the second; is cut after the first
    reward = torch.tensor([[1.0, 1, 1, 1], [2, 2, 2, 2], [4, 4, 4, 4], [8, 8, 8, 8]])
    terminated = torch.zeros(4, 4)
    terminated[1, 1] = 1
    first = torch.zeros(4, 4, dtype=torch.bool)
    first[2, 1] = first[2, 2] = first[1, 3] = True
    valid = torch.ones(4, 4, dtype=torch.bool)
    total, discount, last, known = n_step(reward, terminated, first, valid, 3, 0.5)
    assert total[:3].tolist() == [1 + 1 + 1, 1 + 1, 1]
    assert discount[:3].tolist() == [0.125, 0, 0.5]
    assert last[[0, 2]].tolist() == [3, 1]  # the last observation of an episode that was cut
    assert known.tolist() == [True, True, True, False]


def test_a_step_that_only_resets_is_no_step():
    valid = torch.tensor([[True], [True], [False], [True]])
    first = torch.tensor([[False], [False], [False], [True]])
    total, discount, last, known = n_step(torch.ones(4, 1), torch.zeros(4, 1), first, valid, 3, 0.5)
    assert total.item() == 1.5 and discount.item() == 0.25 and last.item() == 2 and known.item()


def test_no_discrete_action_dies_out():
    policy = LatentPolicy(3, 4, True, 8)
    nn.init.constant_(policy.net[-1].bias, 0.0)
    with torch.no_grad():
        policy.net[-1].bias[2] = 100.0
    log_probs, std = policy(torch.randn(5, 3, generator=random()))
    assert std is None
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(5))
    torch.testing.assert_close(log_probs.exp()[:, 0], torch.full((5,), UNIFORM_SHARE / 4))
    assert policy.mode((log_probs, None)).argmax(-1).tolist() == [2] * 5


def test_the_log_probabilities_are_those_of_torchs_distributions():
    features = torch.randn(6, 3, generator=random())
    for discrete in (True, False):
        policy = LatentPolicy(3, 4, discrete, 8)
        distribution = policy(features)
        action = policy.sample(distribution, random(1))
        log_prob, entropy = policy.log_prob(distribution, action)
        if discrete:
            other = torch.distributions.Categorical(logits=distribution[0])
            torch.testing.assert_close(log_prob, other.log_prob(action.argmax(-1)))
            torch.testing.assert_close(entropy, other.entropy())
        else:
            assert (distribution[1] >= STD[0]).all() and (distribution[1] <= STD[1]).all()
            other = torch.distributions.Independent(torch.distributions.Normal(*distribution), 1)
            torch.testing.assert_close(log_prob, other.log_prob(action))
            torch.testing.assert_close(entropy, other.entropy())


def test_samples_come_as_often_as_the_probabilities_say():
    policy = LatentPolicy(2, 3, True, 4)
    logs = torch.log(torch.tensor([0.2, 0.5, 0.3])).expand(20_000, 3)
    shares = policy.sample((logs, None), random()).mean(0)
    torch.testing.assert_close(shares, torch.tensor([0.2, 0.5, 0.3]), atol=0.015, rtol=0)


class Corridor:
    """Five places in a row; action 1 goes right, 0 left; the last place has reward 1, and ends the episode."""

    uncertainty = None
    empowerment = None

    def __init__(self):
        self.cell = self
        self.places = 5

    def features(self, state):
        return state["z"]

    def step(self, state, action):
        place = state["z"].argmax(-1) + (2 * action.argmax(-1) - 1)
        return {"z": torch.nn.functional.one_hot(place.clamp(0, self.places - 1), self.places).float()}

    def _wins(self, features, action):
        return (features[..., -2] * action[..., 1]).float()

    def reward(self, features, action):
        return self._wins(features, action)

    def continues(self, features, action):
        return 1 - self._wins(features, action)


def replayed(world, batch=40):
    z = torch.eye(world.places)[torch.randint(world.places - 1, (2, batch), generator=random())]
    zeros, no = torch.zeros(2, batch), torch.zeros(2, batch, dtype=torch.bool)
    return Replayed({"z": z}, z, torch.zeros(2, batch, 2), zeros, zeros, no, ~no)


def behaviour_of(**changes):
    config = WorldModelConfig(
        hidden=32,
        horizon=8,
        gamma=0.9,
        imagine_starts=0,
        replay_value=0.0,
        actor_learning_rate=3e-3,
        critic_learning_rate=3e-3,
        **changes,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        behaviour = ImagActorCritic(config, SpaceEncoding(spaces.Box(-1, 1, (5,)), spaces.Discrete(2)), 5, random(), 0)
    behaviour.flats()
    return behaviour


@pytest.mark.nightly
def test_imagination_finds_the_end_of_a_corridor_and_its_value():
    world, behaviour = Corridor(), behaviour_of()
    data = replayed(world)
    for _ in range(150):
        metrics = behaviour.update(world, None, data)
    places = torch.eye(5)[:4]
    chosen, _ = behaviour.act(world, {"z": places}, {}, deterministic=True)
    assert chosen.argmax(-1).tolist() == [1, 1, 1, 1]
    expected = torch.tensor([0.9**3, 0.9**2, 0.9, 1.0])
    torch.testing.assert_close(behaviour.value(places), expected, atol=0.2, rtol=0)
    assert 0 < metrics["entropy"].item() < math.log(2)


def test_imagination_begins_at_the_given_states_and_has_weight_zero_after_an_end():
    world, behaviour = Corridor(), behaviour_of()
    with torch.no_grad():
        behaviour.policy.net[-1].bias[1] = 50.0  # always to the right, but for the uniform share
    start = torch.eye(5)[[3]]
    features, action, reward, discount = behaviour.imagine(world, {"z": start})
    assert features.shape == (9, 1, 5) and torch.equal(features[0], start)
    assert action[0].argmax() == 1 and reward[0].item() == 1 and discount[0].item() == 0
    assert discount[1].item() == pytest.approx(0.9)


def test_the_losses_of_actor_and_critic_are_the_hand_computed_ones():
    """Three imagined steps of two rollouts; the second one ends with its first."""
    behaviour = behaviour_of(lambda_=1.0, entropy_weight=0.5)
    nn.init.zeros_(behaviour.policy.net[-1].weight)  # both actions are equally likely
    value = torch.tensor([[2.0, 1.0], [1.0, 4.0], [0.0, 2.0], [4.0, 8.0]])
    reward = torch.tensor([[1.0, 2.0], [2.0, 7.0], [0.0, 7.0]])
    discount = torch.tensor([[0.5, 0.0], [0.5, 0.5], [0.5, 0.5]])
    action = nn.functional.one_hot(torch.tensor([[0, 1], [1, 0], [1, 1]]), 2).float()
    features = torch.cat([value[..., None], torch.zeros(4, 2, 4)], -1)
    behaviour.imagine = lambda world, state: (features, action, reward, discount)
    behaviour.value = lambda features: features[..., 0]
    behaviour._value_loss = lambda features, returns: returns
    behaviour.scale.update = lambda returns: behaviour.scale.high.fill_(2.0)
    behaviour.config.replay_value, behaviour._replay_loss = 0.5, lambda replayed: torch.tensor(4.0)
    behaviour._flats["critic"].value.fill_(1.0), behaviour._flats["slow"].value.zero_()
    told = {}
    behaviour.descend = lambda loss, *names: told.update(loss=loss.item(), names=names)
    metrics = behaviour.update(Corridor(), None, replayed(Corridor()))

    # of the first rollout's steps, and of the second's first: nothing counts after an end
    returns = [1 + (2 + 4 / 4) / 2, 2 + 4 / 4, 4 / 2, 2]
    weight = [1, 0.5, 0.25, 1]
    advantage = [(2.5 - 2) / 2, (3 - 1) / 2, (2 - 0) / 2, (2 - 1) / 2]  # the critic is the baseline
    entropy = math.log(2)
    gain = sum(w * (-entropy * a + 0.5 * entropy) for w, a in zip(weight, advantage))
    error = sum(w * r for w, r in zip(weight, returns))
    assert metrics["actor_loss"].item() == pytest.approx(-gain / 6)
    assert metrics["critic_loss"].item() == pytest.approx(error / 6)
    assert told["loss"] == pytest.approx(-gain / 6 + error / 6 + 0.5 * 4) and told["names"] == ("actor", "critic")
    torch.testing.assert_close(behaviour._flats["slow"].value, torch.full_like(behaviour._flats["slow"].value, 0.02))


class Column(nn.Module):
    """Says one of the features."""

    def __init__(self, place):
        super().__init__()
        self.place = place

    def forward(self, features):
        return features[..., self.place : self.place + 1]


def test_the_critic_regresses_the_returns_and_what_its_slow_copy_says():
    behaviour = behaviour_of(lambda_=0.5)
    behaviour.critic, behaviour.slow, behaviour.head = Column(0), Column(1), Mse()
    features = torch.tensor([[[3.0, 5.0]], [[2.0, 4.0]], [[1.0, 8.0]]])  # what the critic and its copy say
    zero, no = torch.zeros(3, 1), torch.zeros(3, 1, dtype=torch.bool)
    data = Replayed({}, features, torch.zeros(3, 1, 2), column(1.0, 2.0, 9.0), zero, no, ~no)
    second = 2 + 0.9 * 8  # values are the copy's
    first = 1 + 0.9 * (0.5 * 4 + 0.5 * second)
    squares = [(3 - first) ** 2 + (3 - 5) ** 2, (2 - second) ** 2 + (2 - 4) ** 2]
    assert behaviour._replay_loss(data).item() == pytest.approx(sum(squares) / 2 / 2)


def test_the_actor_prefers_what_returned_more_than_the_critic_expected():
    """The gradient of log pi of the chosen action times its advantage, on a policy that is a table."""
    behaviour = behaviour_of(lambda_=1.0, entropy_weight=0.0)
    logits = torch.zeros(2, requires_grad=True)
    behaviour.policy.forward = lambda features: (torch.log_softmax(logits, -1).expand(*features.shape[:-1], 2), None)
    action = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    imagined = (torch.zeros(2, 2, 5), action, torch.tensor([[1.0, 1.0]]), torch.zeros(1, 2))
    behaviour.imagine = lambda world, state: imagined
    expected = torch.tensor([[0.25, 1.5], [0.0, 0.0]])
    behaviour.value = lambda features: expected
    behaviour._value_loss = lambda features, returns: torch.zeros_like(returns)
    behaviour.descend = lambda loss, *names: loss.backward()
    behaviour.update(Corridor(), None, replayed(Corridor()))
    # of -mean(log pi * advantage) with advantages 0.75 and -0.5, at pi = 1/2
    assert logits.grad.tolist() == pytest.approx([-(0.75 * 0.5 + 0.5 * 0.5) / 2, (0.75 * 0.5 + 0.5 * 0.5) / 2])


def test_empowerment_is_what_the_successor_says_of_the_action_beyond_what_the_policy_did():
    class Telling(Corridor):
        @property
        def empowerment(self):
            return self

        def log_prob(self, features, next_features, action):
            moved = next_features.argmax(-1) - features.argmax(-1)
            return -0.1 * moved * (2 * action[..., 1] - 1)  # -0.1 wherever the action moved it

    world, behaviour = Telling(), behaviour_of(empowerment=1.0, empowerment_reward=0.5)
    nn.init.zeros_(behaviour.policy.net[-1].weight)
    with torch.no_grad():
        behaviour.policy.net[-1].bias.copy_(torch.tensor([0.0, math.log(3.0)]))
    chances = [(1 - UNIFORM_SHARE) * p + UNIFORM_SHARE / 2 for p in (0.25, 0.75)]
    _, action, reward, _ = behaviour.imagine(world, {"z": torch.eye(5)[[2, 2, 2, 2]]})
    for a, got in zip(action[0].argmax(-1).tolist(), reward[0].tolist()):
        assert got == pytest.approx(0.5 * (-0.1 - math.log(chances[a])))
    assert set(action[0].argmax(-1).tolist()) == {0, 1}


def test_replayed_returns_are_the_critics_value_where_the_successor_is_unknown():
    known = torch.tensor([True, True, False, True])[:, None]
    reward, value = column(1.0, 2.0, 4.0, 8.0), column(10.0, 20.0, 30.0, 40.0, 50.0)
    got = _replay_returns(reward, column(0.5, 0.5, 0.5, 0.5), value, known, 0.75)
    second = 2 + 0.5 * 30  # the critic's of the third step, whichever way it is asked
    assert got.flatten().tolist() == [1 + 0.5 * (0.25 * 20 + 0.75 * second), second, 30, 8 + 0.5 * 50]


def test_the_replayed_value_learns_from_what_happened_and_stops_where_the_successor_is_unknown():
    behaviour = behaviour_of()
    flats = behaviour._flats
    z = torch.eye(5)[[0, 1, 2, 3]][:, None]
    no = torch.zeros(4, 1, dtype=torch.bool)
    rewards = column(0.0, 0.0, 1.0, 0.0)
    ended = column(0.0, 0.0, 1.0, 0.0)
    first = no.clone()
    first[3] = True
    data = Replayed({"z": z}, z, torch.zeros(4, 1, 2), rewards, ended, first, ~no)
    for _ in range(150):
        loss = behaviour._replay_loss(data)
        flats["critic"].grad.zero_()
        loss.backward()
        flats["critic"].step(3e-3, 100)
        flats["slow"].value.lerp_(flats["critic"].value, 0.1)
    got = behaviour.value(z[:3, 0])
    torch.testing.assert_close(got, torch.tensor([0.81, 0.9, 1.0]), atol=0.12, rtol=0)
    cut = data._replace(terminated=torch.zeros(4, 1))  # the same, but time ran out: row 2 teaches nothing
    before = behaviour._replay_loss(cut)
    moved = cut._replace(reward=column(0.0, 0.0, 5.0, 0.0))
    assert torch.equal(before, behaviour._replay_loss(moved))
