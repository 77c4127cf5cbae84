"""One simulator in many places at once: the same state, followed by any number of futures.

    clones = Clones("MiniGrid-Empty-5x5-v0")
    place = clones.start(seed=0)
    batch = clones.play(place, actions)        # (H, N) actions from there, all N futures: Transitions (H, N)
    place, batch = clones.after(place, 2)      # and one step on

Where there is an array program (`envs.batched`) the futures are played side by side, elsewhere one after the other,
from snapshots (`envs.snapshots.snapshots`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from envs.batched import PROGRAMS
from envs.make import MODALITY_OPTIONS, make, make_batched
from envs.snapshots import snapshots
from envs.steps import modalities_of, modalities_of_one
from envs.transitions import Rollout, Transitions, map_obs
from envs.types import MODALITIES, Array, Obs

ROWS = 4096  # futures that are played side by side at most
NUMBERS = 2**25  # of observations that are kept at a time


@dataclass
class Place:
    """Where an episode stands."""

    state: Any  # what the simulator needs to continue from here
    obs: Obs  # without leading axis
    step: int = 0  # since the episode began
    ended: bool = False
    success: bool | None = None  # of the episode that ended, where that is defined
    modalities: dict[str, Array] | None = None  # frame, text, signals of `obs`, those of the options, (1, ...)


class Clones:
    """Plays futures of an environment from any place in it; a ValueError if its state cannot be taken."""

    def __init__(self, env_id: str, *, max_episode_steps: int | None = None, **options: Any) -> None:
        self.env_id, self.options = env_id, {**options, "max_episode_steps": max_episode_steps}
        self.env = make(env_id, **self.options)
        self.observation_space, self.action_space = self.env.observation_space, self.env.action_space
        shown = {name for name in MODALITY_OPTIONS if options.get(name)}
        only_shown = set(options) <= set(MODALITY_OPTIONS)
        self.side_by_side = only_shown and env_id in PROGRAMS and shown <= PROGRAMS[env_id].modalities
        self._programs: dict[int, Any] = {}
        if not self.side_by_side:
            snapshots.supported(self.env)
        limits = (getattr(self.env.spec, "max_episode_steps", None), getattr(self.env.unwrapped, "max_steps", None))
        self.max_steps: int | None = min((limit for limit in limits if limit is not None), default=None)

    def rows(self, horizon: int) -> int:
        space = self.observation_space
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else [space]
        size = sum(int(np.prod(part.shape or ())) for part in parts)
        return int(2 ** np.floor(np.log2(np.clip(NUMBERS / (max(size, 1) * (horizon + 1)), 1, ROWS))))

    def start(self, seed: int) -> Place:
        if self.side_by_side:
            program = self._program(1)
            obs, infos = program.reset(seed=seed)
            modalities = {name: np.array(value) for name, value in modalities_of(infos).items()}
            return Place(_last(program.snapshot()), map_obs(lambda x: np.array(x[0]), obs), modalities=modalities)
        obs, info = self.env.reset(seed=seed)
        return Place(snapshots.get_state(self.env), obs, modalities=modalities_of_one(info))

    def play(self, place: Place, actions: np.ndarray) -> Transitions:
        """N futures of at most H steps: actions (H, N, ...) -> (H', N), H' <= H, rows after an end `valid == False`."""
        return self._play(place, actions)[0]

    def after(self, place: Place, action: Any) -> tuple[Place, Transitions]:
        """One step on: the place it leads to, and the transition (1, 1)."""
        batch, reached = self._play(place, np.asarray(action)[None, None])
        return reached, batch

    def _play(self, place: Place, actions: np.ndarray) -> tuple[Transitions, Place]:
        if place.ended:
            raise ValueError("the episode is over here, so nothing follows; start another")
        horizon, n = actions.shape[:2]
        like = SimpleNamespace(
            metadata={"autoreset_mode": AutoresetMode.SAME_STEP},
            num_envs=n,
            single_observation_space=self.observation_space,
            single_action_space=self.action_space,
        )
        modalities = place.modalities or {}
        rollout = Rollout(horizon, like, frozenset(modalities))
        rollout.action[:] = actions
        obs = map_obs(lambda x: np.repeat(np.asarray(x)[None], n, 0), place.obs)
        rollout.begin(obs, {name: np.repeat(value, n, 0) for name, value in modalities.items()})
        count, state = (self._together if self.side_by_side else self._one_by_one)(place, rollout)
        names = MODALITIES if modalities else ()
        batch = rollout.transitions(frozenset({"next_obs", *(f"obs_{name}" for name in names)}))[:count]
        before = np.zeros((count, n), bool)  # the future is over before this row
        np.logical_or.accumulate(batch.ended[:-1], out=before[1:])
        batch = batch.replace(
            terminated=batch.terminated & ~before,
            truncated=batch.truncated & ~before,
            valid=~before,
            step=place.step + np.repeat(np.arange(count)[:, None], n, 1),
        )
        success = rollout.success[count - 1, -1]
        reached = Place(
            state,
            map_obs(lambda x: np.array(x[-1, -1]), batch.next_obs),
            place.step + count,
            state is None,
            None if state is not None or np.isnan(success) else bool(success),
            {name: getattr(batch, name)[-1, -1:].copy() for name in modalities},
        )
        return batch, reached

    def _together(self, place: Place, rollout: Rollout) -> tuple[int, Any]:
        """Play all futures; returns how many steps that took, and the state the last one is in, None if over."""
        program = self._program(rollout.n)
        # Its random stream stays the program's own: only resets read it.
        program.restore({**program.snapshot(), **_rows(place.state, lambda x: np.repeat(x, rollout.n, 0))})
        over = np.zeros(rollout.n, bool)
        for t in range(rollout.length):
            rollout.write(t, slice(0, rollout.n), *program.step(rollout.action[t]))
            over |= rollout.terminated[t] | rollout.truncated[t]
            if over.all():
                break
        return t + 1, None if over[-1] else _last(program.snapshot())

    def _one_by_one(self, place: Place, rollout: Rollout) -> tuple[int, Any]:
        count, state = 0, None
        for row in range(rollout.n):
            snapshots.set_state(self.env, place.state)
            for t in range(rollout.length):
                obs, reward, terminated, truncated, info = self.env.step(rollout.action[t, row])
                one = map_obs(lambda x: np.asarray(x)[None], obs)
                rollout.write(t, slice(row, row + 1), one, reward, terminated, truncated, modalities_of_one(info))
                if terminated or truncated:
                    rollout.success[t, row] = info.get("is_success", np.nan)
                    break
            else:
                state = snapshots.get_state(self.env) if row == rollout.n - 1 else None
            count = max(count, t + 1)
        return count, state

    def _program(self, n: int) -> Any:
        if n not in self._programs:
            self._programs[n] = make_batched(self.env_id, n, **self.options)
            self._programs[n].reset(seed=0)
        return self._programs[n]

    def close(self) -> None:
        self.env.close()


def _rows(snapshot: dict[str, Any], pick: Callable[[np.ndarray], np.ndarray]) -> dict[str, Any]:
    """What a snapshot holds a row of for each environment, with other rows."""
    rows = {key: pick(snapshot[key]) for key in ("steps", "returns")}
    return {**rows, "state": {key: pick(value) for key, value in snapshot["state"].items()}}


def _last(snapshot: dict[str, Any]) -> dict[str, Any]:
    return {**snapshot, **_rows(snapshot, lambda x: x[-1:].copy())}
