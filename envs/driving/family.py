"""Driving: highway-env's roads seen as numbers, and CarRacing seen as pixels.

Observations:
    highway-env    its kinematics table, flat float32: (25,) for 5 vehicles of 5 features; parking's dict stays a dict
    CarRacing-v3   (3, 96, 96) uint8, channel-first; `continuous=False` gives 5 discrete actions

Options, where the environment's own `config` has them; None leaves it as it is:
    vehicles_count   other vehicles, 0 or more (highway 50, highway-fast 20, intersection 10, racetrack 1)
    lanes_count      lanes, 1 or more (highway 4, highway-fast 3)
    duration         seconds after which an episode is truncated

Signals are those of `envs.driving.vehicle`. A caption is one of
    the car has crashed
    the car is off the road
    the car {stands | drives slowly | drives steadily | drives fast} {in the left lane | in the middle lane |
        in the right lane | on the road}[, turning left | , turning right], {the road ahead is clear |
        another car is close ahead}
where slow is below 0.73 of the speed limit, fast above 0.9; a road turns that bends by more than 0.25 rad within 10 m;
close is less than 20 m. CarRacing has no other cars, and its road is always clear.

Success: highway and racetrack to their end, merge to the end of its road, roundabout and intersection to the exit of
the planned route, all without a crash and on the road; CarRacing, a return of 900; for the rest, no crash.

Scattered states have the car anywhere on its route, at any speed, every other time close behind or in a slower vehicle;
in CarRacing anywhere along the track and beside it. The axis is the gap to the only other vehicle, or the offset.
"""

import importlib
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from envs.driving.vehicle import Driving, Vehicle, bend, has_route, is_racing, lanes, names, read, seconds, sense
from envs.family import Axis, Family, Goal, entry, simulator
from envs.observations import Recorded, plain_observation
from envs.types import EnvReset

CLOSE = 20.0  # metres to the vehicle ahead; at 25 m/s less than a second
SLOW, FAST = 0.73, 0.9  # of the speed limit
BENT = 0.25  # rad
OPTIONS = {"vehicles_count": 0, "lanes_count": 1, "duration": 0.01}  # of `adapt`, and the least value of each
COUNTS = ("vehicles_count", "initial_vehicle_count", "other_vehicles")  # what highway-env calls the other vehicles
APART = 12.0  # m around a scattered car without another one
LENGTH = 5.0  # m, of highway-env's vehicles
TRACK = 40 / 6  # m, of half the width of CarRacing's track
# highway-env's IDMVehicle as it comes: m, m/s^2, m/s^2.
DRIVER = {"DISTANCE_WANTED": 10.0, "COMFORT_ACC_MAX": 3.0, "COMFORT_ACC_MIN": -5.0}


class OneFrame(Recorded):
    """Draws one frame per `render`, and keeps the action space and the driver model of other vehicles.

    highway-env draws black frames without a screen, then one at every simulation step; a reset makes an unseeded action
    space, an intersection another driver model for all others.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.action_space = env.action_space
        self._driver: dict[str, float] = {}  # what the environment made of DRIVER

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> EnvReset:
        drivers = self._drive(DRIVER)
        result = self.env.reset(seed=seed, options=options)
        self._driver = {name: getattr(drivers, name) for name in DRIVER}
        return result

    def step(self, action: Any) -> Any:
        self._drive(self._driver)
        return self.env.step(action)

    def _drive(self, values: dict[str, float]) -> Any:
        drivers: Any = SimpleNamespace()
        if hasattr(self.unwrapped, "road"):
            drivers = importlib.import_module("highway_env.vehicle.behavior").IDMVehicle
        for name, value in values.items():
            setattr(drivers, name, value)
        return drivers

    def render(self) -> Any:
        inner: Any = self.unwrapped
        image: Any = self.env.render()
        if self.render_mode != "rgb_array" or not hasattr(inner, "viewer"):
            return image
        if inner.viewer is not None and not getattr(inner.viewer, "enabled", True):
            inner.viewer.enabled = True
            image = self.env.render()
        if getattr(inner, "_record_video_wrapper", None) is None:
            inner.enable_auto_render = False
        return image


class Configured(Recorded):
    """highway-env's `config` by the names that its environments share; the module lists them and their ranges."""

    def __init__(self, env: gym.Env, **given: float) -> None:
        super().__init__(env, **given)
        inner = simulator(env)
        config = getattr(inner, "config", {})
        for name, value in given.items():
            if value < OPTIONS[name]:
                raise ValueError(f"{name}={value} is out of range; give {OPTIONS[name]} or more, or leave it out")
            key = next((key for key in (COUNTS if name == "vehicles_count" else (name,)) if key in config), None)
            if key is None:
                made = env.spec.id if env.spec is not None else type(inner).__name__
                raise ValueError(f"{name}={value} cannot be set: {made} has no such option; leave it out")
            config[key] = value


