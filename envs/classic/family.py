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

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from gymnasium.envs.registration import EnvSpec

from envs.classic.tasks import (
    FLAG,
    HELD_STEPS,
    UPRIGHT,
    CartPoleUpright,
    MountainCarSparse,
    PendulumSparse,
    is_upright,
    wrap,
)
from envs.classic.view import Canvas
from envs.family import Axis, Family, Goal, aims_of, class_name, entry, simulator
from envs.transitions import Ends, never
from envs.types import Array, Info, Notes, Options

# States (N, D) -> object (N,) of str.
Captions = Callable[[np.ndarray], np.ndarray]
TURN = (-math.pi, math.pi)

# Where one caption gives way to the next: angles in rad from upright,
_LEAN_ENDS = np.array([UPRIGHT / 2, UPRIGHT, math.pi / 3, 2 * math.pi / 3, math.pi - UPRIGHT])
# places of the cart in m, whose track ends at 2.4, CartPoleUpright's at 2.2,
_CART_ENDS = np.array([-2.1, -0.8, 0.8, 2.1])
# places of the car, whose height is sin(3 x), with slopes called high from a height of 0.3 on,
_HIGH = math.asin(0.3)
_CAR_ENDS = np.array([-(math.pi + _HIGH) / 3, -math.pi / 6 - 0.3, -math.pi / 6 + 0.3, _HIGH / 3, FLAG])
# and heights of Acrobot's tip above the fixed joint in lengths of a link, with the line at 1.
_TIP_ENDS = np.array([-1.0, 0.0, 1.0])
_POSES = (
    "is upright",
    "is upright but tilts to the {}",
    "leans to the {}",
    "lies to the {}",
    "hangs down to the {}",
    "hangs straight down",
)
_PLACES = ("at the left, near the edge", "at the left", "in the middle", "at the right", "at the right, near the edge")
_HILLS = (
    "high on the left slope",
    "on the left slope",
    "in the valley",
    "on the right slope",
    "high on the right slope",
    "at the peak of the mountain, next to the flag",
)
_TIPS = (
    "below the line, hanging low",
    "below the line, half way up",
    "below the line, nearly up to it",
    "above the line",
)


def _poses_to(*sides: str) -> list[str]:
    return [pose.format(side) for side in sides for pose in _POSES]


def _sentences(subject: str, predicates: Iterable[str]) -> np.ndarray:
    return np.array([f"{subject} {predicate}" for predicate in predicates], object)


# In the picture a positive angle leans right in CartPole, and left in Pendulum.
_POLES = _sentences(
    "the pole",
    (f"{pose}, the cart is {place}" for pose in _poses_to("left", "right") for place in _PLACES),
)
_PENDULUMS = _sentences("the pendulum", _poses_to("right", "left"))
_CARS = _sentences("the car is", _HILLS)
_ARMS = _sentences("the tip is", _TIPS)


def _pose_number(angle: Any) -> np.ndarray:
    """Numbers of `_POSES`, and len(_POSES) more to the side of positive angles."""
    angle = wrap(angle)
    return np.searchsorted(_LEAN_ENDS, abs(angle), side="right") + len(_POSES) * (angle >= 0)


def _tip_height(state: Any) -> Any:
    """Height of Acrobot's tip, in arm lengths above the pivot, of states (..., 4)."""
    return -np.cos(state[..., 0]) - np.cos(state[..., 0] + state[..., 1])


def _state(env: gym.Env) -> np.ndarray:
    return np.asarray(simulator(env).state)


def _cartpole_captions(state: np.ndarray) -> np.ndarray:
    place = np.searchsorted(_CART_ENDS, state[:, 0], side="right")
    return _POLES[_pose_number(state[:, 2]) * len(_PLACES) + place]


def _car_captions(state: np.ndarray) -> np.ndarray:
    return _CARS[np.searchsorted(_CAR_ENDS, state[:, 0], side="right")]


def _pendulum_captions(state: np.ndarray) -> np.ndarray:
    return _PENDULUMS[_pose_number(state[:, 0])]


def _acrobot_captions(state: np.ndarray) -> np.ndarray:
    return _ARMS[np.searchsorted(_TIP_ENDS, _tip_height(state))]


def _has_arrived(options: Options, obs: Array, flag: float) -> Array:
    return (obs[..., 0] >= flag) & (obs[..., 1] >= options.get("goal_velocity", 0))


def _upright_goal(prompt: str, baseline: str, negative: str, index: int) -> Goal:
    """The angle with this index in the state is within 12 degrees of the vertical."""

    def truth(env: gym.Env) -> bool:
        return is_upright(_state(env)[index])

    def degree(env: gym.Env) -> float:
        return math.cos(_state(env)[index])

    return Goal("upright", prompt, baseline, truth, negative, degree)


