"""One honest page from a sweep, or from any runs: curves, scores with intervals, differences, videos, configurations.

    python -m runners.report runs/sweeps/x
    python -m runners.report runs/CartPole-v1 published.csv threshold=475 out=paper
    python -m runners.report runs/sweeps/old runs/sweeps/new label=old,new

A PATH is a folder, below which run folders are looked for, or a CSV with published curves: an export of Weights &
Biases ("global_step", "<run> - charts/episodic_return"), or a long table with columns like step, episodic_return, seed,
exp_name, env_id. It writes

    report.html   one file, no network, no script
    report.png    the picture for a paper
    report.csv    a line a number: figure, task, arm, against, value, low, high, runs (computed from), of (there are)
    curves.csv    a line a point of the common grid: task, arm, step, runs, of, iqm, low, high

A script gets the numbers from `summarize`.
"""

import csv
import sys
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from lodestar.files import make_folder, read_json, replacing
from lodestar.settings import Settings, declarations, setting
from runners.cli.command import Command
from runners.report.comparison import Comparison, bands, score
from runners.report.numbers import Numbers, Row
from runners.report.read import find, number, published
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
    rest: list[str] = setting([], "the PATHs: folders with runs below them, and CSVs of published curves")

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
        self.paths = list(map(Path, self.rest))
        self.labels = self.label.split(",") if self.label else [""] * len(self.rest)
        if (count := len(self.labels)) != len(self.rest):
            raise UsageError(f"label={self.label} has {count} names; give one for each PATH: {len(self.rest)}")
        folder = next((path for path in self.paths if path.is_dir()), self.paths[0].parent)
        self.folder = Path(self.out or folder)
        self.title = self.title or f"Report on {folder.resolve().name}"
        self.thresholds = dict(map(self._threshold, filter(None, self.threshold.split(","))))

    def _threshold(self, text: str) -> tuple[str, float]:
        """475 -> ("", 475); A:1 -> ("A", 1)."""
        task, _, value = text.rpartition(":")
        if np.isnan(number(value)):
            raise UsageError(f"threshold={self.threshold} is no task return; give a number, or TASK:NUMBER,TASK:NUMBER")
        return task, number(value)


class Report:
    """Numbers and learning curves of runs; a UsageError if there is nothing to report on."""

    def __init__(self, config: ReportConfig) -> None:
        self.config = config
        named = list(zip(config.paths, config.labels))
        runs, problems = find([(path, label) for path, label in named if path.is_dir()])
        tasks = sorted({run.config["env"] for run in runs})
        for path, label in named:
            if not path.is_dir():
                more, missing = published(path, label, tasks)
                runs, problems = runs + more, problems + missing
        if not runs:
            wrong = f" ({'; '.join(problems[:3])})" if problems else ""
            listed = " ".join(config.rest)
            raise UsageError(f"{listed} has no run that can be read{wrong}; give a folder with runs below it")
        sweeps = [read_json(path / "sweep.json").get("command") for path in config.paths]
        data = Comparison(runs, problems, [str(command) for command in sweeps if command])
        arms = [arm.name for arm in data.arms]
        if config.reference and config.reference not in arms:
            raise UsageError(unknown("reference", config.reference, arms))
        self.numbers = Numbers(data, config.reference, config.thresholds)
        self.curves = bands(data, config.points)

    def write(self) -> Path:
        """report.csv, curves.csv, report.png and report.html, which is returned."""
        import matplotlib

        from runners.report import page, plots

        folder = make_folder(self.config.out) if self.config.out else self.config.folder
        _csv(folder / "report.csv", [field.name for field in fields(Row)], map(astuple, self.numbers.rows))
        points = (
            (*cell, round(float(band.steps[i])), band.runs[i], band.of, band.value[i], band.low[i], band.high[i])
            for cell, band in self.curves.items()
            for i in np.flatnonzero(band.runs > 0)
        )
        _csv(folder / "curves.csv", ["task", "arm", "step", "runs", "of", "iqm", "low", "high"], points)
        with matplotlib.rc_context(plots.STYLE):
            picture = plots.learning(self.numbers, self.curves, aggregated=True)
            with replacing(folder / "report.png") as path:
                picture.savefig(path, dpi=160)
        page.write(folder / "report.html", self.numbers, self.curves, self.config.title, self.config.points)
        return folder / "report.html"


def summarize(*folders: str | Path, **options: Any) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """A study's runs as rows and figures, for its NAME.csv and NAME.json; options are those of `ReportConfig`.

    rows: a dict a run: task, arm, seed, state, step, task_return (the run's score), success. figures: "final/ENV/ARM"
    and the like -> value, with "/low" and "/high" behind it where there is an interval; `Row` lists the names.
    """
    numbers = Report(ReportConfig(rest=[str(folder) for folder in folders], **options)).numbers
    rows = [
        {"task": task, "arm": arm.name, "seed": run.seed, "state": run.state, "step": int(run.last)}
        | {"task_return": score(run, numbers.evaluated[task]), "success": run.result("success")}
        for task, arm, runs in numbers.data.cells()
        for run in runs
    ]
    figures: dict[str, float] = {}
    for row in numbers.rows:
        key = "/".join(filter(None, (row.figure, row.task, row.arm, row.against)))
        ends = {key: row.value, f"{key}/low": row.low, f"{key}/high": row.high}
        figures |= {name: value for name, value in ends.items() if np.isfinite(value)}
    return rows, figures


def _csv(path: Path, header: list[str], rows: Iterable[Sequence[Any]]) -> None:
    """Numbers with eight digits; an empty cell for nan."""

    def cell(value: Any) -> Any:
        return value if not isinstance(value, float) else "" if np.isnan(value) else f"{value:.8g}"

    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(header)
        for row in rows:
            table.writerow(map(cell, row))


main = Command(ReportConfig, lambda config: print(f"report:      {Report(config).write()}"), __doc__)

if __name__ == "__main__":
    sys.exit(main())
