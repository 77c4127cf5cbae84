"""Clouds behind a pendulum that is only seen: which world models keep their return, and which draw clouds?

Every preset learns PixelPendulum before white, and before drifting clouds that nothing depends on. What it kept is the
share of the way from a random policy to its own return before white. Judged by the task's own return of 10 episodes on
the same seeds. Rows are written as they end; an interrupted study goes on where it stopped.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs import run_missing
from runners.evaluate import interval, play, policy
from runners.report import statistics

ENV = "lodestar/PixelPendulum-v0"
SEEDS = 3
STEPS = 10_000
EPISODES = 10
PRESETS = ("dreamer", "r2dreamer", "repo", "infopower")
BACKGROUNDS = ("none", "video")
SETTINGS: dict[str, Any] = {"train_ratio": 64.0, "batch_length": 32, "horizon": 10, "latent": 96, "hidden": 128}


def run(folder: Path) -> dict[str, float]:
    """Run what is missing; the return of each preset before each background, and what it kept."""
    jobs: list[Any] = [(train, ("random", b, 0)) for b in BACKGROUNDS]
    for seed in range(SEEDS):
        jobs += [(train, (preset, background, seed)) for preset in PRESETS for background in BACKGROUNDS]
    return figures(run_missing(folder, "noise-video", ("preset", "background", "seed"), jobs))


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """`noise_<preset>_<background>`: IQM and interval; `noise_<preset>_kept`: (video - random) / (none - random)."""
    found: dict[str, float] = {}
    for preset in ("random", *PRESETS):
        for background in BACKGROUNDS:
            values = [float(r["return"]) for r in rows if (r["preset"], r["background"]) == (preset, background)]
            if values:
                key = f"noise_{preset}_{background}"
                found[key] = statistics.iqm(values)
                found[f"{key}_low"], found[f"{key}_high"] = interval(values)
                found[f"{key}_seeds"] = len(values)
    least = found.get("noise_random_none")
    for preset in PRESETS:
        clean, noisy = (found.get(f"noise_{preset}_{background}") for background in BACKGROUNDS)
        if None not in (least, clean, noisy) and clean > least:  # type: ignore[operator]
            found[f"noise_{preset}_kept"] = (noisy - least) / (clean - least)  # type: ignore[operator]
    return found


def train(preset: str, background: str, seed: int, steps: int = STEPS, **changes: Any) -> dict[str, Any]:
    """One run."""
    options = {"background": background}
    clock = time.process_time()
    act = None if preset == "random" else _learn(preset, options, seed, steps, changes)
    seconds = time.process_time() - clock
    scores = play(ENV, act, EPISODES, seed=seed, options=options)
    row = {"return": round(float(np.mean(scores.returns)), 2), "steps": 0 if act is None else steps}
    return {**row, "cpu_seconds": round(seconds, 1)}


def _learn(preset: str, options: dict[str, Any], seed: int, steps: int, changes: dict[str, Any]) -> Any:
    import torch

    from agents.world_model.agent import WorldModel
    from envs.make import make_vec

    torch.set_num_threads(1)
    config = WorldModel.Config(preset=preset, **{**SETTINGS, **changes})
    envs = make_vec(ENV, 1, seed=1000 * seed, **options)
    model = WorldModel.build(config, envs, seed=seed, device="cpu")
    model.learn(steps, log_interval=None)
    envs.close()
    return policy(model, ENV)
