"""Transitions: one step, a batch or a rollout of them; when they terminate; and the refusal of NaN in them.

`Transitions` is what every reward and agent reads. A `Rollout` holds T steps of N environments, from which it makes
them; `envs.steps` makes them from single steps. These two files are the only code that knows about auto-reset:
SAME_STEP hides an episode's last observation in `final_obs`, NEXT_STEP spends a step on resetting.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from envs.observations import empty_batch
from envs.types import MASK, MODALITIES, Array, MaskFault, Obs

Infos = Mapping[str, Any]  # of a vector environment: name -> (N, ...)
Final = tuple[int, np.ndarray, Obs]  # time, columns (M,), their last observations (M, ...)
Ends = Callable[[Array, Array, Array], Array]  # (obs, action, next_obs), (B, ...) -> bool (B,): the episode terminates


def map_obs(function: Callable[[Array], Array], obs: Obs) -> Obs:
    """Apply `function` to an observation, or to each entry of a dict observation; None stays None."""
    if isinstance(obs, dict):
        return {key: map_obs(function, value) for key, value in obs.items()}
    return None if obs is None else function(obs)


def put(obs: Obs, index: Any, value: Obs) -> None:
    """obs[index] = value, into each entry of a dict observation that is not None."""
    if isinstance(obs, Mapping):
        for key, part in obs.items():
            put(part, index, value[key])
    elif obs is not None:
        obs[index] = value


@dataclass(frozen=True, eq=False)
class Transitions:
    """A batch (N,), or (T, N) when it is a rollout in time order; `next_obs` is always the true successor."""

    obs: Obs  # (..., *obs_shape)
    action: Array  # (..., *action_shape), in the environment's own range
    reward: Array  # float32 (...,), the task's own reward
    next_obs: Obs  # (..., *obs_shape)
    terminated: Array  # bool (...,)
    truncated: Array  # bool (...,)
    valid: Array  # bool (...,), False for a row that is no transition: it only resets (Gymnasium's NEXT_STEP)
    # or, where `truncated`, an episode was lost with the process it ran in; the row before has its last observation
    step: Array  # int64 (...,), 0 at the first transition of an episode
    frame: Array | None = None  # uint8 (..., H, W, 3), image of next_obs
    obs_frame: Array | None = None  # uint8 (..., H, W, 3), image of obs
    text: Array | None = None  # object (...,) of str, caption or message of next_obs
    obs_text: Array | None = None  # object (...,) of str, caption or message of obs
    signals: Array | None = None  # float32 (..., K), named quantities of next_obs, read from the simulator
    obs_signals: Array | None = None  # float32 (..., K), those of obs
    action_mask: Array | None = None  # bool (..., A), the actions that next_obs allows
    obs_action_mask: Array | None = None  # bool (..., A), those that obs allows
    extras: dict[str, Array] = field(default_factory=dict)  # name -> (..., D): embeddings, goals, log-probabilities

    @property
    def shape(self) -> tuple[int, ...]:
        """The leading shape: (N,) or (T, N)."""
        return tuple(self.terminated.shape)

    @property
    def ended(self) -> Array:
        """Bool (...,): the last transition of an episode, or a row in which an episode was lost (not valid)."""
        return (self.terminated & self.valid) | self.truncated

    def map(self, function: Callable[[Array], Array]) -> "Transitions":
        """Apply `function` to every array of the batch; absent fields stay absent."""
        return Transitions(**map_obs(function, vars(self)))

    def __getitem__(self, index: Any) -> "Transitions":
        """Index the leading axes of every field: `batch[t]`, `batch[mask]`, `batch[rows]`."""
        return self.map(lambda x: x[index])

    def flatten(self) -> "Transitions":
        """(T, N) -> (T * N,), as views; a batch that is flat already is returned as it is."""
        if len(self.shape) == 1:
            return self
        count = self.shape[0] * self.shape[1]
        return self.map(lambda x: x.reshape(count, *x.shape[2:]))

    def replace(self, **changes: Any) -> "Transitions":
        """A copy with some fields exchanged; arrays are shared, not copied."""
        return replace(self, **changes)

    def at_obs(self) -> "Transitions":
        """The batch with `obs` in place of `next_obs`, what phi(s) needs; an extra named `obs_X` stands in for `X`."""
        extras = {key: value for key, value in self.extras.items() if key.startswith("obs_")}
        extras |= {key[4:]: value for key, value in extras.items()}  # the others describe next_obs, which is gone
        known = {name: getattr(self, f"obs_{name}") for name in MODALITIES}
        return self.replace(next_obs=self.obs, extras=extras, **known)


def stack(batches: list[Transitions]) -> Transitions:
    """T batches of shape (N,) -> one rollout of shape (T, N), copied."""
    return Transitions(**join(np.stack, [vars(batch) for batch in batches]))


def concatenate(batches: list[Transitions]) -> Transitions:
    """Flat batches -> one flat batch, copied."""
    return Transitions(**join(np.concatenate, [vars(batch) for batch in batches]))


def join(function: Callable[[list[Array]], Array], values: list[Any]) -> Any:
    """One observation of several, entry by entry if they are dicts; None if one of them is."""
    if isinstance(values[0], Mapping):
        return {key: join(function, [value[key] for value in values]) for key in values[0]}
    return None if any(value is None for value in values) else function(values)


def never(obs: Array, action: Array, next_obs: Array) -> Array:
    """No episode terminates; an `Ends`."""
    return next_obs[..., 0] < -math.inf


def always(obs: Array, action: Array, next_obs: Array) -> Array:
    """Every episode has one step; an `Ends`."""
    return ~never(obs, action, next_obs)


def reset_mode(envs: Any) -> AutoresetMode:
    """How a vector resets its environments; a ValueError for one that leaves it to its caller."""
    mode = envs.metadata.get("autoreset_mode")
    if mode not in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        raise ValueError(
            f'{envs} declares metadata["autoreset_mode"]={mode!r}; it must reset its environments itself, in '
            "SAME_STEP mode (or NEXT_STEP, which spends a step on it)"
        )
    return mode


class Rollout:
    """T steps of N environments, written in place into arrays that are allocated once.

    An episode's true last observation is kept aside, because SAME_STEP puts the next episode's first in its place. A
    row that only resets (NEXT_STEP) is written with `valid == False`; so is one in which an episode was lost with its
    worker, which is truncated besides. `modality_names` says which of frame, text and signals to keep.
    """

    def __init__(self, length: int, envs: Any, modality_names: frozenset[str] = frozenset()) -> None:
        mode = reset_mode(envs)
        self.length, self.n, self.same_step = length, envs.num_envs, mode == AutoresetMode.SAME_STEP
        self.modality_names = tuple(sorted(modality_names))
        shape = (length, self.n)
        self.obs = empty_batch(envs.single_observation_space, (length + 1, self.n))  # row T is to be acted on next
        self.action = empty_batch(envs.single_action_space, shape)  # as the environment received it; set by the caller
        self.reward = np.zeros(shape, np.float32)  # the task's
        self.terminated, self.truncated, self.valid = (np.zeros(shape, bool) for _ in range(3))
        self.valid[:] = self.same_step
        self.success = np.full(shape, np.nan, np.float32)  # of the episode that ended here; NaN where none did
        self.resetting = np.zeros(self.n, bool)  # NEXT_STEP: the coming step only resets
        self.first_step = np.zeros(self.n, np.int64)
        self.finals: list[Final] = []  # where episodes ended, and on which observation
        self.modalities: dict[str, np.ndarray] = {}  # (T + 1, N, ...), of the observation in the same row
        self.final_modalities: list[tuple[str, int, np.ndarray, Array]] = []
        self._next_obs: Any = None

    def begin(self, obs: Obs, infos: Infos) -> None:
        """Once, after the first reset."""
        put(self.obs, 0, obs)
        self.first_step[:] = 0
        self.resetting[:] = False
        self._show(0, slice(None), infos)

    def write(
        self, t: int, group: slice, obs: Obs, rewards: Array, terminations: Array, truncations: Array, infos: Infos
    ) -> None:
        """Keep what a vector environment returned for a group of its columns."""
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
        self.finals.append((t, columns, final_rows(infos["final_obs"], ended)))
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
                sentence = f'infos["{name}"] is missing, though earlier it was there; give it in every step'
                if name == MASK:
                    raise MaskFault(sentence)
                if name in self.modalities:
                    raise ValueError(sentence)
                continue  # The rewards refuse a batch without it, in a sentence that names the one that reads it.
            value = modality(name, infos[name])
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

    def timed_out(self) -> tuple[Array, Array, Obs] | None:
        """Rows, columns and last observations (M, ...) of the episodes that ended while others did for lack of time."""
        late = [f for f in self.finals if (self.truncated[f[0], f[1]] & ~self.terminated[f[0], f[1]]).any()]
        if not late:
            return None
        times = np.concatenate([np.full(len(columns), t) for t, columns, _ in late])
        columns = np.concatenate([columns for _, columns, _ in late])
        return times, columns, join(np.concatenate, [last for _, _, last in late])

    def refuse_finals(self) -> None:
        """Raise a NotFinite if an observation that an episode ended on holds NaN or infinity."""
        steps = self.steps()
        for t, columns, last in self.finals:
            wide = map_obs(lambda x: np.zeros((1, self.n, *x.shape[1:]), x.dtype), last)
            put(wide, (0, columns), last)
            refuse({"observation": wide}, steps[t : t + 1], {"next_obs": wide})

    def roll(self) -> None:
        """Begin the next rollout where this one ended."""
        self.follow(self)

    def follow(self, before: "Rollout") -> None:
        """Begin where another rollout ended, which stays as it is."""
        self.first_step = np.where(before.restarted[-1], 0, before.steps()[-1] + 1)
        self.resetting, self.modality_names = before.resetting.copy(), before.modality_names
        put(self.obs, 0, map_obs(lambda x: x[-1], before.obs))
        for name, value in before.modalities.items():
            self.modalities.setdefault(name, np.empty_like(value))[0] = value[-1]
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
            "shown": saved({name: value[0] for name, value in self.modalities.items()}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["shown"]:  # none before the first reset
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
        self._actions = actions

    def recv(self, group: int) -> tuple[Obs, Array, Array, Array, Infos]:
        return self.envs.step(self._actions)


def modality(name: str, value: Any) -> np.ndarray:
    """A modality as an array; texts as objects, masks as bool."""
    return np.asarray(value, object if name == "text" else bool if name == MASK else None)


def saved(modalities: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Modalities as plain data for a checkpoint."""
    return {name: value.tolist() if name == "text" else value for name, value in modalities.items()}


