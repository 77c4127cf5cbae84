"""Which bonus helps where: every exploration reward on sparse tasks, beside its controls.

A run learns with our PPO on batched environments, paid by the task and one bonus, whose weight falls to zero before
the end; the same scale and weight for every bonus of a task, everything else as the reward comes. It is judged by the
task's own success or return over its last 100 episodes. Controls: the task alone (`none`), a random policy (`random`),
the first-visit count of the episode (`count`) and 1/sqrt(n) over the whole run (`count_lifetime`).

Forward prediction and BYOL-Explore stand in `noisy_rooms`.

Runs go on one process a core. Rows are written as they end; an interrupted study goes on where it stopped.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs import Job, run_missing
from runners.evaluate import interval
from runners.report import statistics

SEEDS = 5
# Bonuses of the episode end with it; those of a lifetime go on into the next.
LIFELONG = ("rnd", "rdd", "icm", "disagreement", "hindsight", "count_lifetime")
EPISODIC = ("count", "ride", "noveld", "e3b", "pseudocount", "ngu", "re3", "deir", "submodular")
METHODS: dict[str, tuple[str, dict[str, Any]]] = {  # arm -> reward, its options
    **{name: (name, {}) for name in (*LIFELONG, *EPISODIC)},
    "count_lifetime": ("count", {"memory": "lifetime", "kind": "sqrt"}),
}
# Weights and settings were chosen on seed 100, looking at rnd, noveld, count and e3b alone.
SETTINGS = {"n_steps": 128, "batch_size": 256, "n_epochs": 4, "learning_rate": 5e-4, "entropy_weight": 0.01}
MOUNTAINCAR = {**SETTINGS, "learning_rate": 1e-3, "batch_size": 128, "n_epochs": 10}
PENDULUM = {**SETTINGS, "learning_rate": 1e-3, "gamma": 0.95, "n_epochs": 10}


@dataclass(frozen=True)
class Task:
    """A sparse task, and how its bonus is weighed: `weight` falls linearly to zero over the first 2/3 of the steps."""

    env_id: str
    steps: int
    weight: float
    scale: str = "return"
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    judged_by: str = "success"
    threshold: float = 0.5  # of what it is judged by
    n_envs: int = 16
    arms: tuple[str, ...] = ()  # of which alone are run; none for all
    one_seed: tuple[str, ...] = ()  # arms that are not worth five


# Where every episode draws a world anew, what is new in a lifetime soon means nothing: RND and the count stand for all.
FADING = ("rdd", "icm", "disagreement", "hindsight")
DEEP = (
    "none",
    "random",
    "count_lifetime",
    "rnd",
    "ride",
)  # what reached the treasure at size 20 on seeds 0 and 100, and RND
TASKS = {
    "keycorridor": Task("MiniGrid-KeyCorridorS3R2-v0", 150_000, 0.1, settings=SETTINGS, one_seed=FADING),
    "multiroom": Task("MiniGrid-MultiRoom-N4-S5-v0", 120_000, 0.1, settings=SETTINGS, one_seed=FADING),
    "mountaincar": Task(
        "MountainCar-v0", 200_000, 1.0, "ema", settings=MOUNTAINCAR, judged_by="return", threshold=-150.0
    ),
    "pendulum": Task("lodestar/PendulumSparse-v0", 150_000, 0.3, settings=PENDULUM),
    "deepsea10": Task("lodestar/DeepSea-v0", 50_000, 0.3, options={"size": 10}, settings=SETTINGS),
    "deepsea20": Task("lodestar/DeepSea-v0", 100_000, 0.3, options={"size": 20}, settings=SETTINGS),
    "deepsea30": Task("lodestar/DeepSea-v0", 300_000, 1.0, options={"size": 30}, settings=SETTINGS, arms=DEEP),
}


def run(folder: Path) -> dict[str, float]:
    """Run what is missing, draw it; the interquartile mean over seeds of every task and method, with its interval."""
    from benchmarks.studies import exploration_figure

    arms = ["none", "random", *known()]
    jobs: list[Job] = [
        (train, (name, arm, seed))
        for seed in range(SEEDS)
        for name, task in TASKS.items()
        for arm in task.arms or arms
        if seed == 0 or arm not in task.one_seed
    ]
    rows = run_missing(folder, "exploration", ("task", "arm", "seed"), jobs)
    exploration_figure.draw(folder)
    figures: dict[str, float] = {}
    for name, task in TASKS.items():
        for arm in arms:
            figures |= _summary(
                f"{name}_{arm}", task, [row for row in rows if (row["task"], row["arm"]) == (name, arm)]
            )
    return figures


def _summary(key: str, task: Task, rows: list[dict[str, Any]]) -> dict[str, float]:
    """How the seeds of an arm ended, and the median of their steps to the threshold if more than half got there."""
    if not rows:
        return {}
    values = [float(row[task.judged_by]) for row in rows]
    low, high = interval(values)
    steps = float(np.median([float(row["solved_at"] or "inf") for row in rows]))
    reached = {f"{key}_steps": steps} if steps < float("inf") else {}
    return {key: statistics.iqm(values), f"{key}_low": low, f"{key}_high": high, **reached}


def known() -> list[str]:
    """The methods whose rewards exist."""
    import rewards

    return [arm for arm, (reward, _) in METHODS.items() if reward in rewards.TABLE]


def train(name: str, arm: str, seed: int, task: Task | None = None, **changes: Any) -> dict[str, Any]:
    """One run: how it ended, and when it first succeeded and passed the threshold (empty: not reached)."""
    import torch

    from agents.ppo.agent import PPO, PPOConfig
    from benchmarks.studies.studies import make_watch
    from envs.make import make_vec
    from runners.run.build import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(1)
    task = task or TASKS[name]
    clock = time.perf_counter()
    envs = make_vec(task.env_id, task.n_envs, seed=1000 * seed, backend="batched", **task.options)
    if arm == "random":
        row = play_at_random(envs, min(task.steps, 100_000), seed)
    else:
        config = PPOConfig(**task.settings)
        model = PPO(envs, config, scorer=mix_of(envs, task, arm, config.gamma, seed, changes), seed=seed)
        watch = make_watch(task.threshold, False, task.judged_by)
        model.learn(task.steps, callback=watch)
        last = watch.curve[-1] if watch.curve else {"return": 0.0, "success": 0.0}
        row = {"return": round(last["return"], 4), "success": round(last["success"], 4)}
        row |= {"first_success": watch.first_success, "solved_at": watch.solved_at}
    envs.close()
    return {**row, "steps": task.steps, "seconds": round(time.perf_counter() - clock, 1)}


def mix_of(envs: Any, task: Task, arm: str, gamma: float, seed: int, changes: dict[str, Any]) -> Any:
    """The task's reward and the arm's bonus."""
    import rewards

    configs: dict[str, Any] = {"task": None}
    if arm != "none":
        name, options = METHODS[arm]
        weight = f"linear:{task.weight}:0:{2 * task.steps // 3}"
        common = {"weight": weight, "scale": task.scale, "episodic": arm in EPISODIC}
        configs[name] = rewards.get(name).Config(**{**common, **options, **changes})
    return rewards.make(configs, envs.single_observation_space, envs.single_action_space, gamma=gamma, seed=seed)


def play_at_random(envs: Any, steps: int, seed: int) -> dict[str, Any]:
    """Mean return and success of the episodes that uniform actions get through."""
    envs.action_space.seed(seed)
    envs.reset(seed=1000 * seed)
    returns: list[float] = []
    successes: list[bool] = []
    for _ in range(steps // envs.num_envs):
        infos = envs.step(envs.action_space.sample())[-1]
        if "final_info" in infos:
            ended = np.asarray(infos["_final_info"])
            returns.extend(np.asarray(infos["final_info"]["episode"]["r"])[ended].tolist())
            successes.extend(np.asarray(infos["final_info"]["is_success"])[ended].tolist())
    row = {"return": round(float(np.mean(returns)), 4), "success": round(float(np.mean(successes)), 4)}
    return {**row, "first_success": "", "solved_at": ""}
