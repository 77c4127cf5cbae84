"""Does our PPO learn what Stable-Baselines3's does, and what is a value of its own worth to a bonus?

    learning   five tasks, the same settings and steps: Stable-Baselines3's, ours on the same Gymnasium environments,
               and ours on the batched ones where there are such: return (MiniGrid: success) of the last 100 episodes
    streams    RND beside the task, five seeds: its value goes on into the next episode, ends with it, or there is one
               value for the sum; and the task alone

A run is judged by the task's own return and success, never by the bonus.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.studies.studies import make_watch, thin
from runners.evaluate import interval
from runners.report import results, statistics
from runners.run.build import keep_freed_memory

SEEDS = 5


@dataclass(frozen=True)
class Task:
    """An environment and the settings both agents learn it with, in Stable-Baselines3's words where they differ."""

    env_id: str
    steps: int
    n_envs: int = 8
    settings: dict[str, Any] = field(default_factory=dict)
    judged_by: str = "return"
    threshold: float = float("inf")  # mean return that counts as solved
    batched: bool = False
    seeds: int = SEEDS


MINIGRID = {
    "n_steps": 128,
    "batch_size": 128,
    "n_epochs": 4,
    "learning_rate": 5e-4,
    "ent_coef": 0.01,
    "net_arch": [64, 64],
}
TASKS = {
    "cartpole": Task("CartPole-v1", 50_000, batched=True),
    "acrobot": Task("Acrobot-v1", 50_000, batched=True),
    "minigrid_doorkey6": Task("MiniGrid-DoorKey-6x6-v0", 100_000, 16, MINIGRID, "success", batched=True),
    "halfcheetah": Task("HalfCheetah-v5", 200_000, seeds=7),
    "pendulum": Task("Pendulum-v1", 100_000, 4, {"n_steps": 1024, "gamma": 0.9, "learning_rate": 1e-3}, batched=True),
}
_RND = {"scale": "ema", "learning_rate": 1e-4, "epochs": 4, "batch_size": 64}
MOUNTAINCAR = Task(
    "MountainCar-v0", 230_000, 16, {"n_steps": 128, "learning_rate": 5e-4, "ent_coef": 0.01}, "return", -150.0, True
)
KEYCORRIDOR = Task(
    "MiniGrid-KeyCorridorS3R2-v0", 300_000, 16, {**MINIGRID, "net_arch": [128, 128]}, "success", batched=True
)
BONUS: dict[str, tuple[Task, dict[str, Any]]] = {
    "mountaincar": (MOUNTAINCAR, {**_RND, "weight": "linear:1:0:200000"}),
    "keycorridor": (KEYCORRIDOR, {"weight": 0.1}),
}
ARMS: dict[str, tuple[list[str], dict[str, Any], str]] = {  # rewards, changes to the bonus, values
    "task": (["task"], {}, "separate"),
    "non_episodic": (["task", "rnd"], {"episodic": False}, "separate"),
    "episodic": (["task", "rnd"], {"episodic": True}, "separate"),
    "sum": (["task", "rnd"], {"episodic": True}, "sum"),
}


def learning(folder: Path) -> dict[str, float]:
    """Run what is missing; the interquartile mean over seeds of each task and agent."""
    runs = {}
    for seed in range(max(task.seeds for task in TASKS.values())):
        for name, task in TASKS.items():
            for arm in ("ours", "batched", "sb3"):
                if seed >= task.seeds or (arm == "batched" and not task.batched):
                    continue
                train = (
                    _train_sb3
                    if arm == "sb3"
                    else partial(_train_ours, backend="batched" if arm == "batched" else "gym")
                )
                runs[name, arm, seed] = partial(train, task, seed)
    rows = _run(folder, "ppo_learning", runs)
    _draw(folder, "ppo_learning", {name: (task, task.judged_by) for name, task in TASKS.items()})
    figures: dict[str, float] = {}
    for name, task in TASKS.items():
        for arm in ("ours", "batched", "sb3"):
            figures |= _summary(f"return_{name}_{arm}", _of(rows, name, arm, task.judged_by))
    return figures


def streams(folder: Path) -> dict[str, float]:
    """Run what is missing; interquartile means of return or success, and of the steps to MountainCar's -150."""
    runs = {
        (name, arm, seed): partial(_train_ours, task, seed, backend="batched", arm=arm, bonus=bonus)
        for seed in range(SEEDS)
        for name, (task, bonus) in BONUS.items()
        for arm in ARMS
    }
    rows = _run(folder, "ppo_streams", runs)
    _draw(folder, "ppo_streams", {name: (task, task.judged_by) for name, (task, _) in BONUS.items()})
    figures: dict[str, float] = {}
    for name, (task, _) in BONUS.items():
        for arm in ARMS:
            figures |= _summary(f"streams_{name}_{arm}", _of(rows, name, arm, task.judged_by))
            if task.threshold < float("inf"):
                steps = [float(r["solved_at"] or task.steps) for r in rows if (r["task"], r["arm"]) == (name, arm)]
                figures[f"streams_{name}_{arm}_steps"] = statistics.iqm(steps)
    return figures


