"""What a model is worth: our agents with one, the same agent without, and Stable-Baselines3's, at equal steps.

`sac` is `agents.dyna.agent` without a model and as many updates a step as `mbpo`; `sac_cpu` has more updates, so many that it
costs as much CPU as `mbpo`. `sb3_sac` and `sb3_crossq` are Stable-Baselines3's and sb3-contrib's, one update a step, as
they come. Pendulum and InvertedPendulum are smoke tests: many updates alone solve them. `random` acts at random.

A run is judged by the task's own return of 10 episodes, played along the way and at the end on the same seeds; the CPU
seconds without these episodes stand beside. Rows are written as they end; an interrupted study goes on where it
stopped. Settings were chosen on seed 100.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs import run_missing
from runners.evaluate import interval, play, policy
from runners.report import statistics

SEEDS = 5
EPISODES = 10
POINTS = 5  # evaluations of a run, the last at its end


@dataclass
class Task:
    """A task: its environment, environment steps, name in figures, and what the agents are told of it."""

    env_id: str
    steps: int
    arms: tuple[str, ...]
    utd: float = 5.0  # updates a step of mbpo and sac
    cpu: float = 8.0  # updates a step of sac_cpu
    seeds: int = SEEDS


SMOKE = ("mbpo", "dhmbpo", "sac", "sb3_sac", "random")
ROBOTS = ("mbpo", "dhmbpo", "sac", "sac_cpu", "sb3_sac", "sb3_crossq", "random")
GRIDS = ("mrq", "r2dreamer", "dqn", "random")
TASKS = {
    "pendulum": Task("Pendulum-v1", 2_500, SMOKE),
    "inverted_pendulum": Task("InvertedPendulum-v5", 3_000, SMOKE),
    "swingup": Task("lodestar/CartPoleSwingUpSparse-v0", 10_000, ("mbpo", "coplanner", "optimist", "sac", "random")),
    "hopper": Task("Hopper-v5", 20_000, ROBOTS, utd=2.0, cpu=4.0),
    "halfcheetah": Task("HalfCheetah-v5", 20_000, ROBOTS, utd=2.0, cpu=4.0),
    "empty5": Task("MiniGrid-Empty-5x5-v0", 5_000, GRIDS),
    "doorkey5": Task("MiniGrid-DoorKey-5x5-v0", 30_000, GRIDS),
}
SMALL = {"members": 1, "model_hidden": [128, 128], "batch_size": 128}  # what classic control needs


def agent_of(task: str, arm: str) -> tuple[str, dict[str, Any]]:
    """Name and settings of the agent of an arm."""
    about = TASKS[task]
    if arm.startswith("sb3_"):
        return arm.removeprefix("sb3_"), {}
    if arm in ("mrq", "r2dreamer"):
        return "world_model", {"preset": arm, **({"exploration": 0.4} if arm == "mrq" else {})}
    if arm == "dqn":
        return "dyna", {"preset": "sac", "updates_per_step": 1.0}
    small = SMALL if task in ("pendulum", "inverted_pendulum") else {}
    settings: dict[str, Any] = {"preset": arm, "updates_per_step": about.utd, **small}
    if arm == "dhmbpo":
        settings["updates_per_step"] = 1.0
    if arm == "sac_cpu":
        settings |= {"preset": "sac", "updates_per_step": about.cpu}
    if arm == "optimist":  # being unsure pays
        settings |= {"preset": "mopo", "uncertainty": "ens_std", "penalty_weight": -1.0, "horizon": 1}
    return "dyna", settings


def run(folder: Path) -> dict[str, float]:
    """Run what is missing, shorter tasks first."""
    jobs: list[Any] = []
    for seed in range(SEEDS):
        for task, about in TASKS.items():
            jobs += [(train, (task, arm, seed)) for arm in about.arms if seed < about.seeds]
    return figures(run_missing(folder, "model-learning", ("task", "arm", "seed"), jobs))


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """`<task>_<arm>_<steps>`: IQM of the final return with its 95 % interval, the seeds and the CPU seconds."""
    found: dict[str, float] = {}
    for task, about in TASKS.items():
        for arm in about.arms:
            chosen = [row for row in rows if (row["task"], row["arm"]) == (task, arm)]
            values = [float(row["return"]) for row in chosen]
            if not values:
                continue
            key = f"{task}_{arm}_{about.steps}"
            found[key] = statistics.iqm(values)
            found[f"{key}_low"], found[f"{key}_high"] = interval(values)
            found[f"{key}_seeds"] = len(values)
            found[f"{key}_cpu"] = float(np.median([float(row["cpu_seconds"]) for row in chosen]))
            successes = [float(row["success"]) for row in chosen if row["success"] not in ("", "None")]
            if successes:
                found[f"{key}_success"] = statistics.iqm(successes)
    return found


def train(task: str, arm: str, seed: int, steps: int | None = None, **changes: Any) -> dict[str, Any]:
    """One run: returns along the way, the return and the share of successes at the end."""
    about = TASKS[task]
    steps = steps or about.steps
    if arm == "random":
        scores = play(about.env_id, None, EPISODES, seed=seed)
        return _row([float(np.mean(scores.returns))], scores, 0, 0.0)
    import torch

    torch.set_num_threads(1)
    name, settings = agent_of(task, arm)
    model = _build(about.env_id, name, {**settings, **changes}, seed)
    curve, seconds = [], 0.0
    for point in range(POINTS):
        clock = time.process_time()
        model.learn(steps // POINTS, log_interval=None, reset_num_timesteps=point == 0)
        seconds += time.process_time() - clock
        episodes = EPISODES if point == POINTS - 1 else 3
        scores = play(about.env_id, policy(model, about.env_id), episodes, seed=seed)
        curve.append(float(np.mean(scores.returns)))
    return _row(curve, scores, steps, seconds)


def _build(env_id: str, name: str, settings: dict[str, Any], seed: int) -> Any:
    import agents
    from agents.sb3.agent import make_venv
    from envs.make import make_vec

    kind = agents.get(name)
    config = kind.Config(**settings)
    if kind.driver == "scorer":
        return kind.build(config, make_vec(env_id, 1, seed=1000 * seed), seed=seed, device="cpu")
    return kind.build(config, make_venv(env_id, 1, 1000 * seed), seed=seed, device="cpu")


def _row(curve: list[float], scores: Any, steps: int, seconds: float) -> dict[str, Any]:
    success = round(float(np.mean(scores.successes)), 3) if scores.successes else ""
    row: dict[str, Any] = {"return": round(curve[-1], 2), "success": success, "steps": steps}
    for i in range(POINTS - 1):
        row[f"return_{100 * (i + 1) // POINTS}"] = round(curve[i], 2) if len(curve) == POINTS else ""
    return {**row, "cpu_seconds": round(seconds, 1)}
