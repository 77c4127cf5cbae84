"""One simulator in many places at once: the same state, followed by any number of futures.

    clones = Clones("MiniGrid-Empty-5x5-v0")
    place = clones.start(seed=0)
    batch = clones.play(place, actions)        # (H, N) actions from there, all N futures: Transitions (H, N)
    place, batch = clones.step_from(place, 2)  # and one step on

Where there is an array program (`envs.batched`) the futures are played side by side, elsewhere one after the other,
from snapshots (`envs.snapshots.snapshots`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from envs.batched import PROGRAMS
from envs.family import step_limit
from envs.make import MODALITY_OPTIONS, make, make_batched
from envs.snapshots import snapshots
from envs.steps import modalities_of, modalities_of_one
from envs.transitions import Rollout, Transitions, map_obs
from envs.types import OBS_MODALITIES, Array, Obs, Options, StateDict

# At most so many futures are played side by side, and so many numbers of observations kept at a
# time.
MAX_FUTURES = 4096
MAX_OBSERVATION_NUMBERS = 2**25


@dataclass
class Place:
    """Where an episode stands."""

    # What the simulator needs to continue from here.
    state: Any
    # The observation, without leading axis.
    obs: Obs
    # Steps since the episode began.
    step: int = 0
    ended: bool = False
    # Of the episode that ended, where that is defined.
    success: bool | None = None
    # Frame, text and signals of `obs`, those of the options, (1, ...).
    modalities: dict[str, Array] = field(default_factory=dict)


class Clones:
    """Plays futures of an environment from any place in it; a ValueError if its state cannot be taken."""

    def __init__(self, env_id: str, *, max_episode_steps: int | None = None, **options: Any) -> None:
        self.env_id = env_id
        self.options = {**options, "max_episode_steps": max_episode_steps}
        self.env = make(env_id, **self.options)
        self.observation_space = self.env.observation_space
        self.action_space = self.env.action_space
        self.side_by_side = _has_program(env_id, options)
        # Number of environments -> the array program with so many.
        self._programs: dict[int, Any] = {}
        if not self.side_by_side:
            snapshots.refuse_unsupported(self.env)
        self.max_steps = step_limit(self.env)

    def rows(self, horizon: int) -> int:
        """How many futures of so many steps can be played at a time, a power of 2."""
        size = _count_numbers(self.observation_space)
        numbers_a_future = max(size, 1) * (horizon + 1)
        futures = np.clip(MAX_OBSERVATION_NUMBERS / numbers_a_future, 1, MAX_FUTURES)
        return int(2 ** np.floor(np.log2(futures)))

    def start(self, seed: int) -> Place:
        """Where an episode with this seed begins."""
        if not self.side_by_side:
            obs, info = self.env.reset(seed=seed)
            return Place(snapshots.get_state(self.env), obs, modalities=modalities_of_one(info))
        program = self._program(1)
        obs, infos = program.reset(seed=seed)
        modalities = map_obs(np.array, modalities_of(infos))
        first_obs = map_obs(lambda x: np.array(x[0]), obs)
        return Place(_last_row(program.snapshot()), first_obs, modalities=modalities)

    def play(self, place: Place, actions: np.ndarray) -> Transitions:
        """N futures of at most H steps: actions (H, N, ...) -> (H', N), H' <= H, rows after an end `valid == False`."""
        batch, _ = self._play(place, actions)
        return batch

    def step_from(self, place: Place, action: Any) -> tuple[Place, Transitions]:
        """One step on: the place it leads to, and the transition (1, 1)."""
        batch, reached = self._play(place, np.asarray(action)[None, None])
        return reached, batch

    def _play(self, place: Place, actions: np.ndarray) -> tuple[Transitions, Place]:
        if place.ended:
            raise ValueError("the episode is over here, so nothing follows; start another")
        rollout = self._start_rollout(place, actions)
        if self.side_by_side:
            count, state = self._play_side_by_side(place, rollout)
        else:
            count, state = self._play_one_by_one(place, rollout)
        batch = rollout.transitions(frozenset({"next_obs", *OBS_MODALITIES}))[:count]

        # Rows behind a future's end are none of it.
        is_over = np.zeros((count, rollout.n), bool)
        np.logical_or.accumulate(batch.ended[:-1], out=is_over[1:])
        steps = np.repeat(np.arange(count)[:, None], rollout.n, 1)
        batch = batch.replace(
            terminated=batch.terminated & ~is_over,
            truncated=batch.truncated & ~is_over,
            valid=~is_over,
            step=place.step + steps,
        )
        modalities = {name: getattr(batch, name)[-1, -1:].copy() for name in place.modalities}
        reached = Place(
            state,
            map_obs(lambda x: np.array(x[-1, -1]), batch.next_obs),
            step=place.step + count,
            ended=state is None,
            modalities=modalities,
        )
        success = rollout.success[count - 1, -1]
        if reached.ended and not np.isnan(success):
            reached.success = bool(success)
        return batch, reached

    def _start_rollout(self, place: Place, actions: np.ndarray) -> Rollout:
        """An empty rollout of N futures from `place`, with their actions (H, N, ...)."""
        horizon, n = actions.shape[:2]
        # All that a rollout asks of a vector environment.
        vector = SimpleNamespace(
            metadata={"autoreset_mode": AutoresetMode.SAME_STEP},
            num_envs=n,
            single_observation_space=self.observation_space,
            single_action_space=self.action_space,
        )
        rollout = Rollout(horizon, vector, frozenset(place.modalities))
        rollout.action[:] = actions
        obs = map_obs(lambda x: np.repeat(np.asarray(x)[None], n, 0), place.obs)
        rollout.begin(obs, map_obs(lambda x: np.repeat(x, n, 0), place.modalities))
        return rollout

    def _play_side_by_side(self, place: Place, rollout: Rollout) -> tuple[int, Any]:
        """Play all futures; returns how many steps that took, and the state the last one is in, None if over."""
        n = rollout.n
        program = self._program(n)
        # Its random stream stays the program's own: only resets read it.
        copies = _map_rows(place.state, lambda x: np.repeat(x, n, 0))
        program.restore({**program.snapshot(), **copies})
        is_over = np.zeros(n, bool)
        for t in range(rollout.length):
            rollout.write(t, slice(0, n), *program.step(rollout.action[t]))
            is_over |= rollout.terminated[t] | rollout.truncated[t]
            if is_over.all():
                break
        state = None
        if not is_over[-1]:
            state = _last_row(program.snapshot())
        return t + 1, state

    def _play_one_by_one(self, place: Place, rollout: Rollout) -> tuple[int, Any]:
        """As `_play_side_by_side`, in one environment that returns to the place for each future."""
        count = 0
        state = None
        for row in range(rollout.n):
            snapshots.set_state(self.env, place.state)
            for t in range(rollout.length):
                obs, reward, terminated, truncated, info = self.env.step(rollout.action[t, row])
                obs_row = map_obs(lambda x: np.asarray(x)[None], obs)
                rollout.write(t, slice(row, row + 1), obs_row, reward, terminated, truncated, modalities_of_one(info))
                if terminated or truncated:
                    rollout.success[t, row] = info.get("is_success", np.nan)
                    break
            else:
                if row == rollout.n - 1:
                    state = snapshots.get_state(self.env)
            count = max(count, t + 1)
        return count, state

    def _program(self, n: int) -> Any:
        if n not in self._programs:
            self._programs[n] = make_batched(self.env_id, n, **self.options)
            self._programs[n].reset(seed=0)
        return self._programs[n]

    def close(self) -> None:
        self.env.close()


def _count_numbers(space: spaces.Space) -> int:
    """How many numbers an observation has."""
    if isinstance(space, spaces.Dict):
        return sum(map(_count_numbers, space.values()))
    return math.prod(space.shape or ())


def _has_program(env_id: str, options: Options) -> bool:
    """Whether there is an array program that supports all of the options."""
    if env_id not in PROGRAMS or not set(options) <= set(MODALITY_OPTIONS):
        return False
    modalities = {name for name in MODALITY_OPTIONS if options.get(name)}
    return modalities <= PROGRAMS[env_id].modalities


def _map_rows(snapshot: StateDict, pick: Callable[[np.ndarray], np.ndarray]) -> StateDict:
    """What a snapshot holds a row of for each environment, with other rows."""
    return map_obs(pick, {name: snapshot[name] for name in ("steps", "returns", "state")})


def _last_row(snapshot: StateDict) -> StateDict:
    """The snapshot of the last environment alone."""
    return {**snapshot, **_map_rows(snapshot, lambda x: x[-1:].copy())}
