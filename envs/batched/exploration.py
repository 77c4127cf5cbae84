"""`envs.exploration.family` as array programs: its tables, looked up for all environments at once.

Randomness within episodes comes from a random stream of its own, and is drawn on the host.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from envs.batched.base import BatchedEnv, Step
from envs.exploration import peg
from envs.exploration.family import PERIOD, START, STAY, first_noise, next_noise
from envs.types import Array


class BatchedCells(BatchedEnv):
    """What both share: `state["cell"]` int64 (N,), `infos["cell"]` in [0, n_cells) of each step, last ones too."""

    def _setup(self, original: gym.Env) -> None:
        array = self.arrays.array
        self.n_cells: int = self.world.n_cells
        self._chance = self.np_random.spawn(1)[0]
        self._reached = array(np.zeros(self.num_envs, np.int64))
        self._leads = array(self.world.leads.ravel())
        self._choices = self.world.leads.shape[1]
        self._never = array(np.zeros(self.num_envs, bool))

    @property
    def cell(self) -> Array:
        """The cells of the observations last returned, int64 (N,)."""
        return self.state["cell"]

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        obs, infos = super().reset(seed=seed, options=options)
        if seed is not None:
            self._chance = self.np_random.spawn(1)[0]
        self._reached[...] = self.cell
        return obs, {**infos, "cell": self._reached}

    def step(self, actions: Array) -> Step:
        answer = super().step(actions)
        answer[-1]["cell"] = self._reached
        return answer

    def _go(self, choices: Array) -> None:
        """Move every agent to where its choice, an int (N,), leads from its cell."""
        cell = self.state["cell"]
        cell[...] = self._reached[...] = self.arrays.gather(self._leads, cell * self._choices + choices)

    def _observe(self, state: dict[str, Array], out: Array) -> None:
        """Write K cells into `out`, float32 (K, n_cells), as one-hot rows."""
        out[...] = 0.0
        out[self._everywhere[: len(out)], state["cell"]] = 1.0

    def _saved(self) -> dict[str, Any]:
        return {**super()._saved(), "chance": self._chance.bit_generator.state}

    def _return_to(self, saved: dict[str, Any]) -> None:
        super()._return_to(saved)
        self._chance.bit_generator.state = saved["chance"]


class BatchedNoisyRooms(BatchedCells):
    """`envs.exploration.family.NoisyRooms`; `state` also holds `noise` float32 (N, bits), and `arrived`."""

    def _setup(self, original: gym.Env) -> None:
        super()._setup(original)
        world = self.world
        self.room_of = world.room_of
        self._last = (world.rooms - 1) * PERIOD
        self._uniform = np.zeros((self.num_envs, world.bits), np.float32)
        self._codes = None if world.codes is None else self.arrays.array(world.codes)
        self._width = self._obs.shape[1] - world.bits

    def _generate(self, rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
        return {
            "cell": np.full(count, START),
            "noise": first_noise(self.world.kind, rng, (count, self.world.bits)),
            "arrived": np.full(count, self.world.rooms == 1),
        }

    def _advance(self, actions: Array) -> tuple[Array, Array]:
        state, kind = self.state, self.world.kind
        self._go(actions)
        state["arrived"] |= self._reached >= self._last
        if kind != "off":
            noise = state["noise"]
            self._chance.random(dtype=np.float32, out=self._uniform)
            noise[...] = next_noise(kind, noise, self.arrays.like(self._uniform, noise), (actions == STAY)[:, None])
        return self._never, self._never

    def _observe(self, state: dict[str, Array], out: Array) -> None:
        if self._codes is None:
            super()._observe(state, out[:, : self._width])
        else:
            out[:, : self._width] = self.arrays.gather(self._codes, state["cell"])
        out[:, self._width :] = state["noise"]

    def _success(self, terminated: Array) -> Array:
        return self.state["arrived"]


class BatchedDeepSea(BatchedCells):
    """`envs.exploration.family.DeepSea`; the cell is the whole state."""

    def _setup(self, original: gym.Env) -> None:
        super()._setup(original)
        array = self.arrays.array
        self._right, self._reward_table = array(self.world.right), array(self.world.rewards.ravel())
        self._treasure = self._never

    def _generate(self, rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
        return {"cell": np.zeros(count, np.int64)}

    def _advance(self, actions: Array) -> tuple[Array, Array]:
        world, cell = self.world, self.state["cell"]
        right = actions == self.arrays.gather(self._right, cell)
        landed, last = cell >= world.bottom, cell == self.n_cells - 1
        self._treasure = right & last
        rewards, drift = self.arrays.gather(self._reward_table, 2 * cell + right), 2 * right
        if world.stochastic:
            corner = (cell == world.bottom) | last
            rewards = rewards + corner * self.arrays.array(self._chance.normal(size=self.num_envs))
            drift = right * (1 + self.arrays.array(self._chance.random(self.num_envs) >= 1 / world.size))
        self._go(drift)
        return rewards, landed

    def _success(self, terminated: Array) -> Array:
        return self._treasure


class BatchedPeg(BatchedEnv):
    """`envs.exploration.peg.Peg`; `state` holds `pose` and `hole`, float32 (N, 3)."""

    def _generate(self, rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
        return dict(zip(("pose", "hole"), peg.begin(rng, count)))

    def _advance(self, actions: Array) -> tuple[Array, Array]:
        pose = self.state["pose"]
        pose[...] = peg.moved(self.xp, pose, self.state["hole"], actions, self.world.eps)
        inside = pose[:, 1] <= -peg.DEPTH
        return 1.0 * inside, inside

    def _observe(self, state: dict[str, Array], out: Array) -> None:
        out[...] = peg.observed(self.xp, state["pose"], state["hole"])
