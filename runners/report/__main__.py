"""One honest page from a sweep, or from any runs: curves, scores with intervals, differences, videos, configurations.

    python -m runners.report runs/sweeps/x
    python -m runners.report runs/CartPole-v1 published.csv threshold=475 out=paper
    python -m runners.report runs/sweeps/old runs/sweeps/new label=old,new

A PATH is a folder, below which run folders are looked for, or a CSV with published curves: an export of Weights &
Biases ("global_step", "<run> - charts/episodic_return"), or a long table with columns like step, episodic_return, seed,
exp_name, env_id.

Writes report.html (one file, no network, no script), report.png (the picture for a paper), report.csv (all numbers) and
curves.csv (the curves on their common grid); `runners.report.study` documents their columns, and reads from a script.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path

from envs.settings import Settings, declarations, setting
from runners.cli.command import Command
from runners.run.config import UsageError, unknown


@dataclass
class ReportConfig(Settings):
    """One report."""

    out: str = setting("", "folder of the four files; the first folder given")
    threshold: str = setting("", "task return for the steps-to-threshold table, or one a task: A-v1:475,B-v1:-100")
    reference: str = setting("", "the arm that scores 1 on every task; else the task-only baseline, or the best arm")
    points: int = setting(200, "of each curve", low=2, high=10_000)
    label: str = setting("", "names for the PATHs, in their order and behind commas; a CSV's is its arm's name")
    title: str = setting("", "of the page")
    rest: list[str] = setting([], "the PATHs")

    def __post_init__(self) -> None:
        super().__post_init__()
        for path in self.rest:
            key, equals, _ = path.partition("=")
            if not Path(path).exists() and equals and key.isidentifier():
                raise UsageError(unknown("key", key, [name for name in declarations(ReportConfig) if name != "rest"]))
            if not Path(path).exists():
                raise UsageError(f"{path} does not exist; give a folder with runs below it, or a CSV")
        if not self.rest:
            raise UsageError("there is no PATH; give a folder with runs below it, such as runs/sweeps/x, or a CSV")
        if self.label and len(self.labels) != len(self.rest):
            count = f"{len(self.labels)} names; give one for each PATH: {len(self.rest)}"
            raise UsageError(f"label={self.label} has {count}")
        for value in self.thresholds.values():
            if not math.isfinite(value):
                raise UsageError(
                    f"threshold={self.threshold} is no task return; give a number, or TASK:NUMBER,TASK:NUMBER"
                )

    @property
    def labels(self) -> list[str]:
        """One for each path; none if there are none."""
        return self.label.split(",") if self.label else []

    @property
    def thresholds(self) -> dict[str, float]:
        """475 -> {"": 475}; A:1,B:2 -> {"A": 1, "B": 2}; NaN for what is no number."""
        found = {}
        for part in filter(None, self.threshold.split(",")):
            task, _, value = part.rpartition(":")
            try:
                found[task] = float(value)
            except ValueError:
                found[task] = math.nan
        return found


def report(config: ReportConfig) -> None:
    """Read, compute, draw, write."""
    from runners.report.study import Report

    paths = list(map(Path, config.rest))
    folder = next((path for path in paths if path.is_dir()), paths[0].parent)
    found = Report.read(
        paths, config.labels, reference=config.reference, threshold=config.thresholds, points=config.points
    )
    page = found.write(Path(config.out or folder), config.title or f"Report on {folder.resolve().name}")
    print(f"report:      {page}")


main = Command(ReportConfig, report, __doc__)

if __name__ == "__main__":
    sys.exit(main())
