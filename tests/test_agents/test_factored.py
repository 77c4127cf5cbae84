"""Bits and dice whose rules and probabilities are known."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from agents.dynamics.ensemble import EnsembleConfig
from agents.dynamics.factored import Entries, Factored
from agents.networks.actor_critic import SpaceEncoding

BITS = SpaceEncoding(spaces.MultiBinary(6), spaces.Discrete(3))
MIXED = SpaceEncoding(
    spaces.Dict({"dice": spaces.MultiDiscrete([3, 3]), "key": spaces.MultiBinary(2), "room": spaces.Discrete(4)}),
    spaces.Discrete(2),
)


def factored_config(**settings):
    return EnsembleConfig(**{"members": 1, "hidden": [64, 64], "terminations": True, **settings})


SMALL = factored_config(first_steps=600, batch_size=128)


def recorded(obs: Tensor, action: Tensor, next_obs: Tensor, reward: Tensor, terminated: Tensor) -> Any:
    rows = (obs, action, next_obs, reward, terminated, torch.zeros(len(obs)))
    return SimpleNamespace(arrays=lambda: rows, added=len(obs))


def switches(obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Action 0 turns bit 0, action 1 copies bit 1 to bit 2, action 2 nothing; bit 5 becomes bit 3 and bit 4.

    Pays bits 2 and 5 of the outcome, ends when bits 0 and 2 are 1.
    """
    next_obs = obs.clone()
    next_obs[:, 0] = torch.where(action[:, 0] > 0, 1 - obs[:, 0], obs[:, 0])
    next_obs[:, 2] = torch.where(action[:, 1] > 0, obs[:, 1], obs[:, 2])
    next_obs[:, 5] = obs[:, 3] * obs[:, 4]
    return next_obs, 3 * next_obs[:, 2] - next_obs[:, 5], next_obs[:, 0] * next_obs[:, 2]


