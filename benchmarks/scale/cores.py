"""One run of PPO on two cores, over the same run on one: frames per second of the best setting of each.

    cores2_ratio_halfcheetah   HalfCheetah-v5, 8 robots
    cores2_ratio_minigrid      MiniGrid-DoorKey-6x6-v0, 8 of Gymnasium's environments
    cores2_ratio_clip          lodestar/CartPoleUpright-v0 with reward=clip, 8 environments
    cores2_bound_cartpole      CartPole-v1, 64 environments as one program: what overlap could gain at best, by the
                               shares of collecting and of learning on one core

On one core the main thread, which then is the only one, is pinned. Settings that overlap are `agent.overlap=true`;
updates are compiled from the first on. A ratio is the median over rounds. Each learns from `ROLLOUTS` rollouts of 2,048
frames after two that warm up; with overlap the first and the last of them stand alone. Needs two free cores.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed.measure import Measure, interleave, ratio
from runners.run.build import keep_freed_memory

ROUNDS, ROLLOUTS, FRAMES = 5, 32, 2_048
WORKERS = "backend=workers"
ROBOTS, GRID = ("env=HalfCheetah-v5",), ("env=MiniGrid-DoorKey-6x6-v0",)
UPRIGHT = ("env=lodestar/CartPoleUpright-v0", "reward=clip")
OVER = "agent.overlap=true"
TASKS: dict[str, tuple[tuple[str, ...], list[str], list[str]]] = {  # name -> the run, settings for one core and for two
    "halfcheetah": (
        ROBOTS,
        ["backend=batched", "backend=gym"],
        [
            "backend=batched num_threads=2",
            f"backend=batched num_threads=2 {OVER}",
            f"backend=batched {OVER}",
            f"{WORKERS} {OVER}",
        ],
    ),
    "minigrid": (GRID, ["backend=gym"], [WORKERS, f"backend=gym {OVER}", f"{WORKERS} {OVER}"]),
    "clip": (UPRIGHT, ["backend=batched"], ["num_threads=2", OVER, f"num_threads=2 {OVER}"]),
}


def halfcheetah(folder: Path) -> dict[str, float]:
    """Physics on two threads, or beside the update; about 2 minutes."""
    return _ratio(folder, "halfcheetah")


def minigrid(folder: Path) -> dict[str, float]:
    """Environments in processes, beside the update; about 3 minutes."""
    return _ratio(folder, "minigrid")


def clip(folder: Path) -> dict[str, float]:
    """Frames drawn beside their scores; about 6 minutes."""
    return _ratio(folder, "clip")


def cartpole(folder: Path, rollouts: int = ROLLOUTS) -> dict[str, float]:
    """The bound: all the time over that of the longer of two sides that never wait for each other."""
    parts = _run(("env=CartPole-v1", "n_envs=64", "agent.n_steps=32", "backend=batched"), rollouts)
    learn = parts.model.seconds  # of the two rollouts that warm up, too; without what they compiled
    before, clock = dict(learn), time.perf_counter()
    parts.model.learn(rollouts * FRAMES)
    clock = time.perf_counter() - clock
    parts.venv.close()
    learning = sum(learn[name] - before[name] for name in ("reward", "update"))
    return {"cores2_bound_cartpole": clock / max(learning, clock - learning)}


def _ratio(folder: Path, task: str, rounds: int = ROUNDS, rollouts: int = ROLLOUTS) -> dict[str, float]:
    path = folder / f"scale-cores-{task}.csv"
    path.unlink(missing_ok=True)
    run, *settings = TASKS[task]
    variants = {
        f"{cores}: {setting}": _measure((*run, *setting.split()), cores, rollouts)
        for cores, some in enumerate(settings, 1)
        for setting in some
    }
    rates = interleave(path, task, rounds, variants)["wall"]
    one, two = (max((n for n in rates if n[0] == cores), key=lambda n: float(np.median(rates[n]))) for cores in "12")
    print(f"{task}: {two} over {one}", flush=True)
    return {f"cores2_ratio_{task}": ratio(rates, two, one)}


def _measure(arguments: tuple[str, ...], cores: int, rollouts: int) -> Measure:
    def measure() -> tuple[int, Callable[[], Any]]:
        every = os.sched_getaffinity(0)
        parts = _run(arguments, rollouts)

        def work() -> None:
            os.sched_setaffinity(0, sorted(every)[-cores:])
            try:
                parts.model.learn(rollouts * FRAMES)
            finally:
                os.sched_setaffinity(0, every)
                parts.venv.close()

        return rollouts * FRAMES, work

    return measure


def _run(arguments: tuple[str, ...], rollouts: int) -> Any:
    """What a training run is made of, after two rollouts."""
    from runners.cli.compose import compose
    from runners.run.build import build

    keep_freed_memory()
    fixed = ("agent.path=numba", "control=none", f"total_timesteps={rollouts * FRAMES}")
    parts = build(compose([*arguments, *fixed])[0])
    parts.model.learn(2 * FRAMES)
    return parts
