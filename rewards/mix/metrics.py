"""Metrics of a mix: each stream's mean and share, its correlation with the task, and the return of an episode."""

from __future__ import annotations

import functools
import math
from collections import deque
from typing import Any

import numpy as np

from envs.types import Transitions


class MixMetrics:
    """Means, shares of the total, correlation with the task, learned return of the last 100 episodes."""

    def __init__(self) -> None:
        self.running = np.zeros(0)  # learned return of the running episode, per environment
        self.returns: deque[float] = deque(maxlen=100)  # of the last 100 episodes

    def update(self, batch: Transitions, raw: dict[str, np.ndarray], parts: dict[str, np.ndarray]) -> dict[str, float]:
        """Metrics by tag of a rollout (T, N), given each stream's scores and its weighted, scaled reward."""
        valid = batch.valid
        metrics: dict[str, float] = {}
        if not valid.any():
            return metrics
        pick = np.ravel if valid.all() else functools.partial(np.compress, valid.ravel())
        sizes = {name: float(np.abs(pick(part)).mean()) for name, part in parts.items()}
        everything = sum(sizes.values())
        task = pick(batch.reward).astype(np.float64)
        task -= task.mean()
        for name, value in raw.items():
            rows = pick(value).astype(np.float64)
            mean = rows.mean()
            metrics[f"reward/{name}"] = float(mean)
            metrics[f"reward/{name}_share"] = sizes[name] / everything if everything > 0 else 0.0
            rows -= mean
            norm = math.sqrt(rows.dot(rows) * task.dot(task))
            if name != "task" and norm > 1e-12 * len(rows):
                metrics[f"reward/{name}_corr"] = float(rows.dot(task)) / norm
        total = functools.reduce(np.add, parts.values())
        metrics["reward/total"] = float(pick(total).mean())
        self._episodes(np.where(valid, total, 0.0), batch.ended, valid)
        if self.returns:
            metrics["rollout/ep_learned_mean"] = float(np.mean(self.returns))
        return metrics

    def _episodes(self, total: np.ndarray, ended: np.ndarray, valid: np.ndarray) -> None:
        if len(self.running) != total.shape[1]:
            self.running = np.zeros(total.shape[1])
        start = 0
        for t in map(int, np.flatnonzero(ended.any(axis=1))):
            self.running = self.running + total[start : t + 1].sum(axis=0)
            self.returns.extend(self.running[ended[t] & valid[t]].tolist())  # a lost episode does not count
            self.running = np.where(ended[t], 0.0, self.running)
            start = t + 1
        self.running = self.running + total[start:].sum(axis=0)

    def state_dict(self) -> dict[str, Any]:
        return {"running": self.running, "returns": list(self.returns)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.running = np.array(state["running"])
        self.returns = deque(state["returns"], maxlen=100)
