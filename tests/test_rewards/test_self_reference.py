import copy

import numpy as np
import pytest
from gymnasium import spaces
from paths import LINE, PLANE, TWO, path

import rewards
from envs.transitions import concatenate, stack
from rewards.check import check_reward
from rewards.vision.self_reference import (
    STATES_PER_SUCCESS,
    RunningEpisodes,
    SelfReference,
    SelfReferenceConfig,
    even_states,
    k_means,
)


def made(space=LINE, **config):
    return SelfReference(SelfReferenceConfig(**config), space, TWO)


def won(batch, last=1.0):
    """The batch (T, 1) with this reward at the end of each episode."""
    reward = np.where(batch.terminated, last, 0).astype(np.float32)
    return batch.replace(reward=reward)


def at(*states):
    """A flat batch whose successors are these numbers."""
    return path([0, *states]).flatten()


WAY = np.linspace(0, 9, 10)  # 9 steps; its end is followed by the beginning of another episode
EPISODES = (WAY, [0, 0])


def test_the_reward_is_zero_before_the_first_success():
    reward = made()
    assert reward.update(won(path(*EPISODES), last=0)) == {"successes": 0, "success": 0}
    assert reward.score(at(1, 5, 9)).tolist() == [0, 0, 0]


def test_a_state_of_a_success_scores_its_place_on_the_way():
    reward = made(centres=1000)
    assert reward.update(won(path(*EPISODES))) == {"successes": 1, "success": 1}
    places = (WAY[1:] - 1) / 8  # states 1 to 9, the first at 0 and the last at 1
    # a state is repeated about 7 times
    np.testing.assert_allclose(reward.score(at(*WAY[1:])), places, atol=0.04)
    assert reward.score(at(9))[0] > 0.95


def test_progress_counts_less_the_farther_a_state_is_from_every_success():
    reward = made(centres=1000, width=0.5)
    reward.update(won(path(*EPISODES)))
    spread, top = reward.spread[0], reward.score(at(9))[0]
    assert spread == pytest.approx(even_states(WAY[1:, None].astype(np.float32)).std(), rel=1e-6)
    for far in (0.5, 1.0, 2.0):
        expected = top * np.exp(-(far**2) / (2 * 0.5**2))
        assert reward.score(at(9 + far * spread))[0] == pytest.approx(expected, rel=1e-4)


def test_distance_is_a_mean_over_the_numbers_of_a_state():
    one, two = made(centres=1000), made(PLANE, centres=1000)
    one.update(won(path(*EPISODES)))
    two.update(won(path(*(np.repeat(np.asarray(e, float)[:, None], 2, axis=1) for e in EPISODES))))
    both = path([[0, 0], [11, 11]]).flatten()
    assert two.score(both)[0] == pytest.approx(one.score(at(11))[0], rel=1e-5)


def test_what_never_differed_among_successes_is_far_as_soon_as_it_does():
    reward = made(PLANE, centres=1000)
    reward.update(won(path(*([[x, 3] for x in episode] for episode in EPISODES))))
    on, beside = reward.score(path([[0, 0], [9, 3], [9, 4]]).flatten())
    assert beside == pytest.approx(on * np.exp(-1 / (2 * 0.5**2)), rel=1e-5)  # one number varies, this one is 1 away


def test_an_episode_counts_its_return_and_states_across_batches():
    whole, pieces = made(threshold=-9.5, centres=1000), made(threshold=-9.5, centres=1000)
    batch = path(*EPISODES)
    batch = batch.replace(reward=np.full(batch.shape, -1, np.float32), terminated=np.zeros(batch.shape, bool),
                          truncated=batch.terminated)  # fmt: skip
    assert whole.update(batch)["successes"] == 1  # -9 is above -9.5
    for rows in (slice(0, 4), slice(4, 5), slice(5, None)):
        pieces.update(batch[rows])
    np.testing.assert_array_equal(pieces.ways, whole.ways)
    assert made(threshold=-9.0).update(batch) == {"successes": 0, "success": 0}
    flat = made(threshold=-9.5)
    for t in range(len(batch.step)):
        flat.update(batch[t])  # a flat batch is one step of all environments
    np.testing.assert_array_equal(flat.ways, whole.ways)


def test_what_lies_beyond_the_longest_memory_is_left_out():
    reward = made(threshold=-100.0, longest=3)
    batch = path(*EPISODES)
    for t in range(len(batch.step)):
        reward.update(batch[t])
    assert np.unique(reward.ways[0]).tolist() == [6, 7, 8, 9]


