"""Builders: what each interface returns -> Transitions. The only code in the project that knows about auto-reset.

    Gymnasium step         the true successor comes as it is
    Gymnasium vector step  SAME_STEP hides it in `final_obs`; NEXT_STEP spends a step on resetting: no transition
    SB3 VecEnv step        hides it in `infos[i]["terminal_observation"]`
    SB3 replay buffer      stores the true successor

A `Cursor` goes with single steps, a `Rollout` holds T steps of N environments, a `Chunk` collects rows of any kind.
Frames, texts and signals travel in `info["frame"]`, `info["text"]` and `info["signals"]` (`envs.wrappers.Observer` puts
them there), which describe the observation returned with them; a `Cursor` remembers those of the current observation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from envs.observations import empty_batch
from envs.types import MODALITIES, Array, Obs, Transitions, map_obs, put

Infos = Mapping[str, Any]  # of a vector environment: name -> (N, ...)
Final = tuple[int, np.ndarray, Obs]  # time, columns (M,), their last observations (M, ...)


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

    def advance(self, batch: Transitions) -> None:
        """Move past `batch` (N,): its successors become current."""
        self.step = np.where(batch.valid, batch.step + 1, self.step)
        self.show({name: value for name in MODALITIES if (value := getattr(batch, name)) is not None}, batch.valid)

    def show(self, modalities: Mapping[str, Array], mask: np.ndarray) -> None:
        """Set the current modalities of the rows of `mask`."""
        for name, value in modalities.items():
            self.modalities[name] = _merge(self.modalities.get(name), value, mask)

    def of_obs(self) -> dict[str, Any]:
        """The modalities of the current observation, as fields of `Transitions`: `obs_frame`, ..."""
        return {f"obs_{name}": value for name, value in self.modalities.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "shown": _saved(self.modalities), "resetting": self.resetting}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.resetting = np.array(state["step"]), np.array(state["resetting"])
        self.modalities = {name: _array(name, value).copy() for name, value in state["shown"].items()}


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
    infos: Infos,
) -> Transitions:
    """One step of a `gymnasium.vector.VectorEnv` in any auto-reset mode -> (N,); the cursor moves on.

    In NEXT_STEP mode the step after an episode's end has `valid == False`; so has one in which an episode was lost
    (`infos["lost"]`, see `envs.vector.workers`), whose row is truncated. In DISABLED mode the caller resets ended
    environments and calls the cursor's `begin`.
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
        put(successor, rows, _rows(infos["final_obs"], rows))
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
    infos: Sequence[Infos],
    reset_infos: Sequence[Infos],
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


def from_replay(buffer: Any, rows: np.ndarray, columns: np.ndarray) -> Transitions:
    """Entries of a relabelling replay buffer (`rewards.adapters.sb3_replay`) -> a batch shaped like `rows` x `columns`."""

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


