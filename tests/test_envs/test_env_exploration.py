"""Rooms, noise and dives whose values one can compute by hand; the sparse classic tasks."""

import inspect
import math

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from envs.batched import PROGRAMS
from envs.classic.family import pose
from envs.exploration.family import AGENT, FLOOR_RGB, LEVELS, PERIOD, PIXELS, TREASURE, DeepSea, NoisyRooms, corridor
from envs.make import families, make, make_vec
from envs.vector.in_process import InProcess

ROOMS, SEA = "lodestar/NoisyRooms-v0", "lodestar/DeepSea-v0"
STAY, LEFT, RIGHT, UP, DOWN = range(5)


def walk(env: gym.Env, actions: list[int]) -> tuple:
    """The last step's answer."""
    for action in actions:
        answer = env.step(action)
    return answer


# NoisyRooms


def test_eight_rooms_have_207_cells_and_a_cell_names_its_room() -> None:
    env = make(ROOMS).unwrapped
    assert isinstance(env, NoisyRooms) and env.n_cells == 8 * 25 + 7 == 207
    assert env.observation_space == gym.spaces.Box(0.0, 1.0, (215,), np.float32)
    assert [env.room_of(cell) for cell in (0, 24, 25, 26, 181, 182, 206)] == [0, 0, 0, 1, 6, 7, 7]
    assert env.room_of(np.array([12, 38])).tolist() == [0, 1]


def test_walls_stop_and_doors_lead_on() -> None:
    leads = corridor(2)  # cells 0..24, the door 25, cells 26..50
    assert leads.shape == (51, 5)
    assert leads[0].tolist() == [0, 0, 1, 0, 5]  # the top left corner
    assert leads[12].tolist() == [12, 11, 13, 7, 17]
    assert leads[14].tolist() == [14, 13, 25, 9, 19]  # before the door
    assert leads[25].tolist() == [25, 14, 36, 25, 25]
    assert leads[36].tolist() == [36, 25, 37, 31, 41]
    assert leads[9].tolist() == [9, 8, 9, 4, 14]  # a wall, not a door
    assert leads[40].tolist() == [40, 39, 40, 35, 45]  # the last room has no door to the right
    there, back = leads[:, [RIGHT, DOWN]], leads[:, [LEFT, UP]]
    for way in range(2):
        moved = np.flatnonzero(there[:, way] != np.arange(51))
        assert (back[there[moved, way], way] == moved).all()


def test_forty_steps_to_the_right_reach_the_last_room_and_that_is_success() -> None:
    env = make(ROOMS, seed=0)
    obs, info = env.reset()
    assert info["cell"] == 12 and np.flatnonzero(obs).tolist() == [12] and env.unwrapped.n_cells == 207
    obs, reward, terminated, truncated, info = walk(env, [RIGHT] * 39)
    assert info == {"cell": 181} and families()["exploration"].caption(env, {}) == (
        "the agent is in the door between rooms 7 and 8"
    )
    obs, reward, terminated, truncated, info = env.step(RIGHT)
    assert (info["cell"], np.flatnonzero(obs).tolist(), reward) == (192, [192], 0.0)
    assert families()["exploration"].caption(env, {}) == "the agent is in room 8 of 8"
    *_, terminated, truncated, info = walk(env, [LEFT] * 160)
    assert (terminated, truncated, info["cell"]) == (False, True, 10)
    assert info["is_success"] is True and info["episode"]["r"] == 0.0 and info["episode"]["l"] == 200
    env.reset()
    assert walk(env, [RIGHT] * 39 + [STAY] * 161)[-1]["is_success"] is False


