"""What a sweep costs beside its runs: 200 runs of half a minute whose environment sleeps, eight at once.

An environment that sleeps needs no processor, so slots are not bound by cores, and what remains is the sweep's own:
starting processes, logging, noticing ends. Beside it, interleaved, the same run started as a user would.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from benchmarks import results

JOBS, SLOTS, SECONDS = 200, 8, 30.0
PAIRS = 5  # starts that are compared
STEPS = 100  # of a run


class Waits(gym.Env[np.ndarray, int]):
    """An environment in which every step takes `wait` seconds and nothing happens; an episode has 50 steps."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)  # type: ignore[assignment]

    def __init__(self, wait: float = 0.01, render_mode: str | None = None) -> None:
        self.wait, self.render_mode = wait, render_mode
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self.wait)
        self._step += 1
        return self._obs(), float(action), False, self._step == 50, {}

    def _obs(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)


gym.register("Waits-v0", f"{__name__}:Waits")


def run(folder: Path) -> dict[str, float]:
    """The full measurement: 13 minutes, and one more."""
    return measure(folder, JOBS, SLOTS, SECONDS, PAIRS)


def measure(folder: Path, jobs: int, slots: int, seconds: float, pairs: int) -> dict[str, float]:
    """A sweep of `jobs` runs of about `seconds`, `slots` at once; then `pairs` of starts.

    Returns:
        sweep_overhead: (slots x wall - time inside runners.train.main) / time inside runners.train.main.
        job_start_s: from submitting a job to its main, median.
        job_training_s, plain_training_s: until it trains, started by a sweep and as a plain command; median.
    """
    from runners.sweep.drive import drive
    from runners.sweep.grid import expand
    from runners.sweep.job import JobLog
    from runners.sweep.local import Local

    temporary = tempfile.TemporaryDirectory(prefix="lodestar-")
    place = Path(temporary.name)
    launcher = Local(slots, work=timed)
    warm = expand(_argv(1.0, 1), place / "warm")  # the first job waits for the imports, once a sweep
    drive(warm, warmed := JobLog(place / "warm"), launcher)
    warmed.close()
    grid = expand(_argv(seconds, jobs), place)
    log = JobLog(place)
    began = time.monotonic()
    entries = drive(grid, log, launcher)
    wall = time.monotonic() - began
    log.close()
    assert all(entry.state == "finished" for entry in entries.values())
    inside = [float(np.diff(_times(job.folder))[0]) for job in grid]
    rows = [{"what": "job", "name": job.name, "seconds": round(s, 3)} for job, s in zip(grid, inside)]
    found = {"sweep_overhead": (slots * wall - sum(inside)) / sum(inside), "sweep_wall_s": wall}
    starts = [_pair(place, number, launcher) for number in range(pairs)]
    launcher.close()
    for key in starts[0]:
        found[key] = float(np.median([start[key] for start in starts]))
        rows += [{"what": key, "name": n, "seconds": round(start[key], 3)} for n, start in enumerate(starts)]
    temporary.cleanup()
    path = folder / "sweep-overhead.csv"
    path.unlink(missing_ok=True)
    results.append_rows(path, rows)
    return found


def timed(argv: tuple[str, ...], folder: Path) -> int:
    """A job that writes down when it was inside runners.train.main."""
    from runners import train
    from runners.sweep.worker import work

    main = train.main

    def clocked(argv: list[str] | None = None) -> int:
        began = time.monotonic()
        try:
            return main(argv)
        finally:
            (folder / "times.txt").write_text(f"{began} {time.monotonic()}")

    train.main = clocked  # type: ignore[assignment]
    return work(argv, folder)


def _argv(seconds: float, seeds: int) -> list[str]:
    """A grid of runs that wait for `seconds`."""
    wait = seconds / STEPS
    argv = [f"env={__name__}:Waits-v0", f"env.wait={wait}", f"total_timesteps={STEPS}", f"seed=range({seeds})"]
    argv += ["n_envs=1", "agent.n_steps=10", "agent.batch_size=10", "agent.n_epochs=1", "eval_episodes=0"]
    return [*argv, "video=false", "control=none", "device=cpu"]


def _pair(place: Path, number: int, launcher: Any) -> dict[str, float]:
    """The same short run, as a job and as a command."""
    from dataclasses import replace

    from runners.sweep.grid import expand

    job = expand(_argv(0.1, 1), place / f"pair{number}")[0]
    began, stamp = time.monotonic(), time.time()
    launcher.submit(job)
    while not launcher.wait(1.0):
        pass
    figures = {"job_start_s": _times(job.folder)[0] - began, "job_training_s": _training(job.folder) - stamp}
    other = replace(job, folder=place / f"pair{number}" / "plain")
    argv = [*(word for word in job.argv if not word.startswith("run_dir=")), f"run_dir={other.folder}"]
    stamp = time.time()
    subprocess.run([sys.executable, "-m", "runners.train", *argv], check=True, stdout=subprocess.DEVNULL)
    return figures | {"plain_training_s": _training(other.folder) - stamp}


def _times(folder: Path) -> tuple[float, float]:
    began, ended = map(float, (folder / "times.txt").read_text().split())
    return began, ended


def _training(folder: Path) -> float:
    """When a run began to train: it writes its configuration just before."""
    return (folder / "config.yaml").stat().st_mtime
