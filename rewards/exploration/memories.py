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
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.linalg import solve_triangular

from envs.transitions import Transitions, index_obs
from envs.types import Memory, Obs
from lodestar.mappings import map_values
from rewards.base import Reward, Walk, one_row, values_at_obs

MAX_SINGLE_STEPS = 4  # rows of time that are counted one by one
PIECE_STEPS = 64  # rows of time in one piece of linear algebra, whose cost grows with the square and the cube


class EpisodeMemory:
    """Base class of memories; unless `walk` is overridden, `piece` takes in a part of a rollout at once.

    `kernel` gives the module of compiled walks where they are to be taken (`rewards.exploration.compiled`), else None.
    """

    kernel: Callable[[], Any] = staticmethod(lambda: None)
    compiled = ""  # its walk's name there; it takes the memory, which it changes, x, valid, ended and `settings`
    settings: tuple[Any, ...] = ()

    def initial(self, n: int) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def walk(self, memory: Memory, x: np.ndarray, valid: np.ndarray, ended: np.ndarray) -> Walk:
        """Answers (T, N, ...) for x (T, N, ...), and the memory after it."""
        kernel = self.kernel()
        if kernel:
            compiled_walk = getattr(kernel, self.compiled)
            after = {name: memory[name].copy() for name in self.initial(0)}
            rollout = map(np.ascontiguousarray, (x, valid, ended))
            return compiled_walk(*after.values(), *rollout, *self.settings), after
        answers = []
        for start in range(0, len(x), PIECE_STEPS):
            rows = slice(start, start + PIECE_STEPS)
            piece = x[rows].swapaxes(0, 1)
            answer, memory = self.piece(memory, piece, valid[rows].T, ended[rows].T)
            answers.append(answer.swapaxes(0, 1))
        return np.concatenate(answers), memory

    def piece(self, memory: Memory, x: np.ndarray, valid: np.ndarray, ended: np.ndarray) -> Walk:
        """One piece, with the axes (N, T, ...): x (N, T, D), valid and ended bool (N, T)."""
        raise NotImplementedError


class Episodic(Reward):
    """Base class of bonuses whose `scan` walks a rollout through `self.memory`; `score` is a rollout of one row.

    It has a method `phi(obs)`, what the memory sees of observations (M, ...), and `bonus(answers)`, what the memory's
    answers are worth, float32; or a `scan` of its own.
    """

    relabelable = False  # what an episode has seen does not follow from one transition
    memory: EpisodeMemory
    phi: Any
    bonus: Any

    def initial_memory(self, n: int) -> Memory:
        return self.memory.initial(n)

    def score(self, batch: Transitions, memory: Memory = None) -> Walk:
        raw, memory = self.scan(one_row(batch), memory)
        return raw[0], memory

    def scan(self, batch: Transitions, memory: Memory) -> Walk:
        answers, memory = self.walk(batch, memory, self.phi)
        return self.bonus(answers), memory

    def walk(self, batch: Transitions, memory: Memory, function: Callable[[Obs], np.ndarray]) -> Walk:
        """What `self.memory` answers for `function` of each `next_obs`, (T, N, ...), and the memory after it."""
        visits = Visits(batch)
        x = visits.apply(function)
        answers, memory = self.memory.walk(memory, x, visits.valid, visits.ended)
        return answers[visits.rows], memory


