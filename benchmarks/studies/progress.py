"""What demonstrations buy as a potential, on MountainCar; and what an agent's own successes do, on DeepSea.

MountainCar-v0, our PPO and its settings of `exploration`, 200,000 steps, judged by the task's return:

    none            the task alone
    progress        the task and the progress that 25 successful episodes show, as a potential
    paid            the same, paid as it is at every step
    random_demos    the control: episodes of a random policy, none of which arrives
    rnd             a bonus for novelty instead, which needs no demonstration

lodestar/DeepSea-v0 of size 10, 50,000 steps, 10 seeds, judged by success: `self_none` is the task alone,
`self_reference` the task and progress towards the batch's own successes. It cannot help before the first success.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs import Job, run_missing
from benchmarks.studies.exploration import TASKS
from runners.evaluate import interval
from runners.report import statistics

SEEDS, DEEP_SEEDS = 5, 10
EPISODES = 25
ARMS: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {  # arm -> task, rewards beside the task's with their options
    "none": ("mountaincar", {}),
    "progress": ("mountaincar", {"progress": {"of": "obs", "weight": 10.0}}),
    "paid": ("mountaincar", {"progress": {"of": "obs", "weight": 0.5, "shape": "none"}}),
    "random_demos": ("mountaincar", {"progress": {"of": "obs", "weight": 10.0}}),
    "rnd": ("mountaincar", {"rnd": {"weight": "linear:1:0:133333", "scale": "ema", "episodic": False}}),
    "self_none": ("deepsea10", {}),
    "self_reference": ("deepsea10", {"self_reference": {"weight": 1.0}}),
}


def run(folder: Path) -> dict[str, float]:
    """Run what is missing; return or success of every arm, IQM of the seeds (share of seeds for DeepSea), intervals."""
    jobs: list[Job] = [
        (train, (arm, seed))
        for seed in range(DEEP_SEEDS)
        for arm, (task, _) in ARMS.items()
        if seed < SEEDS or task == "deepsea10"
    ]
    rows = run_missing(folder, "progress", ("arm", "seed"), jobs)
    figures: dict[str, float] = {}
    for arm, (task, _) in ARMS.items():
        own = [row for row in rows if row["arm"] == arm]
        values = [float(row[TASKS[task].judged_by]) for row in own]
        low, high = interval(values)
        middle = statistics.iqm(values) if task == "mountaincar" else float(np.mean(values))
        key = f"progress_{task}_{arm}"
        figures |= {key: middle, f"{key}_low": low, f"{key}_high": high}
        if task == "mountaincar":
            figures[f"{key}_steps"] = float(np.median([float(row["solved_at"] or TASKS[task].steps) for row in own]))
    return figures


def train(arm: str, seed: int, steps: int | None = None) -> dict[str, Any]:
    """One run: how it ended, and when the mean return first passed the task's threshold (empty: not reached)."""
    import torch

    import rewards
    from agents.ppo.agent import PPO, PPOConfig
    from benchmarks.studies.studies import make_watch
    from envs.make import make_vec

    torch.set_num_threads(1)
    name, pays = ARMS[arm]
    task, clock = TASKS[name], time.perf_counter()
    task = replace(task, steps=steps or task.steps)
    envs = make_vec(task.env_id, task.n_envs, seed=1000 * seed, backend="batched", **task.options)
    config = PPOConfig(**task.settings)
    with tempfile.TemporaryDirectory() as scratch:
        configs: dict[str, Any] = {"task": None}
        for key, options in pays.items():
            extra: dict[str, Any] = {}
            if key == "progress":
                extra["demos"] = demonstrations(Path(scratch), arm == "random_demos", seed)
            configs[key] = rewards.get(key).Config(**options, **extra)
        spaces = (envs.single_observation_space, envs.single_action_space)
        mix = rewards.make(configs, *spaces, gamma=config.gamma, seed=seed)
    model = PPO(envs, config, scorer=mix, seed=seed)
    watch = make_watch(task.threshold, False, task.judged_by)
    model.learn(task.steps, callback=watch)
    envs.close()
    last = watch.curve[-1]
    row = {"return": round(last["return"], 4), "success": round(last["success"], 4)}
    row |= {"first_success": watch.first_success, "solved_at": watch.solved_at}
    return {**row, "steps": task.steps, "seconds": round(time.perf_counter() - clock, 1)}


def demonstrations(folder: Path, at_random: bool, seed: int) -> str:
    """A recording of 25 episodes of MountainCar: pushed the way it rolls, or at random."""
    from envs.make import make
    from envs.recording import episodes, record, save

    rng = np.random.default_rng(seed)

    def act(obs: Any, begins: np.ndarray) -> np.ndarray:
        return rng.integers(3, size=len(obs)) if at_random else np.where(obs[:, 1] >= 0, 2, 0)

    env = make("MountainCar-v0", seed=seed)
    batch = record(env, act, steps=200 * (EPISODES + 1), seed=seed)
    env.close()
    file = folder / "demonstrations.safetensors"
    save(file, batch[: episodes(batch)[EPISODES].start], {"env": "MountainCar-v0"})
    return str(file)
