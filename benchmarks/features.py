"""What users of such libraries expect: the command of each runs, in the order of features.csv.

Rows 74 and on are what the libraries in brackets show.

    python -m benchmarks.features 1 3 12      only these, also if they ran before (3 watches what 1 trained)

The states are judgements of ours; a row counts as whole or partial only if its command ended with 0 under this version,
which its column `version` says. So an interrupted benchmark continues where it stopped.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import results
from benchmarks.house import ROOT
from benchmarks.results import read_rows

TABLE = ROOT / "assets" / "results" / "features.csv"
SECONDS = 1200
# Rows whose runs and recordings others read; all share a folder, which is new each time.
SOURCES = {1, 4, 7, 36}


def run(folder: Path) -> dict[str, float]:
    """The figures, once each row ran under this version; those that failed count as not run."""
    current = results.versions()["lodestar-rl"]
    missing = {int(row["number"]) for row in read_rows(TABLE) if row["version"] != current}
    run_rows(sorted(missing | SOURCES))
    rows = read_rows(TABLE)
    shown = []
    for row in rows:
        if row["version"] == current or not row["command"]:
            shown.append(row["state"])
    return {
        "features_whole": shown.count("whole"),
        "features_partial": shown.count("partly"),
        "features_missing": shown.count("not"),
        "features_not_run": len(rows) - len(shown),
    }


def run_rows(numbers: list[int]) -> list[int]:
    """Run the rows asked for and write the version down; returns those whose command failed."""
    failed = []
    own = {"LODESTAR_CLONE": str(ROOT), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "SDL_VIDEODRIVER": "dummy"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as work:
        for row in read_rows(TABLE):
            number = int(row["number"])
            if number not in numbers or not row["command"]:
                continue
            words = ["timeout", str(SECONDS), "bash", "-euo", "pipefail", "-c", row["command"]]
            done = subprocess.run(
                words, cwd=work, env={**os.environ, **own, "PATH": path}, capture_output=True, text=True, check=False
            )
            print(f"{row['number']:>3} {row['feature']}: {done.returncode or 'ok'}", flush=True)
            write_version(number, "" if done.returncode else results.versions()["lodestar-rl"])
            if done.returncode:
                failed.append(number)
                print(row["command"], done.stdout[-1500:], done.stderr[-1500:], sep="\n", flush=True)
    return failed


def write_version(number: int, version: str) -> None:
    """Write into the table under which version a row's command ended with 0 last; "" after a failure."""
    rows = read_rows(TABLE)
    for row in rows:
        if int(row["number"]) == number:
            row["version"] = version
    partial = TABLE.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    results.append_rows(partial, rows)
    partial.replace(TABLE)


if __name__ == "__main__":
    sys.exit(bool(run_rows([int(word) for word in sys.argv[1:]])))
