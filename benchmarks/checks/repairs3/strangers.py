"""Wrong values in files of others: how many end in a traceback; and what tests leave in the temporary folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.faults.hostile import hostile

ROOT = Path(__file__).resolve().parents[3]
LITTERED = ("tests/test_rewards/test_sb3.py", "tests/test_rewards/test_sb3_replay.py")  # they left 13 folders


def measure() -> dict[str, float]:
    """hostile_tried and hostile_tracebacks, every fortieth case of `python -m tests.faults hostile`; tests_litter."""
    with tempfile.TemporaryDirectory() as folder:
        found = hostile(Path(folder), quick=True)
    print(found.words)
    return {**found.figures, "tests_litter": float(len(litter()))}


def litter() -> list[str]:
    """What is left in a new temporary folder by tests that left something; theirs by pytest is elsewhere."""
    with tempfile.TemporaryDirectory() as empty, tempfile.TemporaryDirectory() as own:
        env = {**os.environ, "TMPDIR": empty}
        env.pop("SB3_LOGDIR", None)
        options = ["-q", "-p", "no:cacheprovider", f"--basetemp={own}/pytest"]
        subprocess.run([sys.executable, "-m", "pytest", *options, *LITTERED], cwd=ROOT, env=env, check=True)
        left = sorted(path.name for path in Path(empty).iterdir())
    print(f"left: {', '.join(left) or 'nothing'}")
    return left
