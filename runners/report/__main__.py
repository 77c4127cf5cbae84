"""One honest page from a sweep, or from any runs: curves, scores with intervals, differences, films, configurations.

    python -m runners.report runs/sweeps/x
    python -m runners.report runs/CartPole-v1 others.csv threshold=475 out=paper
    python -m runners.report runs/sweeps/old runs/sweeps/new label=old,new

A PATH is a folder, below which run folders are looked for, or a CSV with the curves of others: an export of Weights &
Biases ("global_step", "<run> - charts/episodic_return"), or a long table with columns like step, episodic_return, seed,
exp_name, env_id.

keys:
    out=FOLDER        where the four files go; the first folder given
    threshold=RETURN  task return for the steps-to-threshold table, or one a task: CartPole-v1:475,Acrobot-v1:-100
    reference=ARM     the arm that scores 1 on every task; else the twin, or the best arm where there is no good twin
    points=200        of each curve
    label=A,B         names for the PATHs, in their order; a CSV's is its arm's name
    title=WORDS       of the page

Writes report.html (one file, no network, no script), report.png (the picture for a paper), report.csv (all numbers) and
curves.csv (the curves on their common grid).
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runners.run.config import UsageError, unknown

KEYS = ("out", "threshold", "reference", "points", "label", "title")


@dataclass
class Plan:
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


def parse(arguments: list[str]) -> Plan:
    """The command line, checked.

    Raises:
        UsageError: one sentence about the first thing that is wrong.
    """
    options: dict[str, str] = {}
    plan = Plan()
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and key in KEYS:
            options[key] = value
        elif Path(argument).exists():
            plan.paths.append(Path(argument))
        elif equals and key.isidentifier():
            raise UsageError(unknown("key", key, KEYS))
        else:
            raise UsageError(f"{argument} does not exist; give a folder with runs below it, or a CSV")
    if not plan.paths:
        raise UsageError("there is no PATH; give a folder with runs below it, such as runs/sweeps/x, or a CSV")
    plan.labels = options["label"].split(",") if options.get("label") else [""] * len(plan.paths)
    if len(plan.labels) != len(plan.paths):
        raise UsageError(
            f"label={options['label']} has {len(plan.labels)} names; give one for each PATH: {len(plan.paths)}"
        )
    points = options.get("points", "200")
    if not points.isdigit() or not 2 <= int(points) <= 10_000:
        raise UsageError(f"points={points} is out of range; give a whole number from 2 to 10000")
    plan.points = int(points)
    plan.threshold = _threshold(options.get("threshold", ""))
    plan.reference = options.get("reference", "")
    folder = next((path for path in plan.paths if path.is_dir()), plan.paths[0].parent)
    plan.out = Path(options["out"]) if options.get("out") else folder
    plan.title = options.get("title", "") or f"Report on {folder.resolve().name}"
    return plan


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


def report(plan: Plan) -> Path:
    """Read, compute, draw, write; returns the page.

    Raises:
        UsageError: if there is nothing to report on.
        OSError: if the files cannot be written.
    """
    from runners.report import plots
    from runners.report.curves import bands
    from runners.report.numbers import numbers
    from runners.report.page import curve_rows, rows_of, write
    from runners.report.published import published
    from runners.report.read import find, sweep_command
    from runners.report.study import study

    folders = [(path, label) for path, label in zip(plan.paths, plan.labels) if path.is_dir()]
    runs, problems = find([path for path, _ in folders], [label for _, label in folders])
    tasks = sorted({run.config["env"] for run in runs})
    for path, label in zip(plan.paths, plan.labels):
        if not path.is_dir():
            more, said = published(path, label, tasks)
            runs, problems = runs + more, problems + said
    if not runs:
        wrong = f" ({'; '.join(problems[:3])})" if problems else ""
        raise UsageError(
            f"{' '.join(map(str, plan.paths))} has no run that can be read{wrong}; give a folder with runs below it"
        )
    made = study(runs, problems)
    made.commands = [line for path in plan.paths for line in sweep_command(path)]
    if plan.reference and plan.reference not in [arm.name for arm in made.arms]:
        raise UsageError(unknown("reference", plan.reference, [arm.name for arm in made.arms]))
    found, drawn = numbers(made, plan.reference, plan.threshold), bands(made, plan.points)
    plan.out.mkdir(parents=True, exist_ok=True)
    _table(plan.out / "report.csv", rows_of(found))
    _table(plan.out / "curves.csv", curve_rows(drawn))
    with plots.style():
        plots.picture(made, found, drawn).savefig(plan.out / "report.png", dpi=160)
    write(plan.out / "report.html", made, found, drawn, plan.title, plan.points)
    return plan.out / "report.html"


def _table(path: Path, rows: Iterable[list[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