class Rollout:
    """T steps of N environments, written in place into arrays that are allocated once.

        rollout.begin(obs, infos)                  once, after the first reset
        rollout.write(t, group, *step)             what a vector environment returned; a group of columns at a time
        rollout.transitions(requires)              the (T, N) batch, true successors included
        rollout.roll()                             the last observation becomes the first of the next rollout

    An episode's true last observation is kept aside, because SAME_STEP puts the next episode's first in its place. In
    NEXT_STEP mode the step that only resets is written too, as a row with `valid == False`; so is one in which an
    episode was lost with its worker, which is truncated besides.

    Args:
        length: T.
        envs: the vector environment.
        modality_names: which of frame, text and signals to keep.

    Attributes:
        obs: (T + 1, N, ...); row T is what the agent acts on next.
        action: (T, N, ...) as the environment received it; the caller fills it in.
        reward: float32 (T, N), the task's; terminated, truncated, valid: bool (T, N).
        success: float32 (T, N), of the episode that ended here, NaN where none did or it is not defined.
        modalities: name -> (T + 1, N, ...), of the observation in the same row.
        finals: where episodes ended, and on which observation.

    Raises:
        ValueError: for an environment that leaves resets to its caller, or does not say when it resets.
    """

    def __init__(self, length: int, envs: Any, modality_names: frozenset[str] = frozenset()) -> None:
        self.length, self.n, self.same_step = length, envs.num_envs, resets_in_same_step(envs)
        self.modality_names = tuple(sorted(modality_names))
        shape = (length, self.n)
        self.obs = empty_batch(envs.single_observation_space, (length + 1, self.n))
        self.action = empty_batch(envs.single_action_space, shape)
        self.reward = np.zeros(shape, np.float32)
        self.terminated, self.truncated, self.valid = (np.zeros(shape, bool) for _ in range(3))
        self.valid[:] = self.same_step
        self.success = np.full(shape, np.nan, np.float32)
        self.resetting = np.zeros(self.n, bool)  # NEXT_STEP: the coming step only resets
        self.first_step = np.zeros(self.n, np.int64)
        self.finals: list[Final] = []
        self.modalities: dict[str, np.ndarray] = {}
        self.final_modalities: list[tuple[str, int, np.ndarray, Array]] = []
        self._next_obs: Any = None

    def begin(self, obs: Obs, infos: Infos) -> None:
        """Episodes begin in all environments."""
        put(self.obs, 0, obs)
        self.first_step[:] = 0
        self.resetting[:] = False
        self._show(0, slice(None), infos)

    def write(
        self, t: int, group: slice, obs: Obs, rewards: Array, terminations: Array, truncations: Array, infos: Infos
    ) -> None:
        """Step t of the environments in `group`, as `VectorEnv.step` returned it; copied."""
        put(self.obs, (t + 1, group), obs)
        self.reward[t, group] = rewards
        self.terminated[t, group] = terminations
        self.truncated[t, group] = truncations
        if self.modality_names:
            self._show(t + 1, group, infos)
        if self.same_step:
            if "final_obs" in infos:
                self._keep_finals(t, group, infos)
            if "lost" in infos:
                self.valid[t, group] = ~infos["lost"]
                self.success[t, group][infos["lost"]] = np.nan
        else:
            self._mark_resets(t, group, obs)
            if "is_success" in infos:
                defined = np.asarray(infos.get("_is_success", infos["is_success"]), bool)
                self.success[t, group] = np.where(defined, infos["is_success"], np.nan)

    def _keep_finals(self, t: int, group: slice, infos: Infos) -> None:
        ended = np.flatnonzero(self.terminated[t, group] | self.truncated[t, group])
        columns = ended + group.start
        self.finals.append((t, columns, _rows(infos["final_obs"], ended)))
        last = infos.get("final_info", {})
        for name in self.modality_names:
            if name in last:
                self.final_modalities.append((name, t, columns, np.asarray(last[name])[ended]))
        if "is_success" in last:
            self.success[t, columns] = np.asarray(last["is_success"], np.float32)[ended]

    def _mark_resets(self, t: int, group: slice, obs: Obs) -> None:
        self.valid[t, group] = ~self.resetting[group]
        ended = (self.terminated[t, group] | self.truncated[t, group]) & self.valid[t, group]
        self.resetting[group] = ended
        self.truncated[t, group] &= self.valid[t, group]
        if ended.any():
            rows = np.flatnonzero(ended)
            self.finals.append((t, rows + group.start, map_obs(lambda x: np.array(x[rows]), obs)))

    def _show(self, row: int, group: slice, infos: Infos) -> None:
        for name in self.modality_names:
            if name not in infos:
                option = "frame_size=..." if name == "frame" else f"{name}=True"
                raise ValueError(f'the reward reads {name}, but infos["{name}"] is missing; make them with {option}')
            value = _array(name, infos[name])
            if name not in self.modalities:
                self.modalities[name] = np.empty((self.length + 1, self.n, *value.shape[1:]), value.dtype)
            self.modalities[name][row, group] = value

    @property
    def ended(self) -> np.ndarray:
        """Bool (T, N): the last step of an episode."""
        ended = self.terminated | self.truncated
        return ended if self.same_step else ended & self.valid

    @property
    def restarted(self) -> np.ndarray:
        """Bool (T, N): the observation after this step is the first of an episode."""
        return self.ended if self.same_step else ~self.valid

    def steps(self) -> np.ndarray:
        """Int64 (T, N): each row's step within its episode."""
        rows = np.arange(self.length)[:, None]
        starts = np.zeros((self.length, self.n), bool)
        starts[1:] = self.restarted[:-1]
        last = np.maximum.accumulate(np.where(starts, rows, -1), axis=0)
        return np.where(last >= 0, rows - last, rows + self.first_step)

    def transitions(self, requires: frozenset[str]) -> Transitions:
        """The batch (T, N): views, except for successors, which are copied only if `requires` names them."""
        next_obs = map_obs(lambda x: x[1:], self.obs)
        if self.same_step and self.finals and "next_obs" in requires:
            if self._next_obs is None:
                self._next_obs = map_obs(np.empty_like, next_obs)
            put(self._next_obs, slice(None), next_obs)
            next_obs = self._next_obs
            for t, columns, last in self.finals:
                put(next_obs, (t, columns), last)
        modalities: dict[str, Any] = {}
        for name, value in self.modalities.items():
            modalities[name] = value[1:].copy()
            if f"obs_{name}" in requires:
                modalities[f"obs_{name}"] = value[:-1]
        for name, t, columns, last in self.final_modalities:
            modalities[name][t, columns] = last
        return Transitions(
            obs=map_obs(lambda x: x[:-1], self.obs),
            action=self.action,
            reward=self.reward,
            next_obs=next_obs,
            terminated=self.terminated,
            truncated=self.truncated,
            valid=self.valid,
            step=self.steps(),
            **modalities,
        )

    def roll(self) -> None:
        """Begin the next rollout where this one ended."""
        self.first_step = np.where(self.restarted[-1], 0, self.steps()[-1] + 1)
        put(self.obs, 0, map_obs(lambda x: x[-1], self.obs))
        for value in self.modalities.values():
            value[0] = value[-1]
        self.finals.clear()
        self.final_modalities.clear()
        self.valid[:] = self.same_step
        self.success[:] = np.nan

    def state_dict(self) -> dict[str, Any]:
        """The first row, between two rollouts."""
        return {
            "obs": map_obs(lambda x: x[0].copy(), self.obs),
            "first_step": self.first_step,
            "resetting": self.resetting,
            "shown": _saved({name: value[0] for name, value in self.modalities.items()}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._show(0, slice(None), state["shown"])
        put(self.obs, 0, state["obs"])
        self.first_step, self.resetting = np.array(state["first_step"]), np.array(state["resetting"])


class OneGroup:
    """Any vector environment, for a learner that sends actions to groups of environments and receives their steps."""

    def __init__(self, envs: Any) -> None:
        self.envs = envs
        self.groups = (slice(0, envs.num_envs),)
        self._actions: Any = None

    def send(self, actions: Array, group: int) -> None:
        """Remember the actions (N, ...)."""
        self._actions = actions

    def recv(self, group: int) -> tuple[Obs, Array, Array, Array, Infos]:
        """Step with them."""
        return self.envs.step(self._actions)


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
            self._grow(min(max(2 * self._capacity, 64), self.length))
        put(self._store, self.count, tree)
        self.count += 1

    def _grow(self, capacity: int) -> None:
        def grow(x: np.ndarray) -> np.ndarray:
            larger = np.empty((capacity, *x.shape[1:]), x.dtype)
            larger[: self.count] = x[: self.count]
            return larger

        self._store, self._capacity = map_obs(grow, self._store), capacity

    def take(self) -> list[Any]:
        """What was added, with leading shape (T, N), as views that hold until the next `add`."""
        count, self.count = self.count, 0
        trees = map_obs(lambda x: x[:count], self._store).values()
        return [Transitions(**tree) if isinstance(tree, dict) and "next_obs" in tree else tree for tree in trees]

    def state_dict(self) -> dict[str, Any]:
        """The rows still waiting."""
        rows = list(map_obs(lambda x: x[: self.count], self._store).values()) if self.count and self._store else None
        return {"count": self.count, "store": rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = int(state["count"])
        self._store = map_obs(np.array, dict(enumerate(state["store"]))) if self.count else None
        self._capacity = self.count


def resets_in_same_step(envs: VectorEnv) -> bool:
    """Whether a vector environment resets in SAME_STEP mode, rather than in NEXT_STEP mode.

    Raises:
        ValueError: for one that leaves resets to its caller, or does not say when it resets.
    """
    mode = envs.metadata.get("autoreset_mode")
    if mode not in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        raise ValueError(
            f'{envs} declares metadata["autoreset_mode"]={mode!r}; it must reset its environments itself, in '
            "SAME_STEP mode (or NEXT_STEP, which spends a step on it)"
        )
    return mode == AutoresetMode.SAME_STEP


def modalities_of(infos: Infos) -> dict[str, Any]:
    """The modalities in the infos of a vector environment: some of `MODALITIES`, each (N, ...)."""
    return {name: _array(name, infos[name]) for name in MODALITIES if infos.get(name) is not None}


def modalities_of_one(info: Infos) -> dict[str, Any]:
    """The modalities in the info of a single environment, with leading shape (1,)."""
    return {name: _array(name, [info[name]]) for name in MODALITIES if info.get(name) is not None}


def modalities_in(infos: Sequence[Infos], mask: np.ndarray | None = None) -> dict[str, Any]:
    """The modalities in a list of infos, each (N, ...); rows outside `mask` are zero or empty."""
    modalities = {}
    for name in MODALITIES:
        some = next((info[name] for info in infos if name in info), None)
        if some is None:
            continue
        if mask is None:
            modalities[name] = _array(name, [info[name] for info in infos])
            continue
        blank = "" if name == "text" else np.zeros_like(some)
        modalities[name] = _array(name, [info[name] if there else blank for info, there in zip(infos, mask)])
    return modalities


def lost_in(infos: Sequence[Infos]) -> np.ndarray:
    """Where a list of infos says that an episode was lost with its worker, bool (N,)."""
    return np.array(["lost" in info for info in infos])


def innermost(venv: Any) -> Any:
    """The SB3 VecEnv that holds the environments, inside all wrappers: only it knows the infos of automatic resets."""
    while hasattr(venv, "venv"):
        venv = venv.venv
    return venv


def _array(name: str, value: Any) -> np.ndarray:
    """A modality as an array; texts as objects."""
    return np.asarray(value, object if name == "text" else None)


def _saved(modalities: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {name: value.tolist() if name == "text" else value for name, value in modalities.items()}


def _rows(final_obs: Any, rows: np.ndarray) -> Obs:
    """Rows of what `infos["final_obs"]` holds: a dense array, a dict of them, or Gymnasium's array of objects."""
    if isinstance(final_obs, Mapping):
        return {key: _rows(value, rows) for key, value in final_obs.items()}
    values = final_obs[rows]
    if values.dtype != object:
        return values
    if isinstance(values[0], Mapping):
        return {key: np.stack([value[key] for value in values]) for key in values[0]}
    return np.stack(list(values))


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
