"""The highway as an array program beside highway-env itself: steps per CPU-second, one thread, random actions.

    highway_ratio          highway-fast-v0, 32 roads as one program over one of highway-env's, without frames
    highway_frames_ratio   the same with frames of 96 x 96 pixels
    highway_full_ratio     highway-v0, with its 50 cars and 15 simulation steps a second, without frames
    highway_steps          highway-fast-v0 as one program, steps per CPU-second
    highway_frames         the same with frames

Both are what `envs.make` hands out; episodes end and begin as they come. Ratios are medians over rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed.measure import Measure, interleave, ratio

ROUNDS, N, SIDE = 3, 32, 96
CHANCES = (0.05, 0.45, 0.05, 0.05, 0.4)  # left, nothing, right, faster, slower: so that episodes last
GROUPS = {  # name of the ratio -> id, side of the frames, steps of the program and of the original
    "highway_ratio": ("highway-fast-v0", None, 3_200, 60),
    "highway_frames_ratio": ("highway-fast-v0", SIDE, 1_600, 60),
    "highway_full_ratio": ("highway-v0", None, 640, 10),
}


def run(folder: Path, rounds: int = ROUNDS, share: float = 1.0) -> dict[str, float]:
    """Measure; about two minutes. `share` of the steps are taken."""
    path = folder / "highway-speed.csv"
    path.unlink(missing_ok=True)
    figures: dict[str, float] = {}
    for key, (env_id, side, ours, theirs) in GROUPS.items():
        variants = {
            "batched": _drive(env_id, "batched", N, side, max(int(ours * share), N)),
            "highway-env": _drive(env_id, "gym", 1, side, max(int(theirs * share), 1)),
        }
        rates = interleave(path, f"{env_id}, frames of {side or 'no'} pixels", rounds, variants)["cpu"]
        figures[key] = ratio(rates, "batched", "highway-env")
        if env_id == "highway-fast-v0":
            figures["highway_frames" if side else "highway_steps"] = float(np.median(rates["batched"]))
    return figures


def _drive(env_id: str, backend: str, n: int, side: int | None, frames: int) -> Measure:
    def measure() -> tuple[int, Callable[[], Any]]:
        from envs.make import make_vec

        envs = make_vec(env_id, n, seed=0, backend=backend, frame_size=side)
        steps = frames // n
        actions = np.random.default_rng(0).choice(5, (steps, n), p=CHANCES)
        envs.reset()

        def work() -> None:
            for row in actions:
                envs.step(row)
            envs.close()

        return steps * n, work

    return measure
