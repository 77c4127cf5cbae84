"""What subgoals buy, by how often their teacher is right, on MiniGrid-KeyCorridorS3R1.

Our PPO, 16 environments, a teacher that is a planner seen through an accuracy, not a language model:

    none       the task alone
    1.0        subgoals told and paid (weight 0.2), every one right
    0.9, 0.5   a subgoal is a cell some steps off with probability 0.1 and 0.5
    0.0        the control: every subgoal wrong, told and paid
    told       the other control: every subgoal right and told, none paid

A run is judged by the task's own success over its last 100 episodes: it ends where that passes 80 %, or after 49,152
steps, which is what a run that never did counts for.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs import Job, run_missing

ENV, STEPS, N_ENVS, SEEDS = "MiniGrid-KeyCorridorS3R1-v0", 49_152, 16, 2
SETTINGS = {"n_steps": 128, "learning_rate": 5e-4, "entropy_weight": 0.01, "net_arch": [64, 64]}
SETTINGS |= {"batch_size": 128, "n_epochs": 4}
ARMS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "1.0": {"teacher_options": {"accuracy": 1.0}},
    "0.9": {"teacher_options": {"accuracy": 0.9}},
    "0.5": {"teacher_options": {"accuracy": 0.5}},
    "0.0": {"teacher_options": {"accuracy": 0.0}},
    "told": {"teacher_options": {"accuracy": 1.0}, "weight": 0.0},
}
THRESHOLD = 0.8  # share of the last 100 episodes that succeeded


def run(folder: Path) -> dict[str, float]:
    """Run what is missing; mean steps to 80 % success and success at the end, by arm."""
    jobs: list[Job] = [(train, (arm, seed)) for seed in range(SEEDS) for arm in ARMS]
    rows = run_missing(folder, "subgoals", ("arm", "seed"), jobs)
    figures: dict[str, float] = {}
    for arm in ARMS:
        own = [row for row in rows if row["arm"] == arm]
        figures[f"subgoals_{arm}_steps"] = float(np.mean([float(row["solved_at"] or STEPS) for row in own]))
        figures[f"subgoals_{arm}_success"] = float(np.mean([float(row["success"]) for row in own]))
    return figures


def train(arm: str, seed: int, steps: int = STEPS) -> dict[str, Any]:
    """One run: success at its end, and the step at which it passed the threshold (empty: never)."""
    import torch

    from agents.ppo.agent import PPO, PPOConfig
    from benchmarks.studies.studies import make_watch
    from envs.make import make_vec
    from rewards.adapters.guided import guided
    from rewards.language.subgoals import Subgoals, SubgoalsConfig
    from rewards.mix.mix import Mix, Stream
    from rewards.task import Task

    torch.set_num_threads(1)
    clock, options, config = time.perf_counter(), ARMS[arm], PPOConfig(**SETTINGS)  # type: ignore[arg-type]
    envs = make_vec(ENV, N_ENVS, seed=1000 * seed, backend="gym", signals=options is not None)
    spaces = (envs.single_observation_space, envs.single_action_space)
    streams = [Stream("task", Task(Task.Config(), *spaces), gamma=config.gamma)]
    if options is not None:
        streams.append(Stream("subgoals", Subgoals(SubgoalsConfig(**options), *spaces, seed=seed), gamma=config.gamma))
    mix = Mix(streams)
    model = PPO(guided(envs, mix), config, scorer=mix, seed=seed)
    watch = make_watch(THRESHOLD, True, "success")
    model.learn(steps, callback=watch)
    envs.close()
    success = round(watch.curve[-1]["success"], 4)
    row = {"success": success, "first_success": watch.first_success, "solved_at": watch.solved_at}
    return {**row, "steps": model.num_timesteps, "seconds": round(time.perf_counter() - clock, 1)}
