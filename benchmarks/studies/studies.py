"""Learning studies: the same agent with and without a learned reward, several seeds each, until a result shows.

    keycorridor    MiniGrid-KeyCorridorS3R2-v0: does a first-visit bonus find what the task alone seldom pays for?
    mountaincar    MountainCar-v0: how many steps until the flag: no bonus, RND faded out, kept, as it comes?

A run is judged by the task's own return and success over its last 100 episodes, never by the learned reward. Finished
runs are kept in the CSV, so the same command goes on where it stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runners.report import results, statistics

WINDOW = 100  # episodes that a mean return and a success rate look back on


@dataclass(frozen=True)
class Arm:
    """One composed reward of a study."""

    rewards: dict[str, dict[str, Any]]  # name -> its options
    steps: int = 300_000  # environment steps of a run, summed over environments
    until_solved: bool = False  # nothing is asked of this arm but when it gets to the threshold
    seeds: int = 5


@dataclass(frozen=True)
class Study:
    """One environment, one agent, several rewards."""

    name: str
    env_id: str
    n_envs: int
    agent: dict[str, Any]  # options of PPO
    arms: dict[str, Arm]
    figures: Callable[[list[dict[str, Any]]], dict[str, float]]
    threshold: float = float("inf")  # the mean return that counts as solved


def keycorridor(folder: Path) -> dict[str, float]:
    """Does a first-visit count find the key?"""
    return run(KEYCORRIDOR, folder)


def mountaincar(folder: Path) -> dict[str, float]:
    """What does RND buy, and what does its weight's schedule?"""
    return run(MOUNTAINCAR, folder)


def run(study: Study, folder: Path) -> dict[str, float]:
    """Run what is missing of a study, one run at a time; returns its figures."""
    rows = results.read_rows(folder / f"{study.name}.csv")
    finished = {(row["arm"], int(row["seed"])) for row in rows}
    wanted = [
        (name, seed)
        for seed in range(max(arm.seeds for arm in study.arms.values()))
        for name, arm in study.arms.items()
        if seed < arm.seeds
    ]
    for name, seed in wanted:
        if (name, seed) in finished:
            continue
        row, curve = train(study, name, seed)
        results.append_rows(folder / f"{study.name}_curves.csv", curve)
        results.append_rows(folder / f"{study.name}.csv", [row])
        rows.append(row)
        print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return study.figures(rows)


