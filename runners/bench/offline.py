"""Offline: what 300 comparisons of recorded segments are worth, beside the task's own rewards.

The data of each seed, 20,000 transitions of Pendulum: a random policy and SAC at four ages, a fifth each, one action in
ten at random. A scripted judge that errs in one answer out of ten compares segments of 25 steps. Every policy is IQL
(cloning with beta=0), judged by the task's return over 20 episodes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from envs.types import Transitions, concatenate

ENV = "Pendulum-v1"
SEEDS = 3
AGES = (0, 1000, 2000, 3000, 4000)  # environment steps that SAC has learnt for
EACH = 4000  # transitions recorded at each age
NAMES = {"preferences": "preferences", "true": "true", "cloning": "cloning", "random": "random", "data": "the data"}


def run(folder: Path) -> dict[str, float]:
    """Run the seeds that are missing; means over seeds, and the share of what true rewards bring over random."""
    from runners.bench.exploration import run_missing

    rows = run_missing(folder, "offline", ("seed",), [(compare, (seed,)) for seed in range(SEEDS)])
    mean = {name: float(np.mean([float(row[name]) for row in rows])) for name in [*NAMES, "agreement", "correlation"]}
    share = (mean["preferences"] - mean["random"]) / (mean["true"] - mean["random"])
    return {**{f"offline_{name}": value for name, value in mean.items()}, "offline_preferences_ratio": share}


def compare(seed: int) -> dict[str, Any]:
    """One row: the mean task return of each policy, and how good the labels were."""
    from runners.memory import keep_freed_memory
    from runners.offline import OfflineConfig
    from runners.offline import run as learn

    keep_freed_memory()
    config = OfflineConfig(
        data="mixed", env=ENV, seed=seed, steps=6000, judge_options={"mistakes": 0.1}, agent_options={"batch_size": 128}
    )
    found = learn(config, mixed(seed))
    row = {name: round(found["arms"][arm]["task_return"], 1) for name, arm in NAMES.items()}
    return row | {name: round(found["labels"][name], 3) for name in ("agreement", "accuracy", "correlation")}


def mixed(seed: int) -> Transitions:
    """What somebody recorded while SAC learned."""
    import torch

    from agents.sb3 import SAC, SACConfig, make_venv
    from envs.make import make
    from envs.recording import record
    from runners.record import acting

    torch.set_num_threads(1)
    config = SACConfig(learning_rate=1e-3, batch_size=128, net_arch=[64, 64], learning_starts=500)
    model = SAC.build(config, make_venv(ENV, 1, seed=1000 * seed), seed=seed, device="cpu")
    parts = []
    for place, age in enumerate(AGES):
        if age > model.num_timesteps:
            model.learn(age - model.num_timesteps, reset_num_timesteps=False)
        env = make(ENV)
        act = acting(model, env.action_space, 1.0 if age == 0 else 0.1, seed)
        parts.append(record(env, act, EACH, seed=1000 * seed + place))
        env.close()
    return concatenate(parts)