@dataclass(frozen=True)
class Kind:
    """What CartPole, MountainCar, Pendulum and Acrobot each share with the tasks made of them."""

    # The state vector's variables, in order, by the names that `pose` takes.
    variables: tuple[str, ...]
    # The lowest and the highest value of each, for scattered states.
    ranges: tuple[tuple[float, float], ...]
    # The variable to draw a reward over, and its name; the others are 0.
    axis: tuple[int, str]
    goal: Goal
    caption: Captions

    def place(self, env: gym.Env, value: float) -> None:
        inner = simulator(env)
        inner.state = np.zeros(len(self.ranges))
        inner.state[self.axis[0]] = value


def _car_position(env: gym.Env) -> float:
    return float(_state(env)[0])


def _is_at_flag(env: gym.Env) -> bool:
    return _car_position(env) >= FLAG


def _env_tip_height(env: gym.Env) -> float:
    return float(_tip_height(_state(env)))


def _is_tip_up(env: gym.Env) -> bool:
    return _env_tip_height(env) > 1.0


# By a part of the class's name.
CLASSIC_KINDS = {
    "CartPole": Kind(
        variables=("position", "velocity", "angle", "angular_velocity"),
        ranges=((-2.2, 2.2), (-1.0, 1.0), TURN, (-2.0, 2.0)),
        axis=(2, "angle of the pole, rad"),
        goal=_upright_goal(
            "pole vertically upright on top of the cart", "pole and cart", "pole hanging down below the cart", 2
        ),
        caption=_cartpole_captions,
    ),
    "MountainCar": Kind(
        variables=("position", "velocity"),
        ranges=((-1.2, 0.6), (-0.07, 0.07)),
        axis=(0, "position of the car, m"),
        goal=Goal(
            "flag",
            "a car at the peak of the mountain, next to the yellow flag",
            "a car in the mountain",
            _is_at_flag,
            "a car at the bottom of the valley",
            _car_position,
        ),
        caption=_car_captions,
    ),
    "Pendulum": Kind(
        variables=("angle", "angular_velocity"),
        ranges=(TURN, (-4.0, 4.0)),
        axis=(0, "angle of the pendulum, rad"),
        goal=_upright_goal("pendulum in the upright position", "pendulum", "pendulum hanging down", 0),
        caption=_pendulum_captions,
    ),
    "Acrobot": Kind(
        variables=(),
        ranges=(TURN, TURN, (-2.0, 2.0), (-2.0, 2.0)),
        axis=(0, "angle of the stretched arm, rad"),
        goal=Goal(
            "up",
            "an acrobot stretched out above the line",
            "an acrobot",
            _is_tip_up,
            "an acrobot hanging down below the line",
            _env_tip_height,
        ),
        caption=_acrobot_captions,
    ),
}


def _cartpole_ends(options: Options, obs: Array) -> Array:
    limit_rad = 12 * 2 * math.pi / 360
    return (abs(obs[..., 0]) > 2.4) | (abs(obs[..., 2]) > limit_rad)


def _acrobot_ends(options: Options, obs: Array) -> Array:
    cos_1, sin_1, cos_2, sin_2 = (obs[..., i] for i in range(4))
    # The tip's height, -cos(angle 1) - cos(angle 1 + angle 2).
    cos_sum = cos_1 * cos_2 - sin_1 * sin_2
    return -cos_1 - cos_sum > 1.0


# Class -> (constructor's arguments, next_obs) -> the episode terminates; the others never do.
_ENDS: dict[str, Callable[[Options, Array], Array]] = {
    "CartPoleEnv": _cartpole_ends,
    "MountainCarEnv": functools.partial(_has_arrived, flag=0.5),
    "MountainCarSparse": functools.partial(_has_arrived, flag=0.5),
    "Continuous_MountainCarEnv": functools.partial(_has_arrived, flag=0.45),
    "AcrobotEnv": _acrobot_ends,
}


def kind_of(cls: type) -> Kind | None:
    """The kind that a class of environments derives from."""
    return _kind_named(" ".join(base.__name__ for base in cls.__mro__))


def _kind_named(text: str) -> Kind | None:
    for name, kind in CLASSIC_KINDS.items():
        if name in text:
            return kind
    return None


def _caption(env: gym.Env, memory: Notes) -> str:
    kind = kind_of(type(env.unwrapped))
    return "" if kind is None else kind.caption(_state(env)[None])[0]


def pose(env: gym.Env, **state: float) -> None:
    """Put CartPole, MountainCar or Pendulum (Gymnasium's or ours) into a state; `env.render()` then shows it.

    A state is what it has of `position` (m), `velocity` (m/s), `angle` (rad from upright), `angular_velocity` (rad/s).
    """
    inner = simulator(env)
    class_name = type(inner).__name__
    kind = kind_of(type(inner))
    if kind is None or not kind.variables:
        raise TypeError(f"pose() knows CartPole, MountainCar and Pendulum, not {class_name}")
    names = kind.variables
    unknown = sorted(set(state) - set(names))
    if unknown:
        raise ValueError(f"{class_name} has no state variable {unknown[0]!r}; it has {', '.join(names)}")
    _set_state(inner, np.array([float(state.get(name, 0.0)) for name in names]))


