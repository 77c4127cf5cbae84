"""What was compared: runs sorted into tasks and arms, everything that is missing, repeated or unequal, and curves.

An arm is what is compared: a reward and an agent, and whatever else differs between runs of the same task, save their
seeds. Its baseline is the arm of the same agent that is trained on the task's reward alone.

A curve is interpolated between its rows and never continued beyond its first and last one. Where a run has stopped
early the others continue alone, and the number of runs at each step says so.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runners.cli.command import written
from runners.report import statistics
from runners.report.read import ALARM, LEARNED_RETURN, TASK_RETURN, Run
from runners.run.config import MANAGEMENT

APART = {"env", "seed", "device", "num_threads"} | MANAGEMENT  # keys that make no arm of their own
MOST_KEYS = 3  # that an arm's name spells out
TAIL = 0.1  # of a training curve, which stands for the final score where nothing was evaluated
MOST_NUMBERS = 8_000_000  # that one resampling of a band may hold


@dataclass
class Arm:
    """One side of a comparison."""

    name: str
    reward: str
    agent: str
    published: bool = False
    control: bool = False
    cells: dict[str, list[Run]] = field(default_factory=dict)  # task -> its runs, a seed each, in the order of seeds
    baseline: str = ""  # the arm trained on the task alone; empty for itself, for published runs, or without one

    @property
    def runs(self) -> list[Run]:
        """Its runs on every task."""
        return [run for runs in self.cells.values() for run in runs]


class Comparison:
    """Tasks and arms, in the order in which they are printed; `problems` are sentences about what is missing.

    `own` are the `runs` that are not published, `baselines` the names of arms that are trained on the task alone.
    """

    def __init__(self, runs: Sequence[Run], problems: Sequence[str] = (), commands: Sequence[str] = ()) -> None:
        self.tasks = sorted({run.task for run in runs}, key=str.casefold)
        self.problems = [*problems, *(f"{run.name}: {note}" for run in runs for note in run.notes)]
        self.commands = list(commands)
        arms = _arms(runs)
        for arm in arms:
            arm.cells = {task: _one_a_seed(members, self.problems) for task, members in arm.cells.items()}
        self.arms = sorted(arms, key=lambda arm: (arm.published, arm.control, arm.reward != "task", arm.name))
        for arm in self.arms:
            arm.baseline = _baseline(arm, self.arms)
        self.runs = [run for arm in self.arms for run in arm.runs]
        self.own = [run for run in self.runs if not run.published]
        self.baselines = [arm.name for arm in self.arms if arm.reward == "task" and not arm.control]
        self.problems += _unfinished(self) + _unequal(self)

    def arm(self, name: str) -> Arm:
        """The arm of that name; StopIteration if there is none."""
        return next(arm for arm in self.arms if arm.name == name)

    def cells(self) -> list[tuple[str, Arm, list[Run]]]:
        """(task, arm, runs), task by task, where there are any."""
        return [(task, arm, arm.cells[task]) for task in self.tasks for arm in self.arms if arm.cells.get(task)]


def _arms(runs: Sequence[Run]) -> list[Arm]:
    several = len({run.agent for run in runs if not run.published}) > 1
    groups: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.label, run.agent, run.reward, run.control, run.published].append(run)
    arms: dict[str, Arm] = {}
    for (label, agent, reward, control, published), members in groups.items():
        keys = _differing(members)
        for run in members:
            name = published or reward + (f", {agent}" if several else "") + _options(run, keys)
            name = f"{label}: {name}" if label and not published else name
            name = f"{name} (its control)" if control else name
            arm = arms.setdefault(name, Arm(name, reward, agent, bool(published), control))
            arm.cells.setdefault(run.task, []).append(run)
    return list(arms.values())


def _differing(runs: list[Run]) -> list[str]:
    """Keys whose values differ between runs of one task."""
    keys: set[str] = set()
    for task in {run.task for run in runs}:
        configs = [run.config for run in runs if run.task == task]
        keys |= {key for key in set().union(*configs) if len({str(config.get(key)) for config in configs}) > 1}
    return sorted(key for key in keys if key not in APART and not key.startswith("env_options."))


def _options(run: Run, keys: list[str]) -> str:
    """The part of an arm's name about options, as in `, weight=2`."""
    parts = [f"{key.rsplit('.', 1)[-1]}={run.config.get(key)}"[:48] for key in keys[:MOST_KEYS]]
    if len(keys) > MOST_KEYS:
        rest = "|".join(str(run.config.get(key)) for key in keys[MOST_KEYS:])
        parts.append(f"variant {sum(rest.encode()) % 9973}")
    return "".join(f", {part}" for part in parts)