def adapt(
    env: gym.Env, vehicles_count: int | None = None, lanes_count: int | None = None, duration: float | None = None
) -> gym.Env:
    """Plain observations, of a road with the given traffic."""
    options = zip(OPTIONS, (vehicles_count, lanes_count, duration))
    given = {name: value for name, value in options if value is not None}
    return plain_observation(Configured(env, **given) if given else env)


def words(signals: np.ndarray, lanes: int, bent: float = 0.0) -> str:
    """A caption of the signals (9,), on a road that turns by `bent` rad within the next metres, right positive."""
    car = read(signals)
    if car.crashed:
        return "the car has crashed"
    if not car.on_road:
        return "the car is off the road"
    slow, fast = SLOW * car.speed_limit, FAST * car.speed_limit
    drives = "drives fast" if car.speed > fast else "drives slowly" if car.speed < slow else "drives steadily"
    drives = "stands" if abs(car.speed) < 0.5 else drives
    side = "right" if car.lane == 1 else "left" if car.lane == 0 else "middle"
    where = f"in the {side} lane" if lanes > 1 else "on the road"
    turning = f", turning {'right' if bent > 0 else 'left'}" if abs(bent) > BENT else ""
    ahead = "the road ahead is clear" if car.gap > CLOSE else "another car is close ahead"
    return f"the car {drives} {where}{turning}, {ahead}"


def _caption(env: gym.Env, memory: dict[str, Any]) -> str:
    signals = sense(env)
    if not _is_road(env.spec):
        return "the car has crashed" if read(signals).crashed else ""
    return words(signals, lanes(env), bend(env))


def _is_road(spec: EnvSpec | None) -> bool:
    return spec is not None and bool(names(spec))


def _goal(name: str, baseline: str, prompt: str, negative: str, truth: Callable[[Vehicle], Any]) -> Goal:
    return Goal(name, prompt, baseline, lambda env: bool(truth(read(sense(env)))), negative)


_ROAD = "a green car on a road"
# The two sentences of VLM-RL (Huang et al., 2024, arXiv 2412.15544); the baseline is VLM-RM's in its comparison.
_SAFE, _CRASH = "The road is clear with no car accidents", "Two cars have collided with each other on the road"
SAFE = _goal("safe", "A car", _SAFE, _CRASH, lambda car: not car.crashed)
_FREE, _BLOCKED = "a green car with no car close ahead of it", "a green car with another car close ahead of it"
_CLEAR = _goal("clear", _ROAD, _FREE, _BLOCKED, lambda car: not car.crashed and car.gap > CLOSE)
_LOWEST, _HIGHEST = "a green car in the lowest lane of the road", "a green car in the highest lane of the road"
_RIGHTMOST = _goal("rightmost", _ROAD, _LOWEST, _HIGHEST, lambda car: car.lane == 1)
_GREY, _GRASS = "a red car on the grey track", "a red car on the green grass"
_TRACK = _goal("on_track", "a red car", _GREY, _GRASS, lambda car: car.on_road)
_ON, _OFF = "a green car on the road", "a green car off the road"
_ON_ROAD = _goal("on_road", "a green car", _ON, _OFF, lambda car: car.on_road)


