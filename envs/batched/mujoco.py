"""Gymnasium's robots as array programs: MuJoCo's physics on one thread or several (`num_threads`), all else in arrays.

A row of `state["physics"]`, float64, is all that MuJoCo continues from: time, positions, velocities, the solver's warm
start and the controls. One `MjData` a thread is brought to each row in turn, so that trajectories equal Gymnasium's to
the last bit, on any number of threads. `mujoco.rollout` would lose the warm start, which shows in the ninth digit.
What Ant and Humanoid read besides, such as contact forces, is `state["derived"]`, as it was computed on the way.

From the 20,000th step on, and on several threads, the loop over rows is compiled where numba is installed (extra
`fast`): it holds no lock of Python's. Between two steps threads keep looking for the next one, as to wake one takes as
long as to move several robots.
"""

import functools
import importlib
import os
import threading
import warnings
import weakref
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np

from envs.batched.base import Arrays, BatchedEnv
from envs.types import Array

LONG = 20_000  # environment steps after which compiling has cost less than it gains
PATIENCE = 3_000  # looks for the next step, about a millisecond


@functools.cache
def _compiled(threads: int) -> Any:
    """The compiled loop; None where it cannot run, which is said if there were to be several threads."""
    try:
        return importlib.import_module("envs.batched.physics").move
    except (ImportError, RuntimeError) as error:
        if threads > 1:
            message = f"MuJoCo has one thread, not {threads} ({error}); pip install 'lodestar-rl[fast]'"
            warnings.warn(f"{message}, or give num_threads=1", RuntimeWarning, stacklevel=2)
        return None


