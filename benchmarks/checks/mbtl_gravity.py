"""Where to train for a family of tasks: MBTL's choices replayed on policies that were trained for every task.

    python -m benchmarks mbtl_gravity

MountainCar under 30 gravities from 0.0015 to 0.0045 (benchmarks.worlds:Hill-v0): PPO with RND for 200,000 steps at
each, by five seeds, evaluated on all 30 for five episodes, by `runners.transfer`: a matrix of returns for each seed. On
each, five sources are chosen one by one by MBTL (mbtl), at equal distances (equidistant), at random, the mean of 200
draws (random), and as the best five of all, the matrix known (oracle), which says whether there is room. The score is
the mean over tasks of the best chosen policy's return. An interrupted measurement continues.

The verdict stands in effects.yaml, written before the first run; nothing was tuned, and no run was made in this world
before, so that its seeds are the command's own, 0 to 4. Estimate: 80 core-minutes, 25 seconds a run and 15 minutes of
evaluation.
"""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import numpy as np

from benchmarks import results
from runners.transfer import mbtl

SEEDS, TASKS, BUDGET, DRAWS = 5, 30, 5, 200
LOW, HIGH = 0.0015, 0.0045
ARMS = ("mbtl", "equidistant", "random", "oracle")
ROOT = Path("runs") / "mbtl_gravity"
TRAINED = (
    *("env=benchmarks.worlds:Hill-v0", "agent=ppo", "preset=none", "n_envs=16", "total_timesteps=200000"),
    *("agent.n_steps=128", "agent.batch_size=128", "agent.n_epochs=10", "agent.learning_rate=1e-3"),
    *("agent.entropy_weight=0.01", "reward=rnd", "reward.rnd.weight=linear:1.0:0:133333", "reward.rnd.scale=ema"),
    *("reward.rnd.episodic=false", "eval_episodes=1"),
)


def run(folder: Path) -> dict[str, float]:
    """Train what has not been trained, replay, and give the mean return over tasks of every way to choose."""
    matrices = trained(folder / "mbtl_gravity_matrix.csv")
    path = folder / "mbtl_gravity.csv"
    if not results.read_rows(path):
        for seed, matrix in enumerate(matrices):
            arm_rows = [{"arm": arm, "seed": seed, "return": value} for arm, value in replayed(matrix, seed).items()]
            results.append_rows(path, arm_rows)
    rows = results.read_rows(path)
    figures: dict[str, float] = {}
    for arm in ARMS:
        figures |= results.summary(f"mbtl_{arm}", [float(row["return"]) for row in rows if row["arm"] == arm])
    return figures


def trained(path: Path) -> np.ndarray:
    """Returns of each seed's policies, (seeds, source, task), from `path`, or of the runs that it is written from."""
    from runners.transfer.__main__ import main

    if not path.exists():
        over = f"over=env.gravity=[{LOW},{HIGH},{TASKS}]"
        own = [f"budget={TASKS}", f"seeds={SEEDS}", "episodes=5", "controls=[]", "slots=1", f"root={ROOT}", "name=hill"]
        if main([*TRAINED, over, *own]):
            raise RuntimeError("not all policies are complete; the same command continues")
        with (ROOT / "transfer" / "hill" / "matrix.csv").open() as file:
            _, *lines = csv.reader(file)
        # Lines are in the order of sources, and of seeds within one.
        rows = [{"seed": line[1]} | {f"to_{task}": each for task, each in enumerate(line[2:])} for line in lines]
        results.append_rows(path, rows)
    rows = results.read_rows(path)
    flat = [[float(row[f"to_{task}"]) for task in range(TASKS)] for row in rows]
    return np.array(flat).reshape(TASKS, -1, TASKS).swapaxes(0, 1)


def replayed(matrix: np.ndarray, seed: int) -> dict[str, float]:
    """Arm -> mean over tasks of the best return after all choices; `matrix` holds returns (source, task)."""
    count = len(matrix)
    contexts = np.linspace(0, 1, count)[:, None]
    ours: dict[int, np.ndarray] = {}
    while len(ours) < BUDGET:
        source = mbtl.choose(contexts, ours)
        ours[source] = matrix[source]
    every = np.array(list(itertools.combinations(range(count), BUDGET)))
    chunks = np.array_split(every, 50)
    rng = np.random.default_rng(seed)
    draws = [value(matrix, rng.permutation(count)[:BUDGET].tolist()) for _ in range(DRAWS)]
    return {
        "mbtl": value(matrix, list(ours)),
        "equidistant": value(matrix, mbtl.equidistant(contexts, BUDGET)),
        "random": float(np.mean(draws)),
        "oracle": max(float(matrix[each].max(axis=1).mean(axis=1).max()) for each in chunks),
    }


def value(matrix: np.ndarray, sources: list[int]) -> float:
    """Mean over tasks of the best return among the policies of some sources."""
    return float(mbtl.mean_of_best(matrix[sources])[-1])
