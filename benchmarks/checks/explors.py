"""ExploRS in four rooms: does a reward that the learner designs itself find the goal sooner than counting visits?

The rooms, discount and longest episode of `exprd`; a policy-gradient learner (softmax, step 0.1, a baseline a state)
that begins in one corner, the reward in the other; 600 episodes, ten seeds; the mean share of the optimal return over
all episodes. Arms: task, the task's reward alone; counts, with the bonus of visits (the control: f is 0); found, with f
alone; explors, with both. Step, eta and weight of B were chosen on seeds 50 and 51.
Verdict, written before the first run: shown if explors is above counts, and counts above
task, beyond the interval.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks import results
from benchmarks.checks.exprd import GAMMA, SEEDS, rooms
from runners.compare.finite import optimal_values
from runners.design.explors import explors
from runners.report.statistics import aggregate

EPISODES, ETA, WEIGHT = 600, 0.03, 0.1
ARMS = {"task": (0.0, 0.0), "counts": (0.0, WEIGHT), "found": (ETA, 0.0), "explors": (ETA, WEIGHT)}  # eta, weight of B


def run(folder: Path) -> dict[str, float]:
    """Run the arms and seeds that have no row; IQM over seeds and intervals."""
    path, (model, task) = folder / "explors.csv", rooms()
    best = optimal_values(task, model.transition, GAMMA)[0].max()
    for arm, (eta, weight) in ARMS.items():
        for seed in range(SEEDS):
            if results.lacks_row(path, arm=arm, seed=seed):
                _, returns = explors(task, model, GAMMA, EPISODES, seed, eta=eta, weight=weight)
                results.append_rows(
                    path, [{"arm": arm, "seed": seed, "return": round(float(returns.mean() / best), 4)}]
                )
    rows, found = results.read_rows(path), dict[str, float]()
    for arm in ARMS:
        summed = aggregate([np.array([float(row["return"]) for row in rows if row["arm"] == arm])])
        key = f"explors_return_{arm}"
        found |= {key: float(summed.value), f"{key}_low": float(summed.low), f"{key}_high": float(summed.high)}
    return found
