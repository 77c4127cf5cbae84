"""Who turns the television off: curiosity alone in `lodestar/NoisyRooms-v0`, five seeds.

There is no task; the agent is paid by one bonus whose value goes on past the end of an episode. A run is judged by
the cells it has seen (of 207; `late`: in its last fifth) and by how often it chose no-op, which shows fresh noise.

    off, on_demand           every arm
    dense, dense_off         a cell is eight numbers, which an autoencoder copies whether it knows the cell or not
    brownian, pixels         noise that comes without being asked for

Arms are rewards by name. `strict` is hindsight as it comes; `hindsight` trusts its critic less (a reconstruction that
counts ten times as much, one step of the critic in place of four); `no_invariance` has none. `none` is an agent that is
paid nothing, `random` uniform actions.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs import run_missing
from benchmarks.studies import exploration_figure
from benchmarks.studies.exploration import SEEDS
from runners.evaluate import interval
from runners.report import statistics

STEPS, ENVS = 200_000, 32
FEWER = 2  # seeds of what is beside the question
PPO: dict[str, Any] = {"n_steps": 100, "batch_size": 400, "n_epochs": 4, "learning_rate": 5e-4, "entropy_weight": 0.01}
COMMON = {"normalize_obs": "none", "scale": "return", "freeze": 16_000, "episodic": False, "learning_rate": 1e-3}
LIFETIME = {"memory": "lifetime", "kind": "sqrt", "scale": "return", "freeze": 16_000, "episodic": False, "weight": 1.0}
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, COMMON) for name in ("forward", "rnd", "icm", "disagreement", "byol")},
    "hindsight": ("hindsight", {**COMMON, "temper": 0.1, "critic_steps": 1}),
    "strict": ("hindsight", COMMON),
    "no_invariance": ("hindsight", {**COMMON, "invariance": 0.0}),
    "byol_hindsight": ("byol_hindsight", COMMON),
    "count_lifetime": ("count", LIFETIME),
    "none": ("task", {}),
    "random": ("task", {}),
}
DENSE = ("forward", "hindsight", "strict", "no_invariance")
WORLDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "off": ({"noise": "off"}, tuple(ARMS)),
    "on_demand": ({"noise": "on_demand"}, tuple(ARMS)),
    "dense": ({"noise": "on_demand", "code": "dense"}, DENSE),
    "dense_off": ({"noise": "off", "code": "dense"}, DENSE),
    "brownian": ({"noise": "brownian"}, ("forward", "hindsight", "rnd")),
    "pixels": ({"noise": "pixels"}, ("forward", "hindsight", "rnd")),
}
PREFIX = {"off": "clean", "on_demand": "noisy"}  # of the figures


def run(folder: Path) -> dict[str, float]:
    """Run what is missing; interquartile means over seeds of cells and no-op share."""
    jobs = [
        (explore, (world, arm, seed))
        for seed in range(SEEDS)
        for world, (_, arms) in WORLDS.items()
        for arm in arms
        if seed < FEWER or not (arm.startswith("byol") or world in ("brownian", "pixels"))
    ]
    rows = run_missing(folder, "noisy_rooms", ("world", "arm", "seed"), jobs)
    exploration_figure.draw(folder)
    figures: dict[str, float] = {}
    for world, (_, arms) in WORLDS.items():
        for arm in arms:
            for column in ("cells", "noop"):
                values = [float(row[column]) for row in rows if (row["world"], row["arm"]) == (world, arm)]
                if values:
                    key = f"{PREFIX.get(world, world)}_{arm}_{column}"
                    low, high = interval(values)
                    figures |= {key: statistics.iqm(values), f"{key}_low": low, f"{key}_high": high}
    return figures


def explore(world: str, arm: str, seed: int, steps: int = STEPS) -> dict[str, Any]:
    """One run: cells seen, in all and in the last fifth; no-op share there, and in the worst tenth since half."""
    import torch

    import rewards
    from agents.ppo.agent import PPO as Agent
    from agents.ppo.agent import PPOConfig
    from envs.make import make_vec
    from runners.run.build import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(1)
    clock = time.perf_counter()
    options, _ = WORLDS[world]
    envs = Visits(make_vec("lodestar/NoisyRooms-v0", ENVS, seed=1000 * seed, backend="batched", **options), steps)
    if arm == "random":
        rng = np.random.default_rng(seed)
        envs.reset(seed=1000 * seed)
        for _ in range(steps // ENVS):
            envs.step(rng.integers(0, 5, ENVS))
    else:
        name, settings = ARMS[arm]
        config: dict[str, Any] = {name: rewards.get(name).Config(**settings)}
        spaces = envs.single_observation_space, envs.single_action_space
        Agent(envs, PPOConfig(**PPO), scorer=rewards.make(config, *spaces, seed=seed), seed=seed).learn(steps)
    return {**envs.account(), "steps": steps, "seconds": round(time.perf_counter() - clock, 1)}


class Visits:
    """A vector of NoisyRooms that writes down which cells were reached and how often no-op was chosen."""

    def __init__(self, envs: Any, steps: int) -> None:
        self.envs = envs
        self.cells = np.zeros((steps // envs.num_envs + 1, envs.num_envs), np.int16)
        self.idle = np.zeros(len(self.cells))
        self.t = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.envs, name)

    def step(self, actions: np.ndarray) -> Any:
        answer = self.envs.step(actions)
        if self.t < len(self.cells):
            self.cells[self.t] = answer[-1]["cell"]
            self.idle[self.t] = np.mean(np.asarray(actions) == 0)
            self.t += 1
        return answer

    def account(self) -> dict[str, Any]:
        """What the run is judged by."""
        seen, idle = self.cells[: self.t], self.idle[: self.t]
        tenths = [float(part.mean()) for part in np.array_split(idle, 10)]
        first = np.flatnonzero((seen >= seen.max()).any(axis=1))
        return {
            "cells": len(np.unique(seen)),
            "late": len(np.unique(seen[-self.t // 5 :])),
            "noop": round(float(idle[-self.t // 5 :].mean()), 4),
            "worst_noop": round(max(tenths[5:]), 4),
            "furthest_cell": int(seen.max()),
            "furthest_at": int(first[0]) * self.cells.shape[1],
        }
