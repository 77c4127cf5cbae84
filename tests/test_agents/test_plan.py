"""Plans on recordings by hand: ways that are joined, rewards on them, ends, and ways of one direction."""

import itertools

import numpy as np

from agents.offline.plan import DISCOUNT, Plan


def planned(episodes, rewards, terminated=()):
    """A plan for walks over places on a line, each the places in order; `rewards` are of the place that is reached."""
    rows = []
    last = []
    for walk in episodes:
        rows += itertools.pairwise(walk)
        last += [len(rows)] * (len(walk) - 1)
    before, after = np.array(rows, np.float32).T
    last = np.array(last) - 1
    worth = np.array([rewards.get(int(place), 0.0) for place in after])
    return Plan(before[:, None], after[:, None], worth, last, np.isin(after, terminated))


def aims(plan, *places):
    return plan.aim(np.float32(places)[:, None])[:, 0].tolist()


def test_a_way_of_two_episodes_is_joined_and_each_state_aims_four_steps_ahead():
    plan = planned([[0, 1, 2, 3, 4, 5], [5, 6, 7, 8, 9, 9, 9, 9, 9], [5, 4, 3, 2, 1, 0]], {9: 1.0})
    assert aims(plan, 0, 1, 5, 9) == [4, 5, 9, 9]
    # No segment crosses the end of an episode.
    assert aims(plan, 3, 4) == [5, 5]


def test_the_larger_reward_is_preferred_unless_it_is_too_far():
    near_and_far = [[5, 4, 4, 4, 4, 4, 4], [5, 6, 7, 8, 9, 9, 9, 9, 9, 9]]
    # 3 steps more on the way to 9, which are worth 1 - DISCOUNT**3 of all that stays.
    assert aims(planned(near_and_far, {4: 1.0, 9: 1.1}), 5) == [9]
    assert aims(planned(near_and_far, {4: 1.0, 9: (1 + DISCOUNT**-3) / 2 - 0.001}), 5) == [4]


def test_what_costs_on_the_way_is_avoided_and_an_end_is_worth_no_more_than_its_step():
    around = [[0, 1, 2, 3, 4, 5, 5, 5, 5], [0, 11, 12, 13, 14, 5, 5, 5, 5]]
    assert aims(planned(around, {1: -1.0, 5: 1.0}), 0) == [14]
    assert aims(planned(around, {11: -1.0, 5: 1.0}), 0) == [4]
    ends = [[0, 1], [0, 2, 2, 2, 2, 2]]
    assert aims(planned(ends, {1: 5.0, 2: 1.0}, terminated=[1]), 0) == [2]
    assert aims(planned(ends, {1: 5.0, 2: -1.0}, terminated=[1]), 0) == [1]


def test_nothing_goes_a_way_that_was_only_recorded_backwards():
    away = [3, 2, 1, 0, 0, 0, 0, 0]
    back = [0, 1, 2, 3, 3, 3, 3, 3]
    assert aims(planned([away], {3: 1.0}), 0) == [0]
    assert aims(planned([away, back], {3: 1.0}), 0) == [3]
