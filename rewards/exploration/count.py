"""Count-based bonus: a reward by how often a state was visited before, floats being rounded to bins of width `bin`.

The first-visit bonus is nearly free, and the control that every learned bonus has to beat in procedural worlds.
Source: Strehl, Littman 2008 (1/sqrt(n)); Tang et al. 2017, arXiv 1611.04717 (observations told apart by a hash, here
of 64 bits); Raileanu, Rocktaeschel 2020, arXiv 2002.12292 (counts within the episode).
Differences: floats are rounded to cells instead of projected (no SimHash); an episode remembers its latest `capacity`
cells, and not the state that it began in; visits within one rollout see the same n of a lifetime table.
Fails when: no two observations are alike (noise, clocks, textures) or `bin` is so coarse that all are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from envs.transitions import Transitions
from envs.types import Memory, Obs
from lodestar.settings import setting
from lodestar.state import Stateful
from rewards.base import Metrics, RewardConfig, Walk, compute_once
from rewards.exploration.learned import numeric_spaces, obs_entry, refuse_rows
from rewards.exploration.memories import CountMemory, Episodic

BONUS_KINDS = ("first", "sqrt")
MAX_TABLE_CELLS = {"episode": 1024, "lifetime": 1_000_000}
HASH_SEED = 0x9E3779B97F4A7C15  # not of the run: the same cell has the same key in every run
MAX_CELL = 2.0**62  # numbers of cells beyond it, such as infinity's, become it: they fit into 64 bits


@dataclass
class CellSettings:
    """Settings of every bonus that counts the cells of an episode."""

    bin: Any = setting(0.1, "width of a cell of floats: one, or one for each", "> 0", tune=(0.01, 1.0, "log"))
    capacity: int = setting(1024, "distinct cells that an episode remembers", ">= 1")


@dataclass
class CountConfig(RewardConfig, CellSettings):
    """Settings of the count bonus. A weight of 0.01 solves MiniGrid's KeyCorridorS3R2, whose reward is at most 1."""

    weight: Any = setting(0.01, tune=(1e-4, 1.0, "log"))
    kind: str = setting(
        "first", "first: 1 for a new cell; sqrt: 1/sqrt(n)", choices=BONUS_KINDS, tune=(*BONUS_KINDS, "choice")
    )
    memory: str = setting(
        "episode", "a lifetime's, or an episode's", choices=(*MAX_TABLE_CELLS,), tune=(*MAX_TABLE_CELLS, "choice")
    )
    episodic: bool | None = None
    keys: list[str] = setting([], "entries of a Dict observation to count; empty counts all")
    capacity: int | None = setting(  # type: ignore[assignment]
        None, "distinct cells remembered, by each environment or for life; null is 1,024 or 1,000,000", ">= 1"
    )


class Count(Episodic):
    """r(s') = 1[n(s') = 1] or 1/sqrt(n(s')), where n counts this visit too."""

    Config = CountConfig

    def build(self) -> None:
        config = self.config
        self.kind = config.kind
        self.lifetime = config.memory == "lifetime"
        # What an episode has seen does not follow from a transition drawn out of a replay buffer.
        self.relabelable = self.lifetime
        self.hash = Hash(self.observation_space, config.keys, config.bin)
        capacity = config.capacity or MAX_TABLE_CELLS[config.memory]
        self.memory = CountMemory(capacity)
        self.table = CountTable(capacity if self.lifetime else 0)

    def initial_memory(self, n: int) -> Memory:
        return None if self.lifetime else self.memory.initial(n)

    def scan(self, batch: Transitions, memory: Memory) -> Walk:
        keys = self.hash(batch.flatten().next_obs).reshape(batch.shape)
        n, memory = self.memory.walk(memory, keys, batch.valid, batch.ended)
        return self._bonus(n), memory

    def score(self, batch: Transitions, memory: Memory = None) -> Any:
        if self.lifetime:
            visits_before = self.table.count(self.hash(batch.next_obs))
            return self._bonus(visits_before + 1)
        return super().score(batch, memory)

    def update(self, batch: Transitions) -> Metrics:
        if not self.lifetime:
            return {}
        batch = batch.flatten()
        keys = self.hash(batch.next_obs)
        self.table.add(keys[batch.valid])
        return {"cells": len(self.table.keys)}

    def _bonus(self, n: np.ndarray) -> np.ndarray:
        bonus = n == 1 if self.kind == "first" else n**-0.5
        return bonus.astype(np.float32)


