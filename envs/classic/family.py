"""Classic control: Gymnasium's own ids, and our tasks in it (`envs.classic.tasks`).

Captions, in a small vocabulary:
    CartPole      the pole {is upright | is upright but tilts to the left | leans to the left | lies to the left |
                  hangs down to the left | hangs straight down}, the cart is {in the middle | at the left}[, near the
                  edge]; and the same to the right
    Pendulum      the pendulum {as the pole}
    MountainCar   the car is {in the valley | on the left slope | high on the left slope | at the peak of the mountain,
                  next to the flag}; and the same on the right
    Acrobot       the tip is {above the line | below the line, nearly up to it | below the line, half way up | below
                  the line, hanging low}

Velocities are not in them: a pendulum that stands looks like one that races through.

Pendulum's signals are the cosine of its angle, its speed in |rad/s| and the last torque in |N m|. `pose` sets any
state, for frames of it; scattered states have any angle or place, at moderate speeds.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from gymnasium.envs.registration import EnvSpec

from envs.classic.tasks import FLAG, HELD, UPRIGHT, CartPoleUpright, MountainCarSparse, PendulumSparse, is_upright
from envs.classic.view import Canvas
from envs.family import Axis, Family, Goal, entry, simulator
from envs.transitions import Ends, never
from envs.types import Array

Captions = Callable[[np.ndarray], np.ndarray]  # states (N, D) -> object (N,) of str
TURN = (-math.pi, math.pi)

_LEAN = np.array([UPRIGHT / 2, UPRIGHT, math.pi / 3, 2 * math.pi / 3, math.pi - UPRIGHT])  # rad from upright
_CART = np.array([-2.1, -0.8, 0.8, 2.1])  # m; the track ends at 2.4, CartPoleUpright's at 2.2
_HIGH = math.asin(0.3)  # MountainCar's height is sin(3 x)
_CAR = np.array([-(math.pi + _HIGH) / 3, -math.pi / 6 - 0.3, -math.pi / 6 + 0.3, _HIGH / 3, FLAG])
_TIP = np.array([-1.0, 0.0, 1.0])  # lengths of a link, from the joint that hangs on the wall; the line is at 1
_POSES = (
    "is upright",
    *(f"{pose} to the {{}}" for pose in ("is upright but tilts", "leans", "lies", "hangs down")),
    "hangs straight down",
)
_PLACES = ("at the left, near the edge", "at the left", "in the middle", "at the right", "at the right, near the edge")
_HILLS = (
    *("high on the left slope", "on the left slope", "in the valley", "on the right slope", "high on the right slope"),
    "at the peak of the mountain, next to the flag",
)
_TIPS = (*(f"below the line, {place}" for place in ("hanging low", "half way up", "nearly up to it")), "above the line")


def _leaning(*sides: str) -> list[str]:
    return [pose.format(side) for side in sides for pose in _POSES]


def _table(subject: str, places: Iterable[str]) -> np.ndarray:
    return np.array([f"{subject} {place}" for place in places], object)


# In the picture a positive angle leans right in CartPole, and left in Pendulum.
_POLES = _table("the pole", (f"{pose}, the cart is {place}" for pose in _leaning("left", "right") for place in _PLACES))
_PENDULUMS = _table("the pendulum", _leaning("right", "left"))
_CARS, _ARMS = _table("the car is", _HILLS), _table("the tip is", _TIPS)


def _lean(angle: np.ndarray) -> np.ndarray:
    """Numbers of `_POSES`, and len(_POSES) more to the side of positive angles."""
    angle = np.remainder(angle + math.pi, 2 * math.pi) - math.pi
    return np.searchsorted(_LEAN, abs(angle), side="right") + len(_POSES) * (angle >= 0)


def _tip_height(state: Any) -> Any:
    """Height of Acrobot's tip, in arm lengths above the pivot, of states (..., 4)."""
    return -np.cos(state[..., 0]) - np.cos(state[..., 0] + state[..., 1])


def _state(env: gym.Env) -> np.ndarray:
    return np.asarray(simulator(env).state)


def _has_arrived(options: dict[str, Any], x: Array, flag: float) -> Array:
    return (x[..., 0] >= flag) & (x[..., 1] >= options.get("goal_velocity", 0))


def _upright(prompt: str, baseline: str, negative: str, index: int) -> Goal:
    """The angle with this index in the state is within 12 degrees of the vertical."""

    def degree(env: gym.Env) -> float:
        return math.cos(_state(env)[index])

    return Goal("upright", prompt, baseline, lambda env: is_upright(_state(env)[index]), negative, degree)


@dataclass(frozen=True)
class Kind:
    """What CartPole, MountainCar, Pendulum and Acrobot each share with the tasks made of them."""

    variables: tuple[str, ...]  # those of the state vector, in order, by the names that `pose` takes
    ranges: tuple[tuple[float, float], ...]  # the ends of each, for scattered states
    axis: tuple[int, str]  # the variable to draw a reward over, and its name; the others are 0
    goal: Goal
    caption: Captions

    def place(self, env: gym.Env, value: float) -> None:
        inner = simulator(env)
        inner.state = np.zeros(len(self.ranges))
        inner.state[self.axis[0]] = value


