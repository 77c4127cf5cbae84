"""Debate: who shows what by hand, a judgement found again from few numbers, and what it refuses."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from test_bradley_terry import BOX, PUSH, SMALL

import rewards
from envs.transitions import Transitions
from rewards.check import check_reward
from rewards.preference.debate import Debate, DebateConfig

FOUR, TWO = spaces.Box(-9.0, 9.0, (4,), np.float32), spaces.Discrete(2)
CONTRIBUTIONS = (3.0, -2.0, 1.0, -1.5)  # of each number to J(action 1) - J(action 0)


def made(seed=0, spaces=(BOX, PUSH), **changes):
    return Debate(DebateConfig(**{**SMALL, "length": 1, **changes}), *spaces, seed=seed)


def by_hand(**changes):
    """J(e, 1) = the sum of what is shown times CONTRIBUTIONS, J(e, 0) = 0."""
    reward = made(spaces=(FOUR, TWO), normalize_obs="none", **changes)
    first, last = reward.ensemble.weights
    with torch.no_grad():
        for parameter in reward.ensemble.parameters():
            parameter.zero_()
        first[0, :4, 0] = torch.tensor(CONTRIBUTIONS)
        first[0, 4:6, 0] = torch.tensor([-50.0, 50.0])  # a unit for action 1 alone
        first[0, 4:6, 1] = torch.tensor([0.0, 50.0])
        last[0, :2, 0] = torch.tensor([1.0, -1.0])
    reward.labelled.fits = 1
    return reward


def choices(actions, state=1.0):
    n = len(actions)
    obs, no = np.full((n, 4), state, np.float32), np.zeros(n, bool)
    return Transitions(obs, np.array(actions), np.zeros(n, np.float32), obs, no, no, ~no, np.arange(n))


@pytest.mark.parametrize(
    ("changes", "gaps", "orders"),
    [
        ({"shown": 1}, [3, 2], [[0], [1]]),
        ({"shown": 2}, [1, -1], [[0, 1], [1, 0]]),
        ({"shown": 3}, [2, 0.5], [[0, 1, 2], [1, 0, 3]]),
        ({"shown": 9}, [0.5, -0.5], [[0, 1, 2, 3], [1, 0, 3, 2]]),
        ({"shown": 2, "evidence": "isolated"}, [4, 3.5], [[0, 2], [1, 3]]),
        ({"shown": 0}, [0, 0], [[], []]),
    ],
    ids=str,
)
def test_each_side_shows_what_moves_the_judge_most_its_way(changes, gaps, orders):
    reward, batch = by_hand(**changes), choices([1, 0])
    ours = reward.actions(batch.action)
    assert reward.rival(torch.ones(2, 4), ours).tolist() == ours.flip(0).tolist()
    found, order = reward.debate(torch.ones(2, 4), ours, ours.flip(0))
    assert found.tolist() == pytest.approx(gaps, abs=1e-4) and order.tolist() == orders
    assert reward.score(batch).tolist() == [float(gap > 0) for gap in gaps]  # equal is 0


def test_random_evidence_depends_on_the_state_alone():
    reward = by_hand(evidence="random", shown=2)
    states = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    ours = reward.actions(np.ones(200, int))
    order = reward.debate(states, ours, 1 - ours)[1]
    assert torch.equal(reward.debate(states[7:9], 1 - ours[:2], ours[:2])[1], order[7:9])
    assert np.bincount(order.ravel()).min() > 70  # of 100
    assert (order[:, 0] != order[:, 1]).all()


def test_the_rival_is_the_best_other_action():
    reward = made(spaces=(FOUR, spaces.Discrete(3)), normalize_obs="none")
    with torch.no_grad():
        for parameter in reward.ensemble.parameters():
            parameter.zero_()
        reward.ensemble.weights[0][0, 4:7, 0] = torch.tensor([1.0, 3.0, 2.0])
        reward.ensemble.weights[1][0, 0, 0] = 1.0
    ours = reward.actions(np.arange(3))
    assert reward.rival(torch.zeros(3, 4), ours).argmax(dim=1).tolist() == [1, 2, 1]


def test_the_reasons_name_what_each_side_showed():
    said = by_hand(shown=3).reasons(choices([1, 0], 1.0), ["a", "b", "c", "d"])
    assert said == ["won; for: a 1, c 1; against: b 1", "won; for: b 1, d 1; against: a 1"]
    assert by_hand(shown=2).reasons(choices([0]), [])[0] == "lost; for: entry 1 1; against: entry 0 1"


def test_the_number_that_matters_is_shown_in_a_debate_and_not_by_chance_or_by_one_side():
    rng = np.random.default_rng(0)
    batch = choices(rng.integers(2, size=1600))
    batch = batch.replace(obs=rng.uniform(-1, 1, (1600, 4)).astype(np.float32))
    batch = batch.replace(reward=batch.obs[:, 2] * (2 * batch.action - 1))
    settings = {"queries": 300, "budget": 300, "epochs": 40, "hidden": 16, "held_out": 0.0, "learning_rate": 1e-2}
    reward = made(spaces=(FOUR, TWO), shown=2, **settings)
    reward.update(batch)
    right = {}
    for reward.config.evidence in ("debate", "isolated", "random"):
        right[reward.config.evidence] = float((reward.score(batch) == (batch.reward > 0)).mean())
    assert right["debate"] > 0.9 and right["isolated"] < 0.8 and right["random"] < 0.8


def test_it_keeps_the_contract_before_and_after_it_has_learnt():
    check_reward(Debate)
    check_reward(made(spaces=(BOX, spaces.Discrete(3)), shown=1, members=2))
    check_reward(made(evidence="random", relabel=False))


@pytest.mark.parametrize(
    ("spaces", "options", "why"),
    [
        (
            (spaces.Box(-1, 1, (65,)), PUSH),
            {},
            "reads at most 64 numbers, not 65; name some: reward.debate.keys",
        ),
        ((BOX, PUSH), {"goals": 0.1, "length": 2}, "reward.debate.goals=0.1 is out of range"),
        ((BOX, PUSH), {"evidence": "full"}, "evidence='full' is unknown; give one of debate, isolated, random"),
    ],
    ids=["wide", "goals", "evidence"],
)
def test_debates_that_cannot_be_held_are_refused(spaces, options, why):
    with pytest.raises(ValueError, match=why):
        rewards.make({"debate": options}, *spaces)
