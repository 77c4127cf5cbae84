"""Builders: what each interface returns -> Transitions.

A `Cursor` goes with single steps, a `Chunk` collects rows of any kind; for whole rollouts see `envs.transitions`.
Frames, texts and signals travel in `info["frame"]`, `info["text"]` and `info["signals"]`, and describe the observation
returned with them; a `Cursor` remembers those of the current observation.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from envs.transitions import Infos, Transitions, final_rows, map_obs, modalities_state, modality, put
from envs.types import MODALITIES, Array, Obs, StateDict


class Cursor:
    """Where N environments stand in their episodes: step counts, and frames, texts and signals of the current obs."""

    def __init__(self, n: int) -> None:
        self.step = np.zeros(n, np.int64)
        # frame, text, signals: (N, ...)
        self.modalities: dict[str, np.ndarray] = {}
        # In NEXT_STEP mode: whether the coming step only resets.
        self.resetting = np.zeros(n, bool)

    def begin(self, modalities: Mapping[str, Array], mask: np.ndarray | None = None) -> None:
        """Episodes begin, in all environments or those of `mask`; `modalities` is what `modalities_of` returned."""
        if mask is None:
            mask = np.ones(len(self.step), bool)
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
            action=map_obs(np.asarray, action),
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

    def state_dict(self) -> StateDict:
        return {"step": self.step, "shown": modalities_state(self.modalities), "resetting": self.resetting}

    def load_state_dict(self, state: StateDict) -> None:
        self.step = np.array(state["step"])
        self.resetting = np.array(state["resetting"])
        shown = state["shown"].items()
        self.modalities = {name: modality(name, value).copy() for name, value in shown}


def from_gym_step(
    cursor: Cursor,
    obs: Obs,
    action: Any,
    reward: float,
    next_obs: Obs,
    terminated: bool,
    truncated: bool,
    info: Infos,
) -> Transitions:
    """One step of one `gymnasium.Env` -> a batch of shape (1,); the cursor (of 1) moves on."""
    valid = np.ones(1, bool)
    return cursor.move(
        map_obs(_one_row, obs),
        map_obs(_one_row, action),
        [reward],
        map_obs(_one_row, next_obs),
        valid & terminated,
        valid & truncated,
        valid,
        modalities_of_one(info),
    )


def _one_row(x: Any) -> np.ndarray:
    return np.asarray(x)[None]


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
    terminated = np.asarray(terminations, bool)
    truncated = np.asarray(truncations, bool)
    ended = terminated | truncated
    valid = ~cursor.resetting
    if "lost" in infos:
        valid &= ~infos["lost"]
    # `current` belongs to the observation to act on next, `modalities` to the step's successor;
    # they differ where an episode ended and the environment was reset in the same step.
    current = modalities_of(infos)
    modalities = current
    successor = next_obs
    if mode == AutoresetMode.SAME_STEP and ended.any():
        rows = np.flatnonzero(ended)
        successor = map_obs(np.copy, next_obs)
        if successor is not None:
            put(successor, rows, final_rows(infos["final_obs"], rows))
        final = infos.get("final_info", {})
        modalities = {name: _merge(value, final.get(name), ended) for name, value in current.items()}
    truncated = truncated & ~cursor.resetting
    batch = cursor.move(obs, actions, rewards, successor, terminated, truncated, valid, modalities)
    if mode == AutoresetMode.NEXT_STEP:
        if not valid.all():
            cursor.begin(current, ~valid)
        cursor.resetting = ended & valid
    elif mode == AutoresetMode.SAME_STEP and ended.any():
        cursor.begin(current, ended)
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
        # SB3 returns the first observation of the next episode; the last one is in the info.
        successor = map_obs(np.copy, new_obs)
        for row in np.flatnonzero(dones).tolist():
            truncated[row] = infos[row].get("TimeLimit.truncated", False)
            final_obs = infos[row].get("terminal_observation")
            if final_obs is not None:
                put(successor, row, final_obs)
    batch = cursor.move(
        obs,
        actions,
        np.array(rewards, np.float32),
        successor,
        dones & ~truncated,
        truncated,
        ~lost_in(infos),
        modalities_in(infos),
    )
    if dones.any():
        cursor.begin(modalities_in(reset_infos, dones), dones)
    return batch


def from_replay(buffer: Any, rows: np.ndarray, columns: np.ndarray) -> Transitions:
    """Entries of a relabelling buffer (`rewards.adapters.sb3`) -> a batch shaped like `rows` x `columns`."""

    def pick(x: np.ndarray) -> np.ndarray:
        return x[rows, columns]

    done = pick(buffer.dones) > 0
    truncated = pick(buffer.timeouts) > 0
    # The buffer's own columns are fields of `Transitions` where they have a field's name.
    fields = {}
    extras = {}
    for name, column in buffer.columns.items():
        if name in Transitions.__annotations__:
            fields[name] = pick(column)
        else:
            extras[name] = pick(column)
    return Transitions(
        obs=map_obs(pick, buffer.observations),
        action=buffer.environment_action(pick(buffer.actions)),
        reward=pick(buffer.task_rewards),
        next_obs=map_obs(pick, buffer.next_observations),
        terminated=done & ~truncated,
        truncated=truncated,
        valid=np.ones(done.shape, bool),
        step=pick(buffer.steps),
        extras=extras,
        **fields,
    )


class Chunk:
    """Rows of shape (N,) written into arrays (T, N) that are kept: fresh transitions, waiting to be learnt from."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.count = 0
        # The number of an argument of `add` -> its arrays.
        self._store: dict[int, Any] | None = None
        # Rows allocated so far; doubles up to `length`, so a chunk that never fills stays small.
        self._capacity = 0

    @property
    def full(self) -> bool:
        return self.count >= self.length

    def add(self, *row: Any) -> None:
        """Write one row: Transitions, arrays (N, ...) or dicts of them; the same kinds every time."""
        trees = {number: vars(part) if isinstance(part, Transitions) else part for number, part in enumerate(row)}
        if self._store is None:
            self._store = map_obs(lambda x: x[None][:0], trees)
            self._capacity = 0
        if self.count == self._capacity:
            self._capacity = min(max(2 * self._capacity, 64), self.length)
            self._store = map_obs(self._enlarge, self._store)
        put(self._store, self.count, trees)
        self.count += 1

    def _enlarge(self, x: np.ndarray) -> np.ndarray:
        larger = np.empty((self._capacity, *x.shape[1:]), x.dtype)
        larger[: self.count] = x[: self.count]
        return larger

    def take(self) -> list[Any]:
        parts = self._rows()
        self.count = 0
        for number, part in enumerate(parts):
            if isinstance(part, dict) and "next_obs" in part:
                parts[number] = Transitions(**part)
        return parts

    def _rows(self) -> list[Any]:
        """Views of the rows written so far, an entry for each argument of `add`."""
        return list(map_obs(lambda x: x[: self.count], self._store).values())

    def state_dict(self) -> StateDict:
        return {"count": self.count, "store": self._rows() if self.count else None}

    def load_state_dict(self, state: StateDict) -> None:
        self.count = int(state["count"])
        self._capacity = self.count
        self._store = None
        if self.count:
            self._store = map_obs(np.array, dict(enumerate(state["store"])))


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
        example = next((info[name] for info in infos if name in info), None)
        if example is None:
            continue
        blank = "" if name == "text" else np.zeros_like(example)
        inside = [True] * len(infos) if mask is None else mask
        values = [info[name] if is_inside else blank for info, is_inside in zip(infos, inside)]
        modalities[name] = modality(name, values)
    return modalities


def lost_in(infos: Sequence[Infos]) -> np.ndarray:
    """Where a list of infos says that an episode was lost with its worker, bool (N,)."""
    return np.array(["lost" in info for info in infos])


def innermost_vec_env(venv: Any) -> Any:
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
