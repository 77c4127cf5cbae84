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
from envs.family import Axis, Family, Goal, aims_of, simulator
from envs.observations import Recorded, plain_observation
from envs.render import name_of
from envs.types import EnvReset, Info, Notes

# Metres to the vehicle ahead below which it is close; at 25 m/s less than a second.
CLOSE_GAP_M = 20.0
# Shares of the speed limit below and above which a car drives slowly and fast.
SLOW_SHARE = 0.73
FAST_SHARE = 0.9
# How far the road ahead turns where a caption says so.
MIN_TURN_RAD = 0.25
# The options of `adapt`, and the least value of each.
MIN_OPTION_VALUES = {"vehicles_count": 0, "lanes_count": 1, "duration": 0.01}
# What highway-env calls the other vehicles.
VEHICLE_COUNT_KEYS = ("vehicles_count", "initial_vehicle_count", "other_vehicles")
# Around a scattered car there is no other one so near.
FREE_RADIUS_M = 12.0
# The length of highway-env's vehicles.
CAR_LENGTH_M = 5.0
# Half the width of CarRacing's track.
HALF_TRACK_M = 40 / 6
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
        # What the environment made of DRIVER in its last reset.
        self._driver: dict[str, float] = {}

    def reset(self, **kwargs: Any) -> EnvReset:
        driver_class = self._set_driver(DRIVER)
        result = self.env.reset(**kwargs)
        self._driver = {name: getattr(driver_class, name) for name in DRIVER}
        return result

    def step(self, action: Any) -> Any:
        # The model belongs to the class, so another environment of the process may have changed it.
        self._set_driver(self._driver)
        return self.env.step(action)

    def _set_driver(self, values: dict[str, float]) -> Any:
        """Write the driver model into highway-env's class; into nothing where there is no road."""
        driver_class: Any = SimpleNamespace()
        if hasattr(self.unwrapped, "road"):
            driver_class = importlib.import_module("highway_env.vehicle.behavior").IDMVehicle
        for name, value in values.items():
            setattr(driver_class, name, value)
        return driver_class

    def render(self) -> Any:
        inner: Any = self.unwrapped
        image: Any = self.env.render()
        if self.render_mode != "rgb_array" or not hasattr(inner, "viewer"):
            return image
        # A viewer that was made without a screen is off, so that its first frame is black.
        if inner.viewer is not None and not getattr(inner.viewer, "enabled", True):
            inner.viewer.enabled = True
            image = self.env.render()
        # The first `render` makes highway-env draw every simulation step from then on.
        if getattr(inner, "_record_video_wrapper", None) is None:
            inner.enable_auto_render = False
        return image


class Configured(Recorded):
    """highway-env's `config` by the names that its environments share; the module lists them and their ranges."""

    def __init__(self, env: gym.Env, **values: float) -> None:
        super().__init__(env, **values)
        config = getattr(simulator(env), "config", {})
        for name, value in values.items():
            lowest = MIN_OPTION_VALUES[name]
            if value < lowest:
                raise ValueError(f"{name}={value} is out of range; give {lowest} or more, or leave it out")
            candidates = VEHICLE_COUNT_KEYS if name == "vehicles_count" else (name,)
            keys = [key for key in candidates if key in config]
            if not keys:
                raise ValueError(f"{name}={value} cannot be set: {name_of(env)} has no such option; leave it out")
            config[keys[0]] = value


def adapt(
    env: gym.Env,
    vehicles_count: int | None = None,
    lanes_count: int | None = None,
    duration: float | None = None,
) -> gym.Env:
    """Plain observations, of a road with the given traffic."""
    options = zip(MIN_OPTION_VALUES, (vehicles_count, lanes_count, duration))
    values = {name: value for name, value in options if value is not None}
    if values:
        env = Configured(env, **values)
    return plain_observation(env)


def road_caption(signals: np.ndarray, lanes: int, bent: float = 0.0) -> str:
    """A caption of the signals (9,), on a road that turns by `bent` rad within the next metres, right positive."""
    car = read(signals)
    if car.crashed:
        return "the car has crashed"
    if not car.on_road:
        return "the car is off the road"
    turning = ""
    if abs(bent) > MIN_TURN_RAD:
        turning = f", turning {'right' if bent > 0 else 'left'}"
    ahead = "the road ahead is clear" if car.gap > CLOSE_GAP_M else "another car is close ahead"
    return f"the car {_pace_words(car)} {_lane_words(car, lanes)}{turning}, {ahead}"


