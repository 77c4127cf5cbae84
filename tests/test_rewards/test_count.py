"""Count bonus: values one can count on one's fingers, the hash, the two memories."""

import numpy as np
import pytest
from gymnasium import spaces

from envs.transitions import Transitions
from rewards.exploration.count import Count, CountConfig, Hash

CELLS, ACTIONS = spaces.Discrete(10), spaces.Discrete(2)
IMAGE = spaces.Box(0, 255, (3, 8, 8), np.uint8)
MANY = spaces.Dict(
    {
        "image": IMAGE,
        "pose": spaces.Box(-np.inf, np.inf, (2,), np.float32),
        "key": spaces.Discrete(3),
        "b": spaces.MultiBinary(5),
    }
)


def visits(next_obs, valid=None):
    """Transitions that end in `next_obs`, (N, ...)."""
    next_obs = np.asarray(next_obs)
    shape = (len(next_obs),)
    no = np.zeros(shape, bool)
    return Transitions(
        obs=next_obs,
        action=np.zeros(shape, np.int64),
        reward=np.zeros(shape, np.float32),
        next_obs=next_obs,
        terminated=no,
        truncated=no,
        valid=~no if valid is None else np.array(valid),
        step=np.zeros(shape, np.int64),
    )


def make(space=CELLS, **options):
    return Count(CountConfig(**options), space, ACTIONS)


def walk(count, *steps):
    """Bonuses of the steps of one episode; each step is the cell that every environment enters."""
    memory = count.initial_memory(len(steps[0]))
    given = []
    for cells in steps:
        bonus, memory = count.score(visits(cells), memory)
        given.append(bonus.tolist())
    return given


def test_the_key_of_a_cell_is_that_of_the_checkpoints_written_so_far():
    box, grey = spaces.Box(-1, 1, (2,), np.float32), spaces.Box(0, 255, (3, 3), np.uint8)
    pose = np.float32([[0.31, -0.52], [0, 0]])
    assert Hash(box, [], 0.1)(pose).tolist() == [1897395071811289409, 1]
    assert Hash(grey, [], 0.1)(np.arange(18).reshape(2, 3, 3)).tolist() == [10454969264582038734, 17600544659481082946]
    both = {"a": np.array([3, 0]), "b": pose}
    assert Hash(spaces.Dict(a=spaces.Discrete(5), b=box), [], 0.1)(both).tolist() == [10035103500902373714, 1]


def test_a_first_visit_gives_one_and_a_return_gives_no_reward():
    assert walk(make(), [3, 3], [4, 3], [3, 4], [5, 5]) == [[1, 1], [1, 0], [0, 1], [1, 1]]


def test_the_nth_visit_of_an_episode_gives_one_over_the_square_root_of_n():
    given = walk(make(kind="sqrt"), [3], [3], [4], [3], [3])
    np.testing.assert_allclose(np.ravel(given), [1, 1 / np.sqrt(2), 1, 1 / np.sqrt(3), 0.5], rtol=1e-6)


def test_an_episode_forgets_its_oldest_cell_when_it_is_full():
    assert np.ravel(walk(make(capacity=2), [1], [2], [3], [2], [1])).tolist() == [1, 1, 1, 0, 1]
    # 1 takes 2's place with a count of its own
    given = walk(make(capacity=1, kind="sqrt"), [2], [2], [1], [1])
    np.testing.assert_allclose(np.ravel(given), [1, 2**-0.5, 1, 2**-0.5], rtol=1e-6)


def test_a_lifetime_counts_each_visit_once_and_only_in_update():
    count = make(memory="lifetime", kind="sqrt")
    assert count.score(visits([3, 3, 4])).tolist() == [1, 1, 1]
    assert count.update(visits([3, 3, 4])) == {"cells": 2.0}
    np.testing.assert_allclose(count.score(visits([3, 4, 5])), [3**-0.5, 2**-0.5, 1], rtol=1e-6)
    count.update(visits([3, 5, 5], valid=[True, True, False]))
    np.testing.assert_allclose(count.score(visits([3, 4, 5])), [0.5, 2**-0.5, 2**-0.5], rtol=1e-6)
    assert make(memory="lifetime").score(visits([3])).tolist() == [1]


def test_a_full_lifetime_table_keeps_the_most_visited():
    count = make(memory="lifetime", capacity=2)
    count.update(visits([1, 2, 2, 3, 3]))
    assert count.score(visits([1, 2, 3])).tolist() == [1, 0, 0]