def everything() -> tuple[Tensor, Tensor]:
    """All 64 observations with all 3 actions."""
    numbers = torch.arange(64 * 3)
    return (numbers[:, None] // 3 >> torch.arange(6) & 1).float(), torch.eye(3)[numbers % 3]


PAIR = SpaceEncoding(
    spaces.Dict({"bit": spaces.MultiBinary(1), "die": spaces.Discrete(3)}), spaces.Discrete(2)
)  # columns: the bit, then the die


def constant(stays: list[float], rewards: list[float], ends: list[float]) -> Factored:
    """A bit and a die of three sides: each member's logit that an entry stays, its reward, and its chance of an end."""
    model = Factored(PAIR, factored_config(members=len(stays), hidden=[4]), seed=0)
    model._flat.value.zero_()
    with torch.no_grad():
        model.net.stays.copy_(torch.tensor(stays)[:, None, None].expand_as(model.net.stays))
        model.net.reward.weights()[-1][:, 0, 0] = torch.tensor(rewards)
        model.net.reward.weights()[-1][:, 0, 1] = torch.logit(torch.tensor(ends))
    model.net.unit.fill_(10.0)  # the largest reward seen
    return model


def test_what_is_predicted_of_a_bit_and_a_die_is_the_hand_computed_one() -> None:
    model = constant([np.log(3), -np.log(9)], [0.5, 0.1], [0.8, 0.4])
    obs, action = torch.tensor([[1.0, 0, 1, 0]]), torch.tensor([[1.0, 0]])
    predicted = model.step(obs, action, sample=False, member_predictions=True)
    # with p = 3 and 1/9 a bit stays with p / (1 + p); a side of the die weighs p where it lies, and 1 / p elsewhere
    bits, stay, other = [3 / 4, 1 / 10], [9 / 11, 1 / 163], [1 / 11, 81 / 163]
    means = torch.tensor([[b, o, s, o] for b, s, o in zip(bits, stay, other)])
    assert predicted.means is not None and predicted.stds is not None and predicted.terminated is not None
    torch.testing.assert_close(predicted.means[:, 0], means)
    torch.testing.assert_close(predicted.stds[:, 0], (means * (1 - means)).sqrt())
    # mean chances: the bit 0.425; the die 0.294, 0.413, 0.294
    assert predicted.next_obs.tolist() == [[0, 0, 1, 0]]
    torch.testing.assert_close(predicted.reward, torch.tensor([3.0]))  # the mean of 5 and 1
    torch.testing.assert_close(predicted.terminated, torch.tensor([0.6]))


def test_the_loss_of_a_transition_is_its_surprise_and_the_errors_of_reward_and_end() -> None:
    model = constant([np.log(3)], [0.5], [0.8])
    flips, ends = torch.tensor([[1.0, 0, 1, 0, 1, 0, 0, 0, 0, 1, 7.0, 0.0]]), 1.0  # obs, action, next_obs, reward, end
    stays = torch.tensor([[1.0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 5.0, ends]])
    surprise = -np.log(1 / 4) - np.log(1 / 11)
    expected = [surprise + 0.2**2 - np.log(0.2), -np.log(3 / 4) - np.log(9 / 11) + 0 - np.log(0.8)]
    for row, loss in zip((flips, stays), expected):
        assert model.net.losses(row[None]).tolist() == pytest.approx([loss])
    assert model.net.losses(torch.stack([flips, stays], 1)).tolist() == pytest.approx([np.mean(expected)])


def test_six_bits_are_learned_exactly_also_for_unseen_combinations() -> None:
    obs, action = everything()
    seen = torch.randperm(192, generator=torch.Generator().manual_seed(0))
    rows = seen[:150].repeat(10)  # 42 combinations are never seen
    model = Factored(BITS, SMALL, seed=0)
    metrics = model.fit(recorded(obs[rows], action[rows], *switches(obs[rows], action[rows])))
    assert metrics["model_error"] == 0.0 and metrics["model_steps"] == 600
    next_obs, reward, terminated = switches(obs, action)
    predicted = model.step(obs, action, sample=False)
    unseen = seen[150:]
    assert torch.equal(predicted.next_obs[unseen], next_obs[unseen])
    assert predicted.terminated is not None
    assert torch.equal(predicted.terminated[unseen] > 0.5, terminated[unseen] > 0.5)
    torch.testing.assert_close(predicted.reward, reward, rtol=0, atol=0.25)


@pytest.mark.nightly
def test_chances_are_learned_and_drawn_as_they_are() -> None:
    generator = torch.Generator().manual_seed(1)
    obs = torch.randint(2, (4000, 6), generator=generator).float()
    action = torch.eye(3)[torch.randint(3, (4000,), generator=generator)]
    next_obs = obs.clone()
    chance = torch.where(obs[:, 1] > 0, 0.2, 0.7)
    next_obs[:, 0] = (torch.rand(4000, generator=generator) < chance).float()
    model = Factored(BITS, SMALL, seed=0)
    model.fit(recorded(obs, action, next_obs, next_obs[:, 0], torch.zeros(4000)))
    for bit, expected in ((1.0, 0.2), (0.0, 0.7)):
        here = obs[obs[:, 1] == bit]
        means = model.step(here, action[: len(here)], member_predictions=True).means
        assert means is not None and float(means[0, :, 0].mean()) == pytest.approx(expected, abs=0.03)
        drawn = [model.step(here, action[: len(here)]) for _ in range(5)]
        share = torch.stack([p.next_obs[:, 0] for p in drawn]).mean()
        assert float(share) == pytest.approx(expected, abs=0.03)
        for p in drawn:  # the reward depends on what was drawn, not on its probability
            torch.testing.assert_close(p.reward, p.next_obs[:, 0], rtol=0, atol=0.2)


def test_entries_are_found_by_the_space() -> None:
    entries = Entries(MIXED)  # columns: dice 0..5, key 6..7, room 8..11
    assert entries.bits.tolist() == [6, 7]
    assert [columns.tolist() for columns in entries.hots] == [[[0, 1, 2], [3, 4, 5]], [[8, 9, 10, 11]]]


def test_samples_are_observations_and_as_frequent_as_they_should() -> None:
    entries, generator = Entries(MIXED), torch.Generator().manual_seed(0)
    logits = torch.randn(12, generator=generator)
    drawn = entries.sample(logits.expand(20000, 12), generator)
    space: Any = MIXED.observation_space
    for row in MIXED.obs(drawn[:50].numpy())["dice"]:
        assert space["dice"].contains(row)
    assert np.array_equal(MIXED.vector(MIXED.obs(drawn.numpy())), drawn)
    expected = torch.cat([logits[:3].softmax(0), logits[3:6].softmax(0), logits[6:8].sigmoid(), logits[8:].softmax(0)])
    torch.testing.assert_close(entries.probabilities(logits), expected)
    torch.testing.assert_close(drawn.mean(0), expected, rtol=0, atol=0.015)
    likeliest = entries.mode(expected)
    assert [int(likeliest[a:b].argmax()) for a, b in ((0, 3), (3, 6), (8, 12))] == [
        int(expected[a:b].argmax()) for a, b in ((0, 3), (3, 6), (8, 12))
    ]
    assert torch.equal(likeliest[6:8], (expected[6:8] > 0.5).float()) and likeliest.sum() == 3 + likeliest[6:8].sum()


def test_the_surprise_is_the_sum_over_entries() -> None:
    entries = Entries(MIXED)
    logits = torch.randn(2, 3, 12, generator=torch.Generator().manual_seed(0))
    obs = entries.sample(logits[0], torch.Generator().manual_seed(1))
    p = entries.probabilities(logits)
    by_hand = torch.zeros(2, 3)
    for row in range(3):
        for column in range(12):
            if column in (6, 7):
                chance = p[:, row, column] if obs[row, column] else 1 - p[:, row, column]
                by_hand[:, row] -= chance.log()
            elif obs[row, column]:
                by_hand[:, row] -= p[:, row, column].log()
    torch.testing.assert_close(entries.loss(logits, obs), by_hand)


@pytest.mark.nightly
def test_dice_that_are_thrown_stay_dice() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = Entries(MIXED).sample(torch.zeros(500, 12), generator)
    action = torch.eye(2)[torch.randint(2, (500,), generator=generator)]
    next_obs = drawn.clone()
    next_obs[:, :3] = drawn[:, 3:6]  # the first die shows what the second did
    model = Factored(MIXED, SMALL, seed=0)
    assert model.fit(recorded(drawn, action, next_obs, drawn[:, 0], drawn[:, 6]))["model_error"] == 0.0
    sampled = model.step(drawn, action).next_obs
    assert np.array_equal(MIXED.vector(MIXED.obs(sampled.numpy())), sampled)
    assert float((sampled != next_obs).any(-1).float().mean()) < 0.02


def test_members_see_other_rows_and_share_the_sampling() -> None:
    obs, action = everything()
    config = factored_config(hidden=[32], members=3, elites=2, first_steps=100)
    model = Factored(BITS, config, seed=0)
    model.fit(recorded(obs, action, *switches(obs, action)))
    predicted = model.step(obs, action, member_predictions=True)
    assert predicted.means is not None and predicted.stds is not None and predicted.means.shape == (3, 192, 6)
    assert not torch.equal(predicted.means[0], predicted.means[1])
    p = predicted.means
    torch.testing.assert_close(predicted.stds, (p - p.square()).sqrt())
    assert len(model.elites) == 2 and not predicted.next_obs.requires_grad


def test_another_fit_leaves_nothing_worse_and_continues() -> None:
    obs, action = everything()
    rows = recorded(*(x.repeat(3, 1) if x.ndim == 2 else x.repeat(3) for x in (obs, action, *switches(obs, action))))
    model = Factored(BITS, factored_config(hidden=[32], first_steps=100, min_steps=50, max_steps=50), seed=0)
    judged = Factored(BITS, SMALL)._table(rows.arrays(), rescale=True)
    model.net.unit.fill_(3.0)  # the largest reward, so that losses compare
    before = float(model._held_loss(judged[100:120]))
    first = model.fit(rows)
    after = float(model._held_loss(judged[100:120]))
    second = model.fit(rows)
    assert (first["model_steps"], second["model_steps"]) == (100, 50) and after < before
    assert float(model._held_loss(judged[100:120])) <= after
    assert model.fit(rows, steps=7)["model_steps"] == 7


def test_nan_leaves_the_last_fit() -> None:
    obs, action = everything()
    model = Factored(BITS, factored_config(hidden=[8], first_steps=20), seed=0)
    good = switches(obs, action)
    model.fit(recorded(obs, action, *good))
    before = model._flat.value.clone()
    bad = good[1].clone()
    bad[3] = torch.nan
    assert model.fit(recorded(obs, action, good[0], bad, good[2])) == {"model_steps": 0.0, "model_failures": 1.0}
    assert torch.equal(model._flat.value, before)


def test_a_model_continues_exactly_where_it_was_saved() -> None:
    obs, action = everything()
    rows, config = (
        recorded(obs, action, *switches(obs, action)),
        factored_config(hidden=[16], members=2, first_steps=60),
    )
    one, other = Factored(BITS, config, seed=0), Factored(BITS, config, seed=1)
    one.fit(rows)
    other.load_state_dict(one.state_dict())
    for model in (one, other):
        model.fit(rows, steps=20)
    first, second = (model.step(obs, action) for model in (one, other))
    assert torch.equal(first.next_obs, second.next_obs) and torch.equal(first.reward, second.reward)


@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        (spaces.Box(-1, 1, (4,)), r"model=factored predicts 0 and 1, and Box.* holds others; use model=ens"),
        (spaces.Box(0, 255, (3, 8, 8), np.uint8), r"model=factored cannot predict images"),
    ],
)
def test_observations_of_other_numbers_are_refused(space: spaces.Space, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Factored(SpaceEncoding(space, spaces.Discrete(2)), SMALL)


def test_a_box_of_fractions_is_refused_when_it_is_seen() -> None:
    model = Factored(SpaceEncoding(spaces.Box(0, 1, (2,)), spaces.Discrete(2)), SMALL)
    obs = torch.tensor([[0.0, 1.0], [1.0, 0.25], [1.0, 1.0]])
    with pytest.raises(ValueError, match=r"entry 1 of an observation is 0\.25, and model=factored predicts 0 and 1"):
        model.fit(recorded(obs, torch.eye(2)[[0, 1, 0]], obs, torch.zeros(3), torch.zeros(3)))
