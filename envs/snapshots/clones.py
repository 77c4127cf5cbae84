"""One simulator in many places at once: the same state, followed by as many futures as one likes.

    clones = Clones("MiniGrid-Empty-5x5-v0")
    place = clones.start(seed=0)
    batch = clones.play(place, actions)        # (H, N) actions from there, all N futures: Transitions (H, N)
    place, batch = clones.after(place, 2)      # and one step on

Where there is an array program (`envs.batched`) the futures are played side by side, elsewhere one after the other,
from snapshots (`envs.snapshots.snapshots`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from envs.batched import PROGRAMS
from envs.make import make, make_batched
from envs.snapshots import snapshots
from envs.transitions import modalities_of, modalities_of_one
from envs.types import MODALITIES, Array, Obs, Transitions, map_obs, put

ROWS = 4096  # futures that are played side by side at most
NUMBERS = 2**25  # of observations that are kept at a time


@dataclass
class Place:
    """Where an episode stands.

    Attributes:
        state: what the simulator needs to go on from here.
        obs: what it looks like, without leading axis.
        step: steps since the episode began.
        ended: whether it is over.
        success: of the episode that ended, where the environment says so.
        modalities: frame, text, signals of `obs`, where they were asked for, (1, ...).
    """

    state: Any
    obs: Obs
    step: int = 0
    ended: bool = False
    success: bool | None = None
    modalities: dict[str, Array] | None = None


class Clones:
    """Plays futures of an environment from any place in it.

    Args:
        env_id: the environment.
        max_episode_steps: as for `envs.make.make`.
        options: as for `envs.make.make`, `frame_size`, `text` and `signals` among them.

    Raises:
        ValueError: if the environment has no array program, and no state that can be taken and given back.
    """

    def __init__(self, env_id: str, *, max_episode_steps: int | None = None, **options: Any) -> None:
        self.env_id, self.options = env_id, {**options, "max_episode_steps": max_episode_steps}
        self.env = make(env_id, **self.options)
        self.observation_space, self.action_space = self.env.observation_space, self.env.action_space
        asked = {name for name in ("frame_size", "text", "signals") if options.get(name)}
        heeded = asked <= PROGRAMS[env_id].modalities if env_id in PROGRAMS else False
        rest = set(options) - {"frame_size", "text", "signals"}
        self.side_by_side = heeded and not rest
        self._programs: dict[int, Any] = {}
        if not self.side_by_side:
            snapshots.supported(self.env)
        limits = (getattr(self.env.spec, "max_episode_steps", None), getattr(self.env.unwrapped, "max_steps", None))
        self.max_steps: int | None = min((limit for limit in limits if limit is not None), default=None)

    def rows(self, horizon: int) -> int:
        """How many futures of `horizon` steps fit into memory at a time: a power of two."""
        size = sum(int(np.prod(part.shape or ())) for part in _parts(self.observation_space))
        return int(2 ** np.floor(np.log2(np.clip(NUMBERS / (max(size, 1) * (horizon + 1)), 1, ROWS))))

    def start(self, seed: int) -> Place:
        """An episode begins."""
        if self.side_by_side:
            program = self._program(1)
            obs, infos = program.reset(seed=seed)
            return Place(_row(program.snapshot()), _first(obs), modalities=_copied(modalities_of(infos)))
        obs, info = self.env.reset(seed=seed)
        return Place(snapshots.get_state(self.env), obs, modalities=modalities_of_one(info))

    def play(self, place: Place, actions: np.ndarray) -> Transitions:
        """N futures of at most H steps: actions (H, N, ...) -> (H', N), H' <= H, rows after an end `valid == False`.

        Raises:
            ValueError: if the episode is over there.
        """
        return self._play(place, actions)[0]

    def after(self, place: Place, action: Any) -> tuple[Place, Transitions]:
        """One step on: the place it leads to, and the transition (1, 1)."""
        batch, reached = self._play(place, np.asarray(action)[None, None])
        return reached, batch

    def _play(self, place: Place, actions: np.ndarray) -> tuple[Transitions, Place]:
        if place.ended:
            raise ValueError("the episode is over here, so nothing follows; start another")
        if not self.side_by_side:
            return self._one_by_one(place, actions)
        return self._together(place, actions)

    def _together(self, place: Place, actions: np.ndarray) -> tuple[Transitions, Place]:
        horizon, n = actions.shape[:2]
        program = self._program(n)
        program.restore(_tiled(place.state, n, program))
        store = _Store(place, horizon, n, self.observation_space, self.action_space)
        alive = np.ones(n, bool)
        success = None
        for t in range(horizon):
            obs, rewards, terminated, truncated, infos = program.step(actions[t])
            ended = terminated | truncated
            modalities, final = modalities_of(infos), infos.get("final_info", {})
            if ended.any():
                obs = np.where(_wide(ended, obs), infos["final_obs"], obs)
                modalities = {
                    name: np.where(_wide(ended, value), final[name], value) for name, value in modalities.items()
                }
                success = bool(np.asarray(final["is_success"])[-1]) if "is_success" in final else None
            store.write(t, actions[t], obs, rewards, terminated, truncated, alive, modalities)
            alive = alive & ~ended
            if not alive.any():
                break
        reached = Place(None, store.last(), place.step + store.count, not alive[-1], success, store.last_modalities())
        if alive[-1]:
            reached.state = _row(program.snapshot())
        return store.batch(), reached

    def _one_by_one(self, place: Place, actions: np.ndarray) -> tuple[Transitions, Place]:
        horizon, n = actions.shape[:2]
        store = _Store(place, horizon, n, self.observation_space, self.action_space)
        reached = place
        for row in range(n):
            snapshots.set_state(self.env, place.state)
            for t in range(horizon):
                obs, reward, terminated, truncated, info = self.env.step(actions[t, row])
                one = map_obs(lambda x: np.asarray(x)[None], obs)
                store.write(
                    t,
                    actions[t, [row]],
                    one,
                    reward,
                    terminated,
                    truncated,
                    True,
                    modalities_of_one(info),
                    slice(row, row + 1),
                )
                if terminated or truncated or t == horizon - 1:
                    ended = terminated or truncated
                    state = None if ended or row < n - 1 else snapshots.get_state(self.env)
                    said = bool(info["is_success"]) if ended and "is_success" in info else None
                    reached = Place(state, obs, place.step + t + 1, ended, said, modalities_of_one(info))
                    break
        return store.batch(), reached

    def _program(self, n: int) -> Any:
        if n not in self._programs:
            self._programs[n] = make_batched(self.env_id, n, **self.options)
            self._programs[n].reset(seed=0)
        return self._programs[n]

    def close(self) -> None:
        """Close the simulators."""
        self.env.close()


class _Store:
    """Transitions (H, N) being written; rows never written are not valid."""

    def __init__(self, place: Place, horizon: int, n: int, observation_space: Any, action_space: Any) -> None:
        self.place, self.n, self.count = place, n, 0
        self.obs = map_obs(lambda x: np.repeat(np.asarray(x)[None, None], n, 1).repeat(horizon + 1, 0), place.obs)
        self.action = np.zeros((horizon, n, *action_space.shape), action_space.dtype)
        self.reward = np.zeros((horizon, n), np.float32)
        self.terminated, self.truncated, self.valid = (np.zeros((horizon, n), bool) for _ in range(3))
        self.modalities: dict[str, np.ndarray] = {}
        for name, value in (place.modalities or {}).items():
            self.modalities[name] = np.repeat(np.repeat(value[None], n, 1), horizon + 1, 0)

    def write(
        self,
        t: int,
        action: Any,
        obs: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        alive: Any,
        modalities: dict[str, Any],
        rows: slice = slice(None),
    ) -> None:
        put(self.obs, (t + 1, rows), obs)
        self.action[t, rows], self.reward[t, rows] = action, reward
        self.terminated[t, rows] = np.asarray(terminated) & alive
        self.truncated[t, rows] = np.asarray(truncated) & alive
        self.valid[t, rows] = alive
        for name, value in modalities.items():
            self.modalities[name][t + 1, rows] = value
        self.count = max(self.count, t + 1)

    def last(self) -> Obs:
        """What the last future looks like where it stands."""
        return map_obs(lambda x: np.array(x[self.count, -1]), self.obs)

    def last_modalities(self) -> dict[str, Array]:
        return {name: value[self.count, -1:].copy() for name, value in self.modalities.items()}

    def batch(self) -> Transitions:
        h = self.count
        modalities: dict[str, Any] = {
            name: value[1 : h + 1] for name, value in self.modalities.items() if name in MODALITIES
        }
        modalities |= {f"obs_{name}": value[:h] for name, value in self.modalities.items() if name in MODALITIES}
        return Transitions(
            obs=map_obs(lambda x: x[:h], self.obs),
            action=self.action[:h],
            reward=self.reward[:h],
            next_obs=map_obs(lambda x: x[1 : h + 1], self.obs),
            terminated=self.terminated[:h],
            truncated=self.truncated[:h],
            valid=self.valid[:h],
            step=self.place.step + np.repeat(np.arange(h)[:, None], self.n, 1),
            **modalities,
        )


def _parts(space: Any) -> list[Any]:
    return list(space.spaces.values()) if isinstance(space, spaces.Dict) else [space]


def _row(snapshot: dict[str, Any]) -> dict[str, Any]:
    """The last environment of a snapshot, as one of one."""
    state = {key: value[-1:].copy() for key, value in snapshot["state"].items()}
    return {
        **snapshot,
        "state": state,
        "steps": snapshot["steps"][-1:].copy(),
        "returns": snapshot["returns"][-1:].copy(),
    }


def _tiled(snapshot: dict[str, Any], n: int, program: Any) -> dict[str, Any]:
    """A snapshot of one as one of n, with the program's own random stream, which only resets read."""
    own = program.snapshot()
    state = {key: np.repeat(value, n, 0) for key, value in snapshot["state"].items()}
    return {**own, "state": state, "steps": snapshot["steps"].repeat(n), "returns": snapshot["returns"].repeat(n)}


def _first(obs: Obs) -> Obs:
    return map_obs(lambda x: np.array(x[0]), obs)


def _copied(modalities: dict[str, Any]) -> dict[str, Any]:
    return {name: np.array(value) for name, value in modalities.items()}


def _wide(mask: np.ndarray, value: Any) -> np.ndarray:
    return mask.reshape(-1, *[1] * (np.ndim(value) - 1))
