"""What judges compare: segments of equal length, or whole episodes, gathered from rollouts as they come."""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from envs.transitions import Transitions, concatenate, stack
from envs.types import Obs

# The fields that a segment always holds.
SEGMENT_FIELDS = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "valid", "step")
# The extra of an episode that its reward learns from.
SUMMARY = "summary"
# Longer episodes are dropped, so that memory is bounded where episodes do not end.
MAX_KEPT_STEPS = 10_000


def cut(batch: Transitions, usable: np.ndarray, length: int) -> tuple[Transitions, np.ndarray]:
    """Cut the usable rows of a rollout (T, N) into segments (L, M), in the order of their last steps.

    Also returns a bool (T, N): the rows that are left over, as they may begin a segment that later rows complete.
    """
    times = np.arange(len(usable))[:, None]
    follows = np.zeros_like(usable)
    next_step = batch.step[1:] == batch.step[:-1] + 1
    follows[1:] = usable[1:] & usable[:-1] & ~batch.ended[:-1] & next_step
    # The place of a row within its segment counts from the last row that followed no other.
    starts = np.where(usable & ~follows, times, 0)
    last_start = np.maximum.accumulate(starts, axis=0)
    place = (times - last_start) % length
    is_last = place == length - 1
    last, env = np.nonzero(usable & is_last)
    steps_back = np.arange(length - 1, -1, -1)
    rows = last - steps_back[:, None]
    is_unfinished = usable[-1] & ~batch.ended[-1] & ~is_last[-1]
    unfinished_rows = np.where(is_unfinished, place[-1] + 1, 0)
    left = times >= len(usable) - unfinished_rows
    return batch[rows, env[None]], left


class Segments:
    """The newest `capacity` segments, `length` valid steps of one episode, and the rows that may become one."""

    def __init__(
        self, length: int, capacity: int, requires: frozenset[str] = frozenset(), extras: tuple[str, ...] = ()
    ) -> None:
        self.length = length
        # Fields that it holds beside SEGMENT_FIELDS.
        self.requires = requires
        self.extras = extras
        # Each segment has the shape (L,).
        self.pool: deque[Transitions] = deque(maxlen=capacity)
        # The rows (M,) of unfinished segments in time order, and where they stood: bool (T, N).
        self.tail: Transitions | None = None
        self.left = np.zeros((0, 0), bool)

    def __len__(self) -> int:
        return len(self.pool)

    def add(self, batch: Transitions) -> None:
        """Take in fresh transitions: (T, N) in time order, or (T,) of one environment."""
        batch = self.slim(batch)
        if len(batch.shape) == 1:
            batch = batch[:, None]
        usable = np.asarray(batch.valid, bool)
        if self.tail is not None and self.left.shape[1] == batch.shape[1]:
            places = self.left
            before = self.tail.map(lambda rows: _scatter(rows, places))
            batch = concatenate([before, batch])
            usable = np.concatenate([places, usable])
        segments, left = self.take(batch, usable)
        self.pool.extend(segments)
        # Rows before the first that is left over are not carried to the next call.
        self.tail = None
        begin = len(left)
        if left.any():
            begin = int(left.any(axis=1).argmax())
            self.tail = batch[begin:][left[begin:]]
        self.left = left[begin:]

    def take(self, batch: Transitions, usable: np.ndarray) -> tuple[list[Transitions], np.ndarray]:
        """The segments among the usable rows of (T, N), in the order of their ends; and bool (T, N), rows to keep."""
        segments, left = cut(batch, usable, self.length)
        return [segments[:, m] for m in range(segments.shape[1])], left

    def slim(self, batch: Transitions) -> Transitions:
        """The batch without the fields and extras that no segment holds."""
        fields = {*SEGMENT_FIELDS, *self.requires, "extras"}
        absent = dict.fromkeys(vars(batch).keys() - fields)
        extras = {key: x for key, x in batch.extras.items() if key in self.extras}
        return batch.replace(extras=extras, **absent)

    def pick(self, rows: np.ndarray) -> Transitions:
        """Segments (L, B) by their places (B,) in the pool."""
        segments = [self.pool[row] for row in rows]
        return stack(segments).map(lambda x: x.swapaxes(0, 1))

    def drop(self, rows: np.ndarray) -> None:
        """Leave segments out of the pool from now on."""
        dropped = set(rows.tolist())
        kept = [segment for row, segment in enumerate(self.pool) if row not in dropped]
        self.pool.clear()
        self.pool.extend(kept)

    def branches(self) -> tuple[np.ndarray, np.ndarray]:
        """Places of pairs that begin two episodes with the same observation, to the last bit; no place in two pairs."""
        waiting: dict[bytes, int] = {}
        pairs = []
        for row, segment in enumerate(self.pool):
            if segment.step[0] > 0:
                continue
            start = _first_bytes(segment.obs)
            other = waiting.pop(start, None)
            if other is None:
                waiting[start] = row
            else:
                pairs.append((other, row))
        places = np.array(pairs, np.int64).reshape(-1, 2)
        return places[:, 0], places[:, 1]

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"pool": None, "tail": None, "left": self.left}
        if self.pool:
            state["pool"] = vars(stack(list(self.pool)))
        if self.tail is not None:
            state["tail"] = vars(self.tail)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pool.clear()
        if state["pool"]:
            pool = Transitions(**state["pool"])
            self.pool.extend(pool[m] for m in range(pool.shape[0]))
        self.tail = None
        if state["tail"]:
            self.tail = Transitions(**state["tail"])
        self.left = np.array(state["left"], bool)


