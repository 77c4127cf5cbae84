"""What all array programs share: seeds, time limits, returns, automatic resets and snapshots.

A subclass defines how episodes begin, how all environments move one step, and what an observation looks like; nothing
loops over environments. Episodes begin from a pool of start states that is drawn from one random stream, many at a time
and in order: a reset is a copy of rows, and a seed, or a list of them, determines the starts of all together.
"""

import copy
import sys
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from envs.family import step_limit
from envs.observations import empty_modalities
from envs.transitions import map_obs
from envs.types import Array, EnvReset, Info, Options, StateDict, VectorStep


class Arrays:
    """Where arrays live: NumPy's on "cpu", torch's on a device; `xp` is the module, for all that both spell alike."""

    def __init__(self, array: str = "numpy", device: str = "cpu") -> None:
        if array not in ("numpy", "torch"):
            raise ValueError(f'array={array!r} is unknown; give "numpy" or "torch"')
        if array == "numpy" and str(device) != "cpu":
            raise ValueError(f'device={device!r} holds no NumPy arrays; give device="cpu", or array="torch"')
        self.is_torch = array == "torch"
        self.device: Any = device
        self.xp: Any = np
        if self.is_torch:
            import torch

            self.xp = torch
            self.device = self._open_device(device)

    def _open_device(self, device: str) -> Any:
        """torch's device of that name; a ValueError if this machine has none."""
        torch = self.xp
        try:
            return torch.empty(0, device=device).device
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            available = "cpu, cuda" if torch.cuda.is_available() else "cpu"
            reason = str(error).splitlines()[0]
            raise ValueError(f"device={device!r} is not there ({reason}); this machine has {available}") from None

    def array(self, x: Any, dtype: Any = None) -> Array:
        """A copy of `x` (array-like on the host) on the device; `dtype` is NumPy's."""
        copied = np.array(x, dtype)
        return self.xp.as_tensor(copied, device=self.device) if self.is_torch else copied

    def like(self, x: Any, model: Array) -> Array:
        """`x`, from wherever it is, with the type and on the device of `model`; copied only if it must be."""
        if self.is_torch:
            return self.xp.as_tensor(x, dtype=model.dtype, device=self.device)
        return np.asarray(x, model.dtype)

    def numpy(self, x: Array) -> np.ndarray:
        return x.cpu().numpy().copy() if self.is_torch else x.copy()

    def gather(self, table: Array, index: Array) -> Array:
        """The rows of `table` that `index`, of any integer type and shape, names."""
        return table[index.long()] if self.is_torch else table.take(index, 0)


# Starts are drawn at least so many at a time.
MIN_POOL_STARTS = 256

# Name -> (N, ...), all that the dynamics read.
State = dict[str, Array]
# Rewards float (N,), and terminations bool (N,).
Outcome = tuple[Array, Array]


