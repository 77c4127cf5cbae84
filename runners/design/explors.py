"""ExploRS: a policy-gradient learner on a finite model that designs its reward as it goes: what helps, and what is new.

    R(s, a, s') = R0(s, a) + f(s, a) + B(s'),    B(s') = weight / sqrt((weight / most)^2 + n(s')), 0 where it ends
    f(s, .) += eta pi(a|s) (G0 - V(s)) (e_a - pi(.|s)),    G0 the task's return from there on, V its mean in s

Source: Devidze, Kamalaruban, Singla 2022, "Exploration-Guided Reward Shaping for Reinforcement Learning under Sparse
Rewards" (ExploRS, NeurIPS 2022), tabular.
Differences: the visits of s' are counted, where the source's code counts s; the learner has a baseline, as B is not
negative; weight 0.1 and eta 0.03 for 1 and 0.01: with 1, B outweighed a reward of 1 at the end of 60 steps.
What is left for `reward=table` is R0 + f: B has faded by then. When it fails: the learner never meets the task's
reward, for then f stays 0; f is no potential, so a longer way through what helped once may earn more than the shortest.
"""

from collections import deque

import numpy as np
from scipy.signal import lfilter
from scipy.special import softmax

from runners.compare.finite import FiniteModel

LEARN_EVERY, LEARN_FROM = 2, 5  # episodes of the learner, and for f
DESIGN_EVERY, DESIGN_FROM = 5, 10
STEP, MEAN = 0.1, 0.1  # of the policy's logits; of V
Steps = tuple[np.ndarray, np.ndarray, np.ndarray]  # states, actions and next states (H,), -1 where it ended


def explors(
    task: np.ndarray, model: FiniteModel, gamma: float, episodes: int, seed: int, eta: float = 0.03, weight: float = 0.1
) -> tuple[np.ndarray, np.ndarray]:
    """f (S, A), 0 if `eta` is, and the task's discounted return of each episode, of at most 3 / (1 - gamma) steps."""
    rng, (states, actions) = np.random.default_rng(seed), task.shape
    logits, f, visits = np.zeros_like(task), np.zeros_like(task), np.zeros(states)
    means = np.zeros((2, states))  # of the task's return and of all, in each state
    kept, returns = deque[Steps](maxlen=max(LEARN_FROM, DESIGN_FROM)), np.zeros(episodes)
    for episode in range(episodes):
        kept.append(steps := play(model, logits, rng, longest=round(3 / (1 - gamma))))
        np.add.at(visits, steps[2][steps[2] >= 0], 1)
        returns[episode] = to_go(task[steps[0], steps[1]], gamma)[0]
        if eta and episode % DESIGN_EVERY == DESIGN_EVERY - 1:
            for at, action, _ in kept:
                ahead = to_go(task[at, action], gamma) - means[0, at]
                np.add.at(f, at, eta * credit(softmax(logits[at], axis=1), action, ahead))
                np.add.at(means[0], at, MEAN * ahead / np.bincount(at)[at])
        if episode % LEARN_EVERY == LEARN_EVERY - 1:
            for at, action, after in [*kept][-LEARN_FROM:]:
                new = np.where(after < 0, 0, bonus(visits[after], weight))
                ahead = to_go(task[at, action] + f[at, action] + new, gamma) - means[1, at]
                policy = softmax(logits[at], axis=1)
                np.add.at(logits, at, STEP * ahead[:, None] * (np.eye(actions)[action] - policy))
                np.add.at(means[1], at, MEAN * ahead / np.bincount(at)[at])
    return f, returns


def bonus(visits: np.ndarray, weight: float = 1.0, most: float = 1.0) -> np.ndarray:
    """B of states that were visited so often: `most` at first, then as weight / sqrt(n)."""
    return weight / np.sqrt((weight / most) ** 2 + visits) if weight else np.zeros(visits.shape)


def credit(policy: np.ndarray, action: np.ndarray, ahead: np.ndarray) -> np.ndarray:
    """How f changes, over eta, where the task returned `ahead` (H,) more than usual: (H, A), for policies (H, A)."""
    chosen = np.eye(policy.shape[1])[action]
    return (chosen * policy).sum(axis=1, keepdims=True) * ahead[:, None] * (chosen - policy)


def play(model: FiniteModel, logits: np.ndarray, rng: np.random.Generator, longest: int) -> Steps:
    """One episode of the policy."""
    chances, rows = softmax(logits, axis=1).cumsum(axis=1), list[tuple[int, int, int]]()
    state = int(rng.choice(len(logits), p=model.start))
    while state >= 0 and len(rows) < longest:
        action = int((chances[state, :-1] < rng.random()).sum())
        after = model.transition[state, action].cumsum()
        following = int(np.searchsorted(after, rng.random(), side="right"))
        rows.append((state, action, following if following < len(logits) else -1))
        state = rows[-1][2]
    return tuple(np.array(rows).T)  # type: ignore[return-value]


def to_go(rewards: np.ndarray, gamma: float) -> np.ndarray:
    """Discounted sums of rewards (H,) from each step on."""
    return lfilter([1], [1, -gamma], rewards[::-1])[::-1]
