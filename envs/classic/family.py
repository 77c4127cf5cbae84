"""Classic control: Gymnasium's own ids, three tasks whose reward is the truth about a goal, and two to explore for.

    lodestar/CartPoleUpright-v0   the pole may turn the full circle; 1 per step while within 12 degrees of upright
    lodestar/MountainCarGoal-v0   the car stays where it reaches the flag; 1 per step spent there
    lodestar/PendulumUpright-v0   1 per step while the pendulum is within 12 degrees of upright
    lodestar/MountainCarSparse-v0 MountainCar-v0, but 1 for reaching the flag and 0 for every other step
    lodestar/PendulumSparse-v0    starts hanging still; 1 per step while nearly upright and slow
    lodestar/CartPoleSwingUp-v0, lodestar/CartPoleSwingUpSparse-v0: see `envs.classic.swingup`

The first three last 200 steps and never terminate: an episode that ends at success or failure would tell a learned
reward what it is meant to find out. The two sparse ones also stop after 200 steps; random play did not find their
reward in 1000 episodes, which is what a bonus for exploration is for. Frames come from Gymnasium's own renderers.
`pose` sets any state, for frames of it.

Observations (float32; Gymnasium's own ids keep theirs):
    CartPoleUpright (5,)   cart position m, velocity m/s, cos angle, sin angle, angular velocity rad/s
    MountainCarGoal (2,)   position in [-1.2, 0.6], velocity / 0.07, in [-1, 1]
    PendulumUpright (3,)   cos angle, sin angle, angular velocity in [-8, 8] rad/s; PendulumSparse too
    MountainCarSparse (2,) position in [-1.2, 0.6], velocity in [-0.07, 0.07], as Gymnasium has it
"""

from __future__ import annotations

import math
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.acrobot import AcrobotEnv
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.classic_control.continuous_mountain_car import Continuous_MountainCarEnv
from gymnasium.envs.classic_control.mountain_car import MountainCarEnv
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from gymnasium.envs.registration import EnvSpec

from envs import states, terminations
from envs.classic.canvas import Canvas
from envs.classic.captions import FLAG, UPRIGHT, caption
from envs.family import Family, Goal, entry

# PendulumSparse: how far from hanging still it starts, rad and rad/s; what is paid, cosine and rad/s; how often, steps.
NEARLY_DOWN, NEARLY_UP, SLOW, HELD = 0.1, 0.95, 1.0, 50

Step = tuple[np.ndarray, float, bool, bool, dict[str, Any]]


