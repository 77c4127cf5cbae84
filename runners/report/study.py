"""From folders of runs to numbers, tables and figures: what `python -m runners.report` writes, and studies build on.

    rows, figures = summarize(Path("runs/sweeps/study"))      # for NAME.csv and NAME.json of a study
    Report.read([Path("runs/sweeps/study")]).picture(Path("study.png"))

rows: a dict a run: task, arm, seed, state, step, task_return (the run's score), success. figures: "final/ENV/ARM" and
the like -> value, with "/low" and "/high" behind it where there is an interval; `numbers.Row` lists the names.

report.csv (a line a number): figure, task, arm, against, value, low, high, runs (computed from), of (runs there are).
curves.csv (a line a point of the common grid): task, arm, step, runs, of, iqm, low, high.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runners.report.comparison import Comparison, score
from runners.report.curves import Band, bands
from runners.report.numbers import Numbers
from runners.report.published import published
from runners.report.read import find, sweep_command
from runners.run.config import UsageError, unknown


@dataclass
class Report:
    """Numbers and learning curves of runs; `read` makes one."""

    numbers: Numbers
    curves: dict[tuple[str, str], Band]
    points: int

    @classmethod
    def read(
        cls,
        paths: Sequence[Path],
        labels: Sequence[str] = (),
        *,
        reference: str = "",
        threshold: dict[str, float] | None = None,
        points: int = 200,
    ) -> Report:
        """Read and compute.

        Args:
            paths: folders with runs below them, and CSVs of published curves.
            labels: names for the paths, put before their arms' names; may be empty.
            reference: the arm that scores 1 on every task; "" takes the baseline, or the best arm.
            threshold: task -> task return for the steps-to-threshold numbers; the key "" means every task.
            points: of each curve.

        Raises:
            UsageError: if there is nothing to report on.
        """
        named = list(zip(paths, labels or [""] * len(paths)))
        folders = [(path, label) for path, label in named if path.is_dir()]
        runs, problems = find([path for path, _ in folders], [label for _, label in folders])
        tasks = sorted({run.config["env"] for run in runs})
        for path, label in named:
            if not path.is_dir():
                more, missing = published(path, label, tasks)
                runs, problems = runs + more, problems + missing
        if not runs:
            wrong = f" ({'; '.join(problems[:3])})" if problems else ""
            listed = " ".join(map(str, paths))
            raise UsageError(f"{listed} has no run that can be read{wrong}; give a folder with runs below it")
        data = Comparison(runs, problems, [line for path in paths for line in sweep_command(path)])
        arms = [arm.name for arm in data.arms]
        if reference and reference not in arms:
            raise UsageError(unknown("reference", reference, arms))
        return cls(Numbers(data, reference, threshold), bands(data, points), points)

    def write(self, folder: Path, title: str) -> Path:
        """report.csv, curves.csv, report.png and report.html, which is returned.

        Raises:
            OSError: if the files cannot be written.
        """
        from runners.report import page

        folder.mkdir(parents=True, exist_ok=True)
        _csv(folder / "report.csv", self._number_rows())
        _csv(folder / "curves.csv", self._curve_rows())
        self.picture(folder / "report.png")
        page.write(folder / "report.html", self.numbers, self.curves, title, self.points)
        return folder / "report.html"

    def picture(self, path: Path) -> None:
        """The picture for a paper: curves of every task, and the aggregate."""
        from runners.report import plots

        with plots.style():
            plots.learning(self.numbers, self.curves, aggregated=True).savefig(path, dpi=160)

    def summary(self) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """A row for each run, and the figures; see the head of this file."""
        rows = [
            {
                "task": task,
                "arm": arm.name,
                "seed": run.seed,
                "state": run.state,
                "step": int(run.steps[-1]) if len(run.steps) else 0,
                "task_return": score(run, self.numbers.evaluated[task]),
                "success": run.result("success"),
            }
            for task, arm, runs in self.numbers.data.cells()
            for run in runs
        ]
        figures: dict[str, float] = {}
        for row in self.numbers.rows:
            key = "/".join(filter(None, (row.figure, row.task, row.arm, row.against)))
            ends = {key: row.value, f"{key}/low": row.low, f"{key}/high": row.high}
            figures |= {name: value for name, value in ends.items() if np.isfinite(value)}
        return rows, figures

    def _number_rows(self) -> Iterable[list[Any]]:
        yield ["figure", "task", "arm", "against", "value", "low", "high", "runs", "of"]
        for row in self.numbers.rows:
            ends = map(_cell, (row.value, row.low, row.high))
            yield [row.figure, row.task, row.arm, row.against, *ends, row.runs, row.of]

    def _curve_rows(self) -> Iterable[list[Any]]:
        yield ["task", "arm", "step", "runs", "of", "iqm", "low", "high"]
        for (task, arm), band in self.curves.items():
            for i in np.flatnonzero(band.runs > 0):
                ends = (_cell(values[i]) for values in (band.value, band.low, band.high))
                yield [task, arm, round(float(band.steps[i])), int(band.runs[i]), band.of, *ends]


def summarize(*folders: Path, **options: Any) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """A study's runs as rows and figures; options are those of `Report.read`."""
    return Report.read(folders, **options).summary()


def _cell(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.8g}"


def _csv(path: Path, rows: Iterable[list[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
