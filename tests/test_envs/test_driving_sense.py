"""The signals of six driving environments, against cars put where the answer is known."""

import math
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from highway_env.road.lane import StraightLane
from highway_env.road.road import RoadNetwork

from envs.driving.vehicle import CLEAR_GAP_M, VEHICLE, _lanes_ahead, bend, lanes, names, read, seconds, sense
from envs.make import make, spec_of

ROADS = ["highway-fast-v0", "merge-v0", "roundabout-v0", "intersection-v0", "racetrack-v0"]


def road(env_id: str, **options: object) -> gym.Env:
    env = make(env_id, seed=0, **options)
    env.reset()
    return env


def put(env: gym.Env, index: tuple[str, str, int], along: float, aside: float = 0.0, turned: float = 0.0) -> None:
    """The car stands in a lane, `aside` metres right of its centre, turned to the right by `turned`; all others go."""
    inner = env.unwrapped
    lane, car = inner.road.network.get_lane(index), inner.vehicle
    car.position, car.heading = lane.position(along, aside), lane.heading_at(along) + turned
    car.lane_index, car.lane = index, lane
    inner.road.vehicles = [car]


def other(env: gym.Env, index: tuple[str, str, int], along: float) -> None:
    """One more vehicle of 5 m."""
    inner = env.unwrapped
    copy = type(inner.road.vehicles[0]).make_on_lane(inner.road, index, along, speed=0)
    inner.road.vehicles.append(copy)


@pytest.mark.parametrize("env_id", [*ROADS, "CarRacing-v3"])
def test_every_environment_names_the_same_columns_and_starts_sound(env_id: str) -> None:
    env = road(env_id)
    assert names(env.spec) == VEHICLE
    signals = sense(env)
    assert signals.dtype == np.float32 and signals.shape == (9,)
    car = read(signals)
    assert (car.on_road, car.crashed) == (1, 0)
    assert abs(car.lane_offset) < 0.01 and abs(car.heading) < 0.02
    assert 0 <= car.completion < 0.2 and 0 < car.gap <= CLEAR_GAP_M and 0 <= car.lane <= 1
    np.testing.assert_array_equal(sense(env), signals)


def test_parking_has_no_road_to_sense() -> None:
    assert names(spec_of("parking-v0")) == ()


@pytest.mark.parametrize(
    ("env_id", "limit", "time"),
    [
        ("highway-fast-v0", 30, 1),
        ("merge-v0", 20, 1),
        ("roundabout-v0", 20, 1),
        ("intersection-v0", 10, 1),
        ("racetrack-v0", 10, 0.2),
        ("CarRacing-v3", 55, 0.02),
    ],
)
def test_speed_limits_and_the_time_of_a_step(env_id: str, limit: float, time: float) -> None:
    env = road(env_id)
    assert read(sense(env)).speed_limit == limit and seconds(env) == pytest.approx(time)


@pytest.mark.parametrize(
    ("env_id", "index"),
    [
        ("highway-fast-v0", ("0", "1", 1)),
        ("merge-v0", ("b", "c", 1)),
        ("roundabout-v0", ("ee", "nx", 1)),  # a circle
        ("roundabout-v0", ("ses", "se", 0)),  # a sine
        ("intersection-v0", ("ir0", "il1", 0)),
        ("racetrack-v0", ("e", "f", 0)),
    ],
)
def test_offset_and_heading_are_positive_to_the_right_on_every_kind_of_lane(env_id: str, index: tuple) -> None:
    env = road(env_id)
    put(env, index, 3.0, aside=0.75, turned=0.2)
    car = read(sense(env))
    assert car.lane_offset == pytest.approx(0.75, abs=1e-4) and car.heading == pytest.approx(0.2, abs=0.05)
    # Straight ahead and a little to the right of the car's own nose is right of it.
    inner = env.unwrapped
    lane = inner.road.network.get_lane(index)
    right = lane.heading_at(3.0) + math.pi / 2  # y points down, so angles grow clockwise
    step = lane.position(3.0, 0.75) - lane.position(3.0, 0.0)
    assert step @ [math.cos(right), math.sin(right)] > 0.7


def test_the_lane_runs_from_left_to_right_and_a_lonely_one_is_in_the_middle() -> None:
    env = road("highway-fast-v0", lanes_count=4)
    for number in range(4):
        put(env, ("0", "1", number), 50.0)
        assert read(sense(env)).lane == pytest.approx(number / 3) and lanes(env) == 4
    env = road("intersection-v0")
    put(env, ("o0", "ir0", 0), 50.0)
    assert read(sense(env)).lane == 0.5 and lanes(env) == 1


def test_the_gap_is_bumper_to_bumper_in_the_own_lane_only_and_never_negative() -> None:
    env = road("highway-fast-v0")
    put(env, ("0", "1", 1), 100.0)
    assert read(sense(env)).gap == CLEAR_GAP_M
    for index, along in ((("0", "1", 0), 110.0), (("0", "1", 1), 90.0), (("0", "1", 1), 206.0)):
        other(env, index, along)
    assert read(sense(env)).gap == CLEAR_GAP_M  # beside, behind, and too far: 101 m
    other(env, ("0", "1", 1), 130.0)
    assert read(sense(env)).gap == pytest.approx(25.0)
    other(env, ("0", "1", 1), 102.0)
    assert read(sense(env)).gap == 0.0


