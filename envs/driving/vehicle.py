"""The signals of a car, in columns that every driving environment shares, and driving metrics counted from them.

Environments write them as `signals` (see `envs.family.Family.sense`). Here highway-env's roads and CarRacing are read:
    completion   highway, racetrack and others with a duration: the time passed, whatever the distance
                 merge: metres from the start to the end of the road
                 roundabout, intersection: metres along the planned route to where the episode's task ends
                 CarRacing: tiles visited
    speed_limit  what the lane says, which in merge and roundabout is highway-env's default of 20 m/s; `PACE` in
                 CarRacing, which has none

When it fails: where lanes cross, the car may be taken to be in another one than it follows, the nearest. A car that
missed its exit counts as being at the nearest point of its route.

Source of the metrics: Huang et al. 2024 (VLM-RL), arXiv 2412.15544. Differences: distance is that of one episode;
collision speed is the higher one of the step of the collision and of the step before. Comfort is ours: accelerations
between steps of the policy, and their change; what happens within a step is not seen.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from envs.family import Metrics, entry, simulator
from envs.types import Array

# The gap in metres where no vehicle is ahead.
CLEAR_GAP_M = 100.0
# km/h in a m/s.
KMH = 3.6
# What it takes to finish a lap of CarRacing, 1100 m or so, within its 1000 steps of 1/50 s, in m/s.
PACE = 55.0
# From one tile of CarRacing's track to the next.
TILE_DISTANCE_M = 3.5
# Where intersection's cars begin in their first lane, and where their last one ends for the task.
INTERSECTION_START_M = 60.0
INTERSECTION_END_M = 25.0
# How far before the end of its first lane roundabout's car begins.
ROUNDABOUT_ENTRY_M = 2.5
# Where merge's car begins, and where its road ends.
MERGE_START_M = 30
MERGE_END_M = 370.0
# How far ahead a road is watched for bends.
BEND_DISTANCE_M = 10.0


class Vehicle(NamedTuple):
    """One array (...,) for each column of `signals`."""

    # m/s along the car's own heading; below 0 where it reverses.
    speed: Array
    # m from the centre of the lane it is in now, also while it changes lanes; right positive.
    lane_offset: Array
    # rad relative to the lane's direction, in [-pi, pi).
    heading: Array
    # 1 on the road, 0 off it: within its lane; in CarRacing, a wheel on the track.
    on_road: Array
    # 1 after a collision.
    crashed: Array
    # The share of the route, in [0, 1].
    completion: Array
    # m, bumper to bumper, to what is ahead in its lane and those that follow; CLEAR_GAP_M where nothing is.
    gap: Array
    # 0 leftmost to 1 rightmost; 0.5 on a road of one lane.
    lane: Array
    # m/s.
    speed_limit: Array


VEHICLE = Vehicle._fields


def read(signals: np.ndarray) -> Vehicle:
    """The columns of `signals` (..., K) by name; a ValueError if they are not those of a vehicle."""
    if signals.shape[-1] != len(VEHICLE):
        raise ValueError(
            f"signals of {signals.shape[-1]} columns are no vehicle's, which has {len(VEHICLE)} "
            f"({', '.join(VEHICLE)}); use a driving environment"
        )
    return Vehicle(*np.moveaxis(signals, -1, 0))


class Driving(Metrics):
    """Counts whole episodes, by the signals (9,) of their states; a step takes so many `seconds`."""

    def __init__(self, seconds: float) -> None:
        if not seconds > 0:
            raise ValueError(f"seconds={seconds} is out of range; give the time of one step, above 0")
        super().__init__()
        self.seconds = seconds

    def begin(self, signals: np.ndarray) -> None:
        self.episodes.append([signals])

    def step(self, signals: np.ndarray) -> None:
        self.episodes[-1].append(signals)

    def summary(self) -> dict[str, float]:
        rows = [self._measure_episode(np.stack(episode)) for episode in self.episodes]
        if not rows:
            return {}
        columns = zip(*(row.values() for row in rows))
        return {name: float(np.mean(column)) for name, column in zip(rows[0], columns)}

    def _measure_episode(self, signals: np.ndarray) -> dict[str, float]:
        """One episode of T steps, from signals (T + 1, 9)."""
        car = read(signals)
        speed = np.abs(car.speed)
        acceleration = np.diff(car.speed) / self.seconds
        acceleration_change = np.diff(acceleration)
        crash_steps = np.flatnonzero(car.crashed > 0)
        collision_speed = 0.0
        if len(crash_steps):
            first = crash_steps[0]
            collision_speed = float(speed[max(first - 1, 0) : first + 1].max())
        # The distance is the trapezoidal rule over the speeds.
        return {
            "speed, km/h": KMH * _mean_size(speed[1:]),
            "route completion": float(car.completion[-1]),
            "distance, m": float((speed[1:] + speed[:-1]).sum()) * self.seconds / 2,
            "collision rate": float(len(crash_steps) > 0),
            "collision speed, km/h": KMH * collision_speed,
            "acceleration, m/s2": _mean_size(acceleration),
            "jerk, m/s3": _mean_size(acceleration_change) / self.seconds,
        }


def _mean_size(values: np.ndarray) -> float:
    """The mean of absolute values, 0 for none."""
    return float(np.abs(values).mean()) if len(values) else 0.0


def names(spec: EnvSpec) -> tuple[str, ...]:
    """The columns of `sense`; none for parking, whose lanes are places to stand."""
    if spec.name.startswith("parking"):
        return ()
    return VEHICLE


def sense(env: gym.Env) -> np.ndarray:
    """The state in numbers, float32 (9,), as `envs.driving.vehicle.VEHICLE` names them."""
    inner = simulator(env)
    if is_racing(env.spec):
        return np.array(_racing_vehicle(inner), np.float32)
    return np.array(_road_vehicle(inner), np.float32)


def seconds(env: gym.Env) -> float:
    """How much time one step of the policy takes."""
    if is_racing(env.spec):
        return 1 / 50
    return 1 / simulator(env).config["policy_frequency"]


def bend(env: gym.Env) -> float:
    """How far the road turns within the next `BEND_DISTANCE_M`, rad, to the right positive."""
    inner = simulator(env)
    if is_racing(env.spec):
        track, nearest = _track(inner)
        ahead = (nearest + round(BEND_DISTANCE_M / TILE_DISTANCE_M)) % len(track)
        return wrap(track[nearest, 1] - track[ahead, 1])
    car = inner.vehicle
    along = car.lane.local_coordinates(car.position)[0]
    reach = BEND_DISTANCE_M + along
    turn = 0.0
    heading = float(car.lane.heading_at(along))
    for lane, offset in _lanes_ahead(inner.road.network, car, reach):
        lane_heading = float(lane.heading_at(min(reach - offset, lane.length)))
        turn += wrap(lane_heading - heading)
        heading = lane_heading
    return turn


def lanes(env: gym.Env) -> int:
    """How many lanes the road has here."""
    if is_racing(env.spec):
        return 1
    inner = simulator(env)
    return len(inner.road.network.all_side_lanes(inner.vehicle.lane_index))


def has_route(spec: EnvSpec) -> bool:
    """Whether `completion` measures a way rather than time."""
    return is_racing(spec) or spec.name.startswith(("merge", "roundabout", "intersection"))


def is_racing(spec: EnvSpec | None) -> bool:
    """Whether the environment is CarRacing."""
    return spec is not None and "car_racing" in entry(spec)


def _road_vehicle(inner: Any) -> Vehicle:
    car = inner.vehicle
    lane = car.lane
    along, offset = lane.local_coordinates(car.position)
    origin, end, number = car.lane_index
    last_number = len(inner.road.network.graph[origin][end]) - 1
    return Vehicle(
        speed=car.speed,
        lane_offset=offset,
        heading=lane.local_angle(car.heading, along),
        on_road=car.on_road,
        crashed=car.crashed,
        completion=_completion(inner),
        gap=_gap(inner.road, car, along),
        lane=number / last_number if last_number else 0.5,
        speed_limit=car.MAX_SPEED if lane.speed_limit is None else lane.speed_limit,
    )


def _gap(road: Any, car: Any, along: float) -> float:
    nearest = CLEAR_GAP_M
    for lane, offset in _lanes_ahead(road.network, car, along + CLEAR_GAP_M):
        for other in [*road.vehicles, *road.objects]:
            if other is car or not other.solid:
                continue
            other_along, aside = lane.local_coordinates(other.position)
            distance = other_along + offset - along
            if distance >= 0 and lane.on_lane(other.position, other_along, aside, margin=1):
                # From the cars' centres to their bumpers.
                nearest = min(nearest, distance - (car.LENGTH + other.LENGTH) / 2)
    return max(nearest, 0.0)


def _lanes_ahead(network: Any, car: Any, reach: float) -> Iterator[tuple[Any, float]]:
    """The car's lane, and those of its route, or straightest on, each with its distance from the start of the first."""
    route = getattr(car, "route", None) or ()
    planned_end = {origin: end for origin, end, _ in route}
    offset = 0.0
    node = car.lane_index[1]
    lane = network.get_lane(car.lane_index)
    yield lane, offset
    while offset + lane.length < reach and node in network.graph:
        offset += lane.length
        place = lane.position(lane.length, 0)
        heading = lane.heading_at(lane.length)
        ends = network.graph[node]
        if node in planned_end:
            ends = [planned_end[node]]
        candidates = [(lane, end) for end in ends for lane in network.graph[node][end]]
        lane, node = min(candidates, key=lambda one: one[0].distance_with_heading(place, heading))
        yield lane, offset


