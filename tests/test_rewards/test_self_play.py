"""Self-play: win rates by hand, circles that no order can hold, one sum however it is given."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from test_bradley_terry import BOX, PUSH, SMALL, Says, walk

from envs.transitions import Transitions
from rewards.check import check_reward
from rewards.preference.judges import make_segment_judge
from rewards.preference.segments import SUMMARY, LastEpisodes
from rewards.preference.self_play import SelfPlay, SelfPlayConfig, margins

ARMS = spaces.Discrete(3)
QUICK = {**SMALL, "epochs": 60, "queries": 60, "budget": 60, "seed_steps": 0, "held_out": 0.0, "queue": 9}


def made(spaces=(BOX, PUSH), seed=0, **changes):
    return SelfPlay(SelfPlayConfig(**{**SMALL, "queue": 20, **changes}), *spaces, seed=seed)


def in_episodes(batch, length=5):
    """The same transitions, in episodes of `length` steps."""
    step = batch.step % length
    return batch.replace(step=step, truncated=step == length - 1)


def pulls(arms):
    """A bandit's rollout (T, 1): every step is an episode."""
    arms = np.asarray(arms)[:, None]
    here, no = np.zeros((*arms.shape, 2), np.float32), np.zeros(arms.shape, bool)
    return Transitions(here, arms, np.zeros(arms.shape, np.float32), here, ~no, no, ~no, np.zeros(arms.shape, np.int64))


def test_it_keeps_the_contract():
    check_reward(SelfPlay)
    check_reward(made(spaces=(BOX, ARMS), judge="circle", rank=0, floor=0.5, members=2))


def test_margins_are_differences_of_u_and_turns_of_a_against_b():
    own, other = torch.tensor([[[1.0, 2, 3]]]), torch.tensor([[[0.5, -1, 4], [1, 2, 3]]])  # u, a, b; rank 1
    assert margins(own, other).tolist() == [[[0.5 + 2 * 4 - 3 * -1, 0.0]]]
    assert margins(other[:, :1], own).tolist() == [[[-(0.5 + 8 + 3)]]]


def test_an_episode_gets_its_share_of_wins_over_the_queue_at_its_last_step_and_half_against_itself():
    reward = made(queue=2, rank=1)
    reward.update(in_episodes(walk(steps=10, envs=2)))  # the first fit
    newest = [episode.extras[SUMMARY][0] for episode in [*reward.segments.pool][-2:]]
    batch = in_episodes(walk(steps=5, envs=1, seed=3))
    scores, memory = reward.scan(batch, reward.initial_memory(1))
    seen = torch.stack([reward.whiten(x[None]) for x in (reward.summarise(batch[:, 0]), *newest)])[:, 0]
    outputs = reward.ensemble(seen).detach()
    expected = torch.sigmoid(margins(outputs[:, :1], outputs[:, 1:])).mean()
    assert scores[:, 0].tolist() == pytest.approx([0, 0, 0, 0, float(expected)], abs=1e-6)
    assert not any(value.any() for value in memory.values())  # the next episode begins
    reward.segments.pool.extend([reward.segments.shorten_episode(batch[:, 0])] * 2)
    assert reward.scan(batch, reward.initial_memory(1))[0][-1, 0] == 0.5


def test_before_the_first_fit_every_episode_is_worth_a_half():
    scores, _ = made().scan(in_episodes(walk(steps=10, envs=2)), made().initial_memory(2))
    assert scores[[4, 9]].tolist() == [[0.5, 0.5]] * 2 and scores.sum() == 2


def test_spread_gives_the_same_sum_over_the_steps_that_the_rollout_holds():
    batch = in_episodes(walk(steps=10, envs=2))
    reward = made(spread=True)
    whole, _ = reward.scan(batch, reward.initial_memory(2))
    np.testing.assert_allclose(whole, 0.1)
    first, memory = reward.scan(batch[:3], reward.initial_memory(2))
    second, _ = reward.scan(batch[3:], memory)
    assert not first.any() and second[:2, 0].tolist() == pytest.approx([0.1, 0.4])  # three steps were scored before
    np.testing.assert_allclose(first.sum(axis=0) + second.sum(axis=0), 1, rtol=1e-6)


