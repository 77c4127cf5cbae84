"""Transitions: one step, a batch or a rollout of them; when they terminate; and the refusal of NaN in them.

`Transitions` is what every reward and agent reads. A `Rollout` holds T steps of N environments, from which it makes
them; `envs.steps` makes them from single steps. These two files are the only code that knows about auto-reset:
SAME_STEP hides an episode's last observation in `final_obs`, NEXT_STEP spends a step on resetting.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from envs.observations import empty_batch
from envs.types import MASK, MODALITIES, Array, MaskFault, Obs, StateDict

# Of a vector environment: name -> (N, ...).
Infos = Mapping[str, Any]
# Time, columns (M,) whose episodes ended then, and their last observations (M, ...).
Final = tuple[int, np.ndarray, Obs]
# (obs, action, next_obs), (B, ...) -> bool (B,): the episode terminates.
Ends = Callable[[Array, Array, Array], Array]


def map_obs(function: Callable[[Array], Array], obs: Obs) -> Obs:
    """Apply `function` to an observation, or to each entry of a dict observation; None stays None."""
    if isinstance(obs, dict):
        return {key: map_obs(function, value) for key, value in obs.items()}
    if obs is None:
        return None
    return function(obs)


def index_obs(obs: Obs, index: Any) -> Obs:
    """obs[index], of each entry of a dict observation; None stays None."""
    return map_obs(itemgetter(index), obs)


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

    # (..., *obs_shape).
    obs: Obs
    # (..., *action_shape), in the environment's own range.
    action: Array
    # float32 (...,), the task's own reward.
    reward: Array
    # (..., *obs_shape).
    next_obs: Obs
    # bool (...,), like the two that follow.
    terminated: Array
    truncated: Array
    # False for a row that is no transition: it only resets (Gymnasium's NEXT_STEP) or, where
    # `truncated`, an episode was lost with the process it ran in; the row before has its last
    # observation.
    valid: Array
    # int64 (...,), 0 at the first transition of an episode.
    step: Array
    # uint8 (..., H, W, 3), images of next_obs and of obs.
    frame: Array | None = None
    obs_frame: Array | None = None
    # object (...,) of str, captions or messages of next_obs and of obs.
    text: Array | None = None
    obs_text: Array | None = None
    # float32 (..., K), named quantities of next_obs and of obs, read from the simulator.
    signals: Array | None = None
    obs_signals: Array | None = None
    # bool (..., A), the actions that next_obs and obs allow.
    action_mask: Array | None = None
    obs_action_mask: Array | None = None
    # Name -> (..., D): embeddings, goals, log-probabilities.
    extras: dict[str, Array] = field(default_factory=dict)

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
        return self.map(itemgetter(index))

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
        extras = {}
        # The other extras describe next_obs, which is gone.
        for key, value in self.extras.items():
            if key.startswith("obs_"):
                extras[key] = value
                extras[key[4:]] = value
        modalities = {name: getattr(self, f"obs_{name}") for name in MODALITIES}
        return self.replace(next_obs=self.obs, extras=extras, **modalities)


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
    if any(value is None for value in values):
        return None
    return function(values)


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
        self.length = length
        self.n = envs.num_envs
        self.same_step = reset_mode(envs) == AutoresetMode.SAME_STEP
        self.modality_names = tuple(sorted(modality_names))
        shape = (length, self.n)
        # Row T is to be acted on next.
        self.obs = empty_batch(envs.single_observation_space, (length + 1, self.n))
        # As the environment received it; set by the caller.
        self.action = empty_batch(envs.single_action_space, shape)
        self.reward = np.zeros(shape, np.float32)
        self.terminated = np.zeros(shape, bool)
        self.truncated = np.zeros(shape, bool)
        self.valid = np.full(shape, self.same_step)
        # Of the episode that ended here; NaN where none did.
        self.success = np.full(shape, np.nan, np.float32)
        # NEXT_STEP: whether the coming step only resets.
        self.resetting = np.zeros(self.n, bool)
        self.first_step = np.zeros(self.n, np.int64)
        self.finals: list[Final] = []
        # (T + 1, N, ...), of the observation in the same row.
        self.modalities: dict[str, np.ndarray] = {}
        # Name, time, columns and values of what belongs to the last observations.
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
            last = map_obs(lambda x: np.array(x[rows]), obs)
            self.finals.append((t, rows + group.start, last))

    def _show(self, row: int, group: slice, infos: Infos) -> None:
        for name in self.modality_names:
            if name not in infos:
                sentence = f'infos["{name}"] is missing, though earlier it was there; give it in every step'
                if name == MASK:
                    raise MaskFault(sentence)
                if name in self.modalities:
                    raise ValueError(sentence)
                # The rewards refuse a batch without it, in a sentence that names the one that reads it.
                continue
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
    def restarts(self) -> np.ndarray:
        """Bool (T, N): the observation after this step is the first of an episode."""
        return self.ended if self.same_step else ~self.valid

    def steps(self) -> np.ndarray:
        """Int64 (T, N): each row's step within its episode."""
        rows = np.arange(self.length)[:, None]
        starts = np.zeros((self.length, self.n), bool)
        starts[1:] = self.restarts[:-1]
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
        late = []
        for t, ended, last in self.finals:
            out_of_time = self.truncated[t, ended] & ~self.terminated[t, ended]
            if out_of_time.any():
                late.append((np.full(len(ended), t), ended, last))
        if not late:
            return None
        rows, columns, observations = zip(*late)
        return np.concatenate(rows), np.concatenate(columns), join(np.concatenate, [*observations])

    def refuse_finals(self) -> None:
        """Raise a NotFinite if an observation that an episode ended on holds NaN or infinity."""
        steps = self.steps()
        for t, columns, last in self.finals:
            rows = map_obs(lambda x: np.zeros((self.n, *x.shape[1:]), x.dtype), last)
            put(rows, columns, last)
            refuse({"observation": rows}, steps[t], {"next_obs": rows})

    def roll(self) -> None:
        """Begin the next rollout where this one ended."""
        self.follow(self)

    def follow(self, before: "Rollout") -> None:
        """Begin where another rollout ended, which stays as it is."""
        self.first_step = np.where(before.restarts[-1], 0, before.steps()[-1] + 1)
        self.resetting = before.resetting.copy()
        self.modality_names = before.modality_names
        put(self.obs, 0, index_obs(before.obs, -1))
        for name, value in before.modalities.items():
            self.modalities.setdefault(name, np.empty_like(value))[0] = value[-1]
        self.finals.clear()
        self.final_modalities.clear()
        self.valid[:] = self.same_step
        self.success[:] = np.nan

    def state_dict(self) -> StateDict:
        """The first row, between two rollouts."""
        return {
            "obs": map_obs(lambda x: x[0].copy(), self.obs),
            "first_step": self.first_step,
            "resetting": self.resetting,
            "shown": modalities_state({name: value[0] for name, value in self.modalities.items()}),
        }

    def load_state_dict(self, state: StateDict) -> None:
        # There are none before the first reset.
        if state["shown"]:
            self._show(0, slice(None), state["shown"])
        put(self.obs, 0, state["obs"])
        self.first_step = np.array(state["first_step"])
        self.resetting = np.array(state["resetting"])


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
    kinds: dict[str, type] = {"text": object, MASK: bool}
    return np.asarray(value, kinds.get(name))