def _completion(inner: Any) -> float:
    car = inner.vehicle
    config = inner.config
    network = inner.road.network
    name = inner.spec.name
    if name.startswith("merge"):
        end = getattr(inner, "end_position", 0) or MERGE_END_M
        share = (car.position[0] - MERGE_START_M) / (end - MERGE_START_M)
    elif name.startswith("roundabout"):
        start = network.graph["ser"]["ses"][0].length - ROUNDABOUT_ENTRY_M
        nodes: tuple[str, ...] = ("ser", "ses", "se", "ex", "ee", "nx", "nxs")
        share = _share(network, nodes, car, start)
    elif name.startswith("intersection"):
        goal = config["destination"] or car.lane_index[1]
        route = getattr(car, "route", None)
        if route and not config["destination"]:
            goal = route[-1][1]
        nodes = ("o0", "ir0", goal.replace("o", "il"), goal)
        share = _share(network, nodes, car, INTERSECTION_START_M, INTERSECTION_END_M)
    elif "duration" in config:
        share = inner.time / config["duration"]
    else:
        share = 0.0
    return float(np.clip(share, 0, 1))


def _share(network: Any, nodes: tuple[str, ...], car: Any, start: float, stop: float | None = None) -> float:
    """Share of the way along `nodes`, from `start` metres into its first lane to `stop` metres into its last."""
    lanes = [network.graph[origin][end][0] for origin, end in itertools.pairwise(nodes)]
    nearest = min(lanes, key=lambda lane: lane.distance_with_heading(car.position, car.heading))
    before = sum(lane.length for lane in lanes[: lanes.index(nearest)])
    along, _ = nearest.local_coordinates(car.position)
    along = np.clip(along, 0, nearest.length)
    if stop is None:
        stop = lanes[-1].length
    route_length = sum(lane.length for lane in lanes[:-1]) + stop
    return (before + along - start) / (route_length - start)


