"""How much memory there is, so that what cannot fit is refused in a sentence before it is filled.

Standard library only: `runners.doctor` reads it where everything else is missing.
"""

import math
import os
from contextlib import suppress
from pathlib import Path

GIB = 2**30


def memory() -> tuple[float, float]:
    """Bytes free and in all, of the container if it has a limit; zeros if unknown."""
    free = total = 0.0
    with suppress(OSError, ValueError):
        table = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        total, free = (int(table[key].split()[0]) * 1024.0 for key in ("MemTotal", "MemAvailable"))
    with suppress(OSError, ValueError):
        limit = float(Path("/sys/fs/cgroup/memory.max").read_text())
        used = float(Path("/sys/fs/cgroup/memory.current").read_text())
        free, total = min(free, limit - used), min(total, limit)
    if not total and hasattr(os, "sysconf"):
        with suppress(ValueError, OSError):
            total = free = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return free, total


def refuse_beyond(size: float, what: str, free: float | None = None) -> None:
    """A ValueError if `what`, of `size` bytes, does not fit into the memory that is free, or was."""
    free = (memory()[0] or math.inf) if free is None else free
    if size > free:
        raise ValueError(f"{what} needs {size / GIB:,.1f} GiB, and {free / GIB:,.1f} GiB are free; make it smaller")
