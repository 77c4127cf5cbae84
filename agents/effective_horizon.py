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

MAX_SEQUENCES = 20_000  # A ** k


@dataclass
class EffectiveHorizon:
    """Result of `effective_horizon`."""

    k: int | None  # the look-ahead of the value; None if none solved the task
    m: int | None  # its number of tries
    value: float  # H = k + log_A(m), the least of all that solved it; infinite if none did
    steps: int  # simulator steps that the search took
    solved: dict[int, int]  # k -> m for every k that was tried and solved it


@dataclass
class Played:
    """One episode as GORP plays it."""

    actions: list[int]
    task: float  # the task's own return
    reward: float  # its return under the maximised reward
    success: bool | None  # as the environment reports it; None where it does not, False where time ran out
    steps: int  # simulator steps it cost


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
    n_actions, limit = _checked(clones, k, m, max_steps)
    start = getattr(clones.action_space, "start", 0)
    rng = np.random.default_rng([seed, k, m])
    sequences = np.array(list(itertools.product(range(n_actions), repeat=k))).T  # (k, A^k)
    place = clones.start(seed)
    memory = None if scorer is None else scorer.initial_memory(1)
    played = Played([], 0.0, 0.0, None, 0)
    while not place.ended and place.step < limit:
        left = limit - place.step
        actions = rng.integers(n_actions, size=(left, sequences.shape[1] * m))
        actions[:k] = np.repeat(sequences, m, axis=1)[:left]
        value = np.empty(actions.shape[1])
        width = clones.rows(limit)
        for begin in range(0, len(value), width):
            batch = clones.play(place, actions[:, begin : begin + width] + start)
            value[begin : begin + width] = _rewards(scorer, batch, memory)[0].sum(0, dtype=np.float64)
            played.steps += int(batch.valid.sum())
            if played.steps > budget:
                return None
        action = int(sequences[0, int(value.reshape(-1, m).mean(1).argmax())])
        place, one = clones.after(place, action + start)
        reward, memory = _rewards(scorer, one, memory)
        played.actions.append(action)
        played.task += float(one.reward[0, 0])
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
    n_actions, _ = _checked(clones, 1, 1, max_steps)
    found: dict[int, int] = {}
    value, steps = math.inf, 0
    for k in range(1, k_max + 1):
        m = 1
        while m <= m_max and k + math.log(m, n_actions) < value:
            for seed in range(seeds):
                played = gorp(clones, scorer, k, m, seed=seed, max_steps=max_steps, budget=budget)
                steps += budget if played is None else played.steps
                if played is None or not _solves(played, solved, clones):
                    break
            else:
                found[k], value = m, k + math.log(m, n_actions)
                break
            m *= step
    best = max(found, default=None)  # a larger k is kept only if it lowered the value
    return EffectiveHorizon(best, found.get(best or 0), value, steps, found)


def _solves(played: Played, solved: float | None, clones: Clones) -> bool:
    if solved is not None:
        return played.task >= solved
    if played.success is None:
        raise ValueError(f"{clones.env_id} does not say whether an episode succeeded; give solved=, a return")
    return played.success


def _checked(clones: Clones, k: int, m: int, max_steps: int | None) -> tuple[int, int]:
    space = clones.action_space
    if not isinstance(space, spaces.Discrete):
        raise ValueError(f"the effective horizon enumerates actions, and {space} has no finite number; give Discrete")
    if k < 1 or m < 1 or int(space.n) ** k > MAX_SEQUENCES:
        raise ValueError(f"k={k}, m={m} with {space.n} actions; give 1 or more, and k with A^k <= {MAX_SEQUENCES:,}")
    limit = min((x for x in (max_steps, clones.max_steps) if x is not None), default=None)
    if limit is None:
        raise ValueError(f"episodes of {clones.env_id} have no end; give max_steps=")
    return max(int(space.n), 2), limit


def _rewards(scorer: Any, batch: Transitions, memory: Memory) -> tuple[np.ndarray, Memory]:
    """Rewards of rows, 0 after an end; the memory of one episode is repeated for all futures."""
    repeated = map_obs(lambda x: np.repeat(x, batch.shape[1], axis=0), memory)
    scored = (batch.reward, None) if scorer is None else scorer.total(batch, repeated, 0)
    return np.where(batch.valid, scored[0], np.float32(0)), scored[1]
