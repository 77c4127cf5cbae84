"""Learning curves of several runs on one grid of steps, and what can be read from them.

A curve is interpolated between its rows and never continued beyond its first and last one. Where a run has stopped
early the others continue alone, and the number of runs at each step says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runners.report import statistics
from runners.report.comparison import Comparison
from runners.report.read import ALARM, LEARNED_RETURN, TASK_RETURN, Run

MOST_NUMBERS = 8_000_000  # that one resampling of a band may hold


@dataclass
class Band:
    """IQM of a cell's curves over steps, with its 95 % band; arrays (P,), nan where there is nothing.

    Attributes:
        runs: how many have a value at each step.
        of: how many there are.
        span: the least and the largest value of any run.
    """

    steps: np.ndarray
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    runs: np.ndarray
    of: int
    span: tuple[float, float]

    @property
    def whole(self) -> np.ndarray:
        """Where no run is missing."""
        return (self.runs == self.of) & (self.of > 0)


def bands(data: Comparison, points: int, tag: str = TASK_RETURN) -> dict[tuple[str, str], Band]:
    """(task, arm) -> its band; all arms of a task on the same grid of so many points."""
    found = {}
    for task in data.tasks:
        grid = _grid([run.curve(tag)[0] for run in data.runs if run.task == task], points)
        for arm in data.arms:
            curves = aligned(arm.cells.get(task, []), grid, tag)
            if len(curves):
                found[task, arm.name] = band(curves, grid)
    return found


def _grid(steps: Sequence[np.ndarray], points: int) -> np.ndarray:
    """From the first to the last of all steps; empty if there are none."""
    every = [ascending[[0, -1]] for ascending in steps if len(ascending)]
    return np.linspace(np.min(every), np.max(every), points) if every else np.zeros(0)


def aligned(runs: Sequence[Run], grid: np.ndarray, tag: str = TASK_RETURN) -> np.ndarray:
    """Curves of the runs that have one on a grid, (R, P); nan before a run's first row and after its last."""
    found = [run.curve(tag) for run in runs]
    return np.array([np.interp(grid, *curve, left=np.nan, right=np.nan) for curve in found if len(curve[0])])


def band(curves: np.ndarray, grid: np.ndarray) -> Band:
    """IQM of (R, P) curves with nan in them; the band is drawn where all runs are there."""
    runs = np.isfinite(curves).sum(0)
    value, low, high = (np.full(len(grid), np.nan) for _ in range(3))
    whole = np.flatnonzero(runs == len(curves))
    width = max(1, MOST_NUMBERS // (statistics.RESAMPLES * len(curves)))
    for start in range(0, len(whole), width):
        part = whole[start : start + width]
        value[part], low[part], high[part] = statistics.curve(curves[:, part])
    for i in np.flatnonzero((runs > 0) & (runs < len(curves))):
        value[i] = statistics.iqm(curves[np.isfinite(curves[:, i]), i])
    return Band(grid, value, low, high, runs, len(curves), (float(np.nanmin(curves)), float(np.nanmax(curves))))


def shares(runs: Sequence[Run], points: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Steps (P,), and stream -> its mean share of the reward over the runs that are there, (P,).

    Empty unless there are two streams at least.
    """
    tags = {tag for run in runs for tag in run.table if tag.startswith("reward/") and tag.endswith("_share")}
    grid = _grid([run.curve(tag)[0] for run in runs for tag in tags], points)
    if len(tags) < 2 or not len(grid):
        return np.zeros(0), {}
    found = {}
    for tag in sorted(tags, key=lambda tag: (tag != "reward/task_share", tag)):
        curves = aligned(runs, grid, tag)
        count = np.isfinite(curves).sum(0)
        mean = np.where(count > 0, np.nansum(curves, 0) / np.maximum(count, 1), np.nan)
        found[tag.removeprefix("reward/").removesuffix("_share")] = mean
    return grid, found


def against(run: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps, learned return and task return of the rows that have both; empty if the two are the same."""
    nothing = np.full(len(run.steps), np.nan)
    learned, task = (run.table.get(tag, nothing) for tag in (LEARNED_RETURN, TASK_RETURN))
    there = np.isfinite(learned) & np.isfinite(task)
    there &= not np.allclose(learned[there], task[there])
    return run.steps[there], learned[there], task[there]


def alarm(run: Run) -> tuple[float, float, float] | None:
    """Share of the rows with the hacking alarm, its first and its last step; None if it was never raised."""
    steps, values = run.curve(ALARM)
    raised = steps[values > 0]
    return (len(raised) / len(steps), float(raised[0]), float(raised[-1])) if len(raised) else None


def thin(count: int, points: int) -> np.ndarray:
    """Indices of at most `points` of `count` rows, evenly spread, first and last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, points)).round().astype(int)) if count else np.zeros(0, int)


def label_steps(steps: float) -> str:
    """A short number of steps: 950, 20k, 1.5M."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if steps >= size:
            return f"{steps / size:.3g}{letter}"
    return f"{steps:.0f}"
