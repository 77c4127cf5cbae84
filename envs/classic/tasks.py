"""Tasks of ours in classic control: three whose reward is the ground truth of a goal, two sparse ones, and a swing-up.

CartPoleUpright, MountainCarGoal and PendulumUpright last 200 steps and never terminate: an end at success or failure
would reveal to a learned reward what it is meant to find out. So long are the sparse ones, too, whose reward random
policies did not find in 1000 episodes. The way to a swung-up pole leads through states that look worse, 500 steps.

Observations (float32; MountainCarSparse keeps Gymnasium's):
    CartPole... (5,)       cart position m, velocity m/s, cos angle, sin angle, angular velocity rad/s
    MountainCarGoal (2,)   position in [-1.2, 0.6], velocity / 0.07, in [-1, 1]
    Pendulum... (3,)       cos angle, sin angle, angular velocity in [-8, 8] rad/s

The swing-up's reward is that of Tassa et al. 2018, "DeepMind Control Suite", arXiv 1801.00690, with other masses, walls
and steps; the sparse one counts from a cosine of 0.95, within 0.5 m of the middle.
"""

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.classic_control.mountain_car import MountainCarEnv
from gymnasium.envs.classic_control.pendulum import PendulumEnv

from envs.classic.view import ClassicPainter
from envs.types import Array, EnvReset, EnvStep, Options

# CartPole-v1's own limit.
UPRIGHT = math.radians(12)
# The place on MountainCar's track from which the drawn car overlaps the flag, which stands at 0.5.
FLAG = 0.45
# PendulumSparse: how far from hanging still it starts, rad and rad/s; the cosine and the speed in
# rad/s of what is rewarded; how many rewarded steps succeed.
NEARLY_DOWN = 0.1
NEARLY_UP = 0.95
SLOW_RAD_S = 1.0
HELD_STEPS = 50
# CartPoleSwingUpSparse: the cosine of the angle, metres from the middle.
SWUNG_UP_COSINE = 0.95
SWUNG_UP_DISTANCE_M = 0.5
BACKGROUNDS = ("none", "video")
# How many plane waves make a cloud.
N_WAVES = 6


class CartPoleUpright(CartPoleEnv):
    """Keep a pole upright on a cart, or swing it up again after it fell.

    Starts near upright. The track ends in walls, at 2.2 m, whose stop is inelastic and jolts the pole as a pivot that
    suddenly stands still does, so leaning on a wall balances nothing.

    Actions: 0 pushes left, 1 pushes right, 10 N. Reward: 1.0 iff |angle| < 12 degrees after the step.
    """

    state: Any
    # The return of an episode that succeeds.
    SOLVED = 180.0
    # The angle about which episodes start, rad.
    START = 0.0

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        # Half a drawn cart inside the edge of the picture.
        self.wall = self.x_threshold - 0.2
        high = np.array([self.wall, np.inf, 1.0, 1.0, np.inf], dtype=np.float32)
        self.observation_space = gym.spaces.Box(-high, high, dtype=np.float32)

    def reset(self, **kwargs: Any) -> EnvReset:
        super().reset(**kwargs)
        self.state[2] += self.START
        return self._obs(), {}

    def step(self, action: Any) -> EnvStep:
        # Otherwise the parent warns about steps after its own limits.
        self.steps_beyond_terminated = None
        # One Euler step of CartPole's dynamics, which hold at any angle.
        super().step(action)
        self._stop_at_walls()
        return self._obs(), float(is_upright(self.state[2])), False, False, {}

    def _stop_at_walls(self) -> None:
        x, x_dot, theta, theta_dot = self.state
        if abs(x) > self.wall:
            # The pivot's velocity drops by x_dot; a rod of half length l on it then gains 3/(4 l) cos(theta) x_dot.
            theta_dot += 3.0 / (4.0 * self.length) * math.cos(theta) * x_dot
            x = math.copysign(self.wall, x)
            x_dot = 0.0
        self.state = np.array([x, x_dot, wrap(theta), theta_dot])

    def _obs(self) -> np.ndarray:
        x, x_dot, theta, theta_dot = self.state
        return np.array([x, x_dot, math.cos(theta), math.sin(theta), theta_dot], dtype=np.float32)


