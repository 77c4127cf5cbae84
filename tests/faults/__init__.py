"""What can go wrong, done on purpose: `python -m tests.faults`. A file per kind, each with a list `FAULTS`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Found(NamedTuple):
    """What came of a fault.

    Attributes:
        trials: how often it was brought about.
        failed: how often something else happened than was promised.
        figures: measured numbers by name with unit, as in {"slowest_s": 0.4}.
        words: one sentence for the table: what was seen.
    """

    trials: int
    failed: int
    figures: dict[str, float]
    words: str


class Fault(NamedTuple):
    """One row of the matrix.

    Attributes:
        name: unique, lower case with dashes, as in "worker-killed"; `python -m tests.faults worker-killed` runs it.
        fault: what goes wrong, a few words.
        promise: what happens then, one sentence with its target.
        run: (an empty folder, whether to make it quick) -> Found. Quick: the fewest trials that still mean something,
            for the tests; otherwise the number that the promise names.
        real: False if a part of this process is replaced to bring it about.
    """

    name: str
    fault: str
    promise: str
    run: Callable[[Path, bool], Found]
    real: bool = True
