"""The adviser of the study `adviser`: what it says, which advice it gives, what it learns, and what following earns."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.adviser import Advised, AdvisedConfig, Adviser, describe
from envs.make import make
from envs.transitions import Transitions
from rewards.language.teacher import OBJECT_DOOR, OBJECT_KEY, OPEN, TAKE, level_of

RED_DOOR = (OPEN, 3, 1, OBJECT_DOOR, 0, 2)
RED_KEY = (TAKE, 1, 1, OBJECT_KEY, 0, 0)
EASY = "open the closed red door, holding nothing, near"
HARD = "pick up the blue ball, holding nothing, far"


def test_advice_in_words():
    assert describe(RED_KEY, (1, 0), near=True) == "pick up the red key, holding nothing, near"
    holding = "open the locked red door, holding the red key, that colour, far"
    assert describe(RED_DOOR, (OBJECT_KEY, 0), near=False) == holding
    assert "holding the blue key, another colour" in describe(RED_DOOR, (OBJECT_KEY, 2), near=True)


@pytest.mark.parametrize("model, fits", [("adapted", 2), ("frozen", 1), ("shuffled", 2)])
def test_it_is_fitted_when_its_time_has_come(model, fits):
    adviser = Adviser(AdvisedConfig(model=model, every=100), seed=0)
    for _ in range(2):
        metrics = adviser.learn([(EASY, 1.0), (HARD, 0.0)] * 20, steps=100)
    assert adviser.fits == fits
    assert metrics["reached"] == 0.5
    sure_of_both = adviser.model.predict([EASY])[0] > 2 and adviser.model.predict([HARD])[0] < -2
    assert sure_of_both == (model != "shuffled")


def test_the_advice_that_the_model_is_least_sure_of_is_the_one_in_between():
    adviser = Adviser(AdvisedConfig(every=100), seed=0)
    middling = "pick up the green key, holding nothing, far"
    outcomes = [(EASY, 1.0), (HARD, 0.0), (middling, 1.0), (middling, 0.0)]
    adviser.learn(outcomes * 20, steps=100)
    doubts = adviser.doubt([EASY, middling, HARD], b"")
    assert int(np.argmin(doubts)) == 1


@pytest.fixture
def level():
    env = make("MiniGrid-KeyCorridorS3R1-v0", signals=True)
    obs, info = env.reset(seed=0)
    yield env, obs, np.asarray(info["signals"], np.float32)
    env.close()


def step_between(before, after, step):
    """A transition of one environment whose signals were `before` and are `after`."""
    no = np.zeros(1, bool)
    obs = np.zeros((1, 1), np.float32)
    reward = np.zeros(1, np.float32)
    batch = Transitions(obs, np.zeros(1, np.int64), reward, obs, no, no, ~no, np.array([step]))
    return replace(batch, obs_signals=before[None], signals=after[None])


def test_following_advice_earns_less_the_later_and_is_followed_by_other_advice(level):
    env, _, signals = level
    reward = Advised(AdvisedConfig(), env.observation_space, env.action_space)
    value, memory = reward.score(step_between(signals, signals, 0), reward.initial_memory(1))
    assert value.tolist() == [0]
    kind, x, y = memory["plan"][0, 0, :3].tolist()
    thing = level_of(signals).grid[y, x, 0]
    assert kind in (TAKE, OPEN) and thing > 1
    reached = signals.copy()
    reached[:2] = (x, y)
    value, memory = reward.score(step_between(signals, reached, 1), memory)
    # Reached in the second of sixty steps.
    assert value.tolist() == pytest.approx([1 - 0.9 * 2 / 60])
    assert memory["plan"][0, 0, 1:3].tolist() != [x, y]
    # Never again in this episode, a new one may ask for it.
    assert memory["reached"].sum() == 1
    _, memory = reward.score(step_between(signals, signals, 0), memory)
    assert memory["reached"].sum() == 0


def test_a_rollout_tells_what_became_of_advice(level):
    env, _, signals = level
    reward = Advised(AdvisedConfig(within=2), env.observation_space, env.action_space)
    steps = [step_between(signals, signals, number) for number in range(4)]
    metrics = reward.update(stack(steps))
    # Nobody moved: the advice of two steps each was not reached, twice.
    assert metrics["reached"] == 0
    assert [label for _, label in reward.adviser.outcomes] == [0, 0]


def stack(steps):
    """(T, 1) of T transitions (1,)."""
    names = (
        "obs",
        "action",
        "reward",
        "next_obs",
        "terminated",
        "truncated",
        "valid",
        "step",
        "signals",
        "obs_signals",
    )
    return Transitions(**{name: np.stack([getattr(step, name) for step in steps]) for name in names})
