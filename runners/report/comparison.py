"""What was compared: runs sorted into tasks and arms, everything that is missing, repeated or unequal, and curves.

An arm is what is compared: a reward and an agent, and whatever else differs between runs of the same task, save their
seeds. Its baseline is the arm of the same agent that is trained on the task's reward alone.

A curve is interpolated between its rows and never continued beyond its first and last one. Where a run has stopped
early the others continue alone, and the number of runs at each step says so.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runners.cli.command import argument_text
from runners.report import statistics
from runners.report.read import ALARM, LEARNED_RETURN, TASK_RETURN, Run
from runners.run.config import MANAGEMENT, Values

# Keys of a configuration that make no arm of their own.
ARMLESS_KEYS = {"env", "seed", "device", "num_threads"} | MANAGEMENT
# Of the others so many are spelt out in an arm's name, each with so many characters.
MAX_NAMED_KEYS = 3
MAX_NAMED_KEY_CHARACTERS = 48
MAX_SETTING_CHARACTERS = 120
# Share of a training curve, at its end, that is the final score where nothing was evaluated.
SCORED_TAIL = 0.1
# Numbers that one resampling of a band may hold in memory.
MAX_RESAMPLED_NUMBERS = 8_000_000
MAX_LISTED_SEEDS = 12


@dataclass
class Arm:
    """One side of a comparison.

    `cells` are its runs on each task, a seed each, in the order of seeds. `baseline` is the name of
    the arm trained on the task alone; empty for itself, for published runs, or without one.
    """

    name: str
    reward: str
    agent: str
    published: bool = False
    control: bool = False
    cells: dict[str, list[Run]] = field(default_factory=dict)
    baseline: str = ""

    @property
    def runs(self) -> list[Run]:
        """Its runs on every task."""
        return list(itertools.chain(*self.cells.values()))

    @property
    def is_baseline(self) -> bool:
        """Whether it is trained on the task's reward alone."""
        return self.reward == "task" and not self.control


class Comparison:
    """Tasks and arms, in the order in which they are printed.

    Attributes:
        problems: sentences about what is missing, repeated or unequal.
        own: the `runs` that are not published.
        own_arms, published_arms: names of the other arms, and of the published ones.
        baselines: names of the arms that are trained on the task alone.
    """

    def __init__(self, runs: Sequence[Run], problems: Sequence[str] = (), commands: Sequence[str] = ()) -> None:
        self.tasks = sorted({run.task for run in runs}, key=str.casefold)
        self.problems = list(problems)
        for run in runs:
            for note in run.notes:
                self.problems.append(f"{run.name}: {note}")
        self.commands = list(commands)
        self.arms = _make_arms(runs)
        for arm in self.arms:
            for task, members in arm.cells.items():
                arm.cells[task] = _select_run_of_each_seed(members, self.problems)
        self.arms.sort(key=lambda arm: (arm.published, arm.control, arm.reward != "task", arm.name))
        self.runs = []
        self.own = []
        self.own_arms = []
        self.published_arms = []
        self.baselines = []
        for arm in self.arms:
            arm.baseline = _find_baseline(arm, self.arms)
            self.runs += arm.runs
            if arm.published:
                self.published_arms.append(arm.name)
            else:
                self.own += arm.runs
                self.own_arms.append(arm.name)
            if arm.is_baseline:
                self.baselines.append(arm.name)
        self.problems += _list_unfinished(self.own)
        self.problems += _list_missing_seeds(self)

    def cells(self) -> Iterator[tuple[str, Arm, list[Run]]]:
        """(task, arm, runs), task by task, where there are any."""
        for task in self.tasks:
            for arm in self.arms:
                if arm.cells.get(task):
                    yield task, arm, arm.cells[task]


def _make_arms(runs: Sequence[Run]) -> list[Arm]:
    agents = set()
    groups = defaultdict(list)
    for run in runs:
        if not run.published:
            agents.add(run.agent)
        groups[run.label, run.agent, run.reward, run.control, run.published].append(run)
    arms: dict[str, Arm] = {}
    for (label, agent, reward, control, published), members in groups.items():
        keys = _differing_keys(members)
        for run in members:
            name = reward
            if len(agents) > 1:
                name += f", {agent}"
            name += _option_suffix(run, keys)
            if label:
                name = f"{label}: {name}"
            # The name of a published arm is made where its file is read.
            name = published or name
            if control:
                name += " (its control)"
            arm = arms.setdefault(name, Arm(name, reward, agent, bool(published), control))
            arm.cells.setdefault(run.task, []).append(run)
    return list(arms.values())


