"""Reward code by an author against random formulas of the same grammar, tried and chosen in the same way.

`runners.design` with the answers that ship, which were written by hand (judge=recorded), and with random formulas
(judge=random): three rounds of four proposals, two seeds each, the best by the task's return. The winner and the
task's own reward are trained again with five seeds that nothing was chosen by. MountainCar: PPO, 60,000 steps;
Pendulum: SAC, 6,000 steps, where the task's own reward is dense, so that nothing but its equal can be hoped for.
Returns are scaled so that a random policy is 0 and the best arm of a task 1. Verdict, written before the first run:
shown if the author's is above the random formulas' by 0.2 or more, mean over the tasks, and in neither task the
interval of the random formulas lies above it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks import results
from lodestar.files import read_json
from runners.report.statistics import iqm

COMMON = ("rounds=3", "candidates=4", "seeds=2", "finalists=1", "test_seeds=5", "preset=none")
TASKS = {
    "mountaincar": (
        *("env=MountainCar-v0", "total_timesteps=60000", "backend=batched", "n_envs=16", "agent.n_steps=128"),
        *("agent.learning_rate=1e-3", "agent.batch_size=128", "agent.n_epochs=10", "agent.entropy_weight=0.01"),
    ),
    "pendulum": (
        *("env=Pendulum-v1", "agent=sac", "total_timesteps=6000", "n_envs=4", "agent.learning_rate=1e-3"),
        *("agent.gamma=0.95", "agent.net_arch=[64,64]", "agent.batch_size=128", "agent.learning_starts=1000"),
        *("agent.gradient_steps=2",),
    ),
}
JUDGES = {"recorded": ("judge=recorded", "judge.file={task}"), "random": ("judge=random",)}


def run(folder: Path) -> dict[str, float]:
    """Run the searches that have no rows; IQM of each arm, and the difference of authors, scaled."""
    from runners.design.__main__ import main
    from runners.evaluate import play

    path = folder / "design.csv"
    for task, argv in TASKS.items():
        for judge, options in JUDGES.items():
            if not results.lacks_row(path, task=task, judge=judge):
                continue
            name = f"bench-{task}-{judge}"
            if main([*argv, *COMMON, *(each.format(task=task) for each in options), f"name={name}"]):
                raise RuntimeError(f"the search {name} failed")
            page = read_json(Path("runs") / "design" / name / "design.json")
            env = argv[0].removeprefix("env=")
            arms = {"task": page["test"]["task"]["runs"], judge: page["test"][page["best"]]["runs"]}
            arms["random policy"] = [play(env, None, 20, seed=seed).to_dict()["task_return"] for seed in range(5)]
            rows = [
                {"task": task, "judge": judge, "arm": arm, "seed": seed, "return": round(value, 2)}
                for arm, values in arms.items()
                for seed, value in enumerate(values)
            ]
            results.append_rows(path, rows)
    rows = results.read_rows(path)
    found: dict[str, float] = {}
    differences: list[float] = []
    for task in TASKS:
        own = [row for row in rows if row["task"] == task]
        value = {
            arm: float(iqm([float(row["return"]) for row in own if row["arm"] == arm]))
            for arm in ("recorded", "random", "task", "random policy")
        }
        span = max(value.values()) - value["random policy"]
        differences.append((value["recorded"] - value["random"]) / max(span, 1e-9))
        found |= {f"design_{task}_{arm.replace(' ', '_')}": each for arm, each in value.items()}
        found[f"design_over_random_{task}"] = differences[-1]
    return {**found, "design_over_random": float(np.mean(differences))}
