"""One language model a core: locks on the cores of this machine, which end with the process that holds them."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

# Locks of judges that were only asked whether a core is free, while `hold_cores` waits for all of them.
_held: list[FileLock] | None = None


def usable_cores() -> list[int]:
    """The numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def claim_core() -> FileLock | None:
    """A lock on a core without a model, which ends with this process; None where every core has one."""
    folder = Path(tempfile.gettempdir()) / f"lodestar-models-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    for core in usable_cores():
        lock = FileLock(folder / f"core-{core}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue
        return lock
    return None


def is_core_free() -> bool:
    """Whether a core is without a model; inside `hold_cores` it is then taken for the judge that asks."""
    lock = claim_core()
    if lock is None:
        return False
    if _held is None:
        lock.release()
    else:
        _held.append(lock)
    return True


@contextmanager
def hold_cores() -> Iterator[None]:
    """Several judges of one run ask for a core each, and none is promised twice."""
    global _held
    _held = []
    try:
        yield
    finally:
        for lock in _held:
            lock.release()
        _held = None