def test_episodes_of_one_environment_do_not_count_for_another():
    left, right = path([0, 1, 2], [5, 6]), path([3, 4, 7, 8])
    both = stack([concatenate([left[t], right[t]]) for t in range(3)])
    both = both.replace(reward=np.array([[0, 5], [1, 5], [0, 5]], np.float32))
    reward = made(centres=1000)
    assert reward.update(both)["successes"] == 1
    assert np.unique(reward.ways[0]).tolist() == [1, 2]
    assert reward.running.returns.tolist() == [0, 15]


def test_the_return_of_an_episode_counts_its_own_steps_and_no_lost_episode():
    batch = path([0, 1, 2], [3, 4, 5], [6, 7], [8, 9])
    pays, valid = np.array([1, 2, 4, 8, 16, 32])[:, None], np.ones((6, 1), bool)
    valid[3] = False  # the second episode was lost on the way
    batch = batch.replace(reward=pays.astype(np.float32), valid=valid, truncated=~valid)
    for cuts in ([], [1], [3, 5]):
        running = RunningEpisodes(10, 1)
        found = [
            one
            for part in np.split(np.arange(6), cuts)
            for one in running.take_finished_episodes(batch[part], batch.next_obs[part])
        ]
        assert [(way.ravel().tolist(), *rest) for way, *rest in found] == [([1, 2], 3, 2, True), ([7], 16, 16, True)]
        assert running.returns.tolist() == [32]  # of the last episode, which has not ended


def test_only_the_latest_successes_are_kept():
    reward = made(successes=2, centres=1000)
    reward.update(won(path([0, 1], [10, 11], [20, 21], [0, 0])))
    assert sorted(np.unique(reward.ways).tolist()) == [11, 21]
    assert reward.found == 3


def test_a_way_is_resampled_from_its_first_state_to_its_last():
    way = even_states(np.arange(1000, dtype=np.float32)[:, None])
    assert way.shape == (STATES_PER_SUCCESS, 1) and way[0] == 0 and way[-1] == 999
    assert even_states(np.ones((1, 3), np.float32)).shape == (STATES_PER_SUCCESS, 3)


def test_k_means_finds_groups_and_their_mean_progress():
    states = np.array([[0.0], [0.2], [5.0], [5.2], [9.9], [10.1]], np.float32)
    progress = np.array([0, 0.1, 0.4, 0.5, 0.8, 1.0], np.float32)
    centres, shares = k_means(states, progress, 3)
    np.testing.assert_allclose(centres[:, 0], [0.1, 5.1, 10.0], atol=1e-6)
    np.testing.assert_allclose(shares, [0.05, 0.45, 0.9], atol=1e-6)


def test_k_means_drops_centres_that_gather_nothing():
    centres, shares = k_means(np.ones((8, 2), np.float32), np.linspace(0, 1, 8).astype(np.float32), 4)
    assert centres.tolist() == [[1, 1]] and shares.tolist() == [0.5]


def test_state_survives_in_the_middle_of_an_episode():
    batch = won(path(*EPISODES))
    one = made()
    one.update(batch[:5])
    other = made()
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    one.update(batch[5:])
    other.update(batch[5:])
    np.testing.assert_array_equal(one.score(at(*WAY)), other.score(at(*WAY)))
    assert one.score(at(9))[0] > 0.9


def test_it_keeps_the_contract():
    check_reward(SelfReference)
    check_reward(SelfReference(SelfReferenceConfig(threshold=-1e9), spaces.Box(-1, 1, (4,), np.float32), TWO))


def test_it_keeps_the_contract_on_frames():
    check_reward(SelfReference(SelfReferenceConfig(of="frame", threshold=-1e9), LINE, TWO))


def test_it_is_added_to_the_task_as_a_potential():
    mix = rewards.make(["task", "self_reference"], LINE, TWO, gamma=0.5)
    batch = won(path(*EPISODES))
    embedded = mix.embed(batch)
    mix.update(embedded, mix.score(embedded)[0])
    raw, _ = mix.score(batch)
    reward = mix.streams["self_reference"].reward
    phi = reward.score(batch.flatten())
    before = np.append(reward.score(at(0)), phi[:-1])
    expected = 0.5 * np.where(batch.terminated[:, 0], 0, phi) - before
    np.testing.assert_allclose(raw["self_reference"][:9, 0], expected[:9], atol=1e-6)
    assert mix.relabelable and mix.streams["self_reference"].shape == "potential"
