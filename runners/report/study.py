"""What was compared: runs sorted into tasks and arms, and everything that is missing, repeated or unequal.

An arm is what is compared: a reward and an agent, and whatever else differs between runs of the same task, save their
seeds. Its twin is the arm of the same agent that is paid by the task alone.
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
        twin: name of the arm that is paid by the task alone; empty for itself, for others' runs, or without one.
    """

    name: str
    reward: str
    agent: str
    published: bool = False
    control: bool = False
    cells: dict[str, list[Run]] = field(default_factory=dict)
    twin: str = ""

    @property
    def runs(self) -> list[Run]:
        """All of them."""
        return [run for runs in self.cells.values() for run in runs]


@dataclass
class Study:
    """Tasks and arms, in the order in which they are shown."""

    tasks: list[str]
    arms: list[Arm]
    problems: list[str]  # one sentence each
    commands: list[str] = field(default_factory=list)  # of the sweeps

    @property
    def runs(self) -> list[Run]:
        """All runs that are compared."""
        return [run for arm in self.arms for run in arm.runs]

    @property
    def own(self) -> list[Run]:
        """Without the published ones."""
        return [run for run in self.runs if not run.published]

    def arm(self, name: str) -> Arm:
        """The arm of a name."""
        return next(arm for arm in self.arms if arm.name == name)

    def cells(self) -> list[tuple[str, Arm, list[Run]]]:
        """(task, arm, runs), task by task, where there are any."""
        return [(task, arm, arm.cells[task]) for task in self.tasks for arm in self.arms if arm.cells.get(task)]


def study(runs: Sequence[Run], problems: Sequence[str] = ()) -> Study:
    """Sort runs into arms.

    Args:
        runs: as they were found, published ones among them.
        problems: what is known to be missing already.
    """
    found = list(problems)
    found += [f"{run.name}: {note}" for run in runs for note in run.notes]
    several = len({run.agent for run in runs if not run.published}) > 1
    groups: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.label, run.agent, run.reward, run.control, run.published].append(run)
    arms: dict[str, Arm] = {}
    for (label, agent, reward, control, published), members in groups.items():
        keys = _differing(members)
        for run in members:
            name = published or reward + (f", {agent}" if several else "") + _spelt(run, keys)
            name = f"{label}: {name}" if label and not published else name
            name = f"{name} (its control)" if control else name
            arm = arms.setdefault(name, Arm(name, reward, agent, bool(published), control))
            arm.cells.setdefault(run.task, []).append(run)
    for arm in arms.values():
        for task, members in arm.cells.items():
            arm.cells[task] = _one_a_seed(members, found)
    ordered = sorted(arms.values(), key=lambda arm: (arm.published, arm.control, arm.reward != "task", arm.name))
    for arm in ordered:
        arm.twin = _twin(arm, ordered)
    made = Study(sorted({run.task for run in runs}, key=str.casefold), ordered, found)
    made.problems += _unfinished(made) + _unequal(made)
    return made


def _differing(runs: list[Run]) -> list[str]:
    """Keys whose values differ between runs of one task."""
    keys: set[str] = set()
    by_task: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_task[run.task].append(run)
    for members in by_task.values():
        every = {key for run in members for key in run.config}
        keys |= {key for key in every if len({str(run.config.get(key)) for run in members}) > 1}
    return sorted(key for key in keys if key not in APART and not key.startswith("env_options."))


def _spelt(run: Run, keys: list[str]) -> str:
    """What an arm's name says about options, as in `, weight=2`."""
    if not keys:
        return ""
    words = [f"{key.rsplit('.', 1)[-1]}={run.config.get(key)}"[:48] for key in keys[:MOST_KEYS]]
    if len(keys) > MOST_KEYS:
        rest = "|".join(str(run.config.get(key)) for key in keys[MOST_KEYS:])
        words.append(f"variant {sum(rest.encode()) % 9973}")
    return ", " + ", ".join(words)


def _one_a_seed(runs: list[Run], problems: list[str]) -> list[Run]:
    """Of runs with one seed the finished, the longest, the newest; the others are named."""
    best: dict[Any, Run] = {}
    for run in sorted(runs, key=_worth):
        key = run.name if run.seed is None else run.seed
        if key in best:
            problems.append(f"{best[key].name} is left out: {run.name} is the same run, and went further or is newer")
        best[key] = run
    return sorted(best.values(), key=lambda run: (run.seed is None, run.seed or 0, run.name))


