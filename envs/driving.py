"""Driving: highway-env's roads seen as numbers, and CarRacing seen as pixels.

Observations:
    highway-env    its kinematics table, flat float32: (25,) for 5 vehicles of 5 features; parking's dict stays a dict
    CarRacing-v3   (3, 96, 96) uint8, channel-first; `continuous=False` gives 5 discrete actions

Traffic is as highway-env has it, which makes stepping slow; `config={"vehicles_count": 10}` asks for less. Success is
an episode without a crash; in CarRacing, a return of 900.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import RecordConstructorArgs

from envs.family import Family, Goal, entry

CLOSE = 20.0  # metres to the vehicle ahead; at 25 m/s less than a second


class OneFrame(gym.Wrapper, RecordConstructorArgs):
    """Draws one frame when asked for one.

    highway-env draws nothing at all, black, where SDL has no screen, and after the first frame it draws one at every
    simulation step, 5 to 15 for each frame anybody sees.
    """

    def __init__(self, env: gym.Env) -> None:
        RecordConstructorArgs.__init__(self)
        super().__init__(env)

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


def _gap(env: gym.Env) -> float:
    """Metres to the next vehicle ahead in the same lane; infinite if there is none."""
    inner: Any = env.unwrapped
    ahead, _ = inner.road.neighbour_vehicles(inner.vehicle)
    if ahead is None:
        return float("inf")
    return float(inner.vehicle.lane_distance_to(ahead)) - inner.vehicle.LENGTH


def _lane(env: gym.Env) -> tuple[int, int]:
    """The lane's number from the left, and how many there are."""
    inner: Any = env.unwrapped
    index = inner.vehicle.lane_index
    return int(index[2]), len(inner.road.network.all_side_lanes(index))


def _crashed(env: gym.Env) -> bool:
    inner: Any = env.unwrapped
    return bool(inner.vehicle.crashed)


def _is_clear(env: gym.Env) -> bool:
    return not _crashed(env) and _gap(env) > CLOSE


def _is_rightmost(env: gym.Env) -> bool:
    number, count = _lane(env)
    return number == count - 1


def _on_track(env: gym.Env) -> bool:
    inner: Any = env.unwrapped
    return any(wheel.tiles for wheel in inner.car.wheels)


_ROAD = [
    Goal("clear", "a green car with no car close ahead of it", "a green car on a road", _is_clear),
    Goal("rightmost", "a green car in the lowest lane of the road", "a green car on a road", _is_rightmost),
]
_TRACK = [Goal("on_track", "a red car on the grey track", "a red car", _on_track)]
_HIGHWAY = ("highway", "merge")  # straight roads, where lanes and gaps have a plain meaning


def _is_racing(spec: EnvSpec | None) -> bool:
    return spec is not None and spec.name == "CarRacing"


def _is_highway(spec: EnvSpec | None) -> bool:
    return spec is not None and spec.name.startswith(_HIGHWAY)


def _goals(spec: EnvSpec) -> list[Goal]:
    if _is_racing(spec):
        return _TRACK
    return _ROAD if _is_highway(spec) else []


def _caption(env: gym.Env, memory: dict[str, Any]) -> str:
    if _is_racing(env.spec):
        return "the car is on the track" if _on_track(env) else "the car is off the track"
    if _crashed(env):
        return "the car has crashed"
    if not _is_highway(env.spec):
        return ""
    inner: Any = env.unwrapped
    speed = "fast" if inner.vehicle.speed > 27 else "slowly" if inner.vehicle.speed < 22 else "steadily"
    ahead = "the road ahead is clear" if _is_clear(env) else "another car is close ahead"
    number, count = _lane(env)
    where = "right lane" if number == count - 1 else "left lane" if number == 0 else "middle lane"
    return f"the car drives {speed} in the {where}, {ahead}"


def _success(env: gym.Env, episode_return: float, terminated: bool, info: dict[str, Any]) -> bool | None:
    if _is_racing(env.spec):
        return episode_return >= 900
    return bool(info["is_success"]) if "is_success" in info else not _crashed(env)


FAMILY = Family(
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
    knows=lambda spec: (
        entry(spec).startswith("highway_env.") or entry(spec).startswith("gymnasium.envs.box2d.car_racing")
    ),
    module="highway_env",
    repair=OneFrame,
    caption=_caption,
    goals=_goals,
    success=_success,
)
