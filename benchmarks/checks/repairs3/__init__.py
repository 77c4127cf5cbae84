"""What independent re-computation, a real language model and held-out faults broke in 0.4.0, measured again.

    python -m benchmarks repairs3               all parts
    python -m benchmarks repairs3:judges        one part

Each part is a file of this folder whose function `measure()` returns figures by name.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

PARTS = ("learning", "users", "statistics", "judges", "links", "faults", "strangers", "hints")


def run(folder: Path, cases: list[str] | None = None) -> dict[str, float]:
    """The figures of some parts, by default of all."""
    figures: dict[str, float] = {}
    for part in cases or PARTS:
        module = import_module(f"{__name__}.{part}")
        figures |= module.measure()
    return figures