def _set_state(inner: Any, state: np.ndarray) -> None:
    inner.state = state
    if isinstance(inner, PendulumEnv):
        # The arrow would show a torque that was not applied here.
        inner.last_u = None


def _scatter(env: gym.Env, rng: np.random.Generator) -> bool:
    kind = kind_of(type(env.unwrapped))
    assert kind is not None
    low, high = np.array(kind.ranges).T
    _set_state(env.unwrapped, rng.uniform(low, high))
    return True


def _axis(spec: EnvSpec) -> Axis | None:
    kind = _kind_named(class_name(spec))
    if kind is None:
        return None
    index, name = kind.axis
    low, high = kind.ranges[index]
    return Axis(name, low, high, kind.place)


# By a part of the class's name; the first that fits counts.
_OBSERVED: dict[str, tuple[str, ...]] = {
    "Pixel": (),
    "CartPoleEnv": ("cart position", "cart velocity", "pole angle", "angular velocity"),
    "CartPole": ("cart position", "cart velocity", "cos of the angle", "sin of the angle", "angular velocity"),
    "Pendulum": ("cos of the angle", "sin of the angle", "angular velocity"),
    "MountainCar": ("position", "velocity"),
    "Acrobot": ("cos 1", "sin 1", "cos 2", "sin 2", "angular velocity 1", "angular velocity 2"),
}


def _observed_names(spec: EnvSpec) -> tuple[str, ...]:
    for part, names in _OBSERVED.items():
        if part in class_name(spec):
            return names
    return ()


# By the class's name, the lowest and the highest reward of a step.
_STEP_REWARDS = {
    "CartPoleEnv": (0.0, 1.0),
    "MountainCarEnv": (-1.0, 0.0),
    "AcrobotEnv": (-1.0, 0.0),
    "PendulumEnv": (-(math.pi**2 + 0.1 * 8.0**2 + 0.001 * 2.0**2), 0.0),
}


def _returns(spec: EnvSpec) -> tuple[float, float] | None:
    step_rewards = _STEP_REWARDS.get(class_name(spec))
    steps = spec.max_episode_steps
    if step_rewards is None or steps is None or spec.kwargs.get("sutton_barto_reward"):
        return None
    low, high = step_rewards
    return steps * low, steps * high


def _sense(env: gym.Env) -> np.ndarray:
    inner = simulator(env)
    angle, velocity = inner.state
    # There is no torque before the first step.
    return np.array([math.cos(angle), abs(velocity), abs(inner.last_u or 0.0)], np.float32)


def _terminates(spec: EnvSpec) -> Ends | None:
    name = class_name(spec)
    if _kind_named(name) is None or name == "PixelPendulum":
        return None
    rule = _ENDS.get(name)
    return never if rule is None else lambda obs, action, next_obs: rule(spec.kwargs, next_obs)


def _goals(spec: EnvSpec) -> list[Goal]:
    kind = _kind_named(class_name(spec))
    return [] if kind is None else [kind.goal]


def _signal_names(spec: EnvSpec) -> tuple[str, ...]:
    if entry(spec).endswith(":PendulumEnv"):
        return ("height", "spin", "torque")
    return ()


def _success(env: gym.Env, episode_return: float, terminated: bool, info: Info) -> bool | None:
    inner = simulator(env)
    if isinstance(inner, CartPoleUpright):
        return episode_return >= inner.SOLVED
    if isinstance(inner, PendulumSparse):
        return episode_return >= HELD_STEPS
    kind = kind_of(type(inner))
    if kind is CLASSIC_KINDS["CartPole"]:
        return not terminated
    if isinstance(inner, MountainCarSparse) or kind is CLASSIC_KINDS["Acrobot"]:
        return terminated
    return None if kind is None else kind.goal.truth(env)


CLASSIC_FAMILY = Family(
    name="classic",
    description="classic control: poles, pendulums and a car on a hill, drawn in two dimensions",
    ids=(
        "lodestar/CartPoleUpright-v0",
        "lodestar/MountainCarGoal-v0",
        "lodestar/PendulumUpright-v0",
        "lodestar/MountainCarSparse-v0",
        "lodestar/PendulumSparse-v0",
        "lodestar/PixelPendulum-v0",
        "lodestar/CartPoleSwingUp-v0",
        "lodestar/CartPoleSwingUpSparse-v0",
        "CartPole-v1",
        "MountainCar-v0",
        "MountainCarContinuous-v0",
        "Pendulum-v1",
        "Acrobot-v1",
    ),
    entries=("gymnasium.envs.classic_control", "envs.classic."),
    repair=Canvas,
    caption=_caption,
    aim=aims_of("classic", class_name),
    goals=_goals,
    scatter=_scatter,
    axis=_axis,
    terminates=_terminates,
    observed=_observed_names,
    signals=_signal_names,
    sense=_sense,
    returns=_returns,
    success=_success,
)