KINDS = {
    "CartPole": Kind(
        ("position", "velocity", "angle", "angular_velocity"),
        ((-2.2, 2.2), (-1.0, 1.0), TURN, (-2.0, 2.0)),
        (2, "angle of the pole, rad"),
        _upright("pole vertically upright on top of the cart", "pole and cart", "pole hanging down below the cart", 2),
        lambda x: _POLES[_lean(x[:, 2]) * len(_PLACES) + np.searchsorted(_CART, x[:, 0], side="right")],
    ),
    "MountainCar": Kind(
        ("position", "velocity"),
        ((-1.2, 0.6), (-0.07, 0.07)),
        (0, "position of the car, m"),
        Goal(
            "flag",
            "a car at the peak of the mountain, next to the yellow flag",
            "a car in the mountain",
            lambda env: bool(_state(env)[0] >= FLAG),
            "a car at the bottom of the valley",
            lambda env: float(_state(env)[0]),
        ),
        lambda x: _CARS[np.searchsorted(_CAR, x[:, 0], side="right")],
    ),
    "Pendulum": Kind(
        ("angle", "angular_velocity"),
        (TURN, (-4.0, 4.0)),
        (0, "angle of the pendulum, rad"),
        _upright("pendulum in the upright position", "pendulum", "pendulum hanging down", 0),
        lambda x: _PENDULUMS[_lean(x[:, 0])],
    ),
    "Acrobot": Kind(
        (),
        (TURN, TURN, (-2.0, 2.0), (-2.0, 2.0)),
        (0, "angle of the stretched arm, rad"),
        Goal(
            "up",
            "an acrobot stretched out above the line",
            "an acrobot",
            lambda env: bool(_tip_height(_state(env)) > 1.0),
            "an acrobot hanging down below the line",
            lambda env: float(_tip_height(_state(env))),
        ),
        lambda x: _ARMS[np.searchsorted(_TIP, _tip_height(x))],
    ),
}

_CLIMB = "drive the car up to the flag at the peak of the mountain, swinging from slope to slope to gain speed"
_SWING = "swing the pendulum up and keep it upright"
_SWING_POLE = "swing the pole up and keep it upright, with the cart near the middle of its track"
_AIMS = {  # class in the entry point -> what counts as progress
    "CartPoleEnv": "keep the pole upright on the cart, and the cart away from the edges of its track",
    "CartPoleUpright": "keep the pole upright on the cart, and swing it up again where it fell",
    **dict.fromkeys(("CartPoleSwingUp", "CartPoleSwingUpSparse"), _SWING_POLE),
    **dict.fromkeys(("MountainCarEnv", "Continuous_MountainCarEnv", "MountainCarSparse"), _CLIMB),
    "MountainCarGoal": _CLIMB + ", and stay there",
    **dict.fromkeys(("PendulumEnv", "PendulumUpright", "PendulumSparse", "PixelPendulum"), _SWING),
    "AcrobotEnv": "swing the arm up until its tip is above the line",
}
# class -> (constructor's arguments, next_obs) -> the episode terminates; the others never do
_ENDS: dict[str, Callable[[dict[str, Any], Array], Array]] = {
    "CartPoleEnv": lambda options, x: (abs(x[..., 0]) > 2.4) | (abs(x[..., 2]) > 12 * 2 * math.pi / 360),
    **dict.fromkeys(("MountainCarEnv", "MountainCarSparse"), lambda options, x: _has_arrived(options, x, 0.5)),
    "Continuous_MountainCarEnv": lambda options, x: _has_arrived(options, x, 0.45),
    # -cos1 - cos(angle1 + angle2)
    "AcrobotEnv": lambda options, x: -x[..., 0] - (x[..., 0] * x[..., 2] - x[..., 1] * x[..., 3]) > 1.0,
}


def _class(spec: EnvSpec) -> str:
    return entry(spec).split(":")[-1]


def kind_of(cls: type) -> Kind | None:
    """The kind that a class of environments derives from."""
    return next((kind for base in cls.__mro__ for name, kind in KINDS.items() if name in base.__name__), None)


def _kind(spec: EnvSpec) -> Kind | None:
    return next((kind for name, kind in KINDS.items() if name in _class(spec)), None)


def _caption(env: gym.Env, memory: dict[str, Any]) -> str:
    kind = kind_of(type(env.unwrapped))
    return "" if kind is None else kind.caption(_state(env)[None])[0]


