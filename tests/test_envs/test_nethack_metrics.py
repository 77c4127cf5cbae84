import numpy as np

from envs.make import make
from envs.nethack.family import NETHACK_SIGNALS, Delving


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
        "deepest of all": 3.0,
    }


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
