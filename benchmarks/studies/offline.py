"""Offline: what 300 comparisons of recorded segments are worth, beside the task's own rewards.

The data, assets/recordings/pendulum.safetensors, are 20,000 transitions of Pendulum: a random policy and SAC at four
ages, a fifth each, one action in ten at random. A scripted judge that errs in one answer out of ten compares segments
of 25 steps. Every policy is IQL (cloning with beta=0), judged by the task's return over 20 episodes. Seeds draw the
pairs, the mistakes, the networks, the minibatches and the episodes; the data are the same. IQL's settings were chosen
on data of another seed, looking at true rewards alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs import run_missing
from envs.recording import record, save
from envs.types import Transitions, concatenate

ENV = "Pendulum-v1"
DATA = Path(__file__).resolve().parents[2] / "assets" / "recordings" / "pendulum.safetensors"
SEEDS = 5
AGES = (0, 1000, 2000, 3000, 4000)  # environment steps that SAC has learnt for
EACH = 4000  # transitions recorded at each age
AGENT: dict[str, Any] = {"learning_rate": 1e-3, "tau": 0.01, "batch_size": 128}
STEPS = 4500
NAMES = {"preferences": "preferences", "true": "true", "cloning": "cloning", "random": "random", "data": "the data"}


def run(folder: Path) -> dict[str, float]:
    """Make what is missing; means over seeds, and how much of what true rewards bring over random comparisons bring."""
    if not DATA.exists():
        about = {"env": ENV, "policy": f"SAC after {', '.join(map(str, AGES))} steps, noise 0.1", "each": EACH}
        save(DATA, mixed(0), about)
    rows = run_missing(folder, "offline", ("seed",), [(compare, (seed,)) for seed in range(SEEDS)])
    mean = {name: float(np.mean([float(row[name]) for row in rows])) for name in [*NAMES, "agreement", "correlation"]}
    share = (mean["preferences"] - mean["random"]) / (mean["true"] - mean["random"])
    return {**{f"offline_{name}": value for name, value in mean.items()}, "offline_preferences_ratio": share}


def compare(seed: int) -> dict[str, Any]:
    """One row: the mean task return of each policy, and how good the labels were."""
    from runners.offline import OfflineConfig
    from runners.offline import run as learn
    from runners.run.build import keep_freed_memory

    keep_freed_memory()
    judge = {"mistakes": 0.1}
    found = learn(OfflineConfig(str(DATA), seed=seed, steps=STEPS, judge_options=judge, agent_options=AGENT))
    row = {name: round(found["arms"][arm]["task_return"], 1) for name, arm in NAMES.items()}
    return row | {name: round(found["labels"][name], 3) for name in ("agreement", "accuracy", "correlation")}


def mixed(seed: int) -> Transitions:
    """What somebody recorded while SAC learned."""
    import torch

    from agents.sb3.agent import SAC, SACConfig, make_venv
    from envs.make import make
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
