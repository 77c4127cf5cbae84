"""Futures from one place: those of an array program and of a snapshot are the futures the environment itself has."""

import numpy as np
import pytest
from originals import load

from envs.clones import Clones
from envs.make import make


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MiniGrid-DoorKey-5x5-v0", "MiniGrid-LavaGapS5-v0", "Hopper-v5"])
def test_a_future_is_what_the_environment_does(env_id):
    clones = Clones(env_id)
    space = clones.action_space
    space.seed(3)
    place = clones.start(seed=5)
    actions = np.array([[space.sample() for _ in range(6)] for _ in range(40)])
    for action in actions[:3, 0]:
        place, one = clones.step_from(place, action)
        assert one.shape == (1, 1)
    batch = clones.play(place, actions)
    assert batch.step[0, 0] == 3 and batch.valid[0].all()
    row = 4
    if not clones.side_by_side:  # the same start: the array program draws its own
        env = make(env_id)
        env.reset(seed=5)
        for action in actions[:3, 0]:
            env.step(action)
        for t in range(len(batch.reward)):
            obs, reward, terminated, truncated, _ = env.step(actions[t, row])
            assert np.array_equal(batch.next_obs[t, row], obs)
            assert batch.reward[t, row] == pytest.approx(reward)
            assert batch.terminated[t, row] == terminated
            if terminated or truncated:
                break
    same = clones.play(place, actions[:, [row, row]])
    height = len(same.reward)
    assert np.array_equal(same.next_obs[:, 0], same.next_obs[:, 1])
    assert np.array_equal(same.next_obs[:, 0], batch.next_obs[:height, row])
    assert np.array_equal(same.valid[:, 0], batch.valid[:height, row])


def test_both_ways_agree_on_a_world_that_has_both():
    together = Clones("CartPole-v1")
    alone = Clones("CartPole-v1")
    alone.side_by_side = False
    place = alone.start(seed=0)
    program = together._program(1)
    load(program, [alone.env])
    ours = together.start(seed=0)
    ours.state = {**ours.state, "state": {k: v.copy() for k, v in program.snapshot()["state"].items()}}
    ours.obs = place.obs
    actions = np.random.default_rng(0).integers(2, size=(30, 5))
    one, other = alone.play(place, actions), together.play(ours, actions)
    assert one.shape == other.shape
    assert np.array_equal(one.valid, other.valid)
    assert np.array_equal(one.terminated, other.terminated)
    np.testing.assert_allclose(one.next_obs[one.valid], other.next_obs[one.valid], atol=1e-5)


def test_rows_after_an_end_are_not_valid_and_nothing_follows_it():
    clones = Clones("CartPole-v1")
    place = clones.start(seed=0)
    batch = clones.play(place, np.zeros((60, 3), int))
    assert len(batch.reward) < 60 and batch.terminated[-1].all()
    assert batch.terminated.sum() == 3
    for _ in range(len(batch.reward)):
        place, _ = clones.step_from(place, 0)
    assert place.ended
    with pytest.raises(ValueError, match=r"the episode is over here"):
        clones.play(place, np.zeros((1, 1), int))


def test_success_is_told_at_the_end():
    clones = Clones("MiniGrid-Empty-5x5-v0")
    place = clones.start(seed=0)
    for action in (2, 2, 1, 2, 2):
        assert place.success is None
        place, one = clones.step_from(place, action)
    assert place.ended and place.success and one.reward[0, 0] > 0.9


def test_captions_travel_with_the_futures():
    clones = Clones("MiniGrid-DoorKey-5x5-v0", text=True)
    batch = clones.play(clones.start(seed=0), np.zeros((2, 3), int))
    assert batch.text.shape == batch.obs_text.shape == (2, 3)
    assert all(isinstance(word, str) for word in batch.text.ravel())
    place, one = clones.step_from(clones.start(seed=0), 2)
    assert place.modalities["text"].tolist() == one.text[0].tolist()
    assert set(clones.play(place, np.zeros((1, 3), int)).obs_text[0]) == set(one.text[0])


def test_worlds_that_cannot_be_copied_are_refused():
    with pytest.raises(ValueError, match=r"no state that can be taken and given back"):
        Clones("highway-fast-v0", frame_size=64, signals=True, text=True)


def test_what_fits_into_memory_is_a_power_of_two():
    clones = Clones("MiniGrid-Empty-5x5-v0")
    assert clones.rows(100) == 256  # of 984 numbers each
    assert Clones("CartPole-v1").rows(100) == 4096
