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

from envs.observations import from_zero, plain, plain_space
from envs.recording import by_environment, load
from envs.render import name_of
from envs.transitions import Transitions, concatenate, join, map_obs
from envs.types import Array, Obs

LEAST = 10  # transitions that something can be learned from


class StoredEpisode(NamedTuple):
    """T steps of an episode, or of a part of it."""

    obs: Any  # (T + 1, ...): an array, a list, or a dict or tuple of them, as the environment gave it
    action: Array  # (T, ...)
    reward: Array  # (T,)
    terminated: Array  # (T,)
    truncated: Array  # (T,)
    frame: Array | None = None  # uint8 (T + 1, H, W, 3)


@dataclass
class Dataset:
    """Episodes, and what is said of them."""

    episodes: Callable[[], Iterable[StoredEpisode]]  # reads them, each time that it is called
    observation_space: spaces.Space  # of what is stored
    action_space: spaces.Space
    env: str = ""  # the id of the environment; "" where that is not said
    env_options: dict[str, Any] = field(default_factory=dict)  # otherwise than it is registered with
    about: dict[str, Any] = field(default_factory=dict)  # more for a recording's metadata
    notes: list[str] = field(default_factory=list)  # sentences about what was made of it

    def transitions(self, env: gym.Env | None = None, most: int | None = None) -> Transitions:
        """A flat batch (N,) of the first `most` transitions, or of all, whose episodes are in time order.

        Observations and actions are as `env` gives and takes them, one of `envs.make.make`; without one, as
        `envs.observations` makes them of what is stored.
        """
        if isinstance(self.action_space, spaces.Dict | spaces.Tuple | spaces.Text):
            raise ValueError(f"actions from {self.action_space} are several things; a recording holds one array")
        batches: list[Transitions] = []
        see = observing(env, self.observation_space)
        for episode in self.episodes():
            if most is not None and sum(batch.shape[0] for batch in batches) >= most:
                break
            batches.append(_transitions(episode, see, self.action_space))
        if not batches:
            raise ValueError("the data set has no episode; give one that has")
        batch = concatenate(batches)[:most]
        return batch if env is None else fitted(batch, env)


def observing(env: gym.Env | None, space: spaces.Space) -> Callable[[Any], Any]:
    """What makes of one stored observation of `space` one of `env`: the wrappers of it from where those are like it."""
    layers: list[Callable[[Any], Any]] = []
    while env is not None:
        if _alike(env.observation_space, space):
            return lambda obs: functools.reduce(lambda value, layer: layer(value), reversed(layers), obs)
        if isinstance(env, gym.ObservationWrapper):
            layers.append(env.observation)
        env = env.env if isinstance(env, gym.Wrapper) else None
    return functools.partial(plain, space)


def fitted(batch: Transitions, env: gym.Env) -> Transitions:
    """The batch, its observations and actions in the types of numbers of `env`; a ValueError if they are others."""
    return in_spaces(batch, env.observation_space, env.action_space, name_of(env))


def in_spaces(rows: Transitions, observation_space: spaces.Space, action_space: spaces.Space, name: str) -> Transitions:
    """As `fitted`, for the spaces of what has that name."""
    both = {"obs": ("observations", observation_space), "action": ("actions", action_space)}
    made = {}
    for part in ("obs", "action", "next_obs"):
        what, space = both.get(part, both["obs"])
        values = getattr(rows, part)
        if (cast := _cast(values, space)) is None:
            raise ValueError(
                f"the {what} recorded, {_shown(values)}, are not those of {name}, {space}; give the environment "
                "that they are from, as in env=Pendulum-v1"
            )
        made[part] = cast
    return rows.replace(**made)


def learnable(
    batch: Transitions, observation_space: spaces.Space, action_space: spaces.Space, name: str, key: str
) -> Transitions:
    """The valid rows of the recording that `key` names, `in_spaces`; a ValueError if nothing can be learned from it."""
    batch = batch[np.asarray(batch.valid, bool)]
    try:
        batch = in_spaces(batch, observation_space, action_space, name)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
    rows, seen = batch.shape[0], [*_leaves(batch.obs), *_leaves(batch.next_obs), batch.action]
    if not rows or (rows > 1 and all((part == part[:1]).all() for part in seen)):
        raise ValueError(f"{key} holds {rows} transitions, all of them alike; give a recording to learn from")
    if wrong := sum(int(np.sum(~np.isfinite(part))) for part in (*seen, batch.reward)):
        raise ValueError(f"{key}: {wrong} numbers are NaN or infinite; leave those transitions out")
    if isinstance(action_space, spaces.Box):
        slack = 1e-3 * (action_space.high - action_space.low)  # of numbers that were rounded
        outside = (batch.action < action_space.low - slack) | (batch.action > action_space.high + slack)
        if count := int(outside.reshape(rows, -1).any(1).sum()):
            between = f"{batch.action.min():g} to {batch.action.max():g}"
            raise ValueError(f"{key}: {count} of {rows} actions, {between}, are outside {action_space}; scale them")
    return batch


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, spaces.Dict) and isinstance(other, spaces.Dict):
        return set(one) == set(other) and all(_alike(one[key], other[key]) for key in one)
    if one.shape is None or other.shape is None:  # texts, whose spaces are of many kinds, and tuples
        return one.shape is other.shape
    return type(one) is type(other) and one.shape == other.shape and np.can_cast(other.dtype, one.dtype, "same_kind")


