"""CPU seconds that a user waits for: the help, and the answer to a mistyped key or verb, each in a fresh process."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIMES = 5
HELP = (["--help"], ["train", "--help"], ["evaluate", "--help"])
TYPOS = (
    ["trian"],
    ["train", "env=CartPole-v1", "sed=3"],
    ["train", "env=CartPole-v1", "reward=rndd"],
    ["train", "env=CartPole-v1", "reward=rnd", "reward.rnd.wieght=2"],
    ["train", "env=CartPole-v1", "agent.n_step=32"],
)


def run(folder: Path) -> dict[str, float]:
    """The median of five, of the slowest of each kind."""
    del folder
    return {"help_seconds_cpu": max(map(seconds, HELP)), "typo_seconds_cpu": max(map(seconds, TYPOS))}


def seconds(argv: list[str]) -> float:
    """Of `lodestar ...`, user and system time."""
    found = []
    for _ in range(TIMES):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "lodestar", *argv], cwd=ROOT, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return statistics.median(found)
