"""Builders: what each interface hands out -> Transitions. The only code in the project that knows about auto-reset.

    Gymnasium step         the true successor comes as it is
    Gymnasium vector step  SAME_STEP hides it in `final_obs`; NEXT_STEP spends a step on resetting: no transition
    SB3 VecEnv step        hides it in `infos[i]["terminal_observation"]`
    SB3 rollout buffer     stores observations only: successors are the next rows, but for ended episodes
    SB3 replay buffer      stores the true successor

Frames, texts and signals travel in `info["frame"]`, `info["text"]` and `info["signals"]` (`envs.wrappers.Observer` puts
them there), which describe the observation returned with them; a `Cursor` remembers those of the current observation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from envs.types import MODALITIES, Array, Obs, Transitions, map_obs, put


class Cursor:
    """Where N environments stand in their episodes: step counts, and what was shown with the current observation."""

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

    def advance(self, batch: Transitions) -> None:
        """Move past `batch` (N,): its successors become current."""
        self.step = np.where(batch.valid, batch.step + 1, self.step)
        self.show({name: value for name in MODALITIES if (value := getattr(batch, name)) is not None}, batch.valid)

    def show(self, modalities: Mapping[str, Array], mask: np.ndarray) -> None:
        """Rows of `mask` are now shown like this."""
        for name, value in modalities.items():
            self.modalities[name] = _merge(self.modalities.get(name), value, mask)

    def of_obs(self) -> dict[str, Any]:
        """What was shown with the current observation, as fields of `Transitions`: `obs_frame`, ..."""
        return {f"obs_{name}": value for name, value in self.modalities.items()}

    def state_dict(self) -> dict[str, Any]:
        modalities = {name: value.tolist() if name == "text" else value for name, value in self.modalities.items()}
        return {"step": self.step, "shown": modalities, "resetting": self.resetting}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.resetting = np.array(state["step"]), np.array(state["resetting"])
        self.modalities = {
            name: np.array(value, object if name == "text" else None) for name, value in state["shown"].items()
        }


def from_gym_step(
    cursor: Cursor,
    obs: Obs,
    action: Any,
    reward: float,
    next_obs: Obs,
    terminated: bool,
    truncated: bool,
    info: Mapping[str, Any],
) -> Transitions:
    """One step of one `gymnasium.Env` -> a batch of shape (1,); the cursor (of 1) moves on."""
    batch = Transitions(
        obs=map_obs(lambda x: np.asarray(x)[None], obs),
        action=np.asarray(action)[None],
        reward=np.array([reward], np.float32),
        next_obs=map_obs(lambda x: np.asarray(x)[None], next_obs),
        terminated=np.array([terminated]),
        truncated=np.array([truncated]),
        valid=np.ones(1, bool),
        step=cursor.step.copy(),
        **modalities_of_one(info),
        **cursor.of_obs(),
    )
    cursor.advance(batch)
    return batch


def from_vector_step(
    cursor: Cursor,
    mode: AutoresetMode,
    obs: Obs,
    actions: Array,
    rewards: Array,
    next_obs: Obs,
    terminations: Array,
    truncations: Array,
    infos: Mapping[str, Any],
) -> Transitions:
    """One step of a `gymnasium.vector.VectorEnv` in any auto-reset mode -> (N,); the cursor moves on.

    In NEXT_STEP mode the step after an episode's end has `valid == False`; so has one in which an episode was lost
    (`infos["lost"]`, see `envs.vector.workers`), whose row is truncated. In DISABLED mode the caller resets ended
    environments and tells the cursor with `begin`.
    """
    ended = np.asarray(terminations, bool) | np.asarray(truncations, bool)
    valid = ~cursor.resetting
    if "lost" in infos:
        valid &= ~infos["lost"]
    modalities = after = modalities_of(infos)  # `after` belongs to the observation to act on next
    successor = next_obs
    if mode == AutoresetMode.SAME_STEP and ended.any():
        rows = np.flatnonzero(ended)
        successor = map_obs(np.copy, next_obs)
        for row in map(int, rows):  # only where an episode ended: rare
            put(successor, row, _entry(infos["final_obs"], row))
        final = infos.get("final_info", {})
        modalities = {name: _merge(value, final.get(name), ended) for name, value in after.items()}
    batch = Transitions(
        obs=obs,
        action=np.asarray(actions),
        reward=np.asarray(rewards, np.float32),
        next_obs=successor,
        terminated=np.asarray(terminations, bool),
        truncated=np.asarray(truncations, bool) & ~cursor.resetting,
        valid=valid,
        step=cursor.step.copy(),
        **modalities,
        **cursor.of_obs(),
    )
    cursor.advance(batch)
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
    infos: Sequence[Mapping[str, Any]],
    reset_infos: Sequence[Mapping[str, Any]],
) -> Transitions:
    """One step of an SB3 `VecEnv` -> (N,); the cursor moves on. `reset_infos` are the VecEnv's, read after the step.

    Rows whose info says `lost` are not valid.
    """
    dones = np.asarray(dones, bool)
    truncated = np.zeros_like(dones)
    successor = new_obs
    if dones.any():
        successor = map_obs(np.copy, new_obs)
        for row in map(int, np.flatnonzero(dones)):
            truncated[row] = infos[row].get("TimeLimit.truncated", False)
            if infos[row].get("terminal_observation") is not None:
                put(successor, row, infos[row]["terminal_observation"])
    batch = Transitions(
        obs=obs,
        action=np.asarray(actions),
        reward=np.array(rewards, np.float32),
        next_obs=successor,
        terminated=dones & ~truncated,
        truncated=truncated,
        valid=~lost_in(infos),
        step=cursor.step.copy(),
        **modalities_in(infos),
        **cursor.of_obs(),
    )
    cursor.advance(batch)
    if dones.any():
        cursor.begin(modalities_in(reset_infos, dones), dones)
    return batch


def from_rollout_buffer(
    buffer: Any,
    actions: np.ndarray,
    rewards: np.ndarray,
    new_obs: Obs,
    final_obs: Mapping[tuple[int, int], Obs],
    dones: np.ndarray,
    truncated: np.ndarray,
    valid: np.ndarray,
    first_step: np.ndarray,
) -> Transitions:
    """A full SB3 rollout buffer, before it is flattened -> (T, N).

    Args:
        buffer: holds `observations` (T, N, ...) and `episode_starts` (T, N).
        actions: (T, N, ...) as the environment received them.
        rewards: float32 (T, N), the task's own, before SB3 adds its bootstrap value.
        new_obs: (N, ...) what the policy will act on next.
        final_obs: (t, n) -> true successor, where an episode ended.
        dones: bool (T, N).
        truncated: bool (T, N), True where time ran out.
        valid: bool (T, N), False where an episode was lost.
        first_step: int64 (N,), step within the episode of the first row.
    """
    obs = buffer.observations
    next_obs = _shift(obs, new_obs)
    for (t, n), value in final_obs.items():
        put(next_obs, (t, n), value)
    step = np.empty(dones.shape, np.int64)
    step[0] = first_step
    for t in range(1, len(dones)):
        step[t] = np.where(dones[t - 1], 0, step[t - 1] + 1)
    return Transitions(
        obs=obs,
        action=actions,
        reward=rewards,
        next_obs=next_obs,
        terminated=dones & ~truncated,
        truncated=truncated,
        valid=valid,
        step=step,
    )


def from_replay(buffer: Any, rows: np.ndarray, columns: np.ndarray) -> Transitions:
    """Entries of a relabelling replay buffer (`rewards.adapters.sb3`) -> a batch shaped like `rows` broadcast with `columns`."""

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
        self._store: Any = None
        self._capacity = 0  # rows allocated so far; doubles up to `length`, so a chunk that never fills stays small

    @property
    def full(self) -> bool:
        return self.count >= self.length

    def add(self, *row: Any) -> None:
        """Write one row: Transitions, arrays (N, ...) or dicts of them; the same kinds every time."""
        tree = [_fields(x) for x in row]
        if self._store is None:
            self._store, self._capacity = _map_tree(lambda x: x[None][:0], tree), 0
        if self.count == self._capacity:
            self._grow(min(max(2 * self._capacity, 64), self.length))
        _write(self._store, tree, self.count)
        self.count += 1

    def _grow(self, capacity: int) -> None:
        def grow(x: np.ndarray) -> np.ndarray:
            larger = np.empty((capacity, *x.shape[1:]), x.dtype)
            larger[: self.count] = x[: self.count]
            return larger

        self._store, self._capacity = _map_tree(grow, self._store), capacity

    def take(self) -> list[Any]:
        """What was added, with leading shape (T, N), as views that hold until the next `add`."""
        count, self.count = self.count, 0
        trees = _map_tree(lambda x: x[:count], self._store)
        return [Transitions(**tree) if isinstance(tree, dict) and "next_obs" in tree else tree for tree in trees]

    def state_dict(self) -> dict[str, Any]:
        """The rows still waiting."""
        return {"count": self.count, "store": _map_tree(lambda x: x[: self.count], self._store) if self.count else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = int(state["count"])
        self._store = _map_tree(np.array, state["store"]) if self.count else None
        self._capacity = self.count


def modalities_of(infos: Mapping[str, Any]) -> dict[str, Any]:
    """What the infos of a vector environment show: some of `MODALITIES`, each (N, ...)."""
    return {name: _plain(name, infos[name]) for name in MODALITIES if infos.get(name) is not None}


def modalities_of_one(info: Mapping[str, Any]) -> dict[str, Any]:
    """What the info of a single environment shows, with leading shape (1,)."""
    return {name: _plain(name, [info[name]]) for name in MODALITIES if info.get(name) is not None}


def modalities_in(infos: Sequence[Mapping[str, Any]], mask: np.ndarray | None = None) -> dict[str, Any]:
    """What a list of infos shows, each (N, ...); rows outside `mask` mean nothing."""
    modalities = {}
    for name in MODALITIES:
        some = next((info[name] for info in infos if name in info), None)
        if some is None:
            continue
        if mask is None:
            modalities[name] = _plain(name, [info[name] for info in infos])
            continue
        modalities[name] = (
            np.full(len(infos), "", object) if name == "text" else np.zeros((len(infos), *some.shape), some.dtype)
        )
        for row in map(int, np.flatnonzero(mask)):
            modalities[name][row] = infos[row][name]
    return modalities


def lost_in(infos: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Where a list of infos says that an episode was lost with its worker, bool (N,)."""
    return np.array(["lost" in info for info in infos])