def _cast(values: Any, space: Any) -> Any:
    """Values (N, ...) as a space has them; None if they are none of it."""
    if isinstance(space, spaces.Dict) or isinstance(values, dict):
        if not (isinstance(space, spaces.Dict) and isinstance(values, dict) and set(space) == set(values)):
            return None
        made = {key: _cast(values[key], space[key]) for key in space}
        return None if any(value is None for value in made.values()) else made
    shaped = space.shape is not None and values.shape[1:] == space.shape
    if not (shaped and np.can_cast(values.dtype, space.dtype, "same_kind")):
        return None
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        high = space.start + (space.n if isinstance(space, spaces.Discrete) else space.nvec)
        if (values < space.start).any() or (values >= high).any():
            return None
    return values.astype(space.dtype, copy=False)


def _shown(values: Any) -> str:
    if isinstance(values, dict):
        return "{" + ", ".join(f"{key!r}: {_shown(value)}" for key, value in values.items()) + "}"
    words = f"of shape {values.shape[1:]} and type {values.dtype}"
    return words if values.dtype.kind == "f" else f"{words} between {values.min()} and {values.max()}"


def _transitions(episode: StoredEpisode, see: Callable[[Any], Any], action_space: spaces.Space) -> Transitions:
    steps = len(episode.reward)
    action = np.asarray(episode.action)
    lengths = {len(part) for part in _leaves(episode.obs)}
    if lengths != {steps + 1} or len(action) != steps or not steps:
        raise ValueError(
            f"an episode has {steps} rewards, {len(action)} actions and {sorted(lengths)} observations; an observation "
            "more than actions is needed, and a reward for each"
        )
    obs = join(_numeric, [see(_row(episode.obs, t)) for t in range(steps + 1)])
    if from_zero(action_space) is not action_space:
        action = action - action_space.start  # type: ignore[attr-defined]
    elif isinstance(action_space, spaces.Box):
        action = action.astype(action_space.dtype, copy=False)
    terminated, truncated = (np.asarray(part, bool) for part in (episode.terminated, episode.truncated))
    frame = episode.frame
    return Transitions(
        obs=map_obs(lambda x: x[:-1], obs),
        action=action,
        reward=np.asarray(episode.reward, np.float32),
        next_obs=map_obs(lambda x: x[1:], obs),
        terminated=terminated,
        truncated=truncated,
        valid=np.ones(steps, bool),
        step=steps_since(terminated | truncated),
        frame=None if frame is None else frame[1:],
        obs_frame=None if frame is None else frame[:-1],
    )


def steps_since(ended: np.ndarray, first: int = 0) -> np.ndarray:
    """Int64 (T,): steps within the episode; the first row is that many steps into its own."""
    rows = np.arange(len(ended))
    last = np.maximum.accumulate(np.where(np.r_[False, ended[:-1]], rows, -first))
    return rows - last


def _row(obs: Any, t: int) -> Any:
    if isinstance(obs, dict):
        return {key: _row(part, t) for key, part in obs.items()}
    return tuple(_row(part, t) for part in obs) if isinstance(obs, tuple) else obs[t]


def _leaves(obs: Any) -> list[Any]:
    parts = obs.values() if isinstance(obs, dict) else obs if isinstance(obs, tuple) else None
    return [obs] if parts is None else [leaf for part in parts for leaf in _leaves(part)]


def _numeric(rows: list[Any]) -> np.ndarray:
    if (stacked := np.stack(rows)).dtype.kind not in "biuf":
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
    order = (np.arange(buffer.size()) + (buffer.pos if buffer.full else 0)) % buffer.buffer_size
    count, space = (len(order), buffer.n_envs), buffer.action_space
    action = buffer.actions[order].reshape(*count, *space.shape)
    if isinstance(space, spaces.Box):
        action = space.low + 0.5 * (action + 1.0) * (space.high - space.low) if scaled else action
    action = action.astype(space.dtype, copy=False)
    timeouts = getattr(buffer, "timeouts", np.zeros_like(buffer.dones))[order] > 0
    ended = buffer.dones[order] > 0
    first = int(buffer.full)
    rewards = buffer.task_rewards if hasattr(buffer, "task_rewards") else buffer.rewards  # ours scores when read
    seen = [_seen(buffer.observation_space, x, order) for x in (buffer.observations, buffer.next_observations)]
    return by_environment(
        Transitions(
            obs=seen[0],
            action=action,
            reward=np.asarray(rewards[order], np.float32),
            next_obs=seen[1],
            terminated=ended & ~timeouts,
            truncated=timeouts,
            valid=np.ones(count, bool),
            step=np.stack([steps_since(column, first) for column in ended.T], 1),
        )
    )


def _seen(space: spaces.Space, values: Any, order: np.ndarray) -> Obs:
    """Observations (T, N, ...) in the order of time, as `PlainObservation` returns them."""
    if isinstance(space, spaces.Dict):
        return {key: _seen(part, values[key], order) for key, part in space.spaces.items()}
    shaped = values[order].reshape(*values[order].shape[:2], *(space.shape or ()))
    if plain_space(space) == space:
        return shaped
    rows = [[plain(space, x) for x in row] for row in shaped]
    return map_obs(np.asarray, join(np.stack, [join(np.stack, row) for row in rows]))


def recorded(path: str, key: str, observation_space: gym.Space, action_space: gym.Space) -> Transitions:
    """The valid transitions (N,), at least 10, of the recording that the option `key` names; a ValueError if not."""
    if not path:
        raise ValueError(
            f"{key} is empty; name a recording (python -m runners.record writes one), as in {key}=demos.safetensors"
        )
    try:
        batch = load(path)[0]
    except FileNotFoundError as error:
        raise ValueError(f"{key}={error}; python -m runners.record writes one") from None
    batch = batch[batch.valid]
    if len(batch.step) < LEAST:
        raise ValueError(f"{key}={path} holds {len(batch.step)} transitions; record at least {LEAST}")
    return learnable(batch, observation_space, action_space, "this run", f"{key}={path}")
