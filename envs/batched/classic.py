"""Classic control as array programs: Gymnasium's equations, once for all environments.

The constants are read from the originals. States are float64 as theirs are (MountainCarContinuous: float32), and each
line computes in their order, so that trajectories agree to the last bits that cosines leave.
"""

import math
from typing import Any

import gymnasium as gym
import numpy as np

from envs.batched.base import BatchedEnv, Outcome, State
from envs.classic.family import kind_of
from envs.classic.tasks import (
    FLAG,
    HELD_STEPS,
    NEARLY_DOWN,
    NEARLY_UP,
    SLOW_RAD_S,
    UPRIGHT,
    is_swung_up,
    swing_up_reward,
    wrap,
)
from envs.classic.view import ClassicPainter
from envs.types import Array


class BatchedClassic(BatchedEnv):
    """A state vector, `state["x"]` (N, D), that begins uniformly within `START`."""

    # The lowest and the highest first states.
    START: tuple[tuple[float, ...], tuple[float, ...]]
    DTYPE: type = np.float64

    def _setup(self, original: gym.Env) -> None:
        self._zeros = self.arrays.array(np.zeros(self.num_envs))
        self._kind: Any = kind_of(type(self.world))
        if self.frame_size is not None:
            self._painter = ClassicPainter(self.world, self.frame_size)

    def _generate(self, rng: np.random.Generator, count: int) -> State:
        low, high = self.START
        return {"x": rng.uniform(low, high, (count, len(low))).astype(self.DTYPE)}

    def _observe(self, state: State, out: Array) -> None:
        out[...] = state["x"]

    def outcome(self, obs: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One step from `obs` (B, D): next ones, rewards (B,), terminations bool (B,); running episodes are dropped."""
        self.state = {"x": np.array(self._state_of(obs), self.DTYPE)}
        self._zeros = np.zeros(len(obs))
        rewards, terminated = self._advance(actions)
        next_obs = np.empty_like(obs)
        self._observe(self.state, next_obs)
        return next_obs, rewards, terminated

    def _state_of(self, obs: np.ndarray) -> np.ndarray:
        """The inverse of `_observe`, (B, ...)."""
        return obs

    def _show(self, rows: Array) -> None:
        index = self.arrays.numpy(rows)
        state = self.arrays.numpy(self.state["x"])[index]
        if "frame" in self.modalities:
            self.modalities["frame"][index] = self._painter.draw(state)
        if "text" in self.modalities:
            self.modalities["text"][index] = self._kind.caption(state)


class BatchedCartPole(BatchedClassic):
    """Gymnasium's CartPole with Euler steps; the state is its position, velocity, angle and angular velocity."""

    START = ((-0.05,) * 4, (0.05,) * 4)

    def _advance(self, actions: Array) -> Outcome:
        x, _, theta, _ = self._euler(actions)
        is_outside = abs(x) > self.world.x_threshold
        has_fallen = abs(theta) > self.world.theta_threshold_radians
        return self._zeros + 1.0, is_outside | has_fallen

    def _euler(self, actions: Array) -> Array:
        """One step of the dynamics; returns the state's four columns, as views."""
        w = self.world
        xp = self.xp
        columns = self.state["x"].T
        x, x_dot, theta, theta_dot = columns
        cos = xp.cos(theta)
        sin = xp.sin(theta)
        force = self._force(actions)
        # The equations of Florian (2007) without friction, in Gymnasium's order of operations.
        centrifugal = w.polemass_length * xp.square(theta_dot) * sin
        temp = (force + centrifugal) / w.total_mass
        inertia = w.length * (4.0 / 3.0 - w.masspole * xp.square(cos) / w.total_mass)
        angular = (w.gravity * sin - cos * temp) / inertia
        linear = temp - w.polemass_length * angular * cos / w.total_mass
        x += w.tau * x_dot
        x_dot += w.tau * linear
        theta += w.tau * theta_dot
        theta_dot += w.tau * angular
        return columns

    def _force(self, actions: Array) -> Array:
        return actions * (2 * self.world.force_mag) - self.world.force_mag

    def _success(self, terminated: Array) -> Array:
        return ~terminated


class BatchedCartPoleUpright(BatchedCartPole):
    """`envs.classic.tasks.CartPoleUpright`: the pole may turn the full circle, walls stop the cart, no termination."""

    def _advance(self, actions: Array) -> Outcome:
        wall = self.world.wall
        x, x_dot, theta, theta_dot = self._euler(actions)
        # A cart that hits a wall stops at once, which gives the pole a push.
        hit = abs(x) > wall
        push = 3.0 / (4.0 * self.world.length) * self.xp.cos(theta) * x_dot
        theta_dot += hit * push
        x_dot *= ~hit
        x[...] = self.xp.clip(x, -wall, wall)
        theta[...] = wrap(theta)
        return 1.0 * (abs(theta) < UPRIGHT), self._zeros > 0

    def _observe(self, state: State, out: Array) -> None:
        x, x_dot, theta, theta_dot = state["x"].T
        _write(out, x, x_dot, self.xp.cos(theta), self.xp.sin(theta), theta_dot)

    def _state_of(self, obs: np.ndarray) -> np.ndarray:
        # Rounded to float32, a cart that stands at a wall would be behind it.
        wall = self.world.wall
        x = np.clip(obs[:, 0].astype(np.float64), -wall, wall)
        _, x_dot, cos, sin, theta_dot = obs.T
        return np.stack([x, x_dot, np.arctan2(sin, cos), theta_dot], -1)

    def _success(self, terminated: Array) -> Array:
        return self._returns >= self.world.SOLVED


class BatchedCartPoleSwingUp(BatchedCartPoleUpright):
    """`envs.classic.tasks.CartPoleSwingUp`: starts hanging, with continuous actions."""

    START = ((-0.05, -0.05, math.pi - 0.05, -0.05), (0.05, 0.05, math.pi + 0.05, 0.05))

    def _force(self, actions: Array) -> Array:
        return self._push(actions) * self.world.force_mag

    def _push(self, actions: Array) -> Array:
        return self.xp.clip(actions[:, 0] + self._zeros, -1.0, 1.0)

    def _advance(self, actions: Array) -> Outcome:
        _, never = super()._advance(actions)
        x, _, theta, theta_dot = self.state["x"].T
        return swing_up_reward(x, self.xp.cos(theta), theta_dot, self._push(actions)), never


class BatchedCartPoleSwingUpSparse(BatchedCartPoleSwingUp):
    """`envs.classic.tasks.CartPoleSwingUpSparse`: 1 while upright near the middle."""

    def _advance(self, actions: Array) -> Outcome:
        _, never = super()._advance(actions)
        x, _, theta, _ = self.state["x"].T
        return 1.0 * is_swung_up(x, self.xp.cos(theta)), never


class BatchedMountainCar(BatchedClassic):
    """Gymnasium's MountainCar; the state is position and velocity, and so is the observation."""

    START = ((-0.6, 0.0), (-0.4, 0.0))

    def _advance(self, actions: Array) -> Outcome:
        position, _ = self.state["x"].T
        engine = (actions - 1) * self.world.force
        slope = self.xp.cos(3 * position) * (-self.world.gravity)
        return self._zeros - 1.0, self._move(engine + slope)

    def _move(self, push: Array) -> Array:
        """Push the car along its track; returns which cars have arrived."""
        w = self.world
        position, velocity = self.state["x"].T
        velocity[...] = self.xp.clip(velocity + push, -w.max_speed, w.max_speed)
        position[...] = self.xp.clip(position + velocity, w.min_position, w.max_position)
        # A car that reaches the left end stops there.
        is_stopped = (position <= w.min_position) & (velocity < 0)
        velocity *= ~is_stopped
        return (position >= w.goal_position) & (velocity >= w.goal_velocity)

    def _success(self, terminated: Array) -> Array:
        return self.state["x"][:, 0] >= FLAG


class BatchedMountainCarGoal(BatchedMountainCar):
    """`envs.classic.tasks.MountainCarGoal`: a car that arrives stays; 1 for every step there."""

    def _advance(self, actions: Array) -> Outcome:
        x = self.state["x"]
        # A copy, as the step changes the state in place.
        before = x * 1.0
        super()._advance(actions)
        was_there = before[:, 0] >= FLAG
        x[...] = self.xp.where(was_there[:, None], before, x)
        is_there = x[:, 0] >= FLAG
        x[:, 1] *= ~is_there
        return 1.0 * is_there, self._zeros > 0

    def _observe(self, state: State, out: Array) -> None:
        position, velocity = state["x"].T
        _write(out, position, velocity / self.world.max_speed)

    def _state_of(self, obs: np.ndarray) -> np.ndarray:
        return obs * [1.0, self.world.max_speed]


class BatchedMountainCarSparse(BatchedMountainCar):
    """`envs.classic.tasks.MountainCarSparse`: 1 for the step that arrives."""

    def _advance(self, actions: Array) -> Outcome:
        _, arrived = super()._advance(actions)
        return 1.0 * arrived, arrived

    def _success(self, terminated: Array) -> Array:
        return terminated


class BatchedMountainCarContinuous(BatchedMountainCar):
    """Gymnasium's MountainCarContinuous, in float32 from the start; fuel costs by the action as it was given."""

    DTYPE = np.float32

    def _advance(self, actions: Array) -> Outcome:
        w = self.world
        xp = self.xp
        position, _ = self.state["x"].T
        action = actions[:, 0]
        engine = xp.clip(action, w.min_action, w.max_action) * w.power
        # Adding the float64 zeros makes the cosine, and below the fuel, float64; the original
        # rounds the former only.
        slope = 0.0025 * xp.cos(3 * position + self._zeros)
        slope = self.arrays.like(slope, position)
        arrived = self._move(engine - slope)
        fuel = xp.square(action + self._zeros) * 0.1
        return 100.0 * arrived - fuel, arrived


class BatchedPendulum(BatchedClassic):
    """Gymnasium's Pendulum; the state is angle and angular velocity, the observation holds cosine and sine instead."""

    START = ((-math.pi, -1.0), (math.pi, 1.0))

    def _advance(self, actions: Array) -> Outcome:
        w = self.world
        xp = self.xp
        theta, theta_dot = self.state["x"].T
        torque = xp.clip(actions[:, 0], -w.max_torque, w.max_torque)
        costs = xp.square(self._angle()) + 0.1 * xp.square(theta_dot)
        costs = costs + 0.001 * xp.square(torque)
        gravity = 3 * w.g / (2 * w.l) * xp.sin(theta)
        push = gravity + 3.0 / (w.m * w.l**2) * torque
        theta_dot[...] = xp.clip(theta_dot + push * w.dt, -w.max_speed, w.max_speed)
        theta += theta_dot * w.dt
        return -costs, self._zeros > 0

    def _angle(self) -> Array:
        """The angle from upright, in [-pi, pi)."""
        return (self.state["x"][:, 0] + np.pi) % (2 * np.pi) - np.pi

    def _observe(self, state: State, out: Array) -> None:
        theta, theta_dot = state["x"].T
        _write(out, self.xp.cos(theta), self.xp.sin(theta), theta_dot)

    def _state_of(self, obs: np.ndarray) -> np.ndarray:
        cos, sin, theta_dot = obs.T
        return np.stack([np.arctan2(sin, cos), theta_dot], -1)

    def _success(self, terminated: Array) -> Array:
        return abs(self._angle()) < UPRIGHT


class BatchedPendulumUpright(BatchedPendulum):
    """`envs.classic.tasks.PendulumUpright`: 1 while upright; with `torques`, the action is the number of one."""

    def _advance(self, actions: Array) -> Outcome:
        if self.world.torques is not None:
            torques = self.arrays.array(self.world.torques)
            actions = torques[actions][:, None]
        _, never = super()._advance(actions)
        return 1.0 * (abs(self._angle()) < UPRIGHT), never


class BatchedPendulumSparse(BatchedPendulum):
    """`envs.classic.tasks.PendulumSparse`: starts hanging still, 1 while nearly upright and slow."""

    START = ((math.pi - NEARLY_DOWN, -NEARLY_DOWN), (math.pi + NEARLY_DOWN, NEARLY_DOWN))

    def _advance(self, actions: Array) -> Outcome:
        _, never = super()._advance(actions)
        theta, theta_dot = self.state["x"].T
        is_held = (self.xp.cos(theta) > NEARLY_UP) & (abs(theta_dot) < SLOW_RAD_S)
        return 1.0 * is_held, never

    def _success(self, terminated: Array) -> Array:
        return self._returns >= HELD_STEPS


class BatchedAcrobot(BatchedClassic):
    """Gymnasium's Acrobot (the book's version); the state is two angles and their velocities."""

    START = ((-0.1,) * 4, (0.1,) * 4)

    def _generate(self, rng: np.random.Generator, count: int) -> State:
        # The original rounds where an episode begins.
        return {"x": super()._generate(rng, count)["x"].astype(np.float32).astype(np.float64)}

    def _advance(self, actions: Array) -> Outcome:
        w = self.world
        xp = self.xp
        state = self.state["x"]
        torque = actions - 1.0
        dt = w.dt
        # One step of the classic Runge-Kutta method.
        before = xp.stack(tuple(state.T))
        k1 = self._slope(before, torque)
        k2 = self._slope(before + dt / 2.0 * k1, torque)
        k3 = self._slope(before + dt / 2.0 * k2, torque)
        k4 = self._slope(before + dt * k3, torque)
        slope_sum = k1 + 2 * k2 + 2 * k3 + k4
        after = before + dt / 6.0 * slope_sum

        # Taking off or adding one turn is enough: no link turns further in a step.
        angles = after[:2]
        angles = xp.where(angles > math.pi, angles - 2 * math.pi, angles)
        angles = xp.where(angles < -math.pi, angles + 2 * math.pi, angles)
        state[:, :2] = angles.T
        state[:, 2] = xp.clip(after[2], -w.MAX_VEL_1, w.MAX_VEL_1)
        state[:, 3] = xp.clip(after[3], -w.MAX_VEL_2, w.MAX_VEL_2)
        first = state[:, 0]
        second = state[:, 1]
        height = -xp.cos(first) - xp.cos(second + first)
        arrived = height > 1.0
        return 1.0 * arrived - 1.0, arrived

    def _slope(self, x: Array, torque: Array) -> Array:
        """d/dt of the four state variables, (4, N); names and order of operations are Gymnasium's."""
        w = self.world
        cos = self.xp.cos
        g = 9.8
        m1 = w.LINK_MASS_1
        m2 = w.LINK_MASS_2
        l1 = w.LINK_LENGTH_1
        lc1 = w.LINK_COM_POS_1
        lc2 = w.LINK_COM_POS_2
        inertia = w.LINK_MOI
        theta1, theta2, dtheta1, dtheta2 = x
        cos2 = cos(theta2)
        sin2 = self.xp.sin(theta2)
        reach = l1**2 + lc2**2 + 2 * l1 * lc2 * cos2
        d1 = m1 * lc1**2 + m2 * reach + inertia + inertia
        d2 = m2 * (lc2**2 + l1 * lc2 * cos2) + inertia
        phi2 = m2 * lc2 * g * cos(theta1 + theta2 - math.pi / 2.0)
        # Signs and factors of 2 change no bit, so this product may be taken out of the three terms
        # that hold it.
        coupling = m2 * l1 * lc2
        phi1 = -coupling * dtheta2**2 * sin2
        phi1 = phi1 - 2 * coupling * dtheta2 * dtheta1 * sin2
        phi1 = phi1 + (m1 * lc1 + m2 * l1) * g * cos(theta1 - math.pi / 2)
        phi1 = phi1 + phi2
        torque2 = torque + d2 / d1 * phi1
        torque2 = torque2 - coupling * dtheta1**2 * sin2
        torque2 = torque2 - phi2
        ddtheta2 = torque2 / (m2 * lc2**2 + inertia - d2**2 / d1)
        ddtheta1 = -(d2 * ddtheta2 + phi1) / d1
        return self.xp.stack((dtheta1, dtheta2, ddtheta1, ddtheta2))

    def _observe(self, state: State, out: Array) -> None:
        first, second, *velocities = state["x"].T
        cos = self.xp.cos
        sin = self.xp.sin
        _write(out, cos(first), sin(first), cos(second), sin(second), *velocities)

    def _state_of(self, obs: np.ndarray) -> np.ndarray:
        angles = np.arctan2(obs[:, [1, 3]], obs[:, [0, 2]])
        return np.concatenate([angles, obs[:, 4:]], -1)


def _write(out: Array, *columns: Array) -> None:
    """Write the columns (N,) of observations."""
    for number, column in enumerate(columns):
        out[:, number] = column