class LastEpisodes(Segments):
    """The newest `capacity` complete episodes of any length, each shown as `length` of its steps, equally far apart.

    A reward is the sum of all since the step shown before; the extra `SUMMARY` (D,) is what `summarise` makes of all.
    """

    def __init__(self, *settings: Any, summarise: Callable[[Transitions], np.ndarray]) -> None:
        super().__init__(*settings)
        self.summarise = summarise

    def take(self, batch: Transitions, usable: np.ndarray) -> tuple[list[Transitions], np.ndarray]:
        episodes = []
        ends = np.argwhere(usable & batch.ended)[-(self.pool.maxlen or 0) :]
        for t, n in ends:
            begin = t - batch.step[t, n]
            if begin < 0:
                continue
            rows = np.arange(begin, t + 1)
            in_order = np.array_equal(batch.step[rows, n], rows - begin)
            if in_order and usable[rows, n].all():
                episodes.append(self.shorten_episode(batch[rows, n]))
        # The rows of an episode that goes on are kept, if its first is among them.
        step = batch.step[-1]
        begins = len(usable) - 1 - step
        goes_on = usable[-1] & ~batch.ended[-1] & (begins >= 0) & (step < MAX_KEPT_STEPS)
        times = np.arange(len(usable))[:, None]
        return episodes, usable & goes_on & (times >= begins)

    def shorten_episode(self, episode: Transitions) -> Transitions:
        """An episode (H,) as `length` steps."""
        # The last step of each of `length` equal parts, rounded up.
        parts = np.arange(1, self.length + 1)
        rows = -(-parts * len(episode.step) // self.length) - 1
        returns = np.cumsum(episode.reward, dtype=np.float64)
        reward = np.diff(returns[rows], prepend=0).astype(np.float32)
        steps = episode[rows]
        summary = self.summarise(episode)
        summaries = np.broadcast_to(summary, (self.length, len(summary)))
        return steps.replace(reward=reward, extras={**steps.extras, SUMMARY: summaries})


def _first_bytes(obs: Obs) -> bytes:
    """The first of observations (L, ...) as bytes."""
    leaves = [obs]
    if isinstance(obs, dict):
        leaves = [obs[key] for key in sorted(obs)]
    return b"".join(leaf[0].tobytes() for leaf in leaves)


def _scatter(rows: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Rows (M, ...) -> (T, N, ...) with the rows where `places` (T, N) is True and zeros elsewhere."""
    scattered = np.zeros((*places.shape, *rows.shape[1:]), rows.dtype)
    scattered[places] = rows
    return scattered
