"""What a finite model says of a reward: how early it tells good actions from bad, and how easily its choices flip.

    optimal          Q of the best policy, by policy iteration
    gaps             Delta(s), by how much the best action is better than the best of the worse ones
    informativeness  1 - loss / mean Delta, the loss being the mean over states and horizons h of
                     max_a max(0, Delta(s) - Delta_h(s, a)), where Delta_h sums rewards for h steps only
    ties, moved      share of states whose best two actions are within eps of each other; share of greedy choices that
                     noise of that size changes

Sources: Devidze et al. 2021, "Explicable Reward Design for Reinforcement Learning Agents" (NeurIPS 2021), section 3:
informativeness; "The Policy Cliff: A Theoretical Analysis of Reward-Policy Maps in Large Language Models" 2025: where
best actions tie, an arbitrarily small change of a reward changes the policy by a jump.
Differences: informativeness is scaled, so that 1 is a reward that says at once all that the values say, 0 one that says
nothing, and less than 0 one that misleads; eps is in units of the reward's range.
When it fails: a clustered recording is a rough model: actions that were not taken in a cell are taken to be bad.
"""

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envs.transitions import Transitions
from rewards.exploration.learned import Layout
from runners.compare.sample import FiniteMDP

HORIZONS = (1, 4, 8, 16, 32)
EPS = 0.01  # of the reward's range
DRAWS = 16  # of the noise
CELLS = 64  # of a recording
TINY = 1e-9


@dataclass
class FiniteModel:
    """S states and A actions; `states` (S, D) are their observations, laid out as numbers."""

    transition: np.ndarray  # probabilities (S, A, S); what is missing to 1 ends the episode
    states: np.ndarray
    cell: np.ndarray  # state and action of each row of the batch that it was made of, int (N, 2)
    start: np.ndarray  # probability (S,) that an episode begins there
    exact: bool = True

    def table(self, values: np.ndarray) -> np.ndarray:
        """Mean over rows (N,) of each state and action, (S, A); the least of all where there is no row."""
        total, count = np.zeros((2, *self.transition.shape[:2]))
        np.add.at(total, tuple(self.cell.T), values)
        np.add.at(count, tuple(self.cell.T), 1)
        return np.where(count > 0, total / np.maximum(count, 1), np.min(values))


def enumerated(mdp: FiniteMDP, layout: Layout) -> FiniteModel:
    """Of every state of an environment; episodes begin in the first."""
    states, actions = mdp.successors.shape
    cell = np.stack(np.divmod(np.arange(states * actions), actions), axis=1)
    start = np.eye(states)[0]
    return FiniteModel(mdp.transition[:-1, :, :-1], layout.flatten(mdp.sample.batch.obs)[::actions], cell, start)


def tabular(env: gym.Env) -> tuple[FiniteModel, np.ndarray, np.ndarray] | None:
    """Of an environment with a table P[s][a] of (probability, next, reward, terminated), as Gymnasium's toy text has;
    the states and the mean rewards of its rows. None where there is no such table.
    """
    world: Any = env.unwrapped
    if not isinstance(table := getattr(world, "P", None), dict):
        return None
    states, actions = len(table), len(table[0])
    transition, rewards = np.zeros((states, actions, states)), np.zeros((states, actions))
    for state, row in table.items():
        for action, outcomes in row.items():
            for chance, after, reward, terminated in outcomes:
                rewards[state, action] += chance * reward
                transition[state, action, after] += chance * (not terminated)
    cell = np.stack(np.divmod(np.arange(states * actions), actions), axis=1)
    start = np.asarray(getattr(world, "initial_state_distrib", np.full(states, 1 / states)))
    return FiniteModel(transition, np.eye(states), cell, start), cell[:, 0], rewards.ravel()


