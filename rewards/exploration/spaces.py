"""The parts of an observation that a bonus reads, and the observation spaces it can read."""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium as gym
import numpy as np

from envs.types import Array, Obs

PLAIN = ""  # the name of the only part of an observation that is no dict


def parts(space: gym.Space, keys: Sequence[str], reward: str) -> dict[str, gym.Space]:
    """The numeric spaces that make up `space`, in a fixed order.

    Args:
        space: Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of these.
        keys: entries of a Dict to look at; empty looks at all.
        reward: name of the reward, for the error.

    Raises:
        ValueError: for any other space, and for a key that the space does not have.
    """
    numeric = (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)
    if isinstance(space, gym.spaces.Dict):
        unknown = [key for key in keys if key not in space.spaces]
        if unknown:
            raise ValueError(
                f"reward.{reward}.keys={list(keys)} names {unknown[0]!r}, which the observation does not have; "
                f"choose among {sorted(space.spaces)}"
            )
        found = {key: space.spaces[key] for key in sorted(keys or space.spaces)}
    elif keys:
        raise ValueError(
            f"reward.{reward}.keys={list(keys)} needs a Dict observation, this one is {space}; leave keys empty"
        )
    else:
        found = {PLAIN: space}
    for key, part in found.items():
        if not isinstance(part, numeric):
            where = f" (entry {key!r})" if key else ""
            raise ValueError(
                f"reward {reward} cannot read the observation space {part}{where}; it takes Box, Discrete, "
                "MultiDiscrete, MultiBinary, or a Dict of these"
            )
    return found


def part(obs: Obs, key: str) -> Array:
    """One part of a batch of observations."""
    return obs if key == PLAIN else obs[key]


class Layout:
    """An observation as one row of float32 numbers: the vectors first, then each image that is large enough.

    Attributes:
        vector: numbers of the vectors, one-hot for Discrete; smaller images count among them.
        images: name -> (C, H, W) of the images, in their order in the row.
        size: numbers in a row.
    """

    def __init__(
        self, space: gym.Space, keys: Sequence[str], reward: str, *, channels: int, smallest_image: int
    ) -> None:
        """Lay out `space`; the reward's name is for errors.

        `channels` keeps that many of each image's channels, counted from the last; 0 keeps all. An image counts as one
        if both of its sides have at least `smallest_image` pixels.
        """
        self.spaces = parts(space, keys, reward)
        self.channels = channels
        self.images: dict[str, tuple[int, int, int]] = {}
        self.vector = 0
        vectors: list[str] = []
        for key, box in self.spaces.items():
            shape = _image_shape(box)
            if shape and channels > shape[0]:
                raise ValueError(
                    f"reward.{reward}.channels={channels}, but the image has {shape[0]}; give at most that, or 0"
                )
            if shape and min(shape[1:]) >= smallest_image:
                self.images[key] = (channels or shape[0], shape[1], shape[2])
            else:
                vectors.append(key)
                self.vector += len(self._bounds(key)[0])
        self.order = [*vectors, *self.images]
        self.size = self.vector + sum(int(np.prod(shape)) for shape in self.images.values())

    def flatten(self, obs: Obs) -> np.ndarray:
        """Observations (N, ...) -> float32 (N, size)."""
        rows = [self._rows(part(obs, key), self.spaces[key]) for key in self.order]
        return rows[0] if len(rows) == 1 else np.concatenate(rows, axis=1)

    def prior(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance (size,) of a uniform draw from the space; 0 and 1 where it has no bounds worth the name."""
        bounds = [self._bounds(key) for key in self.order]
        low, high = (np.concatenate(side).astype(np.float64) for side in zip(*bounds))
        bounded = (np.abs(low) < 1e6) & (np.abs(high) < 1e6)
        low, high = np.where(bounded, low, -np.sqrt(3)), np.where(bounded, high, np.sqrt(3))
        return (low + high) / 2, (high - low) ** 2 / 12

    def _bounds(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        box = self.spaces[key]
        match box:
            case gym.spaces.Discrete():
                return np.zeros(int(box.n)), np.ones(int(box.n))
            case gym.spaces.MultiDiscrete():
                low, high = box.start, box.start + box.nvec - 1
            case gym.spaces.MultiBinary():
                low, high = np.zeros(box.shape), np.ones(box.shape)
            case gym.spaces.Box():
                low, high = box.low, box.high
        return self._rows(low[None], box)[0], self._rows(high[None], box)[0]

    def _rows(self, values: Array, box: gym.Space) -> np.ndarray:
        values = np.asarray(values)
        if isinstance(box, gym.spaces.Discrete):
            return np.eye(int(box.n), dtype=np.float32)[values.reshape(len(values)).astype(np.int64) - int(box.start)]
        if self.channels and _image_shape(box):
            values = values[:, -self.channels :]
        return values.reshape(len(values), int(np.prod(values.shape[1:]))).astype(np.float32)


def _image_shape(space: gym.Space) -> tuple[int, int, int] | None:
    """(C, H, W) of a channel-first image of bytes, None for anything else."""
    if not isinstance(space, gym.spaces.Box) or space.dtype != np.uint8 or len(space.shape) != 3:
        return None
    channels, height, width = space.shape
    return channels, height, width
