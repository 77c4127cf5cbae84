"""Evaluations that a signal loses, and releases whose runs this version continues.

    python -m benchmarks repairs3:faults

Both are rows of the matrix of faults, brought about with all their trials: 58 signals to real processes, ten minutes
on a busy machine.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.faults import evaluations, releases

MIN_SIGNALS = 40


def measure() -> dict[str, float]:
    """How many of the signals lost or doubled an evaluation, and how many releases' runs were continued."""
    with tempfile.TemporaryDirectory(prefix="lodestar-fault-") as folder:
        for name in ("evaluations", "releases"):
            (Path(folder) / name).mkdir()
        struck = evaluations.evaluations(Path(folder) / "evaluations", quick=False)
        resumed = releases.releases(Path(folder) / "releases", quick=False)
    if struck.trials < MIN_SIGNALS:
        raise RuntimeError(f"{struck.trials} signals were sent; the claim needs {MIN_SIGNALS}")
    return {
        "evaluations_lost": struck.figures["evaluations_lost"],
        "evaluations_struck": struck.figures["evaluations_struck"],
        "resumed_releases": resumed.figures["resumed_releases"],
    }
