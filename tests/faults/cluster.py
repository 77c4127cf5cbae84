"""Machines that are lost from under one run: `cluster=` of `runners.train`."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from runners.run import checkpoint
from tests.faults import Fault, Found
from tests.faults.child import TINY

STEPS = 30_000
NOTICED_S = 45.0  # Ray asks for its head for ten seconds, see `ray_nodes`
START_S = 120.0


def head_killed(folder: Path, quick: bool) -> Found:
    """The head dies while two actors run; on another cluster one actor finishes."""
    from tests.faults.ray_nodes import nodes

    run, begun = folder / "run", time.monotonic()
    command = {**TINY, "reward": "rnd", "lag": 1, "control": "none", "run_dir": run, "total_timesteps": STEPS}
    first, words = _command(command), []
    with nodes(2) as cluster, (folder / "first.txt").open("w") as out:
        arguments = [*first, f"cluster={cluster.address}", "workers=2"]
        process = subprocess.Popen(arguments, stdout=out, stderr=subprocess.STDOUT)
        while not (run / "checkpoints" / "LATEST").exists() and time.monotonic() < begun + START_S:
            time.sleep(0.1)
        killed = time.monotonic()
        cluster.kill_head()
        try:
            code = process.wait(NOTICED_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = 0
        noticed = time.monotonic() - killed
    if code == 0:
        words.append(f"the run was not ended within {NOTICED_S:g} s")
    saved = (checkpoint.load(run / "checkpoints") or (None, 0))[1]
    with nodes(1) as cluster:
        second = subprocess.run(
            [*first, f"cluster={cluster.address}", "workers=1"], capture_output=True, text=True, timeout=300
        )
    if second.returncode or f"continues at step {saved:,}" not in second.stdout:
        words.append(f"the second command did not continue at step {saved:,}: {second.stdout} {second.stderr}")
    elif (checkpoint.load(run / "checkpoints") or (None, 0))[1] < STEPS:
        words.append("the second command did not reach the end")
    said = f"the run ended {noticed:.0f} s after its head, and went on from step {saved:,} with one actor"
    return Found(1, len(words), {"noticed_s": noticed}, "; ".join(words) or said)


def _command(options: dict[str, object]) -> list[str]:
    return [sys.executable, "-m", "runners.train", *(f"{key}={value}" for key, value in options.items())]


FAULTS = [
    Fault(
        "head-killed",
        "SIGKILL of a Ray cluster's head in the middle of a run",
        "The run ends; the same command continues from the last checkpoint on another cluster, with fewer actors.",
        head_killed,
    )
]
