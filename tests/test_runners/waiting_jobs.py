"""Jobs whose steps take 10 ms on the slowest and on the fastest machine, and what is asked of them while they run."""

import time
from pathlib import Path

from runners.sweep.job import Job

WAITS = "env=benchmarks.speed.sweep:Waits-v0"
QUICK = ("preset=none", "agent.n_steps=32", "n_envs=2", "eval_episodes=0", "video=false", "control=none")
PATIENCE_S = 250.0


def job(root: Path, name: str, *argv: str) -> Job:
    folder = root / "jobs" / name
    return Job(name, (WAITS, *QUICK, "checkpoint_every=64", *argv, f"run_dir={folder}"), folder)


def until(condition) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def checkpoints(job: Job) -> list[Path]:
    return [*(job.folder / "checkpoints").glob("step_*")]


def commands(job: Job) -> int:
    return len((job.folder / "command.txt").read_text().splitlines())
