"""MiniGrid in numbers: names that fit the grid, values that agree with the simulator, the same on every way."""

import gymnasium as gym
import numpy as np
import pytest

from envs.make import make, make_vec, spec_of
from envs.minigrid.family import HEAD, MINIGRID_FAMILY

TOGGLE = 5  # its actions


def named(env):
    """The signals of an environment, by name."""
    return dict(zip(MINIGRID_FAMILY.signals(env.spec), MINIGRID_FAMILY.sense(env).tolist()))


@pytest.mark.parametrize(
    ("env_id", "width", "height"),
    [
        ("MiniGrid-DoorKey-5x5-v0", 5, 5),
        ("MiniGrid-KeyCorridorS3R1-v0", 7, 3),
        ("MiniGrid-MultiRoom-N2-S4-v0", 25, 25),
        ("BabyAI-GoToObj-v0", 8, 8),
    ],
)
def test_the_names_are_as_many_as_the_grid_of_an_id_has_numbers(env_id, width, height):
    names = MINIGRID_FAMILY.signals(spec_of(env_id))
    assert names[:7] == HEAD
    assert names[7:10] == ("cell_0_0_object", "cell_0_0_colour", "cell_0_0_state")
    assert names[10] == "cell_1_0_object"  # row by row
    assert len(names) == len(set(names)) == 7 + 3 * width * height
    env = make(env_id, signals=True, seed=0)
    assert env.reset()[1]["signals"].shape == (len(names),)
    assert named(env)["grid_width"] == width
    env.close()


def test_a_larger_world_of_the_same_id_has_more_of_them():
    env = make("MiniGrid-Empty-8x8-v0", size=6, signals=True)
    assert env.reset(seed=0)[1]["signals"].shape == (7 + 3 * 36,)
    assert len(MINIGRID_FAMILY.signals(spec_of("MiniGrid-Empty-8x8-v0"))) == 7 + 3 * 64
    env.close()


@pytest.mark.parametrize("env_id", ["MiniGrid-KeyCorridorS3R2-v0", "MiniGrid-MultiRoom-N4-S5-v0"])
def test_the_cells_are_minigrids_own_encoding(env_id):
    env = make(env_id, signals=True)
    _, info = env.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(40):
        grid = env.unwrapped.grid
        cells = info["signals"][7:].reshape(grid.height, grid.width, 3)
        np.testing.assert_array_equal(cells.swapaxes(0, 1), grid.encode())  # theirs is (width, height, 3)
        assert info["signals"].dtype == np.float32
        assert info["signals"][:3].tolist() == [*env.unwrapped.agent_pos, env.unwrapped.agent_dir]
        _, _, terminated, truncated, info = env.step(int(rng.integers(7)))
        assert not (terminated or truncated)
    env.close()


def test_what_is_carried_and_what_a_door_does_is_in_them():
    env = make("MiniGrid-DoorKey-5x5-v0", signals=True)
    env.reset(seed=0)
    world = env.unwrapped
    assert named(env)["carried_object"] == 1 and named(env)["carried_colour"] == 0
    assert named(env)["max_steps"] == world.max_steps == 250
    key = next(i for i, thing in enumerate(world.grid.grid) if thing is not None and thing.type == "key")
    door = next(i for i, thing in enumerate(world.grid.grid) if thing is not None and thing.type == "door")
    (kx, ky), (dx, dy) = (key % 5, key // 5), (door % 5, door // 5)
    assert named(env)[f"cell_{kx}_{ky}_object"] == 5 and named(env)[f"cell_{dx}_{dy}_state"] == 2
    world.carrying, world.grid.grid[key] = world.grid.grid[key], None
    assert named(env)["carried_object"] == 5 and named(env)["carried_colour"] == 4  # a yellow key
    assert named(env)[f"cell_{kx}_{ky}_object"] == 1
    world.agent_pos, world.agent_dir = (dx - 1, dy), 0
    env.step(TOGGLE)
    assert named(env)[f"cell_{dx}_{dy}_state"] == 0
    env.close()


def test_a_vector_shows_them_also_of_an_ended_episode():
    envs = make_vec("MiniGrid-DoorKey-5x5-v0", 2, seed=0, backend="auto", signals=True, max_episode_steps=3)
    _, infos = envs.reset(seed=5)
    first = infos["signals"].copy()
    for _ in range(3):
        _, _, _, truncated, infos = envs.step(np.array([0, 1]))  # turn on the spot, three times
    assert truncated.all()
    last = infos["final_info"]["signals"]
    assert (last[:, 2] == (first[:, 2] + [-3, 3]) % 4).all()
    np.testing.assert_array_equal(np.delete(last, 2, axis=1), np.delete(first, 2, axis=1))
    assert (infos["signals"] != last).any(axis=1).all()  # another level begins
    envs.close()


def test_a_copy_made_from_the_spec_has_the_same_numbers():
    env = make("MiniGrid-DoorKey-6x6-v0", signals=True)
    copy = gym.make(env.spec)
    np.testing.assert_array_equal(env.reset(seed=4)[1]["signals"], copy.reset(seed=4)[1]["signals"])
    env.close(), copy.close()