def final_rows(final_obs: Any, rows: np.ndarray) -> Obs:
    """Rows of what `infos["final_obs"]` holds: a dense array, a dict of them, or Gymnasium's array of objects."""
    if isinstance(final_obs, Mapping):
        return {key: final_rows(value, rows) for key, value in final_obs.items()}
    values = final_obs[rows]
    return values if values.dtype != object else join(np.stack, list(values))


class NotFinite(FloatingPointError):
    """NaN or infinity; the sentence says whose. `kept` are arrays by name, for a dump: what is known of that step."""

    def __init__(self, sentence: str, kept: Mapping[str, Any] | None = None) -> None:
        super().__init__(sentence)
        self.kept = dict(kept or {})


class OnNan:
    """What becomes of NaN or infinite rewards: `stop` leaves them to be refused, `zero` replaces and counts them."""

    def __init__(self, what: str = "stop") -> None:
        self.what, self.zeroed = what, 0  # what is sampled from a replay twice counts twice

    def __call__(self, reward: Any) -> Any:
        """The rewards, an array or a tensor: the same object where all are finite."""
        if self.what == "stop" or _place(reward) is None:
            return reward
        on_host = isinstance(reward, np.ndarray)
        finite: Any = np.isfinite(reward) if on_host else reward.isfinite()
        self.zeroed += int((~finite).sum())
        return np.where(finite, reward, reward.dtype.type(0)) if on_host else reward.where(finite, reward.new_zeros(()))


