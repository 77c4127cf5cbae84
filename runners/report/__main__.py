"""One honest page from a sweep, or from any runs: curves, scores with intervals, differences, videos, configurations.

    python -m runners.report runs/sweeps/x
    python -m runners.report runs/CartPole-v1 published.csv threshold=475 out=paper
    python -m runners.report runs/sweeps/old runs/sweeps/new label=old,new

A PATH is a folder, below which run folders are looked for, or a CSV with published curves: an export of Weights &
Biases ("global_step", "<run> - charts/episodic_return"), or a long table with columns like step, episodic_return, seed,
exp_name, env_id. It writes

    report.html   one file, no network, no script
    report.pdf    the picture for a paper, also as report.svg and report.png
    report.csv    a line a number: figure, task, arm, against, value, low, high, runs (computed from), of (there are)
    curves.csv    a line a point of the common grid: task, arm, step, runs, of, iqm, low, high

A script gets the numbers from `summarize`.
"""

import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from lodestar.files import make_folder, read_json, replacing
from lodestar.settings import Settings, declarations, setting
from runners.cli.command import Command
from runners.report.comparison import Comparison, bands, score
from runners.report.numbers import Numbers, Row
from runners.report.read import find, number, read_published
from runners.run.config import UsageError, describe_unknown

# Formats of the picture, and what matplotlib calls the date in each.
PICTURE_DATE_TAGS = {"png": "Creation Time", "svg": "Date", "pdf": "CreationDate"}


@dataclass
class ReportConfig(Settings):
    """One report."""

    out: str = setting("", "folder of these files; the first folder given")
    threshold: str = setting("", "task return for the steps-to-threshold table, or one a task: A-v1:475,B-v1:-100")
    reference: str = setting("", "the arm that scores 1 on every task; else the task-only baseline, or the best arm")
    points: int = setting(200, "of each curve", "[2, 10000]")
    label: str = setting("", "names for the PATHs, in their order and behind commas; a CSV's is its arm's name")
    title: str = setting("", "of the page")
    rest: list[str] = setting([], "the PATHs: folders with runs below them, and CSVs of published curves")

    def __post_init__(self) -> None:
        super().__post_init__()
        for path in self.rest:
            if Path(path).exists():
                continue
            # It may be a misspelt key.
            key, equals, _ = path.partition("=")
            if equals and key.isidentifier():
                keys = list(declarations(ReportConfig))
                keys.remove("rest")
                raise UsageError(describe_unknown("key", key, keys))
            raise UsageError(f"{path} does not exist; give a folder with runs below it, or a CSV")
        if not self.rest:
            raise UsageError("there is no PATH; give a folder with runs below it, such as runs/sweeps/x, or a CSV")
        self.paths = list(map(Path, self.rest))
        self.labels = [""] * len(self.rest)
        if self.label:
            self.labels = self.label.split(",")
        count = len(self.labels)
        if count != len(self.rest):
            raise UsageError(f"label={self.label} has {count} names; give one for each PATH: {len(self.rest)}")
        folder = next(filter(Path.is_dir, self.paths), self.paths[0].parent)
        self.folder = Path(self.out or folder)
        self.title = self.title or f"Report on {folder.resolve().name}"
        # "475" is for every task, which "" stands for; "A-v1:475" for one.
        self.thresholds = {}
        for text in filter(None, self.threshold.split(",")):
            task, _, value = text.rpartition(":")
            self.thresholds[task] = number(value)
            if np.isnan(self.thresholds[task]):
                raise UsageError(
                    f"threshold={self.threshold} is no task return; give a number, or TASK:NUMBER,TASK:NUMBER"
                )


