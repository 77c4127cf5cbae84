"""What every other file shares: one batch type, the axis letters, and the protocols of rewards and agents.

Axis letters, used in shape comments everywhere:
    N transitions (or environments)   T steps in time   B minibatch   K ensemble members   D features   H horizon
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

Array = Any  # numpy.ndarray, or torch.Tensor inside a model-based agent
MODALITIES = ("frame", "text", "signals")  # what an environment may add to its observations, in its info
Obs = Any  # an Array, or a dict of Arrays (a `gymnasium.spaces.Dict` observation)
Memory = Any  # a dict of arrays with leading axis N, or None
EnvReset = tuple[Any, dict[str, Any]]  # obs, info
EnvStep = tuple[Any, float, bool, bool, dict[str, Any]]  # obs, reward, terminated, truncated, info


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
