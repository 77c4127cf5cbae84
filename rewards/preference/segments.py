"""Segments of behaviour, cut from transitions as they come, and the bounded pool that queries are drawn from.

A segment is L consecutive valid steps of one episode. What is left of an episode that is shorter than L is dropped.
Queries are drawn from the pool, so that a judge sees recent behaviour and memory stays bounded.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from envs.types import Transitions, concatenate, map_obs

PARTS = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "valid", "step")


def cut(batch: Transitions, usable: np.ndarray, length: int) -> tuple[Transitions, np.ndarray]:
    """Cut a rollout into segments, side by side and one after the other.

    Args:
        batch: (T, N) in time order.
        usable: bool (T, N); rows that may be part of a segment.
        length: L, steps of a segment.

    Returns:
        Segments (L, M), in the order of their last steps; and bool (T, N), the rows of segments that the next rollout
        may complete.
    """
    t = np.arange(len(usable))[:, None]
    follows = np.zeros_like(usable)
    follows[1:] = usable[1:] & usable[:-1] & ~batch.ended[:-1] & (batch.step[1:] == batch.step[:-1] + 1)
    place = (t - np.maximum.accumulate(np.where(usable & ~follows, t, 0), axis=0)) % length  # within its segment
    last, env = np.nonzero(usable & (place == length - 1))
    rows = last - np.arange(length - 1, -1, -1)[:, None]
    continues = usable[-1] & ~batch.ended[-1] & (place[-1] < length - 1)
    left = t >= len(usable) - np.where(continues, place[-1] + 1, 0)
    return batch[rows, env[None]], left


class Segments:
    """The newest `capacity` segments of `length` steps, and the rows that may become one.

    Args:
        length: L, steps of a segment.
        capacity: segments kept.
        modality_names: fields beside observations, actions and rewards to keep: frames, texts, signals.
        extras: names of the extras to keep.
    """

    def __init__(
        self, length: int, capacity: int, modality_names: frozenset[str] = frozenset(), extras: tuple[str, ...] = ()
    ):
        self.length, self.modality_names, self.extras = length, modality_names, extras
        self.pool: deque[Transitions] = deque(maxlen=capacity)  # each (L,)
        self.tail: Transitions | None = None  # (M,) rows of unfinished segments, in time order
        self.left = np.zeros((0, 0), bool)  # (<L, N), where those rows were

    def __len__(self) -> int:
        return len(self.pool)

    def add(self, batch: Transitions) -> None:
        """Take in fresh transitions: (T, N) in time order, or (T,) of one environment."""
        batch = self.slim(batch)
        if len(batch.shape) == 1:
            batch = batch.map(lambda x: x[:, None])
        usable = np.asarray(batch.valid, bool)
        if self.tail is not None and self.left.shape[1] == batch.shape[1]:
            tail, left = self.tail, self.left
            batch = concatenate([tail.map(lambda x: _scatter(x, left)), batch])
            usable = np.concatenate([left, usable])
        segments, left = cut(batch, usable, self.length)
        self.pool.extend(segments[:, m] for m in range(segments.shape[1]))
        self.left = left[-self.length + 1 :] if self.length > 1 else left[:0]
        self.tail = batch[len(left) - len(self.left) :][self.left] if self.left.any() else None

    def slim(self, batch: Transitions) -> Transitions:
        """The batch without the fields that are never read."""
        absent = {
            name: None for name in vars(batch) if name not in (*PARTS, "extras") and name not in self.modality_names
        }
        extras = {key: value for key, value in batch.extras.items() if key in self.extras}
        return batch.replace(extras=extras, **absent)

    def pick(self, rows: np.ndarray) -> Transitions:
        """Segments (L, B) by their places (B,) in the pool."""
        return _side_by_side([self.pool[row] for row in rows])

    def state_dict(self) -> dict[str, Any]:
        whole = _side_by_side(list(self.pool)) if self.pool else None
        return {"pool": _plain(whole), "tail": _plain(self.tail), "left": self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        whole = _transitions(state["pool"])
        self.pool.clear()
        self.pool.extend([] if whole is None else [whole[:, m] for m in range(whole.shape[1])])
        self.tail, self.left = _transitions(state["tail"]), np.array(state["left"], bool)


def _scatter(rows: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Rows (M, ...) -> (T, N, ...) with the rows where `places` (T, N) is True and nothing elsewhere."""
    spread = np.zeros((*places.shape, *rows.shape[1:]), rows.dtype)
    spread[places] = rows
    return spread


def _side_by_side(segments: list[Transitions]) -> Transitions:
    """B segments (L,) -> (L, B)."""
    return concatenate([segment.map(lambda x: x[None]) for segment in segments]).map(lambda x: x.swapaxes(0, 1))


def _plain(batch: Transitions | None) -> dict[str, Any] | None:
    """A batch as nested dicts of arrays; texts as lists."""
    return None if batch is None else dict(vars(batch.map(lambda x: x.tolist() if x.dtype == object else x)))


def _transitions(state: dict[str, Any] | None) -> Transitions | None:
    def array(value: list[str] | np.ndarray) -> np.ndarray:
        return np.array(value, object) if isinstance(value, list) else np.array(value)

    if state is None:
        return None
    fields: dict[str, Any] = {key: None if value is None else map_obs(array, value) for key, value in state.items()}
    return Transitions(**fields)
