"""Command lines with a mistake, kept in bad_lines.txt, each run as a user's process would."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def refused(folder, *arguments):
    """What was wrong with how lines of bad_lines.txt were refused: line -> (faults, what was said); and how many."""
    here = Path(__file__).parent
    command = [sys.executable, str(here / "refused.py"), str(here / "bad_lines.txt"), *arguments]
    paths = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": ""}
    out = subprocess.run(command, cwd=folder, env=paths, capture_output=True, text=True, check=True).stdout
    rows = [json.loads(line) for line in out.splitlines()]
    return {line: (faults, said) for line, faults, said, _ in rows if faults}, len(rows)


def test_a_mistake_on_a_command_line_is_one_sentence_and_an_exit_code(tmp_path):
    assert refused(tmp_path, "4") == ({}, 4)
    assert not list(tmp_path.rglob("config.yaml"))


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_every_mistake_on_a_command_line_is_one_sentence_and_an_exit_code(tmp_path):
    wrong, tried = refused(tmp_path)
    print(f"bad_lines_traceback {sum('traceback' in faults for faults, _ in wrong.values())} of {tried}")
    assert wrong == {} and tried >= 200
