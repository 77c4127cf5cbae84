"""Observations in the form that agents take: flat float32 vectors, channel-first images, hashed words for text."""

import functools
import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from lodestar.mappings import map_values

WORD_FEATURES = 64


class Recorded(gym.Wrapper, RecordConstructorArgs):
    """A wrapper that records its arguments, so that `gymnasium.make(env.spec)` builds it again."""

    def __init__(self, env: gym.Env, **arguments: Any) -> None:
        RecordConstructorArgs.__init__(self, **arguments)
        super().__init__(env)


def refuse_result(reward: Any, terminated: Any, truncated: Any) -> None:
    """Refuse (TypeError) what `step` returned where it has the wrong type, which a conversion would hide."""
    if isinstance(reward, str | bytes):
        raise TypeError(f"the environment's reward is {reward!r}; return a number, as in float(reward)")
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        if value is None or isinstance(value, str | bytes):
            raise TypeError(f"the environment's {name} is {value!r}; return True or False")


def refuse_shape(space: spaces.Space, obs: Any) -> None:
    """Refuse (ValueError) an observation of another shape than its space's, which arrays would broadcast."""
    if isinstance(space, spaces.Dict) and isinstance(obs, Mapping):
        for key, part in space.items():
            refuse_shape(part, obs[key])
    elif isinstance(space, spaces.Box) and np.shape(obs) != space.shape:
        raise ValueError(
            f"the environment's observation has the shape {np.shape(obs)}, its space {space.shape}; return what "
            "observation_space.contains"
        )


class PlainObservation(Recorded, gym.ObservationWrapper):
    """Observations as Stable-Baselines3 takes them: uint8 images (H, W, C) become (C, H, W), other Boxes flat float32.

    A Dict is treated entry by entry, a Tuple flattened; Discrete and MultiDiscrete count from 0; MultiBinary stays.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.observation_space = plain_space(env.observation_space)

    def observation(self, observation: Any) -> Any:
        return plain_obs(self.env.observation_space, observation)


class ActionsFromZero(Recorded, gym.ActionWrapper):
    """Actions that count from 0, as Stable-Baselines3 counts them whatever the `start` of their space."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.action_space = from_zero(env.action_space)

    def action(self, action: Any) -> Any:
        return action + self.env.action_space.start  # type: ignore[attr-defined]


def plain_actions(env: gym.Env) -> gym.Env:
    """The environment in an `ActionsFromZero`, if its actions do not count from 0."""
    if from_zero(env.action_space) is env.action_space:
        return env
    return ActionsFromZero(env)


def from_zero(space: spaces.Space) -> spaces.Space:
    """A Discrete or MultiDiscrete space without its `start`; any other, and one that starts at 0, as it is."""
    if not np.any(getattr(space, "start", 0)):
        return space
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(space.n)
    assert isinstance(space, spaces.MultiDiscrete)
    kind: Any = space.dtype
    return spaces.MultiDiscrete(space.nvec, dtype=kind)


def plain_observation(env: gym.Env) -> gym.Env:
    """The environment in a `PlainObservation`, if its observations need one."""
    if plain_space(env.observation_space) == env.observation_space:
        return env
    return PlainObservation(env)


def is_channels_last(space: spaces.Space) -> bool:
    """Whether observations are images (H, W, C)."""
    return isinstance(space, spaces.Box) and len(space.shape) == 3 and space.shape[-1] in (1, 3, 4)


def plain_space(space: spaces.Space) -> spaces.Space:
    """The space of what `PlainObservation` returns for observations of `space`."""
    if isinstance(space, spaces.Box):
        low = plain_obs(space, space.low)
        high = plain_obs(space, space.high)
        return spaces.Box(low, high, dtype=low.dtype)
    if isinstance(space, spaces.Dict):
        return spaces.Dict(map_values(plain_space, space))
    if isinstance(space, spaces.Tuple):
        return plain_space(spaces.flatten_space(space))
    return from_zero(space)


def plain_obs(space: spaces.Space, value: Any) -> Any:
    """An observation of `space` as `PlainObservation` returns it."""
    if isinstance(space, spaces.Box):
        if space.dtype != np.uint8 or len(space.shape) != 3:
            return np.asarray(value, dtype=np.float32).ravel()
        if not is_channels_last(space):
            return value
        return np.ascontiguousarray(np.asarray(value).transpose(2, 0, 1))
    if isinstance(space, spaces.Dict):
        return {key: plain_obs(part, value[key]) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return np.asarray(spaces.flatten(space, value), dtype=np.float32)
    if from_zero(space) is space:
        return value
    return value - space.start  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=4096)
def hashed_words(text: bytes) -> np.ndarray:
    """The words of a text, of any order, case and number, each as two of float32 (64,) in {0, 1}, read-only."""
    bag = np.zeros(WORD_FEATURES, dtype=np.float32)
    for word in re.findall(rb"[a-z]+", text.lower()):
        # Not Python's hash(), which changes from process to process, nor crc32, whose bits depend on each other.
        digest = hashlib.blake2b(word, digest_size=8).digest()
        bag[digest[0] % WORD_FEATURES] = 1.0
        bag[digest[1] % WORD_FEATURES] = 1.0
    bag.setflags(write=False)
    return bag


def empty_modalities(
    n: int, frame_size: int | None, text: bool, signals: int, new: Callable[..., np.ndarray] = np.zeros
) -> dict[str, np.ndarray]:
    """Arrays of zeros, by `new`, for what N environments add to observations; `signals` says how many of those."""
    modalities: dict[str, np.ndarray] = {}
    if frame_size is not None:
        modalities["frame"] = new((n, frame_size, frame_size, 3), np.uint8)
    if text:
        modalities["text"] = np.full(n, "", object)
    if signals:
        modalities["signals"] = new((n, signals), np.float32)
    return modalities


def empty_batch(
    space: spaces.Space, shape: tuple[int, ...], new: Callable[..., np.ndarray] = np.zeros, nested: bool = True
) -> Any:
    """Arrays of zeros, by `new`, for values of a space, leading axes `shape`; a dict for a Dict space, if `nested`."""
    if nested and isinstance(space, spaces.Dict):
        return {key: empty_batch(part, shape, new) for key, part in space.items()}
    if not fits(space, nested=False):
        raise ValueError(f'{space} does not fit into an array; adapt the environment, or use backend="sync"')
    return new((*shape, *(space.shape or ())), space.dtype)


def fits(space: spaces.Space, nested: bool = True) -> bool:
    """Whether the values of a space are arrays of numbers, or dicts of these if `nested`."""
    if nested and isinstance(space, spaces.Dict):
        return all(map(fits, space.values()))
    if space.shape is None or space.dtype is None:
        return False
    return np.dtype(space.dtype).kind in "biuf"
