"""One honest page from a sweep, or from any runs: curves, scores with intervals, differences, videos, configurations.

    python -m runners.report runs/sweeps/x
    python -m runners.report runs/CartPole-v1 published.csv threshold=475 out=paper
    python -m runners.report runs/sweeps/old runs/sweeps/new label=old,new

A PATH is a folder, below which run folders are looked for, or a CSV with published curves: an export of Weights &
Biases ("global_step", "<run> - charts/episodic_return"), or a long table with columns like step, episodic_return, seed,
exp_name, env_id.

keys:
    out=FOLDER        where the four files go; the first folder given
    threshold=RETURN  task return for the steps-to-threshold table, or one a task: CartPole-v1:475,Acrobot-v1:-100
    reference=ARM     the arm that scores 1 on every task; else the task-only baseline, or the best arm
    points=200        of each curve
    label=A,B         names for the PATHs, in their order; a CSV's is its arm's name
    title=TEXT        of the page

Writes report.html (one file, no network, no script), report.png (the picture for a paper), report.csv (all numbers) and
curves.csv (the curves on their common grid); `runners.report.study` documents their columns, and reads from a script.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from pathlib import Path

from runners.run.config import UsageError, unknown

KEYS = ("out", "threshold", "reference", "points", "label", "title")


@dataclass
class ReportConfig:
    """What the command line asks for."""

    paths: list[Path] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    out: Path = Path()
    threshold: dict[str, float] = field(default_factory=dict)
    reference: str = ""
    points: int = 200
    title: str = ""


def main(argv: list[str] | None = None) -> int:
    """Write the report; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or any(a in ("-h", "--help") for a in arguments):
        print(__doc__)
        return 0 if arguments else 2
    from runners.run.exits import explain

    try:
        page = report(parse(arguments))
    except Exception as error:
        code, sentence = explain(error, "set-up")
        if not sentence:
            raise
        print(f"error: {sentence}", file=sys.stderr)
        return code
    print(f"report:      {page}")
    return 0


def parse(arguments: list[str]) -> ReportConfig:
    """The command line, checked.

    Raises:
        UsageError: one sentence about the first thing that is wrong.
    """
    options: dict[str, str] = {}
    config = ReportConfig()
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and key in KEYS:
            options[key] = value
        elif Path(argument).exists():
            config.paths.append(Path(argument))
        elif equals and key.isidentifier():
            raise UsageError(unknown("key", key, KEYS))
        else:
            raise UsageError(f"{argument} does not exist; give a folder with runs below it, or a CSV")
    if not config.paths:
        raise UsageError("there is no PATH; give a folder with runs below it, such as runs/sweeps/x, or a CSV")
    config.labels = options["label"].split(",") if options.get("label") else [""] * len(config.paths)
    if len(config.labels) != len(config.paths):
        raise UsageError(
            f"label={options['label']} has {len(config.labels)} names; give one for each PATH: {len(config.paths)}"
        )
    points = options.get("points", "200")
    if not points.isdigit() or not 2 <= int(points) <= 10_000:
        raise UsageError(f"points={points} is out of range; give a whole number from 2 to 10000")
    config.points = int(points)
    config.threshold = _threshold(options.get("threshold", ""))
    config.reference = options.get("reference", "")
    folder = next((path for path in config.paths if path.is_dir()), config.paths[0].parent)
    config.out = Path(options["out"]) if options.get("out") else folder
    config.title = options.get("title", "") or f"Report on {folder.resolve().name}"
    return config


def _threshold(text: str) -> dict[str, float]:
    """475 -> {"": 475}; A:1,B:2 -> {"A": 1, "B": 2}."""
    found = {}
    for part in filter(None, text.split(",")):
        task, _, value = part.rpartition(":")
        try:
            found[task] = float(value)
        except ValueError:
            found[task] = math.nan
        if not math.isfinite(found[task]):
            raise UsageError(f"threshold={text} is no task return; give a number, or TASK:NUMBER,TASK:NUMBER")
    return found


def report(config: ReportConfig) -> Path:
    """Read, compute, draw, write; returns the page."""
    from runners.report.study import Report

    options = {"reference": config.reference, "threshold": config.threshold, "points": config.points}
    return Report.read(config.paths, config.labels, **options).write(config.out, config.title)


if __name__ == "__main__":
    sys.exit(main())
