"""Replay: real transitions as rows on the compute device, sampled as transitions or sequences.

A reward that learns makes stored rewards wrong, so none is stored: a sampled row gets the reward of that moment from
the scorer. What cannot be computed from a transition alone (the score of a reward with a memory; frames, texts,
signals) is kept as columns that the scorer names (`ReplayScorer.keep`), then weighted and scaled when sampled.
`Sampler` picks the rows, `Images` stores pixels.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from agents.networks.actor_critic import SpaceEncoding
from envs.steps import Chunk
from envs.transitions import Transitions
from envs.types import MODALITY_FIELDS, Memory, ReplayScorer, StateDict
from lodestar.memory import refuse_beyond
from lodestar.numerics.descent import draw_integers
from lodestar.state import Stateful

# The exponent of `lap`'s priorities, its source's.
LAP_ALPHA = 0.4
# Weight of a row that is drawn only if all others are as well.
MIN_SAMPLING_WEIGHT = 1e-12
# The column in which `FrozenReward` keeps rewards.
REWARD_COLUMN = "stored_reward"
# Steps after which the scorer is asked what to keep, even if nothing is sampled.
MAX_PENDING_STEPS = 64
# Places for the last images of episodes are made so many at a time, at least.
MIN_NEW_FINALS = 16


class Rows(NamedTuple):
    """B transitions."""

    # (B, D), in the environment's units.
    obs: Tensor
    # (B, A), in [-1, 1], or one-hot.
    action: Tensor
    # (B,), relabelled.
    reward: Tensor
    # (B, D), true successors.
    next_obs: Tensor
    # (B,), gamma (1 - terminated).
    discount: Tensor
    # int64 (B,), within the episode.
    step: Tensor
    # int64 (B,), place in the replay.
    index: Tensor  # type: ignore[assignment]


def interleave(parts: Sequence[Rows], count: int) -> Rows:
    """`count` minibatches, one after another, each the next piece of all parts."""
    # Rows of one source lie so already.
    if len(parts) == 1:
        return parts[0]
    columns = []
    for pieces in zip(*parts):
        by_minibatch = [piece.view(count, -1, *piece.shape[1:]) for piece in pieces]
        columns.append(torch.cat(by_minibatch, 1).flatten(0, 1))
    return Rows(*columns)


class Sequences(NamedTuple):
    """B stretches of L steps, time first; they may run across the ends of episodes."""

    # (L, B, D), of obs_t.
    vector: Tensor
    # key -> uint8 (L, B, C, H, W), of obs_t.
    pixels: dict[str, Tensor]
    # (L, B, A), taken at obs_t.
    action: Tensor
    # (L, B), of that action, relabelled; 0 where not valid.
    reward: Tensor
    # (L, B), the task's own reward.
    task: Tensor
    # float (L, B), by that action.
    terminated: Tensor
    # bool (L, B), whether obs_t begins an episode.
    first: Tensor
    # bool (L, B), False where the row is no transition.
    valid: Tensor
    # int64 (L, B), place in the replay.
    index: Tensor  # type: ignore[assignment]


class Replay(Stateful):
    """Transitions of N environments, at most `capacity`, relabelled when they are sampled.

    The scorer learns from fresh transitions, each once, in time order, `update_every` at a time. `added` are rows ever
    added, `timesteps` environment steps for schedules of weights, `metrics` those of the scorer's newest update.
    """

    saved = (
        "sampler",
        "_memory",
        "_low",
        "_high",
        "_continues",
        "_was_valid",
        "added",
        "timesteps",
        "_pos",
        "_filled",
        "_unlearned",
        "metrics",
        "_pending",
    )

    def __init__(
        self,
        capacity: int,
        n_envs: int,
        encoding: SpaceEncoding,
        scorer: ReplayScorer,
        *,
        gamma: float,
        device: str | torch.device = "cpu",
        seed: int = 0,
        update_every: int = 1024,
        sampling: str = "uniform",
    ) -> None:
        if capacity < n_envs:
            raise ValueError(
                f"a replay of capacity={capacity} has no room for a step of {n_envs} environments; give {n_envs} "
                "transitions or more"
            )
        self.n_envs = n_envs
        self.encoding = encoding
        self.scorer = scorer
        self._is_task = scorer.is_task
        self.gamma = gamma
        self.device = torch.device(device)
        scores_images = bool(encoding.images) and not scorer.requires.isdisjoint({"obs", "next_obs"})
        # Where images are scored, the last row waits for its successor.
        self.length = int(capacity) // n_envs + scores_images
        self.size = self.length * n_envs
        self._lay_out_columns()
        if self.device.type == "cpu":
            image_bytes = sum(map(math.prod, encoding.images.values()))
            row_bytes = 4 * self._width + image_bytes
            what = f"a replay of {capacity:,} transitions, {row_bytes:,} bytes each,"
            refuse_beyond(self.size * row_bytes, what)
        self.images = Images(encoding.images, self.length, n_envs, self.device, scores_images)
        shape = (self.size, self._width)
        self.table = torch.empty(shape, device=self.device)
        self._fresh_rows = np.empty((n_envs, self._width), np.float32)
        self.sampler = Sampler(self.length, n_envs, sampling, self.device, seed)
        self.added = 0
        self.timesteps = 0
        # The time row that is written next, and how many hold steps.
        self._pos = 0
        self._filled = 0
        # Of each environment: whether the last row is a transition, and its episode goes on.
        self._was_valid = np.zeros(n_envs, bool)
        self._continues = np.zeros(n_envs, bool)
        self._low = np.full(encoding.obs_size, np.inf, np.float32)
        self._high = np.full(encoding.obs_size, -np.inf, np.float32)
        self.columns: dict[str, np.ndarray] = {}
        self.metrics: dict[str, float] = {}
        self._memory = scorer.initial_memory(n_envs)
        self._pending = Chunk(min(MAX_PENDING_STEPS, self.length))
        # Time rows between two updates of the scorer, and those since the last one.
        self._update_rows = min(max(update_every // n_envs, 1), self.length - scores_images)
        self._unlearned = 0

    def _lay_out_columns(self) -> None:
        """Where a row of the table has what: obs, action, next_obs, then five numbers."""
        d = self.encoding.obs_size
        a = self.encoding.action_size
        self._widths = [d, a, d, 5]
        self._width = sum(self._widths)
        self._obs = slice(0, d)
        self._action = slice(d, d + a)
        self._next = slice(d + a, 2 * d + a)
        numbers = range(2 * d + a, self._width)
        self._task, self._terminated, self._truncated, self._valid, self._step = numbers

    def __len__(self) -> int:
        return self.sampler.count

    def add(self, batch: Transitions) -> None:
        """One step of all environments (N,), with true successors; rows that are no transitions keep their place."""
        valid = np.asarray(batch.valid, bool)
        begins = (batch.step == 0) & valid
        # An episode that begins while another one goes on was reset by somebody else.
        if (begins & self._continues).any():
            self.flush()
            self._memory = self.scorer.initial_memory(self.n_envs)
        self._write(batch, valid, begins)
        if self.scorer.keeps:
            self._pending.add(batch)
        self._pos = (self._pos + 1) % self.length
        self._filled = min(self._filled + 1, self.length)
        self._was_valid = valid
        self._continues = valid & ~batch.ended
        self.added += self.n_envs
        self.timesteps += self.n_envs
        self._unlearned += 1
        if self._pending.full:
            self.flush()
        if self._unlearned >= self._update_rows:
            self._learn()

    def _write(self, batch: Transitions, valid: np.ndarray, begins: np.ndarray) -> None:
        """Write one time row into table, images and sampler."""
        encoding = self.encoding
        pos = self._pos
        rows = self._fresh_rows
        rows[:, self._obs] = encoding.vector(batch.obs)
        rows[:, self._next] = encoding.vector(batch.next_obs)
        rows[:, self._action] = encoding.encode(batch.action)
        rows[:, self._task] = np.where(valid, batch.reward, 0)
        rows[:, self._terminated] = batch.terminated & valid
        rows[:, self._truncated] = batch.truncated
        rows[:, self._valid] = valid
        rows[:, self._step] = batch.step
        now = encoding.pixels(batch.obs)
        after = encoding.pixels(batch.next_obs)
        self.images.write(pos, now, after, begins & self._was_valid)
        begin = pos * self.n_envs
        self.table[begin : begin + self.n_envs] = torch.from_numpy(rows)
        if self.images.follows:
            self.sampler.forget((pos + 1) % self.length)
        self.sampler.add(pos, valid)
        if valid.any():
            for column in (self._obs, self._next):
                seen = rows[valid, column]
                np.minimum(self._low, seen.min(0), out=self._low)
                np.maximum(self._high, seen.max(0), out=self._high)

    def _last_times(self, count: int) -> np.ndarray:
        """The last `count` time rows, the oldest first."""
        return (self._pos - count + np.arange(count)) % self.length

    def flush(self) -> None:
        """Ask the scorer what to keep of the pending steps."""
        count = self._pending.count
        if count:
            (batch,) = self._pending.take()
            self._keep(batch, self._last_times(count), self.columns)

    def _keep(self, batch: Transitions, times: np.ndarray, columns: dict[str, np.ndarray]) -> None:
        values, self._memory = self.scorer.keep(batch, self._memory)
        for key, value in values.items():
            if key not in columns:
                shape = (self.length, self.n_envs, *value.shape[2:])
                columns[key] = np.zeros(shape, value.dtype)
            columns[key][times] = value

    def take(self, other: "Replay") -> None:
        """The transitions of a replay that is given up, for this one's scorer; none if they lack what it reads."""
        other.flush()
        columns = {name: column for name, column in other.columns.items() if name in MODALITY_FIELDS}
        missing = self.scorer.requires.intersection(MODALITY_FIELDS) - set(columns)
        if missing or self.length != other.length:
            return
        shared = ("sampler", "images", "table", "timesteps", "added", "_pos", "_filled")
        for name in (*shared, "_low", "_high", "_continues", "_was_valid"):
            setattr(self, name, getattr(other, name))
        if isinstance(self.scorer, FrozenReward):
            self.scorer.timesteps = self.timesteps
        if self.scorer.keeps:
            new_columns: dict[str, np.ndarray] = {}
            # `_at` reads the old columns until the scorer has read all of them.
            self.columns = columns
            for times in self._blocks():
                self._keep(self._rows_at(times).replace(extras={}), times, new_columns)
            self.columns = new_columns

    def _blocks(self) -> list[np.ndarray]:
        """All time rows from the oldest to the newest, in blocks that a scorer is asked about at once."""
        times = self._last_times(self._filled)
        return np.split(times, range(MAX_PENDING_STEPS, len(times), MAX_PENDING_STEPS))

    def _rows_at(self, times: np.ndarray) -> Transitions:
        """The transitions (T, N) of some time rows."""
        places = times[:, None] * self.n_envs + np.arange(self.n_envs)
        index = torch.from_numpy(places).reshape(-1).to(self.device)
        batch = self._transitions(index, self.table[index])
        shape = (len(times), self.n_envs)
        return batch.map(lambda x: x.reshape(*shape, *x.shape[1:]))

    def _learn(self) -> None:
        self.flush()
        batch = self._rows_at(self._last_times(self._unlearned))
        scores = self.scorer.relabel(batch)
        self.metrics = self.scorer.update(batch, scores, self.timesteps)
        self._unlearned = 0

    def measure(self) -> dict[str, float]:
        """`metrics`; before there are any, those of the rows so far, without what is pending. Nothing moves."""
        begin = self._pos - self._unlearned
        times = np.arange(begin, self._pos - self._pending.count) % self.length
        # A user's own scorer may have no such method.
        measure: Any = getattr(self.scorer, "measure", None)
        if self.metrics or measure is None or not len(times):
            return self.metrics
        return measure(self._rows_at(times), self.timesteps)

    def sample(self, batch_size: int) -> Rows:
        """Transitions drawn with replacement."""
        index = self.sampler.draw(batch_size)
        self.sampler.count_uses(index)
        return self.rows(index)

    def newest(self, count: int) -> Rows:
        """The `count` newest transitions in time order, or all."""
        begin = max(len(self) - count, 0)
        return self.rows(self.sampler.in_order(begin))

    def rows(self, index: Tensor) -> Rows:
        """The transitions at `index` (B,), with their reward of this moment."""
        rows = self.table.index_select(0, index)
        obs, action, next_obs, numbers = rows.split(self._widths, -1)
        _, terminated, _, _, step = numbers.unbind(-1)
        discount = terminated.mul(-self.gamma).add_(self.gamma)
        reward = self._rewards(index, rows)
        return Rows(obs, action, reward, next_obs, discount, step.long(), index)

    def set_priority(self, index: Tensor, error: Tensor) -> None:
        """Let rows at places (B,) be drawn by their errors (B,), with `lap`."""
        self.sampler.set_priority(index, error)

    def sequences(self, batch_size: int, length: int, *, imagine: bool = False) -> Sequences:
        """Sequences in time order, none across where the ring is written; `imagine`: to begin imagination (`dfs`)."""
        late = self.sampler.newest(self._pos, min(length - 1, self.length))
        if length > self._filled or late >= len(self):
            raise ValueError(
                f"the replay holds {self._filled} steps of each environment, of {self.length} it has room for: no "
                f"sequence of {length}; collect more first (agent.learning_starts), or give a larger capacity"
            )
        start = self.sampler.draw(batch_size, len(self) - late, imagine=imagine)
        steps = torch.arange(length, device=self.device)[:, None]
        index = (start + self.n_envs * steps) % self.size
        flat_index = index.reshape(-1)
        self.sampler.count_uses(flat_index, 1 / length, imagine=imagine)
        flat_rows = self.table.index_select(0, flat_index)
        reward = self._rewards(flat_index, flat_rows)
        rows = flat_rows.view(length, batch_size, -1)
        valid = rows[..., self._valid] > 0
        images = {key: table[index] for key, table in self.images.table.items()}
        first = (rows[..., self._step] == 0) & valid
        return Sequences(
            rows[..., self._obs],
            images,
            rows[..., self._action],
            reward.view(length, batch_size),
            rows[..., self._task],
            rows[..., self._terminated],
            first,
            valid,
            index,
        )

    def starts(self, batch_size: int) -> tuple[Tensor, Tensor]:
        """Observations (B, D) to begin imagination at, and their step (B,) within the episode."""
        index = self.sampler.draw(batch_size, imagine=True)
        self.sampler.count_uses(index, imagine=True)
        rows = self.table.index_select(0, index)
        return rows[:, self._obs], rows[:, self._step].long()

    def arrays(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """All transitions for fitting a model: obs, action, next_obs, task (M,), terminated float (M,), step (M,)."""
        if len(self) == self._filled * self.n_envs:
            # Without gaps a view does, in the order of the table.
            rows = self.table[: len(self)]
        else:
            rows = self.table[self.sampler.in_order()]
        obs, action, next_obs, numbers = rows.split(self._widths, -1)
        task, terminated, _, _, step = numbers.unbind(-1)
        return obs, action, next_obs, task, terminated, step

    def bounds(self) -> tuple[Tensor, Tensor]:
        """The least and the largest value that each entry of an observation has had, both (D,)."""
        low = torch.tensor(self._low, device=self.device)
        return low, torch.tensor(self._high, device=self.device)

    def transitions(self, index: Tensor) -> Transitions:
        """The rows at `index` (B,) as a scorer reads them: in NumPy, with the columns of `ReplayScorer.keep`."""
        self.flush()
        return self._transitions(index, self.table.index_select(0, index))

    def _transitions(self, index: Tensor, rows: Tensor) -> Transitions:
        table = rows.cpu().numpy()
        places = index.cpu().numpy()
        encoding = self.encoding
        obs: Any = table[:, self._obs]
        next_obs: Any = table[:, self._next]
        if self.images.follows:
            obs = encoding.obs(obs, self.images.at(places))
            next_obs = encoding.obs(next_obs, self.images.after(places))
        elif not encoding.images:
            obs = encoding.obs(obs)
            next_obs = encoding.obs(next_obs)
        batch = Transitions(
            obs=obs,
            action=encoding.decode(table[:, self._action]),
            reward=table[:, self._task],
            next_obs=next_obs,
            terminated=table[:, self._terminated] > 0,
            truncated=table[:, self._truncated] > 0,
            valid=table[:, self._valid] > 0,
            step=table[:, self._step].astype(np.int64),
        )
        columns = {key: column.reshape(self.size, *column.shape[2:])[places] for key, column in self.columns.items()}
        return with_columns(batch, columns)

    def _rewards(self, index: Tensor, rows: Tensor) -> Tensor:
        if self._is_task:
            return rows[:, self._task]
        self.flush()
        scores = self.scorer.relabel(self._transitions(index, rows))
        reward = self.scorer.combine(scores, self.timesteps)
        return torch.from_numpy(reward).to(self.device)

    def state_dict(self) -> StateDict:
        """The filled part, and what is pending as it is; big arrays as views, to be written before the next `add`."""
        filled = self._filled
        columns: dict[str, Any] = {}
        for key, column in self.columns.items():
            rows = column[:filled]
            # Lists, because an array of objects could only be pickled.
            columns[key] = rows.tolist() if column.dtype == object else rows
        state = super().state_dict()
        state["table"] = self.table[: filled * self.n_envs]
        state["images"] = self.images.state_dict(filled)
        state["columns"] = columns
        return state

    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        table = torch.as_tensor(state["table"])
        self.table[: len(table)] = table.to(self.device)
        self.images.load_state_dict(state["images"])
        self.columns = {}
        for key, saved in state["columns"].items():
            rows = np.array(saved, object) if isinstance(saved, list) else np.asarray(saved)
            shape = (self.length, *rows.shape[1:])
            column = np.zeros(shape, rows.dtype)
            column[: len(rows)] = rows
            self.columns[key] = column


def with_columns(batch: Transitions, columns: dict[str, np.ndarray]) -> Transitions:
    """Transitions with the columns that `ReplayScorer.keep` gave of them."""
    fields: dict[str, Any] = {}
    extras = dict(batch.extras)
    for name, column in columns.items():
        place = fields if name in MODALITY_FIELDS else extras
        place[name] = column
    return batch.replace(**fields, extras=extras)


class FrozenReward:
    """A `ReplayScorer` around another: transitions are scored once, with the weights and scales of that moment.

    This is what replays without relabelling do, and the control for it (`relabel=False`). The scorer itself continues
    to learn; imagined transitions get their rewards from a network fitted to the stored ones. The agent sets
    `timesteps`.
    """

    is_task = False
    keeps = True
    relabelable = True

    def __init__(self, scorer: Any) -> None:
        self.scorer = scorer
        self.timesteps = 0

    def __getattr__(self, name: str) -> Any:
        # By way of the dict, since a copy that has no scorer yet would ask for it without end.
        return getattr(self.__dict__["scorer"], name)

    def keep(self, batch: Transitions, memory: Memory) -> tuple[dict[str, Any], Memory]:
        """The rewards of (T, N) transitions as a column, beside those that the scorer learns from."""
        columns, memory = self.scorer.keep(batch, memory)
        scores = self.scorer.relabel(with_columns(batch, columns))
        reward = self.scorer.combine(scores, self.timesteps)
        return {**columns, REWARD_COLUMN: reward}, memory

    def relabel(self, batch: Transitions) -> dict[str, Any]:
        return {REWARD_COLUMN: batch.extras[REWARD_COLUMN]}

    def combine(self, raw: dict[str, Any], timesteps: Any) -> Any:
        if REWARD_COLUMN in raw:
            return raw[REWARD_COLUMN]
        return self.scorer.combine(raw, timesteps)

    def update(self, batch: Transitions, raw: dict[str, Any], timesteps: Any) -> dict[str, float]:
        return self.scorer.update(batch, self.scorer.relabel(batch), timesteps)


class Sampler(Stateful):
    """Draws rows of a ring of T time rows x N environments, of which some are no transitions.

        uniform   all alike
        lap       in proportion to max(|error|, 1)^0.4; a new row as often as the largest error so far (Fujimoto, Meger
                  & Precup 2020, "An Equivalence between Loss Functions and Non-Uniform Sampling", arXiv 2007.06049,
                  equation 8)
        dfs       by frequency (Drama: Wang et al. 2025, arXiv 2410.08893). Each row counts how often it has trained the
                  model, v, and how often imagination began there, b. A row trains in proportion to exp(-v); imagination
                  begins in proportion to exp(min(v - b', 0)), b' = b sum(v) / sum(b), at rows with v > 0

    Differences from Drama: a window of L rows counts 1 / L for each of them; b is measured in units of v; rows that
    have never trained the model begin nothing.
    """

    saved = (
        "_queue",
        "trained",
        "imagined",
        "_priority",
        "_highest",
        "_counts",
        "_tail",
        "count",
        "_gaps",
        "_generator",
    )

    def __init__(self, length: int, n_envs: int, sampling: str, device: torch.device, seed: int) -> None:
        self.length = length
        self.n_envs = n_envs
        self.sampling = sampling
        self.device = device
        self.size = length * n_envs
        self._generator = torch.Generator(device).manual_seed(seed)
        # Transitions in order of arrival: `count` places of `_queue` from `_tail` on, first in
        # first out. Until a row is no transition there are no gaps: a place in the queue is the row.
        self._queue = torch.arange(self.size, device=device)
        self._tail = 0
        self.count = 0
        self._gaps = False
        # How many transitions each time row has.
        self._counts = np.zeros(length, np.int64)
        # Drama's v and b, and the priorities of `lap`; other ways of sampling have none.
        uses = self.size if sampling == "dfs" else 0
        self.trained = torch.zeros(uses, device=device)
        self.imagined = torch.zeros(uses, device=device)
        self._priority = torch.zeros(self.size if sampling == "lap" else 0, device=device)
        self._highest = torch.ones((), device=device)

    def add(self, pos: int, valid: np.ndarray) -> None:
        """Time row `pos` was written; `valid`, bool (N,): which of its rows are transitions."""
        self.forget(pos)
        count = int(valid.sum())
        begin = pos * self.n_envs
        if count < self.n_envs:
            self._gaps = True
        if self._gaps and count:
            places = (self._tail + self.count + np.arange(count)) % self.size
            rows = begin + np.flatnonzero(valid)
            # One transfer to the device instead of two.
            both = torch.from_numpy(np.stack([places, rows]))
            both = both.to(self.device)
            self._queue[both[0]] = both[1]
        self._counts[pos] = count
        self.count += count
        if self.sampling == "dfs":
            self.trained[begin : begin + self.n_envs] = 0
            self.imagined[begin : begin + self.n_envs] = 0
        elif self.sampling == "lap":
            self._priority[begin : begin + self.n_envs] = self._highest

    def forget(self, pos: int) -> None:
        """Draw the transitions of time row `pos`, the oldest, no more."""
        count = int(self._counts[pos])
        self._tail = (self._tail + count) % self.size
        self.count -= count
        self._counts[pos] = 0

    def newest(self, pos: int, rows: int) -> int:
        """How many transitions the `rows` time rows before `pos` have."""
        times = (pos - 1 - np.arange(rows)) % self.length
        return int(self._counts[times].sum())

    def in_order(self, begin: int = 0, end: int | None = None) -> Tensor:
        """Rows of all transitions from the oldest to the newest, or of a part of them."""
        if end is None:
            end = self.count
        return self._rows(torch.arange(begin, end, device=self.device))

    def draw(self, batch_size: int, among: int | None = None, *, imagine: bool = False) -> Tensor:
        """Rows (B,), with replacement, of the `among` oldest or all; to begin imagination there, or to learn."""
        if not self.count:
            raise ValueError("the replay is empty; collect transitions before sampling (agent.learning_starts)")
        if among is None:
            among = self.count
        shape = (batch_size,)
        if self.sampling == "uniform" or (self.sampling == "lap" and imagine):
            order = draw_integers(self._generator, among, *shape)
            return self._rows(order)
        rows = self.in_order(0, among)
        # In double precision, since a sum over many rows loses the small weights.
        sums = self.weights(rows, imagine).double().cumsum(0)
        drawn = torch.rand(shape, generator=self._generator, device=self.device, dtype=torch.float64)
        place = torch.searchsorted(sums, drawn * sums[-1], right=True)
        return rows[place.clamp_(max=among - 1)]

    def weights(self, rows: Tensor, imagine: bool = False) -> Tensor:
        """How often rows (M,) are drawn beside each other, (M,)."""
        if self.sampling == "lap":
            return self._priority[rows]
        v = self.trained[rows]
        if not imagine:
            return torch.exp(v.min() - v)
        b = self.imagined[rows]
        unit = v.sum() / b.sum().clamp(min=1e-6)
        b = b * unit
        log_weight = (v - b).clamp(-20, 0)
        return torch.where(v > 0, torch.exp(log_weight), MIN_SAMPLING_WEIGHT)

    def count_uses(self, rows: Tensor, share: float = 1.0, *, imagine: bool = False) -> None:
        """Count that rows (B,) were used, each for `share` of a time."""
        if self.sampling == "dfs":
            counts = self.imagined if imagine else self.trained
            shares = counts.new_full((), share).expand(len(rows))
            counts.index_add_(0, rows, shares)

    def set_priority(self, rows: Tensor, error: Tensor) -> None:
        """Let rows (B,) be drawn by their errors (B,), with `lap`."""
        if self.sampling == "lap":
            priority = error.detach().abs().clamp(min=1.0).pow(LAP_ALPHA)
            self._priority[rows] = priority
            self._highest = torch.maximum(self._highest, priority.max())

    def _rows(self, order: Tensor) -> Tensor:
        """The rows of transitions by their order of arrival (M,), which is overwritten."""
        place = order.add_(self._tail).remainder_(self.size)
        return self._queue.index_select(0, place) if self._gaps else place


class Images:
    """uint8 images of a ring of T time rows x N environments, each once; final ones are kept aside if `follows`."""

    def __init__(
        self,
        shapes: dict[str, tuple[int, ...]],
        length: int,
        n_envs: int,
        device: Any,
        follows: bool,
    ) -> None:
        self.length = length
        self.n_envs = n_envs
        self.follows = follows
        self.size = length * n_envs
        self.table: dict[str, Tensor] = {}
        self.finals: dict[str, Tensor] = {}
        for key, shape in shapes.items():
            self.table[key] = torch.empty((self.size, *shape), dtype=torch.uint8, device=device)
            self.finals[key] = self.table[key].new_empty((0, *shape))
        # The place in `finals` of what followed each row, or -1, and the places that are free.
        self.slot = np.full(self.size if follows else 0, -1, np.int64)
        self._free: list[int] = []

    def write(
        self,
        pos: int,
        now: dict[str, np.ndarray],
        after: dict[str, np.ndarray],
        begins: np.ndarray,
    ) -> None:
        """One time row: images of obs and next_obs, (N, C, H, W); where `begins`, bool (N,), an episode does."""
        if not self.table:
            return
        if self.follows:
            # The next row shows the successors until it is written itself.
            following = (pos + 1) % self.length
            slots = self.slot[following * self.n_envs : (following + 1) * self.n_envs]
            self._free += slots[slots >= 0].tolist()
            slots[:] = -1
            if begins.any():
                self._keep_finals(pos, np.flatnonzero(begins))
            self._write_row(following, after)
        self._write_row(pos, now)

    def at(self, index: np.ndarray) -> dict[str, np.ndarray]:
        return {key: table[index].cpu().numpy() for key, table in self.table.items()}

    def after(self, index: np.ndarray) -> dict[str, np.ndarray]:
        """The images that followed rows (B,)."""
        images = self.at((index + self.n_envs) % self.size)
        slots = self.slot[index]
        is_final = slots >= 0
        if is_final.any():
            for key, image in images.items():
                finals = self.finals[key][slots[is_final]]
                image[is_final] = finals.cpu().numpy()
        return images

    def state_dict(self, filled: int) -> StateDict:
        """The images of the first `filled` time rows, and of the one after them."""
        rows = min(filled + 1, self.length) * self.n_envs
        return {
            "table": {key: table[:rows] for key, table in self.table.items()},
            "finals": self.finals,
            "slot": self.slot.copy(),
            "free": list(self._free),
        }

    def load_state_dict(self, state: StateDict) -> None:
        for key, table in self.table.items():
            saved = torch.as_tensor(state["table"][key])
            table[: len(saved)] = saved.to(table.device)
            finals = torch.as_tensor(state["finals"][key])
            self.finals[key] = finals.to(table.device).clone()
        self.slot = np.array(state["slot"])
        self._free = [int(slot) for slot in state["free"]]

    def _write_row(self, pos: int, images: dict[str, np.ndarray]) -> None:
        begin = pos * self.n_envs
        for key, image in images.items():
            values = torch.from_numpy(np.ascontiguousarray(image))
            self.table[key][begin : begin + self.n_envs] = values

    def _keep_finals(self, pos: int, columns: np.ndarray) -> None:
        """Put the images at `pos` aside, which ended episodes of some environments, before they are overwritten."""
        while len(self._free) < len(columns):
            self._add_places()
        slots = np.array([self._free.pop() for _ in columns])
        rows: Tensor = torch.from_numpy(pos * self.n_envs + columns)
        for key, table in self.table.items():
            self.finals[key][torch.from_numpy(slots)] = table[rows]
        self.slot[(pos - 1) % self.length * self.n_envs + columns] = slots

    def _add_places(self) -> None:
        """Double the room for final images."""
        count = len(next(iter(self.finals.values())))
        more = max(count, MIN_NEW_FINALS)
        for key, finals in self.finals.items():
            places = finals.new_zeros((more, *finals.shape[1:]))
            self.finals[key] = torch.cat([finals, places])
        self._free += range(count, count + more)