def _pace_words(car: Vehicle) -> str:
    if abs(car.speed) < 0.5:
        return "stands"
    if car.speed > FAST_SHARE * car.speed_limit:
        return "drives fast"
    if car.speed < SLOW_SHARE * car.speed_limit:
        return "drives slowly"
    return "drives steadily"


def _lane_words(car: Vehicle, lanes: int) -> str:
    if lanes <= 1:
        return "on the road"
    if car.lane == 1:
        return "in the right lane"
    if car.lane == 0:
        return "in the left lane"
    return "in the middle lane"


def _caption(env: gym.Env, memory: Notes) -> str:
    signals = sense(env)
    if names(simulator(env).spec):
        return road_caption(signals, lanes(env), bend(env))
    return "the car has crashed" if read(signals).crashed else ""


def _goal(name: str, baseline: str, prompt: str, negative: str, truth: Callable[[Vehicle], Any]) -> Goal:
    return Goal(name, prompt, baseline, lambda env: bool(truth(read(sense(env)))), negative)


# The two sentences of VLM-RL (Huang et al., 2024, arXiv 2412.15544); the baseline is VLM-RM's in its comparison.
SAFE = _goal(
    "safe",
    "A car",
    "The road is clear with no car accidents",
    "Two cars have collided with each other on the road",
    lambda car: not car.crashed,
)
_CLEAR = _goal(
    "clear",
    "a green car on a road",
    "a green car with no car close ahead of it",
    "a green car with another car close ahead of it",
    lambda car: not car.crashed and car.gap > CLOSE_GAP_M,
)
_RIGHTMOST = _goal(
    "rightmost",
    "a green car on a road",
    "a green car in the lowest lane of the road",
    "a green car in the highest lane of the road",
    lambda car: car.lane == 1,
)
_ON_TRACK = _goal(
    "on_track",
    "a red car",
    "a red car on the grey track",
    "a red car on the green grass",
    lambda car: car.on_road,
)
_ON_ROAD = _goal(
    "on_road",
    "a green car",
    "a green car on the road",
    "a green car off the road",
    lambda car: car.on_road,
)


def _goals(spec: EnvSpec) -> list[Goal]:
    if is_racing(spec):
        return [_ON_TRACK]
    # On straight roads lanes have a plain meaning.
    if spec.name.startswith(("highway", "merge")):
        return [_CLEAR, _RIGHTMOST, SAFE]
    if spec.name.startswith("racetrack"):
        return [_ON_ROAD, _CLEAR, SAFE]
    return [SAFE, _CLEAR] if names(spec) else []


def _scatter(env: gym.Env, rng: np.random.Generator) -> bool:
    """A random state; False for parking, which has no road."""
    if not names(simulator(env).spec):
        return False
    if is_racing(env.spec):
        tile = int(rng.integers(1 << 30))
        _put_on_track(env, tile, HALF_TRACK_M * rng.uniform(-2, 2), 0.5 * rng.normal())
    else:
        _scatter_on_road(simulator(env), rng)
    return True


def _scatter_on_road(inner: Any, rng: np.random.Generator) -> None:
    car = inner.vehicle
    graph = inner.road.network.graph
    route = list(getattr(car, "route", None) or ())
    if route:
        roads = [step[:2] for step in route]
    else:
        roads = [(origin, end) for origin in graph for end in graph[origin]]
    number = int(rng.integers(len(roads)))
    origin, end = roads[number]
    lane_number = int(rng.integers(len(graph[origin][end])))
    index = (origin, end, lane_number)
    lane = graph[origin][end][lane_number]
    along = float(rng.uniform(0, lane.length))
    if lane.length > 1000:
        # The highway: stay where the traffic is.
        along = lane.local_coordinates(car.position)[0]
    if route:
        car.route = route[number:]
    if hasattr(car, "target_lane_index"):
        aside = 0.3 * rng.normal()
    else:
        # A car with continuous actions may leave the road.
        aside = lane.width_at(along) * rng.uniform(-0.8, 0.8)
    speed = (lane.speed_limit or car.MAX_SPEED) * rng.uniform(0.3, 1.1)
    _put_on_road(inner, index, along, aside, 0.05 * rng.normal(), speed)
    inner.road.vehicles = [
        other
        for other in inner.road.vehicles
        if other is car or math.dist(other.position, car.position) > FREE_RADIUS_M
    ]
    if rng.random() < 0.5:
        ahead = along + CAR_LENGTH_M + rng.uniform(-4, 20)
        _put_ahead(inner, index, ahead, aside, speed * rng.uniform(0.2, 1.0))