class Visits:
    """The states that a rollout (T, N) visits: each `next_obs`, and before it the `obs` that an episode begins in.

    `valid`, bool (S, N), S >= T, are those that were visited: a row of first states stands only where some environment
    begins an episode. `ended`, bool (S, N), are the last states of episodes.
    """

    def __init__(self, batch: Transitions) -> None:
        self.batch = batch
        self.is_first = (batch.step == 0) & batch.valid
        # A row of first states is put before each row of the rollout in which some episode begins.
        has_first = self.is_first.any(axis=1)
        steps, envs = batch.shape
        self.rows = np.arange(steps) + np.cumsum(has_first)  # (T,), where each next_obs stands
        first_step, first_env = np.nonzero(self.is_first)
        self.first_places = (self.rows[first_step] - 1, first_env)
        states = steps + int(has_first.sum())
        shape = (states, envs)
        self.valid = np.zeros(shape, bool)
        self.valid[self.rows] = batch.valid
        self.valid[self.first_places] = True
        self.ended = np.zeros(shape, bool)
        self.ended[self.rows] = batch.ended

    def apply(self, function: Callable[[Obs], np.ndarray]) -> np.ndarray:
        """`function` of the states, (S, N, ...), from one that takes and returns rows (M, ...)."""
        after = function(self.batch.flatten().next_obs)
        after = after.reshape(*self.batch.shape, *after.shape[1:])
        if not self.is_first.any():
            return after
        first_obs = index_obs(self.batch.obs, self.is_first)
        values = np.zeros((*self.valid.shape, *after.shape[2:]), after.dtype)
        values[self.rows] = after
        values[self.first_places] = function(first_obs)
        return values


def values_at_both(function: Callable[[Obs], np.ndarray], batch: Transitions) -> tuple[np.ndarray, np.ndarray]:
    """`function` of `obs` and of `next_obs`, (T, N, ...) each, from one that takes and returns rows (M, ...)."""
    after = function(batch.flatten().next_obs)
    after = after.reshape(*batch.shape, *after.shape[1:])
    return values_at_obs(batch, after, lambda rows: function(index_obs(batch.obs, rows))), after


@dataclass(eq=False)
class CountMemory(EpisodeMemory):
    """How often each cell, a 64-bit key above 0, was visited; the oldest cells are forgotten first."""

    capacity: int

    def initial(self, n: int) -> dict[str, np.ndarray]:
        return {
            "cells": np.zeros((n, self.capacity), np.uint64),  # 0 is an empty place
            "visits": np.zeros((n, self.capacity), np.int64),
            "filled": np.zeros(n, np.int64),  # places written so far; beyond the capacity it wraps
        }

    def walk(self, memory: Memory, x: np.ndarray, valid: np.ndarray, ended: np.ndarray) -> Walk:
        """Visits of keys x (T, N), uint64, this one included: int64 (T, N)."""
        may_forget = memory["filled"].max(initial=0) + len(x) > self.capacity
        if len(x) > MAX_SINGLE_STEPS and not may_forget:
            return self._count_by_sorting(memory, x, valid, ended)
        after = map_values(np.copy, memory)
        cells = after["cells"]
        visits = after["visits"]
        filled = after["filled"]
        answers = np.empty(x.shape, np.int64)
        envs = np.arange(x.shape[1])
        for t, (key, live) in enumerate(zip(x, valid)):
            match = cells == key[:, None]
            match_place = match.argmax(axis=1)
            visited = match[envs, match_place]
            # A new cell takes the next place; a place that is taken over starts again at 1.
            place = np.where(visited, match_place, filled % self.capacity)
            number = np.where(visited, visits[envs, place], 0) + 1
            answers[t] = number
            cells[envs, place] = np.where(live, key, cells[envs, place])
            visits[envs, place] = np.where(live, number, visits[envs, place])
            filled += live & ~visited
            if ended[t].any():
                for values in after.values():
                    values[ended[t]] = 0
        return answers, after

    def _count_by_sorting(self, memory: Memory, x: np.ndarray, valid: np.ndarray, ended: np.ndarray) -> Walk:
        """The walk where nothing is forgotten: visits sorted by environment, episode and cell, each cell's in time."""
        # Entries are the cells in memory, weighted by their visits, and then the rollout's visits with weight 1.
        remembered = memory["filled"].max(initial=0)
        keys = np.concatenate([memory["cells"][:, :remembered], x.T], axis=1)
        weights = np.concatenate([memory["visits"][:, :remembered], valid.T], axis=1)
        env, column = np.nonzero(weights)
        key = keys[env, column]
        weight = weights[env, column]
        # A group is one episode of one environment; the memory is of episode 0.
        rollout_episode, last_episode = _number_episodes(ended.T)
        memory_episode = np.zeros_like(weights[:, :remembered])
        episode = np.concatenate([memory_episode, rollout_episode], axis=1)[env, column]
        group = env * (len(x) + 1) + episode

        # Sort by group and cell; the sort is stable, so the visits of a cell stay in the order of time.
        order = np.lexsort((key, group))
        is_new_cell = np.ones(len(order), bool)
        is_new_cell[1:] = np.diff(key[order]) != 0
        is_new_cell[1:] |= np.diff(group[order]) != 0
        begin = np.flatnonzero(is_new_cell)
        # The number of a visit is the cumulative weight up to it, less that of all cells before its own.
        through = np.cumsum(weight[order])
        before_cell = (through - weight[order])[begin]
        cell_of_entry = np.cumsum(is_new_cell) - 1
        answers = np.ones_like(weights)
        answers[env[order], column[order]] = through - before_cell[cell_of_entry]

        # The new memory holds the cells of each last episode, in the order of their first visit; those that were in
        # memory come first, and are all there.
        first = order[begin]
        visits = weight
        if len(begin):
            visits = np.add.reduceat(weight[order], begin)
        current = np.flatnonzero(episode[first] == last_episode[env[first]])
        current = current[np.argsort(first[current])]
        row = env[first[current]]
        place = np.arange(len(row)) - np.searchsorted(row, row)
        after = map_values(np.zeros_like, memory)
        after["cells"][row, place] = key[first[current]]
        after["visits"][row, place] = visits[current]
        after["filled"] += np.bincount(row, minlength=x.shape[1])
        return answers[:, remembered:].T, after


