"""What users of such libraries expect: the command of each runs, in the order of features.csv.

Rows 74 and on are what the libraries in brackets show.

    python -m benchmarks.features 3 12      only these

The states are judgements of ours; a row counts as whole or partial only if its command ends with 0. All share a folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.house import ROOT
from benchmarks.results import read_rows

TABLE = ROOT / "assets" / "results" / "features.csv"
SECONDS = 1200


def run(folder: Path) -> dict[str, float]:
    """The figures; prints each row as it ends."""
    rows = read_rows(TABLE)
    failed = failures([int(row["number"]) for row in rows])
    good = [row["state"] for row in rows if int(row["number"]) not in failed]
    return {
        "features_whole": good.count("whole"),
        "features_partial": good.count("partly"),
        "features_missing": sum(row["state"] == "not" for row in rows),
        "features_failed": len(failed),
    }


def failures(numbers: list[int]) -> list[int]:
    """The rows, of those asked for, whose command failed."""
    failed = []
    own = {"LODESTAR_CLONE": str(ROOT), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "SDL_VIDEODRIVER": "dummy"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as work:
        for row in read_rows(TABLE):
            if int(row["number"]) not in numbers or not row["command"]:
                continue
            words = ["timeout", str(SECONDS), "bash", "-euo", "pipefail", "-c", row["command"]]
            done = subprocess.run(
                words, cwd=work, env={**os.environ, **own, "PATH": path}, capture_output=True, text=True, check=False
            )
            print(f"{row['number']:>3} {row['feature']}: {done.returncode or 'ok'}", flush=True)
            if done.returncode:
                failed.append(int(row["number"]))
                print(row["command"], done.stdout[-1500:], done.stderr[-1500:], sep="\n", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(bool(failures([int(word) for word in sys.argv[1:]])))
