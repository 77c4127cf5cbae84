"""The levels that array programs generate: solvable, and as often here and there as MiniGrid's own."""

import numpy as np
import pytest
from originals import codes_of

from envs.batched import PROGRAMS, minigrid
from envs.make import make, make_vec

EMPTY, WALL, DOOR, KEY, BALL, BOX, GOAL = 1, 2, 4, 5, 6, 7, 8  # MiniGrid's objects
SPAN = minigrid.N_COLOURS * minigrid.N_STATES
SOLVABLE = [
    name for name in PROGRAMS if any(word in name for word in ("DoorKey", "KeyCorr", "MultiRoom", "Four", "Locked"))
]


def draw(env_id, count, seed=0, **options):
    return minigrid.generate(make(env_id, **options).unwrapped, np.random.default_rng(seed), count)


def reach(start, passable):
    """Bool (P, H, W): the cells that one gets to from those of `start` through those that are `passable`."""
    while True:
        wider = start.copy()
        for axis in (1, 2):
            for by in (-1, 1):
                wider |= np.roll(start, by, axis)  # the border is wall, so nothing comes round
        wider &= passable | start
        if np.array_equal(wider, start):
            return start
        start = wider


@pytest.mark.parametrize("env_id", SOLVABLE)
def test_every_level_can_be_solved(env_id):
    level = draw(env_id, 50)
    grid, rows = level["grid"], np.arange(50)
    kind, colour, state = grid // SPAN, grid // minigrid.N_STATES % minigrid.N_COLOURS, grid % minigrid.N_STATES
    agent = np.zeros(grid.shape, bool)
    agent[rows, level["y"], level["x"]] = True
    assert (kind[agent] == EMPTY).all()
    locked = (kind == DOOR) & (state == minigrid.DOOR_LOCKED)
    before = reach(agent, (kind != WALL) & ~locked)
    prize = (kind == GOAL) | (kind == BALL)
    assert (prize.sum((1, 2)) == 1).all()
    if locked.any():
        assert (locked.sum((1, 2)) == 1).all()
        assert not (before & prize).any()  # the door is needed
        key = kind == KEY
        assert (key.sum((1, 2)) == 1).all()
        assert (before & key).sum() == 50  # and its key can be had
        assert np.array_equal(colour[key], colour[locked])
    assert (reach(before, kind != WALL) & prize).sum() == 50


def features(grid, x, y, direction):
    """How often each object stands in each cell, the agent where and facing where, and how many doors there are."""
    kind = minigrid.KIND_OF_CODE[grid]
    where = {thing: (kind == thing).mean(0) for thing in (EMPTY, WALL, DOOR, KEY, BALL, BOX, GOAL)}
    agent = np.zeros((4, *grid.shape[1:]))
    np.add.at(agent, (direction, y, x), 1 / len(grid))
    doors = np.bincount((kind == DOOR).sum((1, 2)), minlength=12) / len(grid)
    codes = np.bincount(grid.ravel(), minlength=minigrid.N_CODES) / len(grid)
    door_colours = codes[DOOR * SPAN : (DOOR + 1) * SPAN] / 4
    return {**where, "agent": agent, "doors": doors, "door colours": door_colours, "boxes": codes[-6:] / 4}