def _number_episodes(ended: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number of each row's episode (N, T), 0 for the one that the memory is of; and of the one that follows, (N,)."""
    through = np.cumsum(ended, axis=1)
    return through - ended, through[:, -1]


class EllipticalMemory(EpisodeMemory):
    """The inverse of C = ridge I + sum of phi phi'; a row's answer is phi' C^-1 phi with the C of before it: 1 / (ridge
    + n - 1) at the n-th visit of a direction.
    """

    compiled = "ellipse"

    def __init__(self, features: int, ridge: float) -> None:
        self.features = features
        self.ridge = ridge
        self.settings = (float(ridge),)

    def initial(self, n: int) -> dict[str, np.ndarray]:
        return {"inverse": np.tile(np.eye(self.features) / self.ridge, (n, 1, 1))}

    def piece(self, memory: Memory, x: np.ndarray, valid: np.ndarray, ended: np.ndarray) -> Walk:
        """Answers float64 (N, T), at least 0."""
        inverse = memory["inverse"]
        episode, last_episode = _number_episodes(ended)
        phi = x.astype(np.float64)
        phi[~valid] = 0
        # `spread` is phi' M, with M the inverse at the start of each row's episode.
        spread = phi @ inverse
        is_later = episode > 0
        spread[is_later] = phi[is_later] / self.ridge
        # Rows of different episodes do not know of each other; the diagonal is the noise.
        kernel = phi @ spread.swapaxes(1, 2)
        if last_episode.any():
            kernel[episode[:, :, None] != episode[:, None, :]] = 0
        diagonal = np.arange(x.shape[1])
        kernel[:, diagonal, diagonal] += 1
        lower = np.linalg.cholesky(kernel)
        answers = np.maximum(lower[:, diagonal, diagonal] ** 2 - 1, 0)
        # Woodbury: M - root' root is the inverse after the rows of the episode that continues.
        spread[episode != last_episode[:, None]] = 0
        root = solve_triangular(torch.from_numpy(lower), torch.from_numpy(spread), upper=False)
        root = root.numpy()
        inverse = inverse.copy()
        inverse[last_episode > 0] = np.eye(self.features) / self.ridge
        inverse -= root.swapaxes(1, 2) @ root
        return answers, {"inverse": inverse}


class NeighbourMemory(EpisodeMemory):
    """The newest `capacity` rows of an episode; a row's answer is its squared distances to the k nearest of them."""

    compiled = "neighbours"

    def __init__(self, capacity: int, features: int, k: int) -> None:
        self.capacity = capacity
        self.features = features
        self.k = k
        self.settings = (k,)

    def initial(self, n: int) -> dict[str, np.ndarray]:
        return {
            "ring": np.zeros((n, self.capacity, self.features), np.float32),
            "filled": np.zeros(n, np.int64),  # rows written so far; beyond the capacity the ring wraps
        }

    def distances(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Squared distances (N, T, S) between x (N, T, D) and y (N, S, D)."""
        # In float32 the difference of near rows would be lost in the rounding of their squares.
        x = x.astype(np.float64)
        y = y.astype(np.float64)
        squares = x @ y.swapaxes(1, 2)
        squares *= -2
        x_norms = np.square(x).sum(axis=2)
        y_norms = np.square(y).sum(axis=2)
        squares += x_norms[:, :, None]
        squares += y_norms[:, None, :]
        return np.maximum(squares, 0, out=squares)

    def piece(self, memory: Memory, x: np.ndarray, valid: np.ndarray, ended: np.ndarray) -> Walk:
        """Answers float64 (N, T, k), ascending, infinite where the episode held fewer."""
        ring = memory["ring"]
        filled = memory["filled"]
        episode, last_episode = _number_episodes(ended)
        # The number of each write within its episode; what is `capacity` writes old has been overwritten.
        before = np.cumsum(valid, axis=1) - valid
        begins = np.zeros_like(ended)
        begins[:, 1:] = ended[:, :-1]
        before_episode = np.maximum.accumulate(np.where(begins, before, 0), axis=1)
        number = before - before_episode
        number += np.where(episode == 0, filled[:, None], 0)
        oldest = np.maximum(number - self.capacity, 0)[:, :, None]
        # The number of the write that each place of the ring holds; negative for an empty one.
        place = np.arange(min(self.capacity, filled.max()))
        newest = filled[:, None] - 1
        ring_number = newest - (newest - place) % self.capacity
        # Which rows each row is compared with: those of the ring, and those before it in this piece.
        is_first_episode = (episode == 0)[:, :, None]
        in_ring = is_first_episode & (ring_number[:, None, :] >= oldest)
        same_episode = episode[:, :, None] == episode[:, None, :]
        in_piece = same_episode & valid[:, None, :] & (number[:, None, :] >= oldest)
        in_piece &= np.tri(x.shape[1], k=-1, dtype=bool)
        squares_in_ring = self.distances(x, ring[:, : len(place)])
        squares_in_piece = self.distances(x, x)
        squares_in_ring[~in_ring] = np.inf
        squares_in_piece[~in_piece] = np.inf
        # Neighbours that are missing are infinitely far.
        missing = np.full((*valid.shape, self.k), np.inf)
        squares = np.concatenate([squares_in_ring, squares_in_piece, missing], axis=2)
        nearest = np.partition(squares, self.k - 1, axis=2)[:, :, : self.k]
        # The new ring is that of the last episode, without the writes that are overwritten within this piece.
        ring = ring.copy()
        ring[last_episode > 0] = 0
        is_current = valid & (episode == last_episode[:, None])
        filled = np.where(last_episode == 0, filled, 0)
        filled = filled + is_current.sum(axis=1)
        stays = is_current & (number >= filled[:, None] - self.capacity)
        envs, times = np.nonzero(stays)
        ring[envs, number[envs, times] % self.capacity] = x[envs, times]
        return np.sort(nearest, axis=2), {"ring": ring, "filled": filled}
