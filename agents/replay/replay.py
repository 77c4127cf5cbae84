"""Replay: real transitions as rows on the compute device, sampled as transitions or sequences.

A reward that learns makes stored rewards wrong, so none is stored: a sampled row gets the reward of that moment from
the scorer. What cannot be computed from a transition alone (the score of a reward with a memory; frames, texts,
signals) is kept as columns that the scorer names (`ReplayScorer.keep`), then weighted and scaled when sampled.
`Sampler` picks the rows, `Images` stores pixels.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from agents.networks.actor_critic import SpaceEncoding
from envs.steps import Chunk
from envs.transitions import Transitions
from envs.types import MODALITIES, Memory, ReplayScorer
from lodestar.memory import refuse_beyond
from lodestar.state import Stateful

SAMPLING = ("uniform", "dfs", "lap")
LAP_ALPHA = 0.4  # the source's
NEVER = 1e-12  # weight of a row that is drawn only if all others are as well
STORED = "stored_reward"  # the column of `FrozenReward`
PENDING = 64  # steps after which the scorer is asked what to keep, even if nothing is sampled


class Rows(NamedTuple):
    """B transitions."""

    obs: Tensor  # (B, D), in the environment's units
    action: Tensor  # (B, A), in [-1, 1], or one-hot
    reward: Tensor  # (B,), relabelled
    next_obs: Tensor  # (B, D), true successors
    discount: Tensor  # (B,), gamma (1 - terminated)
    step: Tensor  # int64 (B,), within the episode
    index: Tensor  # type: ignore[assignment]  # int64 (B,), place in the replay


class Sequences(NamedTuple):
    """B stretches of L steps, time first; they may run across the ends of episodes."""

    vector: Tensor  # (L, B, D), of obs_t
    pixels: dict[str, Tensor]  # key -> uint8 (L, B, C, H, W), of obs_t
    action: Tensor  # (L, B, A), taken at obs_t
    reward: Tensor  # (L, B), of that action, relabelled; 0 where not valid
    task: Tensor  # (L, B), the task's own reward
    terminated: Tensor  # float (L, B), by that action
    first: Tensor  # bool (L, B), whether obs_t begins an episode
    valid: Tensor  # bool (L, B), False where the row is no transition
    index: Tensor  # type: ignore[assignment]  # int64 (L, B), place in the replay


class Replay(Stateful):
    """Transitions of N environments, at most `capacity`, relabelled when they are sampled.

    The scorer learns from fresh transitions, each once, in time order, `update_every` at a time. `added` are rows ever
    added, `timesteps` environment steps for schedules of weights, `metrics` those of the scorer's newest update.
    """

    saved = (
        *("sampler", "_memory", "_low", "_high", "_continues", "_was_valid", "added", "timesteps", "_pos", "_filled"),
        *("_unlearned", "metrics", "_pending"),
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
        self.n_envs, self.encoding, self.scorer, self.gamma = n_envs, encoding, scorer, gamma
        self.device = torch.device(device)
        scores_images = bool(encoding.images) and bool({"obs", "next_obs"} & scorer.requires)
        # Where images are scored, the last row waits for its successor.
        self.length = int(capacity) // n_envs + scores_images
        self.size = size = self.length * n_envs
        d, a = encoding.obs_size, encoding.action_size
        self._widths, self._width = [d, a, d, 5], 2 * d + a + 5  # obs, action, next_obs, five numbers
        if self.device.type == "cpu":
            row = 4 * self._width + sum(map(math.prod, encoding.images.values()))
            refuse_beyond(size * row, f"a replay of {capacity:,} transitions, {row:,} bytes each,")
        self.images = Images(encoding.images, self.length, n_envs, self.device, scores_images)
        self._obs, self._action, self._next = slice(0, d), slice(d, d + a), slice(d + a, 2 * d + a)
        self._task, self._terminated, self._truncated, self._valid, self._step = range(2 * d + a, self._width)
        self.table = torch.empty((size, self._width), device=self.device)  # all columns of a row
        self._fresh_rows = np.empty((n_envs, self._width), np.float32)
        self.sampler = Sampler(self.length, n_envs, sampling, self.device, seed)
        self.added = self.timesteps = self._pos = self._filled = 0  # _pos: time row that is written next
        self._continues = np.zeros(n_envs, bool)  # the row before is a transition, and its episode has not ended
        self._was_valid = np.zeros(n_envs, bool)
        self._low, self._high = np.full(d, np.inf, np.float32), np.full(d, -np.inf, np.float32)
        self.columns: dict[str, np.ndarray] = {}
        self.metrics: dict[str, float] = {}
        self._memory = scorer.initial_memory(n_envs)
        self._pending = Chunk(min(PENDING, self.length))
        self._update_rows = min(max(update_every // n_envs, 1), self.length - scores_images)
        self._unlearned = 0  # time rows since the scorer's last update

    def __len__(self) -> int:
        return self.sampler.count

    def add(self, batch: Transitions) -> None:
        """One step of all environments (N,), with true successors; rows that are no transitions keep their place."""
        valid, encoding, rows, pos = np.asarray(batch.valid, bool), self.encoding, self._fresh_rows, self._pos
        begins = (batch.step == 0) & valid
        if (begins & self._continues).any():  # the environments were reset from outside
            self.flush()
            self._memory = self.scorer.initial_memory(self.n_envs)
        rows[:, self._obs], rows[:, self._next] = encoding.vector(batch.obs), encoding.vector(batch.next_obs)
        rows[:, self._action] = encoding.encode(batch.action)
        rows[:, self._task] = np.where(valid, batch.reward, 0)
        rows[:, self._terminated], rows[:, self._truncated] = batch.terminated & valid, batch.truncated
        rows[:, self._valid], rows[:, self._step] = valid, batch.step
        self.images.write(pos, encoding.pixels(batch.obs), encoding.pixels(batch.next_obs), begins & self._was_valid)
        here = slice(pos * self.n_envs, (pos + 1) * self.n_envs)
        self.table[here] = torch.from_numpy(rows)
        if self.images.follows:
            self.sampler.forget((pos + 1) % self.length)
        self.sampler.add(pos, valid)
        if valid.any():
            for part in (rows[valid, self._obs], rows[valid, self._next]):
                np.minimum(self._low, part.min(0), out=self._low)
                np.maximum(self._high, part.max(0), out=self._high)
        if self.scorer.keeps:
            self._pending.add(batch)
        self._pos, self._filled = (pos + 1) % self.length, min(self._filled + 1, self.length)
        self._was_valid, self._continues = valid, valid & ~batch.ended
        self.added += self.n_envs
        self.timesteps += self.n_envs
        self._unlearned += 1
        if self._pending.full:
            self.flush()
        if self._unlearned >= self._update_rows:
            self._learn()

    def flush(self) -> None:
        count = self._pending.count
        if not count:
            return
        (batch,) = self._pending.take()
        self._keep(batch, (self._pos - count + np.arange(count)) % self.length, self.columns)

    def _keep(self, batch: Transitions, times: np.ndarray, columns: dict[str, np.ndarray]) -> None:
        kept, self._memory = self.scorer.keep(batch, self._memory)
        for key, value in kept.items():
            if key not in columns:
                columns[key] = np.zeros((self.length, self.n_envs, *value.shape[2:]), value.dtype)
            columns[key][times] = value

    def take(self, other: "Replay") -> None:
        """The transitions of a replay that is given up, for this one's scorer; none if they lack what it reads."""
        other.flush()
        shown = {name: column for name, column in other.columns.items() if name in Transitions.__dataclass_fields__}
        missing = self.scorer.requires & {*MODALITIES, *(f"obs_{name}" for name in MODALITIES)} - {*shown}
        if missing or self.length != other.length:
            return
        for name in ("sampler", "images", "table", "timesteps", "added", "_pos", "_filled", "_low", "_high"):
            setattr(self, name, getattr(other, name))
        self._continues, self._was_valid = other._continues, other._was_valid
        if isinstance(self.scorer, FrozenReward):
            self.scorer.timesteps = self.timesteps
        if self.scorer.keeps:
            columns: dict[str, np.ndarray] = {}
            self.columns = shown
            order = (self._pos - self._filled + np.arange(self._filled)) % self.length
            for times in np.split(order, range(PENDING, len(order), PENDING)):
                self._keep(self._at(times).replace(extras={}), times, columns)
            self.columns = columns

    def _at(self, times: np.ndarray) -> Transitions:
        index = torch.from_numpy(times[:, None] * self.n_envs + np.arange(self.n_envs)).reshape(-1).to(self.device)
        batch = self._transitions(index, self.table[index])
        return batch.map(lambda x: x.reshape(len(times), self.n_envs, *x.shape[1:]))

    def _learn(self) -> None:
        self.flush()
        batch = self._at((self._pos - self._unlearned + np.arange(self._unlearned)) % self.length)
        self.metrics = self.scorer.update(batch, self.scorer.relabel(batch), self.timesteps)
        self._unlearned = 0

    def measure(self) -> dict[str, float]:
        """`metrics`; before there are any, those of the rows so far, without what is pending. Nothing moves."""
        rows = np.arange(self._pos - self._unlearned, self._pos - self._pending.count) % self.length
        measure: Any = getattr(self.scorer, "measure", lambda *_: {})
        return self.metrics or (measure(self._at(rows), self.timesteps) if len(rows) else {})

    def sample(self, batch_size: int) -> Rows:
        """Transitions drawn with replacement."""
        index = self.sampler.draw(batch_size)
        self.sampler.used(index)
        return self.rows(index)

    def newest(self, count: int) -> Rows:
        """The `count` newest transitions in time order, or all."""
        return self.rows(self.sampler.in_order(max(len(self) - count, 0)))

    def rows(self, index: Tensor) -> Rows:
        rows = self.table.index_select(0, index)
        obs, action, next_obs, numbers = rows.split(self._widths, -1)
        _, terminated, _, _, step = numbers.unbind(-1)
        discount = terminated.mul(-self.gamma).add_(self.gamma)
        return Rows(obs, action, self._rewards(index, rows), next_obs, discount, step.long(), index)

    def sequences(self, batch_size: int, length: int, *, imagine: bool = False) -> Sequences:
        """Sequences in time order, none across where the ring is written; `imagine`: to begin imagination (`dfs`)."""
        late = self.sampler.newest(self._pos, min(length - 1, self.length))
        if length > self._filled or late >= len(self):
            raise ValueError(
                f"the replay holds {self._filled} steps of each environment, of {self.length} it has room for: no "
                f"sequence of {length}; collect more first (agent.learning_starts), or give a larger capacity"
            )
        start = self.sampler.draw(batch_size, len(self) - late, imagine=imagine)
        index = (start + self.n_envs * torch.arange(length, device=self.device)[:, None]) % self.size
        flat = index.reshape(-1)
        self.sampler.used(flat, 1 / length, imagine=imagine)
        rows = self.table.index_select(0, flat)
        reward = self._rewards(flat, rows).view(length, batch_size)
        rows = rows.view(length, batch_size, -1)
        valid, pixels = rows[..., self._valid] > 0, {key: table[index] for key, table in self.images.table.items()}
        task, terminated, first = rows[..., self._task], rows[..., self._terminated], rows[..., self._step] == 0
        return Sequences(
            rows[..., self._obs], pixels, rows[..., self._action], reward, task, terminated, first & valid, valid, index
        )

    def starts(self, batch_size: int) -> tuple[Tensor, Tensor]:
        """Observations (B, D) to begin imagination at, and their step (B,) within the episode."""
        index = self.sampler.draw(batch_size, imagine=True)
        self.sampler.used(index, imagine=True)
        rows = self.table.index_select(0, index)
        return rows[:, self._obs], rows[:, self._step].long()

    def arrays(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """All transitions for fitting a model: obs, action, next_obs, task (M,), terminated float (M,), step (M,)."""
        whole = len(self) == self._filled * self.n_envs
        rows = self.table[: len(self)] if whole else self.table[self.sampler.in_order()]
        numbers = rows[:, self._task], rows[:, self._terminated], rows[:, self._step]
        return rows[:, self._obs], rows[:, self._action], rows[:, self._next], *numbers

    def bounds(self) -> tuple[Tensor, Tensor]:
        """The least and the largest value that each entry of an observation has had, both (D,)."""
        return torch.tensor(self._low, device=self.device), torch.tensor(self._high, device=self.device)

    def transitions(self, index: Tensor, rows: Tensor | None = None) -> Transitions:
        """The rows at `index` (B,) as a scorer reads them: in NumPy, with the columns of `ReplayScorer.keep`."""
        self.flush()
        return self._transitions(index, self.table.index_select(0, index) if rows is None else rows)

    def _transitions(self, index: Tensor, rows: Tensor) -> Transitions:
        host, at, encoding = rows.cpu().numpy(), index.cpu().numpy(), self.encoding
        obs, next_obs = host[:, self._obs], host[:, self._next]
        if self.images.follows:
            obs, next_obs = encoding.obs(obs, self.images.at(at)), encoding.obs(next_obs, self.images.after(at))
        elif not encoding.images:
            obs, next_obs = encoding.obs(obs), encoding.obs(next_obs)
        columns = {key: value.reshape(self.size, *value.shape[2:])[at] for key, value in self.columns.items()}
        known = (*MODALITIES, *(f"obs_{name}" for name in MODALITIES))
        modalities = {name: columns.pop(name) for name in known if name in columns}
        return Transitions(
            obs=obs,
            action=encoding.decode(host[:, self._action]),
            reward=host[:, self._task],
            next_obs=next_obs,
            terminated=host[:, self._terminated] > 0,
            truncated=host[:, self._truncated] > 0,
            valid=host[:, self._valid] > 0,
            step=host[:, self._step].astype(np.int64),
            extras=columns,
            **modalities,
        )

    def _rewards(self, index: Tensor, rows: Tensor) -> Tensor:
        if self.scorer.is_task:
            return rows[:, self._task]
        batch = self.transitions(index, rows)
        return torch.from_numpy(self.scorer.combine(self.scorer.relabel(batch), self.timesteps)).to(self.device)

    def state_dict(self) -> dict[str, Any]:
        """The filled part, and what is pending as it is; big arrays as views, to be written before the next `add`."""
        filled = self._filled
        return super().state_dict() | {
            "table": self.table[: filled * self.n_envs],
            "images": self.images.state_dict(filled),
            "columns": {k: v[:filled].tolist() if v.dtype == object else v[:filled] for k, v in self.columns.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        table = torch.as_tensor(state["table"])
        self.table[: len(table)] = table.to(self.device)
        self.images.load_state_dict(state["images"])
        self.columns = {}
        for key, saved in state["columns"].items():
            value = np.array(saved, object) if isinstance(saved, list) else np.asarray(saved)
            self.columns[key] = np.zeros((self.length, *value.shape[1:]), value.dtype)
            self.columns[key][: len(value)] = value


class FrozenReward:
    """A `ReplayScorer` around another: transitions are scored once, with the weights and scales of that moment.

    This is what replays without relabelling do, and the control for it (`relabel=False`). The scorer itself continues
    to learn; imagined transitions get their rewards from a network fitted to the stored ones. The agent sets
    `timesteps`.
    """

    is_task, keeps, relabelable = False, True, True

    def __init__(self, scorer: Any) -> None:
        self.scorer, self.timesteps = scorer, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["scorer"], name)

    def keep(self, batch: Transitions, memory: Memory) -> tuple[dict[str, Any], Memory]:
        """The rewards of (T, N) transitions as a column, beside those that the scorer learns from."""
        columns, memory = self.scorer.keep(batch, memory)
        own = {name: value for name, value in columns.items() if name in Transitions.__dataclass_fields__}
        rest = {name: value for name, value in columns.items() if name not in own}
        scored = self.scorer.relabel(batch.replace(**own, extras={**batch.extras, **rest}))
        reward = self.scorer.combine(scored, self.timesteps)
        return {**columns, STORED: reward}, memory

    def relabel(self, batch: Transitions) -> dict[str, Any]:
        return {STORED: batch.extras[STORED]}

    def combine(self, raw: dict[str, Any], timesteps: Any) -> Any:
        return raw[STORED] if STORED in raw else self.scorer.combine(raw, timesteps)

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
        *("_queue", "trained", "imagined", "_priority", "_highest", "_counts", "_tail", "count", "_gaps"),
        "_generator",
    )

    def __init__(self, length: int, n_envs: int, sampling: str, device: torch.device, seed: int) -> None:
        if sampling not in SAMPLING:
            raise ValueError(f"sampling={sampling!r} is unknown; give one of {', '.join(SAMPLING)}")
        self.length, self.n_envs, self.sampling, self.device = length, n_envs, sampling, device
        self.size = size = length * n_envs
        self._generator = torch.Generator(device).manual_seed(seed)
        # transitions in order of arrival: `count` places of `_queue` from `_tail` on, first in first out
        self._queue = torch.arange(size, device=device)
        self._tail = self.count = 0
        self._counts = np.zeros(length, np.int64)  # transitions in each time row
        self._gaps = False  # until a row is no transition, a place in the queue is the row itself
        self.trained, self.imagined = torch.zeros((2, size if sampling == "dfs" else 0), device=device)
        self._priority = torch.zeros(size if sampling == "lap" else 0, device=device)
        self._highest = torch.ones((), device=device)

    def add(self, pos: int, valid: np.ndarray) -> None:
        self.forget(pos)
        count = int(valid.sum())
        self._gaps = self._gaps or count < self.n_envs
        if self._gaps and count:
            places = (self._tail + self.count + np.arange(count)) % self.size
            new = torch.from_numpy(np.stack([places, pos * self.n_envs + np.flatnonzero(valid)])).to(self.device)
            self._queue[new[0]] = new[1]
        self._counts[pos] = count
        self.count += count
        here = slice(pos * self.n_envs, (pos + 1) * self.n_envs)
        if self.sampling == "dfs":
            self.trained[here], self.imagined[here] = 0, 0
        elif self.sampling == "lap":
            self._priority[here] = self._highest

    def forget(self, pos: int) -> None:
        gone = self._counts[pos]
        if gone:
            self._tail = int(self._tail + gone) % self.size
            self.count -= int(gone)
            self._counts[pos] = 0

    def newest(self, pos: int, rows: int) -> int:
        """How many transitions the `rows` time rows before `pos` have."""
        return int(self._counts[(pos - 1 - np.arange(rows)) % self.length].sum())

    def in_order(self, begin: int = 0, end: int | None = None) -> Tensor:
        """Rows of all transitions from the oldest to the newest, or of a part of them."""
        return self._rows(torch.arange(begin, self.count if end is None else end, device=self.device))

    def draw(self, batch_size: int, among: int | None = None, *, imagine: bool = False) -> Tensor:
        """Rows (B,), with replacement, of the `among` oldest or all; to begin imagination there, or to learn."""
        if not self.count:
            raise ValueError("the replay is empty; collect transitions before sampling (agent.learning_starts)")
        among = self.count if among is None else among
        if self.sampling == "uniform" or (self.sampling == "lap" and imagine):
            return self._rows(torch.randint(among, (batch_size,), generator=self._generator, device=self.device))
        rows = self.in_order(0, among)
        sums = self.weights(rows, imagine).double().cumsum(0)
        drawn = torch.rand(batch_size, generator=self._generator, device=self.device, dtype=torch.float64)
        return rows[torch.searchsorted(sums, drawn * sums[-1], right=True).clamp_(max=among - 1)]

    def weights(self, rows: Tensor, imagine: bool = False) -> Tensor:
        if self.sampling == "lap":
            return self._priority[rows]
        v = self.trained[rows]
        if not imagine:
            return torch.exp(v.min() - v)
        b = self.imagined[rows]
        b = b * (v.sum() / b.sum().clamp(min=1e-6))
        return torch.where(v > 0, torch.exp((v - b).clamp(-20, 0)), NEVER)

    def used(self, rows: Tensor, share: float = 1.0, *, imagine: bool = False) -> None:
        """Count that rows (B,) were used, each for `share` of a time."""
        if self.sampling == "dfs":
            counts = self.imagined if imagine else self.trained
            counts.index_add_(0, rows, counts.new_full((), share).expand(len(rows)))

    def set_priority(self, rows: Tensor, error: Tensor) -> None:
        if self.sampling == "lap":
            priority = error.detach().abs().clamp(min=1.0).pow(LAP_ALPHA)
            self._priority[rows] = priority
            self._highest = torch.maximum(self._highest, priority.max())

    def _rows(self, order: Tensor) -> Tensor:
        place = order.add_(self._tail).remainder_(self.size)
        return self._queue.index_select(0, place) if self._gaps else place


class Images:
    """uint8 images of a ring of T time rows x N environments, each once; final ones are kept aside if `follows`."""

    def __init__(
        self, shapes: dict[str, tuple[int, ...]], length: int, n_envs: int, device: Any, follows: bool
    ) -> None:
        self.length, self.n_envs, self.follows = length, n_envs, follows
        self.size = length * n_envs
        self.table = {k: torch.empty((self.size, *s), dtype=torch.uint8, device=device) for k, s in shapes.items()}
        self.finals = {key: table[:0].clone() for key, table in self.table.items()}
        self.slot = np.full(self.size if follows else 0, -1, np.int64)  # row -> its place in `finals`, or -1
        self._free: list[int] = []

    def write(self, pos: int, now: dict[str, np.ndarray], after: dict[str, np.ndarray], begins: np.ndarray) -> None:
        """One time row: images of obs and next_obs, (N, C, H, W); where `begins`, bool (N,), an episode does."""
        if not self.table:
            return
        if self.follows:
            following = (pos + 1) % self.length
            places = self.slot[following * self.n_envs : (following + 1) * self.n_envs]
            self._free += places[places >= 0].tolist()
            places[:] = -1
            if begins.any():
                self._keep(pos, np.flatnonzero(begins))
            self._put(following, after)
        self._put(pos, now)

    def at(self, index: np.ndarray) -> dict[str, np.ndarray]:
        return {key: table[index].cpu().numpy() for key, table in self.table.items()}

    def after(self, index: np.ndarray) -> dict[str, np.ndarray]:
        """The images that followed rows (B,)."""
        images = self.at((index + self.n_envs) % self.size)
        slots = self.slot[index]
        final = slots >= 0
        if final.any():
            for key, image in images.items():
                image[final] = self.finals[key][slots[final]].cpu().numpy()
        return images

    def state_dict(self, filled: int) -> dict[str, Any]:
        """The images of the first `filled` time rows, and of the one after them."""
        rows = min(filled + 1, self.length) * self.n_envs
        tables = {key: table[:rows] for key, table in self.table.items()}
        return {"table": tables, "finals": self.finals, "slot": self.slot.copy(), "free": list(self._free)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for key, table in self.table.items():
            saved = torch.as_tensor(state["table"][key])
            table[: len(saved)] = saved.to(table.device)
            self.finals[key] = torch.as_tensor(state["finals"][key]).to(table.device).clone()
        self.slot, self._free = np.array(state["slot"]), [int(x) for x in state["free"]]

    def _put(self, pos: int, images: dict[str, np.ndarray]) -> None:
        for key, image in images.items():
            self.table[key][pos * self.n_envs : (pos + 1) * self.n_envs] = torch.from_numpy(np.ascontiguousarray(image))

    def _keep(self, pos: int, columns: np.ndarray) -> None:
        while len(self._free) < len(columns):
            count = next(iter(self.finals.values())).shape[0]
            more = max(count, 16)
            self.finals = {key: torch.cat([x, x.new_zeros((more, *x.shape[1:]))]) for key, x in self.finals.items()}
            self._free += range(count, count + more)
        slots = np.array([self._free.pop() for _ in columns])
        ended: Tensor = torch.from_numpy(pos * self.n_envs + columns)
        for key, table in self.table.items():
            self.finals[key][torch.from_numpy(slots)] = table[ended]
        self.slot[(pos - 1) % self.length * self.n_envs + columns] = slots