def _goals(spec: EnvSpec) -> list[Goal]:
    if is_racing(spec):
        return [_TRACK]
    if spec.name.startswith(("highway", "merge")):  # straight roads, where lanes have a plain meaning
        return [_CLEAR, _RIGHTMOST, SAFE]
    if spec.name.startswith("racetrack"):
        return [_ON_ROAD, _CLEAR, SAFE]
    return [SAFE, _CLEAR] if names(spec) else []


_AIMS = {
    "highway": "drive fast along the highway, in the right lane where it is free, and crash into nobody",
    "merge": "drive on to the end of the road, let cars merge from the side and crash into nobody",
    "roundabout": "go round the roundabout, leave it at the planned exit and crash into nobody",
    "intersection": "cross the intersection as planned and crash into nobody",
    "racetrack": "drive on along the track, stay on it and crash into nobody",
    "parking": "park the car in the marked place, in the right direction, without a crash",
    "CarRacing": "drive fast round the track and stay on it",
}


def _aim(spec: EnvSpec) -> str:
    return next((aim for name, aim in _AIMS.items() if spec.name.startswith(name)), "drive on and crash into nobody")


def _scatter(env: gym.Env, rng: np.random.Generator) -> bool:
    """A random state; False for parking, which has no road."""
    if env.spec is None or not names(env.spec):
        return False
    if is_racing(env.spec):
        _put_on_track(env, int(rng.integers(1 << 30)), TRACK * rng.uniform(-2, 2), 0.5 * rng.normal())
        return True
    inner = simulator(env)
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
    # A car with continuous actions may leave the road.
    aside = 0.3 * rng.normal() if hasattr(car, "target_lane_index") else lane.width_at(along) * rng.uniform(-0.8, 0.8)
    speed = (lane.speed_limit or car.MAX_SPEED) * rng.uniform(0.3, 1.1)
    _put_on_road(inner, (origin, end, number), along, aside, 0.05 * rng.normal(), speed)
    inner.road.vehicles = [v for v in inner.road.vehicles if v is car or math.dist(v.position, car.position) > APART]
    if rng.random() < 0.5:
        ahead = along + LENGTH + rng.uniform(-4, 20)
        _put_ahead(inner, (origin, end, number), ahead, aside, speed * rng.uniform(0.2, 1.0))
    return True


def _axis(spec: EnvSpec) -> Axis | None:
    if not names(spec):
        return None
    if is_racing(spec):
        offset = "offset from the track's centre, m"
        return Axis(offset, -3 * TRACK, 3 * TRACK, lambda env, x: _put_on_track(env, 20, x))
    return Axis("gap to the vehicle ahead, m", 0.5, 60.0, _pose_gap)


def _pose_gap(env: gym.Env, gap: float) -> None:
    inner = simulator(env)
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

    inner = simulator(env)
    _, direction, x, y = inner.track[tile % len(inner.track)]
    inner.car.destroy()
    place = x + aside * math.cos(direction), y + aside * math.sin(direction)
    inner.car = Car(inner.world, direction - turned, *place)
    inner.t = max(inner.t, 1.0)  # until then the camera is still coming down


def _success(env: gym.Env, episode_return: float, terminated: bool, info: dict[str, Any]) -> bool | None:
    if is_racing(env.spec):
        return episode_return >= 900
    car = read(sense(env))
    arrived = not has_route(env.spec) or car.completion == 1
    return bool(info.get("is_success", arrived and car.on_road and not car.crashed))


FAMILY = Family(
    name="driving",
    description="driving: highway-env's traffic, and CarRacing from pixels",
    ids=(
        *("highway-v0", "highway-fast-v0", "merge-v0", "roundabout-v0", "intersection-v0", "racetrack-v0"),
        *("parking-v0", "CarRacing-v3"),
    ),
    knows=lambda spec: entry(spec).startswith(("highway_env.", "gymnasium.envs.box2d.car_racing")),
    module="highway_env",
    repair=OneFrame,
    adapt=adapt,
    options=frozenset(OPTIONS),
    caption=_caption,
    goals=_goals,
    aim=_aim,
    signals=names,
    sense=sense,
    scatter=_scatter,
    axis=_axis,
    metrics=lambda env: Driving(seconds(env)) if _is_road(env.spec) else None,
    success=_success,
)