def modalities_state(modalities: Mapping[str, np.ndarray]) -> StateDict:
    """Modalities as plain data for a checkpoint."""
    state: StateDict = dict(modalities)
    if "text" in state:
        state["text"] = state["text"].tolist()
    return state


def final_rows(final_obs: Any, rows: np.ndarray) -> Obs:
    """Rows of what `infos["final_obs"]` holds: a dense array, a dict of them, or Gymnasium's array of objects."""
    if isinstance(final_obs, Mapping):
        return {key: final_rows(value, rows) for key, value in final_obs.items()}
    values = final_obs[rows]
    if values.dtype == object:
        return join(np.stack, list(values))
    return values


class NotFinite(FloatingPointError):
    """NaN or infinity; the sentence says whose. `kept` are arrays by name, for a dump: what is known of that step."""

    def __init__(self, sentence: str, kept: Mapping[str, Any] | None = None) -> None:
        super().__init__(sentence)
        self.kept = dict(kept or {})


class OnNan:
    """What becomes of NaN or infinite rewards: `stop` leaves them to be refused, `zero` replaces and counts them."""

    def __init__(self, what: str = "stop") -> None:
        self.what = what
        # A row that is sampled from a replay twice counts twice.
        self.zeroed = 0

    def __call__(self, reward: Any) -> Any:
        """The rewards, an array or a tensor: the same object where all are finite."""
        if self.what == "stop" or _place(reward) is None:
            return reward
        finite = abs(reward) < math.inf
        self.zeroed += int((~finite).sum())
        if isinstance(reward, np.ndarray):
            return np.nan_to_num(reward, nan=0.0, posinf=0.0, neginf=0.0)
        return reward.nan_to_num(0.0, 0.0, 0.0)