class BatchedEnv(VectorEnv):
    """N environments stepped as one array program, in SAME_STEP auto-reset mode.

    Where an episode ended, `obs` is the next one's first; `infos` then has `final_obs` (N, ...), the bool (N,) masks
    `_final_obs` and `_final_info`, and `final_info` = {"episode": {"r": float64 (N,), "l": int64 (N,)}, "is_success":
    bool (N,), where that is defined}, of which only the rows of the masks mean anything, and the `modalities` as they
    were. What `step` returns is valid until the next step.

    Args:
        original: one environment from `envs.make.make`: its spaces, limits and constants are taken over.
        frame_size: side in pixels of `infos["frame"]`, uint8 (N, side, side, 3); None for no frames.
        text, signals: whether to write `infos["text"]`, object (N,) of str, and `infos["signals"]`, float32 (N, K), as
            `SIGNALS` names them.
    """

    autoreset_mode = AutoresetMode.SAME_STEP
    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
    SIGNALS: tuple[str, ...] = ()
    # `original` without wrappers, closed; only its constants are read.
    world: Any

    def __init__(
        self,
        original: gym.Env,
        n: int,
        seed: int,
        arrays: Arrays,
        frame_size: int | None = None,
        text: bool = False,
        signals: bool = False,
    ) -> None:
        self.spec = original.spec
        self.world = original.unwrapped
        self.num_envs = n
        self.single_observation_space = original.observation_space
        self.single_action_space = original.action_space
        self.observation_space = batch_space(original.observation_space, n)
        self.action_space = batch_space(original.action_space, n)
        self.arrays = arrays
        self.xp = arrays.xp
        self.state: State = {}
        self.frame_size = frame_size
        self.first_seed = seed
        # Some of `MODALITIES`, (N, ...), of the observations last returned.
        self.modalities = empty_modalities(n, frame_size, text, len(self.SIGNALS) if signals else 0)
        self.max_steps = step_limit(original) or sys.maxsize

        self.np_random = np.random.default_rng(seed)
        self._pool: State = {}
        self._pool_size = max(MIN_POOL_STARTS, 2 * n)
        self._used = self._pool_size
        # The random stream before it made the pool, which is all that a snapshot needs of it.
        self._pool_rng: Any = None

        shape = self.observation_space.shape
        self._obs = arrays.array(np.zeros(shape, np.float32))
        self._final_obs = arrays.array(np.zeros(shape, np.float32))
        self._actions = arrays.array(np.zeros(self.action_space.shape, original.action_space.dtype))
        self._rewards = arrays.array(np.zeros(n, np.float32))
        self._returns = arrays.array(np.zeros(n, np.float64))
        self._steps = arrays.array(np.zeros(n, np.int64))
        self._everywhere = arrays.array(np.arange(n))
        self._setup(original)

    def _setup(self, original: gym.Env) -> None:
        """Prepare the subclass's own tables."""

    @abstractmethod
    def _generate(self, rng: np.random.Generator, count: int) -> State:
        """How `count` episodes begin: the entries of `state`, (count, ...)."""

    @abstractmethod
    def _advance(self, actions: Array) -> Outcome:
        """Move `state` on in place; rewards float (N,) and terminations bool (N,)."""

    @abstractmethod
    def _observe(self, state: State, out: Array) -> None:
        """Write the observations of K states into `out`, float32 (K, D)."""

    def _success(self, terminated: Array) -> Array | None:
        """Which episodes, bool (N,), succeed if they end here; None where that is not defined."""
        return terminated

    def _show(self, rows: Array) -> None:
        """Write some rows of `modalities`, int (K,), from `state`."""

    def reset(self, *, seed: int | Sequence[int] | None = None, options: Options | None = None) -> EnvReset:
        """Begin new episodes: everywhere, or in the rows of `options["reset_mask"]`, bool (N,), the only option."""
        unknown = sorted(set(options or {}) - {"reset_mask"})
        if unknown:
            raise ValueError(f"option {unknown[0]!r} is unknown to array programs; the only one is 'reset_mask'")
        mask = np.ones(self.num_envs, bool)
        if options:
            if not self.state:
                raise RuntimeError("no episode has begun yet; call reset() without a mask first")
            mask = self.arrays.numpy(self.xp.asarray(options["reset_mask"]))
            if mask.shape != (self.num_envs,):
                raise ValueError(f"reset_mask has shape {mask.shape}; give one bool for each of {self.num_envs}")
        if seed is not None:
            self.np_random = np.random.default_rng(seed)
            self._used = self._pool_size
        self._begin(self.arrays.array(np.flatnonzero(mask)))
        return self._obs, dict(self.modalities)

    def step(self, actions: Array) -> VectorStep:
        """Move all environments one step; whether the actions are in their space is not checked."""
        if not self.state:
            raise RuntimeError("no episode has begun yet; call reset() first")
        actions = self.arrays.like(actions, self._actions)
        if actions.shape != self._actions.shape:
            raise ValueError(f"actions have shape {tuple(actions.shape)}; give {tuple(self._actions.shape)}")
        self._steps += 1
        rewards, terminated = self._advance(actions)
        self._returns += rewards
        self._rewards[...] = rewards
        truncated = self._steps >= self.max_steps
        ended = terminated | truncated
        self._look()
        infos: Info = {}
        if ended.any():
            infos = self._end(ended, terminated)
        infos.update(self.modalities)
        return self._obs, self._rewards, terminated, truncated, infos

    def _look(self) -> None:
        """Write the observations and the modalities of the state, of all environments."""
        self._observe(self.state, self._obs)
        if self.modalities:
            self._show(self._everywhere)

    def _end(self, ended: Array, terminated: Array) -> Info:
        rows = self.xp.where(ended)[0]
        self._final_obs[rows] = self._obs[rows]
        final: Info = {"episode": {"r": self._returns * ended, "l": self._steps * ended}}
        success = self._success(terminated)
        if success is not None:
            final["is_success"] = success & ended
        # Copies, because the next episodes write over these.
        for name, value in self.modalities.items():
            final[name] = value.copy()
        self._begin(rows)
        return {"final_obs": self._final_obs, "_final_obs": ended, "final_info": final, "_final_info": ended}

    def _begin(self, rows: Array) -> None:
        first = self.xp.empty_like(self._obs[: len(rows)])
        self._start(rows, first)
        self._steps[rows] = 0
        self._returns[rows] = 0.0
        self._obs[rows] = first
        if self.modalities:
            self._show(rows)

    def _start(self, rows: Array, out: Array) -> None:
        """Put the next starts of the pool into rows (K,) of `state`, and their observations into `out`, (K, D)."""
        if self._used + len(rows) > self._pool_size:
            self._refill()
        begin = self._used
        self._used = begin + len(rows)
        starts = map_obs(lambda x: x[begin : self._used], self._pool)
        if not self.state:
            self.state = map_obs(self.xp.zeros_like, starts)
        for key, value in starts.items():
            self.state[key][rows] = value
        self._observe(starts, out)

    def _refill(self) -> None:
        self._pool_rng = copy.deepcopy(self.np_random.bit_generator.state)
        self._pool = map_obs(self.arrays.array, self._generate(self.np_random, self._pool_size))
        self._used = 0

    @property
    def has_reset(self) -> bool:
        return bool(self.state)

    def snapshot(self) -> StateDict:
        """Plain data from which `restore` continues, bit for bit; a RuntimeError before the first reset."""
        if not self.state:
            raise RuntimeError("there is no episode to take a snapshot of; call reset() first")
        host = self.arrays.numpy
        return {**self._saved_state(), "steps": host(self._steps), "returns": host(self._returns)}

    def _saved_state(self) -> StateDict:
        """What a snapshot holds besides steps and returns."""
        state = map_obs(self.arrays.numpy, self.state)
        return {"state": state, "rng": copy.deepcopy(self._pool_rng), "used": self._used}

    def restore(self, state: StateDict) -> Array:
        """Come to the state in which `snapshot` was taken, of as many environments; returns its observations."""
        if "steps" not in state:
            raise ValueError("the snapshot is of single environments, no program; give backend=gym, or start over")
        count = len(state["steps"])
        if count != self.num_envs:
            raise ValueError(f"the snapshot holds {count} environments, not {self.num_envs}; make as many")
        self._return_to(state)
        self._steps = self.arrays.array(state["steps"], np.int64)
        self._returns = self.arrays.array(state["returns"], np.float64)
        self._look()
        return self._obs

    def _return_to(self, saved: StateDict) -> None:
        """The inverse of `_saved`."""
        self.np_random.bit_generator.state = copy.deepcopy(saved["rng"])
        self._refill()
        self._used = int(saved["used"])
        self.state = map_obs(self.arrays.array, saved["state"])