class CartPoleSwingUp(CartPoleUpright):
    """Swing the pole up from rest, and keep it upright near the middle; an episode succeeds with a return of 300.

    Actions: float32 (1,) in [-1, 1], times 10 N.
    Reward: (1 + cos) / 2 * (1 + 0.1^((x / 2)^2)) / 2 * (1 + 0.1^((theta' / 5)^2)) / 2 * (5 - action^2) / 5.
    """

    SOLVED = 300.0
    START = math.pi

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.action_space: Any = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def step(self, action: Any) -> EnvStep:
        """One Euler step of CartPole's equations."""
        push = float(np.clip(action, -1.0, 1.0)[0])
        force = push * self.force_mag
        x, x_dot, theta, theta_dot = self.state
        cos = math.cos(theta)
        sin = math.sin(theta)
        temp = (force + self.polemass_length * theta_dot**2 * sin) / self.total_mass
        inertia = self.length * (4.0 / 3.0 - self.masspole * cos**2 / self.total_mass)
        angular = (self.gravity * sin - cos * temp) / inertia
        linear = temp - self.polemass_length * angular * cos / self.total_mass
        state = np.array([x, x_dot, theta, theta_dot])
        self.state = state + self.tau * np.array([x_dot, linear, theta_dot, angular])
        self._stop_at_walls()
        if self.render_mode == "human":
            self.render()
        return self._obs(), self._reward(push), False, False, {}

    def _reward(self, push: float) -> float:
        x, _, theta, theta_dot = self.state
        return float(swing_up_reward(x, math.cos(theta), theta_dot, push))


class CartPoleSwingUpSparse(CartPoleSwingUp):
    """As `CartPoleSwingUp`, for 1.0 iff cos > 0.95 and |x| < 0.5 m after the step; 100 such steps succeed."""

    SOLVED = 100.0

    def _reward(self, push: float) -> float:
        return float(is_swung_up(self.state[0], math.cos(self.state[2])))


class MountainCarGoal(MountainCarEnv):
    """Drive an underpowered car to the flag, where it stays. Reward: 1.0 iff position >= 0.45 after the step."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        low = np.array([self.min_position, -1.0], dtype=np.float32)
        high = np.array([self.max_position, 1.0], dtype=np.float32)
        self.observation_space = gym.spaces.Box(low, high, dtype=np.float32)

    def reset(self, **kwargs: Any) -> EnvReset:
        super().reset(**kwargs)
        return self._obs(), {}

    def step(self, action: Any) -> EnvStep:
        if self.state[0] < FLAG:
            super().step(action)
        arrived = self.state[0] >= FLAG
        if arrived:
            self.state = (self.state[0], 0.0)
        return self._obs(), float(arrived), False, False, {}

    def _obs(self) -> np.ndarray:
        position, velocity = self.state
        return np.array([position, velocity / self.max_speed], dtype=np.float32)


class MountainCarSparse(MountainCarEnv):
    """Drive an underpowered car to the flag at 0.5 for 1.0 at the step that reaches it, which terminates."""

    def step(self, action: Any) -> EnvStep:
        obs, _, terminated, *rest = super().step(action)
        return obs, float(terminated), terminated, *rest


class PendulumUpright(PendulumEnv):
    """Swing a pendulum up and hold it there: 1.0 iff |angle| < 12 degrees after the step. It starts anywhere.

    Frames leave out the arrow that shows the torque, the action. `torques` is 0 for Pendulum's continuous action in
    [-2, 2]; n >= 2 for n evenly spaced ones (`Discrete(n)`).
    """

    def __init__(self, render_mode: str | None = None, torques: int = 0) -> None:
        if torques < 0 or torques == 1:
            raise ValueError(f"torques={torques} leaves no choice; give 0 (continuous) or at least 2 discrete torques")
        super().__init__(render_mode=render_mode)
        self.torques = None
        if torques:
            self.torques = np.linspace(-self.max_torque, self.max_torque, torques)
            self.action_space = gym.spaces.Discrete(torques)

    def step(self, u: Any) -> EnvStep:
        torque = np.atleast_1d(u) if self.torques is None else self.torques[[int(u)]]
        # Rendering waits until the torque is forgotten: the parent would draw its arrow.
        mode = self.render_mode
        self.render_mode = None
        obs, *_ = super().step(torque)
        self.render_mode = mode
        self.last_u = None
        if mode == "human":
            self.render()
        return obs, float(is_upright(self.state[0])), False, False, {}


class PendulumSparse(PendulumUpright):
    """Swing a pendulum up from rest: 1.0 iff cos(angle) > 0.95 and below 1 rad/s; 50 rewarded steps succeed."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)

    def reset(self, *, seed: int | None = None, options: Options | None = None) -> EnvReset:
        # Gymnasium draws within these half-widths about upright; half a turn makes it hang.
        super().reset(seed=seed, options={"x_init": NEARLY_DOWN, "y_init": NEARLY_DOWN})
        self.state[0] += math.pi
        return self._get_obs(), {}

    def step(self, u: Any) -> EnvStep:
        obs, *_ = super().step(u)
        angle, velocity = self.state
        is_held = math.cos(angle) > NEARLY_UP and abs(velocity) < SLOW_RAD_S
        return obs, float(is_held), False, False, {}


