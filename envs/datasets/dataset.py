"""Episodes that others recorded, as they stored them, and the transitions that they are for environments of ours.

Nothing of Stable-Baselines3 is imported for its replay buffers.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envs.observations import from_zero, plain_obs, plain_space
from envs.recording import by_environment, load
from envs.render import name_of
from envs.transitions import Transitions, concatenate, join, map_obs
from envs.types import Array, Obs, Options

# Transitions that something can be learned from.
MIN_RECORDED_TRANSITIONS = 10


class StoredEpisode(NamedTuple):
    """T steps of an episode, or of a part of it."""

    # (T + 1, ...): an array, a list, or a dict or tuple of them, as the environment gave it.
    obs: Any
    # (T, ...)
    action: Array
    # The next three are (T,).
    reward: Array
    terminated: Array
    truncated: Array
    # uint8 (T + 1, H, W, 3)
    frame: Array | None = None


@dataclass
class Dataset:
    """Episodes, and what is known about them."""

    # Reads the episodes, each time that it is called.
    episodes: Callable[[], Iterable[StoredEpisode]]
    # The spaces of what is stored.
    observation_space: spaces.Space
    action_space: spaces.Space
    # The id of the environment; "" where that is not said.
    env: str = ""
    # What the environment was made with otherwise than it is registered.
    env_options: Options = field(default_factory=dict)
    # More for a recording's metadata.
    about: dict[str, Any] = field(default_factory=dict)
    # Sentences about what was made of the episodes.
    notes: list[str] = field(default_factory=list)

    def transitions(self, env: gym.Env | None = None, most: int | None = None) -> Transitions:
        """A flat batch (N,) of the first `most` transitions, or of all, whose episodes are in time order.

        Observations and actions are as `env` gives and takes them, one of `envs.make.make`; without one, as
        `envs.observations` makes them of what is stored.
        """
        if isinstance(self.action_space, spaces.Dict | spaces.Tuple | spaces.Text):
            raise ValueError(f"actions from {self.action_space} are several things; a recording holds one array")
        batches: list[Transitions] = []
        count = 0
        transform = observation_converter(env, self.observation_space)
        for episode in self.episodes():
            if most is not None and count >= most:
                break
            batch = _transitions(episode, transform, self.action_space)
            batches.append(batch)
            count += batch.shape[0]
        if not batches:
            raise ValueError("the data set has no episode; give one that has")
        batch = concatenate(batches)[:most]
        if env is None:
            return batch
        return in_env_types(batch, env)


def observation_converter(env: gym.Env | None, space: spaces.Space) -> Callable[[Any], Any]:
    """What makes of one stored observation of `space` one of `env`: the wrappers of it from where those are like it."""
    layers: list[Callable[[Any], Any]] = []

    def convert(obs: Any) -> Any:
        # Gathered from the outermost wrapper inwards, applied from the innermost outwards.
        for layer in reversed(layers):
            obs = layer(obs)
        return obs

    while env is not None:
        if _is_alike(env.observation_space, space):
            return convert
        if isinstance(env, gym.ObservationWrapper):
            layers.append(env.observation)
        if not isinstance(env, gym.Wrapper):
            break
        env = env.env
    return functools.partial(plain_obs, space)


def in_env_types(batch: Transitions, env: gym.Env) -> Transitions:
    """The batch, its observations and actions in the types of numbers of `env`; a ValueError if they are others."""
    return in_spaces(batch, env.observation_space, env.action_space, name_of(env))


def in_spaces(rows: Transitions, observation_space: spaces.Space, action_space: spaces.Space, name: str) -> Transitions:
    """As `in_env_types`, for the spaces of what has that name."""

    def cast(kind: str, values: Any, space: spaces.Space) -> Any:
        converted = _cast(values, space)
        if converted is None:
            raise ValueError(
                f"the {kind} recorded, {_describe(values)}, are not those of {name}, {space}; give the environment "
                "that they are from, as in env=Pendulum-v1"
            )
        return converted

    obs = cast("observations", rows.obs, observation_space)
    action = cast("actions", rows.action, action_space)
    next_obs = cast("observations", rows.next_obs, observation_space)
    return rows.replace(obs=obs, action=action, next_obs=next_obs)


def learnable(
    batch: Transitions,
    observation_space: spaces.Space,
    action_space: spaces.Space,
    name: str,
    key: str,
) -> Transitions:
    """The valid rows of the recording that `key` names, `in_spaces`; a ValueError if nothing can be learned from it."""
    batch = batch[batch.valid]
    try:
        batch = in_spaces(batch, observation_space, action_space, name)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
    rows = batch.shape[0]
    arrays = _leaves((batch.obs, batch.next_obs, batch.action))
    if not rows or (rows > 1 and all((array == array[:1]).all() for array in arrays)):
        raise ValueError(f"{key} holds {rows} transitions, all of them alike; give a recording to learn from")
    arrays.append(batch.reward)
    n_wrong = sum(np.count_nonzero(~np.isfinite(array)) for array in arrays)
    if n_wrong:
        raise ValueError(f"{key}: {n_wrong} numbers are NaN or infinite; leave those transitions out")
    if isinstance(action_space, spaces.Box):
        # Stored numbers may have been rounded.
        slack = 1e-3 * (action_space.high - action_space.low)
        too_low = batch.action < action_space.low - slack
        too_high = batch.action > action_space.high + slack
        outside = (too_low | too_high).reshape(rows, -1).any(1)
        n_outside = int(outside.sum())
        if n_outside:
            between = f"{batch.action.min():g} to {batch.action.max():g}"
            raise ValueError(f"{key}: {n_outside} of {rows} actions, {between}, are outside {action_space}; scale them")
    return batch


def _is_alike(one: Any, other: Any) -> bool:
    """Whether observations of the space `other` can stand in for those of `one`."""
    if isinstance(one, spaces.Dict) and isinstance(other, spaces.Dict):
        return set(one) == set(other) and all(_is_alike(one[key], other[key]) for key in one)
    # Texts, whose spaces are of many kinds, and tuples have no shape.
    if one.shape is None or other.shape is None:
        return one.shape is other.shape
    if type(one) is not type(other) or one.shape != other.shape:
        return False
    return np.can_cast(other.dtype, one.dtype, "same_kind")


def _cast(values: Any, space: Any) -> Any:
    """Values (N, ...) as a space has them; None if they are none of it."""
    if isinstance(space, spaces.Dict) and isinstance(values, dict):
        if set(space) != set(values):
            return None
        parts = {}
        for key in space:
            parts[key] = _cast(values[key], space[key])
            if parts[key] is None:
                return None
        return parts
    if isinstance(space, spaces.Dict) or isinstance(values, dict):
        return None
    if space.shape is None or values.shape[1:] != space.shape:
        return None
    if not np.can_cast(values.dtype, space.dtype, "same_kind"):
        return None
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        counts: Any = space.n if isinstance(space, spaces.Discrete) else space.nvec
        if (values < space.start).any() or (values >= space.start + counts).any():
            return None
    return values.astype(space.dtype, copy=False)


def _describe(values: Any) -> str:
    if isinstance(values, dict):
        parts = [f"{key!r}: {_describe(value)}" for key, value in values.items()]
        return "{" + ", ".join(parts) + "}"
    words = f"of shape {values.shape[1:]} and type {values.dtype}"
    if values.dtype.kind == "f":
        return words
    return f"{words} between {values.min()} and {values.max()}"


def _transitions(episode: StoredEpisode, transform: Callable[[Any], Any], action_space: spaces.Space) -> Transitions:
    steps = len(episode.reward)
    action = np.asarray(episode.action)
    lengths = set(map(len, _leaves(episode.obs)))
    if lengths != {steps + 1} or len(action) != steps or not steps:
        raise ValueError(
            f"an episode has {steps} rewards, {len(action)} actions and {sorted(lengths)} observations; an observation "
            "more than actions is needed, and a reward for each"
        )
    rows = [transform(_row(episode.obs, t)) for t in range(steps + 1)]
    obs = join(_stack_numeric, rows)
    if from_zero(action_space) is not action_space:
        action = action - action_space.start  # type: ignore[attr-defined]
    elif isinstance(action_space, spaces.Box):
        action = action.astype(action_space.dtype, copy=False)
    terminated = np.asarray(episode.terminated, bool)
    truncated = np.asarray(episode.truncated, bool)
    frames = {}
    if episode.frame is not None:
        frames = {"frame": episode.frame[1:], "obs_frame": episode.frame[:-1]}
    return Transitions(
        obs=map_obs(lambda x: x[:-1], obs),
        action=action,
        reward=np.asarray(episode.reward, np.float32),
        next_obs=map_obs(lambda x: x[1:], obs),
        terminated=terminated,
        truncated=truncated,
        valid=np.ones(steps, bool),
        step=steps_since(terminated | truncated),
        **frames,
    )


def steps_since(ended: np.ndarray, first: int = 0) -> np.ndarray:
    """Int64 (T,): steps within the episode; the first row is that many steps into its own."""
    rows = np.arange(len(ended))
    begins = np.r_[False, ended[:-1]]
    # The row at which each row's episode began.
    start = np.maximum.accumulate(np.where(begins, rows, -first))
    return rows - start


def _row(obs: Any, t: int) -> Any:
    if isinstance(obs, dict):
        return {key: _row(part, t) for key, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_row(part, t) for part in obs)
    return obs[t]


def _leaves(obs: Any) -> list[Any]:
    if isinstance(obs, dict):
        obs = tuple(obs.values())
    if not isinstance(obs, tuple):
        return [obs]
    return [leaf for part in obs for leaf in _leaves(part)]


def _stack_numeric(rows: list[Any]) -> np.ndarray:
    stacked = np.stack(rows)
    if stacked.dtype.kind not in "biuf":
        raise ValueError(f"observations such as {rows[0]!r} are not numeric; filter them out of the data set first")
    return stacked


def from_sb3(buffer: Any, *, scaled: bool = True) -> Transitions:
    """What a `ReplayBuffer` or a `DictReplayBuffer` holds, as a flat batch (N,), one environment after the other.

    Where a full buffer has lost the first steps of an episode, the rest of that begins at step 1. Without
    `handle_timeout_termination` every end counts as terminated. `scaled`: whether actions in a Box stand in [-1, 1].
    """
    if getattr(buffer, "optimize_memory_usage", False):
        raise ValueError(
            "a replay buffer with optimize_memory_usage=True has overwritten the last observations of its episodes; "
            "collect with optimize_memory_usage=False"
        )
    if not buffer.size():
        raise ValueError("the replay buffer is empty; collect transitions first")
    # A full buffer goes on writing at its beginning, so `pos` is its oldest entry.
    oldest = buffer.pos if buffer.full else 0
    order = (np.arange(buffer.size()) + oldest) % buffer.buffer_size
    shape = (len(order), buffer.n_envs)
    space = buffer.action_space
    action = buffer.actions[order].reshape(*shape, *space.shape)
    if scaled and isinstance(space, spaces.Box):
        action = space.low + 0.5 * (action + 1.0) * (space.high - space.low)
    # Only buffers with `handle_timeout_termination` have `timeouts`.
    timeouts = getattr(buffer, "timeouts", np.zeros_like(buffer.dones))[order] > 0
    ended = buffer.dones[order] > 0
    first = int(buffer.full)
    steps = [steps_since(column, first) for column in ended.T]
    # Our relabelling buffer computes its rewards when they are read, and keeps the task's apart.
    rewards = getattr(buffer, "task_rewards", buffer.rewards)
    rollout = Transitions(
        obs=_unfold_obs(buffer.observation_space, buffer.observations, order),
        action=action.astype(space.dtype, copy=False),
        reward=np.asarray(rewards[order], np.float32),
        next_obs=_unfold_obs(buffer.observation_space, buffer.next_observations, order),
        terminated=ended & ~timeouts,
        truncated=timeouts,
        valid=np.ones(shape, bool),
        step=np.stack(steps, 1),
    )
    return by_environment(rollout)


def _unfold_obs(space: spaces.Space, values: Any, order: np.ndarray) -> Obs:
    """Observations (T, N, ...) in the order of time, as `PlainObservation` returns them."""
    if isinstance(space, spaces.Dict):
        return {key: _unfold_obs(part, values[key], order) for key, part in space.items()}
    rows = values[order]
    rows = rows.reshape(*rows.shape[:2], *(space.shape or ()))
    if plain_space(space) == space:
        return rows
    flat = []
    for row in rows:
        for obs in row:
            flat.append(plain_obs(space, obs))
    stacked = join(np.stack, flat)
    return map_obs(lambda x: x.reshape(*rows.shape[:2], *x.shape[1:]), stacked)


def recorded_transitions(path: str, key: str, observation_space: gym.Space, action_space: gym.Space) -> Transitions:
    """The valid transitions (N,), at least 10, of the recording that the option `key` names; a ValueError if not."""
    if not path:
        raise ValueError(
            f"{key} is empty; name a recording (python -m runners.record writes one), as in {key}=demos.safetensors"
        )
    try:
        batch, _ = load(path)
    except FileNotFoundError as error:
        raise ValueError(f"{key}={error}; python -m runners.record writes one") from None
    count = np.count_nonzero(batch.valid)
    if count < MIN_RECORDED_TRANSITIONS:
        raise ValueError(f"{key}={path} holds {count} transitions; record at least {MIN_RECORDED_TRANSITIONS}")
    return learnable(batch, observation_space, action_space, "this run", f"{key}={path}")