def _differing_keys(runs: list[Run]) -> list[str]:
    """Keys that make arms and whose values differ between runs of one task."""
    differing = set()
    first_configs: dict[str, Values] = {}
    for run in runs:
        first = first_configs.setdefault(run.task, run.config)
        for key in first.keys() | run.config.keys():
            # Environment options are a part of the task.
            if key in ARMLESS_KEYS or key.startswith("env_options."):
                continue
            if str(run.config.get(key)) != str(first.get(key)):
                differing.add(key)
    return sorted(differing)


def _option_suffix(run: Run, keys: list[str]) -> str:
    """The part of an arm's name about options, as in `, weight=2`."""
    suffix = ""
    for key in keys[:MAX_NAMED_KEYS]:
        option = f"{key.rsplit('.', 1)[-1]}={run.config.get(key)}"
        suffix += f", {option[:MAX_NAMED_KEY_CHARACTERS]}"
    if len(keys) > MAX_NAMED_KEYS:
        other_values = "|".join(map(str, map(run.config.get, keys[MAX_NAMED_KEYS:])))
        # A number that is the same whenever the same values are compared.
        suffix += f", variant {sum(other_values.encode()) % 9973}"
    return suffix


def _select_run_of_each_seed(runs: list[Run], problems: list[str]) -> list[Run]:
    """Of runs with one seed the finished, the longest, the newest; the others are named."""
    selected: dict[Any, Run] = {}
    for run in sorted(runs, key=lambda run: (run.state == "finished", run.last_step, run.name)):
        if run.key in selected:
            other = selected[run.key].name
            problems.append(f"{other} is left out: {run.name} is the same run, and went further or is newer")
        selected[run.key] = run
    return sorted(selected.values(), key=lambda run: (run.seed is None, run.seed or 0, run.name))


def _find_baseline(arm: Arm, arms: list[Arm]) -> str:
    """The most similar arm on the task alone, with the same agent and a common task; "" for none."""
    if arm.published or arm.is_baseline:
        return ""
    config = arm.runs[0].config
    baseline = ""
    highest = -1
    for other in arms:
        if not other.is_baseline or other.agent != arm.agent or not set(other.cells) & set(arm.cells):
            continue
        first = other.runs[0]
        similarity = sum(first.config.get(key) == value for key, value in config.items())
        # A common label outweighs any number of settings.
        similarity += 99 * (first.label == arm.runs[0].label)
        if similarity > highest:
            baseline = other.name
            highest = similarity
    return baseline


def _list_unfinished(runs: Iterable[Run]) -> list[str]:
    """One sentence about each run that did not finish, or has no score."""
    endings = {"failed": "failed", "stopped": "was stopped", "running": "is running, or was killed"}
    lines = []
    for run in runs:
        if run.state == "finished":
            if np.isnan(run.result("task_return")) and run.config.get("eval_episodes") != 0:
                lines.append(f"{run.name} finished without a final evaluation")
            continue
        ending = endings.get(run.state, "has no record of how it ended")
        line = f"{run.name} {ending} at step {run.last_step:,.0f}"
        if np.isfinite(run.total):
            line += f" of {run.total:,.0f}"
        if run.status.get("exit_code"):
            line += f", exit code {run.status['exit_code']}"
        if run.status.get("error"):
            error = " ".join(str(run.status["error"]).split())
            line += f": {error[:300]}"
        lines.append(line)
    return lines


def _list_missing_seeds(data: Comparison) -> list[str]:
    """One sentence about each cell that has fewer seeds than another of its task, or none."""
    lines = []
    for task in data.tasks:
        seeds = {}
        for arm in data.arms:
            if not arm.published and not arm.control:
                seeds[arm.name] = {run.seed for run in arm.cells.get(task, [])}
        all_seeds = set().union(*seeds.values())
        for name, own_seeds in seeds.items():
            missing = sorted(seed for seed in all_seeds - own_seeds if seed is not None)
            if missing and own_seeds:
                names = ", ".join(map(str, missing[:MAX_LISTED_SEEDS]))
                if len(missing) > MAX_LISTED_SEEDS:
                    names += ", ..."
                lines.append(f"{task}, {name}: no run with seed {names}, which other arms have")
            elif all_seeds and not own_seeds:
                lines.append(f"{task}, {name}: no run at all")
    return lines


def score(run: Run, by_evaluation: bool) -> float:
    """The task return that a run is judged by; NaN if it has none, as when it did not finish."""
    if by_evaluation and not run.published:
        return run.result("task_return")
    steps, values = run.curve(TASK_RETURN)
    if not len(steps) or not (run.published or run.state == "finished"):
        return float("nan")
    # A run that failed or was stopped has no final score, and a published one always has.
    return float(values[steps >= (1 - SCORED_TAIL) * steps[-1]].mean())


