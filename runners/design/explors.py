"""ExploRS: a policy-gradient learner on a finite model that designs its reward as it goes: what helps, and what is new.

    R(s, a, s') = R0(s, a) + f(s, a) + B(s'),    B(s') = weight / sqrt(weight^2 + n(s')), 0 where it ends
    f(s, .) += eta pi(a|s) (G0 - V(s)) (e_a - pi(.|s)),    G0 the task's return from there on, V its mean in s

Source: Devidze, Kamalaruban, Singla 2022, "Exploration-Guided Reward Shaping for Reinforcement Learning under Sparse
Rewards" (ExploRS, NeurIPS 2022), tabular.
Differences: the visits of s' are counted, where the source's code counts s; the learner has a baseline, as B is not
negative; weight 0.1 and eta 0.03 for 1 and 0.01: with 1, B outweighed a reward of 1 at the end of 60 steps.
What is left for `reward=table` is R0 + f: B has faded by then. When it fails: the learner never meets the task's
reward, for then f stays 0; f is no potential, so a longer way through what helped once may earn more than the shortest.
"""

from collections import deque
from typing import NamedTuple

import numpy as np
from scipy.signal import lfilter
from scipy.special import softmax

from runners.compare.finite import FiniteModel

# The policy learns after every second episode from the last five, f after every fifth from the last ten.
LEARN_EVERY = 2
LEARN_FROM = 5
DESIGN_EVERY = 5
DESIGN_FROM = 10
# Step sizes of the policy's logits, and of the mean returns V.
LOGIT_RATE = 0.1
MEAN_RATE = 0.1


class TabularEpisode(NamedTuple):
    """States, actions and next states (H,), -1 where it ended."""

    state: np.ndarray
    action: np.ndarray
    next_state: np.ndarray


def explors(
    task: np.ndarray, model: FiniteModel, gamma: float, episodes: int, seed: int, eta: float = 0.03, weight: float = 0.1
) -> tuple[np.ndarray, np.ndarray]:
    """f (S, A), 0 if `eta` is, and the task's discounted return of each episode, of at most 3 / (1 - gamma) steps."""
    rng = np.random.default_rng(seed)
    states, actions = task.shape
    logits = np.zeros_like(task)
    f = np.zeros_like(task)
    visits = np.zeros(states)
    # V of the task's return, and of all rewards, in each state.
    task_means = np.zeros(states)
    total_means = np.zeros(states)
    recent = deque[TabularEpisode](maxlen=DESIGN_FROM)
    returns = np.zeros(episodes)
    for number in range(episodes):
        newest = play(model, logits, rng, longest=round(3 / (1 - gamma)))
        recent.append(newest)
        np.add.at(visits, newest.next_state[newest.next_state >= 0], 1)
        returns[number] = to_go(task[newest.state, newest.action], gamma)[0]

        if eta and number % DESIGN_EVERY == DESIGN_EVERY - 1:
            for state, action, _ in recent:
                advantage = to_go(task[state, action], gamma) - task_means[state]
                policy = softmax(logits[state], axis=1)
                np.add.at(f, state, eta * credit(policy, action, advantage))
                move_means(task_means, state, advantage)

        if number % LEARN_EVERY == LEARN_EVERY - 1:
            for state, action, next_state in list(recent)[-LEARN_FROM:]:
                # Nothing is new where the episode ended.
                novelty = np.where(next_state < 0, 0, bonus(visits[next_state], weight))
                rewards = task[state, action] + f[state, action] + novelty
                advantage = to_go(rewards, gamma) - total_means[state]
                gradient = np.eye(actions)[action] - softmax(logits[state], axis=1)
                np.add.at(logits, state, LOGIT_RATE * advantage[:, None] * gradient)
                move_means(total_means, state, advantage)
    return f, returns


def move_means(means: np.ndarray, state: np.ndarray, advantage: np.ndarray) -> None:
    """Move V (S,) towards the returns from the states (H,) of an episode on, which are `advantage` (H,) above it."""
    # A state that the episode met twice moves by the mean of both.
    visits = np.bincount(state)[state]
    np.add.at(means, state, MEAN_RATE * advantage / visits)


def bonus(visits: np.ndarray, weight: float = 1.0) -> np.ndarray:
    """B of states that were visited so often: 1 at first, then as weight / sqrt(n)."""
    if weight == 0:
        return np.zeros(visits.shape)
    return weight / np.sqrt(weight**2 + visits)


def credit(policy: np.ndarray, action: np.ndarray, advantage: np.ndarray) -> np.ndarray:
    """How f changes, over eta, where the task returned `advantage` (H,) more than usual; it and policies are (H, A)."""
    chosen = np.eye(policy.shape[1])[action]
    probability = (chosen * policy).sum(axis=1, keepdims=True)
    return probability * advantage[:, None] * (chosen - policy)


def play(model: FiniteModel, logits: np.ndarray, rng: np.random.Generator, longest: int) -> TabularEpisode:
    """One episode of the policy."""
    cumulative = softmax(logits, axis=1).cumsum(axis=1)
    steps: list[tuple[int, int, int]] = []
    state = int(rng.choice(len(logits), p=model.start))
    while state >= 0 and len(steps) < longest:
        action = int((cumulative[state, :-1] < rng.random()).sum())
        next_cumulative = model.transition[state, action].cumsum()
        next_state = int(np.searchsorted(next_cumulative, rng.random(), side="right"))
        # What is missing to a sum of 1 is the probability that the episode ends.
        if next_state == len(logits):
            next_state = -1
        steps.append((state, action, next_state))
        state = next_state
    return TabularEpisode(*np.array(steps).T)


def to_go(rewards: np.ndarray, gamma: float) -> np.ndarray:
    """Discounted sums of rewards (H,) from each step on: the filter y_t = r_t + gamma y_{t+1}."""
    return lfilter([1.0], [1.0, -gamma], rewards[::-1])[::-1]