def pose(env: gym.Env, **state: float) -> None:
    """Put CartPole, MountainCar or Pendulum (Gymnasium's or ours) into a state; `env.render()` then shows it.

    A state is what it has of `position` (m), `velocity` (m/s), `angle` (rad from upright), `angular_velocity` (rad/s).
    """
    inner = simulator(env)
    kind = kind_of(type(inner))
    names = () if kind is None else kind.variables
    if not names:
        raise TypeError(f"pose() knows CartPole, MountainCar and Pendulum, not {type(inner).__name__}")
    if unknown := sorted(set(state) - set(names)):
        raise ValueError(f"{type(inner).__name__} has no state variable {unknown[0]!r}; it has {', '.join(names)}")
    _set(inner, np.array([float(state.get(name, 0.0)) for name in names]))


def _set(inner: Any, state: np.ndarray) -> None:
    inner.state = state
    if isinstance(inner, PendulumEnv):
        inner.last_u = None  # the arrow belongs to a torque that was not applied here


def _scatter(env: gym.Env, rng: np.random.Generator) -> bool:
    kind = kind_of(type(env.unwrapped))
    assert kind is not None
    _set(env.unwrapped, rng.uniform(*np.array(kind.ranges).T))
    return True


def _axis(spec: EnvSpec) -> Axis | None:
    kind = _kind(spec)
    return None if kind is None else Axis(kind.axis[1], *kind.ranges[kind.axis[0]], kind.place)


_OBSERVED: dict[str, tuple[str, ...]] = {  # by a part of the class's name; the first that fits
    "Pixel": (),
    "CartPoleEnv": ("cart position", "cart velocity", "pole angle", "angular velocity"),
    "CartPole": ("cart position", "cart velocity", "cos of the angle", "sin of the angle", "angular velocity"),
    "Pendulum": ("cos of the angle", "sin of the angle", "angular velocity"),
    "MountainCar": ("position", "velocity"),
    "Acrobot": ("cos 1", "sin 1", "cos 2", "sin 2", "angular velocity 1", "angular velocity 2"),
}


_STEP_REWARDS = {  # the lowest and the highest, by the class's name
    "CartPoleEnv": (0.0, 1.0),
    "MountainCarEnv": (-1.0, 0.0),
    "AcrobotEnv": (-1.0, 0.0),
    "PendulumEnv": (-(math.pi**2 + 0.1 * 8.0**2 + 0.001 * 2.0**2), 0.0),
}


def _returns(spec: EnvSpec) -> tuple[float, float] | None:
    ends = _STEP_REWARDS.get(entry(spec).rpartition(":")[2])
    steps = spec.max_episode_steps
    if ends is None or steps is None or spec.kwargs.get("sutton_barto_reward"):
        return None
    return steps * ends[0], steps * ends[1]


def _sense(env: gym.Env) -> np.ndarray:
    inner = simulator(env)
    angle, velocity = inner.state
    return np.array([math.cos(angle), abs(velocity), abs(inner.last_u or 0.0)], np.float32)


def _terminates(spec: EnvSpec) -> Ends | None:
    name = _class(spec)
    if name not in _AIMS or name == "PixelPendulum":
        return None
    rule = _ENDS.get(name)
    return never if rule is None else lambda obs, action, next_obs: rule(spec.kwargs, next_obs)


def _success(env: gym.Env, episode_return: float, terminated: bool, info: dict[str, Any]) -> bool | None:
    inner = simulator(env)
    if isinstance(inner, CartPoleUpright):
        return episode_return >= inner.SOLVED
    if isinstance(inner, PendulumSparse):
        return episode_return >= HELD
    kind = kind_of(type(inner))
    if kind is KINDS["CartPole"]:
        return not terminated
    if isinstance(inner, MountainCarSparse) or kind is KINDS["Acrobot"]:
        return terminated
    return None if kind is None else kind.goal.truth(env)


FAMILY = Family(
    name="classic",
    description="classic control: poles, pendulums and a car on a hill, drawn in two dimensions",
    ids=(
        *("lodestar/CartPoleUpright-v0", "lodestar/MountainCarGoal-v0", "lodestar/PendulumUpright-v0"),
        *("lodestar/MountainCarSparse-v0", "lodestar/PendulumSparse-v0", "lodestar/PixelPendulum-v0"),
        *("lodestar/CartPoleSwingUp-v0", "lodestar/CartPoleSwingUpSparse-v0"),
        *("CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "Acrobot-v1"),
    ),
    knows=lambda spec: entry(spec).startswith(("gymnasium.envs.classic_control", "envs.classic.")),
    repair=Canvas,
    caption=_caption,
    aim=lambda spec: _AIMS.get(_class(spec), ""),
    goals=lambda spec: [kind.goal] if (kind := _kind(spec)) is not None else [],
    scatter=_scatter,
    axis=_axis,
    terminates=_terminates,
    observed=lambda spec: next((names for kind, names in _OBSERVED.items() if kind in _class(spec)), ()),
    signals=lambda spec: ("height", "spin", "torque") if entry(spec).endswith(":PendulumEnv") else (),
    sense=_sense,
    returns=_returns,
    success=_success,
)
