"""What independent tests broke in 0.1.0, counted again: kills, strangers' files, bad input, rewards, other libraries.

    python -m benchmarks repairs

Kills, sweeps and strangers' files are rows of the matrix of faults, read from faults.json; the rest is tried here:
every line of bad_lines.txt, every broken reward, and `make interop`. HalfCheetah's returns are ppo_learning's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from runners.run.config import UsageError
from tests import broken_rewards

ROOT = Path(__file__).resolve().parents[2]
FAULTS = ("phases_tried", "phases_resumed", "sweep_false_finished", "untrusted_executed", "untrusted_tried")


def run(folder: Path) -> dict[str, float]:
    """The figures."""
    path = folder / "faults.json"
    known = json.loads(path.read_text())["figures"] if path.exists() else {}
    if missing := [name for name in FAULTS if name not in known]:
        fix = "python -m tests.faults phases silent-death strangers limit=2400"
        raise UsageError(f"{path} has no {', '.join(missing)}; run `{fix}` first")
    figures = {name: known[name] for name in FAULTS}
    learned = json.loads((folder / "ppo_learning.json").read_text())["figures"]
    figures |= {f"halfcheetah_{arm}": learned[f"return_halfcheetah_{arm}"] for arm in ("ours", "sb3")}
    return figures | bad_lines() | broken_rewards.tally() | interop()


def bad_lines() -> dict[str, float]:
    """Command lines with a mistake: how many, how many end in a traceback, and how many in anything but a sentence."""
    place = ROOT / "tests" / "test_runners"
    command = [sys.executable, str(place / "refused.py"), str(place / "bad_lines.txt")]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        out = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True).stdout
    faults = [json.loads(line)[1] for line in out.splitlines()]
    traceback, wrong = sum("traceback" in found for found in faults), sum(bool(found) for found in faults)
    return {"bad_lines": len(faults), "bad_lines_traceback": traceback, "bad_lines_wrong": wrong}


def interop() -> dict[str, float]:
    """Tests of `make interop` that failed, and those that ran."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "interop.xml"
        subprocess.run(["make", "interop", f"TESTS=--junitxml={report}"], cwd=ROOT)
        suite = ElementTree.parse(report).getroot()[0]
    failed, ran = (sum(int(suite.get(name, 0)) for name in names) for names in (("failures", "errors"), ("tests",)))
    return {"interop_failed": failed, "interop_tests": ran - int(suite.get("skipped", 0))}
