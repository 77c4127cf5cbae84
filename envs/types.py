"""What every other file shares: one batch type, the axis letters, the protocols of rewards, and the refusal of NaN.

Axis letters, used in shape comments everywhere:
    N transitions (or environments)   T steps in time   B minibatch   K ensemble members   D features   H horizon
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, SupportsFloat, runtime_checkable

import numpy as np

Array = Any  # numpy.ndarray, or torch.Tensor inside a model-based agent
MODALITIES = ("frame", "text", "signals")  # what an environment may add to its observations, in its info
Obs = Any  # an Array, or a dict of Arrays (a `gymnasium.spaces.Dict` observation)
Memory = Any  # a dict of arrays with leading axis N, or None
EnvReset = tuple[Any, dict[str, Any]]  # obs, info
EnvStep = tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]  # obs, reward, terminated, truncated, info


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
    """A batch of transitions with leading shape (N,), or (T, N) when it is a rollout in time order.

    `next_obs` is always the true successor, also at the end of an episode; the builders in `envs.transitions` see to
    it.
    """

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
    extras: dict[str, Array] = field(default_factory=dict)  # name -> (..., D): embeddings, goals, log-probabilities

    @property
    def shape(self) -> tuple[int, ...]:
        """The leading shape: (N,) or (T, N)."""
        return tuple(self.terminated.shape)

    @property
    def ended(self) -> Array:
        """Bool (...,): the last transition of an episode, or a row in which an episode was lost (not valid)."""
        return (self.terminated & self.valid) | self.truncated

    def map(self, function: Callable[[Array], Array]) -> Transitions:
        """Apply `function` to every array of the batch; absent fields stay absent."""
        return Transitions(*(map_obs(function, getattr(self, name)) for name in _NAMES))

    def __getitem__(self, index: Any) -> Transitions:
        """Index the leading axes of every field: `batch[t]`, `batch[mask]`, `batch[rows]`."""
        return self.map(lambda x: x[index])

    def flatten(self) -> Transitions:
        """(T, N) -> (T * N,), as views; a batch that is flat already is returned as it is."""
        if len(self.shape) == 1:
            return self
        count = self.shape[0] * self.shape[1]
        return self.map(lambda x: x.reshape(count, *x.shape[2:]))

    def replace(self, **changes: Any) -> Transitions:
        """A copy with some fields exchanged; arrays are shared, not copied."""
        return replace(self, **changes)

    def at_obs(self) -> Transitions:
        """The batch with `obs` in place of `next_obs`: what a potential needs for phi(s).

        An extra named `obs_X` stands in for `X`.
        """
        extras = dict(self.extras)
        extras.update({key[4:]: value for key, value in self.extras.items() if key.startswith("obs_")})
        for key in self.extras:
            if not key.startswith("obs_") and f"obs_{key}" not in self.extras:
                del extras[key]  # it describes next_obs, which is gone
        return self.replace(
            next_obs=self.obs, frame=self.obs_frame, text=self.obs_text, signals=self.obs_signals, extras=extras
        )


_NAMES = tuple(f.name for f in fields(Transitions))


def stack(batches: list[Transitions]) -> Transitions:
    """T batches of shape (N,) -> one rollout of shape (T, N), copied."""
    return _join(batches, np.stack)


def concatenate(batches: list[Transitions]) -> Transitions:
    """Flat batches -> one flat batch, copied."""
    return _join(batches, np.concatenate)


def _join(batches: list[Transitions], function: Callable[[list[Array]], Array]) -> Transitions:
    def join(values: list[Any]) -> Any:
        if values[0] is None:
            return None
        if isinstance(values[0], Mapping):
            return {key: join([v[key] for v in values]) for key in values[0]}
        return function(values)

    return Transitions(**{f.name: join([getattr(b, f.name) for b in batches]) for f in fields(Transitions)})


@runtime_checkable
class Scorer(Protocol):
    """What an agent sees of a reward; `rewards.mix.mix.Mix` is one.

    Attributes:
        requires: which fields of `Transitions` it reads.
        relabelable: whether it may score stored or imagined transitions.
        differentiable: whether gradients flow through its scores.
    """

    requires: frozenset[str]
    relabelable: bool
    differentiable: bool

    def initial_memory(self, n: int) -> Memory:
        """Memory for `n` environments at the start of their episodes."""

    def total(self, batch: Transitions, memory: Memory, timesteps: int) -> tuple[Array, Memory]:
        """Float32 rewards with the batch's leading shape, and the memory that belongs to the next step."""