class CartPoleUpright(CartPoleEnv):
    """Keep a pole upright on a cart, or swing it up again after it fell.

    Starts near upright, as CartPole does; a random policy keeps the pole up for about 30 of 200 steps. The track ends
    in walls that stop the cart while it is still fully in the picture. The stop is inelastic and jolts the pole as a
    pivot that suddenly stands still does, so leaning on a wall balances nothing.

    Actions: 0 pushes left, 1 pushes right, 10 N. Reward: 1.0 iff |angle| < 12 degrees after the step.
    """

    SOLVED = 180.0  # return of an episode that succeeds, of 200 steps

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.wall = self.x_threshold - 0.2  # half a drawn cart inside the edge of the picture
        high = np.array([self.wall, np.inf, 1.0, 1.0, np.inf], dtype=np.float32)
        self.observation_space = gym.spaces.Box(-high, high, dtype=np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return self._obs(), {}

    def step(self, action: Any) -> Step:
        self.steps_beyond_terminated = None  # else the parent warns about steps after its own limits
        super().step(action)  # one Euler step of CartPole's dynamics, which hold at any angle
        self._stop_at_walls()
        return self._obs(), float(is_upright(self.state[2])), False, False, {}

    def _stop_at_walls(self) -> None:
        x, x_dot, theta, theta_dot = cast("np.ndarray", self.state)
        if abs(x) > self.wall:
            # The pivot's velocity drops by x_dot; a rod of half length l on it then gains 3/(4 l) cos(theta) x_dot.
            theta_dot += 3.0 / (4.0 * self.length) * math.cos(theta) * x_dot
            x, x_dot = math.copysign(self.wall, x), 0.0
        self.state: Any = np.array([x, x_dot, wrap(theta), theta_dot])

    def _obs(self) -> np.ndarray:
        x, x_dot, theta, theta_dot = cast("np.ndarray", self.state)
        return np.array([x, x_dot, math.cos(theta), math.sin(theta), theta_dot], dtype=np.float32)


class MountainCarGoal(MountainCarEnv):
    """Drive an underpowered car to the flag, where it stays.

    Actions: 0 pushes left, 1 nothing, 2 right. Reward: 1.0 iff position >= 0.45 after the step.
    """

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        low = np.array([self.min_position, -1.0], dtype=np.float32)
        high = np.array([self.max_position, 1.0], dtype=np.float32)
        self.observation_space = gym.spaces.Box(low, high, dtype=np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return self._obs(), {}

    def step(self, action: Any) -> Step:
        if self.state[0] < FLAG:
            super().step(action)
        if self.state[0] >= FLAG:
            self.state = (self.state[0], 0.0)
        return self._obs(), float(self.state[0] >= FLAG), False, False, {}

    def _obs(self) -> np.ndarray:
        return np.array([self.state[0], self.state[1] / self.max_speed], dtype=np.float32)


class PendulumUpright(PendulumEnv):
    """Swing a pendulum up and hold it there.

    Starts anywhere, as Pendulum does. Frames leave out the arrow that shows the torque: it would show the action.

    Args:
        render_mode: as in Gymnasium.
        torques: 0 for Pendulum's continuous action in [-2, 2]; n >= 2 for n evenly spaced torques (`Discrete(n)`).

    Reward: 1.0 iff |angle| < 12 degrees after the step.
    """

    def __init__(self, render_mode: str | None = None, torques: int = 0) -> None:
        if torques < 0 or torques == 1:
            raise ValueError(f"torques={torques} leaves no choice; give 0 (continuous) or at least 2 discrete torques")
        super().__init__(render_mode=render_mode)
        self.torques = np.linspace(-self.max_torque, self.max_torque, torques) if torques else None
        if torques:
            self.action_space = gym.spaces.Discrete(torques)

    def step(self, u: Any) -> Step:
        torque = np.atleast_1d(u) if self.torques is None else self.torques[[int(u)]]
        mode, self.render_mode = self.render_mode, None  # the parent would draw the arrow
        obs, *_ = super().step(torque)
        self.render_mode, self.last_u = mode, None
        if mode == "human":
            self.render()
        return obs, float(is_upright(self.state[0])), False, False, {}


class MountainCarSparse(MountainCarEnv):
    """Drive an underpowered car to the flag at 0.5, with no word on the way about how it goes.

    Actions: 0 pushes left, 1 nothing, 2 right. Reward: 1.0 at the step that reaches the flag, which terminates.
    """

    def step(self, action: Any) -> Step:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, float(terminated), terminated, truncated, info


class PendulumSparse(PendulumUpright):
    """Swing a pendulum up from rest and stop it there.

    Starts within 0.1 rad and 0.1 rad/s of hanging still. An episode succeeds if 50 of its steps are paid.

    Actions: a torque in [-2, 2]. Reward: 1.0 iff cos(angle) > 0.95 and |angular velocity| < 1 rad/s after the step.
    """

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed, options={"x_init": NEARLY_DOWN, "y_init": NEARLY_DOWN})  # half-widths about upright
        self.state[0] += math.pi
        return self._get_obs(), {}

    def step(self, u: Any) -> Step:
        obs, *_ = super().step(u)
        angle, velocity = self.state
        return obs, float(math.cos(angle) > NEARLY_UP and abs(velocity) < SLOW), False, False, {}


def wrap(angle: float) -> float:
    """The same angle in [-pi, pi)."""
    return (angle + math.pi) % (2 * math.pi) - math.pi


def is_upright(angle: float) -> bool:
    """Whether an angle from the vertical, in radians, is within 12 degrees of it."""
    return abs(wrap(angle)) < UPRIGHT


_POSE: dict[type, tuple[str, ...]] = {  # the simulators' state vectors, in order
    CartPoleEnv: ("position", "velocity", "angle", "angular_velocity"),
    MountainCarEnv: ("position", "velocity"),
    Continuous_MountainCarEnv: ("position", "velocity"),
    PendulumEnv: ("angle", "angular_velocity"),
}


def pose(env: gym.Env, **state: float) -> None:
    """Put CartPole, MountainCar or Pendulum (Gymnasium's or ours) into a state; `env.render()` then shows it.

    Args:
        env: one of those, wrapped or not.
        **state: those that the environment has of `position` (m), `velocity` (m/s), `angle` (rad from upright),
            `angular_velocity` (rad/s). What is not given becomes 0.

    Raises:
        TypeError: if the environment is another one.
        ValueError: if it has no such state variable.
    """
    inner: Any = env.unwrapped
    names = next((names for kind, names in _POSE.items() if isinstance(inner, kind)), None)
    if names is None:
        raise TypeError(f"pose() knows CartPole, MountainCar and Pendulum, not {type(inner).__name__}")
    unknown = sorted(set(state) - set(names))
    if unknown:
        raise ValueError(f"{type(inner).__name__} has no state variable {unknown[0]!r}; it has {', '.join(names)}")
    inner.state = np.array([float(state.get(name, 0.0)) for name in names])
    if isinstance(inner, PendulumEnv):
        inner.last_u = None  # the arrow belongs to a torque that was not applied here


def _read(env: gym.Env) -> dict[str, float]:
    inner: Any = env.unwrapped
    names = next(names for kind, names in _POSE.items() if isinstance(inner, kind))
    return dict(zip(names, map(float, inner.state)))


def _pole_is_upright(env: gym.Env) -> bool:
    return is_upright(_read(env)["angle"])


def _car_is_at_flag(env: gym.Env) -> bool:
    return _read(env)["position"] >= FLAG


def _acrobot_is_up(env: gym.Env) -> bool:
    inner: Any = env.unwrapped
    return bool(-math.cos(inner.state[0]) - math.cos(inner.state[0] + inner.state[1]) > 1.0)


_CARTPOLE = [
    Goal(
        "upright",
        "pole vertically upright on top of the cart",
        "pole and cart",
        _pole_is_upright,
        "pole hanging down below the cart",
        states.uprightness,
    )
]
_CAR = [
    Goal(
        "flag",
        "a car at the peak of the mountain, next to the yellow flag",
        "a car in the mountain",
        _car_is_at_flag,
        "a car at the bottom of the valley",
        states.way_to_flag,
    )
]
_PENDULUM = [
    Goal(
        "upright",
        "pendulum in the upright position",
        "pendulum",
        _pole_is_upright,
        "pendulum hanging down",
        states.uprightness,
    )
]
_ACROBOT = [
    Goal(
        "up",
        "an acrobot stretched out above the line",
        "an acrobot",
        _acrobot_is_up,
        "an acrobot hanging down below the line",
        states.tip_height,
    )
]

_GOALS = {  # by the class name in the entry point: an environment need not be made to know them
    "CartPoleEnv": _CARTPOLE,
    "CartPoleUpright": _CARTPOLE,
    "CartPoleSwingUp": _CARTPOLE,
    "CartPoleSwingUpSparse": _CARTPOLE,
    "MountainCarEnv": _CAR,
    "Continuous_MountainCarEnv": _CAR,
    "MountainCarGoal": _CAR,
    "MountainCarSparse": _CAR,
    "PendulumEnv": _PENDULUM,
    "PendulumUpright": _PENDULUM,
    "PendulumSparse": _PENDULUM,
    "PixelPendulum": _PENDULUM,
    "AcrobotEnv": _ACROBOT,
}

_BALANCE = "keep the pole upright on the cart, and the cart away from the edges of its track"
_CLIMB = "drive the car up to the flag at the peak of the mountain, swinging from slope to slope to gain speed"
_SWING = "swing the pendulum up and keep it upright"
_SWING_POLE = "swing the pole up and keep it upright, with the cart near the middle of its track"
_AIMS = {
    "CartPoleEnv": _BALANCE,
    "CartPoleUpright": "keep the pole upright on the cart, and swing it up again where it fell",
    "CartPoleSwingUp": _SWING_POLE,
    "CartPoleSwingUpSparse": _SWING_POLE,
    "MountainCarEnv": _CLIMB,
    "Continuous_MountainCarEnv": _CLIMB,
    "MountainCarGoal": _CLIMB + ", and stay there",
    "MountainCarSparse": _CLIMB,
    "PendulumEnv": _SWING,
    "PendulumUpright": _SWING,
    "PendulumSparse": _SWING,
    "PixelPendulum": _SWING,
    "AcrobotEnv": "swing the arm up until its tip is above the line",
}


def _class(spec: EnvSpec) -> str:
    return entry(spec).split(":")[-1]


def _success(env: gym.Env, episode_return: float, terminated: bool, info: dict[str, Any]) -> bool | None:
    inner = env.unwrapped
    if isinstance(inner, CartPoleUpright):
        return episode_return >= inner.SOLVED
    if isinstance(inner, CartPoleEnv):
        return not terminated
    if isinstance(inner, PendulumSparse):
        return episode_return >= HELD
    if isinstance(inner, PendulumEnv):
        return _pole_is_upright(env)
    if isinstance(inner, MountainCarSparse):
        return terminated
    if isinstance(inner, MountainCarEnv | Continuous_MountainCarEnv):
        return _car_is_at_flag(env)
    return terminated if isinstance(inner, AcrobotEnv) else None


FAMILY = Family(
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
    knows=lambda spec: entry(spec).startswith(
        ("gymnasium.envs.classic_control", "envs.classic.family:", "envs.classic.swingup:", "envs.classic.pixels:")
    ),
    repair=Canvas,
    caption=caption,
    aim=lambda spec: _AIMS.get(_class(spec), ""),
    goals=lambda spec: _GOALS.get(_class(spec), []),
    scatter=states.scatter_classic,
    axis=states.axis_classic,
    terminates=terminations.classic,
    signals=states.signals_classic,
    sense=states.sense_pendulum,
    success=_success,
)
