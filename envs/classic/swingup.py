"""A pole on a cart that starts hanging: swing it up and hold it, pushing the cart as hard as wanted.

    lodestar/CartPoleSwingUp-v0         pays every step between 0 and 1: upright, centred, calm, with little force
    lodestar/CartPoleSwingUpSparse-v0   pays 1 for a step that ends upright and near the middle, else 0

What it tests: the way up leads through states that look worse, and with the sparse reward nothing is paid on it, so
that an agent which does not explore learns nothing. Cart, pole and walls are those of `lodestar/CartPoleUpright-v0`:
1 kg, 0.1 kg, 1 m long, steps of 0.02 s, 500 of them. The ends of the track, at 2.2 m, stop the cart and end nothing.

Observations float32 (5,): position m, velocity m/s, cos and sin of the angle from upright, angular velocity rad/s.
Actions float32 (1,) in [-1, 1], times 10 N. The goal, captions and the axis are CartPole's.

Source: the reward of Tassa et al. 2018, "DeepMind Control Suite", arXiv 1801.00690, cartpole swingup. Differences: the
pole's and the cart's masses, the walls, steps of 0.02 s; sparse pay from a cosine of 0.95, within 0.5 m of the middle.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np

from envs.classic.family import CartPoleUpright, Step
from envs.types import Array

STEEP, NEAR = 0.95, 0.5  # what is paid sparsely: cosine of the angle, metres from the middle


def pay(x: Array, cos: Array, theta_dot: Array, push: Array) -> Array:
    """Smooth pay in [0, 1] for a position m, cosine, angular velocity rad/s and push in [-1, 1]; all of one shape."""
    upright = (1 + cos) / 2
    centred = (1 + 0.1 ** (x / 2) ** 2) / 2
    calm = (1 + 0.1 ** (theta_dot / 5) ** 2) / 2
    gentle = (5 - push**2) / 5
    return upright * centred * calm * gentle


def pay_sparsely(x: Array, cos: Array) -> Array:
    """Whether a step is paid: the pole is upright, and the cart near the middle."""
    return (cos > STEEP) & (abs(x) < NEAR)


class CartPoleSwingUp(CartPoleUpright):
    """Swing the pole up from rest, and keep it upright near the middle; an episode succeeds with a return of 300.

    Reward: (1 + cos) / 2 * (1 + 0.1^((x / 2)^2)) / 2 * (1 + 0.1^((theta' / 5)^2)) / 2 * (5 - action^2) / 5.
    """

    SOLVED = 300.0

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.action_space: Any = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.state[2] += math.pi
        return self._obs(), {}

    def step(self, action: Any) -> Step:
        push = float(np.clip(action, -1.0, 1.0)[0])
        self._move(push * self.force_mag)
        self._stop_at_walls()
        if self.render_mode == "human":
            self.render()
        return self._obs(), self._pay(push), False, False, {}

    def _move(self, force: float) -> None:
        """One Euler step of CartPole's equations."""
        x, x_dot, theta, theta_dot = self.state
        cos, sin = math.cos(theta), math.sin(theta)
        temp = (force + self.polemass_length * theta_dot**2 * sin) / self.total_mass
        angular = (self.gravity * sin - cos * temp) / (
            self.length * (4.0 / 3.0 - self.masspole * cos**2 / self.total_mass)
        )
        linear = temp - self.polemass_length * angular * cos / self.total_mass
        change = np.array([x_dot, linear, theta_dot, angular])
        self.state = np.array([x, x_dot, theta, theta_dot]) + self.tau * change

    def _pay(self, push: float) -> float:
        x, _, theta, theta_dot = self.state
        return float(pay(x, math.cos(theta), theta_dot, push))


class CartPoleSwingUpSparse(CartPoleSwingUp):
    """Swing the pole up from rest, with no word on the way; an episode succeeds with 100 paid steps.

    Reward: 1.0 iff cos > 0.95 and |x| < 0.5 m after the step.
    """

    SOLVED = 100.0

    def _pay(self, push: float) -> float:
        x, _, theta, _ = self.state
        return float(pay_sparsely(x, math.cos(theta)))
