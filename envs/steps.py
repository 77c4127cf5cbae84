"""Builders: what each interface returns -> Transitions.

A `Cursor` goes with single steps, a `Chunk` collects rows of any kind; for whole rollouts see `envs.transitions`.
Frames, texts and signals travel in `info["frame"]`, `info["text"]` and `info["signals"]`, and describe the observation
returned with them; a `Cursor` remembers those of the current observation.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from envs.transitions import Infos, Transitions, final_rows, map_obs, modality, put, saved
from envs.types import MODALITIES, Array, Obs


class Cursor:
    """Where N environments stand in their episodes: step counts, and frames, texts and signals of the current obs."""

    def __init__(self, n: int) -> None:
        self.step = np.zeros(n, np.int64)
        self.modalities: dict[str, np.ndarray] = {}  # frame, text, signals: (N, ...)
        self.resetting = np.zeros(n, bool)  # NEXT_STEP: the coming step only resets

    def begin(self, modalities: Mapping[str, Array], mask: np.ndarray | None = None) -> None:
        """Episodes begin, in all environments or those of `mask`; `modalities` is what `modalities_of` returned."""
        mask = np.ones(len(self.step), bool) if mask is None else mask
        self.step[mask] = 0
        self.resetting[mask] = False
        self.show(modalities, mask)

    def move(
        self,
        obs: Obs,
        action: Any,
        reward: Any,
        next_obs: Obs,
        terminated: np.ndarray,
        truncated: np.ndarray,
        valid: np.ndarray,
        modalities: Mapping[str, Array],
    ) -> Transitions:
        """The batch (N,) of one step, whose successors, with their `modalities`, become current."""
        batch = Transitions(
            obs=obs,
            action=None if action is None else np.asarray(action),
            reward=np.asarray(reward, np.float32),
            next_obs=next_obs,
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            step=self.step.copy(),
            **modalities,
            **self.of_obs(),
        )
        self.step = np.where(valid, batch.step + 1, self.step)
        self.show(modalities, valid)
        return batch

    def show(self, modalities: Mapping[str, Array], mask: np.ndarray) -> None:
        for name, value in modalities.items():
            self.modalities[name] = _merge(self.modalities.get(name), value, mask)

    def of_obs(self) -> dict[str, Any]:
        """The modalities of the current observation, as fields of `Transitions`: `obs_frame`, ..."""
        return {f"obs_{name}": value for name, value in self.modalities.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "shown": saved(self.modalities), "resetting": self.resetting}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.resetting = np.array(state["step"]), np.array(state["resetting"])
        self.modalities = {name: modality(name, value).copy() for name, value in state["shown"].items()}


def from_gym_step(
    cursor: Cursor, obs: Obs, action: Any, reward: float, next_obs: Obs, terminated: bool, truncated: bool, info: Infos
) -> Transitions:
    """One step of one `gymnasium.Env` -> a batch of shape (1,); the cursor (of 1) moves on."""
    obs, next_obs = (map_obs(lambda x: np.asarray(x)[None], part) for part in (obs, next_obs))
    action, one = None if action is None else np.asarray(action)[None], np.ones(1, bool)
    return cursor.move(obs, action, [reward], next_obs, one & terminated, one & truncated, one, modalities_of_one(info))


def from_vector_step(
    cursor: Cursor,
    mode: AutoresetMode,
    obs: Obs,
    actions: Array,
    rewards: Array,
    next_obs: Obs,
    terminations: Array,
    truncations: Array,
    infos: Infos,
) -> Transitions:
    """One step of a `gymnasium.vector.VectorEnv` in any auto-reset mode -> (N,); the cursor moves on.

    A row that only resets (NEXT_STEP), or whose episode was lost (`infos["lost"]`), has `valid == False`. In DISABLED
    mode the caller resets ended environments and calls the cursor's `begin`.
    """
    terminated, truncated = np.asarray(terminations, bool), np.asarray(truncations, bool)
    ended, valid = terminated | truncated, ~cursor.resetting
    if "lost" in infos:
        valid &= ~infos["lost"]
    modalities = after = modalities_of(infos)  # `after` belongs to the observation to act on next
    successor = next_obs
    if mode == AutoresetMode.SAME_STEP and ended.any():
        rows = np.flatnonzero(ended)
        successor = map_obs(np.copy, next_obs)
        if successor is not None:
            put(successor, rows, final_rows(infos["final_obs"], rows))
        final = infos.get("final_info", {})
        modalities = {name: _merge(value, final.get(name), ended) for name, value in after.items()}
    truncated = truncated & ~cursor.resetting
    batch = cursor.move(obs, actions, rewards, successor, terminated, truncated, valid, modalities)
    if mode == AutoresetMode.NEXT_STEP:
        if not valid.all():
            cursor.begin(after, ~valid)
        cursor.resetting = ended & valid
    elif mode == AutoresetMode.SAME_STEP and ended.any():
        cursor.begin(after, ended)
    return batch


def from_sb3_step(
    cursor: Cursor,
    obs: Obs,
    actions: Array,
    rewards: Array,
    new_obs: Obs,
    dones: Array,
    infos: Sequence[Infos],
    reset_infos: Sequence[Infos],
) -> Transitions:
    """One step of an SB3 `VecEnv` -> (N,), with its `reset_infos` after it; rows whose info says `lost` are invalid."""
    dones = np.asarray(dones, bool)
    truncated = np.zeros_like(dones)
    successor = new_obs
    if dones.any():
        successor = map_obs(np.copy, new_obs)
        for row in map(int, np.flatnonzero(dones)):
            truncated[row] = infos[row].get("TimeLimit.truncated", False)
            if infos[row].get("terminal_observation") is not None:
                put(successor, row, infos[row]["terminal_observation"])
    rewards, terminated, valid = np.array(rewards, np.float32), dones & ~truncated, ~lost_in(infos)
    batch = cursor.move(obs, actions, rewards, successor, terminated, truncated, valid, modalities_in(infos))
    if dones.any():
        cursor.begin(modalities_in(reset_infos, dones), dones)
    return batch


def from_replay(buffer: Any, rows: np.ndarray, columns: np.ndarray) -> Transitions:
    """Entries of a relabelling buffer (`rewards.adapters.sb3`) -> a batch shaped like `rows` x `columns`."""

    def pick(x: np.ndarray) -> np.ndarray:
        return x[rows, columns]

    truncated = pick(buffer.timeouts) > 0
    done = pick(buffer.dones) > 0
    return Transitions(
        obs=map_obs(pick, buffer.observations),
        action=buffer.environment_action(pick(buffer.actions)),
        reward=pick(buffer.task_rewards),
        next_obs=map_obs(pick, buffer.next_observations),
        terminated=done & ~truncated,
        truncated=truncated,
        valid=np.ones(done.shape, bool),
        step=pick(buffer.steps),
        extras={key: pick(value) for key, value in buffer.columns.items() if key not in Transitions.__annotations__},
        **{key: pick(value) for key, value in buffer.columns.items() if key in Transitions.__annotations__},
    )


class Chunk:
    """Rows of shape (N,) written into arrays (T, N) that are kept: fresh transitions, waiting to be learnt from."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.count = 0
        self._store: dict[int, Any] | None = None
        self._capacity = 0  # rows allocated so far; doubles up to `length`, so a chunk that never fills stays small

    @property
    def full(self) -> bool:
        return self.count >= self.length

    def add(self, *row: Any) -> None:
        """Write one row: Transitions, arrays (N, ...) or dicts of them; the same kinds every time."""
        tree = {number: vars(x) if isinstance(x, Transitions) else x for number, x in enumerate(row)}
        if self._store is None:
            self._store, self._capacity = map_obs(lambda x: x[None][:0], tree), 0
        if self.count == self._capacity:
            self._capacity = min(max(2 * self._capacity, 64), self.length)
            self._store = map_obs(self._larger, self._store)
        put(self._store, self.count, tree)
        self.count += 1

    def _larger(self, x: np.ndarray) -> np.ndarray:
        larger = np.empty((self._capacity, *x.shape[1:]), x.dtype)
        larger[: self.count] = x[: self.count]
        return larger

    def take(self) -> list[Any]:
        count, self.count = self.count, 0
        trees = map_obs(lambda x: x[:count], self._store).values()
        return [Transitions(**tree) if isinstance(tree, dict) and "next_obs" in tree else tree for tree in trees]

    def state_dict(self) -> dict[str, Any]:
        rows = list(map_obs(lambda x: x[: self.count], self._store).values()) if self.count and self._store else None
        return {"count": self.count, "store": rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = int(state["count"])
        self._store = map_obs(np.array, dict(enumerate(state["store"]))) if self.count else None
        self._capacity = self.count


def modalities_of(infos: Infos) -> dict[str, Any]:
    """The modalities in the infos of a vector environment: some of `MODALITIES`, each (N, ...)."""
    return {name: modality(name, infos[name]) for name in MODALITIES if infos.get(name) is not None}


def modalities_of_one(info: Infos) -> dict[str, Any]:
    """The same of a single environment, with leading shape (1,)."""
    return {name: modality(name, [info[name]]) for name in MODALITIES if info.get(name) is not None}


def modalities_in(infos: Sequence[Infos], mask: np.ndarray | None = None) -> dict[str, Any]:
    """The modalities in a list of infos, each (N, ...); rows outside `mask` are zero or empty."""
    modalities = {}
    for name in MODALITIES:
        some = next((info[name] for info in infos if name in info), None)
        if some is not None:
            blank = None if mask is None else "" if name == "text" else np.zeros_like(some)
            rows = zip(infos, itertools.repeat(True) if mask is None else mask)
            modalities[name] = modality(name, [info[name] if there else blank for info, there in rows])
    return modalities


def lost_in(infos: Sequence[Infos]) -> np.ndarray:
    """Where a list of infos says that an episode was lost with its worker, bool (N,)."""
    return np.array(["lost" in info for info in infos])


def innermost(venv: Any) -> Any:
    """The SB3 VecEnv that holds the environments, inside all wrappers: only it knows the infos of automatic resets."""
    while hasattr(venv, "venv"):
        venv = venv.venv
    return venv


def _merge(old: Array | None, new: Array | None, mask: np.ndarray) -> Any:
    """Rows of `new` where `mask`, of `old` elsewhere, copied."""
    if new is None:
        return old
    new = np.asarray(new)
    if old is None or mask.all():
        return new.copy()
    merged = old.copy()
    merged[mask] = new[mask]
    return merged
