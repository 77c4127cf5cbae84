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

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envs.transitions import Transitions
from rewards.exploration.learned import Layout
from runners.compare.sample import FiniteMDP

# Steps after the first that informativeness looks at.
HORIZONS = (1, 4, 8, 16, 32)
# What counts as a tie, and the size of the noise, as a share of the reward's range.
EPS_OF_RANGE = 0.01
NOISE_DRAWS = 16
MAX_RECORDING_CELLS = 64
# Differences of values up to this size are rounding.
VALUE_ROUNDING = 1e-9


@dataclass
class FiniteModel:
    """S states and A actions; `states` (S, D) are their observations, laid out as numbers."""

    # Probabilities (S, A, S); what is missing to 1 ends the episode.
    transition: np.ndarray
    states: np.ndarray
    # State and action of each row of the batch that it was made of, int (N, 2).
    cell: np.ndarray
    # Probability (S,) that an episode begins there.
    start: np.ndarray
    exact: bool = True

    def table(self, values: np.ndarray) -> np.ndarray:
        """Mean over rows (N,) of each state and action, (S, A); the least of all where there is no row."""
        total, count = np.zeros((2, *self.transition.shape[:2]))
        pairs = tuple(self.cell.T)
        np.add.at(total, pairs, values)
        np.add.at(count, pairs, 1)
        means = total / np.maximum(count, 1)
        return np.where(count > 0, means, np.min(values))


def model_of_states(mdp: FiniteMDP, layout: Layout) -> FiniteModel:
    """Of every state of an environment; episodes begin in the first."""
    states, actions = mdp.successors.shape
    # Rows are state by state, so every A-th row is another state.
    obs = layout.flatten(mdp.sample.batch.obs)[::actions]
    start = np.eye(states)[0]
    # The last state of an enumerated environment is the terminal one.
    transition = mdp.transition[:-1, :, :-1]
    return FiniteModel(transition, obs, every_pair(states, actions), start)


def every_pair(states: int, actions: int) -> np.ndarray:
    """Each state with each action, state by state, int (S * A, 2)."""
    return np.indices((states, actions)).reshape(2, -1).T


def read_table(env: gym.Env) -> tuple[FiniteModel, np.ndarray, np.ndarray] | None:
    """Of an environment with a table P[s][a] of (probability, next, reward, terminated), as Gymnasium's toy text has;
    the states and the mean rewards of its rows. None where there is no such table.
    """
    world = env.unwrapped
    table = getattr(world, "P", None)
    if not isinstance(table, dict):
        return None
    states = len(table)
    actions = len(table[0])
    transition = np.zeros((states, actions, states))
    rewards = np.zeros((states, actions))
    for state, row in table.items():
        for action, outcomes in row.items():
            for probability, after, reward, terminated in outcomes:
                rewards[state, action] += probability * reward
                if not terminated:
                    transition[state, action, after] += probability
    cell = every_pair(states, actions)
    uniform = np.full(states, 1 / states)
    start = np.asarray(getattr(world, "initial_state_distrib", uniform))
    model = FiniteModel(transition, np.eye(states), cell, start)
    return model, cell[:, 0], rewards.ravel()


def model_of_clusters(
    batch: Transitions,
    layout: Layout,
    actions: spaces.Space,
    states: int = MAX_RECORDING_CELLS,
    seed: int = 0,
) -> FiniteModel:
    """Of a flat recording of discrete actions: k-means of whitened observations, transitions as they were seen.

    An action that was never taken in a cell leads back to it. A ValueError where actions are not discrete.
    """
    from scipy.cluster.vq import kmeans2, vq

    if not isinstance(actions, spaces.Discrete):
        raise ValueError(f"a finite model has discrete actions, not {actions}; give an environment with Discrete ones")
    obs = layout.flatten(batch.obs).astype(np.float64)
    scale = np.maximum(obs.std(axis=0), 1e-6)
    clusters = min(states, len(np.unique(obs, axis=0)))
    centres, _ = kmeans2(obs / scale, clusters, minit="++", seed=seed)
    next_obs = layout.flatten(batch.next_obs).astype(np.float64)
    visited = np.concatenate([vq(rows / scale, centres)[0] for rows in (obs, next_obs)])
    # Clusters without a row are left out, and the others numbered again.
    used, visited = np.unique(visited, return_inverse=True)
    state, next_state = np.split(visited, 2)
    cells = len(used)

    action = np.asarray(batch.action, np.int64).ravel() - int(actions.start)
    # The last column counts the ends of episodes.
    counts = np.zeros((cells, int(actions.n), cells + 1))
    successor = np.where(batch.terminated, cells, next_state)
    np.add.at(counts, (state, action, successor), 1)
    untried_state, untried_action = np.nonzero(counts.sum(axis=2) == 0)
    counts[untried_state, untried_action, untried_state] = 1
    transition = counts / counts.sum(axis=2, keepdims=True)

    starts = np.bincount(state[batch.step == 0], minlength=cells) + VALUE_ROUNDING
    return FiniteModel(
        transition[..., :-1],
        centres[used] * scale,
        np.stack([state, action], axis=1),
        starts / starts.sum(),
        exact=False,
    )


