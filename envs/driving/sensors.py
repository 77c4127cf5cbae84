"""The signals of `envs.driving.vehicle`, read from highway-env's roads and from CarRacing.

    speed        of the car along its own heading; a car that reverses has a negative one
    lane_offset  from the lane that the car is in now, also while it changes lanes; so is the heading, right positive
    gap          bumper to bumper, 0 while they touch, along the lane and the lanes that follow it; obstacles count
    on_road      highway-env: within its lane; CarRacing: a wheel on the track
    completion   highway, racetrack and others with a duration: the time passed, whatever the distance
                 merge: metres from the start to the end of the road
                 roundabout, intersection: metres along the planned route to where the episode's task ends
                 CarRacing: tiles visited
    speed_limit  what the lane says, which in merge and roundabout is highway-env's default of 20 m/s; `PACE` in
                 CarRacing, which has none

Only the current state is read, never the past, so a copy of an environment has the same signals.

When it fails: where lanes cross, the car is in the one it is nearest to in place and direction, which may for a moment
be another one than it follows. A car that missed its exit counts as being at the nearest point of its route.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from envs.driving.vehicle import FAR, VEHICLE, Vehicle
from envs.family import entry, simulator

PACE = 55.0  # m/s: what it takes to finish a lap of CarRacing, 1100 m or so, within its 1000 steps of 1/50 s
STEP = 3.5  # m from one tile of CarRacing's track to the next
START, ARRIVAL = 60.0, 25.0  # m into its first lane where intersection's cars begin; into its last, the end
ENTRY = 2.5  # m before the end of its first lane where roundabout's car begins
EXIT = 370.0  # m where merge's road ends
BEND = 10.0  # m ahead that a road is watched for bends


def names(spec: EnvSpec) -> tuple[str, ...]:
    """The columns of `sense`; none for parking, whose lanes are places to stand."""
    return () if spec.name.startswith("parking") else VEHICLE


def sense(env: gym.Env) -> np.ndarray:
    """The state in numbers, float32 (9,), as `envs.driving.vehicle.VEHICLE` names them."""
    inner = simulator(env)
    name = env.spec.name if env.spec is not None else ""
    return np.array(_on_track(inner) if is_racing(env.spec) else _on_road(inner, name), np.float32)


def seconds(env: gym.Env) -> float:
    """How much time one step of the policy takes."""
    return 1 / 50 if is_racing(env.spec) else 1 / simulator(env).config["policy_frequency"]


def bend(env: gym.Env) -> float:
    """How far the road turns within the next `BEND` metres, rad, to the right positive."""
    inner = simulator(env)
    if is_racing(env.spec):
        track, nearest = _track(inner)
        ahead = (nearest + round(BEND / STEP)) % len(track)
        return _wrap(track[nearest, 1] - track[ahead, 1])
    car = inner.vehicle
    along = car.lane.local_coordinates(car.position)[0]
    turn, heading = 0.0, float(car.lane.heading_at(along))
    for lane, offset in _ahead(inner.road.network, car, BEND + along):
        there = float(lane.heading_at(min(BEND + along - offset, lane.length)))
        turn, heading = turn + _wrap(there - heading), there
    return turn


def lanes(env: gym.Env) -> int:
    """How many lanes the road has here."""
    inner = simulator(env)
    return 1 if is_racing(env.spec) else len(inner.road.network.all_side_lanes(inner.vehicle.lane_index))


def has_route(spec: EnvSpec | None) -> bool:
    """Whether `completion` measures a way rather than time."""
    return is_racing(spec) or (spec is not None and spec.name.startswith(("merge", "roundabout", "intersection")))


def is_racing(spec: EnvSpec | None) -> bool:
    """Whether the environment is CarRacing."""
    return spec is not None and "car_racing" in entry(spec)


def _on_road(inner: Any, name: str) -> Vehicle:
    car, lane = inner.vehicle, inner.vehicle.lane
    along, offset = lane.local_coordinates(car.position)
    origin, end, number = car.lane_index
    others = len(inner.road.network.graph[origin][end]) - 1
    return Vehicle(
        speed=car.speed,
        lane_offset=offset,
        heading=lane.local_angle(car.heading, along),
        on_road=car.on_road,
        crashed=car.crashed,
        completion=_completion(inner, name),
        gap=_gap(inner.road, car, along),
        lane=number / others if others else 0.5,
        speed_limit=car.MAX_SPEED if lane.speed_limit is None else lane.speed_limit,
    )


def _gap(road: Any, car: Any, along: float) -> float:
    nearest = FAR
    for lane, offset in _ahead(road.network, car, along + FAR):
        for other in [*road.vehicles, *road.objects]:
            if other is car or not other.solid:
                continue
            there, aside = lane.local_coordinates(other.position)
            far = there + offset - along
            if far >= 0 and lane.on_lane(other.position, there, aside, margin=1):
                nearest = min(nearest, far - (car.LENGTH + other.LENGTH) / 2)
    return max(nearest, 0.0)


def _ahead(network: Any, car: Any, reach: float) -> Iterator[tuple[Any, float]]:
    """The car's lane, and those that go on from its end: each with its distance from the start of the first.

    The planned route says where to go; without one it is the lane that goes on straightest.
    """
    index, offset = car.lane_index, 0.0
    plan = {origin: end for origin, end, _ in getattr(car, "route", None) or ()}
    lane = network.get_lane(index)
    yield lane, offset
    while offset + lane.length < reach and index[1] in network.graph:
        offset += lane.length
        place, heading, start = lane.position(lane.length, 0), lane.heading_at(lane.length), index[1]
        ends = [plan[start]] if start in plan else network.graph[start]
        lanes = {(start, end, i): lane for end in ends for i, lane in enumerate(network.graph[start][end])}
        index, lane = min(lanes.items(), key=lambda item: item[1].distance_with_heading(place, heading))
        yield lane, offset


def _completion(inner: Any, name: str) -> float:
    car, config = inner.vehicle, inner.config
    if name.startswith("merge"):
        share = (car.position[0] - 30) / ((getattr(inner, "end_position", 0) or EXIT) - 30)
    elif name.startswith("roundabout"):
        access = inner.road.network.graph["ser"]["ses"][0].length
        share = _share(inner.road.network, ("ser", "ses", "se", "ex", "ee", "nx", "nxs"), car, access - ENTRY)
    elif name.startswith("intersection"):
        goal = config["destination"] or (car.route[-1][1] if getattr(car, "route", None) else car.lane_index[1])
        share = _share(inner.road.network, ("o0", "ir0", goal.replace("o", "il"), goal), car, START, ARRIVAL)
    else:
        share = inner.time / config["duration"] if "duration" in config else 0.0
    return min(max(float(share), 0.0), 1.0)


def _share(network: Any, nodes: tuple[str, ...], car: Any, start: float, stop: float | None = None) -> float:
    """Share of the way along `nodes`, from `start` metres into its first lane to `stop` metres into its last."""
    lanes = [network.graph[a][b][0] for a, b in itertools.pairwise(nodes)]
    nearest = min(lanes, key=lambda lane: lane.distance_with_heading(car.position, car.heading))
    before = sum(lane.length for lane in lanes[: lanes.index(nearest)])
    along = min(max(nearest.local_coordinates(car.position)[0], 0.0), nearest.length)
    way = sum(lane.length for lane in lanes[:-1]) + (lanes[-1].length if stop is None else stop)
    return (before + along - start) / (way - start)


def _track(inner: Any) -> tuple[np.ndarray, int]:
    """CarRacing's track (tiles, 4): alpha, direction, x, y; and the number of the nearest tile."""
    track = np.asarray(inner.track)
    x, y = inner.car.hull.position
    return track, int(np.argmin((track[:, 2] - x) ** 2 + (track[:, 3] - y) ** 2))


def _on_track(inner: Any) -> Vehicle:
    track, nearest = _track(inner)
    _, direction, x, y = track[nearest]
    hull = inner.car.hull
    # Both the car and the track point along (-sin, cos) of their angles, so right of the track is (cos, sin).
    speed = math.cos(hull.angle) * hull.linearVelocity[1] - math.sin(hull.angle) * hull.linearVelocity[0]
    right = (hull.position[0] - x) * math.cos(direction) + (hull.position[1] - y) * math.sin(direction)
    return Vehicle(
        speed=speed,
        lane_offset=right,
        heading=_wrap(direction - hull.angle),
        on_road=any(wheel.tiles for wheel in inner.car.wheels),
        crashed=0.0,
        completion=inner.tile_visited_count / len(inner.track),
        gap=FAR,
        lane=0.5,
        speed_limit=PACE,
    )


def _wrap(angle: float) -> float:
    """The same direction in [-pi, pi)."""
    return float((angle + math.pi) % (2 * math.pi) - math.pi)
