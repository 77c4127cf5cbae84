"""Beyond one core: what several threads, processes and machines gain, and whether they compute the same.

    python -m benchmarks scale              all cases
    python -m benchmarks scale:NAME:NAME    some of them

A case is a function of the folder for its CSV that returns figures; its file says what they mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

CASES = {  # name -> where its function is
    "mujoco": "benchmarks.scale.mujoco:run",
    "bitwise": "benchmarks.scale.cluster:bitwise",
    "ray": "benchmarks.scale.cluster:ray",
    "kills": "benchmarks.scale.cluster:kills",
    "server": "benchmarks.scale.cluster:server",
    "replay-service": "benchmarks.scale.replay:service",
    "warp": "benchmarks.scale.warp:run",
    "cores-halfcheetah": "benchmarks.scale.cores:halfcheetah",
    "cores-minigrid": "benchmarks.scale.cores:minigrid",
    "cores-clip": "benchmarks.scale.cores:clip",
    "cores-cartpole": "benchmarks.scale.cores:cartpole",
    "model": "benchmarks.scale.model:run",
    "gpu": "benchmarks.scale.gpu:run",
}


def run(folder: Path, cases: Sequence[str] = ()) -> dict[str, float]:
    """Measure the cases, all by default, skipping those whose package lacks; a UsageError for one that is not there."""
    from runners.run.config import UsageError, describe_unknown

    for name in cases:
        if name not in CASES:
            raise UsageError(describe_unknown("case", name, list(CASES)))
    figures: dict[str, float] = {}
    for name in cases or CASES:
        module, _, function = CASES[name].partition(":")
        try:
            figures |= getattr(import_module(module), function)(folder)
        except ImportError as error:
            print(f"{name} is skipped: {error}")
    return figures