def test_a_circle_is_learned_where_bradley_terry_sees_an_order():
    rng = np.random.default_rng(0)
    rates = {}
    for rank in (2, 0):
        reward = made((BOX, ARMS), **{**QUICK, "length": 1}, judge="circle", rank=rank)
        found = reward.update(pulls(rng.permutation(np.arange(60) % 3)))
        reward.segments.pool.clear()
        reward.update(pulls([0, 0, 0]))
        rates[rank] = reward.win_rates(np.stack([reward.summarise(pulls([arm])[:, 0]) for arm in range(3)]))
        assert (found["circles"] > 0.1) == (rank > 0)
    assert rates[2][0] == 0.5 and rates[2][1] > 0.85 and rates[2][2] < 0.15
    assert max(abs(rates[0] - 0.5)) < 0.2  # the answers cancel


def test_whole_episodes_of_any_length_reach_the_judge_with_their_sums():
    lengths = []

    def longer(first, second):
        lengths.extend([*first.reward.sum(axis=0), *second.reward.sum(axis=0)])
        return (second.reward.sum(axis=0) > first.reward.sum(axis=0)).astype(np.float32)

    step = np.array([[0, 0], [1, 1], [2, 0], [0, 1], [1, 2]])
    ends = np.array([[0, 0], [0, 1], [1, 0], [0, 0], [0, 1]], bool)
    batch = walk(steps=5, envs=2, reward=lambda x, a: np.ones(x.shape[:2])).replace(step=step, truncated=ends)
    reward = made(length=4, queries=40, seed_steps=0)
    reward.judge = Says(longer)
    reward.update(batch[:2])
    reward.update(batch[2:])
    assert {*lengths} == {2.0, 3.0} and [len(each.step) for each in reward.segments.pool] == [4, 4, 4]
    shown = [each.obs[:, 0].tolist() for each in reward.segments.pool]
    assert shown[0] == batch.obs[[0, 0, 1, 1], 1, 0].tolist() and shown[1] == batch.obs[[0, 1, 2, 2], 0, 0].tolist()


def test_episodes_that_are_not_whole_are_no_episodes():
    found = LastEpisodes(2, 9, summarise=lambda episode: np.zeros(1))
    batch = in_episodes(walk(steps=12, envs=1))
    found.add(batch[2:8])  # begins within the first one
    assert len(found) == 0 and found.left.shape == (3, 1)
    found.add(batch[9:])  # a step is missing
    assert len(found) == 0
    found.load_state_dict(copy.deepcopy(found.state_dict()))
    found.add(batch)
    assert len(found) == 2


def test_it_continues_where_it_was_saved():
    one, two = made(judge_options={"mistakes": 0.4}), made(seed=5, judge_options={"mistakes": 0.4})
    batch = in_episodes(walk(steps=40))
    one.update(batch[:18])
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    scores = []
    for reward in (one, two):
        reward.update(batch[18:])
        scores.append(reward.scan(batch, reward.initial_memory(4))[0])
    assert np.array_equal(*scores) and len({*scores[0][scores[0] > 0]}) > 4


def test_a_judge_of_circles_and_queues_that_cannot_be():
    judge = make_segment_judge("circle", arms=4)
    first, second = pulls([0, 0, 0, 0]), pulls([0, 1, 2, 3])
    assert judge.compare(*(x.map(lambda a: a.swapaxes(0, 1)) for x in (first, second))).tolist() == [0.5, 1, 0.5, 0]
    assert "coin" in made(queue=1).notes()[-1] and made(queue=1).scan(walk(2), made().initial_memory(4))[0].shape == (
        2,
        4,
    )
    with pytest.raises(ValueError, match=r"reward\.self_play\.queue=30 exceeds pool=20; give at most that"):
        SelfPlayConfig(queue=30, pool=20)
    with pytest.raises(ValueError, match=r"goals=1 contrasts steps; an episode has one summary: give 0"):
        SelfPlayConfig(goals=1)