class Report:
    """Numbers and learning curves of runs; a UsageError if there is nothing to report on."""

    def __init__(self, config: ReportConfig) -> None:
        self.config = config
        labelled = list(zip(config.paths, config.labels))
        commands = []
        for path in config.paths:
            command = read_json(path / "sweep.json").get("command")
            if command:
                commands.append(str(command))
        # There is no folder below a file.
        runs, problems = find(labelled)
        # A published file may leave its task out: it is then one of ours.
        tasks = sorted({run.config["env"] for run in runs})
        for path, label in labelled:
            if not path.is_dir():
                file_runs, file_problems = read_published(path, label, tasks)
                runs += file_runs
                problems += file_problems
        if not runs:
            reasons = f" ({'; '.join(problems[:3])})" if problems else ""
            paths = " ".join(config.rest)
            raise UsageError(f"{paths} has no run that can be read{reasons}; give a folder with runs below it")
        data = Comparison(runs, problems, commands)
        names = [arm.name for arm in data.arms]
        if config.reference and config.reference not in names:
            raise UsageError(describe_unknown("reference", config.reference, names))
        self.numbers = Numbers(data, config.reference, config.thresholds)
        self.curves = bands(data, config.points)

    def write(self) -> Path:
        """report.csv, curves.csv, the picture in three formats, and report.html, which is returned."""
        import matplotlib

        from runners.report import page, plots

        folder = self.config.folder
        if self.config.out:
            make_folder(self.config.out)
        # Tables first: a picture that fails leaves the numbers.
        _write_csv(folder / "report.csv", [field.name for field in fields(Row)], map(astuple, self.numbers.rows))
        header = ["task", "arm", "step", "runs", "of", "iqm", "low", "high"]
        _write_csv(folder / "curves.csv", header, self._curve_rows())
        with matplotlib.rc_context(plots.STYLE):
            picture = plots.learning(self.numbers, self.curves, aggregated=True)
            for kind, date_tag in PICTURE_DATE_TAGS.items():
                # Without the date the same numbers give the same bytes.
                with replacing(folder / f"report.{kind}") as path:
                    picture.savefig(path, dpi=160, format=kind, metadata={date_tag: None})
        page_path = folder / "report.html"
        return page.write(page_path, self.numbers, self.curves, self.config.title, self.config.points)

    def _curve_rows(self) -> Iterator[tuple[Any, ...]]:
        """A row for each point of a learning curve that some run has reached."""
        for cell, band in self.curves.items():
            for i in np.flatnonzero(band.runs > 0):
                step = round(float(band.steps[i]))
                yield (*cell, step, band.runs[i], band.of, band.value[i], band.low[i], band.high[i])


def summarize(*folders: str | Path, **options: Any) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """A study's runs as rows and figures, for its NAME.csv and NAME.json; options are those of `ReportConfig`.

    rows: a dict a run: task, arm, seed, state, step, task_return (the run's score), success. figures: "final/ENV/ARM"
    and the like -> value, with "/low" and "/high" behind it where there is an interval; `Row` lists the names.
    """
    numbers = Report(ReportConfig(rest=list(map(str, folders)), **options)).numbers
    rows = []
    for task, arm, runs in numbers.data.cells():
        for run in runs:
            rows.append(
                {
                    "task": task,
                    "arm": arm.name,
                    "seed": run.seed,
                    "state": run.state,
                    "step": int(run.last_step),
                    "task_return": score(run, numbers.evaluated[task]),
                    "success": run.result("success"),
                }
            )
    figures: dict[str, float] = {}
    for number_row in numbers.rows:
        names = (number_row.figure, number_row.task, number_row.arm, number_row.against)
        key = "/".join(filter(None, names))
        ends = {key: number_row.value, f"{key}/low": number_row.low, f"{key}/high": number_row.high}
        # There may be no interval, or no number at all.
        figures |= {name: value for name, value in ends.items() if np.isfinite(value)}
    return rows, figures


def _write_csv(path: Path, header: list[str], rows: Iterable[Sequence[Any]]) -> None:
    """Numbers with eight digits; an empty cell for NaN."""
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(header)
        for row in rows:
            table.writerow(map(_format_cell, row))


def _format_cell(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    if np.isnan(value):
        return ""
    return f"{value:.8g}"


def run(config: ReportConfig) -> None:
    """Write the report, and print where it is."""
    print(f"report:      {Report(config).write()}")


main = Command(ReportConfig, run, __doc__, busy="reading runs and drawing")

if __name__ == "__main__":
    sys.exit(main())