def _of(rows: list[dict[str, Any]], task: str, arm: str, column: str) -> list[float]:
    return [float(row[column]) for row in rows if (row["task"], row["arm"]) == (task, arm)]


def _summary(key: str, values: list[float]) -> dict[str, float]:
    """Interquartile mean over seeds and its 95 % bootstrap interval; nothing of nothing."""
    if not values:
        return {}
    low, high = interval(values)
    return {key: statistics.iqm(values), f"{key}_low": low, f"{key}_high": high}


def _draw(folder: Path, study: str, tasks: dict[str, tuple[Task, str]]) -> None:
    """A panel for each task: the mean over seeds of each arm against steps, between the worst and the best seed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = results.read_rows(folder / f"{study}_curves.csv")
    figure, panels = plt.subplots(1, len(tasks), figsize=(2.9 * len(tasks), 2.7), layout="constrained", squeeze=False)
    handles = {}
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    for panel, (name, (task, column)) in zip(panels[0], tasks.items()):
        for arm, colour in zip(arms, ("#2c6e9b", "#4c956c", "#c44536", "#e09f3e")):
            points: dict[int, list[float]] = {}
            for row in rows:
                if (row["task"], row["arm"]) == (name, arm):
                    points.setdefault(int(float(row["steps"])) // 10_000, []).append(float(row[column]))
            if not points:
                continue
            steps = sorted(points)
            handles[arm] = panel.plot(
                [10 * x for x in steps], [np.mean(points[x]) for x in steps], color=colour, label=arm
            )[0]
            low, high = ([f(points[x]) for x in steps] for f in (min, max))
            panel.fill_between([10 * x for x in steps], low, high, color=colour, alpha=0.15, linewidth=0)
        panel.set_title(task.env_id, fontsize=9)
        panel.set_xlabel("thousand steps", fontsize=8)
        panel.set_ylabel(f"{column}, last 100 episodes", fontsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    figure.legend(handles.values(), handles, loc="outside lower center", ncol=4, fontsize=8, frameon=False)
    picture = folder.parent / "figures" / f"{study}.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=150)
    plt.close(figure)


def _run(folder: Path, study: str, runs: dict[tuple[str, str, int], Any]) -> list[dict[str, Any]]:
    keep_freed_memory()
    path = folder / f"{study}.csv"
    rows = results.read_rows(path)
    finished = {(row["task"], row["arm"], int(row["seed"])) for row in rows}
    for (task, arm, seed), train in runs.items():
        if (task, arm, seed) in finished:
            continue
        clock = time.perf_counter()
        watch, steps = train()
        last = watch.curve[-1]
        row = {"task": task, "arm": arm, "seed": seed, "steps": steps, "return": round(last["return"], 4)}
        row |= {"success": round(last["success"], 4), "solved_at": watch.solved_at}
        row |= {"first_success": watch.first_success, "seconds": round(time.perf_counter() - clock, 1)}
        curve = [{"task": task, "arm": arm, "seed": seed, **point} for point in thin(watch.curve, 10_000)]
        results.append_rows(folder / f"{study}_curves.csv", curve)
        results.append_rows(path, [row])
        rows.append(row)
        print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return rows


def _train_sb3(task: Task, seed: int) -> tuple[Any, int]:
    import torch

    from agents.sb3.agent import SB3PPO, SB3PPOConfig, make_venv

    torch.set_num_threads(1)
    settings = {"net_arch": [64, 64], **task.settings}
    venv = make_venv(task.env_id, task.n_envs, 1000 * seed)
    model = SB3PPO.build(SB3PPOConfig(**settings), venv, seed=seed, device="cpu")
    watch = make_watch(task.threshold, False)
    model.learn(task.steps, callback=watch)
    venv.close()
    return watch, model.num_timesteps


def _train_ours(
    task: Task, seed: int, *, backend: str, arm: str = "task", bonus: dict[str, Any] | None = None
) -> tuple[Any, int]:
    import torch

    import rewards
    from agents.ppo.agent import PPO, PPOConfig
    from envs.make import make_vec

    torch.set_num_threads(1)
    names, changes, values = ARMS[arm]
    settings = {{"ent_coef": "entropy_weight"}.get(key, key): value for key, value in task.settings.items()}
    config = PPOConfig(**settings, streams=values)
    envs = make_vec(task.env_id, task.n_envs, seed=1000 * seed, backend=backend)
    options = {name: {**bonus, **changes} if name == "rnd" and bonus else {} for name in names}
    configs: dict[str, Any] = {name: rewards.get(name).Config(**values) for name, values in options.items()}
    spaces = envs.single_observation_space, envs.single_action_space
    mix = rewards.make(configs, *spaces, gamma=config.gamma, seed=seed)
    model = PPO(envs, config, scorer=mix, seed=seed)
    watch = make_watch(task.threshold, False)
    model.learn(task.steps, callback=watch)
    envs.close()
    return watch, model.num_timesteps
