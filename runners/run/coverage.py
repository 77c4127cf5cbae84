"""How much a run has seen, whatever it is rewarded with: a figure for curiosity alone, which has no return."""

import re
from typing import Any

import gymnasium as gym
import numpy as np

from envs.types import Obs, StateDict
from lodestar.state import Stateful
from rewards.exploration.count import CountTable, Hash
from runners.run.config import UsageError

# Cells that are distinguished at most; beyond, those least visited are forgotten.
MAX_COVERAGE_CELLS = 1_000_000


class Coverage(Stateful):
    """Counts the cells of the observations that an agent acts on; the last one of an episode is not among them.

    `of` is `all`, or `A:B` for the numbers A to B - 1 of a vector: where the agent is, without the noise beside it;
    `width` that of a cell, for numbers that are no integers. A UsageError for a part that observations do not have.
    """

    saved = ("table", "recent")

    def __init__(self, of: str, width: float, space: gym.Space) -> None:
        self.slice = slice(None)
        if of != "all":
            self.slice = part_of_vector(of, space)
            vector: Any = space
            space = gym.spaces.Box(vector.low[self.slice], vector.high[self.slice], dtype=vector.dtype)
        self.hash = Hash(space, [], width)
        self.table = CountTable(MAX_COVERAGE_CELLS)
        # Cells since the last row of the log.
        self.recent = np.zeros(0, np.uint64)
        self._waiting: list[np.ndarray] = []

    def add(self, obs: Obs) -> None:
        """Count observations (N, ...), of NumPy or torch."""
        if not isinstance(obs, dict):
            if hasattr(obs, "cpu"):
                obs = obs.cpu()
            obs = np.asarray(obs)
            # Without `of` an observation may be a single number.
            if self.slice != slice(None):
                obs = obs[:, self.slice]
        self._waiting.append(self.hash(obs))

    def count(self) -> None:
        """Add what waits to the table."""
        if self._waiting:
            keys = np.concatenate(self._waiting)
            self._waiting.clear()
            self.table.add(keys)
            self.recent = np.union1d(self.recent, keys)

    def state_dict(self) -> StateDict:
        self.count()
        return super().state_dict()

    def metrics(self) -> dict[str, float]:
        """For a row of the log."""
        self.count()
        counts = self.table.counts
        share = counts / max(counts.sum(), 1)
        values = {
            "coverage/cells": float(len(share)),
            "coverage/recent": float(len(self.recent)),
            "coverage/entropy": float(-(share * np.log(share)).sum()),
        }
        self.recent = self.recent[:0]
        return values


def part_of_vector(of: str, space: gym.Space) -> slice:
    """The numbers `A:B` of a vector; a UsageError where observations have no such part."""
    size = 0
    if isinstance(space, gym.spaces.Box) and len(space.shape) == 1:
        size = space.shape[0]
    match = re.fullmatch(r"(\d+):(\d+)", of)
    if match:
        low, high = map(int, match.groups())
        if low < high <= size:
            return slice(low, high)
    fix = "all"
    if size:
        fix = f"two numbers from 0 to {size}, as in 0:{min(size, 2)}, or all"
    raise UsageError(f"coverage={of} is no part of the observation {space}; give {fix}")
