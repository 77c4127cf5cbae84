"""Does a bonus know how often it has been somewhere? RDD, coin flips and RND against true visit counts.

A random policy plays `lodestar/DeepSea-v0` (54 cells below the first, visited from 300 times down to never); each bonus
learns from its steps, rollout by rollout. Then every visited cell is scored.

    <arm>_rank_correlation    Spearman's, of the bonus and 1 / n over the visited cells
    <arm>_times_count         median of bonus * n over cells with at least 30 visits: 1 for an honest pseudo-count

Coin flips give about 1/sqrt(n), so their bonus is squared first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results
from runners.report import statistics

SEEDS, ENVS, EPISODES, SIZE = 5, 10, 300, 10
AVERAGE = {  # many passes: a cell visited once is one row in thousands, and has to be fitted too
    "replay": 20_000,
    "epochs": 80,
    "learning_rate": 1e-3,
    "hidden": 256,
    "features": 256,
    "max_grad_norm": 10.0,
    "normalize_obs": "none",
}
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "rdd": ("rdd", AVERAGE),
    "coin_flip": ("rdd", {**AVERAGE, "target": "coin_flip"}),
    "rdd_no_replay": ("rdd", {**AVERAGE, "replay": 0}),
    "rnd": ("rnd", {key: value for key, value in AVERAGE.items() if key != "replay"}),
}


def run(folder: Path) -> dict[str, float]:
    """Five seeds of each arm; interquartile means."""
    path = folder / "pseudo_counts.csv"
    path.unlink(missing_ok=True)
    rows = [{"arm": arm, "seed": seed, **measure(arm, seed)} for seed in range(SEEDS) for arm in ARMS]
    results.append_rows(path, rows)
    return {
        f"{arm}_{column}": statistics.iqm([float(row[column]) for row in rows if row["arm"] == arm])
        for arm in ARMS
        for column in ("rank_correlation", "times_count")
    }


def measure(arm: str, seed: int) -> dict[str, Any]:
    """One bonus after one life of a random policy."""
    import torch

    import rewards
    from envs.make import make_vec

    torch.set_num_threads(1)
    envs: Any = make_vec("lodestar/DeepSea-v0", ENVS, seed=seed, backend="batched", size=SIZE)
    name, options = ARMS[arm]
    kind = rewards.get(name)
    bonus = kind(kind.Config(**options), envs.single_observation_space, envs.single_action_space, seed=seed)
    visits = np.zeros(envs.n_cells, np.int64)
    rng = np.random.default_rng(seed)
    envs.reset(seed=seed)
    for _ in range(EPISODES // ENVS):
        reached = np.stack([envs.step(rng.integers(0, 2, ENVS))[-1]["cell"].copy() for _ in range(SIZE)])
        np.add.at(visits, reached.ravel(), 1)
        bonus.update(_standing_on(reached.ravel(), envs.n_cells))
    cells = np.flatnonzero(visits)
    scores = bonus.score(_standing_on(cells, envs.n_cells))
    scores = scores**2 if arm == "coin_flip" else scores
    often = visits[cells] >= 30
    return {
        "rank_correlation": round(rank_correlation(scores, 1 / visits[cells]), 4),
        "times_count": round(float(np.median((scores * visits[cells])[often])), 4),
        "cells": len(cells),
    }


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's: Pearson's of the ranks, ties sharing their mean rank."""
    from scipy.stats import spearmanr

    return float(spearmanr(x, y).statistic)


def _standing_on(cells: np.ndarray, n_cells: int) -> Any:
    """Transitions that led to `cells` (N,)."""
    from envs.transitions import Transitions

    obs, n = np.eye(n_cells, dtype=np.float32)[cells], len(cells)
    flags = np.zeros(n, bool)
    zeros = np.zeros(n, np.int64)
    return Transitions(obs, zeros, np.zeros(n, np.float32), obs, flags, flags, ~flags, zeros)
