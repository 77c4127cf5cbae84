"""What an episode has seen so far: counts of cells, an ellipse, neighbours; and the walk of a rollout through them.

A memory is a dict of arrays with leading axis N that its caller keeps. Each kind has `initial(n)` and one walk,

    answers, after = kind.walk(memory, x, valid, ended)     x (T, N, ...), valid and ended bool (T, N)

that answers for each row from what the memory held before it, adds the row, and starts afresh after the last row of an
episode. Rows that are not valid change nothing; their own answer means nothing. The memory handed in is not written
into. A walk along a rollout gives what T walks of one row give.

Source of the ellipse: Henaff et al. 2022, arXiv 2210.05805, section 3. Along a rollout, with M the inverse at its
start, phi_t' C_t^-1 phi_t is the variance that is left at row t of a Gaussian process with kernel phi_i' M phi_j and
noise 1 once the rows before it are known: the diagonal of a Cholesky factor (Rasmussen, Williams 2006, section A.4).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.linalg import solve_triangular

from envs.transitions import Transitions, map_obs
from envs.types import Memory, Obs
from rewards.base import Reward, one_row, values_at_obs

FEW = 4  # rows of time that are counted one by one
PIECE = 64  # rows of time in one piece of linear algebra, whose cost grows with the square and the cube


class EpisodeMemory:
    """Base class of memories; unless `walk` is overridden, `piece` takes in a part of a rollout at once.

    `kernel` gives the module of compiled walks where they are to be taken (`rewards.exploration.compiled`), else None.
    """

    kernel: Callable[[], Any] = staticmethod(lambda: None)
    compiled = ""  # its walk's name there; it takes the memory, which it changes, x, valid, ended and `settings`
    settings: tuple[Any, ...] = ()

    def initial(self, n: int) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def walk(self, memory: Memory, x: np.ndarray, valid: np.ndarray, ended: np.ndarray) -> tuple[np.ndarray, Memory]:
        """Answers (T, N, ...) for x (T, N, ...), and the memory after it."""
        if self.compiled and (kernel := self.kernel()):
            after = {name: memory[name].copy() for name in self.initial(0)}
            given = map(np.ascontiguousarray, (x, valid, ended))
            return getattr(kernel, self.compiled)(*after.values(), *given, *self.settings), after
        answers = []
        for i in range(0, len(x), PIECE):
            rows = slice(i, i + PIECE)
            answer, memory = self.piece(memory, x[rows].swapaxes(0, 1), valid[rows].T, ended[rows].T)
            answers.append(answer.swapaxes(0, 1))
        return (np.concatenate(answers) if len(answers) > 1 else answers[0]), memory

    def piece(self, memory: Memory, x: np.ndarray, valid: np.ndarray, ended: np.ndarray) -> tuple[np.ndarray, Memory]:
        """One piece, with the axes (N, T, ...): x (N, T, D), valid and ended bool (N, T)."""
        raise NotImplementedError


class Episodic(Reward):
    """Base class of bonuses whose `scan` walks a rollout through `self.memory`; `score` is a rollout of one row."""

    relabelable = False  # what an episode has seen does not follow from one transition
    memory: EpisodeMemory

    def initial_memory(self, n: int) -> Memory:
        return self.memory.initial(n)

    def score(self, batch: Transitions, memory: Memory = None) -> tuple[np.ndarray, Memory]:
        raw, memory = self.scan(one_row(batch), memory)
        return raw[0], memory

    def walk(
        self, batch: Transitions, memory: Memory, function: Callable[[Obs], np.ndarray]
    ) -> tuple[np.ndarray, Memory]:
        """What `self.memory` answers for `function` of each `next_obs`, (T, N, ...), and the memory after it."""
        visits = Visits(batch)
        answers, memory = self.memory.walk(memory, visits.of(function), visits.valid, visits.ended)
        return answers[visits.rows], memory


class Visits:
    """The states that a rollout (T, N) visits: each `next_obs`, and before it the `obs` that an episode begins in.

    `valid`, bool (S, N), S >= T, are those that were visited: a row of first states stands only where some environment
    begins an episode. `ended`, bool (S, N), are the last states of episodes.
    """

    def __init__(self, batch: Transitions) -> None:
        self.batch = batch
        self.first = (batch.step == 0) & batch.valid
        extra = self.first.any(axis=1)
        self.rows = np.arange(len(extra)) + np.cumsum(extra)  # where each next_obs stands
        self.begun, self.column = np.nonzero(self.first)
        shape = (len(extra) + int(extra.sum()), batch.shape[1])
        self.valid, self.ended = np.zeros(shape, bool), np.zeros(shape, bool)
        self.valid[self.rows], self.ended[self.rows] = batch.valid, batch.ended
        self.valid[self.rows[self.begun] - 1, self.column] = True

    def of(self, function: Callable[[Obs], np.ndarray]) -> np.ndarray:
        """`function` of the states, (S, N, ...), from one that takes and returns rows (M, ...)."""
        after = function(self.batch.flatten().next_obs)
        after = after.reshape(*self.batch.shape, *after.shape[1:])
        if len(self.begun) == 0:
            return after
        values = np.zeros((*self.valid.shape, *after.shape[2:]), after.dtype)
        values[self.rows] = after
        values[self.rows[self.begun] - 1, self.column] = function(map_obs(lambda x: x[self.first], self.batch.obs))
        return values


def both(function: Callable[[Obs], np.ndarray], batch: Transitions) -> tuple[np.ndarray, np.ndarray]:
    """`function` of `obs` and of `next_obs`, (T, N, ...) each, from one that takes and returns rows (M, ...)."""
    after = function(batch.flatten().next_obs)
    after = after.reshape(*batch.shape, *after.shape[1:])
    return values_at_obs(batch, after, lambda rows: function(map_obs(lambda x: x[rows], batch.obs))), after


class CountMemory(EpisodeMemory):
    """How often each cell, a 64-bit key above 0, was visited; the oldest cells are forgotten first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    def initial(self, n: int) -> dict[str, np.ndarray]:
        return {
            "cells": np.zeros((n, self.capacity), np.uint64),  # 0 is an empty place
            "visits": np.zeros((n, self.capacity), np.int64),
            "filled": np.zeros(n, np.int64),  # places written so far; beyond the capacity it wraps
        }

    def walk(self, memory: Memory, x: np.ndarray, valid: np.ndarray, ended: np.ndarray) -> tuple[np.ndarray, Memory]:
        """Visits of keys x (T, N), uint64, this one included: int64 (T, N)."""
        if len(x) > FEW and memory["filled"].max(initial=0) + len(x) <= self.capacity:
            return self._at_once(memory, x, valid, ended)
        after = {name: values.copy() for name, values in memory.items()}
        cells, visits, filled = after["cells"], after["visits"], after["filled"]
        answers = np.empty(x.shape, np.int64)
        rows = np.arange(x.shape[1])
        for t, (key, live) in enumerate(zip(x, valid)):
            match = cells == key[:, None]
            place = match.argmax(axis=1)
            seen = match[rows, place]
            place = np.where(seen, place, filled % self.capacity)
            # a place that is taken over starts again
            answers[t] = number = np.where(seen, visits[rows, place], 0) + 1
            cells[rows, place] = np.where(live, key, cells[rows, place])
            visits[rows, place] = np.where(live, number, visits[rows, place])
            filled += live & ~seen
            if ended[t].any():
                for values in after.values():
                    values[ended[t]] = 0
        return answers, after

    def _at_once(
        self, memory: Memory, x: np.ndarray, valid: np.ndarray, ended: np.ndarray
    ) -> tuple[np.ndarray, Memory]:
        """The walk where nothing is forgotten: visits sorted by environment, episode and cell, each cell's in time."""
        episode, last = _episodes(ended.T)
        held = np.nonzero(memory["visits"])
        env, time = np.nonzero(valid.T)
        envs = np.concatenate([held[0], env])
        group = envs * (len(x) + 1) + np.concatenate([np.zeros_like(held[0]), episode[env, time]])
        keys = np.concatenate([memory["cells"][held], x[time, env]])
        weight = np.concatenate([memory["visits"][held], np.ones_like(env)])
        order = np.lexsort((keys, group))
        fresh = np.ones(len(order), bool)
        fresh[1:] = (np.diff(keys[order]) != 0) | (np.diff(group[order]) != 0)
        begin = np.flatnonzero(fresh)
        through = np.cumsum(weight[order])
        number = np.empty_like(through)
        number[order] = through - (through - weight[order])[begin][np.cumsum(fresh) - 1]
        answers = np.ones(x.shape, np.int64)
        answers[time, env] = number[len(held[0]) :]
        # places in the order of the first visit; those that were held come first, and are all there
        first, visits = order[begin], np.add.reduceat(weight[order], begin) if len(begin) else weight
        kept = np.flatnonzero(group[first] == envs[first] * (len(x) + 1) + last[envs[first]])
        kept = kept[np.lexsort((first[kept], envs[first[kept]]))]
        row = envs[first[kept]]
        place = np.arange(len(row)) - np.searchsorted(row, row)
        after = {name: np.zeros_like(values) for name, values in memory.items()}
        after["cells"][row, place], after["visits"][row, place] = keys[first[kept]], visits[kept]
        after["filled"] += np.bincount(row, minlength=x.shape[1])
        return answers, after