def _plain(name: str, value: Any) -> np.ndarray:
    return np.asarray(value, object if name == "text" else None)


def innermost(venv: Any) -> Any:
    """The SB3 VecEnv that holds the environments, inside all wrappers: only it knows the infos of automatic resets."""
    while hasattr(venv, "venv"):
        venv = venv.venv
    return venv


def _fields(x: Any) -> Any:
    return dict(vars(x)) if isinstance(x, Transitions) else x


def _map_tree(function: Any, tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _map_tree(function, value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_map_tree(function, value) for value in tree]
    return None if tree is None else function(tree)


def _write(store: Any, tree: Any, index: int) -> None:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            _write(store[key], value, index)
    elif isinstance(tree, list):
        for place, value in zip(store, tree):
            _write(place, value, index)
    elif tree is not None:
        store[index] = tree


def _shift(obs: Obs, new_obs: Obs) -> Obs:
    """Rows 1.. of `obs` followed by `new_obs`, copied."""
    if isinstance(obs, Mapping):
        return {key: _shift(value, new_obs[key]) for key, value in obs.items()}
    out = np.empty_like(obs)
    out[:-1] = obs[1:]
    out[-1] = np.asarray(new_obs).reshape(obs.shape[1:])
    return out


def _entry(obs: Any, row: int) -> Obs:
    """Row `row` of a vector of observations, which Gymnasium keeps as an object array or as a dict of arrays."""
    if isinstance(obs, Mapping):
        return {key: _entry(value, row) for key, value in obs.items()}
    return obs[row]


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