def train(study: Study, name: str, seed: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One run: its row for the table, and its curve, a point every 10,000 steps."""
    import torch

    import rewards
    from agents.sb3.agent import SB3PPO, SB3PPOConfig, make_venv
    from rewards.adapters.sb3 import RewardCallback

    torch.set_num_threads(1)
    venv = make_venv(study.env_id, study.n_envs, seed * 1000)
    arm = study.arms[name]
    configs: dict[str, Any] = {key: rewards.get(key).Config(**options) for key, options in arm.rewards.items()}
    config = SB3PPOConfig(**study.agent)
    mix = rewards.make(configs, venv.observation_space, venv.action_space, gamma=config.gamma, seed=seed)
    model = SB3PPO.build(config, venv, seed=seed, device="cpu")
    watch = make_watch(study.threshold, arm.until_solved)
    start = time.perf_counter()
    model.learn(arm.steps, callback=[RewardCallback(mix), watch])
    seconds = time.perf_counter() - start
    venv.close()
    row = {
        "arm": name,
        "seed": seed,
        "reward": mix.describe(),
        "steps": model.num_timesteps,
        "first_success": watch.first_success,
        "solved_at": watch.solved_at,
        "best_return": round(max(point["return"] for point in watch.curve), 4),
        "final_return": round(watch.curve[-1]["return"], 4),
        "final_success": round(watch.curve[-1]["success"], 4),
        "seconds": round(seconds, 1),
    }
    curve = [{"arm": name, "seed": seed, **point} for point in thin(watch.curve, 10_000)]
    return row, curve


def make_watch(threshold: float, until_solved: bool, judged_by: str = "return") -> Any:
    """A callback with the run's curve, and when it first succeeded and first passed `threshold` on average."""
    from stable_baselines3.common.callbacks import BaseCallback

    class Watch(BaseCallback):
        """Task return and success over the last episodes, after every rollout."""

        def __init__(self) -> None:
            super().__init__()
            self.curve: list[dict[str, float]] = []
            self.first_success: int | str = ""  # empty: never
            self.solved_at: int | str = ""

        def _on_step(self) -> bool:
            return not (until_solved and self.solved_at != "")

        def _on_rollout_end(self) -> None:
            model: Any = self.model
            success = list(model.ep_success_buffer or ())[-WINDOW:]
            if self.first_success == "" and any(success):
                self.first_success = self.num_timesteps
            episodes = [episode["r"] for episode in model.ep_info_buffer or ()][-WINDOW:]
            if not episodes:
                return
            mean = float(np.mean(episodes))
            point = {"steps": self.num_timesteps, "return": mean, "success": float(np.mean(success or [0.0]))}
            self.curve.append(point)
            if self.solved_at == "" and len(episodes) == WINDOW and point[judged_by] > threshold:
                self.solved_at = self.num_timesteps

    return Watch()


def thin(curve: list[dict[str, float]], every: int) -> list[dict[str, float]]:
    """The last point of each `every` steps, rounded."""
    kept = {int(point["steps"]) // every: point for point in curve}
    return [{key: round(value, 4) for key, value in point.items()} for point in kept.values()]


def _of(rows: list[dict[str, Any]], arm: str, column: str, never: float = 0.0) -> list[float]:
    return [float(row[column]) if row[column] != "" else never for row in rows if row["arm"] == arm]


def _keycorridor_figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {
        "keycorridor_count": statistics.iqm(_of(rows, "count", "final_success")),
        "keycorridor_task": statistics.iqm(_of(rows, "task", "final_success")),
    }


def _mountaincar_figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Steps to the threshold, IQM over seeds; a run that never got there counts as if it had at its last step.

    That flatters the slow, so the ratio is an upper bound as long as RND itself gets there.
    """
    steps = {
        name: statistics.iqm(np.minimum(_of(rows, name, "solved_at", arm.steps), arm.steps))
        for name, arm in MOUNTAINCAR.arms.items()
    }
    return {
        "mountaincar_rnd_steps_ratio": steps["rnd_faded"] / steps["task"],
        **{f"mountaincar_{arm}_steps": value for arm, value in steps.items()},
        **{
            f"mountaincar_{arm}_final_return": statistics.iqm(_of(rows, arm, "final_return"))
            for arm in ("rnd_faded", "rnd_kept")
        },
        "mountaincar_rnd_kept_best_return": statistics.iqm(_of(rows, "rnd_kept", "best_return")),
    }


KEYCORRIDOR = Study(
    name="keycorridor",
    env_id="MiniGrid-KeyCorridorS3R2-v0",
    n_envs=16,
    agent={
        "n_steps": 128,
        "learning_rate": 5e-4,
        "ent_coef": 0.01,
        "net_arch": [128, 128],
        "batch_size": 128,
        "n_epochs": 4,
    },
    arms={"task": Arm({"task": {}}), "count": Arm({"task": {}, "count": {"weight": 0.01}})},
    figures=_keycorridor_figures,
)

_RND = {"scale": "ema", "learning_rate": 1e-4, "epochs": 4, "batch_size": 64}
MOUNTAINCAR = Study(
    name="mountaincar",
    env_id="MountainCar-v0",
    n_envs=16,
    agent={"n_steps": 128, "learning_rate": 5e-4, "ent_coef": 0.01, "batch_size": 64, "n_epochs": 10},
    arms={
        "task": Arm({"task": {}}, until_solved=True),
        "rnd_faded": Arm({"task": {}, "rnd": {**_RND, "weight": "linear:1:0:200000"}}, steps=230_000),
        "rnd_kept": Arm({"task": {}, "rnd": {**_RND, "weight": 1.0}}, steps=500_000, seeds=3),
        "rnd_default": Arm({"task": {}, "rnd": {}}, steps=230_000, seeds=1),
    },
    figures=_mountaincar_figures,
    threshold=-150.0,
)