@pytest.mark.parametrize(
    "env_id",
    [
        "MiniGrid-Empty-Random-5x5-v0",
        "MiniGrid-DoorKey-6x6-v0",
        "MiniGrid-KeyCorridorS3R3-v0",
        "MiniGrid-KeyCorridorS4R3-v0",
        "MiniGrid-MultiRoom-N4-S5-v1",
        "MiniGrid-FourRooms-v0",
        "MiniGrid-LockedRoom-v0",
        "MiniGrid-ObstructedMaze-1Dl-v0",
        "MiniGrid-ObstructedMaze-2Dlhb-v0",
        "MiniGrid-ObstructedMaze-Full-v1",
    ],
)
def test_things_stand_where_minigrid_puts_them_as_often(env_id):
    count, inner, grids, places = 500, make(env_id).unwrapped, [], []
    inner.reset(seed=0)
    for _ in range(count):
        inner._gen_grid(inner.width, inner.height)
        grids.append(codes_of(inner.grid))
        places.append((*inner.agent_pos, inner.agent_dir))
    theirs = features(np.array(grids), *np.array(places).T)
    level = draw(env_id, 4000)
    ours = features(level["grid"], level["x"], level["y"], level["direction"])
    for name in theirs:
        # 500 draws: the standard deviation of a frequency is at most 0.025, four of them where hundreds are compared
        scale = np.sqrt(np.maximum(ours[name] * (1 - ours[name]), 0.002) / count)
        assert (abs(theirs[name] - ours[name]) / scale).max() < 4.5, name


def test_keycorridor_tells_the_colour_of_its_ball():
    level = draw("MiniGrid-KeyCorridorS3R2-v0", 300)
    kind = level["grid"] // SPAN
    assert np.array_equal((level["grid"] // minigrid.N_STATES % minigrid.N_COLOURS)[kind == BALL], level["mission"])
    assert set(level["mission"]) == set(range(6))


def test_each_locked_door_of_a_maze_has_a_key_in_a_box_or_under_a_ball():
    colours = {}
    for version in ("v0", "v1"):
        grid = draw(f"MiniGrid-ObstructedMaze-2Dlhb-{version}", 300)["grid"].reshape(300, -1)
        locked = np.isin(grid, minigrid.code(DOOR, np.arange(6), minigrid.DOOR_LOCKED))
        doors = [set(row[mask] // minigrid.N_STATES % 6) for row, mask in zip(grid, locked)]
        keys = [set(row[row >= minigrid.N_LOOKS] - minigrid.N_LOOKS) for row in grid]
        assert all(key <= door and len(door) == 2 for key, door in zip(keys, doors))
        colours[version] = [len(key) for key in keys]
    # One of the sixteen cells of a room is before the second door; then the first key is lost, as MiniGrid has it.
    assert set(colours["v1"]) == {2}
    assert 5 < colours["v0"].count(1) < 40


def test_six_rooms_have_five_doors_of_more_than_one_colour():
    level = draw("MiniGrid-MultiRoom-N6-v0", 100)
    doors = [row[(row // SPAN) == DOOR] for row in level["grid"]]
    assert {len(row) for row in doors} == {5}
    assert all(len(set(row)) > 1 for row in doors)


def test_multiroom_has_as_many_rooms_as_one_asks_for():
    options = {"minNumRooms": 7, "maxNumRooms": 7, "maxRoomSize": 8}
    env = make_vec("MiniGrid-MultiRoom-N6-v0", 4, backend="auto", **options)
    assert isinstance(env, minigrid.BatchedMiniGrid)
    assert env.max_steps == 140
    env.reset()
    assert (minigrid.KIND_OF_CODE[env.state["grid"]] == DOOR).sum(1).tolist() == [6] * 4
    # Two, three or four rooms, each number as often, in any order.
    grid = draw("MiniGrid-MultiRoom-N6-v0", 900, minNumRooms=2, maxNumRooms=4, maxRoomSize=8)["grid"]
    doors = (minigrid.KIND_OF_CODE[grid] == DOOR).sum((1, 2))
    assert all(abs((doors == number).sum() - 300) < 60 for number in (1, 2, 3))
    assert 0.3 < (doors[1:] == doors[:-1]).mean() < 0.37


def test_a_level_is_drawn_from_the_seed_alone():
    for env_id in ("MiniGrid-KeyCorridorS3R3-v0", "MiniGrid-MultiRoom-N6-v0"):
        one, same, other = draw(env_id, 20), draw(env_id, 20), draw(env_id, 20, seed=1)
        assert all(np.array_equal(one[key], same[key]) for key in one)
        assert not np.array_equal(one["grid"], other["grid"])
