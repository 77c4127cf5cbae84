"""Rewards that linear programs design, in four rooms: how soon does a tabular learner act as the task wants?

Forty cells, four actions, a reward of 1 at the last cell; epsilon-greedy Q-learning (step 0.5, epsilon 0.1, episodes of
at most 60 steps), ten seeds, the greedy policy's discounted task return after every episode. Arms: the task's reward;
the potential of the optimal values, the upper bound; exprd with 3 states, 5 and all; adaptive, solved again every 25
episodes for the policy of then; and exprd's 5 states with rewards shuffled, the control. exprd_return_ratio is the mean
return over 300 episodes of exprd with 5 states over that of the potential. Verdict, written before the first run:
shown if that is at least 0.5 and exprd with 5 states needs fewer episodes to 95 % of the optimum than the task's reward
and the control, beyond the interval. One seed tried beforehand: 3 and 5 states never reach the goal, all states do.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks import results
from runners.compare.finite import FiniteModel, optimal
from runners.design.table import adaptive, exprd
from runners.report.statistics import iqm

ROOMS = ("...#...", ".......", "...#...", "#.###.#", "...#...", ".......", "...#...")
MOVES = ((0, 1), (1, 0), (0, -1), (-1, 0))
GAMMA, STEP, EPSILON, LONGEST = 0.95, 0.5, 0.1, 60
EPISODES, AGAIN, SEEDS = 300, 25, 10


def rooms() -> tuple[FiniteModel, np.ndarray]:
    """The model and the task's rewards (S, A); moving on from the last cell ends the episode."""
    cells = [(y, x) for y, row in enumerate(ROOMS) for x, sign in enumerate(row) if sign == "."]
    transition, task = np.zeros((len(cells), 4, len(cells))), np.zeros((len(cells), 4))
    for state, (y, x) in enumerate(cells):
        for action, (down, right) in enumerate(MOVES):
            after = (y + down, x + right)
            if state < len(cells) - 1:
                transition[state, action, cells.index(after) if after in cells else state] = 1
    task[-1] = 1.0
    start = np.eye(len(cells))[0]
    return FiniteModel(transition, np.array(cells, float), np.zeros((0, 2), int), start), task


def run(folder: Path) -> dict[str, float]:
    """Run the arms and seeds that have no row; IQM over seeds."""
    path, (model, task) = folder / "exprd.csv", rooms()
    there = {(row["arm"], int(row["seed"])) for row in results.read_rows(path)}
    rewards = designed(model, task)
    for arm, reward in rewards.items():
        for seed in range(SEEDS):
            if (arm, seed) not in there:
                returns = learn(model, task, reward, seed, teach=arm == "adaptive")
                best = optimal(task, model.transition, GAMMA)[0].max()
                reached = np.flatnonzero(returns >= 0.95 * best)
                soon = int(reached[0]) + 1 if len(reached) else EPISODES
                row = {"arm": arm, "seed": seed, "return": round(float(returns.mean() / best), 4), "episodes": soon}
                results.append_rows(path, [row])
    rows, found = results.read_rows(path), dict[str, float]()
    for arm in rewards:
        for column in ("return", "episodes"):
            found[f"exprd_{column}_{arm}"] = float(iqm([float(row[column]) for row in rows if row["arm"] == arm]))
    return {**found, "exprd_return_ratio": found["exprd_return_exprd5"] / found["exprd_return_potential"]}


def designed(model: FiniteModel, task: np.ndarray) -> dict[str, np.ndarray]:
    """Arm -> the reward (S, A) that it begins with."""
    value = optimal(task, model.transition, GAMMA).max(axis=1)
    found = {"task": task, "potential": task + GAMMA * model.transition @ value - value[:, None]}
    for states, name in ((3, "exprd3"), (5, "exprd5"), (len(task), "exprd_all")):
        found[name] = exprd(task, model.transition, GAMMA, states)[0]
    found["adaptive"] = task
    active = np.flatnonzero(found["exprd5"].any(axis=1))
    shuffled = np.zeros_like(task)
    shuffled[active] = np.random.default_rng(0).permutation(found["exprd5"][active].ravel()).reshape(-1, 4)
    return {**found, "shuffled": shuffled}


def learn(model: FiniteModel, task: np.ndarray, reward: np.ndarray, seed: int, *, teach: bool) -> np.ndarray:
    """The greedy policy's discounted task return after each episode of Q-learning, (EPISODES,)."""
    rng, q, returns = np.random.default_rng(seed), np.zeros_like(task), np.zeros(EPISODES)
    for episode in range(EPISODES):
        if teach and episode % AGAIN == 0:
            greedy = np.eye(task.shape[1])[q.argmax(axis=1)]
            reward = adaptive(task, model, GAMMA, (1 - EPSILON) * greedy + EPSILON / task.shape[1])
        state = 0
        for _ in range(LONGEST):
            best = np.flatnonzero(q[state] == q[state].max())
            action = int(rng.integers(4) if rng.random() < EPSILON else rng.choice(best))
            after = model.transition[state, action]
            ends = not after.any()
            target = reward[state, action] + (0.0 if ends else GAMMA * q[after.argmax()].max())
            q[state, action] += STEP * (target - q[state, action])
            if ends:
                break
            state = int(after.argmax())
        returns[episode] = worth(model, task, q)
    return returns


def worth(model: FiniteModel, task: np.ndarray, q: np.ndarray) -> float:
    """Discounted task return of the greedy policy from the first state."""
    state, total = 0, 0.0
    for step in range(LONGEST):
        action = int(q[state].argmax())
        total += GAMMA**step * task[state, action]
        if not (after := model.transition[state, action]).any():
            break
        state = int(after.argmax())
    return total
