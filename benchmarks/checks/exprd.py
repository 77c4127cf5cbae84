"""Rewards that linear programs design, in four rooms: how soon does a tabular learner act as the task wants?

Forty cells, four actions, a reward of 1 at the last cell; epsilon-greedy Q-learning (step 0.5, epsilon 0.1, episodes of
at most 60 steps), ten seeds, the greedy policy's discounted task return after every episode. Arms: the task's reward;
the potential of the optimal values, the upper bound; exprd with 3 states, 5 and all, beside the last cell; adaptive,
solved again every 25 episodes for the policy of then; and exprd's 5 states with rewards shuffled, the control. The
same again with slip: one move in ten goes in a random direction. exprd_return_ratio is the mean return over 300
episodes of exprd with 5 states over that of the potential, exprd_slip_return_ratio with slip. Verdict, written before
the first run: shown if the first is at least 0.5 and exprd with 5 states needs fewer episodes to 95 % of the optimum
than the task's reward and the control, beyond the interval.

A first version tried six candidate states in each turn, where the authors try all, and counted the last cell among
them: 3 and 5 states then never reached the goal.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks import results
from runners.compare.finite import FiniteModel, optimal_values
from runners.design.table import adaptive, exprd
from runners.report.statistics import iqm

ROOMS = ("...#...", ".......", "...#...", "#.###.#", "...#...", ".......", "...#...")
MOVES = ((0, 1), (1, 0), (0, -1), (-1, 0))
GAMMA, STEP, EPSILON, LONGEST = 0.95, 0.5, 0.1, 60
EPISODES, AGAIN, SEEDS = 300, 25, 10
SLIP = 0.1


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


def slipping(model: FiniteModel) -> FiniteModel:
    """The same, where a share of the moves goes in a random direction."""
    anywhere = model.transition.mean(axis=1, keepdims=True)
    return replace(model, transition=(1 - SLIP) * model.transition + SLIP * anywhere)


def run(folder: Path) -> dict[str, float]:
    """Run the arms and seeds that have no row; IQM over seeds."""
    path = folder / "exprd.csv"
    model, task = rooms()
    figures: dict[str, float] = {}
    for prefix, world in (("", model), ("slip_", slipping(model))):
        rewards = designed(world, task)
        for arm, reward in rewards.items():
            run_arm(path, world, task, prefix + arm, reward)
        figures |= summary(path, [prefix + arm for arm in rewards])
    for prefix in ("", "slip_"):
        ours = figures[f"exprd_return_{prefix}exprd5"]
        figures[f"exprd_{prefix}return_ratio"] = ours / figures[f"exprd_return_{prefix}potential"]
    return figures


def run_arm(path: Path, model: FiniteModel, task: np.ndarray, arm: str, reward: np.ndarray) -> None:
    """Learn from a reward (S, A) with the seeds that have no row yet; a row for each."""
    best = optimal_values(task, model.transition, GAMMA)[0].max()
    for seed in range(SEEDS):
        if not results.lacks_row(path, arm=arm, seed=seed):
            continue
        returns = learn(model, task, reward, seed, teach=arm.endswith("adaptive"))
        reached = np.flatnonzero(returns >= 0.95 * best)
        episodes = int(reached[0]) + 1 if len(reached) else EPISODES
        share = round(float(returns.mean() / best), 4)
        results.append_rows(path, [{"arm": arm, "seed": seed, "return": share, "episodes": episodes}])


def summary(path: Path, arms: list[str]) -> dict[str, float]:
    """IQM over seeds of each arm's return and episodes."""
    rows = results.read_rows(path)
    figures: dict[str, float] = {}
    for arm in arms:
        for column in ("return", "episodes"):
            values = [float(row[column]) for row in rows if row["arm"] == arm]
            figures[f"exprd_{column}_{arm}"] = float(iqm(values))
    return figures


def designed(model: FiniteModel, task: np.ndarray) -> dict[str, np.ndarray]:
    """Arm -> the reward (S, A) that it begins with."""
    value = optimal_values(task, model.transition, GAMMA).max(axis=1)
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
    rng = np.random.default_rng(seed)
    q = np.zeros_like(task)
    returns = np.zeros(EPISODES)
    for episode in range(EPISODES):
        if teach and episode % AGAIN == 0:
            greedy = np.eye(task.shape[1])[q.argmax(axis=1)]
            reward = adaptive(task, model, GAMMA, (1 - EPSILON) * greedy + EPSILON / task.shape[1])
        state = 0
        for _ in range(LONGEST):
            best = np.flatnonzero(q[state] == q[state].max())
            action = int(rng.integers(4) if rng.random() < EPSILON else rng.choice(best))
            after = draw_next(model.transition[state, action], rng)
            ahead = 0.0 if after is None else GAMMA * q[after].max()
            q[state, action] += STEP * (reward[state, action] + ahead - q[state, action])
            if after is None:
                break
            state = after
        returns[episode] = greedy_return(model, task, q)
    return returns


def draw_next(chances: np.ndarray, rng: np.random.Generator) -> int | None:
    """The state that follows, of those with chances (S,); None where the episode ends."""
    if not chances.any():
        return None
    if chances.max() == 1:
        return int(chances.argmax())
    return int(rng.choice(len(chances), p=chances))


def greedy_return(model: FiniteModel, task: np.ndarray, q: np.ndarray) -> float:
    """Expected discounted task return of the greedy policy from the first state."""
    action = q.argmax(axis=1)
    states = np.arange(len(task))
    transition = model.transition[states, action]
    rewards = task[states, action]
    here = model.start
    total = 0.0
    for step in range(LONGEST):
        total += GAMMA**step * float(here @ rewards)
        here = here @ transition
    return total