def is_finite(value: Any) -> bool:
    """Whether an array, a tensor or a dict of them holds neither NaN nor infinity; one sum checks a whole batch."""
    return all(_place(part) is None for _, part in _parts("", value))


def refuse(given: Mapping[str, Any], steps: Any, kept: Mapping[str, Any] | None = None) -> None:
    """Raise a `NotFinite`, which names environment, step and value, at NaN or infinity; nothing has learned from it.

    Args:
        given: what is looked at, by its name in the sentence: arrays, tensors or dicts of them, leading shape (N,) or
            (T, N); what has a row more than `steps` is the observations before and after each step.
        steps: step within the episode, (N,) or (T, N); or a function that returns it, asked only in need.
        kept: what is written down of the step, by name, in the same shapes.
    """
    parts = (part for name, value in given.items() for part in _parts(name, value))
    found = [(name, _on_host(part), place) for name, part in parts if (place := _place(part)) is not None]
    if found:
        _raise(found, np.asarray(steps() if callable(steps) else steps), kept or {})


def _raise(found: list[tuple[str, np.ndarray, tuple[int, ...]]], steps: np.ndarray, kept: Mapping[str, Any]) -> None:
    """Name the first: an action comes before the reward and the observation that it leads to."""

    def row(part: np.ndarray, place: tuple[int, ...]) -> int:
        return place[0] - (len(part) > len(steps)) if steps.ndim == 2 else 0

    name, part, place = min(found, key=lambda one: (row(*one[1:]), one[0] != "action"))
    at = (max(row(part, place), 0), place[1]) if steps.ndim == 2 else place[:1]
    column, step, bad = at[-1], int(steps[at]), part[place]
    sentence = f"environment {column} gave the {name} {bad} at step {step} of its episode (stream task)"
    if name == "action":
        sentence = f"the policy gave environment {column} the action {bad} at step {step} of its episode: it diverged"
    arrays = {key: _on_host(value)[at] for words, held in kept.items() for key, value in _parts(words, held)}
    arrays |= {"environment": np.array(column), "step": np.array(step)}
    raise NotFinite(f"{sentence}; nothing has been learnt from it", arrays)


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield f"{name} {key!r}", part
    elif value is not None:
        yield name, value


def _place(value: Any) -> tuple[int, ...] | None:
    """The index of the first value that is not finite."""
    if (isinstance(value, np.ndarray) and value.dtype.kind != "f") or math.isfinite(float(value.sum())):
        return None
    found = np.argwhere(~np.isfinite(_on_host(value)))
    return tuple(int(i) for i in found[0]) if len(found) else None


def _on_host(value: Any) -> np.ndarray:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
