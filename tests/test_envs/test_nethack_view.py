"""What an agent sees of NetHack: the parts of the vector, what would leak the task's counters, what games write."""

import numpy as np
import pytest

from envs.make import make
from envs.nethack.view import LEAKS, STAT_DEPTH, STAT_SCORE, STAT_TIME, View, cells_around


def place(number: int) -> int:
    """Where a number of the status line is in the observation."""
    return 1296 + number - (number > STAT_TIME)


def test_the_parts_of_a_view_make_it_up():
    view = View(crop=5)
    assert view.parts == {"cells": slice(0, 400), "status": slice(400, 426), "words": slice(426, 490)}
    assert view.length == 490 and View(5, message=False).length == 426


def test_the_square_around_a_corner_is_partly_off_the_map():
    cells, inside = cells_around(3)
    assert cells.shape == (21 * 79, 9)
    assert inside[0].tolist() == [0, 0, 0, 0, 1, 1, 0, 1, 1]
    assert cells[0][inside[0] == 1].tolist() == [0, 1, 79, 80]
    assert cells[80].tolist() == [0, 1, 2, 79, 80, 81, 158, 159, 160]


@pytest.mark.parametrize(
    ("env_id", "options", "leaks"),
    [
        ("NetHackScore-v0", {}, True),
        ("NetHackScore-v0", {"leak": False}, False),
        ("lodestar/NetHackScore-v0", {}, False),
        ("lodestar/NetHackScore-v0", {"leak": True}, True),
    ],
)
def test_the_counters_of_the_tasks_are_hidden_in_ours(env_id, options, leaks):
    env = make(env_id, **options)
    obs, _ = env.reset(seed=1)
    games = env.get_wrapper_attr("_games")
    assert games.blstats[0, STAT_DEPTH] == 1
    games.blstats[0, STAT_SCORE] = 100
    seen = env.get_wrapper_attr("observation")(None)
    assert seen[place(STAT_DEPTH)] == pytest.approx(np.log(2) / 10 * leaks)
    assert seen[place(STAT_SCORE)] == pytest.approx(np.log(101) / 10 * leaks)
    hidden = [place(number) for number in LEAKS]
    assert (seen[hidden] != 0).any() == leaks
    others = np.setdiff1d(np.arange(1296, 1322), hidden)
    np.testing.assert_array_equal(seen[others], obs[others])


def test_observations_stay_in_their_space_and_are_new_arrays():
    env = make("lodestar/NetHackScore-v0")
    first, _ = env.reset(seed=1)
    kept = first.copy()
    for action in (1, 2, 3, 4, 22):
        obs, *_ = env.step(action)
        assert env.observation_space.contains(obs)
    np.testing.assert_array_equal(first, kept)


def test_a_game_whose_screen_is_shown_writes_all_of_it():
    env = make("NetHackScore-v0", render_mode="ansi")
    env.reset(seed=1)
    assert "@" in env.render()
