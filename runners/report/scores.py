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
    "Its deviations are those from episode to episode.",
    "CleanRL: the last 100 training episodes, v4 of the tasks, three seeds. Ours are v5.",
    "MiniGrid: the return of 50 episodes whose actions are sampled.",
)
NOT_RUN = "-"
# A row of scores.yaml.
Published = dict[str, Any]
# Ours is below a published mean if it is further under it than so many of its deviations.
MAX_DEVIATIONS_BELOW = 2
REACHED = "reached"
WITHIN = f"within {MAX_DEVIATIONS_BELOW} deviations"
BELOW = "below"


def table() -> list[tuple[str, ...]]:
    """A row for each task and agent, in the order of `HEADER`."""
    return list(map(_row, entries()))


def text() -> str:
    """The table for a terminal."""
    return "\n".join([*aligned_lines([HEADER, *table()]), "", *PROTOCOL])


def entries() -> list[Published]:
    """Every row of scores.yaml."""
    rows: list[Published] = yaml.safe_load(read_text(Path(__file__).with_suffix(".yaml")))
    return rows


def _row(entry: Published) -> tuple[str, ...]:
    runs = runs_of(entry)
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
        verdict(entry),
    )


def _numbers(runs: list[dict[str, str]], column: str) -> list[float]:
    """One column of the runs; none where the study has no such column."""
    return [float(run[column]) for run in runs if column in run]


def runs_of(entry: Published) -> list[dict[str, str]]:
    """The runs of a row; none where its study has not run yet."""
    study, task, arm = entry["ours"]
    path = RESULTS / f"{study}.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [run for run in csv.DictReader(file) if (run["task"], run["arm"]) == (task, arm)]


def _mean(values: list[float]) -> str:
    if not values:
        return NOT_RUN
    mean = float(iqm(values))
    # Returns of MiniGrid are at most 1.
    return f"{mean:.2f}" if abs(mean) < 1 else f"{mean:,.0f}"


def _published_text(figure: list[float] | None, steps: int | None) -> str:
    """A mean with its deviation, and the steps where they are not ours."""
    if figure is None:
        return ""
    shown = " ± ".join(f"{number:,}" for number in figure)
    if steps is not None:
        shown += f" ({steps:,} steps)"
    return shown


def verdict(entry: Published) -> str:
    """Whether the zoo's mean is reached, or CleanRL's where it has none; nothing where it is not and steps differ."""
    if "zoo" in entry:
        column = "return"
        published = entry["zoo"]
    else:
        column = "trained"
        published = entry.get("cleanrl")
    scores = _numbers(runs_of(entry), column)
    if not scores or published is None:
        return ""
    mean, *deviations = published
    ours = float(iqm(scores))
    if ours >= mean:
        return REACHED
    if "zoo_steps" in entry:
        return ""
    if deviations and ours >= mean - MAX_DEVIATIONS_BELOW * deviations[0]:
        return WITHIN
    return BELOW