def clustered(
    batch: Transitions, layout: Layout, actions: spaces.Space, states: int = CELLS, seed: int = 0
) -> FiniteModel:
    """Of a flat recording of discrete actions: k-means of whitened observations, transitions as they were seen.

    An action that was never taken in a cell leads back to it. A ValueError where actions are not discrete.
    """
    from scipy.cluster.vq import kmeans2, vq

    if not isinstance(actions, spaces.Discrete):
        raise ValueError(f"a finite model has discrete actions, not {actions}; give an environment with Discrete ones")
    now, after = layout.flatten(batch.obs).astype(np.float64), layout.flatten(batch.next_obs).astype(np.float64)
    scale = np.maximum(now.std(axis=0), 1e-6)
    centres, _ = kmeans2(now / scale, min(states, len(np.unique(now, axis=0))), minit="++", seed=seed)
    place, then = (vq(rows / scale, centres)[0] for rows in (now, after))
    used, place_and_then = np.unique(np.concatenate([place, then]), return_inverse=True)
    place, then = np.split(place_and_then, 2)
    cell = np.stack([place, np.asarray(batch.action, np.int64).ravel() - int(actions.start)], axis=1)
    counts = np.zeros((len(used), int(actions.n), len(used) + 1))
    np.add.at(counts, (*cell.T, np.where(batch.terminated, len(used), then)), 1)
    unknown = counts.sum(axis=2) == 0
    counts[(*np.nonzero(unknown), np.nonzero(unknown)[0])] = 1
    transition = (counts / counts.sum(axis=2, keepdims=True))[..., :-1]
    start = np.bincount(place[batch.step == 0], minlength=len(used)) + TINY
    return FiniteModel(transition, centres[used] * scale, cell, start / start.sum(), exact=False)


def optimal(reward: np.ndarray, transition: np.ndarray, gamma: float) -> np.ndarray:
    """Q (S, A) of the best policy for rewards (S, A)."""
    states = np.arange(len(reward))
    policy = reward.argmax(axis=1)
    while True:
        value = np.linalg.solve(np.eye(len(reward)) - gamma * transition[states, policy], reward[states, policy])
        q = reward + gamma * transition @ value
        better = q.max(axis=1) > q[states, policy] + TINY * max(1.0, float(np.abs(q).max()))
        if not better.any():
            return q
        policy = np.where(better, q.argmax(axis=1), policy)


def gaps(q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Delta(s) (S,), 0 where all actions are best, and which actions are among the best, bool (S, A)."""
    best = q >= q.max(axis=1, keepdims=True) - TINY * max(1.0, float(np.abs(q).max()))
    return q.max(axis=1) - np.where(best.all(axis=1), q.max(axis=1), np.where(best, -np.inf, q).max(axis=1)), best


def informativeness(reward: np.ndarray, task: np.ndarray, transition: np.ndarray, gamma: float) -> float | None:
    """Of rewards (S, A) about a task's (S, A), scaled alike; None where its actions are all as good."""
    q = optimal(task, transition, gamma)
    gap, best = gaps(q)
    if not gap.any():
        return None
    states = np.arange(len(q))
    policy = q.argmax(axis=1)
    scaled = reward * np.abs(task).max() / max(np.abs(reward).max(), TINY)
    losses = []
    value = scaled  # Q of h steps after the first
    for h in range(1, max(HORIZONS) + 1):
        value = scaled + gamma * transition @ value[states, policy]
        if h in HORIZONS:
            ahead = value[states, policy][:, None] - value
            losses.append(np.where(best, 0, np.maximum(gap[:, None] - ahead, 0)).max(axis=1).mean())
    return float(1 - np.mean(losses) / gap.mean())


def ties(reward: np.ndarray, transition: np.ndarray, gamma: float, eps: float = EPS) -> float:
    """Share of states whose best two actions differ by at most eps, in units of the reward's range."""
    two = np.sort(optimal(reward, transition, gamma), axis=1)[:, -2:]
    return float((two[:, -1] - two[:, 0] <= eps * np.ptp(reward) + TINY).mean()) if two.shape[1] > 1 else 0.0


def moved(reward: np.ndarray, transition: np.ndarray, gamma: float, eps: float = EPS, seed: int = 0) -> float:
    """Share of states whose greedy action changes under noise of up to eps on every reward, mean over draws."""
    rng, first = np.random.default_rng(seed), optimal(reward, transition, gamma).argmax(axis=1)
    noise = rng.uniform(-1, 1, (DRAWS, *reward.shape)) * eps * np.ptp(reward)
    return float(np.mean([optimal(reward + one, transition, gamma).argmax(axis=1) != first for one in noise]))
