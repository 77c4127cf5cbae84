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

from envs.batched.base import Arrays, BatchedEnv, Outcome, State
from envs.mujoco.family import ROBOT_ENDS
from envs.types import Array

# After so many environment steps compiling has cost less than it gains.
COMPILE_AFTER_STEPS = 20_000
# A thread looks so often for the next step before it sleeps, for about a millisecond.
MAX_IDLE_LOOKS = 3_000


@functools.cache
def _import_compiled(threads: int) -> Any:
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

    # Whether velocities begin with normal noise, not uniform.
    NORMAL = False
    # How many positions are not observed.
    HIDDEN = 1
    # A field of MjData -> how many of its first numbers are not observed.
    DERIVED: dict[str, int] = {}
    # Whether the physics is MuJoCo's own.
    ON_HOST = True
    # Ends the threads besides the caller's.
    _stop: Any = None

    def __init__(self, original: gym.Env, n: int, seed: int, arrays: Arrays, num_threads: int = 1) -> None:
        if self.ON_HOST and str(arrays.device) != "cpu":
            raise ValueError(f'device={str(arrays.device)!r} needs its own physics; give backend="device"')
        self.num_threads = min(num_threads, n)
        super().__init__(original, n, seed, arrays)

    def _setup(self, original: gym.Env) -> None:
        world = self.world
        model = world.model
        self._model = model
        self._lay_out_physics()
        self._data = [mujoco.MjData(model) for _ in range(self.num_threads)]
        self._lay_out_derived()
        self._alive = getattr(world, "_healthy_reward", 0.0)
        self._mortal = getattr(world, "_terminate_when_unhealthy", False)
        spec: Any = original.spec
        self._ends: Any = ROBOT_ENDS[spec.name]
        self._limits = {**spec.kwargs, "exclude_current_positions_from_observation": False}
        self._dt = world.dt
        self._never = self.arrays.array(np.zeros(self.num_envs, bool))
        self._count = 0

        # The columns of both tables are described at `physics.move`.
        self._board = np.zeros(10, np.int64)
        self._board[3] = self.num_envs
        self._board[8] = self.num_threads
        self._beds = np.zeros((self.num_threads, 4), np.int64)
        # The state whose addresses are on the board, and its tables.
        self._on_board: list[Any] = [None]

    def _lay_out_physics(self) -> None:
        """Which columns of a row of physics hold the positions, velocities and controls."""
        model = self._model
        states = mujoco.mjtState
        # Which parts of mjtState a row has. They lie in the order of their bits, after the time.
        self.kind = int(states.mjSTATE_FULLPHYSICS) | int(states.mjSTATE_WARMSTART) | int(states.mjSTATE_CTRL)
        self._size = mujoco.mj_stateSize(model, self.kind)
        self._control = self._columns_of(states.mjSTATE_CTRL, model.nu)
        positions_end = 1 + model.nq
        self._positions = slice(1, positions_end)
        self._velocities = slice(positions_end, positions_end + model.nv)
        hidden = self.HIDDEN if self.world._exclude_current_positions_from_observation else 0
        self._observed = slice(1 + hidden, positions_end)

    def _columns_of(self, part: Any, size: int) -> slice:
        """The columns of one part of mjtState: behind all parts with lower bits."""
        start = mujoco.mj_stateSize(self._model, self.kind & (int(part) - 1))
        return slice(start, start + size)

    def _lay_out_derived(self) -> None:
        """Which columns of a row of derived numbers hold which field, and where each thread computes it."""
        self._fields = [getattr(self._data[0], name).reshape(-1) for name in self.DERIVED]
        self._sizes = np.array([field.size for field in self._fields], np.int64)
        self._addresses = []
        for data in self._data:
            addresses = [getattr(data, name).ctypes.data for name in self.DERIVED]
            self._addresses.append(np.array(addresses, np.int64))
        self._place: dict[str, slice] = {}
        self._shown: list[slice] = []
        start = 0
        for (name, hidden), size in zip(self.DERIVED.items(), self._sizes.tolist()):
            end = start + size
            self._place[name] = slice(start, end)
            if getattr(self.world, f"_include_{name}_in_observation", False):
                self._shown.append(slice(start + hidden, end))
            start = end

    def _generate(self, rng: np.random.Generator, count: int) -> State:
        world = self.world
        model = self._model
        data = self._data[0]
        scale = world._reset_noise_scale
        positions = world.init_qpos + rng.uniform(-scale, scale, (count, model.nq))
        shape = (count, model.nv)
        noise = scale * rng.standard_normal(shape) if self.NORMAL else rng.uniform(-scale, scale, shape)
        velocities = world.init_qvel + noise
        physics = np.empty((count, self._size))
        derived = np.empty((count, self._sizes.sum()))
        for row in range(count):
            mujoco.mj_resetData(model, data)
            data.qpos[:] = positions[row]
            data.qvel[:] = velocities[row]
            mujoco.mj_forward(model, data)
            mujoco.mj_getState(model, data, physics[row], self.kind)
            if self.DERIVED:
                np.concatenate(self._fields, out=derived[row])
        return {"physics": physics, "derived": derived} if self.DERIVED else {"physics": physics}

    def _advance(self, actions: Array) -> Outcome:
        # A copy: where the physics moves, it writes over what `_x` shows.
        before = self._x() + 0.0
        self.state["physics"][:, self._control] = actions
        self._move()
        speed = (self._x() - before) / self._dt
        rewards = self.world._forward_reward_weight * speed
        terminated = self._never
        if self._alive or self._mortal:
            # Where it is and how fast, all of it, observed or not.
            moving = self.state["physics"][:, 1 : self._velocities.stop]
            healthy = ~self._ends(self._limits, moving)
            rewards += healthy * self._alive
            if self._mortal:
                terminated = ~healthy
        return rewards - self._costs(actions), terminated

    def _x(self) -> Array:
        """How far robots are, in metres; a step's speed is its difference, as Gymnasium has it."""
        return self.state["physics"][:, 1]

    def _costs(self, actions: Array) -> Array:
        return self.world._ctrl_cost_weight * self.xp.square(actions).sum(-1)

    def _move(self) -> None:
        """Move `state` on; each thread takes the next row, so that none waits for one that is late."""
        self._count += self.num_envs
        if self.state["physics"] is not self._on_board[0]:
            self._put_on_board()
        is_threaded = self.num_threads > 1
        compiled = None
        if is_threaded or self._count > COMPILE_AFTER_STEPS:
            compiled = _import_compiled(self.num_threads)
        if compiled is None:
            self._move_rows(*self._on_board[1:])
            return
        if is_threaded and self._stop is None:
            self._start_threads(compiled)
        compiled(self._board, self._beds, 0, 0, *self._simulator(0))

    def _put_on_board(self) -> None:
        """Give the threads the addresses of the state, which a reset or a snapshot has exchanged."""
        physics = self.state["physics"]
        tables = [physics, self.state["derived" if self.DERIVED else "physics"]]
        if self.arrays.is_torch:
            # NumPy's views of the same memory.
            tables = [table.numpy() for table in tables]
        self._on_board = [physics, *tables]
        for column, table in zip((4, 6), tables):
            self._board[column] = table.ctypes.data
            self._board[column + 1] = table.strides[0]

    def _move_rows(self, physics: np.ndarray, derived: np.ndarray) -> None:
        model = self._model
        data = self._data[0]
        fields = self._fields
        for row in range(self.num_envs):
            mujoco.mj_setState(model, data, physics[row], self.kind)
            mujoco.mj_step(model, data, self.world.frame_skip)
            mujoco.mj_getState(model, data, physics[row], self.kind)
            if fields:
                mujoco.mj_rnePostConstraint(model, data)
                np.concatenate(fields, out=derived[row])

    def _simulator(self, thread: int) -> tuple[Any, ...]:
        """The last arguments of `physics.move` for a thread."""
        model = self._model._address
        data = self._data[thread]._address
        return model, data, self.kind, self.world.frame_skip, self._addresses[thread], self._sizes

    def _start_threads(self, compiled: Any) -> None:
        threads = []
        for number in range(1, self.num_threads):
            self._beds[number, 1:3] = os.pipe()
            arguments = (self._board, self._beds, number, MAX_IDLE_LOOKS, *self._simulator(number))
            threads.append(threading.Thread(target=compiled, args=arguments, daemon=True))
        for thread in threads:
            thread.start()
        # Threads also end when the environment is garbage-collected without having been closed.
        self._stop = weakref.finalize(self, _stop_threads, self._board, self._beds, threads)

    def use_threads(self, most: int) -> None:
        """From the next step on at most so many threads work, at least one; the others sleep."""
        self._board[8] = min(max(most, 1), self.num_threads)

    def _observe(self, state: State, out: Array) -> None:
        physics = state["physics"]
        parts = [physics[:, self._observed], self._observed_velocities(physics[:, self._velocities])]
        parts += [self._observed_forces(state["derived"][:, place]) for place in self._shown]
        begin = 0
        for part in parts:
            end = begin + part.shape[1]
            out[:, begin:end] = part
            begin = end

    def _observed_velocities(self, velocities: Array) -> Array:
        """Velocities as they are observed: some robots clip them."""
        return velocities

    def _observed_forces(self, derived: Array) -> Array:
        """Derived numbers as they are observed: some robots clip them."""
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

    def _observed_velocities(self, velocities: Array) -> Array:
        return self.xp.clip(velocities, -10, 10)