def is_finite(value: Any) -> bool:
    """Whether an array, a tensor or a dict of them holds neither NaN nor infinity; one sum checks a whole batch."""
    return all(_place(part) is None for _, part in _parts({"": value}))


def refuse(given: Mapping[str, Any], steps: Any, kept: Mapping[str, Any] | None = None) -> None:
    """Raise a `NotFinite`, which names environment, step and value, at NaN or infinity; nothing has learned from it.

    Args:
        given: what is looked at, by its name in the sentence: arrays, tensors or dicts of them, leading shape (N,) or
            (T, N); what has a row more than `steps` is the observations before and after each step.
        steps: step within the episode, (N,) or (T, N); or a function that returns it, asked only in need.
        kept: what is written down of the step, by name, in the same shapes.
    """
    faults = []
    for name, part in _parts(given):
        place = _place(part)
        if place is not None:
            faults.append((name, _on_host(part), place))
    if not faults:
        return
    if callable(steps):
        steps = steps()
    steps = np.asarray(steps)

    def row(part: np.ndarray, place: tuple[int, ...]) -> int:
        if steps.ndim == 1:
            return 0
        # Observations before and after each step have a row more.
        return place[0] - (len(part) > len(steps))

    # Name the first: an action comes before the reward and the observation that it leads to.
    name, part, place = min(faults, key=lambda fault: (row(*fault[1:]), fault[0] != "action"))
    column = place[steps.ndim - 1]
    index: tuple[int, ...] = (column,)
    if steps.ndim == 2:
        index = (max(row(part, place), 0), column)
    step = int(steps[index])
    bad = part[place]
    sentence = f"environment {column} gave the {name} {bad} at step {step} of its episode (stream task)"
    if name == "action":
        sentence = f"the policy gave environment {column} the action {bad} at step {step} of its episode: it diverged"
    arrays = {key: _on_host(value)[index] for key, value in _parts(kept or {})}
    arrays |= {"environment": np.array(column), "step": np.array(step)}
    raise NotFinite(f"{sentence}; nothing has been learnt from it", arrays)


def _parts(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The arrays of values, which may be arrays, dicts of them or None, with their names."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            for key, part in value.items():
                yield f"{name} {key!r}", part
        elif value is not None:
            yield name, value


def _place(value: Any) -> tuple[int, ...] | None:
    """The index of the first value that is not finite."""
    if isinstance(value, np.ndarray) and value.dtype.kind != "f":
        return None
    if math.isfinite(float(value.sum())):
        return None
    places = np.argwhere(~np.isfinite(_on_host(value)))
    # A sum may overflow although all its terms are finite.
    if not len(places):
        return None
    return tuple(places[0].tolist())


def _on_host(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return np.asarray(value)
