"""Measures one library's PPO: `python drive.py PEER ROLLOUTS` in an environment that has it; one line of JSON.

PEER is a file beside this one with DISTRIBUTION, a package's name, and `train(rollouts, laps)`, which trains on eight
CartPole-v1 with rollouts of 256 steps, calls `laps.watch` or `laps.minibatch` so that its minibatches are counted, and
calls `laps()` after every update.

The clock starts after the first update: imports, compilation and start-up are not measured. That every rollout was
gone through ten times in minibatches of 64 is checked, not believed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import sys
import tempfile
import time
from importlib.metadata import version
from typing import Any

FRAMES, MINIBATCH, EPOCHS = 8 * 256, 64, 10


class Laps:
    """Clocks at the end of every update, and how large its minibatches were."""

    def __init__(self) -> None:
        self.clocks: list[tuple[float, float]] = []  # CPU seconds of the process and its children, wall seconds
        self.sizes: list[int] = []

    def minibatch(self, rows: int) -> None:
        """Count one minibatch."""
        self.sizes.append(rows)

    def watch(self, layer: Any) -> None:
        """Count what passes through a torch layer on its way to a gradient."""
        layer.register_forward_hook(
            lambda _, inputs, out: self.minibatch(len(inputs[0])) if out.requires_grad else None
        )

    def __call__(self) -> None:
        """An update has ended."""
        expected = FRAMES // MINIBATCH * EPOCHS
        assert self.sizes == [MINIBATCH] * expected, f"{len(self.sizes)} minibatches of {set(self.sizes)} rows"
        self.sizes.clear()
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.clocks.append((time.process_time() + children.ru_utime + children.ru_stime, time.perf_counter()))


def main(name: str, rollouts: int) -> None:
    """Train for one rollout more than is measured."""
    if hasattr(os, "sched_setaffinity"):  # on one core no thread waits for another at the cost of CPU time
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    peer, laps = importlib.import_module(name), Laps()
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # what a library writes, it writes here
        peer.train(rollouts + 1, laps)
        os.chdir("/")
    assert len(laps.clocks) > rollouts, f"{len(laps.clocks)} updates instead of {rollouts + 1}"  # some stop late
    cpu, wall = (laps.clocks[rollouts][clock] - laps.clocks[0][clock] for clock in (0, 1))
    row = {"version": version(peer.DISTRIBUTION), "frames": rollouts * FRAMES}
    print(json.dumps({**row, "cpu_seconds": round(cpu, 4), "wall_seconds": round(wall, 4)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
