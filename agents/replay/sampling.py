"""Which of the rows of a replay are drawn, and how often.

    uniform   each alike
    lap       as often as max(|error|, 1)^0.4; a new row as often as the most wrong so far (Fujimoto, Meger & Precup
              2020, "An Equivalence between Loss Functions and Non-Uniform Sampling", arXiv 2007.06049, equation 8)
    dfs       by frequency (Drama: Wang et al. 2025, arXiv 2410.08893): the model is trained on what it has seldom been
              trained on, and imagination begins where it has been trained

`dfs` counts, for every row, how often it has trained the model, v, and how often imagination began there, b. A row
trains in proportion to exp(-v). Imagination begins in proportion to exp(min(v - b', 0)), b' = b sum(v) / sum(b), at
rows with v > 0.
Differences from the source:
  - a window of L rows counts 1 / L for each of them, not 1 for its first;
  - b is measured in units of v, so that it does not matter how many more rollouts than windows there are;
  - rows that have never trained the model begin nothing.
When it fails: where all rows are used alike it is uniform sampling, at the cost of a pass over all counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

SAMPLING = ("uniform", "dfs", "lap")
LAP_ALPHA = 0.4  # the source's
NEVER = 1e-12  # weight of a row that is drawn only if all others are as well


class Sampler:
    """Draws rows of a ring of T time rows x N environments, of which some are no transitions.

    Args:
        length: T.
        n_envs: N.
        sampling: `uniform`, `dfs` or `lap`.
        device: where rows are drawn.
        seed: of what is drawn.

    Attributes:
        count: transitions that can be drawn.

    Raises:
        ValueError: for an unknown way of sampling.
    """

    def __init__(self, length: int, n_envs: int, sampling: str, device: torch.device, seed: int) -> None:
        if sampling not in SAMPLING:
            raise ValueError(f"sampling={sampling!r} is unknown; give one of {', '.join(SAMPLING)}")
        self.length, self.n_envs, self.sampling, self.device = length, n_envs, sampling, device
        self.size = size = length * n_envs
        self._generator = torch.Generator(device).manual_seed(seed)
        # transitions in the order they came: `count` places of `_queue` from `_tail` on, first in first out
        self._queue = torch.arange(size, device=device)
        self._tail = self.count = 0
        self._counts = np.zeros(length, np.int64)  # transitions in each time row
        self._gaps = False  # until a row is no transition, a place in the queue is the row itself
        self.trained, self.imagined = torch.zeros((2, size if sampling == "dfs" else 0), device=device)
        self._priority = torch.zeros(size if sampling == "lap" else 0, device=device)
        self._highest = torch.ones((), device=device)

    def add(self, pos: int, valid: np.ndarray) -> None:
        """A time row is written; `valid` bool (N,) says which of it are transitions."""
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
        """The transitions of a time row, the oldest, are drawn no more."""
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
        """Rows (B,), with replacement.

        Args:
            batch_size: B.
            among: only the oldest so many; None for all.
            imagine: what for: to begin imagination, or to learn.

        Raises:
            ValueError: if there are none.
        """
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
        """How often rows are drawn, up to a factor."""
        if self.sampling == "lap":
            return self._priority[rows]
        v = self.trained[rows]
        if not imagine:
            return torch.exp(v.min() - v)
        b = self.imagined[rows]
        b = b * (v.sum() / b.sum().clamp(min=1e-6))
        return torch.where(v > 0, torch.exp((v - b).clamp(-20, 0)), NEVER)

    def used(self, rows: Tensor, share: float = 1.0, *, imagine: bool = False) -> None:
        """Rows (B,) were used, each for `share` of a time."""
        if self.sampling == "dfs":
            counts = self.imagined if imagine else self.trained
            counts.index_add_(0, rows, counts.new_full((), share).expand(len(rows)))

    def set_priority(self, rows: Tensor, error: Tensor) -> None:
        """How wrong the values of rows (B,) were; they were drawn with `sampling=lap`."""
        if self.sampling == "lap":
            priority = error.detach().abs().clamp(min=1.0).pow(LAP_ALPHA)
            self._priority[rows] = priority
            self._highest = torch.maximum(self._highest, priority.max())

    def _rows(self, order: Tensor) -> Tensor:
        place = order.add_(self._tail).remainder_(self.size)
        return self._queue.index_select(0, place) if self._gaps else place

    def state_dict(self) -> dict[str, Any]:
        """Everything that moves."""
        tensors = ("_queue", "trained", "imagined", "_priority", "_highest")
        return {
            "tensors": {name: getattr(self, name).clone() for name in tensors},
            "counts": self._counts.copy(),
            "numbers": [self._tail, self.count, int(self._gaps)],
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""
        for name, value in state["tensors"].items():
            getattr(self, name).copy_(torch.as_tensor(value))
        self._counts = np.array(state["counts"])
        self._tail, self.count = int(state["numbers"][0]), int(state["numbers"][1])
        self._gaps = bool(state["numbers"][2])
        self._generator.set_state(torch.as_tensor(state["generator"]).cpu())