def _track(inner: Any) -> tuple[np.ndarray, int]:
    """CarRacing's track (tiles, 4): alpha, direction, x, y; and the number of the nearest tile."""
    track = np.asarray(inner.track)
    x, y = inner.car.hull.position
    squared_distance = (track[:, 2] - x) ** 2 + (track[:, 3] - y) ** 2
    return track, int(np.argmin(squared_distance))


def _racing_vehicle(inner: Any) -> Vehicle:
    track, nearest = _track(inner)
    _, direction, x, y = track[nearest]
    hull = inner.car.hull
    # Both the car and the track point along (-sin, cos) of their angles, so right of the track is (cos, sin).
    velocity_x, velocity_y = hull.linearVelocity
    speed = math.cos(hull.angle) * velocity_y - math.sin(hull.angle) * velocity_x
    dx = hull.position[0] - x
    dy = hull.position[1] - y
    return Vehicle(
        speed=speed,
        lane_offset=dx * math.cos(direction) + dy * math.sin(direction),
        heading=wrap(direction - hull.angle),
        on_road=any(wheel.tiles for wheel in inner.car.wheels),
        crashed=0.0,
        completion=inner.tile_visited_count / len(inner.track),
        gap=CLEAR_GAP_M,
        lane=0.5,
        speed_limit=PACE,
    )


def wrap(angle: Array) -> Array:
    """The same direction in [-pi, pi)."""
    return (angle + math.pi) % (2 * math.pi) - math.pi
