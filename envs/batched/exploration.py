"""`envs.exploration.family` as array programs: its tables, looked up for all environments at once.

Randomness within episodes comes from a random stream of its own, and is drawn on the host.
"""

from collections.abc import Sequence

import gymnasium as gym
import numpy as np

from envs.batched.base import BatchedEnv, Outcome, State
from envs.exploration import peg
from envs.exploration.family import PERIOD, START_CELL, STAY, first_noise, next_noise
from envs.types import Array, EnvReset, Options, StateDict, VectorStep


class BatchedCells(BatchedEnv):
    """What both share: `state["cell"]` int64 (N,), `infos["cell"]` in [0, n_cells) of each step, last ones too."""

    def _setup(self, original: gym.Env) -> None:
        array = self.arrays.array
        self.n_cells: int = self.world.n_cells
        # What happens at random within episodes; starts are drawn from `np_random`.
        self._chance = self.np_random.spawn(1)[0]
        self._reached = array(np.zeros(self.num_envs, np.int64))
        self._leads = array(self.world.leads.ravel())
        self._choices = self.world.leads.shape[1]
        self._never = array(np.zeros(self.num_envs, bool))

    @property
    def cell(self) -> Array:
        """The cells of the observations last returned, int64 (N,)."""
        return self.state["cell"]

    def reset(self, *, seed: int | Sequence[int] | None = None, options: Options | None = None) -> EnvReset:
        obs, infos = super().reset(seed=seed, options=options)
        if seed is not None:
            self._chance = self.np_random.spawn(1)[0]
        self._reached[...] = self.cell
        return obs, {**infos, "cell": self._reached}

    def step(self, actions: Array) -> VectorStep:
        answer = super().step(actions)
        answer[-1]["cell"] = self._reached
        return answer

    def _move_agents(self, choices: Array) -> None:
        """Move every agent to where its choice, an int (N,), leads from its cell."""
        cell = self.state["cell"]
        reached = self.arrays.gather(self._leads, cell * self._choices + choices)
        cell[...] = reached
        # The state's cell is soon that of a new episode; this one stays that of the step.
        self._reached[...] = reached

    def _observe(self, state: State, out: Array) -> None:
        """Write K cells into `out`, float32 (K, n_cells), as one-hot rows."""
        out[...] = 0.0
        out[self._everywhere[: len(out)], state["cell"]] = 1.0

    def _saved_state(self) -> StateDict:
        return {**super()._saved_state(), "chance": self._chance.bit_generator.state}

    def _return_to(self, saved: StateDict) -> None:
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
        self._codes: Array | None = None
        if world.codes is not None:
            self._codes = self.arrays.array(world.codes)
        self._width = self._obs.shape[1] - world.bits

    def _generate(self, rng: np.random.Generator, count: int) -> State:
        return {
            "cell": np.full(count, START_CELL),
            "noise": first_noise(self.world.kind, rng, (count, self.world.bits)),
            "arrived": np.full(count, self.world.rooms == 1),
        }

    def _advance(self, actions: Array) -> Outcome:
        kind = self.world.kind
        self._move_agents(actions)
        self.state["arrived"] |= self._reached >= self._last
        if kind != "off":
            noise = self.state["noise"]
            self._chance.random(dtype=np.float32, out=self._uniform)
            uniform = self.arrays.like(self._uniform, noise)
            stays = actions == STAY
            noise[...] = next_noise(kind, noise, uniform, stays[:, None])
        return self._never, self._never

    def _observe(self, state: State, out: Array) -> None:
        place = out[:, : self._width]
        if self._codes is None:
            super()._observe(state, place)
        else:
            place[...] = self.arrays.gather(self._codes, state["cell"])
        out[:, self._width :] = state["noise"]

    def _success(self, terminated: Array) -> Array:
        return self.state["arrived"]


class BatchedDeepSea(BatchedCells):
    """`envs.exploration.family.DeepSea`; the cell is the whole state."""

    def _setup(self, original: gym.Env) -> None:
        super()._setup(original)
        array = self.arrays.array
        self._right = array(self.world.right)
        self._reward_table = array(self.world.rewards.ravel())
        self._treasure = self._never

    def _generate(self, rng: np.random.Generator, count: int) -> State:
        return {"cell": np.zeros(count, np.int64)}

    def _advance(self, actions: Array) -> Outcome:
        world = self.world
        array = self.arrays.array
        gather = self.arrays.gather
        cell = self.state["cell"]
        # Which of the two actions means right depends on the cell.
        right = actions == gather(self._right, cell)
        is_last_row = cell >= world.bottom
        is_last_cell = cell == self.n_cells - 1
        self._treasure = right & is_last_cell
        rewards = gather(self._reward_table, 2 * cell + right)
        # How the choice leads on: 0 left, 1 a step to the right that fails, 2 right.
        choices = 2 * right
        if world.stochastic:
            is_corner = (cell == world.bottom) | is_last_cell
            noise = array(self._chance.normal(size=self.num_envs))
            rewards = rewards + is_corner * noise
            succeeds = self._chance.random(self.num_envs) >= 1 / world.size
            choices = right * (1 + array(succeeds))
        self._move_agents(choices)
        return rewards, is_last_row

    def _success(self, terminated: Array) -> Array:
        return self._treasure


class BatchedPeg(BatchedEnv):
    """`envs.exploration.peg.Peg`; `state` holds `pose` and `hole`, float32 (N, 3)."""

    def _generate(self, rng: np.random.Generator, count: int) -> State:
        pose, hole = peg.begin(rng, count)
        return {"pose": pose, "hole": hole}

    def _advance(self, actions: Array) -> Outcome:
        pose = self.state["pose"]
        pose[...] = peg.next_pose(self.xp, pose, self.state["hole"], actions, self.world.eps)
        inside = pose[:, 1] <= -peg.INSERTED_DEPTH
        return 1.0 * inside, inside

    def _observe(self, state: State, out: Array) -> None:
        out[...] = peg.observe(self.xp, state["pose"], state["hole"])
