"""Third-party driving environments, mainly CARLA's: their camera as our frames, their car as our signals.

    make("lodestar/Carla-v0", world="my_module:make_env", wiring="vlm-rl", frame_size=96, signals=True)
    python -m runners.train env=lodestar/Carla-v0 env.world=my_module:make_env env.wiring=cardreamer ...

`world` is a Gymnasium id, or "module:function" (or the function itself) that makes an environment of Gymnasium or of
the old gym: four things from a step, only observations from a reset, spaces of its own kind. `wiring` says where
things are: a name below, or a dict of `Wiring`'s fields. `observe` names the entries of a dict observation that the
policy shall see.

Sources: what CarDreamer (Gao et al., 2024, arXiv 2405.09111) and VLM-RL (Huang et al., 2024, arXiv 2412.15544) publish
of their observations and infos.

Differences from ours, converted here: km/h and degrees; collisions as flags, arrays of one flag, counts or lists of
events, which stay true for the rest of the episode; time limits in the info or nowhere; information missing at a reset,
where speed, offset and the like have the values of `Wiring`'s defaults.

When it fails: it was never run against a CARLA server; it is tested with a hand-written trace after the keys of these
two projects. CarDreamer has neither the lane's offset nor the heading, so a reward that reads them finds 0. VLM-RL's
offset has no sign. A simulator that is not deterministic cannot be brought back to a state, so a resumed run continues
from another one.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass, fields, replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envs.driving.family import SAFE, words
from envs.driving.vehicle import FAR, VEHICLE, Driving, Vehicle, wrap
from envs.family import Family, entry, simulator
from envs.types import EnvReset, EnvStep

Where = str | float | Callable[[Any, Mapping[str, Any] | None, Any], Any]
ROOTS = ("obs", "info", "env")
FLAGS = ("on_road", "crashed", "truncated", "success")
UNITS = {  # in m, m/s, rad or as a share
    **{"": 1.0, "m": 1.0, "cm": 0.01, "m/s": 1.0, "km/h": 1 / 3.6, "mph": 0.44704},
    **{"rad": 1.0, "deg": math.pi / 180, "%": 0.01},
}


@dataclass(frozen=True)
class Wiring:
    """Where an environment keeps what we read.

    Each is a number that never changes, a function of (obs, info, env), or "root.path unit", such as
    "info.speed km/h" or "env.distance_from_center". The root is `obs`, `info` or `env`, an attribute of the
    environment, and is called if it is a method. A unit is one of `UNITS`, with a minus for what points left; a flag
    may be followed by "not". What is not explained is as in `envs.driving.vehicle`.
    """

    image: Where = "obs.image"  # uint8 (H, W, 3) or (3, H, W), needed for frames
    speed: Where = 0.0
    lane_offset: Where = 0.0
    heading: Where = 0.0
    on_road: Where = 1.0
    crashed: Where = 0.0
    completion: Where = 0.0
    gap: Where = FAR
    lane: Where = 0.5
    speed_limit: Where = 25 / 3.6  # VLM-RL's target speed
    truncated: Where = 0.0  # whether an episode that ended was only out of time
    success: Where = ""  # whether the episode was one; empty for a completed route without a crash
    seconds: float = 0.1  # that a step takes

    def __post_init__(self) -> None:
        for each in fields(self):
            where = getattr(self, each.name)
            if not isinstance(where, str) or not where:
                continue
            path, _, unit = where.partition(" ")
            if path.partition(".")[0] not in ROOTS:
                raise ValueError(f"{each.name}={where!r} begins with none of {', '.join(ROOTS)}; give such a path")
            if unit.removeprefix("-") not in UNITS and not (unit == "not" and each.name in FLAGS):
                known = ", ".join(filter(None, UNITS))
                raise ValueError(f"{each.name}={where!r} has the unknown unit {unit!r}; give one of {known}")
        if not self.seconds > 0:
            raise ValueError(f"seconds={self.seconds} is out of range; give the time of one step, above 0")


WIRINGS = {
    "cardreamer": Wiring(
        image="obs.birdeye_wpt",
        speed="info.speed_norm m/s",
        on_road="info.out_of_lane not",
        crashed="info.is_collision",
        completion="info.destination_reached",
        truncated="info.time_exceeded",
        speed_limit=4.0,  # its desired speed
    ),
    "vlm-rl": Wiring(
        image="env.bev_data",
        speed="env.vehicle.get_speed km/h",
        lane_offset="env.distance_from_center m",
        heading=lambda obs, info, env: env.vehicle.get_angle(env.current_waypoint),
        crashed="env.collision_state",
        completion="env.routes_completed",
        seconds=1 / 15,
    ),
}


class Carla(gym.Env):
    """A third-party driving environment with a camera and a car; the module says what the arguments are.

    `observe` has commas between entries; one alone is no dict, none the whole observation. A ValueError if the world
    cannot be made, or the wiring or an entry is unknown.
    """

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(
        self,
        world: str | Callable[[], Any] = "",
        wiring: str | Mapping[str, Any] = "cardreamer",
        observe: str = "",
        render_mode: str | None = None,
    ) -> None:
        self.wiring, self.render_mode, self.world = _wiring(wiring), render_mode, _made(world)
        self.action_space = _space(self.world.action_space)
        whole = _space(self.world.observation_space)
        self._names = [name for name in observe.split(",") if name]
        inside = whole.spaces if isinstance(whole, spaces.Dict) else {}
        for name in self._names:
            if name not in inside:
                raise ValueError(f"observe={observe!r} is no entry of the observation, which has {list(inside)}")
        if self._names:
            whole = spaces.Dict({name: inside[name] for name in self._names})
        self.observation_space = inside[observe] if len(self._names) == 1 else whole
        self._inside = list(inside)
        self._seen: dict[str, Any] = {}
        self.signals = np.zeros(len(VEHICLE), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> EnvReset:
        super().reset(seed=seed)
        if isinstance(self.world, gym.Env):
            obs, info = self.world.reset(seed=seed, options=options)
        else:
            if seed is not None and hasattr(self.world, "seed"):
                self.world.seed(seed)
            answer = self.world.reset()
            obs, info = answer if isinstance(answer, tuple) else (answer, None)
        self.signals = np.zeros(len(VEHICLE), np.float32)
        self._read(obs, info)
        return self._observation(obs), dict(info or {})

    def step(self, action: Any) -> EnvStep:
        obs, reward, *ends, info = self.world.step(action)
        self._read(obs, info)
        if len(ends) == 1:  # the old gym's
            late = bool(self._value("truncated")) or bool(info.get("TimeLimit.truncated", False))
            ends = [ends[0] and not late, ends[0] and late]
        terminated, truncated = map(bool, ends)
        info = dict(info)
        if (terminated or truncated) and self.wiring.success != "":
            info["is_success"] = bool(self._value("success"))
        return self._observation(obs), float(reward), terminated, truncated, info

    def render(self) -> Any:
        """The camera's picture, uint8 (H, W, 3); a RuntimeError if there is none, or it is not an image."""
        image = self._value("image")
        picture = np.asarray(image)
        if picture.ndim == 3 and picture.shape[0] in (3, 4) and picture.shape[2] not in (3, 4):
            picture = picture.transpose(1, 2, 0)
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] not in (3, 4):
            raise RuntimeError(
                f"image={self.wiring.image!r} is {type(image).__name__} {picture.dtype} {picture.shape}, no picture; "
                "wire it to uint8 (H, W, 3), which must be there after a reset too"
            )
        return np.ascontiguousarray(picture[..., :3])

    def close(self) -> None:
        self.world.close()

    def _read(self, obs: Any, info: Mapping[str, Any] | None) -> None:
        self._seen = {"obs": obs, "info": info, "env": getattr(self.world, "unwrapped", self.world)}
        car = Vehicle(*(self._value(name) for name in VEHICLE))
        car = car._replace(
            heading=wrap(car.heading),
            crashed=max(float(car.crashed), float(self.signals[VEHICLE.index("crashed")])),
            completion=min(max(car.completion, 0.0), 1.0),
            gap=min(max(car.gap, 0.0), FAR),
        )
        self.signals = np.array(car, np.float32)

    def _value(self, name: str) -> Any:
        """The value that the wiring names, in our units."""
        where: Any = getattr(self.wiring, name)
        if isinstance(where, str) and where.startswith("info") and self._seen["info"] is None:
            where = next(each.default for each in fields(Wiring) if each.name == name)  # the old gym's reset
        unit, value = "", where
        if callable(where):
            value = where(*(self._seen[root] for root in ROOTS))
        elif isinstance(where, str):
            path, _, unit = where.partition(" ")
            value = self._find(name, path)
        if name == "image":
            return value
        if name in FLAGS:  # a bool, an array, or a list of events
            flag = value.any() if isinstance(value, np.ndarray) else len(value) if isinstance(value, Sized) else value
            return float(bool(flag) != (unit == "not"))
        try:
            (number,) = np.asarray(value, dtype=float).ravel()
        except (TypeError, ValueError):
            raise ValueError(f"{name}={where!r} leads to {value!r}, which is not a number; wire it to one") from None
        return float(number) * UNITS[unit.removeprefix("-")] * (-1 if unit.startswith("-") else 1)

    def _find(self, name: str, path: str) -> Any:
        root, _, rest = path.partition(".")
        value = self._seen[root]
        while rest:
            known = list(value) if isinstance(value, Mapping) else None
            # A key may have dots in it.
            key, _, rest = (rest, "", "") if known and rest in known else rest.partition(".")
            if key not in known if known is not None else not hasattr(value, key):
                has = f"has {known}" if known is not None else f"is {type(value).__name__} without it"
                raise ValueError(f"{name}={path!r} is not there: at {key!r} the environment {has}; correct the wiring")
            value = value[key] if known is not None else getattr(value, key)
            value = value() if callable(value) else value
        return value

    def _observation(self, obs: Any) -> Any:
        if len(self._names) == 1:
            return obs[self._names[0]]
        # Some add entries that their space does not name.
        return {name: obs[name] for name in self._names or self._inside} if self._inside else obs