def rounding_of(q: np.ndarray) -> float:
    """By how much values may differ that are the same but for rounding."""
    return VALUE_ROUNDING * max(1.0, float(np.abs(q).max()))


def optimal_values(reward: np.ndarray, transition: np.ndarray, gamma: float) -> np.ndarray:
    """Q (S, A) of the best policy for rewards (S, A)."""
    states = np.arange(len(reward))
    policy = reward.argmax(axis=1)
    while True:
        # Evaluate the policy: (I - gamma P) V = R, then improve it where another action is better.
        system = np.eye(len(reward)) - gamma * transition[states, policy]
        value = np.linalg.solve(system, reward[states, policy])
        q = reward + gamma * transition @ value
        better = q.max(axis=1) > q[states, policy] + rounding_of(q)
        if not better.any():
            return q
        policy = np.where(better, q.argmax(axis=1), policy)


def gaps(q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Delta(s) (S,), 0 where all actions are best, and which actions are among the best, bool (S, A)."""
    top = q.max(axis=1)
    best = q >= top[:, None] - rounding_of(q)
    best_of_worse = np.where(best, -np.inf, q).max(axis=1)
    return top - np.where(best.all(axis=1), top, best_of_worse), best


def informativeness(reward: np.ndarray, task: np.ndarray, transition: np.ndarray, gamma: float) -> float | None:
    """Of rewards (S, A) about a task's (S, A), scaled alike; None where its actions are all as good."""
    q = optimal_values(task, transition, gamma)
    gap, best = gaps(q)
    if not gap.any():
        return None
    states = np.arange(len(q))
    policy = q.argmax(axis=1)
    scaled = reward * np.abs(task).max() / max(np.abs(reward).max(), VALUE_ROUNDING)
    losses = []
    # Q of h steps after the first.
    value = scaled
    for h in range(1, max(HORIZONS) + 1):
        value = scaled + gamma * transition @ value[states, policy]
        if h in HORIZONS:
            ahead = value[states, policy][:, None] - value
            shortfall = np.maximum(gap[:, None] - ahead, 0)
            loss = np.where(best, 0, shortfall).max(axis=1)
            losses.append(loss.mean())
    return float(1 - np.mean(losses) / gap.mean())


def ties(reward: np.ndarray, transition: np.ndarray, gamma: float, eps: float = EPS_OF_RANGE) -> float:
    """Share of states whose best two actions differ by at most eps, in units of the reward's range."""
    q = np.sort(optimal_values(reward, transition, gamma), axis=1)
    if q.shape[1] == 1:
        return 0.0
    lead = q[:, -1] - q[:, -2]
    tied = lead <= eps * np.ptp(reward) + VALUE_ROUNDING
    return float(tied.mean())


def share_moved_by_noise(reward: np.ndarray, transition: np.ndarray, gamma: float, eps: float = EPS_OF_RANGE) -> float:
    """Share of states whose greedy action changes under noise of up to eps on every reward, mean over draws."""
    greedy = optimal_values(reward, transition, gamma).argmax(axis=1)
    rng = np.random.default_rng(0)
    noise = rng.uniform(-1, 1, (NOISE_DRAWS, *reward.shape)) * eps * np.ptp(reward)
    changed = []
    for draw in noise:
        noisy = optimal_values(reward + draw, transition, gamma).argmax(axis=1)
        changed.append(noisy != greedy)
    return float(np.mean(changed))
