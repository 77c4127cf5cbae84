"""States of driving environments to look at a reward in before anything is trained; see `envs.states`.

    scatter   the car somewhere on its route, or on any lane where it has none, at any pace, every other time with a
              slower vehicle just ahead, or already in it; in CarRacing anywhere along the track and as far as its
              width beside it
    axis      the gap to the only other vehicle, at the same pace; in CarRacing the offset from the track's centre

Collisions come about in the next step, as the simulator finds them; a scattered state itself has none.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from envs.driving.sensors import is_racing, names
from envs.family import Axis

APART = 12.0  # m around the car without anybody
LENGTH = 5.0  # m, of highway-env's vehicles
WIDTH = 40 / 6  # m, of half of CarRacing's track


def scatter(env: gym.Env, rng: np.random.Generator) -> bool:
    """A random state; False for parking, which has no road."""
    if env.spec is None or not names(env.spec):
        return False
    if is_racing(env.spec):
        _put_on_track(env, int(rng.integers(1 << 30)), WIDTH * rng.uniform(-2, 2), 0.5 * rng.normal())
        return True
    inner: Any = env.unwrapped
    car, graph = inner.vehicle, inner.road.network.graph
    route = list(getattr(car, "route", None) or ())
    roads = [step[:2] for step in route] or [(origin, end) for origin in graph for end in graph[origin]]
    chosen = int(rng.integers(len(roads)))
    origin, end = roads[chosen]
    number = int(rng.integers(len(graph[origin][end])))
    lane = graph[origin][end][number]
    along = float(rng.uniform(0, lane.length))
    if lane.length > 1000:  # the highway: stay where the traffic is
        along = lane.local_coordinates(car.position)[0]
    if route:
        car.route = route[chosen:]
    # Who steers himself may leave the road.
    aside = 0.3 * rng.normal() if hasattr(car, "target_lane_index") else lane.width_at(along) * rng.uniform(-0.8, 0.8)
    speed = (lane.speed_limit or car.MAX_SPEED) * rng.uniform(0.3, 1.1)
    _put_on_road(inner, (origin, end, number), along, aside, 0.05 * rng.normal(), speed)
    inner.road.vehicles = [v for v in inner.road.vehicles if v is car or math.dist(v.position, car.position) > APART]
    if rng.random() < 0.5:
        ahead = along + LENGTH + rng.uniform(-4, 20)
        _put_ahead(inner, (origin, end, number), ahead, aside, speed * rng.uniform(0.2, 1.0))
    return True


def axis(spec: EnvSpec) -> Axis | None:
    """The gap to the vehicle ahead, or CarRacing's offset from the centre."""
    if not names(spec):
        return None
    if is_racing(spec):
        return Axis(
            "offset from the track's centre, m", -3 * WIDTH, 3 * WIDTH, lambda env, x: _put_on_track(env, 20, x)
        )
    return Axis("gap to the vehicle ahead, m", 0.5, 60.0, _pose_gap)


def _pose_gap(env: gym.Env, gap: float) -> None:
    inner: Any = env.unwrapped
    car = inner.vehicle
    along = car.lane.local_coordinates(car.position)[0]
    inner.road.vehicles = [car]
    _put_on_road(inner, car.lane_index, along, 0.0, 0.0, car.speed)
    _put_ahead(inner, car.lane_index, along + LENGTH + gap, 0.0, car.speed)


def _put_on_road(inner: Any, index: Any, along: float, aside: float, turned: float, speed: float) -> None:
    car, lane = inner.vehicle, inner.road.network.get_lane(index)
    car.position, car.heading = lane.position(along, aside), lane.heading_at(along) + turned
    car.speed, car.crashed = speed, False
    if hasattr(car, "target_lane_index"):
        car.target_lane_index = index
    car.on_state_update()


def _put_ahead(inner: Any, index: Any, along: float, aside: float, speed: float) -> None:
    from highway_env.vehicle.behavior import IDMVehicle

    lane = inner.road.network.get_lane(index)
    inner.road.vehicles.append(IDMVehicle(inner.road, lane.position(along, aside), lane.heading_at(along), speed))


def _put_on_track(env: gym.Env, tile: int, aside: float, turned: float = 0.0) -> None:
    from gymnasium.envs.box2d.car_dynamics import Car

    inner: Any = env.unwrapped
    _, direction, x, y = inner.track[tile % len(inner.track)]
    inner.car.destroy()
    place = x + aside * math.cos(direction), y + aside * math.sin(direction)
    inner.car = Car(inner.world, direction - turned, *place)
    inner.t = max(inner.t, 1.0)  # until then the camera is still coming down