def test_the_gap_goes_on_into_the_lane_that_follows() -> None:
    env = road("merge-v0")
    put(env, ("a", "b", 1), 225.0)  # 5 m before the next lane begins
    other(env, ("b", "c", 1), 20.0)
    assert read(sense(env)).gap == pytest.approx(20.0)
    put(env, ("b", "c", 2), 60.0)  # the ramp, at whose end, 80 m, an obstacle of 2 m stands
    assert read(sense(env)).gap == pytest.approx(16.5)
    env = road("intersection-v0")  # the car will turn left, to o1
    put(env, ("o0", "ir0", 0), 90.0)
    other(env, ("ir0", "il2", 0), 15.0)  # beyond where the ways part
    assert read(sense(env)).gap == CLEAR_GAP_M
    other(env, ("il1", "o1", 0), 20.0)
    turn = env.unwrapped.road.network.get_lane(("ir0", "il1", 0)).length
    assert read(sense(env)).gap == pytest.approx(10 + turn + 20 - 5, abs=1e-4)


def test_the_lane_that_follows_is_the_one_that_begins_where_the_own_ends() -> None:
    network = RoadNetwork()
    for origin, end, x, y in (("a", "b", 0, 0), ("b", "c", 100, 1), ("b", "c", 100, 0), ("b", "c", 100, -1)):
        network.add_lane(origin, end, StraightLane([x, y], [x + 100, y]))
    car = SimpleNamespace(lane_index=("a", "b", 0))
    assert [(*lane.start, offset) for lane, offset in _lanes_ahead(network, car, 100.0)] == [(0, 0, 0)]
    assert [(*lane.start, offset) for lane, offset in _lanes_ahead(network, car, 101.0)] == [(0, 0, 0), (100, 0, 100)]


def test_completion_is_time_on_the_highway_and_metres_where_there_is_a_way() -> None:
    env = road("highway-fast-v0", vehicles_count=0, duration=4)
    for passed in (0.25, 0.5, 0.75, 1.0):
        env.step(1)
        assert read(sense(env)).completion == passed
    env = road("merge-v0")
    put(env, ("a", "b", 1), 200.0)
    assert read(sense(env)).completion == pytest.approx(0.5)  # from 30 m to 370 m
    env = road("intersection-v0")
    turn = env.unwrapped.road.network.get_lane(("ir0", "il1", 0)).length
    put(env, ("ir0", "il1", 0), turn / 2)
    assert read(sense(env)).completion == pytest.approx((40 + turn / 2) / (40 + turn + 25))
    put(env, ("il1", "o1", 0), 25.0)
    assert read(sense(env)).completion == 1.0
    put(env, ("o0", "ir0", 0), 50.0)
    assert read(sense(env)).completion == 0.0  # behind the start


def test_completion_of_the_roundabout_grows_along_the_route_in_both_lanes() -> None:
    env = road("roundabout-v0")
    shares = []
    for index in [("ser", "ses", 0), ("ses", "se", 0), ("se", "ex", 0), ("ex", "ee", 1), ("ee", "nx", 1)]:
        put(env, index, env.unwrapped.road.network.get_lane(index).length / 2)
        shares.append(float(read(sense(env)).completion))
    put(env, ("nxs", "nxr", 0), 5.0)
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] < 0.9 and read(sense(env)).completion == 1
    np.testing.assert_allclose(np.diff(shares[1:]), 0.2, atol=0.05)  # lanes of about the same length


def test_roads_bend_left_in_the_circle_and_right_where_they_turn_right() -> None:
    env = road("roundabout-v0")
    put(env, ("ex", "ee", 0), 2.0)
    assert bend(env) == pytest.approx(-10 / 20, abs=0.01)
    env = road("intersection-v0")
    put(env, ("ir0", "il3", 0), 0.0)  # a quarter of a circle of 9 m
    assert bend(env) == pytest.approx(10 / 9, abs=0.01)
    env = road("highway-fast-v0")
    assert bend(env) == 0


def test_car_racing_tells_left_from_right_and_the_track_from_the_grass() -> None:
    env = road("CarRacing-v3", continuous=False)
    inner = env.unwrapped
    _, direction, x, y = inner.track[20]
    forward = np.array([-math.sin(direction), math.cos(direction)])
    right = np.array([math.cos(direction), math.sin(direction)])
    hull = inner.car.hull
    hull.position, hull.angle = tuple(np.array([x, y]) + 2.0 * right), direction - 0.3
    hull.linearVelocity = tuple(10.0 * forward + 5.0 * right)
    car = read(sense(env))
    assert car.lane_offset == pytest.approx(2.0, abs=0.01) and car.heading == pytest.approx(0.3, abs=1e-3)
    assert car.speed == pytest.approx(10 * math.cos(0.3) + 5 * math.sin(0.3), abs=1e-3)
    env.reset(seed=3)
    track = np.array(inner.track)
    turns = [((track[i, 1] - track[(i + 3) % len(track), 1]) + np.pi) % (2 * np.pi) - np.pi for i in range(len(track))]
    for tile in (int(np.argmin(turns)), int(np.argmax(turns))):
        inner.car.hull.position = tuple(track[tile, 2:])
        assert bend(env) == pytest.approx(turns[tile], abs=1e-6) and abs(bend(env)) > 0.25
    assert min(turns) < 0 < max(turns)


def test_car_racing_completes_tile_by_tile() -> None:
    env = road("CarRacing-v3", continuous=False)
    for _ in range(60):
        env.step(3)
    inner = env.unwrapped
    car = read(sense(env))
    assert car.completion == pytest.approx(inner.tile_visited_count / len(inner.track)) and car.completion > 0.02
    assert car.speed > 20 and car.gap == CLEAR_GAP_M and car.crashed == 0
    for wheel in inner.car.wheels:
        wheel.tiles.clear()
    assert read(sense(env)).on_road == 0