def _worth(run: Run) -> tuple[bool, float, str]:
    return run.state == "finished", float(run.steps[-1]) if len(run.steps) else 0.0, run.name


def _twin(arm: Arm, arms: list[Arm]) -> str:
    if arm.published or (arm.reward == "task" and not arm.control):
        return ""
    rivals = [other for other in arms if other.reward == "task" and other.agent == arm.agent and not other.published]
    shared = [other for other in rivals if set(other.cells) & set(arm.cells) and not other.control]

    def alike(other: Arm) -> int:
        mine, theirs = arm.runs[0], other.runs[0]
        return sum(theirs.config.get(key) == value for key, value in mine.config.items()) + 99 * (
            mine.label == theirs.label
        )

    return max(shared, key=alike).name if shared else ""


def _unfinished(made: Study) -> list[str]:
    """One sentence about each run that did not finish, or has no score."""
    said = []
    for run in made.own:
        if run.state == "finished":
            if not np.isfinite(run.says("task_return")) and run.config.get("eval_episodes") != 0:
                said.append(f"{run.name} finished without a final evaluation")
            continue
        step = int(run.steps[-1]) if len(run.steps) else 0
        why = run.status.get("error")
        code = run.status.get("exit_code")
        ending = {"failed": "failed", "stopped": "was stopped", "running": "is running, or was killed"}
        said.append(
            f"{run.name} {ending.get(run.state, 'says nothing of how it ended')} at step {step:,}"
            + (f" of {run.total:,.0f}" if np.isfinite(run.total) else "")
            + (f", exit code {code}" if code else "")
            + (f": {' '.join(str(why).split())[:300]}" if why else "")
        )
    return said


def _unequal(made: Study) -> list[str]:
    """One sentence about each cell that has fewer seeds than another of its task, or none."""
    said = []
    own = [arm for arm in made.arms if not arm.published]
    for task in made.tasks:
        seeds = {arm.name: {run.seed for run in arm.cells.get(task, [])} for arm in own if not arm.control}
        every = set().union(*seeds.values()) if seeds else set()
        for name, there in seeds.items():
            lacking = sorted(seed for seed in every - there if seed is not None)
            if lacking and there:
                words = ", ".join(map(str, lacking[:12])) + (", ..." if len(lacking) > 12 else "")
                said.append(f"{task}, {name}: no run with seed {words}, which other arms have")
            elif every and not there:
                said.append(f"{task}, {name}: no run at all")
    return said


def evaluated(made: Study, task: str) -> bool:
    """Whether scores of a task are final evaluations; else they are the last tenth of the training curves."""
    return any(np.isfinite(run.says("task_return")) for run in made.own if run.task == task)


def score(run: Run, by_evaluation: bool) -> float:
    """The task return that a run is judged by; nan if it has none, as when it did not finish."""
    if (by_evaluation and not run.published) or (run.published and run.scores):
        return run.says("task_return")
    steps, values = run.curve(TASK_RETURN)
    whole = run.published or run.state == "finished"
    return float(values[steps >= (1 - TAIL) * steps[-1]].mean()) if len(steps) and whole else float("nan")


@dataclass
class Configurations:
    """What all runs share, what arms differ in, and what only some have: key -> value, or arm -> value."""

    shared: dict[str, str]
    differing: dict[str, dict[str, str]]
    own: dict[str, dict[str, str]]


def configurations(made: Study) -> Configurations:
    """The keys of all configurations, sorted by who agrees about them."""
    arms = [arm for arm in made.arms if not arm.published]
    keys = Counter(key for arm in arms for key in {key for run in arm.runs for key in run.config})
    sorted_out = Configurations({}, {}, {})
    for key in sorted(keys.keys() - APART):
        values = {arm.name: _values(arm, key) for arm in arms if any(key in run.config for run in arm.runs)}
        alike = len(set(values.values())) == 1 and " | " not in next(iter(values.values()))
        if len(values) < len(arms) and len(set(values.values())) == 1:
            sorted_out.own[key] = values
        elif alike:
            sorted_out.shared[key] = next(iter(values.values()))
        else:
            sorted_out.differing[key] = values
    return sorted_out


def _values(arm: Arm, key: str) -> str:
    found = dict.fromkeys(_short(run.config[key]) for run in arm.runs if key in run.config)
    return " | ".join(found)


def _short(value: Any) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 120 else text[:117] + "..."