class BatchedRobot(BatchedEnv):
    """What the robots share; see `BatchedEnv`. A ValueError refuses arrays on a device.

    Args:
        num_threads: of the physics.
    """

    NORMAL = False  # whether velocities begin with normal noise, not uniform
    HIDDEN = 1  # positions that are not observed
    DERIVED: dict[str, int] = {}  # field of MjData -> how many of its first numbers are not observed
    ON_HOST = True  # whether the physics is MuJoCo's own
    _stop: Any = None  # ends the threads besides the caller's

    def __init__(self, original: gym.Env, n: int, seed: int, arrays: Arrays, num_threads: int = 1) -> None:
        if self.ON_HOST and str(arrays.device) != "cpu":
            raise ValueError(f'device={str(arrays.device)!r} needs its own physics; give backend="device"')
        self.num_threads = min(num_threads, n)
        super().__init__(original, n, seed, arrays)

    def _setup(self, original: gym.Env) -> None:
        world, states = self.world, mujoco.mjtState
        self._model = model = world.model
        # Which parts of mjtState a row of physics has, in the order of their bits.
        self.kind = int(states.mjSTATE_FULLPHYSICS) | int(states.mjSTATE_WARMSTART) | int(states.mjSTATE_CTRL)
        self._size = mujoco.mj_stateSize(model, self.kind)
        before = mujoco.mj_stateSize(model, self.kind & (int(states.mjSTATE_CTRL) - 1))
        self._control = slice(before, before + model.nu)
        positions, velocities = 1 + model.nq, 1 + model.nq + model.nv  # the time comes first
        self._positions, self._velocities = slice(1, positions), slice(positions, velocities)
        hidden = self.HIDDEN if world._exclude_current_positions_from_observation else 0
        self._observed = slice(1 + hidden, positions)
        self._data = [mujoco.MjData(model) for _ in range(self.num_threads)]
        self._fields = [[getattr(data, name).reshape(-1) for name in self.DERIVED] for data in self._data]
        self._addresses = [np.array([x.ctypes.data for x in fields], np.int64) for fields in self._fields]
        self._sizes = np.array([x.size for x in self._fields[0]], np.int64)
        ends = np.cumsum(self._sizes).tolist()
        self._place = {name: slice(end - size, end) for name, size, end in zip(self.DERIVED, self._sizes, ends)}
        self._shown = [self._part(name) for name in self.DERIVED if self._is_shown(name)]
        self._alive, self._dt = getattr(world, "_healthy_reward", 0.0), world.dt
        self._mortal = getattr(world, "_terminate_when_unhealthy", False)
        self._never = self.arrays.array(np.zeros(self.num_envs, bool))
        self._count = 0
        # Its columns are described at `physics.move`.
        self._board = np.array([0, 0, 0, self.num_envs, 0, 0, 0, 0, self.num_threads, 0], np.int64)
        self._beds = np.zeros((self.num_threads, 4), np.int64)
        self._held: list[Any] = [None]  # the state that the board has the addresses of, and its tables

    def _is_shown(self, name: str) -> bool:
        return getattr(self.world, f"_include_{name}_in_observation", False) is True

    def _part(self, name: str) -> slice:
        place = self._place[name]
        return slice(place.start + self.DERIVED[name], place.stop)

    def _generate(self, rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
        world, model, data, scale = self.world, self._model, self._data[0], self.world._reset_noise_scale
        positions = world.init_qpos + rng.uniform(-scale, scale, (count, model.nq))
        shape = (count, model.nv)
        noise = scale * rng.standard_normal(shape) if self.NORMAL else rng.uniform(-scale, scale, shape)
        velocities = world.init_qvel + noise
        physics, derived = np.empty((count, self._size)), np.empty((count, self._sizes.sum()))
        for row in range(count):
            mujoco.mj_resetData(model, data)
            data.qpos[:], data.qvel[:] = positions[row], velocities[row]
            mujoco.mj_forward(model, data)
            mujoco.mj_getState(model, data, physics[row], self.kind)
            if self.DERIVED:
                np.concatenate(self._fields[0], out=derived[row])
        return {"physics": physics, "derived": derived} if self.DERIVED else {"physics": physics}

    def _advance(self, actions: Array) -> tuple[Array, Array]:
        before = self._x() + 0.0
        self.state["physics"][:, self._control] = actions
        self._move()
        rewards, terminated = self.world._forward_reward_weight * ((self._x() - before) / self._dt), self._never
        if self._alive or self._mortal:
            healthy = self._healthy()
            rewards += healthy * self._alive
            terminated = ~healthy if self._mortal else terminated
        return rewards - self._costs(actions), terminated

    def _x(self) -> Array:
        """How far robots are, in metres; a step's speed is its difference, as Gymnasium has it."""
        return self.state["physics"][:, 1]

    def _healthy(self) -> Array:
        """Which robots, bool (N,), are: all of those that cannot fall."""
        return ~self._never

    def _costs(self, actions: Array) -> Array:
        return self.world._ctrl_cost_weight * self.xp.square(actions).sum(-1)

    def _move(self) -> None:
        """Move `state` on; each thread takes the next row, so that none waits for one that is late."""
        self._count += self.num_envs
        physics = self.state["physics"]
        if physics is not self._held[0]:  # they were restored
            held = physics, self.state["derived" if self.DERIVED else "physics"]
            self._held = [physics, *(x.numpy() if self.arrays.is_torch else x for x in held)]  # the same memory
            self._board[4:8] = [n for table in self._held[1:] for n in (table.ctypes.data, table.strides[0])]
        compiled = _compiled(self.num_threads) if self.num_threads > 1 or self._count > LONG else None
        if compiled is None:
            self._move_rows(*self._held[1:])
            return
        if self.num_threads > 1 and self._stop is None:
            self._start_threads(compiled)
        compiled(self._board, self._beds, 0, 0, *self._simulator(0))

    def _move_rows(self, physics: np.ndarray, derived: np.ndarray) -> None:
        model, data, fields = self._model, self._data[0], self._fields[0]
        for row in range(self.num_envs):
            mujoco.mj_setState(model, data, physics[row], self.kind)
            mujoco.mj_step(model, data, self.world.frame_skip)
            mujoco.mj_getState(model, data, physics[row], self.kind)
            if fields:
                mujoco.mj_rnePostConstraint(model, data)
                np.concatenate(fields, out=derived[row])

    def _simulator(self, thread: int) -> tuple[Any, ...]:
        addresses = self._model._address, self._data[thread]._address
        return *addresses, self.kind, self.world.frame_skip, self._addresses[thread], self._sizes

    def _start_threads(self, compiled: Any) -> None:
        self._beds[1:, 1:3] = [os.pipe() for _ in self._beds[1:]]
        calls = [(thread, PATIENCE, *self._simulator(thread)) for thread in range(1, self.num_threads)]
        begin = functools.partial(compiled, self._board, self._beds)
        others = [threading.Thread(target=begin, args=call, daemon=True) for call in calls]
        for thread in others:
            thread.start()
        self._stop = weakref.finalize(self, _stop, self._board, self._beds, others)  # also when it is forgotten

    def use_threads(self, most: int) -> None:
        """From the next step on at most so many threads work, at least one; the others sleep."""
        self._board[8] = min(max(most, 1), self.num_threads)

    def _observe(self, state: dict[str, Array], out: Array) -> None:
        physics = state["physics"]
        parts = [physics[:, self._observed], self._limited(physics[:, self._velocities])]
        end = 0
        for part in parts + [self._seen(state["derived"][:, place]) for place in self._shown]:
            begin, end = end, end + part.shape[1]
            out[:, begin:end] = part

    def _limited(self, velocities: Array) -> Array:
        """As they are observed."""
        return velocities

    def _seen(self, derived: Array) -> Array:
        """As they are observed."""
        return derived

    def _success(self, terminated: Array) -> None:
        return None

    def close_extras(self, **kwargs: Any) -> None:
        if self._stop is not None:
            self._stop()


class BatchedHalfCheetah(BatchedRobot):
    """Gymnasium's HalfCheetah-v5, which never ends."""

    NORMAL = True


class BatchedWalker2d(BatchedRobot):
    """Gymnasium's Walker2d-v5: ends by the torso's height and pitch."""

    def _limited(self, velocities: Array) -> Array:
        return self.xp.clip(velocities, -10, 10)

    def _healthy(self) -> Array:
        height, angle = self.state["physics"][:, 2], self.state["physics"][:, 3]
        return _within(height, self.world._healthy_z_range) & _within(angle, self.world._healthy_angle_range)


class BatchedHopper(BatchedWalker2d):
    """Gymnasium's Hopper-v5: ends also by any other position or velocity."""

    def _healthy(self) -> Array:
        others = self.state["physics"][:, 3 : self._velocities.stop]
        return super()._healthy() & _within(others, self.world._healthy_state_range).all(-1)


class BatchedAnt(BatchedRobot):
    """Gymnasium's Ant-v5: contact forces are observed and cost."""

    NORMAL, HIDDEN = True, 2
    DERIVED = {"xpos": 0, "cfrc_ext": 6}

    def _x(self) -> Array:
        return self.state["derived"][:, 3 * self._model.body(self.world._main_body).id]

    def _healthy(self) -> Array:
        moving, (low, high) = self.state["physics"][:, 1 : self._velocities.stop], self.world._healthy_z_range
        return self.xp.isfinite(moving).all(-1) & (low <= moving[:, 2]) & (moving[:, 2] <= high)

    def _seen(self, derived: Array) -> Array:
        return self.xp.clip(derived, *self.world._contact_force_range)

    def _costs(self, actions: Array) -> Array:
        contact = self._seen(self.state["derived"][:, self._place["cfrc_ext"]])
        return super()._costs(actions) + self.world._contact_cost_weight * self.xp.square(contact).sum(-1)


class BatchedHumanoid(BatchedRobot):
    """Gymnasium's Humanoid-v5: inertia, velocities, torques and contact forces of the bodies are observed."""

    HIDDEN = 2
    DERIVED = {"xipos": 0, "cinert": 10, "cvel": 6, "qfrc_actuator": 6, "cfrc_ext": 6}

    def _setup(self, original: gym.Env) -> None:
        super()._setup(original)
        self._mass = self.arrays.array(self._model.body_mass[:, None])

    def _x(self) -> Array:
        bodies = self.state["derived"][:, self._place["xipos"]].reshape(-1, len(self._mass), 3)
        return (self._mass * bodies).sum(1)[:, 0] / self._mass.sum()

    def _healthy(self) -> Array:
        return _within(self.state["physics"][:, 3], self.world._healthy_z_range)

    def _costs(self, actions: Array) -> Array:
        world, square = self.world, self.xp.square
        control = square(self.state["physics"][:, self._control]).sum(-1)  # in float64, unlike the others'
        contact = world._contact_cost_weight * square(self.state["derived"][:, self._place["cfrc_ext"]]).sum(-1)
        return world._ctrl_cost_weight * control + self.xp.clip(contact, *world._contact_cost_range)


def _stop(board: np.ndarray, beds: np.ndarray, threads: list[threading.Thread]) -> None:
    """End the threads of `physics.move`."""
    board[9] = 1
    for _, _, end, _ in beds[1:].tolist():
        os.write(end, b"0")
    for thread in threads:
        thread.join()
    for _, *ends, _ in beds[1:].tolist():
        for end in ends:
            os.close(end)


def _within(x: Array, limits: tuple[float, float]) -> Array:
    return (limits[0] < x) & (x < limits[1])