def _episodes(ended: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number of each row's episode (N, T), 0 for the one that the memory is of; and of the one that follows, (N,)."""
    through = np.cumsum(ended, axis=1)
    return through - ended, through[:, -1]


class EllipticalMemory(EpisodeMemory):
    """The inverse of C = ridge I + sum of phi phi'; a row's answer is phi' C^-1 phi with the C of before it: 1 / (ridge
    + n - 1) at the n-th visit of a direction.
    """

    compiled = "ellipse"

    def __init__(self, features: int, ridge: float) -> None:
        self.features, self.ridge = features, ridge
        self.settings = (float(ridge),)

    def initial(self, n: int) -> dict[str, np.ndarray]:
        return {"inverse": np.tile(np.eye(self.features) / self.ridge, (n, 1, 1))}

    def piece(self, memory: Memory, x: np.ndarray, valid: np.ndarray, ended: np.ndarray) -> tuple[np.ndarray, Memory]:
        """Answers float64 (N, T), at least 0."""
        inverse = memory["inverse"]
        episode, last = _episodes(ended)
        phi = x.astype(np.float64)
        phi[~valid] = 0
        spread = phi @ inverse
        later = episode > 0
        spread[later] = phi[later] / self.ridge
        kernel = phi @ spread.swapaxes(1, 2)
        if last.any():
            kernel[episode[:, :, None] != episode[:, None, :]] = 0
        places = np.arange(x.shape[1])
        kernel[:, places, places] += 1
        lower = np.linalg.cholesky(kernel)
        answers = np.maximum(lower[:, places, places] ** 2 - 1, 0)
        # Woodbury: what the rows of the continuing episode take away from the inverse at its start
        spread[episode != last[:, None]] = 0
        taken = solve_triangular(torch.from_numpy(lower), torch.from_numpy(spread), upper=False).numpy()
        inverse = inverse.copy()
        inverse[last > 0] = np.eye(self.features) / self.ridge
        inverse -= taken.swapaxes(1, 2) @ taken
        return answers, {"inverse": inverse}


class NeighbourMemory(EpisodeMemory):
    """The newest `capacity` rows of an episode; a row's answer is its squared distances to the k nearest of them."""

    compiled = "neighbours"

    def __init__(self, capacity: int, features: int, k: int) -> None:
        self.capacity, self.features, self.k = capacity, features, k
        self.settings = (k,)

    def initial(self, n: int) -> dict[str, np.ndarray]:
        return {
            "ring": np.zeros((n, self.capacity, self.features), np.float32),
            "filled": np.zeros(n, np.int64),  # rows written so far; beyond the capacity the ring wraps
        }

    def distances(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Squared distances (N, T, S) between x (N, T, D) and y (N, S, D)."""
        x, y = x.astype(np.float64), y.astype(np.float64)  # what is left of near rows drowns in float32
        squares = x @ y.swapaxes(1, 2)
        squares *= -2
        squares += np.square(x).sum(axis=2)[:, :, None]
        squares += np.square(y).sum(axis=2)[:, None, :]
        return np.maximum(squares, 0, out=squares)

    def piece(self, memory: Memory, x: np.ndarray, valid: np.ndarray, ended: np.ndarray) -> tuple[np.ndarray, Memory]:
        """Answers float64 (N, T, k), ascending, infinite where the episode held fewer."""
        ring, filled = memory["ring"], memory["filled"]
        episode, last = _episodes(ended)
        # the number of each write within its episode; what is `capacity` writes old has been overwritten
        before = np.cumsum(valid, axis=1) - valid
        begins = np.zeros_like(ended)
        begins[:, 1:] = ended[:, :-1]
        number = before - np.maximum.accumulate(np.where(begins, before, 0), axis=1)
        number += np.where(episode == 0, filled[:, None], 0)
        oldest = np.maximum(number - self.capacity, 0)[:, :, None]
        # the number of the write that each place of the ring holds; negative for an empty one
        place = np.arange(min(self.capacity, filled.max()))
        newest = filled[:, None] - 1
        held = newest - (newest - place) % self.capacity
        in_ring = (episode == 0)[:, :, None] & (held[:, None, :] >= oldest)
        in_piece = (episode[:, :, None] == episode[:, None, :]) & valid[:, None, :] & (number[:, None, :] >= oldest)
        in_piece &= np.tri(x.shape[1], k=-1, dtype=bool)
        squares = np.concatenate([self.distances(x, ring[:, : len(place)]), self.distances(x, x)], axis=2)
        squares[~np.concatenate([in_ring, in_piece], axis=2)] = np.inf
        filled = np.where(last == 0, filled, 0)
        ring = ring.copy()
        ring[last > 0] = 0
        keep = valid & (episode == last[:, None])
        filled = filled + keep.sum(axis=1)
        rows, times = np.nonzero(keep & (number >= filled[:, None] - self.capacity))
        ring[rows, number[rows, times] % self.capacity] = x[rows, times]
        return self.nearest(squares), {"ring": ring, "filled": filled}

    def nearest(self, squares: np.ndarray) -> np.ndarray:
        """The k smallest of (N, T, S) along the last axis, ascending, filled up with infinity."""
        missing = self.k - squares.shape[2]
        if missing > 0:
            squares = np.pad(squares, ((0, 0), (0, 0), (0, missing)), constant_values=np.inf)
        elif missing < 0:
            squares = np.partition(squares, self.k - 1, axis=2)[:, :, : self.k]
        return np.sort(squares, axis=2)
