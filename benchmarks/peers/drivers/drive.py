"""Measures one library's agent: `python drive.py PEER SETTINGS` in an environment that has it; `peers.py` talks to it.

PEER is a file beside this one with DISTRIBUTION, the packages whose versions count, and `train(settings, laps)`, which
trains without end as SETTINGS, a JSON, say. It calls `laps.begin()` when everything is built, `laps.watch` or
`laps.minibatch` so that its minibatches are counted, and `laps()` after every `settings["frames"]` frames.

A line of JSON is printed after the first lap, compiling included; then one for every number that comes in, after so
many more laps. Between two lines the process waits, so that others can be measured in turn without starting again. That
every lap saw `settings["updates"]` minibatches of `settings["minibatch"]` rows is checked, not believed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any


class Laps:
    """Clocks of what is trained, and how large its minibatches were."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.sizes: list[int] = []
        self.aside_cpu, self.left, self.answers = 0.0, 1, sys.stdout
        self.begin()

    def begin(self) -> None:
        """Everything is built: from here on it is measured."""
        self.sizes.clear()
        self.aside_cpu, self.clocks = 0.0, self._clocks()

    def minibatch(self, rows: int, count: int = 1) -> None:
        """Count minibatches."""
        self.sizes += [rows] * count

    def watch(self, layer: Any) -> None:
        """Count what passes through a torch layer on its way to a gradient."""
        layer.register_forward_hook(
            lambda _, inputs, out: self.minibatch(len(inputs[0])) if out.requires_grad else None
        )

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """What is done here is not measured."""
        clock = time.process_time()
        yield
        self.aside_cpu += time.process_time() - clock

    def __call__(self) -> None:
        """A lap has ended."""
        expected = [self.settings["minibatch"]] * self.settings["updates"]
        assert self.sizes == expected, (
            f"{len(self.sizes)} minibatches of {set(self.sizes)} rows instead of {len(expected)} of {set(expected)}"
        )
        self.sizes.clear()
        self.left -= 1
        if self.left == 0:
            cpu, wall = (now - before for now, before in zip(self._clocks(), self.clocks))
            answer = {"cpu_seconds": round(cpu - self.aside_cpu, 5), "wall_seconds": round(wall, 5)}
            print(json.dumps(answer), file=self.answers, flush=True)
            asked = sys.stdin.readline()
            if not asked:
                os._exit(0)  # a library may hold threads and children
            self.left = int(asked)
            self.begin()

    def _clocks(self) -> tuple[float, float]:
        """CPU seconds of the process and its children, wall seconds."""
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + children.ru_utime + children.ru_stime, time.perf_counter()


def main(name: str, settings: dict[str, Any]) -> None:
    """Train until nothing more is asked."""
    if hasattr(os, "sched_setaffinity"):  # on one core no thread waits for another at the cost of CPU time
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    peer = importlib.import_module(name)
    print(json.dumps({"versions": {package: version(package) for package in peer.DISTRIBUTION}}), flush=True)
    laps = Laps(settings)
    with contextlib.redirect_stdout(sys.stderr):
        peer.train(settings, laps)
    raise RuntimeError(f"{name} stopped by itself")


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
