"""Free memory, of the machine and of a container, and what does not fit into it."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from lodestar import memory

TABLE = "MemTotal:  4096 kB\nMemFree:   9 kB\nMemAvailable:  1024 kB\n"
LIMIT, USED = "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"


@pytest.mark.parametrize(
    ("files", "free", "total"),
    [
        ({"/proc/meminfo": TABLE}, 2**20, 2**22),
        ({"/proc/meminfo": TABLE, LIMIT: "max\n", USED: "5"}, 2**20, 2**22),
        ({"/proc/meminfo": TABLE, LIMIT: str(2**21), USED: str(2**21 - 7)}, 7, 2**21),
        ({"/proc/meminfo": TABLE, LIMIT: str(2**30), USED: "0"}, 2**20, 2**22),
        ({"/proc/meminfo": "MemTotal\n"}, 12, 12),
    ],
)
def test_free_is_what_the_machine_has_or_the_container_leaves(files, free, total, monkeypatch):
    def read(name):
        if name not in files:
            raise FileNotFoundError(name)
        return files[name]

    monkeypatch.setattr(memory, "Path", lambda name: SimpleNamespace(read_text=lambda: read(name)))
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 3, "SC_PAGE_SIZE": 4}.__getitem__)
    assert memory.memory() == (free, total)


def test_what_does_not_fit_is_refused_with_both_sizes(monkeypatch):
    memory.refuse_beyond(8.0, "this", free=8.0)
    with pytest.raises(ValueError, match=r"^this needs 3\.0 GiB, and 1\.5 GiB are free; make it smaller$"):
        memory.refuse_beyond(3 * 2**30, "this", free=1.5 * 2**30)
    monkeypatch.setattr(memory, "memory", lambda: (0.0, 0.0))
    memory.refuse_beyond(1e30, "this")  # nothing is known
    monkeypatch.setattr(memory, "memory", lambda: (7.0, 9.0))
    with pytest.raises(ValueError, match="this needs"):
        memory.refuse_beyond(8.0, "this")


def test_the_peak_counts_what_was_held_for_a_moment():
    # In a process that holds little yet: the peak of this one is gigabytes. Linux hands the peak on to what a
    # process executes, hence the shell, whose own child begins anew.
    script = (
        "from lodestar import memory\n"
        "before = memory.peak_memory()\n"
        "held = b'1' * (2 * int(before))\n"
        "assert memory.peak_memory() > len(held) > before > 2**20\n"
    )
    subprocess.run(["sh", "-c", '"$0" -c "$1"; exit $?', sys.executable, script], check=True)
