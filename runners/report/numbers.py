"""The numbers of the report: final scores, their aggregate over tasks, differences to the twin, sample efficiency.

All of them are `Row`s, which the page shows and report.csv holds; intervals are those of `runners.report.statistics`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runners.report import statistics
from runners.report.curves import against, alarm
from runners.report.read import TASK_RETURN
from runners.report.study import Arm, Study, evaluated, score

CLEAR = 0.1  # of the best arm's lead over a random policy, which a twin must have to be the unit of a task
ALL = "all tasks"


@dataclass
class Row:
    """One number.

    Attributes:
        figure: final, success, random, normalised, improvement, difference, normalised_difference, profile, steps_to,
            rank_correlation or alarms.
        against: name of the other arm, or the threshold.
        runs: that it was computed from.
        of: that there are.
    """

    figure: str
    task: str
    arm: str
    value: float
    low: float = float("nan")
    high: float = float("nan")
    runs: int = 0
    of: int = 0
    against: str = ""


@dataclass
class Unit:
    """A task's scale: a random policy scores 0, the reference 1.

    Attributes:
        who: the reference, as a person would say it.
        why_not: why the task has no scale; empty if it has one.
    """

    random: float = float("nan")
    one: float = float("nan")
    who: str = ""
    why_not: str = ""

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        return (scores - self.random) / (self.one - self.random)


@dataclass
class Numbers:
    """All rows, and what is needed to read them."""

    rows: list[Row] = field(default_factory=list)
    units: dict[str, Unit] = field(default_factory=dict)
    evaluated: dict[str, bool] = field(default_factory=dict)
    scores: dict[tuple[str, str], dict[Any, float]] = field(default_factory=dict)  # (task, arm) -> seed -> score
    limits: dict[str, list[tuple[str, float]]] = field(default_factory=dict)  # task -> thresholds, in words and numbers
    left_out: list[str] = field(default_factory=list)

    def find(self, figure: str, **wanted: str) -> list[Row]:
        """Rows of a figure with the wanted values, as in `task="CartPole-v1"`."""
        chosen = [row for row in self.rows if row.figure == figure]
        return [row for row in chosen if all(getattr(row, key) == value for key, value in wanted.items())]

    def one(self, figure: str, **wanted: str) -> Row | None:
        """The only row, or None."""
        return next(iter(self.find(figure, **wanted)), None)


def numbers(made: Study, reference: str = "", threshold: dict[str, float] | None = None) -> Numbers:
    """Everything that is computed.

    Args:
        made: the study.
        reference: name of the arm that scores 1 on every task; "" takes the twin, or the best arm.
        threshold: task -> task return that is to be reached; the key "" means every task.
    """
    found = Numbers()
    _finals(made, found)
    for task in made.tasks:
        found.units[task] = _unit(made, found, task, reference)
    _aggregates(made, found)
    _pairs(made, found)
    _thresholds(made, found, threshold or {})
    _learned(made, found)
    return found


def _finals(made: Study, found: Numbers) -> None:
    for task in made.tasks:
        found.evaluated[task] = evaluated(made, task)
        chance = [run.says("task_return", "random") for arm in made.arms for run in arm.cells.get(task, [])]
        chance = [value for value in chance if np.isfinite(value)]
        found.rows.append(Row("random", task, "random policy", _mean(chance), runs=len(chance)))
        for arm in made.arms:
            runs = arm.cells.get(task, [])
            scores = {run.name if run.seed is None else run.seed: score(run, found.evaluated[task]) for run in runs}
            scores = {seed: value for seed, value in scores.items() if np.isfinite(value)}
            found.scores[task, arm.name] = scores
            if not runs:
                continue
            estimate = _estimate([np.array(list(scores.values()))])
            found.rows.append(Row("final", task, arm.name, *estimate, len(scores), len(runs)))
            successes = [run.says("success") for run in runs]
            successes = [value for value in successes if np.isfinite(value)]
            if successes:
                found.rows.append(Row("success", task, arm.name, _mean(successes), runs=len(successes), of=len(runs)))


def _unit(made: Study, found: Numbers, task: str, reference: str) -> Unit:
    chance = next(row.value for row in found.find("random", task=task))
    means = {
        arm.name: float(np.mean(list(scores.values())))
        for arm in made.arms
        if not arm.published and (scores := found.scores[task, arm.name])
    }
    if not np.isfinite(chance):
        return Unit(why_not="nobody measured a random policy there")
    if not means:
        return Unit(why_not="no run has a score there")
    if reference:
        if reference not in means or means[reference] <= chance:
            return Unit(why_not=f"{reference} has no score above a random policy's there")
        return Unit(chance, means[reference], f"the mean of {reference}")
    best = max(means, key=lambda name: means[name])
    if means[best] <= chance:
        return Unit(why_not="no arm is better than a random policy there")
    twins = [arm.name for arm in made.arms if arm.reward == "task" and not arm.control and arm.name in means]
    if len(twins) == 1 and means[twins[0]] - chance > CLEAR * (means[best] - chance):
        return Unit(chance, means[twins[0]], f"the mean of {twins[0]}")
    return Unit(chance, means[best], f"the mean of the best arm, {best}")


def _aggregates(made: Study, found: Numbers) -> None:
    """Normalised aggregates, and how likely an arm beats its twin; over tasks that have a scale."""
    scaled = [task for task in made.tasks if not found.units[task].why_not]
    found.left_out += [f"{task}: {unit.why_not}" for task, unit in found.units.items() if unit.why_not]
    for arm in made.arms:
        if arm.published or not scaled:
            continue
        lacking = [task for task in scaled if not found.scores[task, arm.name]]
        if lacking:
            found.left_out.append(f"{arm.name}: it has no score on {', '.join(lacking)}")
            continue
        strata = [found.units[task](_array(found, task, arm)) for task in scaled]
        count = sum(map(len, strata))
        found.rows.append(Row("normalised", ALL, arm.name, *_estimate(strata), count, len(arm.runs)))
        if arm.twin:
            twin = made.arm(arm.twin)
            shared = [task for task in made.tasks if found.scores[task, arm.name] and found.scores[task, twin.name]]
            x, y = ([_array(found, task, one) for task in shared] for one in (arm, twin))
            if shared:
                estimate = _safe(lambda x=x, y=y: statistics.probability_of_improvement(x, y))
                found.rows.append(Row("improvement", ALL, arm.name, *estimate, sum(map(len, x)), against=twin.name))


def profiles(made: Study, found: Numbers, points: int = 101) -> tuple[np.ndarray, dict[str, statistics.Estimate]]:
    """Normalised scores (K,), and arm -> share of its runs above each; of the arms that have an aggregate."""
    scaled = [task for task in made.tasks if not found.units[task].why_not]
    strata = {
        row.arm: [found.units[task](np.array(list(found.scores[task, row.arm].values()))) for task in scaled]
        for row in found.find("normalised")
    }
    if not strata:
        return np.zeros(0), {}
    every = np.concatenate([part for parts in strata.values() for part in parts])
    low, high = min(0.0, float(every.min())), max(1.0, float(every.max()))
    thresholds = np.linspace(max(low, -1.0), min(high, 2.0), points)
    return thresholds, {name: statistics.profile(parts, thresholds) for name, parts in strata.items()}


def _pairs(made: Study, found: Numbers) -> None:
    """Differences to the twin with the same seeds: on each task, and normalised over all of them."""
    for arm in made.arms:
        if not arm.twin:
            continue
        scaled: list[np.ndarray] = []
        for task in made.tasks:
            mine, theirs = found.scores[task, arm.name], found.scores[task, arm.twin]
            seeds = [seed for seed in mine if seed in theirs]
            if not seeds:
                continue
            x, y = (np.array([scores[seed] for seed in seeds]) for scores in (mine, theirs))
            of = len(set(mine) | set(theirs))
            found.rows.append(Row("difference", task, arm.name, *_pair([x], [y]), len(seeds), of, arm.twin))
            unit = found.units[task]
            if not unit.why_not:
                estimate = _pair([unit(x)], [unit(y)])
                found.rows.append(Row("normalised_difference", task, arm.name, *estimate, len(seeds), of, arm.twin))
                scaled.append(unit(x) - unit(y))
        if scaled:
            count = sum(map(len, scaled))
            estimate = _estimate(scaled)
            found.rows.append(Row("normalised_difference", ALL, arm.name, *estimate, count, count, arm.twin))


def _thresholds(made: Study, found: Numbers, given: dict[str, float]) -> None:
    """Steps to a task return: the median over runs, a run that never gets there counted as one that takes for ever."""
    for task in made.tasks:
        limit = given.get(task, given.get(""))
        found.limits[task] = _defaults(made, found, task) if limit is None else [("as given", limit)]
        for words, limit in found.limits[task]:
            for arm in made.arms:
                curves = [run.curve(TASK_RETURN) for run in arm.cells.get(task, [])]
                curves = [curve for curve in curves if len(curve[0])]
                if curves:
                    steps = np.array([statistics.steps_to_threshold(*curve, limit) for curve in curves])
                    reached = int(np.isfinite(steps).sum())
                    median = float(np.median(steps))
                    found.rows.append(
                        Row("steps_to", task, arm.name, median, steps.min(), steps.max(), reached, len(steps), words)
                    )


def _defaults(made: Study, found: Numbers, task: str) -> list[tuple[str, float]]:
    """Where the twin's training ends, and half of the way there; the best arm's, if the twin went nowhere."""
    ends: dict[str, float] = {}
    for arm in made.arms:
        tails = [score(run, False) for run in arm.cells.get(task, []) if not run.published]
        tails = [value for value in tails if np.isfinite(value)]
        if tails:
            ends[arm.name] = float(statistics.iqm(tails))
    firsts = [run.curve(TASK_RETURN)[1][0] for run in made.own if run.task == task and len(run.curve(TASK_RETURN)[0])]
    if not ends or not firsts:
        return []
    chance = found.one("random", task=task)
    start = chance.value if chance is not None and np.isfinite(chance.value) else float(np.min(firsts))
    best = max(ends, key=lambda name: ends[name])
    twins = [arm.name for arm in made.arms if arm.reward == "task" and not arm.control and arm.name in ends]
    rose = twins and ends[twins[0]] - start > CLEAR * (ends[best] - start) and ends[twins[0]] > start
    who = twins[0] if rose else best
    if ends[who] <= start:
        return []
    words = f"where the training of {who} ends"
    return [(f"half of the way from a random policy to {words}", (start + ends[who]) / 2), (words, ends[who])]


def _learned(made: Study, found: Numbers) -> None:
    """Rank correlation of learned and task return over the rows of a run, and the runs with the hacking alarm."""
    from scipy.stats import spearmanr

    for task, arm, runs in made.cells():
        each = []
        for run in runs:
            _, learned, truth = against(run)
            if len(learned) > 2 and np.ptp(learned) > 0 and np.ptp(truth) > 0:
                each.append(float(spearmanr(learned, truth).statistic))
        if each:
            found.rows.append(
                Row("rank_correlation", task, arm.name, *_estimate([np.array(each)]), len(each), len(runs))
            )
        rang = sum(alarm(run) is not None for run in runs)
        if rang:
            found.rows.append(Row("alarms", task, arm.name, rang, runs=rang, of=len(runs)))


def _array(found: Numbers, task: str, arm: Arm) -> np.ndarray:
    return np.array(list(found.scores[task, arm.name].values()), np.float64)


def _estimate(strata: list[np.ndarray]) -> tuple[float, float, float]:
    return _safe(lambda: statistics.aggregate(strata))


def _pair(x: list[np.ndarray], y: list[np.ndarray]) -> tuple[float, float, float]:
    return _safe(lambda: statistics.paired_difference(x, y))


def _safe(compute: Any) -> tuple[float, float, float]:
    """An estimate as floats; all nan where there is nothing to compute it from."""
    try:
        value, low, high = compute()
    except ValueError:
        return float("nan"), float("nan"), float("nan")
    return float(value), float(low), float(high)


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
