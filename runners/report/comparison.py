"""What was compared: runs sorted into tasks and arms, and everything that is missing, repeated or unequal.

An arm is what is compared: a reward and an agent, and whatever else differs between runs of the same task, save their
seeds. Its baseline is the arm of the same agent that is trained on the task's reward alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runners.report.read import TASK_RETURN, Run
from runners.run.config import _MANAGEMENT

APART = {"env", "seed", "device", "num_threads"} | _MANAGEMENT  # keys that make no arm of their own
MOST_KEYS = 3  # that an arm's name spells out
TAIL = 0.1  # of a training curve, which stands for the final score where nothing was evaluated


@dataclass
class Arm:
    """One side of a comparison.

    Attributes:
        cells: task -> its runs, one for each seed, in the order of seeds.
        baseline: name of the arm trained on the task alone; empty for itself, for published runs, or without one.
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
        return [run for runs in self.cells.values() for run in runs]


class Comparison:
    """Tasks and arms, in the order in which they are printed; `problems` are sentences about what is missing."""

    def __init__(self, runs: Sequence[Run], problems: Sequence[str] = (), commands: Sequence[str] = ()) -> None:
        self.tasks = sorted({run.task for run in runs}, key=str.casefold)
        self.problems = [*problems, *(f"{run.name}: {note}" for run in runs for note in run.notes)]
        self.commands = list(commands)
        arms = _arms(runs)
        for arm in arms:
            for task, members in arm.cells.items():
                arm.cells[task] = _one_a_seed(members, self.problems)
        self.arms = sorted(arms, key=lambda arm: (arm.published, arm.control, arm.reward != "task", arm.name))
        for arm in self.arms:
            arm.baseline = _baseline(arm, self.arms)
        self.problems += _unfinished(self) + _unequal(self)

    @property
    def runs(self) -> list[Run]:
        """All runs that are compared."""
        return [run for arm in self.arms for run in arm.runs]

    @property
    def own(self) -> list[Run]:
        """Without the published ones."""
        return [run for run in self.runs if not run.published]

    @property
    def baselines(self) -> list[str]:
        """Names of the arms that are trained on the task alone."""
        return [arm.name for arm in self.arms if arm.reward == "task" and not arm.control]

    def arm(self, name: str) -> Arm:
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
        members = [run for run in runs if run.task == task]
        every = {key for run in members for key in run.config}
        keys |= {key for key in every if len({str(run.config.get(key)) for run in members}) > 1}
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


def evaluated(data: Comparison, task: str) -> bool:
    """Whether scores of a task are final evaluations; else they are the last tenth of the training curves."""
    return any(np.isfinite(run.result("task_return")) for run in data.own if run.task == task)


def score(run: Run, by_evaluation: bool) -> float:
    """The task return that a run is judged by; nan if it has none, as when it did not finish."""
    if (by_evaluation and not run.published) or (run.published and run.scores):
        return run.result("task_return")
    steps, values = run.curve(TASK_RETURN)
    whole = run.published or run.state == "finished"
    return float(values[steps >= (1 - TAIL) * steps[-1]].mean()) if len(steps) and whole else float("nan")


@dataclass
class Configurations:
    """What all runs share, what arms differ in, and what only some have: key -> value, or arm -> value."""

    shared: dict[str, str]
    differing: dict[str, dict[str, str]]
    own: dict[str, dict[str, str]]


def configurations(data: Comparison) -> Configurations:
    """The keys of all configurations, sorted by which arms agree about them."""
    arms = [arm for arm in data.arms if not arm.published]
    keys = Counter(key for arm in arms for key in {key for run in arm.runs for key in run.config})
    found = Configurations({}, {}, {})
    for key in sorted(keys.keys() - APART):
        values = {arm.name: _values(arm, key) for arm in arms if any(key in run.config for run in arm.runs)}
        first, alike = next(iter(values.values())), len(set(values.values())) == 1
        if len(values) < len(arms) and alike:
            found.own[key] = values
        elif alike and " | " not in first:
            found.shared[key] = first
        else:
            found.differing[key] = values
    return found


def _values(arm: Arm, key: str) -> str:
    def short(value: Any) -> str:
        text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        return text if len(text) <= 120 else text[:117] + "..."

    return " | ".join(dict.fromkeys(short(run.config[key]) for run in arm.runs if key in run.config))