class BatchedHopper(BatchedWalker2d):
    """Gymnasium's Hopper-v5: ends also by any other position or velocity."""


class BatchedAnt(BatchedRobot):
    """Gymnasium's Ant-v5: contact forces are observed and cost."""

    NORMAL = True
    HIDDEN = 2
    DERIVED = {"xpos": 0, "cfrc_ext": 6}

    def _x(self) -> Array:
        return self.state["derived"][:, 3 * self._model.body(self.world._main_body).id]

    def _observed_forces(self, derived: Array) -> Array:
        return self.xp.clip(derived, *self.world._contact_force_range)

    def _costs(self, actions: Array) -> Array:
        forces = self._observed_forces(self.state["derived"][:, self._place["cfrc_ext"]])
        contact = self.world._contact_cost_weight * self.xp.square(forces).sum(-1)
        return super()._costs(actions) + contact


class BatchedHumanoid(BatchedRobot):
    """Gymnasium's Humanoid-v5: inertia, velocities, torques and contact forces of the bodies are observed."""

    HIDDEN = 2
    DERIVED = {"xipos": 0, "cinert": 10, "cvel": 6, "qfrc_actuator": 6, "cfrc_ext": 6}

    def _setup(self, original: gym.Env) -> None:
        super()._setup(original)
        self._mass = self.arrays.array(self._model.body_mass[:, None])

    def _x(self) -> Array:
        # The centre of mass of all bodies.
        bodies = self.state["derived"][:, self._place["xipos"]]
        bodies = bodies.reshape(-1, len(self._mass), 3)
        return (self._mass * bodies).sum(1)[:, 0] / self._mass.sum()

    def _costs(self, actions: Array) -> Array:
        world = self.world
        xp = self.xp
        # The controls are read from the state, in float64; other robots' costs are those of float32
        # actions.
        controls = self.state["physics"][:, self._control]
        forces = self.state["derived"][:, self._place["cfrc_ext"]]
        contact = world._contact_cost_weight * xp.square(forces).sum(-1)
        contact = xp.clip(contact, *world._contact_cost_range)
        return world._ctrl_cost_weight * xp.square(controls).sum(-1) + contact


def _stop_threads(board: np.ndarray, beds: np.ndarray, threads: list[threading.Thread]) -> None:
    """End the threads of `physics.move`."""
    board[9] = 1
    pipes = beds[1:, 1:3].tolist()
    for _, write_end in pipes:
        os.write(write_end, b"0")
    for thread in threads:
        thread.join()
    for read_end, write_end in pipes:
        os.close(read_end)
        os.close(write_end)
