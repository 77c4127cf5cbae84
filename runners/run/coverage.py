"""How much a run has seen, whatever it is rewarded with: a figure for curiosity alone, which has no return."""

import re
from typing import Any

import gymnasium as gym
import numpy as np

from envs.types import Obs
from lodestar.state import Stateful
from rewards.exploration.count import CountTable, Hash
from runners.run.config import UsageError

CELLS = 1_000_000  # distinguished at most; beyond, those least visited are forgotten


class Coverage(Stateful):
    """Counts the cells of the observations that an agent acts on; the last one of an episode is not among them.

    `of` is `all`, or `A:B` for the numbers A to B - 1 of a vector: where the agent is, without the noise beside it;
    `width` that of a cell, for numbers that are no integers. A UsageError for a part that observations do not have.
    """

    saved = ("table", "recent")

    def __init__(self, of: str, width: float, space: gym.Space) -> None:
        self.slice = slice(None)
        if of != "all":
            found, shape = re.fullmatch(r"(\d+):(\d+)", of), space.shape
            size = shape[0] if isinstance(space, gym.spaces.Box) and shape is not None and len(shape) == 1 else 0
            low, high = map(int, found.groups()) if found else (0, 0)
            if not low < high <= size:
                fix = f"two numbers from 0 to {size}, as in 0:{min(size, 2)}, or all" if size else "all"
                raise UsageError(f"coverage={of} is no part of the observation {space}; give {fix}")
            self.slice = slice(low, high)
            whole: Any = space
            space = gym.spaces.Box(whole.low[self.slice], whole.high[self.slice], dtype=whole.dtype)
        self.hash, self.table = Hash(space, [], width), CountTable(CELLS)
        self.recent = np.zeros(0, np.uint64)  # cells since the last row of the log
        self._waiting: list[np.ndarray] = []

    def add(self, obs: Obs) -> None:
        """Count observations (N, ...), of NumPy or torch."""
        if not isinstance(obs, dict):
            obs = np.asarray(obs.cpu() if hasattr(obs, "cpu") else obs)
            obs = obs if self.slice == slice(None) else obs[:, self.slice]
        self._waiting.append(self.hash(obs))

    def count(self) -> None:
        """Add what waits to the table."""
        if self._waiting:
            keys = np.concatenate(self._waiting)
            self._waiting.clear()
            self.table.add(keys)
            self.recent = np.union1d(self.recent, keys)

    def state_dict(self) -> dict[str, Any]:
        self.count()
        return super().state_dict()

    def metrics(self) -> dict[str, float]:
        """For a row of the log."""
        self.count()
        share = self.table.counts / max(self.table.counts.sum(), 1)
        found = {"cells": len(share), "recent": len(self.recent), "entropy": -(share * np.log(share)).sum()}
        self.recent = self.recent[:0]
        return {f"coverage/{name}": float(value) for name, value in found.items()}
