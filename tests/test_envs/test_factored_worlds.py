"""Mazes and buttons: moves by hand, and the best return as a search finds it."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from envs.exploration.factored import (
    DARK,
    MOVE_DOWN,
    MOVE_LEFT,
    MOVE_RIGHT,
    MOVE_UP,
    PRESS_BUTTON,
    ButtonGrid,
    ProcMaze,
    distances,
    edges,
    maze,
    next_cells,
)
from envs.exploration.family import AGENT, FLOOR_RGB, TREASURE, WALL_RGB
from envs.make import families, make, make_vec

MAZE, GRID = "lodestar/ProcMaze-v0", "lodestar/ButtonGrid-v0"


def opened(size: int, right: list[int], below: list[int]) -> np.ndarray:
    """Walls everywhere but to the right of some cells, and below some."""
    walls = np.ones((2, size * size), bool)
    walls[0, right] = walls[1, below] = False
    return walls


@pytest.mark.parametrize("env_id", [MAZE, GRID])
def test_gymnasium_accepts_both_and_seeds_repeat(env_id: str) -> None:
    check_env(gym.make(env_id).unwrapped, skip_render_check=True)
    first, second = (make(env_id, seed=3) for _ in range(2))
    for _ in range(3):
        assert np.array_equal(first.reset()[0], second.reset()[0])
    obs = [make(env_id, seed=seed).reset()[0] for seed in range(20)]
    assert len({o.tobytes() for o in obs}) == 20 and set(np.unique(obs)) == {0.0, 1.0}


def test_an_episode_ends_after_100_steps_by_truncation() -> None:
    for env_id in (MAZE, GRID):
        env = make(env_id, seed=0)
        env.reset()
        env.unwrapped.agent = 0
        answers = [env.step(MOVE_UP) for _ in range(100)]
        assert [a[1:4] for a in answers] == [(0.0, False, False)] * 99 + [(0.0, False, True)]
        assert answers[-1][-1]["is_success"] is False


# ProcMaze


def test_a_way_is_walked_and_walls_stop_on_all_sides() -> None:
    env: Any = ProcMaze(size=3)
    env.reset(seed=0)
    env.walls, env.agent, env.goal = opened(3, [3, 4], [0, 5]), 0, 8  # 0 down 3 right 4 right 5 down 8
    assert distances(next_cells(env.walls), [8])[0] == 4
    for action, cell in (
        (MOVE_UP, 0),
        (MOVE_LEFT, 0),
        (MOVE_RIGHT, 0),
        (MOVE_DOWN, 3),
        (MOVE_DOWN, 3),
        (MOVE_LEFT, 3),
        (MOVE_RIGHT, 4),
        (MOVE_UP, 4),
    ):
        assert env.step(action)[1:4] == (0.0, False, False) and env.agent == cell
    assert env.step(MOVE_LEFT)[0].reshape(4, 9)[2].tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0]
    env.step(MOVE_RIGHT), env.step(MOVE_RIGHT)
    obs, *rest = env.step(MOVE_DOWN)
    assert rest == [1.0, True, False, {}]
    walls_right, walls_below, agent, goal = obs.reshape(4, 9)
    assert np.flatnonzero(walls_right == 0).tolist() == [3, 4] and np.flatnonzero(walls_below == 0).tolist() == [0, 5]
    assert np.flatnonzero(agent).tolist() == np.flatnonzero(goal).tolist() == [8]


def test_steps_are_those_of_the_table_of_ways() -> None:
    env: Any = ProcMaze(size=4)
    env.reset(seed=1)
    ways = next_cells(env.walls)
    env.goal = -1
    for cell in range(16):
        for action in range(4):
            env.agent = cell
            env.step(action)
            assert env.agent == ways[cell, action]


@pytest.mark.parametrize("size", [2, 3, 6])
def test_a_maze_is_a_tree_through_all_cells(size: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(10):
        walls = maze(size, rng)
        assert (~walls).sum() == size * size - 1  # with as many openings, no cell apart means no loop
        assert (distances(next_cells(walls), [0]) >= 0).all() and (walls | ~edges(size)).all()


def test_every_maze_is_as_likely_as_every_other() -> None:
    rng = np.random.default_rng(0)
    drawn = [maze(2, rng).tobytes() for _ in range(2000)]  # four trees of four cells: each lacks one opening
    counts = np.unique(drawn, return_counts=True)[1]
    assert len(counts) == 4 and abs(counts / 2000 - 0.25).max() < 0.04


def test_the_best_return_of_a_maze_is_what_a_search_from_the_start_finds() -> None:
    env: Any = make(MAZE, seed=0)
    lengths = []
    for _ in range(30):
        env.reset()
        inner = env.unwrapped
        ways, far = next_cells(inner.walls), distances(next_cells(inner.walls), [inner.goal])
        lengths.append(int(far[inner.agent]))
        for _ in range(lengths[-1]):  # downhill
            answer = env.step(int(far[ways[inner.agent]].argmin()))
        assert answer[1:4] == (1.0, True, False) and answer[-1]["episode"]["l"] == lengths[-1]
        assert answer[-1]["is_success"] is True
    assert min(lengths) >= 1 and max(lengths) <= 24


# ButtonGrid


def test_buttons_toggle_and_the_last_light_pays() -> None:
    env: Any = ButtonGrid(size=3, buttons=2)
    env.reset(seed=0)
    env.agent, env.buttons = 0, np.array([1, 5])
    assert env.step(PRESS_BUTTON)[1:4] == (0.0, False, False) and not env.lit.any()  # no button here
    obs = [env.step(action)[0].reshape(3, 9) for action in (MOVE_RIGHT, PRESS_BUTTON)]
    assert np.flatnonzero(obs[0][2]).tolist() == [] and np.flatnonzero(obs[1][2]).tolist() == [1]
    assert np.flatnonzero(obs[1][1]).tolist() == [1, 5]
    env.step(PRESS_BUTTON)
    assert not env.lit.any()
    for action in (PRESS_BUTTON, MOVE_RIGHT, MOVE_RIGHT, MOVE_DOWN):  # the edge stops the second
        assert env.step(action)[1:4] == (0.0, False, False)
    assert env.agent == 5 and env.step(PRESS_BUTTON)[1:4] == (1.0, True, False)


def test_nothing_begins_on_a_button_or_lit() -> None:
    env: Any = ButtonGrid(size=2, buttons=3)
    for seed in range(20):
        obs = env.reset(seed=seed)[0].reshape(3, 4)
        assert obs[0].sum() == 1 and obs[1].sum() == 3 and not obs[2].any() and not (obs[0] * obs[1]).any()


def test_distances_are_minus_one_where_no_way_leads() -> None:
    assert distances(np.array([[1, 0], [2, 1], [2, 2], [0, 3]]), [2]).tolist() == [2, 1, 0, 3]
    assert distances(np.array([[0, 1], [1, 1], [0, 2]]), [2]).tolist() == [-1, -1, 0]


def test_captions_say_where_the_agent_is() -> None:
    env: Any = make(MAZE, seed=0)
    env.reset()
    env.unwrapped.agent, env.unwrapped.goal = 7, 24
    say = families()["factored"].caption
    assert say(env, {}) == "the agent is in row 2, column 3 of 5; the goal is in row 5, column 5"
    env = make(GRID, seed=0)
    env.reset()
    env.unwrapped.agent, env.unwrapped.lit = 0, np.array([True, False, True])
    assert say(env, {}) == "the agent is in row 1, column 1 of 5; 2 of 3 buttons are lit"


def test_pictures_show_walls_buttons_and_lights() -> None:
    env: Any = ProcMaze(size=3, render_mode="rgb_array")
    env.reset(seed=0)
    env.walls, env.agent, env.goal = opened(3, [3], [0]), 0, 8
    picture = env.render()[8::16, 8::16]
    assert picture.shape == (7, 7, 3)
    for place, colour in (
        ((1, 1), AGENT),
        ((5, 5), TREASURE),
        ((2, 1), FLOOR_RGB),
        ((3, 2), FLOOR_RGB),
        ((1, 2), WALL_RGB),
    ):
        assert tuple(picture[place]) == colour
    grid: Any = ButtonGrid(size=3, buttons=2, render_mode="rgb_array")
    grid.reset(seed=0)
    grid.agent, grid.buttons, grid.lit = 1, np.array([1, 5]), np.array([True, False])
    picture = grid.render()
    assert tuple(picture[8, 24]) == AGENT and tuple(picture[1, 17]) == TREASURE and tuple(picture[24, 40]) == DARK


def test_many_run_side_by_side_and_results_are_counted() -> None:
    envs = make_vec(MAZE, 4, seed=0)
    obs, _ = envs.reset(seed=0)
    assert obs.shape == (4, 100) and envs.single_action_space == gym.spaces.Discrete(4)
    assert make_vec(GRID, 2, seed=0).reset(seed=0)[0].shape == (2, 75)


@pytest.mark.parametrize(
    ("make_it", "sentence"),
    [
        (lambda: ProcMaze(size=1), r"size=1 is out of range; give at least 2"),
        (lambda: ButtonGrid(size=2, buttons=4), r"buttons=4 leave no cell to start from; give at most 3"),
        (lambda: ButtonGrid(render_mode="human"), r"render_mode='human' is unknown"),
    ],
)
def test_arguments_out_of_range_are_refused(make_it: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make_it()
