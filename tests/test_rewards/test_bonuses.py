"""What holds for every bonus of the table: the contract on each kind of space."""

import numpy as np
import pytest
from gymnasium import spaces
from sample import mostly_at_night
from scripted import demonstrations

import rewards
from rewards.check import check_reward, random_rollout
from rewards.exploration.learned import Learned
from rewards.exploration.memories import Episodic

BOX, GREY = spaces.Box(-1.0, 1.0, (4,), np.float32), spaces.Box(0, 255, (2, 36, 36), np.uint8)
MANY = spaces.Dict(pose=spaces.Box(-1, 1, (2,), np.float32), key=spaces.Discrete(3), bits=spaces.MultiBinary(2))
ACTIONS, PUSH = spaces.Discrete(3), spaces.Box(-2, 2, (3,), np.float32)
KINDS = [(BOX, ACTIONS), (spaces.Discrete(5), PUSH), (GREY, PUSH), (MANY, PUSH)]
BONUSES = [name for name, target in rewards.TABLE.items() if target.startswith("rewards.exploration.")]
SHORT = {"byol": {"sequence": 4}, "byol_hindsight": {"sequence": 4}}
VARIANTS = [
    *[("count", {"kind": kind, "memory": memory}) for kind in ("first", "sqrt") for memory in ("episode", "lifetime")],
    *[("rdd", {"target": "ensemble", "members": 3}), ("rdd", {"target": "coin_flip", "replay": 16})],
    *[("rdd", {"replay": 16}), ("hindsight", {"invariance": 0.0}), ("submodular", {"kind": "cover"})],
    *[("e3b", {"embedding": "random", "sqrt": True}), ("rnd", {"normalize_obs": "bounds"})],
]


def build(name, space, actions, options=None):
    cls = rewards.get(name)
    return cls(cls.Config(**SHORT.get(name, {}) | (options or {})), space, actions)


def draws(reward):
    """Whether it draws something when it is built; counts do not."""
    return not {"optimizer", "encoder", "waves"}.isdisjoint(vars(reward))


def reads_through_layers(name):
    """Whether observations come through what these bases share: it refuses those that are NaN."""
    return issubclass(rewards.get(name), Learned | Episodic)


# What spaces become is shared code: the kinds take turns along the table, and at night each bonus has numbers too.
TURNS = [(name, KINDS[place % len(KINDS)]) for place, name in enumerate(BONUSES)]
NUMBERS = [(name, KINDS[0]) for name, kind in TURNS if kind != KINDS[0]]


@pytest.mark.parametrize(("name", "kind"), mostly_at_night(TURNS + NUMBERS, *TURNS))
def test_every_bonus_keeps_the_contract(name, kind):
    reward = build(name, *kind)
    check_reward(reward, seeds_differ=draws(reward))


@pytest.mark.parametrize(
    ("name", "options"), VARIANTS, ids=[f"{n}-{'-'.join(map(str, o.values()))}" for n, o in VARIANTS]
)
def test_variants_keep_the_contract(name, options):
    reward = build(name, MANY, ACTIONS, options)
    check_reward(reward, seeds_differ=draws(reward))


@pytest.mark.parametrize("name", [*filter(reads_through_layers, BONUSES), "self_reference", "progress"])
def test_no_reward_learns_from_an_observation_that_is_nan(name):
    options = {"progress": {"demos": demonstrations(), "steps": 1, "of": "obs"}, "self_reference": {"threshold": -9.0}}
    reward = build(name, BOX, ACTIONS, options.get(name))
    batch, memory = random_rollout(BOX, ACTIONS), reward.initial_memory(4)
    batch.next_obs[2, 1, 3] = np.nan
    with pytest.raises(FloatingPointError, match=f"reward {name} was given an observation with nan at place 3"):
        if memory is not None:
            reward.scan(batch, memory)
        reward.update(batch)