def watch(env: gym.Env, steps: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random play within one episode: noise (steps + 1, bits) with that of the reset, actions (steps,)."""
    actions = np.random.default_rng(seed).integers(5, size=steps)
    bits = env.unwrapped.bits
    seen = [env.reset()[0][-bits:]]
    seen += [env.step(action)[0][-bits:] for action in actions]
    return np.stack(seen), actions


def test_noise_that_is_off_is_zero() -> None:
    assert not watch(make(ROOMS, seed=0), 200)[0].any()


def test_a_brownian_number_walks_by_a_seventh_and_turns_at_the_ends() -> None:
    seen, _ = watch(make(ROOMS, noise="brownian", bits=100, seed=0), 199)
    levels = np.round(seen * LEVELS)
    assert np.array_equal(seen, levels / np.float32(7)) and set(np.unique(levels)) == set(range(8))
    assert (abs(np.diff(levels, axis=0)) == 1).all()
    assert (levels[1:][levels[:-1] == 0] == 1).all() and (levels[1:][levels[:-1] == 7] == 6).all()
    inside = (levels[:-1] > 0) & (levels[:-1] < 7)
    assert np.diff(levels, axis=0)[inside].mean() == pytest.approx(0.0, abs=0.03)
    # In the long run, and from the start, the ends are half as frequent: variance 17/196.
    assert seen.mean() == pytest.approx(0.5, abs=0.03) and seen.var() == pytest.approx(17 / 196, abs=0.01)


def test_a_brownian_start_is_already_what_the_walk_is_in_the_long_run() -> None:
    env = make(ROOMS, noise="brownian", bits=20000, seed=0)
    count = np.bincount(np.round(env.reset()[0][-20000:] * LEVELS).astype(int), minlength=8) / 20000
    np.testing.assert_allclose(count, [1 / 14, *[1 / 7] * 6, 1 / 14], atol=0.01)


def test_a_pixel_becomes_a_fresh_bit_in_a_quarter_of_the_steps() -> None:
    seen, _ = watch(make(ROOMS, noise="pixels", bits=100, seed=0), 199)
    assert set(np.unique(seen)) == {0.0, 1.0} and seen.mean() == pytest.approx(0.5, abs=0.03)
    changed = seen[1:] != seen[:-1]  # half of the fresh bits are the old ones
    assert changed.mean() == pytest.approx(0.125, abs=0.01)
    assert changed[seen[:-1] == 0].mean() == pytest.approx(changed[seen[:-1] == 1].mean(), abs=0.02)


def test_noise_on_demand_comes_when_the_agent_stays_and_goes_when_it_moves() -> None:
    seen, actions = watch(make(ROOMS, noise="on_demand", bits=500, seed=0), 199)
    assert not seen[0].any() and not seen[1:][actions != STAY].any()
    fresh = seen[1:][actions == STAY]
    assert set(np.unique(fresh)) == {0.0, 1.0} and fresh.size > 15000
    assert fresh.mean() == pytest.approx(0.5, abs=0.02)
    assert (fresh[1:] != fresh[:-1]).mean() == pytest.approx(0.5, abs=0.02)  # nothing stays from time to time


@pytest.mark.parametrize("noise", ["brownian", "pixels"])
def test_that_noise_does_not_care_what_the_agent_does(noise: str) -> None:
    first, second = (watch(make(ROOMS, noise=noise, seed=3), 50, seed=play)[0] for play in (0, 1))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, watch(make(ROOMS, noise=noise, seed=4), 50)[0])


def test_dense_codes_belong_to_the_world_and_tell_cells_apart() -> None:
    one, other = make(ROOMS, code="dense", seed=0), make(ROOMS, code="dense", noise="pixels", bits=3, seed=1)
    assert one.observation_space == gym.spaces.Box(-1.0, 1.0, (16,), np.float32)
    assert other.observation_space.shape == (11,)
    codes = one.unwrapped.codes
    assert codes.shape == (207, 8) and codes.dtype == np.float32 and len(np.unique(codes, axis=0)) == 207
    assert abs(codes).max() <= 1 and codes.var() == pytest.approx(1 / 3, abs=0.03)
    assert np.array_equal(one.reset()[0][:8], codes[12]) and np.array_equal(other.reset()[0][:8], codes[12])
    assert make(ROOMS, code="dense", dense_size=3, bits=0).reset()[0].shape == (3,)


# DeepSea


def test_the_way_straight_to_the_right_is_worth_099_and_to_the_left_nothing() -> None:
    env = make(SEA, seed=0)
    for wanted, total, cells in ((1, 0.99, [0, 11, 22, 33, 44, 55, 66, 77, 88, 99]), (0, 0.0, [*range(0, 100, 10)])):
        obs, info = env.reset()
        for step, cell in enumerate(cells):
            assert info["cell"] == cell and np.flatnonzero(obs).tolist() == [cell]
            obs, _, terminated, truncated, info = env.step(env.unwrapped.right[cell] ^ 1 ^ wanted)
            assert (terminated, truncated) == (step == 9, False)
        assert info["episode"]["r"] == pytest.approx(total, abs=1e-12) and info["episode"]["l"] == 10
        assert info["is_success"] is bool(wanted)
        assert np.flatnonzero(obs).tolist() == [info["cell"]] == [99 if wanted else 90]


def test_a_step_to_the_right_costs_a_hundredth_of_the_size_and_one_to_the_left_nothing() -> None:
    env = make(SEA, size=20, seed=0)
    env.reset()
    right = env.unwrapped.right
    assert env.step(right[0])[1] == -0.0005 and env.step(1 - right[21])[1] == 0.0
    assert env.unwrapped.cell == 40  # right, then left again, two rows down
    assert families()["exploration"].caption(env, {}) == "the diver is in row 3 and column 1 of 20"


def test_one_mistake_loses_the_treasure() -> None:
    env = make(SEA, size=3, seed=0)
    right = env.unwrapped.right
    for mistake in range(3):
        info = env.reset()[1]
        for step in range(3):
            *_, info = env.step(right[info["cell"]] ^ (step == mistake))
        assert info["is_success"] is False
        assert info["episode"]["r"] == pytest.approx(-2 * 0.01 / 3)


def test_the_map_of_actions_is_fixed_by_its_own_seed() -> None:
    maps = [make(SEA, seed=seed, mapping_seed=m).unwrapped.right for seed, m in ((0, 3), (1, 3), (0, 4))]
    assert np.array_equal(maps[0], maps[1]) and not np.array_equal(maps[0], maps[2])
    assert set(maps[0]) == {0, 1}


def test_a_stochastic_dive_to_the_right_arrives_as_often_as_it_should() -> None:
    env = make(SEA, size=4, stochastic=True, seed=0)
    right, arrived, last = env.unwrapped.right, 0, []
    for _ in range(600):
        info = env.reset()[1]
        for _ in range(4):
            cell = info["cell"]
            _, reward, *_, info = env.step(right[cell])
            if cell not in (12, 15):
                assert reward == -0.0025
        arrived += info["is_success"]
        last += [reward] if cell == 15 else []
    assert arrived / 600 == pytest.approx(0.75**3, abs=0.06) and len(last) == arrived
    assert np.mean(last) == pytest.approx(1 - 0.0025, abs=0.2) and np.std(last) == pytest.approx(1.0, abs=0.15)


# Both


def test_bad_options_are_answered_with_what_to_give_instead() -> None:
    bad = [
        (ROOMS, {"noise": "loud"}, r"noise='loud' is unknown; give one of off, brownian, pixels, on_demand"),
        (ROOMS, {"code": "sparse"}, r"code='sparse' is unknown; give one of one_hot, dense"),
        (ROOMS, {"rooms": 0}, r"rooms=0 is out of range; give at least 1"),
        (ROOMS, {"bits": -1}, r"bits=-1 is out of range; give at least 0"),
        (ROOMS, {"dense_size": 0}, r"dense_size=0 is out of range; give at least 1"),
        (SEA, {"size": 1}, r"size=1 is out of range; give at least 2"),
        (SEA, {"mapping_seed": -1}, r"mapping_seed=-1 is out of range; give at least 0"),
    ]
    for env_id, options, sentence in bad:
        with pytest.raises(ValueError, match=sentence):
            make(env_id, **options)
        with pytest.raises(ValueError, match=sentence):
            make_vec(env_id, 2, backend="auto", **options)
    with pytest.raises(ValueError, match=r"cannot be made with the arguments \['depth'\]"):
        make(SEA, depth=3)


def middles(env: gym.Env) -> np.ndarray:
    """The pixel in the middle of every cell of the picture, which is of one colour, (H, W, 3)."""
    image = env.render()
    cells = image.reshape(image.shape[0] // PIXELS, PIXELS, -1, PIXELS, 3)
    assert image.dtype == np.uint8 and (cells == cells[:, :1, :, :1]).all()
    return cells[:, PIXELS // 2, :, PIXELS // 2]


def places(picture: np.ndarray, colour: tuple[int, int, int]) -> list[list[int]]:
    return np.argwhere((picture == colour).all(axis=-1)).tolist()


def test_a_picture_of_rooms_shows_the_agent_where_it_is_and_the_noise_below() -> None:
    env = make(ROOMS, noise="on_demand", bits=20, render_mode="rgb_array", seed=0)
    env.reset()
    before = middles(env)
    assert before.shape == (19 + 2, 19, 3)  # three rooms wide and high with their walls, 20 numbers in lines of 19
    assert places(before, AGENT) == [[3, 3]] and len(places(before, FLOOR_RGB)) == 207 - 1
    assert places(before, (0, 0, 0)) == [*([19, x] for x in range(19)), [20, 0]]
    env.step(RIGHT), env.step(LEFT)
    assert np.array_equal(middles(env), before)  # the same state, the same picture
    walk(env, [RIGHT] * 3)
    assert env.unwrapped.cell == 25 and places(middles(env), AGENT) == [[3, 6]]
    walk(env, [RIGHT] * 12)
    assert env.unwrapped.cell == 2 * PERIOD + 25 and places(middles(env), AGENT) == [[3, 18]]
    obs, *_ = walk(env, [RIGHT, DOWN, STAY])  # out of the picture, into the second line of rooms
    picture = middles(env)
    assert env.unwrapped.cell == 3 * PERIOD + 15 and places(picture, AGENT) == [[10, 1]]
    assert 0 < obs[-20:].sum() < 20
    assert np.array_equal(picture[19:].reshape(-1, 3)[:20, 0], 255 * obs[-20:])


def test_one_room_without_noise_is_a_picture_too() -> None:
    env = make(ROOMS, rooms=1, bits=0, render_mode="rgb_array")
    env.reset()
    picture = middles(env)
    assert picture.shape == (7, 7, 3) and places(picture, AGENT) == [[3, 3]] and len(places(picture, FLOOR_RGB)) == 24


def test_a_picture_of_the_sea_shows_a_triangle_the_treasure_and_the_diver() -> None:
    env = make(SEA, size=4, render_mode="rgb_array")
    env.reset()
    right, picture = env.unwrapped.right, middles(env)
    assert places(picture, AGENT) == [[0, 0]] and places(picture, TREASURE) == [[3, 3]]
    assert places(picture, FLOOR_RGB) == [[1, 0], [1, 1], [2, 0], [2, 1], [2, 2], [3, 0], [3, 1], [3, 2]]
    walk(env, [right[0], right[5], 1 - right[10]])
    assert env.unwrapped.cell == 13 and places(middles(env), AGENT) == [[3, 1]]


def test_frames_are_there_in_one_world_and_in_many() -> None:
    for env_id in (ROOMS, SEA):
        _, info = make(env_id, frame_size=64, seed=0).reset()
        envs = make_vec(env_id, 2, backend="auto", frame_size=64)
        frames = envs.reset()[1]["frame"]
        assert type(envs) is InProcess and frames.shape == (2, 64, 64, 3)  # array programs have no frames
        assert np.array_equal(frames[0], info["frame"]) and np.array_equal(frames[0], frames[1])
        assert make(env_id).unwrapped.render() is None
        with pytest.raises(ValueError, match=rf"is unknown to {env_id[9:-3]}; give \"rgb_array\""):
            type(make(env_id).unwrapped)(render_mode="ansi")


def test_an_array_program_heeds_every_argument_of_its_original() -> None:
    for env_id, world in ((ROOMS, NoisyRooms), (SEA, DeepSea)):
        assert PROGRAMS[env_id].arguments == set(inspect.signature(world).parameters) - {"render_mode"}
    assert PROGRAMS["CartPole-v1"].arguments == set()


def test_gymnasium_accepts_them() -> None:
    for env_id, options in ((ROOMS, {"noise": "pixels"}), (ROOMS, {"code": "dense"}), (SEA, {"stochastic": True})):
        check_env(make(env_id, render_mode="rgb_array", **options).unwrapped)


@pytest.mark.parametrize(
    ("env_id", "options"),
    [(ROOMS, {"noise": "brownian"}), (ROOMS, {"noise": "on_demand"}), (SEA, {"stochastic": True})],
)
def test_a_snapshot_of_single_worlds_goes_on_bit_for_bit(env_id: str, options: dict) -> None:
    first, second = (make_vec(env_id, 2, seed=seed, backend="gym", **options) for seed in (0, 9))
    rng = np.random.default_rng(0)
    first.reset(), second.reset()
    for _ in range(7):
        first.step(rng.integers(2, size=2))
    second.restore(first.snapshot())
    for _ in range(30):
        actions = rng.integers(2, size=2)
        assert all(np.array_equal(a, b) for a, b in zip(first.step(actions)[:4], second.step(actions)[:4]))


# Sparse tasks


def test_the_sparse_car_is_paid_once_at_the_flag_and_ends_there() -> None:
    env = make("lodestar/MountainCarSparse-v0", seed=0)
    env.reset()
    pose(env, position=0.44, velocity=0.05)
    assert env.step(2)[1:4] == (0.0, False, False)  # 0.49: at the drawn flag, but the flag stands at 0.5
    _, reward, terminated, truncated, info = env.step(2)
    assert (reward, terminated, truncated, info["is_success"]) == (1.0, True, False, True)


def test_pushing_the_way_it_rolls_brings_the_sparse_car_up_in_time_and_standing_does_not() -> None:
    env = make("lodestar/MountainCarSparse-v0")
    for swing in (True, False):
        obs, _ = env.reset(seed=0)
        terminated = truncated = False
        while not (terminated or truncated):
            obs, _, terminated, truncated, info = env.step((2 if obs[1] >= 0 else 0) if swing else 1)
        assert (terminated, info["is_success"], info["episode"]["r"]) == (swing, swing, float(swing))
        assert info["episode"]["l"] < 200 if swing else info["episode"]["l"] == 200


@pytest.mark.parametrize(
    ("angle", "speed", "reward"),
    [
        (0.0, 0.0, 1.0),
        (math.acos(0.96), 0.0, 1.0),
        (math.acos(0.94), 0.0, 0.0),
        (0.0, 0.9, 1.0),
        (0.0, 1.1, 0.0),
        (math.pi, 0.0, 0.0),
    ],
)
def test_the_sparse_pendulum_is_paid_while_nearly_upright_and_slow(angle: float, speed: float, reward: float) -> None:
    env = make("lodestar/PendulumSparse-v0", seed=0)
    env.reset()
    # One step of 0.05 s: the speed gains 0.75 sin(angle) + 0.15 torque, then the angle 0.05 times the new speed.
    before = angle - 0.05 * speed
    pose(env, angle=before, angular_velocity=speed - 0.75 * math.sin(before))
    obs, paid, terminated, truncated, _ = env.step(np.zeros(1, np.float32))
    np.testing.assert_allclose(obs, [math.cos(angle), math.sin(angle), speed], atol=1e-6)
    assert (paid, terminated, truncated) == (reward, False, False)


def test_the_sparse_pendulum_hangs_still_at_first() -> None:
    env = make("lodestar/PendulumSparse-v0")
    starts = np.stack([env.reset(seed=seed)[0] for seed in range(100)])
    angle = np.arctan2(starts[:, 1], -starts[:, 0])  # from straight down
    assert 0.09 < abs(angle).max() <= 0.1 and 0.09 < abs(starts[:, 2]).max() <= 0.1
    assert angle.min() < 0 < angle.max()


def test_a_swing_by_energy_holds_the_sparse_pendulum_up_for_success() -> None:
    env = make("lodestar/PendulumSparse-v0")
    obs, _ = env.reset(seed=0)
    truncated = False
    while not truncated:
        cos, sin, speed = obs
        if cos > 0.9:
            torque = -12 * sin - 3 * speed
        else:  # energy per inertia, zero at rest on top: speed^2 / 2 + 15 (cos - 1)
            torque = -2 * np.sign(speed) * np.sign(speed**2 / 2 + 15 * (cos - 1) - 0.5)
        obs, _, terminated, truncated, info = env.step(np.array([torque], np.float32))
        assert not terminated
    assert info["episode"]["r"] >= 50 and info["is_success"] is True
    env.reset(seed=0)
    for _ in range(200):
        *_, info = env.step(np.zeros(1, np.float32))
    assert info["episode"]["r"] == 0 and info["is_success"] is False


# PointMaze


def test_a_point_stays_in_its_corridors_and_slides_along_their_walls() -> None:
    env = make("lodestar/PointMaze-v0", seed=0, render_mode="rgb_array")
    env.reset()
    inner = env.unwrapped
    inner.place = np.float32([0.15, 0.0])
    obs, reward, terminated, truncated, _ = env.step(np.float32([1, 1]))  # a wall to the right, none above
    assert (
        obs.tolist() == pytest.approx([0.15, 0.1]) and reward == pytest.approx(0.15) and not (terminated or truncated)
    )
    obs, *_ = walk(env, [np.float32([0, 5])] * 20)  # a step is cut to 0.1
    assert obs.tolist() == pytest.approx([0.15, 1.0])
    assert families()["exploration"].caption(env, {}) == "the point is right"
    *_, truncated, info = walk(env, [np.float32([1, 0])] * 29)
    assert truncated and info["is_success"] and info["episode"]["l"] == 50
    picture = env.render()
    assert (picture[PIXELS * 0, -1] == AGENT).all() and (picture == np.array(FLOOR_RGB)).all(axis=-1).any()
    starts = np.array([env.reset()[0] for _ in range(100)])
    assert ((abs(starts[:, 0]) <= 0.2) | (starts[:, 1] >= 0.6)).all() and starts[:, 0].min() < -0.8 < 0.8 < starts[
        :, 0
    ].max()
    check_env(make("lodestar/PointMaze-v0"), skip_render_check=True)
