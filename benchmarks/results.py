"""What a benchmark or a study leaves behind: NAME.csv, one row a run, and NAME.json, the figures the README prints."""

from __future__ import annotations

import csv
import datetime
import json
import os
import platform
import tomllib
from pathlib import Path
from typing import Any

from lodestar.packages import version

PACKAGES = ("lodestar-rl", "torch", "gymnasium", "stable-baselines3", "numpy", "minigrid", "open_clip_torch")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a CSV, values as text; none if there is no such file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def lacks_row(path: Path, **case: Any) -> bool:
    """Whether no row of a CSV has these values in these columns, so that an interrupted measurement continues."""
    wanted = {column: str(value) for column, value in case.items()}
    return not any(wanted.items() <= row.items() for row in read_rows(path))


def append_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Add rows to a CSV at once, so that an interruption loses nothing that was finished."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)


def write_figures(path: Path, command: str, figures: dict[str, float]) -> None:
    """Write figures into a JSON; figures of other commands that stand there already are kept."""
    known = json.loads(path.read_text()) if path.exists() else {}
    # Four digits after the point, or three of its own where nothing would be left.
    rounded = {key: round(float(value), 4) or float(f"{value:.3g}") for key, value in figures.items()}
    commands = [*known.get("command", "").split("; "), command]
    summary = {
        "command": "; ".join(dict.fromkeys(filter(None, commands))),
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "versions": versions(),
        "figures": dict(sorted({**known.get("figures", {}), **rounded}.items())),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(summary, indent=2) + "\n")
    partial.replace(path)


def versions() -> dict[str, str]:
    """Python's and the packages'; ours as the checkout has it, whatever it was when it was installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        number = version(package)
        if number:
            found[package] = number
    project = Path(__file__).resolve().parents[1] / "pyproject.toml"
    found[PACKAGES[0]] = tomllib.loads(project.read_text())["project"]["version"]
    return found


def summary(key: str, values: list[float]) -> dict[str, float]:
    """The IQM of some runs under `key`, and the ends of its interval."""
    from runners.evaluation.play import interval
    from runners.report.statistics import iqm

    low, high = interval(values)
    return {key: float(iqm(values)), f"{key}_low": float(low), f"{key}_high": float(high)}