def _one_a_seed(runs: list[Run], problems: list[str]) -> list[Run]:
    """Of runs with one seed the finished, the longest, the newest; the others are named."""
    best: dict[Any, Run] = {}
    for run in sorted(runs, key=lambda run: (run.state == "finished", run.last, run.name)):
        if run.key in best:
            other = best[run.key].name
            problems.append(f"{other} is left out: {run.name} is the same run, and went further or is newer")
        best[run.key] = run
    return sorted(best.values(), key=lambda run: (run.seed is None, run.seed or 0, run.name))


def _baseline(arm: Arm, arms: list[Arm]) -> str:
    if arm.published or (arm.reward == "task" and not arm.control):
        return ""

    def alike(other: Arm) -> int:
        mine, theirs = arm.runs[0], other.runs[0]
        equal = sum(theirs.config.get(key) == value for key, value in mine.config.items())
        return equal + 99 * (mine.label == theirs.label)

    rivals = [other for other in arms if other.reward == "task" and other.agent == arm.agent and not other.control]
    shared = [other for other in rivals if set(other.cells) & set(arm.cells)]
    return max(shared, key=alike).name if shared else ""


def _unfinished(data: Comparison) -> list[str]:
    """One sentence about each run that did not finish, or has no score."""
    endings = {"failed": "failed", "stopped": "was stopped", "running": "is running, or was killed"}
    lines = []
    for run in data.own:
        if run.state == "finished":
            if not np.isfinite(run.result("task_return")) and run.config.get("eval_episodes") != 0:
                lines.append(f"{run.name} finished without a final evaluation")
            continue
        code, error = map(run.status.get, ("exit_code", "error"))
        lines.append(
            f"{run.name} {endings.get(run.state, 'has no record of how it ended')} at step {run.last:,.0f}"
            + (f" of {run.total:,.0f}" if np.isfinite(run.total) else "")
            + (f", exit code {code}" if code else "")
            + (f": {' '.join(str(error).split())[:300]}" if error else "")
        )
    return lines


def _unequal(data: Comparison) -> list[str]:
    """One sentence about each cell that has fewer seeds than another of its task, or none."""
    lines = []
    own = [arm for arm in data.arms if not arm.published and not arm.control]
    for task in data.tasks:
        seeds = {arm.name: {run.seed for run in arm.cells.get(task, [])} for arm in own}
        every = set().union(*seeds.values()) if seeds else set()
        for name, there in seeds.items():
            lacking = sorted(seed for seed in every - there if seed is not None)
            if lacking and there:
                listed = ", ".join(map(str, lacking[:12])) + (", ..." if len(lacking) > 12 else "")
                lines.append(f"{task}, {name}: no run with seed {listed}, which other arms have")
            elif every and not there:
                lines.append(f"{task}, {name}: no run at all")
    return lines


def score(run: Run, by_evaluation: bool) -> float:
    """The task return that a run is judged by; nan if it has none, as when it did not finish."""
    if by_evaluation and not run.published:
        return run.result("task_return")
    steps, values = run.curve(TASK_RETURN)
    whole = run.published or run.state == "finished"
    return float(values[steps >= (1 - TAIL) * steps[-1]].mean()) if len(steps) and whole else float("nan")


def configurations(data: Comparison) -> dict[str, dict[str, Any]]:
    """What all runs share (key -> value), what differs, and what only some arms have (key -> arm -> value)."""
    arms = [arm for arm in data.arms if not arm.published]
    found: dict[str, dict[str, Any]] = {"shared": {}, "differing": {}, "own": {}}
    for key in sorted({key for arm in arms for run in arm.runs for key in run.config} - APART):
        each = {arm.name: [written(run.config[key])[:120] for run in arm.runs if key in run.config] for arm in arms}
        values = {name: " | ".join(dict.fromkeys(texts)) for name, texts in each.items() if texts}
        first, alike = next(iter(values.values())), len(set(values.values())) == 1
        if len(values) < len(arms) and alike:
            found["own"][key] = values
        elif alike and " | " not in first:
            found["shared"][key] = first
        else:
            found["differing"][key] = values
    return found


@dataclass
class Band:
    """IQM of a cell's curves over steps, with its 95 % band; arrays (P,), nan where there is nothing."""

    steps: np.ndarray
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    runs: np.ndarray  # how many have a value at each step
    of: int  # how many there are
    span: tuple[float, float]  # the least and the largest value of any run

    @property
    def whole(self) -> np.ndarray:
        """Where no run is missing."""
        return (self.runs == self.of) & (self.of > 0)


def bands(data: Comparison, points: int, tag: str = TASK_RETURN) -> dict[tuple[str, str], Band]:
    """(task, arm) -> its band; all arms of a task on the same grid of so many points."""
    found = {}
    for task in data.tasks:
        grid = step_grid([run.curve(tag)[0] for run in data.runs if run.task == task], points)
        for arm in data.arms:
            curves = aligned(arm.cells.get(task, []), grid, tag)
            if len(curves):
                found[task, arm.name] = band(curves, grid)
    return found


def step_grid(steps: Sequence[np.ndarray], points: int) -> np.ndarray:
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
