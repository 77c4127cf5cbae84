"""Returns of this suite's agents beside published ones: `lodestar list --scores`, and a page of the docs.

Published figures and the rows that hold ours are in scores.yaml. Ours are read from assets/results, which a clone has
and an installed package has not, so rows that a study adds later show up without an edit.
"""

import csv
from pathlib import Path
from typing import Any

import yaml

from lodestar.files import read_text
from runners.report.statistics import iqm
from runners.run.output import aligned_lines

RESULTS = Path(__file__).resolve().parents[2] / "assets" / "results"
HEADER = ("task", "agent", "steps", "seeds", "training", "evaluated", "CPU-s a run", "SB3's zoo", "CleanRL", "")
PROTOCOL = (
    "Ours: IQM over seeds, of the last 100 training episodes and of 20 episodes of the final policy's mode.",
    "SB3's zoo (commit 22e3ff2): one run, its best model, deterministic, 150,000 steps, v2 to v4 of the tasks.",
    "CleanRL: the last 100 training episodes, v4 of the tasks, three seeds. Ours are v5.",
)
NOT_RUN = "-"
# Ours is below a published mean if it is further under it than so many of its deviations.
MAX_DEVIATIONS_BELOW = 2


def table() -> list[tuple[str, ...]]:
    """A row for each task and agent, in the order of `HEADER`."""
    entries = yaml.safe_load(read_text(Path(__file__).with_suffix(".yaml")))
    return list(map(_row, entries))


def text() -> str:
    """The table for a terminal."""
    return "\n".join([*aligned_lines([HEADER, *table()]), "", *PROTOCOL])


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    runs = _runs(*entry["ours"])
    evaluated = _numbers(runs, "return")
    return (
        entry["env"],
        entry["agent"],
        f"{entry['steps']:,}",
        str(len(runs)) if runs else NOT_RUN,
        _mean(_numbers(runs, "trained")),
        _mean(evaluated),
        _mean(_numbers(runs, "seconds")),
        _published_text(entry.get("zoo"), entry.get("zoo_steps")),
        _published_text(entry.get("cleanrl"), None),
        _verdict(evaluated, entry),
    )


def _numbers(runs: list[dict[str, str]], column: str) -> list[float]:
    return [float(run[column]) for run in runs]


def _runs(study: str, task: str, arm: str) -> list[dict[str, str]]:
    """The runs of one arm on one task; none where the study has not run yet."""
    path = RESULTS / f"{study}.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [run for run in csv.DictReader(file) if (run["task"], run["arm"]) == (task, arm)]


def _mean(values: list[float]) -> str:
    if not values:
        return NOT_RUN
    return f"{float(iqm(values)):,.0f}"


def _published_text(figure: list[float] | None, steps: int | None) -> str:
    """A mean with its deviation, and the steps where they are not ours."""
    if figure is None:
        return ""
    shown = " ± ".join(f"{number:,}" for number in figure)
    if steps is not None:
        shown += f" ({steps:,} steps)"
    return shown


def _verdict(evaluated: list[float], entry: dict[str, Any]) -> str:
    """Whether the zoo's mean is reached; nothing where one of both is missing, or it is not and steps differ."""
    if not evaluated or "zoo" not in entry:
        return ""
    mean, *deviations = entry["zoo"]
    ours = float(iqm(evaluated))
    if ours >= mean:
        return "reached"
    if "zoo_steps" in entry or not deviations:
        return ""
    if ours >= mean - MAX_DEVIATIONS_BELOW * deviations[0]:
        return f"within {MAX_DEVIATIONS_BELOW} deviations"
    return "below"