def test_only_a_lifetime_may_be_asked_about_old_transitions():
    assert make(memory="lifetime").relabelable
    assert not make(memory="episode").relabelable


def test_a_long_random_walk_agrees_with_a_dictionary():
    rng = np.random.default_rng(0)
    path = rng.integers(0, 10, (200, 3))
    given = walk(make(kind="sqrt"), *path)
    seen = [{}, {}, {}]
    for cells, bonus in zip(path, given):
        for n, cell in enumerate(cells):
            seen[n][cell] = seen[n].get(cell, 0) + 1
            assert bonus[n] == pytest.approx(seen[n][cell] ** -0.5)


def test_cells_are_centred_on_multiples_of_bin_and_each_dimension_may_have_its_own():
    box = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    hashed = make(box, bin=[0.5, 0.01]).hash(np.float32([[0.2, 0.0], [-0.2, 0.004], [0.3, 0.0], [0.2, 0.006]]))
    assert hashed[0] == hashed[1]
    assert len(set(hashed.tolist())) == 3
    multiples = np.float32([[0.3, 0.7], [0.1 + 0.2, 1.4 / 2]])  # floor() would tell these apart
    assert len(set(make(box, bin=0.1).hash(multiples).tolist())) == 1


def test_infinite_observations_have_a_cell():
    box = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    assert len(set(make(box).hash(np.float32([[np.inf], [-np.inf], [0]])).tolist())) == 3


@pytest.mark.parametrize("memory", ["episode", "lifetime"])
def test_an_observation_with_nan_is_no_cell_and_is_refused(memory):
    box = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    count = make(box, memory=memory)
    for case in (count.score, count.update) if memory == "lifetime" else (count.score,):
        given = (visits(np.float32([[0, 0], [1, np.nan]])),)
        given += (count.initial_memory(2),) if case == count.score else ()
        with pytest.raises(
            FloatingPointError, match=r"reward count was given an observation with nan at place 1 \(row 1"
        ):
            case(*given)
    assert len(count.table.keys) == 0


def test_images_that_differ_in_any_two_bytes_have_different_keys():
    x = np.zeros((256 * 256, 3, 8, 8), np.uint8)
    x[:, 0, 0, 7], x[:, 2, 7, 7] = np.divmod(np.arange(256 * 256), 256)  # the last bytes of two 64-bit words
    assert len(np.unique(make(IMAGE).hash(x))) == 256 * 256


def test_entries_of_a_dict_do_not_stand_in_for_each_other():
    space = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Discrete(3)})
    obs = {"a": np.array([1, 2]), "b": np.array([2, 1])}
    one, other = make(space).hash(obs)
    assert one != other
    one, other = make(space, keys=["a"]).hash({"a": np.array([1, 1]), "b": np.array([2, 1])})
    assert one == other


def test_keys_depend_on_neither_the_drivers_dtype_nor_a_trailing_axis_nor_the_run():
    count = make()
    expected = count.hash(np.array([4, 7], np.int64))
    assert np.array_equal(count.hash(np.array([[4], [7]], np.int32)), expected)
    assert np.array_equal(Count(CountConfig(), CELLS, ACTIONS, seed=9).hash(np.array([4, 7])), expected)
    # a key that changed would make saved tables meaningless
    assert expected.tolist() == [1694545994901786092, 2965455483151951941]


@pytest.mark.parametrize(
    ("options", "space", "sentence"),
    [
        ({"bin": [1, 2, 3]}, spaces.Box(0, 1, (2,)), "has 3 numbers, the observation has 2; give one, or 2"),
        ({"bin": "wide"}, spaces.Box(0, 1, (2,)), "bin='wide' is neither a number nor a list of numbers"),
        (
            {"keys": ["x"]},
            MANY,
            "names 'x', which the observation does not have; choose among ['b', 'image', 'key', 'pose']",
        ),
        ({"keys": ["x"]}, CELLS, "keys=['x'] needs a Dict observation, not Discrete(10); leave keys empty"),
        ({}, spaces.Text(5), "cannot read the observation space Text"),
    ],
)
def test_bad_settings_are_refused_when_it_is_built(options, space, sentence):
    with pytest.raises(ValueError, match=r"reward[. ]count") as error:
        make(space, **options)
    assert sentence in str(error.value)
