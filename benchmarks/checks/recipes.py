"""Everyone's own loop: the recipes of `docs/guide/programs.md`, each run with the newest version of its library.

    python -m benchmarks recipes

Criterion: `recipes_green` equals `recipes`. Libraries that do not go together get environments of their own, from the
package cache. LeRobot wants Python 3.12, which must be on the path.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from benchmarks import results
from benchmarks.checks.wheel import ROOT

TESTS = ROOT / "tests" / "interop" / "test_recipes.py"


class Place(NamedTuple):
    """An environment, and the recipes that run in it."""

    packages: tuple[str, ...]
    recipes: tuple[str, ...]
    python: str = sys.executable


PLACES = (
    Place((), ("sb3_rollout", "sb3_replay", "sb3_step", "cleanrl")),
    Place(("torchrl", "tianshou", "skrl"), ("torchrl", "tianshou", "skrl")),
    Place(("ray[rllib]",), ("rllib",)),
    Place(("lerobot[dataset]==0.6.*",), ("lerobot",), "3.12"),
)


def run(folder: Path) -> dict[str, float]:
    """How many recipes there are, and how many train on our rewards; `recipes.csv` says which."""
    path = folder / "recipes.csv"
    path.unlink(missing_ok=True)
    for place in PLACES:
        outcomes = run_place(place)
        for recipe in place.recipes:
            # A recipe that pytest did not report could not even be tried.
            row = {"recipe": recipe, "outcome": outcomes.get(recipe, "not run")}
            results.append_rows(path, [row])
            print(f"{recipe:<12}{row['outcome']}", flush=True)
    rows = results.read_rows(path)
    green = sum(row["outcome"] == "passed" for row in rows)
    return {"recipes": float(len(rows)), "recipes_green": float(green)}


def run_place(place: Place) -> dict[str, str]:
    """Recipe -> how its test ended, in a new environment that is deleted afterwards."""
    uv = str(Path(sys.executable).with_name("uv"))
    with tempfile.TemporaryDirectory(prefix="lodestar-") as temporary:
        environment = Path(temporary) / "environment"
        python = environment / "bin" / "python"
        commands = [
            [uv, "venv", "--quiet", "--python", place.python, str(environment)],
            [uv, "pip", "install", "--quiet", "--python", str(python), "--editable", f"{ROOT}[test]", *place.packages],
        ]
        for command in commands:
            if subprocess.run(command, check=False).returncode:
                return {}
        report = Path(temporary) / "report.xml"
        chosen = " or ".join(place.recipes)
        pytest = [str(python), "-m", "pytest", "-m", "interop", "-k", chosen, str(TESTS), f"--junitxml={report}"]
        subprocess.run(pytest, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
        # There is no report where pytest itself could not begin.
        if not report.exists():
            return {}
        return read_outcomes(report)


def read_outcomes(report: Path) -> dict[str, str]:
    """Recipe -> passed, or the name of what pytest says instead: failure, error, skipped."""
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        recipe = case.attrib["name"].partition("[")[2].rstrip("]")
        # The benchmark's other test has no recipe in its name, and is read as one without a name.
        outcomes[recipe] = "passed"
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                outcomes[recipe] = child.tag
    return outcomes
