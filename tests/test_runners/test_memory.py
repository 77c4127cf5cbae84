"""Freed memory stays with the process: a second pass over the same megabytes meets no page fault."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import resource, sys
import numpy as np
from runners.run.build import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()

def work():
    for _ in range(10):
        np.ones(64_000_000 // 8)  # above the largest threshold that glibc would come to by itself

work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how):
    root = Path(__file__).resolve().parents[2]
    answer = subprocess.run([sys.executable, "-c", SCRIPT, how], cwd=root, capture_output=True, text=True, timeout=60)
    return int(answer.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_kept_memory_is_used_again_without_page_faults():
    given_back = faults("give back")
    if given_back < 100:
        pytest.skip("this allocator keeps freed memory by itself")
    assert faults("keep") < given_back / 20
