import numpy as np
import pytest

from envs.make import make
from envs.nethack.family import NETHACK_SIGNALS, Delving
from envs.nethack.progression import WON_AT_DEPTH, WON_AT_LEVEL, progression


def test_an_episode_counts_the_most_that_was_reached_and_all_episodes_their_mean():
    delving = Delving()
    for episode in ([[1, 0, 1, 0, 12], [3, 70, 2, 5, 4], [2, 50, 2, 0, 0]], [[1, 0, 1, 0, 15], [1, 10, 1, 9, 14]]):
        delving.begin(np.array(episode[0], np.float32))
        for row in episode[1:]:
            delving.step(np.array(row, np.float32))
    assert delving.summary() == {
        "depth": 2.0,
        "score": 40.0,
        "experience level": 1.5,
        "gold": 7.0,
        # Depth 3 and level 2 of the first, depth 1 and level 1 of the second: 1.848 % and 0.
        "BALROG progression, %": pytest.approx(0.924),
        "deepest of all": 3.0,
    }


def test_progression_is_the_better_of_depth_and_experience_and_ends_with_the_tables():
    depth = np.array([1, 5, 2, 50, 53, 0])
    level = np.array([1, 1, 10, 1, 30, 0])
    assert progression(depth, level).tolist() == [0, 0.02648, 0.1791, 0.8068, 0.8068, 0]
    assert (np.diff(WON_AT_DEPTH) > 0).all() and (np.diff(WON_AT_LEVEL) > 0).all()
    assert (len(WON_AT_DEPTH), len(WON_AT_LEVEL)) == (50, 30)


def test_nothing_is_counted_before_the_first_episode():
    assert Delving().summary() == {}


def test_a_game_begins_at_depth_one_with_its_hit_points():
    env = make("lodestar/NetHackScore-v0", signals=True)
    signals = env.reset(seed=3)[1]["signals"]
    named = dict(zip(NETHACK_SIGNALS, signals.tolist()))
    assert (named["depth"], named["score"], named["experience level"]) == (1, 0, 1)
    assert named["hit points"] > 5
    assert signals.dtype == np.float32
    env.close()