class PixelPendulum(PendulumEnv):
    """Swing a pendulum up and hold it there, seeing only pictures, before white ("none") or drifting clouds ("video").

    Does a model waste capacity on the background? Clouds have other colours in every episode: they can be predicted,
    they fill most of the pixels, and nothing depends on them.

    Observations uint8 (3, size, size): one picture, which does not show the velocity. Actions float32 (1,) in [-2, 2].
    """

    # See `envs.snapshots.snapshots`.
    STATE = ("state", "last_u", "time", "waves")

    def __init__(self, render_mode: str | None = None, size: int = 32, background: str = "none") -> None:
        if background not in BACKGROUNDS:
            raise ValueError(f"background={background!r} is unknown; give one of {', '.join(BACKGROUNDS)}")
        if size < 16:
            raise ValueError(f"size={size} is too small to see a pendulum; give 16 pixels or more")
        super().__init__(render_mode=render_mode)
        self.size = size
        self.background = background
        self.observation_space: Any = gym.spaces.Box(0, 255, (3, size, size), np.uint8)
        self.time = 0
        # Axes: colour; wave; two wave numbers, speed, phase.
        self.waves = np.zeros((3, N_WAVES, 4))
        self._view = ClassicPainter(self, size)
        self._grid = np.linspace(0, 1, size, endpoint=False)

    def reset(self, **kwargs: Any) -> EnvReset:
        super().reset(**kwargs)
        self.time = 0
        if self.background == "video":
            low = np.array([-2.5, -2.5, -0.1, 0.0])
            high = np.array([2.5, 2.5, 0.1, 1.0])
            self.waves = self.np_random.uniform(low, high, (3, N_WAVES, 4))
        return self._get_obs(), {}

    def step(self, u: Any) -> EnvStep:
        self.time += 1
        obs, reward, *outcome = super().step(np.atleast_1d(u))
        return obs, float(reward), *outcome

    def _get_obs(self) -> np.ndarray:
        picture = self._view.draw(np.asarray(self.state, np.float32)[None])[0].transpose(2, 0, 1)
        if self.background == "none":
            return np.ascontiguousarray(picture)
        return (picture / 255.0 * self.clouds()).astype(np.uint8)

    def clouds(self) -> np.ndarray:
        """The background as it is now, float64 (3, size, size) in [60, 255]: plane waves that drift."""
        # Each (3, N_WAVES, 1, 1), against a grid of pixels.
        across, up, speed, phase = np.moveaxis(self.waves, -1, 0)[..., None, None]
        turns = across * self._grid + up * self._grid[:, None] + speed * self.time + phase
        # Divided so that the sum has a standard deviation of 1.
        cloud = np.sin(2 * math.pi * turns).sum(1) / math.sqrt(N_WAVES / 2)
        return 255 - 195 / (1 + np.exp(-2 * cloud))


def swing_up_reward(x: Array, cos: Array, theta_dot: Array, push: Array) -> Array:
    """CartPoleSwingUp's, in [0, 1]: position m, cosine, angular velocity rad/s, push in [-1, 1]; all of one shape."""
    upright = (1 + cos) / 2
    centred = (1 + 0.1 ** (x / 2) ** 2) / 2
    calm = (1 + 0.1 ** (theta_dot / 5) ** 2) / 2
    return upright * centred * calm * ((5 - push**2) / 5)


def is_swung_up(x: Array, cos: Array) -> Array:
    """Whether CartPoleSwingUpSparse rewards a state: the pole is upright, and the cart near the middle."""
    return (cos > SWUNG_UP_COSINE) & (abs(x) < SWUNG_UP_DISTANCE_M)


def wrap(angle: float) -> float:
    """The same angle in [-pi, pi)."""
    return (angle + math.pi) % (2 * math.pi) - math.pi


def is_upright(angle: float) -> bool:
    """Whether an angle from the vertical, in radians, is within 12 degrees of it."""
    return abs(wrap(angle)) < UPRIGHT