def _wiring(given: str | Mapping[str, Any] | Wiring) -> Wiring:
    if isinstance(given, Wiring):
        return given
    if isinstance(given, str):
        if given not in WIRINGS:
            raise ValueError(f"wiring={given!r} is unknown; give one of {', '.join(WIRINGS)}, or a dict of paths")
        return WIRINGS[given]
    known = [each.name for each in fields(Wiring)]
    if unknown := [name for name in given if name not in known]:
        raise ValueError(f"wiring has no {unknown[0]!r}; give some of {', '.join(known)}")
    return Wiring(**given)


def _made(world: str | Callable[[], Any]) -> Any:
    if callable(world):
        return world()
    if not world:
        raise ValueError('world is missing; give a Gymnasium id, or "module:function" that makes the environment')
    module, _, name = world.rpartition(":")
    if module:
        try:
            maker = getattr(importlib.import_module(module), name, None)
        except ImportError as error:
            raise ValueError(f"world={world!r} cannot be imported ({error}); install it, or check the name") from None
        if maker is not None:
            return maker()
    try:
        return gym.make(world)
    except gym.error.Error as error:
        raise ValueError(f"world={world!r} cannot be made ({error}); give an id or module:function") from None


def _space(space: Any) -> spaces.Space:
    """The same space in Gymnasium's classes; the old gym's have the same names and attributes."""
    if isinstance(space, spaces.Space):
        return space
    match kind := type(space).__name__:
        case "Box":
            return spaces.Box(space.low, space.high, dtype=space.dtype)
        case "Discrete":
            return spaces.Discrete(int(space.n))
        case "MultiDiscrete":
            return spaces.MultiDiscrete(space.nvec)
        case "Dict":
            return spaces.Dict({name: _space(part) for name, part in space.spaces.items()})
    raise ValueError(f"a space of kind {kind} is not known here; give Box, Discrete, MultiDiscrete or Dict")


def _sense(env: gym.Env) -> np.ndarray:
    return simulator(env).signals


def _success(env: gym.Env, episode_return: float, terminated: bool, info: dict[str, Any]) -> bool | None:
    car = Vehicle(*_sense(env))
    return bool(info.get("is_success", car.completion == 1 and not car.crashed))


FAMILY = Family(
    name="carla",
    description="third-party driving environments with a camera and a car: CARLA's, by CarDreamer, VLM-RL or yours",
    ids=("lodestar/Carla-v0",),
    knows=lambda spec: entry(spec) == "envs.driving.carla:Carla",
    caption=lambda env, memory: words(_sense(env), 1),
    goals=lambda spec: [replace(SAFE, truth=lambda env: not Vehicle(*_sense(env)).crashed)],
    aim=lambda spec: "drive along the road to the end of the route, stay on it and crash into nobody",
    signals=lambda spec: VEHICLE,
    sense=_sense,
    metrics=lambda env: Driving(simulator(env).wiring.seconds),
    success=_success,
)
