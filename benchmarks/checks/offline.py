"""Offline learning from 300 comparisons of recorded segments, beside the task's own rewards.

The data, envs/recordings/pendulum.safetensors, are 20,000 transitions of Pendulum: a random policy and SAC after
1,000 to 4,000 steps, a fifth each, one action in ten at random. A scripted judge that errs in one answer out of ten
compares segments of 25 steps. Every policy is IQL (cloning with beta=0), judged by the task's return over 20 episodes.
Seeds draw the pairs, the mistakes, the networks, the minibatches and the episodes; the data are the same. IQL's
settings were chosen on data of another seed, looking at true rewards alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results
from envs.recording import SHIPPED_RECORDINGS

DATA = SHIPPED_RECORDINGS / "pendulum.safetensors"
SEEDS = 5
AGENT: dict[str, Any] = {"learning_rate": 1e-3, "tau": 0.01, "batch_size": 128}
STEPS = 4500
NAMES = {"preferences": "preferences", "true": "true", "cloning": "cloning", "random": "random", "data": "the data"}


def run(folder: Path) -> dict[str, float]:
    """Run the seeds that have no row; means, and the share of what true rewards add to random that comparisons add."""
    path = folder / "offline.csv"
    for seed in range(SEEDS):
        if results.lacks_row(path, seed=seed):
            results.append_rows(path, [{"seed": seed, **compare(seed)}])
    rows = results.read_rows(path)
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
    found = learn(OfflineConfig([str(DATA)], seed=seed, steps=STEPS, judge_options=judge, agent_options=AGENT))
    row = {name: round(found["arms"][arm]["task_return"], 1) for name, arm in NAMES.items()}
    return row | {name: round(found["labels"][name], 3) for name in ("agreement", "accuracy", "correlation")}