class Hash:
    """Observations (N, ...) -> uint64 (N,), never 0, without a loop over rows; FloatingPointError if one has a NaN.

    Each 64-bit word is folded, multiplied by a number of its position, and folded again; the key is the sum.
    """

    def __init__(self, space: gym.Space, keys: Sequence[str], bin: Any, reward: str = "count") -> None:
        self.reward = reward
        self.parts = numeric_spaces(space, keys, reward)
        self.bins: dict[str, np.ndarray] = {}  # widths of cells, of the parts that are floats
        for key, box in self.parts.items():
            if np.issubdtype(box.dtype, np.floating):
                size = math.prod(box.shape or ())
                self.bins[key] = _cell_widths(bin, size, key, reward)
        bin_bytes = tuple((key, widths.tobytes()) for key, widths in self.bins.items())
        self.key = ("cells", id(space), tuple(keys), bin_bytes)
        self.multipliers: dict[str, Any] = {}

    def __call__(self, obs: Obs) -> np.ndarray:
        return compute_once(obs, lambda: self.key, lambda: self._cells(obs))

    def _cells(self, obs: Obs) -> np.ndarray:
        total: Any = np.uint64(0)
        for salt, (key, box) in enumerate(self.parts.items()):
            # Drivers differ in dtype and in a trailing axis of one; the space decides.
            values = np.asarray(obs_entry(obs, key)).astype(box.dtype, copy=False)
            words = self._words(values.reshape(len(values), -1), key)
            # A product modulo 2**64 keeps little of what differs in the high bits alone, so they are folded in.
            words ^= words >> np.uint64(32)
            if key not in self.multipliers:
                rng = np.random.default_rng([HASH_SEED, salt])
                numbers = rng.integers(0, 2**64, words.shape[1], dtype=np.uint64)
                # A product with an odd number is a bijection.
                self.multipliers[key] = numbers | np.uint64(1)
            words *= self.multipliers[key]
            words ^= words >> np.uint64(29)
            total = total + words.sum(axis=1, dtype=np.uint64)
        return np.maximum(total, np.uint64(1))

    def _words(self, values: np.ndarray, key: str) -> np.ndarray:
        if key in self.bins:
            cells = np.rint(values / self.bins[key])
            # A NaN has no cell; infinity lies in the outermost.
            if np.isnan(cells.min(initial=0)):
                refuse_rows(np.where(np.isnan(cells), cells, 0), self.reward)
            return np.clip(cells, -MAX_CELL, MAX_CELL).astype(np.int64).view(np.uint64)
        # The bytes of a row are filled up with zeros to whole words of 8.
        width = values.shape[1] * values.itemsize
        n = len(values)
        rows = np.zeros((n, math.ceil(width / 8) * 8), np.uint8)
        value_bytes = np.ascontiguousarray(values).view(np.uint8)
        rows[:, :width] = value_bytes.reshape(n, width)
        return rows.view(np.uint64)


def _cell_widths(bin: Any, size: int, key: str, reward: str) -> np.ndarray:
    try:
        widths = np.asarray(bin, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"reward.{reward}.bin={bin!r} is neither a number nor a list of numbers") from None
    if widths.ndim and widths.shape != (size,):
        where = f"the entry {key!r} of the observation" if key else "the observation"
        raise ValueError(
            f"reward.{reward}.bin={bin} has {widths.size} numbers, {where} has {size}; give one, or {size}"
        )
    return widths


class CountTable(Stateful):
    """How often each key was added: sorted keys beside their counts."""

    saved = ("keys", "counts")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.keys = np.zeros(0, np.uint64)
        self.counts = np.zeros(0, np.int64)

    def count(self, keys: np.ndarray) -> np.ndarray:
        """Visits of each key (N,), 0 for the unknown."""
        if len(self.keys) == 0:
            return np.zeros(len(keys), np.int64)
        last = len(self.keys) - 1
        place = np.minimum(np.searchsorted(self.keys, keys), last)
        return np.where(self.keys[place] == keys, self.counts[place], 0)

    def add(self, keys: np.ndarray) -> None:
        """Count one visit of each key; beyond the capacity the least visited are forgotten."""
        new, visits = np.unique(keys, return_counts=True)
        merged, index = np.unique(np.concatenate([self.keys, new]), return_inverse=True)
        counts = np.zeros(len(merged), np.int64)
        np.add.at(counts, index, np.concatenate([self.counts, visits]))
        if len(merged) > self.capacity:
            most_visited = np.argsort(-counts, kind="stable")[: self.capacity]
            # Keys stay sorted, as `count` searches among them.
            most_visited.sort()
            merged = merged[most_visited]
            counts = counts[most_visited]
        self.keys = merged
        self.counts = counts