@runtime_checkable
class StreamScorer(Scorer, Protocol):
    """A scorer with separate streams: for an agent with a value, a discount and an end for each of them."""

    # name -> something with `gamma`, and `episodic`: whether its return ends with the episode
    streams: Mapping[str, Any]

    def embed(self, batch: Transitions) -> Transitions:
        """The batch with frames replaced by their embeddings."""

    def score(self, batch: Transitions, memory: Memory) -> tuple[dict[str, Array], Memory]:
        """Raw scores by stream, leading shape of the batch."""

    def scaled(self, raw: dict[str, Array]) -> dict[str, Array]:
        """The rewards that each stream's value predicts."""

    def weights(self, timesteps: Any) -> dict[str, Any]:
        """How much each stream's advantage counts after `timesteps` environment steps."""

    def update(self, batch: Transitions, raw: dict[str, Array], timesteps: Any) -> dict[str, float]:
        """Learn from fresh transitions, each handed in once; returns metrics by tag."""


@runtime_checkable
class ReplayScorer(StreamScorer, Protocol):
    """A scorer of stored and imagined transitions: for an agent with a replay."""

    is_task: bool  # whether it is the task's own reward as it is, and nothing else
    keeps: bool  # whether `keep` returns any columns

    def keep(self, batch: Transitions, memory: Memory) -> tuple[dict[str, Array], Memory]:
        """Columns that a replay stores beside transitions (T, N) in time order, so that `relabel` can score them later."""

    def relabel(self, batch: Transitions) -> dict[str, Array]:
        """Raw scores by stream, by the rewards as they are now, of stored transitions with their columns, in any order."""

    def combine(self, raw: dict[str, Array], timesteps: Any) -> Array:
        """The reward an agent receives, float32: scores weighted, scaled and added up."""


class NotFinite(FloatingPointError):
    """NaN or infinity; the sentence says whose.

    Attributes:
        kept: arrays by name, for a dump: the observations, the action and the reward of that step.
    """

    def __init__(self, sentence: str, kept: Mapping[str, Any] | None = None) -> None:
        super().__init__(sentence)
        self.kept = dict(kept or {})


class OnNan:
    """What becomes of a reward that is NaN or infinite: `stop` leaves it to be refused, `zero` replaces it and counts.

        reward = on_nan(reward)

    Attributes:
        zeroed: how many have been replaced so far; one that is sampled from a replay twice counts twice.
    """

    def __init__(self, what: str = "stop") -> None:
        self.what, self.zeroed = what, 0

    def __call__(self, reward: Any) -> Any:
        """The rewards, an array or a tensor: the same object where all are finite."""
        if self.what == "stop" or _place(reward) is None:
            return reward
        if isinstance(reward, np.ndarray):
            finite: Any = np.isfinite(reward)
            self.zeroed += int((~finite).sum())
            return np.where(finite, reward, reward.dtype.type(0))
        finite = reward.isfinite()
        self.zeroed += int((~finite).sum())
        return reward.where(finite, reward.new_zeros(()))


def is_finite(value: Any) -> bool:
    """Whether an array, a tensor or a dict of them holds neither NaN nor infinity.

    A sum is finite unless one of its terms is not, or it overflows: one sum checks a whole batch, so checking costs
    next to nothing; only where it does not, every number is looked at.
    """
    return all(_place(part) is None for _, part in _parts("", value))


def refuse(given: Mapping[str, Any], steps: Any, kept: Mapping[str, Any] | None = None) -> None:
    """Raise at NaN or infinity; nothing has been learned from it yet.

    Args:
        given: what is looked at, by its name in the sentence: arrays, tensors or dicts of them, leading shape (N,) or
            (T, N); what has a row more than `steps` along time is the observations before and after each step.
        steps: step within the episode, (N,) or (T, N); or a function that returns it, asked only in need.
        kept: what is written down of the step, by name, in the same shapes.

    Raises:
        NotFinite: naming the environment, the step of its episode and the value.
    """
    found = []
    for name, value in given.items():
        for key, part in _parts(name, value):
            place = _place(part)
            if place is not None:
                found.append((key, _array(part), place))
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
    arrays = {key: _array(value)[at] for words, held in kept.items() for key, value in _parts(words, held)}
    arrays |= {"environment": np.array(column), "step": np.array(step)}
    raise NotFinite(f"{sentence}; nothing has been learnt from it", arrays)


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Arrays, those of a dict each under a name with its key."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield f"{name} {key!r}", part
    elif value is not None:
        yield name, value


def _place(value: Any) -> tuple[int, ...] | None:
    """The index of the first value that is not finite."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind != "f" or math.isfinite(value.sum()):
            return None
    elif math.isfinite(float(value.sum())):
        return None
    found = np.argwhere(~np.isfinite(_array(value)))
    return tuple(int(i) for i in found[0]) if len(found) else None


def _array(value: Any) -> np.ndarray:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