def configurations(data: Comparison) -> dict[str, Values]:
    """Settings, sorted into three groups.

    "shared" by all runs: key -> value. "differing" between runs, and "own": of some arms only, with
    one value: key -> arm -> value. Several values of an arm are joined by " | ".
    """
    groups: dict[str, Values] = {"shared": {}, "differing": {}, "own": {}}
    keys: set[str] = set()
    for run in data.own:
        keys.update(run.config)
    for key in sorted(keys - ARMLESS_KEYS):
        values = {}
        for arm in data.arms:
            texts = []
            for run in arm.runs:
                if key in run.config:
                    texts.append(argument_text(run.config[key])[:MAX_SETTING_CHARACTERS])
            if texts:
                values[arm.name] = " | ".join(dict.fromkeys(texts))
        texts = list(set(values.values()))
        if len(texts) > 1:
            groups["differing"][key] = values
        elif len(values) < len(data.own_arms):
            groups["own"][key] = values
        elif " | " in texts[0]:
            groups["differing"][key] = values
        else:
            groups["shared"][key] = texts[0]
    return groups


@dataclass
class Band:
    """IQM of a cell's curves over steps, with its 95 % band; arrays (P,), NaN where there is nothing.

    `runs` is how many runs have a value at each step, `of` how many runs there are, `span` the
    least and the largest value of any run.
    """

    steps: np.ndarray
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    runs: np.ndarray
    of: int
    span: tuple[float, float]

    @property
    def is_complete(self) -> np.ndarray:
        """Where no run is missing."""
        return (self.runs == self.of) & (self.of > 0)


# (task, arm) -> its band.
Bands = dict[tuple[str, str], Band]


def bands(data: Comparison, points: int) -> Bands:
    """(task, arm) -> its band; all arms of a task on the same grid of so many points."""
    by_cell = {}
    for task in data.tasks:
        steps = [run.curve(TASK_RETURN)[0] for run in data.runs if run.task == task]
        grid = step_grid(steps, points)
        for arm in data.arms:
            curves = align_curves(arm.cells.get(task, []), grid, TASK_RETURN)
            if len(curves):
                by_cell[task, arm.name] = band(curves, grid)
    return by_cell


def step_grid(steps: Iterable[np.ndarray], points: int) -> np.ndarray:
    """From the first to the last of all steps; empty if there are none."""
    all_steps = np.concatenate([np.zeros(0), *steps])
    if not len(all_steps):
        return all_steps
    return np.linspace(all_steps.min(), all_steps.max(), points)


def align_curves(runs: Iterable[Run], grid: np.ndarray, tag: str) -> np.ndarray:
    """Curves on a grid, (R, P), of the runs that have one.

    They are NaN before a run's first row and after its last.
    """
    curves = []
    for run in runs:
        steps, values = run.curve(tag)
        if len(steps):
            curves.append(np.interp(grid, steps, values, left=np.nan, right=np.nan))
    return np.array(curves)


def band(curves: np.ndarray, grid: np.ndarray) -> Band:
    """IQM of (R, P) curves with NaN in them; the band is drawn where all runs are there."""
    count = len(curves)
    finite = np.isfinite(curves)
    runs = finite.sum(0)
    value, low, high = np.full((3, len(grid)), np.nan)
    complete = np.flatnonzero(runs == count)
    # A few points at a time, as their resamples are held in memory together.
    width = max(1, MAX_RESAMPLED_NUMBERS // (statistics.RESAMPLES * count))
    for start in range(0, len(complete), width):
        part = complete[start : start + width]
        value[part], low[part], high[part] = statistics.aggregate([curves[:, part]])
    for point in np.flatnonzero((runs > 0) & (runs < count)):
        value[point] = statistics.iqm(curves[finite[:, point], point])
    span = (float(np.nanmin(curves)), float(np.nanmax(curves)))
    return Band(grid, value, low, high, runs, count, span)


def learned_and_task_returns(run: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps, learned return and task return of rows with both; empty if the two are the same."""
    unlogged = np.full(len(run.steps), np.nan)
    learned = run.table.get(LEARNED_RETURN, unlogged)
    task = run.table.get(TASK_RETURN, unlogged)
    rows = np.isfinite(learned) & np.isfinite(task)
    if np.allclose(learned[rows], task[rows]):
        rows[:] = False
    return run.steps[rows], learned[rows], task[rows]


def alarm(run: Run) -> tuple[float, float, float] | None:
    """Share of the rows with the hacking alarm, its first and its last step; None for no alarm."""
    steps, values = run.curve(ALARM)
    alarmed = steps[values > 0]
    if not len(alarmed):
        return None
    return len(alarmed) / len(steps), float(alarmed[0]), float(alarmed[-1])
