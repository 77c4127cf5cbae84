"""What judges compare: segments of equal length, or whole episodes, gathered from rollouts as they come."""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from envs.transitions import Transitions, concatenate, stack

# what a segment always holds
PARTS = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "valid", "step")
SUMMARY = "summary"  # the extra of an episode that its reward learns from
LONGEST = 10_000  # steps of an episode; longer ones are dropped, so that memory ends where they do not


def cut(batch: Transitions, usable: np.ndarray, length: int) -> tuple[Transitions, np.ndarray]:
    """The usable rows of a rollout (T, N) as segments (L, M), in the order of their last steps; and bool (T, N), the
    rest.
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
    """The newest `capacity` segments, `length` valid steps of one episode, and the rows that may become one."""

    def __init__(
        self, length: int, capacity: int, modality_names: frozenset[str] = frozenset(), extras: tuple[str, ...] = ()
    ):
        self.length, self.modality_names, self.extras = length, modality_names, extras
        self.pool: deque[Transitions] = deque(maxlen=capacity)  # each (L,)
        self.tail: Transitions | None = None  # (M,) rows of what is unfinished, in time order
        self.left = np.zeros((0, 0), bool)  # (T, N), where those rows were

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
        found, left = self.take(batch, usable)
        self.pool.extend(found)
        self.left = left[left.any(axis=1).argmax() if left.any() else len(left) :]
        self.tail = batch[len(left) - len(self.left) :][self.left] if left.any() else None

    def take(self, batch: Transitions, usable: np.ndarray) -> tuple[list[Transitions], np.ndarray]:
        """What is whole among the usable rows of (T, N), in the order of its end; and bool (T, N), the rows to keep."""
        segments, left = cut(batch, usable, self.length)
        return [segments[:, m] for m in range(segments.shape[1])], left

    def slim(self, batch: Transitions) -> Transitions:
        absent = dict.fromkeys({*vars(batch)} - {*PARTS, *self.modality_names, "extras"})
        return batch.replace(extras={key: x for key, x in batch.extras.items() if key in self.extras}, **absent)

    def pick(self, rows: np.ndarray) -> Transitions:
        """Segments (L, B) by their places (B,) in the pool."""
        return stack([self.pool[row] for row in rows]).map(lambda x: x.swapaxes(0, 1))

    def state_dict(self) -> dict[str, Any]:
        whole = stack(list(self.pool)) if self.pool else None
        return {"pool": whole and vars(whole), "tail": self.tail and vars(self.tail), "left": self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        whole, tail = (part and Transitions(**part) for part in (state["pool"], state["tail"]))
        self.pool.clear()
        self.pool.extend(whole[m] for m in range(whole.shape[0] if whole else 0))
        self.tail, self.left = tail, np.array(state["left"], bool)


class LastEpisodes(Segments):
    """The newest `capacity` whole episodes of any length, each shown as `length` of its steps, equally far apart.

    A reward is the sum of all since the step shown before; the extra `SUMMARY` (D,) is what `summarise` makes of all.
    """

    def __init__(self, length: int, capacity: int, summarise: Callable[[Transitions], np.ndarray], *kept: Any) -> None:
        super().__init__(length, capacity, *kept)
        self.summarise = summarise

    def take(self, batch: Transitions, usable: np.ndarray) -> tuple[list[Transitions], np.ndarray]:
        ends = np.argwhere(usable & batch.ended)[-(self.pool.maxlen or 0) :]
        found = []
        for t, n in ends:
            begin = t - batch.step[t, n]
            rows = np.arange(max(begin, 0), t + 1)
            whole = usable[rows, n].all() and np.array_equal(batch.step[rows, n], rows - begin)
            if begin >= 0 and whole:
                found.append(self.shown(batch[rows, n]))
        begin = len(usable) - 1 - batch.step[-1]
        open_ = usable[-1] & ~batch.ended[-1] & (begin >= 0) & (batch.step[-1] < LONGEST)
        return found, usable & open_ & (np.arange(len(usable))[:, None] >= begin)

    def shown(self, episode: Transitions) -> Transitions:
        """An episode (H,) as `length` steps."""
        rows = -(-np.arange(1, self.length + 1) * len(episode.step) // self.length) - 1
        so_far = np.cumsum(episode.reward, dtype=np.float64)[rows]
        few, summary = episode[rows], self.summarise(episode)
        extras = {**few.extras, SUMMARY: np.broadcast_to(summary, (self.length, len(summary)))}
        return few.replace(reward=np.diff(so_far, prepend=0).astype(np.float32), extras=extras)


def _scatter(rows: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Rows (M, ...) -> (T, N, ...) with the rows where `places` (T, N) is True and nothing elsewhere."""
    spread = np.zeros((*places.shape, *rows.shape[1:]), rows.dtype)
    spread[places] = rows
    return spread