def _axis(spec: EnvSpec) -> Axis | None:
    if not names(spec):
        return None
    if not is_racing(spec):
        return Axis("gap to the vehicle ahead, m", 0.5, 60.0, _pose_gap)

    def place(env: gym.Env, offset: float) -> None:
        # A tile some way behind the start; the others look much the same.
        _put_on_track(env, 20, offset)

    return Axis("offset from the track's centre, m", -3 * HALF_TRACK_M, 3 * HALF_TRACK_M, place)


def _pose_gap(env: gym.Env, gap: float) -> None:
    inner = simulator(env)
    car = inner.vehicle
    along = car.lane.local_coordinates(car.position)[0]
    inner.road.vehicles = [car]
    _put_on_road(inner, car.lane_index, along, 0.0, 0.0, car.speed)
    _put_ahead(inner, car.lane_index, along + CAR_LENGTH_M + gap, 0.0, car.speed)


def _put_on_road(inner: Any, index: Any, along: float, aside: float, turned: float, speed: float) -> None:
    """Put the car into a lane: metres along and beside it, rad from its direction, m/s."""
    car = inner.vehicle
    lane = inner.road.network.get_lane(index)
    car.position = lane.position(along, aside)
    car.heading = lane.heading_at(along) + turned
    car.speed = speed
    car.crashed = False
    if hasattr(car, "target_lane_index"):
        car.target_lane_index = index
    car.on_state_update()


def _put_ahead(inner: Any, index: Any, along: float, aside: float, speed: float) -> None:
    from highway_env.vehicle.behavior import IDMVehicle

    lane = inner.road.network.get_lane(index)
    position = lane.position(along, aside)
    inner.road.vehicles.append(IDMVehicle(inner.road, position, lane.heading_at(along), speed))


def _put_on_track(env: gym.Env, tile: int, aside: float, turned: float = 0.0) -> None:
    from gymnasium.envs.box2d.car_dynamics import Car

    inner = simulator(env)
    _, direction, x, y = inner.track[tile % len(inner.track)]
    inner.car.destroy()
    car_x = x + aside * math.cos(direction)
    car_y = y + aside * math.sin(direction)
    inner.car = Car(inner.world, direction - turned, car_x, car_y)
    # In the first second the camera is still coming down.
    inner.t = max(inner.t, 1.0)


def _success(env: gym.Env, episode_return: float, terminated: bool, info: Info) -> bool | None:
    if is_racing(env.spec):
        return episode_return >= 900
    car = read(sense(env))
    arrived = not has_route(simulator(env).spec) or car.completion == 1
    return bool(arrived and car.on_road and not car.crashed)


DRIVING_FAMILY = Family(
    name="driving",
    description="driving: highway-env's traffic, and CarRacing from pixels",
    ids=(
        "highway-v0",
        "highway-fast-v0",
        "merge-v0",
        "roundabout-v0",
        "intersection-v0",
        "racetrack-v0",
        "parking-v0",
        "CarRacing-v3",
    ),
    entries=("highway_env.", "gymnasium.envs.box2d.car_racing"),
    module="highway_env",
    extra="driving",
    repair=OneFrame,
    adapt=adapt,
    options=frozenset(MIN_OPTION_VALUES),
    caption=_caption,
    goals=_goals,
    aim=aims_of("driving"),
    signals=names,
    sense=sense,
    scatter=_scatter,
    axis=_axis,
    metrics=lambda env: Driving(seconds(env)) if names(simulator(env).spec) else None,
    success=_success,
)
