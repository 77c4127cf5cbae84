"""The effective horizon: how far one must look ahead before acting greedily on random play solves a task.

GORP chooses each action by trying every sequence of k actions m times, with random actions after it, and taking the
first action of the best. The smallest k and m with which it solves a task measure how hard exploration is there,
before any network; a learned reward that lowers them has made the task easier.

Source: Laidlaw et al. 2023, "Bridging RL Theory and Practice with the Effective Horizon", arXiv 2304.09853, algorithm 1
and definition 5.2: H = min over k of k + log_A(m_k). Differences: m is the smallest power of `step` that solved it in
our runs; what is maximised may be a learned reward, while solved always refers to the task.

When it fails: stochastic environments (use `agents.sqirl`, which plans for the average); continuous actions; a task
that needs more than random play reaches in `steps` steps: then the answer is None, and no lower bound.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from envs.clones import Clones
from envs.transitions import Transitions, map_obs
from envs.types import Memory

# The largest A ** k.
MAX_SEQUENCES = 20_000


@dataclass
class EffectiveHorizon:
    """Result of `effective_horizon`."""

    # The look-ahead of the value, and its number of tries; None if none solved the task.
    k: int | None
    m: int | None
    # H = k + log_A(m), the least of all that solved the task; infinite if none did.
    value: float
    # Simulator steps that the search took.
    steps: int
    # k -> m for every k that was tried and solved the task.
    solved: dict[int, int]


@dataclass
class Played:
    """One episode as GORP plays it."""

    actions: list[int]
    # The task's own return, and that of the maximised reward.
    task: float
    reward: float
    # As the environment reports it; None where it does not, False where time ran out.
    success: bool | None
    # Simulator steps that the planning took.
    steps: int


def gorp(
    clones: Clones, scorer: Any, k: int, m: int, *, seed: int = 0, max_steps: int | None = None, budget: int = 10**7
) -> Played | None:
    """Play one episode, greedily on the best of A^k sequences of actions, each followed m times by random play.

    Args:
        clones: the simulator; actions Discrete, deterministic but for its resets.
        scorer: what is maximised, without discount; None for the task's own reward.
        max_steps: where futures end; None for the environment's own limit.
        budget: simulator steps that may be spent; None is returned when they are.
    """
    n_actions = _count_actions(clones, k, m)
    limits = [steps for steps in (max_steps, clones.max_steps) if steps is not None]
    if not limits:
        raise ValueError(f"episodes of {clones.env_id} have no end; give max_steps=")
    limit = min(limits)
    space: Any = clones.action_space
    rng = np.random.default_rng([seed, k, m])
    # (k, A^k): every sequence of k actions.
    sequences = np.array(list(itertools.product(range(n_actions), repeat=k))).T
    place = clones.start(seed)
    memory = None if scorer is None else scorer.initial_memory(1)
    played = Played([], 0.0, 0.0, None, 0)
    while not place.ended and place.step < limit:
        steps_left = limit - place.step
        # (steps_left, A^k m): each sequence m times, with random actions after it.
        actions = rng.integers(n_actions, size=(steps_left, sequences.shape[1] * m))
        actions[:k] = np.repeat(sequences, m, axis=1)[:steps_left]
        value = np.empty(actions.shape[1])
        # As many futures are played at once as fit into memory.
        width = clones.rows(limit)
        for begin in range(0, len(value), width):
            columns = slice(begin, begin + width)
            batch = clones.play(place, actions[:, columns] + space.start)
            reward, _ = _rewards(scorer, batch, memory)
            value[columns] = reward.sum(0, dtype=np.float64)
            played.steps += int(batch.valid.sum())
            if played.steps > budget:
                return None
        best = int(value.reshape(-1, m).mean(1).argmax())
        action = int(sequences[0, best])
        place, transition = clones.step_from(place, action + space.start)
        reward, memory = _rewards(scorer, transition, memory)
        played.actions.append(action)
        played.task += float(transition.reward[0, 0])
        played.reward += float(reward[0, 0])
        played.success = place.success if place.ended else False
    return played


def effective_horizon(
    clones: Clones,
    scorer: Any = None,
    *,
    solved: float | None = None,
    k_max: int = 3,
    m_max: int = 256,
    step: int = 4,
    seeds: int = 3,
    max_steps: int | None = None,
    budget: int = 2_000_000,
) -> EffectiveHorizon:
    """The k and m with which GORP solves the task on every seed, and of these the ones with the least k + log_A(m).

    Args:
        solved: the task's return that counts as solved; None to use the environment's success, else a ValueError.
        k_max, m_max, step: the largest k and m to try; m = 1, step, step^2, ...
        seeds, budget: episodes that must all be solved, and simulator steps for each.
    """
    if step < 2 or seeds < 1:
        raise ValueError(f"step={step}, seeds={seeds} is no search; give step=2 or more, and one seed or more")
    n_actions = _count_actions(clones, 1, 1)
    result = EffectiveHorizon(None, None, math.inf, 0, {})
    for k in range(1, k_max + 1):
        m = 1
        while (value := k + math.log(m, n_actions)) < result.value and m <= m_max:
            solves_all = True
            for seed in range(seeds):
                played = gorp(clones, scorer, k, m, seed=seed, max_steps=max_steps, budget=budget)
                result.steps += budget if played is None else played.steps
                if played is None or not _solves(played, solved, clones):
                    solves_all = False
                    break
            # A larger k is tried only while it can lower the value.
            if solves_all:
                result.solved[k] = m
                result.k = k
                result.m = m
                result.value = value
                break
            m *= step
    return result


def _solves(played: Played, solved: float | None, clones: Clones) -> bool:
    if solved is not None:
        return played.task >= solved
    if played.success is None:
        raise ValueError(f"{clones.env_id} does not say whether an episode succeeded; give solved=, a return")
    return played.success


def _count_actions(clones: Clones, k: int, m: int) -> int:
    """A, at least 2 so that its logarithm is a base; a ValueError if actions, k or m cannot be searched."""
    space = clones.action_space
    if not isinstance(space, spaces.Discrete):
        raise ValueError(f"the effective horizon enumerates actions, and {space} has no finite number; give Discrete")
    n_actions = int(space.n)
    if k < 1 or m < 1 or n_actions**k > MAX_SEQUENCES:
        raise ValueError(f"k={k}, m={m} with {n_actions} actions; give 1 or more, and k with A^k <= {MAX_SEQUENCES:,}")
    return max(n_actions, 2)


def _rewards(scorer: Any, batch: Transitions, memory: Memory) -> tuple[np.ndarray, Memory]:
    """Rewards of rows, 0 after an end; the memory of one episode is repeated for all futures."""
    reward = batch.reward
    if scorer is not None:
        repeated = map_obs(lambda x: np.repeat(x, batch.shape[1], axis=0), memory)
        reward, memory = scorer.total(batch, repeated, 0)
    return np.where(batch.valid, reward, np.float32(0)), memory
