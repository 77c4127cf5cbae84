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

FAR = 100.0  # metres: the gap where no vehicle is ahead
KMH = 3.6  # km/h in a m/s
PACE = 55.0  # m/s: what it takes to finish a lap of CarRacing, 1100 m or so, within its 1000 steps of 1/50 s
STEP = 3.5  # m from one tile of CarRacing's track to the next
START, ARRIVAL = 60.0, 25.0  # m into its first lane where intersection's cars begin; into its last, the end
ENTRY = 2.5  # m before the end of its first lane where roundabout's car begins
EXIT = 370.0  # m where merge's road ends
BEND = 10.0  # m ahead that a road is watched for bends


class Vehicle(NamedTuple):
    """One array (...,) for each column of `signals`."""

    speed: Array  # m/s, along the car's own heading; below 0 where it reverses
    lane_offset: Array  # m from the centre of the lane it is in now, also while it changes lanes; right positive
    heading: Array  # rad relative to the lane's direction, in [-pi, pi)
    on_road: Array  # 1 on the road, 0 off it: within its lane; in CarRacing, a wheel on the track
    crashed: Array  # 1 after a collision
    completion: Array  # share of the route, in [0, 1]
    gap: Array  # m, bumper to bumper, to what is ahead in its lane and those that follow; FAR where nothing is
    lane: Array  # 0 leftmost to 1 rightmost; 0.5 on a road of one lane
    speed_limit: Array  # m/s


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
        rows = [self._episode(np.stack(episode)) for episode in self.episodes]
        return {name: float(np.mean([row[name] for row in rows])) for name in (rows[0] if rows else ())}

    def _episode(self, signals: np.ndarray) -> dict[str, float]:
        """One episode of T steps, from signals (T + 1, 9)."""
        car, dt = read(signals), self.seconds
        speed = np.abs(car.speed)
        acceleration = np.diff(car.speed) / dt
        hit = np.flatnonzero(car.crashed > 0)
        return {
            "speed, km/h": KMH * float(speed[1:].mean()) if len(speed) > 1 else 0.0,
            "route completion": float(car.completion[-1]),
            "distance, m": float((speed[1:] + speed[:-1]).sum()) * dt / 2,
            "collision rate": float(len(hit) > 0),
            "collision speed, km/h": KMH * float(speed[max(hit[0] - 1, 0) : hit[0] + 1].max()) if len(hit) else 0.0,
            "acceleration, m/s2": float(np.abs(acceleration).mean()) if len(acceleration) else 0.0,
            "jerk, m/s3": float(np.abs(np.diff(acceleration)).mean()) / dt if len(acceleration) > 1 else 0.0,
        }


def names(spec: EnvSpec) -> tuple[str, ...]:
    """The columns of `sense`; none for parking, whose lanes are places to stand."""
    return () if spec.name.startswith("parking") else VEHICLE


def sense(env: gym.Env) -> np.ndarray:
    """The state in numbers, float32 (9,), as `envs.driving.vehicle.VEHICLE` names them."""
    inner = simulator(env)
    return np.array(_on_track(inner) if is_racing(env.spec) else _on_road(inner, env.spec), np.float32)


def seconds(env: gym.Env) -> float:
    """How much time one step of the policy takes."""
    return 1 / 50 if is_racing(env.spec) else 1 / simulator(env).config["policy_frequency"]


def bend(env: gym.Env) -> float:
    """How far the road turns within the next `BEND` metres, rad, to the right positive."""
    inner = simulator(env)
    if is_racing(env.spec):
        track, nearest = _track(inner)
        ahead = (nearest + round(BEND / STEP)) % len(track)
        return wrap(track[nearest, 1] - track[ahead, 1])
    car = inner.vehicle
    along = car.lane.local_coordinates(car.position)[0]
    turn, heading = 0.0, float(car.lane.heading_at(along))
    for lane, offset in _ahead(inner.road.network, car, BEND + along):
        there = float(lane.heading_at(min(BEND + along - offset, lane.length)))
        turn, heading = turn + wrap(there - heading), there
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


def _on_road(inner: Any, spec: EnvSpec | None) -> Vehicle:
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
        completion=_completion(inner, spec.name if spec is not None else ""),
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
    """The car's lane, and those of its route, or straightest on, each with its distance from the start of the first."""
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
        heading=wrap(direction - hull.angle),
        on_road=any(wheel.tiles for wheel in inner.car.wheels),
        crashed=0.0,
        completion=inner.tile_visited_count / len(inner.track),
        gap=FAR,
        lane=0.5,
        speed_limit=PACE,
    )


def wrap(angle: float) -> float:
    """The same direction in [-pi, pi)."""
    return float((angle + math.pi) % (2 * math.pi) - math.pi)
