"""`make test`: processes that take one file after another (tests/__main__.py)."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.__main__ import show

ROOT = Path(__file__).parents[1]
RUN = "import sys, tests.__main__ as shares; shares.PRELOADED = (); sys.exit(shares.main(sys.argv[1:]))"
PASSES = (
    "import pytest\n\ndef test_one():\n    pass\n\n@pytest.mark.parametrize('x', [1, 2])\ndef test_two(x):\n    pass\n"
)
FAILS = "def test_three():\n    assert [3] == [4]\n"


def test_every_test_runs_once_and_a_failure_is_told(tmp_path):
    for name, source in {"passes": PASSES, "more": PASSES, "fails": FAILS}.items():
        (tmp_path / f"test_{name}.py").write_text(source)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PROCESSES": "2"}
    command = [sys.executable, "-c", RUN, "-k", "not 1"]
    answer = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert answer.returncode == 1 and "FAILED test_fails.py::test_three - assert [3] == [4]" in answer.stdout
    last = answer.stdout.splitlines()[-1]
    assert "4 passed" in last and "1 failed" in last and "2 deselected" in last


def test_a_process_that_dies_is_told_with_its_test(capsys):
    assert show("begins a.py::test_one\n.\nbegins a.py::test_two\n", signal.SIGKILL) == {}
    assert capsys.readouterr().out == "ERROR a process of the tests was ended by signal 9 in a.py::test_two\n\n"
