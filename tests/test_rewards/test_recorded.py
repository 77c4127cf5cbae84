"""A recording rated by a mix: values by hand, and what is refused."""

import numpy as np
import pytest
from gymnasium import spaces

import rewards
from envs.transitions import Transitions
from rewards.adapters.recorded import rate
from rewards.base import Reward

CELLS = spaces.Discrete(4)


def recording(cells, reward, step, **fields):
    """One transition into each of these cells."""
    count = len(cells)
    none = np.zeros(count, bool)
    next_obs = np.array(cells)
    ended = np.append(np.diff(step) <= 0, True)
    fields = {"terminated": none, "truncated": ended} | fields
    return Transitions(
        obs=np.zeros(count, np.int64),
        action=np.zeros(count, np.int64),
        reward=np.array(reward, np.float32),
        next_obs=next_obs,
        valid=~none,
        step=np.array(step),
        **fields,
    )


def mix_of(**options):
    mix = rewards.make(options, CELLS, spaces.Discrete(2))
    return mix


class Highest(Reward):
    """The highest cell of the episode so far."""

    def initial_memory(self, n):
        return {"highest": np.zeros(n, np.float32)}

    def score(self, batch, memory=None):
        highest = np.maximum(batch.next_obs, memory["highest"]).astype(np.float32)
        return highest, {"highest": highest}


def test_a_count_learns_from_the_whole_recording_before_it_rates_it():
    """Cell 1 was entered four times, cell 2 once: 1 / sqrt(n + 1) at a weight of 2, beside the task."""
    data = recording([1, 1, 2, 1, 1], [0, 0, 3, 0, 0], [0, 1, 2, 0, 1])
    options = {"task": {}, "count": {"memory": "lifetime", "kind": "sqrt", "weight": 2.0, "scale": "none"}}
    rating, metrics = rate(mix_of(**options), data)
    np.testing.assert_allclose(rating, [2 / 5**0.5, 2 / 5**0.5, 3 + 2**0.5, 2 / 5**0.5, 2 / 5**0.5], rtol=1e-6)
    twice, _ = rate(mix_of(**options), data, passes=2)
    np.testing.assert_allclose(twice[:2], 2 / 9**0.5, rtol=1e-6)
    assert metrics["reward/task"] == pytest.approx(0.6)
    assert metrics["reward/count_corr"] == pytest.approx(1)


def test_a_memory_follows_each_recorded_episode_and_forgets_it():
    data = recording([1, 3, 2, 1, 2], [0] * 5, [0, 1, 2, 0, 1])
    mix = rewards.make([Highest], CELLS, spaces.Discrete(2))
    assert rate(mix, data)[0].tolist() == [1, 3, 3, 1, 2]


def test_what_a_reward_reads_and_the_recording_lacks_is_named_with_its_remedy():
    data = recording([1, 2], [0, 1], [0, 1])

    class Seeing(Highest):
        requires = frozenset({"next_obs", "text"})

    mix = rewards.make([Seeing], CELLS, spaces.Discrete(2))
    with pytest.raises(ValueError, match=r"seeing reads text, which the recording lacks; record it with text=true"):
        rate(mix, data)


def test_a_rating_that_tells_nothing_apart_is_refused_unless_ends_do():
    same = recording([1, 2], [1, 1], [0, 1])
    with pytest.raises(ValueError, match=r"task is 1 in each of the 2 recorded transitions"):
        rate(mix_of(task={}), same)
    ends = recording([1, 2], [1, 1], [0, 1], terminated=np.array([False, True]))
    assert rate(mix_of(task={}), ends)[0].tolist() == [1, 1]
    nothing = recording([1, 2], [0, 0], [0, 1], terminated=np.array([False, True]))
    with pytest.raises(ValueError, match=r"task is 0 in each"):
        rate(mix_of(task={}), nothing)
