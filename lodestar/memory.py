"""How much memory there is, so that what cannot fit is refused in a sentence before it is filled.

Standard library only: `runners.doctor` reads it where everything else is missing.
"""

import math
import os
import sys
from contextlib import suppress
from pathlib import Path

GIB = 2**30


def memory() -> tuple[float, float]:
    """Bytes free and in all, of the container if it has a limit; zeros if unknown."""
    free = 0.0
    total = 0.0
    # The first two sources exist only on Linux, the second only in a container. Either may be
    # unreadable.
    with suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        # An entry is such as "  123 kB".
        table = dict(line.split(":") for line in lines)
        total = int(table["MemTotal"].split()[0]) * 1024.0
        free = int(table["MemAvailable"].split()[0]) * 1024.0
    with suppress(OSError, ValueError):
        limit = float(Path("/sys/fs/cgroup/memory.max").read_text())
        used = float(Path("/sys/fs/cgroup/memory.current").read_text())
        free = min(free, limit - used)
        total = min(total, limit)
    if not total and hasattr(os, "sysconf"):
        with suppress(ValueError, OSError):
            total = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
            free = total
    return free, total


def peak_memory() -> float:
    """Bytes that this process held at most so far; 0 on Windows, which does not count them this way."""
    if sys.platform == "win32":
        return 0.0
    import resource

    peak = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    # macOS counts bytes, Linux kibibytes.
    return peak if sys.platform == "darwin" else peak * 1024.0


def refuse_beyond(size: float, what: str, free: float | None = None) -> None:
    """A ValueError if `what`, of `size` bytes, does not fit into the memory that is free, or was."""
    if free is None:
        free, _ = memory()
        # What is unknown counts as enough.
        free = free or math.inf
    if size > free:
        raise ValueError(f"{what} needs {size / GIB:,.1f} GiB, and {free / GIB:,.1f} GiB are free; make it smaller")
