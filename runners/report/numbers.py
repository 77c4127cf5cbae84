"""The numbers of the report: final scores, their aggregate over tasks, differences to the baseline, sample efficiency.

All of them are `Row`s, which the page prints and report.csv holds; intervals are those of `runners.report.statistics`.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from runners.report import statistics
from runners.report.comparison import Arm, Comparison, against, alarm, score
from runners.report.read import TASK_RETURN, Run
from runners.report.statistics import Estimate
from runners.run.folder import OTHER_WAY, TOLD

CLEAR = 0.1  # of the best arm's lead over a random policy, which a baseline must have to be the unit of a task
ALL = "all tasks"
NAN = float("nan")


@dataclass
class Row:
    """One number, and its interval.

    Figures: final, success, mode (the final return of a sampled policy's mode), told and told_success (of one user, who
    is served), random, normalised, improvement, difference, normalised_difference, steps_to, rank_correlation, alarms.
    """

    figure: str
    task: str
    arm: str
    against: str  # name of the other arm, the user who is served, or the threshold; "" for none
    value: float
    low: float
    high: float
    runs: int  # that it was computed from
    of: int  # that there are


@dataclass
class TaskScale:
    """A task's scale of normalised scores: a random policy has 0, the reference 1."""

    random: float = NAN
    reference: float = NAN
    name: str = ""  # the reference, in words
    missing: str = ""  # why the task has no scale; empty if it has one

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        return (scores - self.random) / (self.reference - self.random)


class Numbers:
    """Everything that is computed, and what is needed to read it.

    `reference` is the arm that scores 1 on every task, by default the baseline or the best; `threshold` has a task
    return to be reached for each task, or for all under "".

    Attributes:
        evaluated: task -> whether its scores are final evaluations; else they are the last tenth of training curves.
        scores: (task, arm) -> seed -> score.
        thresholds: task -> captions and task returns.
    """

    def __init__(self, data: Comparison, reference: str = "", threshold: dict[str, float] | None = None) -> None:
        self.data, self.rows, self.left_out = data, list[Row](), list[str]()
        self.scores: dict[tuple[str, str], dict[Any, float]] = {}
        judged = {run.task for run in data.own if np.isfinite(run.result("task_return"))}
        self.evaluated = {task: task in judged for task in data.tasks}
        self._finals()
        self.scales = {task: self._scale(task, reference) for task in data.tasks}
        self._scaled = [task for task, scale in self.scales.items() if not scale.missing]
        self._aggregates()
        self._differences()
        given = threshold or {}
        self.thresholds: dict[str, list[tuple[str, float]]] = {}
        for task in data.tasks:
            limit = given.get(task, given.get(""))
            self.thresholds[task] = self._default_thresholds(task) if limit is None else [("as given", limit)]
        self._steps_to()
        self._learned()

    def find(self, figure: str, **wanted: str) -> list[Row]:
        """Rows of a figure with the wanted values, as in `task="CartPole-v1"`."""
        chosen = [row for row in self.rows if row.figure == figure]
        return [row for row in chosen if all(getattr(row, key) == value for key, value in wanted.items())]

    def one(self, figure: str, **wanted: str) -> Row | None:
        """The only row, or None."""
        return next(iter(self.find(figure, **wanted)), None)

    def profiles(self, points: int = 101) -> tuple[np.ndarray, dict[str, Estimate]]:
        """Normalised scores (K,), and arm -> share of its runs above each; of the arms that have an aggregate."""
        arms = [self.data.arm(row.arm) for row in self.find("normalised")]
        strata = {arm.name: [self.scales[task](self._array(task, arm)) for task in self._scaled] for arm in arms}
        if not strata:
            return np.zeros(0), {}
        every = np.concatenate([part for parts in strata.values() for part in parts])
        low, high = min(0.0, float(every.min())), max(1.0, float(every.max()))
        thresholds = np.linspace(max(low, -1.0), min(high, 2.0), points)
        return thresholds, {name: statistics.profile(parts, thresholds) for name, parts in strata.items()}

    def _add(
        self, figure: str, task: str, arm: str, estimate: Any, runs: int = 0, of: int = 0, against: str = ""
    ) -> None:
        value, low, high = estimate if isinstance(estimate, tuple) else (estimate, NAN, NAN)
        self.rows.append(Row(figure, task, arm, against, float(value), float(low), float(high), runs, of))

    def _array(self, task: str, arm: Arm) -> np.ndarray:
        return np.array(list(self.scores[task, arm.name].values()), np.float64)

    def _finals(self) -> None:
        for task in self.data.tasks:
            chance = [run.result("task_return", "random") for run in self.data.runs if run.task == task]
            chance = [value for value in chance if np.isfinite(value)]
            self._add("random", task, "random policy", float(np.mean(chance)) if chance else NAN, len(chance))
            for arm in self.data.arms:
                runs = arm.cells.get(task, [])
                found = {run.key: score(run, self.evaluated[task]) for run in runs}
                scores = {seed: value for seed, value in found.items() if np.isfinite(value)}
                self.scores[task, arm.name] = scores
                if runs:
                    estimate = statistics.within(_estimate([self._array(task, arm)]), *_possible(runs))
                    self._add("final", task, arm.name, estimate, len(scores), len(runs))
                successes = [value for run in runs if np.isfinite(value := run.result("success"))]
                if successes:
                    self._add("success", task, arm.name, np.mean(successes), len(successes), len(runs))
                modes = [value for run in runs if np.isfinite(value := run.result("task_return", OTHER_WAY))]
                if modes:
                    self._add("mode", task, arm.name, statistics.iqm(modes), len(modes), len(runs))
                self._told(task, arm, runs)

    def _told(self, task: str, arm: Arm, runs: list[Run]) -> None:
        """What the policies of an arm do for each user, told whom they serve."""
        names = dict.fromkeys(name for run in runs for name in run.scores if name.startswith(TOLD))
        for name in names:
            for figure, key in (("told", "task_return"), ("told_success", "success")):
                values = np.array([run.result(key, name) for run in runs])
                values = values[np.isfinite(values)]
                if len(values):
                    user = name.removeprefix(TOLD)
                    self._add(figure, task, arm.name, _estimate([values]), len(values), len(runs), user)

    def _scale(self, task: str, reference: str) -> TaskScale:
        chance = self.find("random", task=task)[0].value
        own = [arm for arm in self.data.arms if not arm.published and self.scores[task, arm.name]]
        means = {arm.name: float(self._array(task, arm).mean()) for arm in own}
        if not np.isfinite(chance):
            return TaskScale(missing="no run measured a random policy there")
        if not means:
            return TaskScale(missing="no run has a score there")
        if reference:
            if means.get(reference, chance) <= chance:
                return TaskScale(missing=f"{reference} has no score above a random policy's there")
            return TaskScale(chance, means[reference], f"the mean of {reference}")
        best = max(means, key=means.__getitem__)
        if means[best] <= chance:
            return TaskScale(missing="no arm is better than a random policy there")
        baselines = [name for name in self.data.baselines if name in means]
        if len(baselines) == 1 and means[baselines[0]] - chance > CLEAR * (means[best] - chance):
            return TaskScale(chance, means[baselines[0]], f"the mean of {baselines[0]}")
        return TaskScale(chance, means[best], f"the mean of the best arm, {best}")

    def _aggregates(self) -> None:
        """Normalised aggregates, and how likely an arm beats its baseline; over tasks that have a scale."""
        self.left_out += [f"{task}: {scale.missing}" for task, scale in self.scales.items() if scale.missing]
        for arm in self.data.arms:
            if arm.published or not self._scaled:
                continue
            lacking = [task for task in self._scaled if not self.scores[task, arm.name]]
            if lacking:
                self.left_out.append(f"{arm.name}: it has no score on {', '.join(lacking)}")
                continue
            strata = [self.scales[task](self._array(task, arm)) for task in self._scaled]
            self._add("normalised", ALL, arm.name, _estimate(strata), sum(map(len, strata)), len(arm.runs))
            if arm.baseline:
                other = self.data.arm(arm.baseline)
                pairs = [(self._array(task, arm), self._array(task, other)) for task in self.data.tasks]
                pairs = [(mine, theirs) for mine, theirs in pairs if len(mine) and len(theirs)]
                if pairs:
                    x, y = map(list, zip(*pairs))
                    estimate = _estimate(x, y, statistic=statistics.probability_of_improvement)
                    self._add("improvement", ALL, arm.name, estimate, sum(map(len, x)), against=other.name)

    def _differences(self) -> None:
        """Differences to the baseline with the same seeds: on each task, and normalised over all of them."""
        for arm in self.data.arms:
            scaled: list[np.ndarray] = []
            for task in self.data.tasks if arm.baseline else []:
                mine, theirs = self.scores[task, arm.name], self.scores[task, arm.baseline]
                seeds = [seed for seed in mine if seed in theirs]
                if not seeds:
                    continue
                x, y = (np.array([scores[seed] for seed in seeds]) for scores in (mine, theirs))
                rest = len(seeds), len(set(mine) | set(theirs)), arm.baseline
                estimate = _estimate([x], [y], statistic=statistics.paired_difference)
                self._add("difference", task, arm.name, estimate, *rest)
                if task in self._scaled:
                    scaled.append(self.scales[task](x) - self.scales[task](y))
                    self._add("normalised_difference", task, arm.name, _estimate(scaled[-1:]), *rest)
            if scaled:
                count = sum(map(len, scaled))
                self._add("normalised_difference", ALL, arm.name, _estimate(scaled), count, count, arm.baseline)

    def _steps_to(self) -> None:
        """Steps to a task return: the median over runs, a run that never gets there counted as infinitely slow."""
        for task, limits in self.thresholds.items():
            for (caption, limit), arm in itertools.product(limits, self.data.arms):
                curves = [run.curve(TASK_RETURN) for run in arm.cells.get(task, [])]
                steps = np.array([statistics.steps_to_threshold(*c, limit) for c in curves if len(c[0])])
                if len(steps):
                    estimate = (np.median(steps), steps.min(), steps.max())
                    self._add("steps_to", task, arm.name, estimate, int(np.isfinite(steps).sum()), len(steps), caption)

    def _default_thresholds(self, task: str) -> list[tuple[str, float]]:
        """Where the baseline's training ends, and half of the way there; the best arm's, if it did not improve."""
        ends: dict[str, float] = {}
        for arm in self.data.arms:
            tails = [score(run, False) for run in arm.cells.get(task, []) if not run.published]
            if np.isfinite(tails).any():
                ends[arm.name] = float(statistics.iqm([value for value in tails if np.isfinite(value)]))
        curves = [run.curve(TASK_RETURN)[1] for run in self.data.own if run.task == task]
        firsts = [values[0] for values in curves if len(values)]
        if not ends or not firsts:
            return []
        chance = self.find("random", task=task)[0].value
        start = chance if np.isfinite(chance) else float(np.min(firsts))
        best = max(ends, key=lambda name: ends[name])
        baseline = next((name for name in self.data.baselines if name in ends), best)
        rose = ends[baseline] - start > CLEAR * (ends[best] - start) and ends[baseline] > start
        name = baseline if rose else best
        if ends[name] <= start:
            return []
        end = f"where the training of {name} ends"
        return [(f"half of the way from a random policy to {end}", (start + ends[name]) / 2), (end, ends[name])]

    def _learned(self) -> None:
        """Rank correlation of learned and task return over the rows of a run, and the runs with the hacking alarm."""
        from scipy.stats import spearmanr

        for task, arm, runs in self.data.cells():
            pairs = [against(run)[1:] for run in runs]
            varied = [pair for pair in pairs if len(pair[0]) > 2 and min(map(np.ptp, pair)) > 0]
            each = [float(spearmanr(*pair).statistic) for pair in varied]
            if each:
                self._add("rank_correlation", task, arm.name, _estimate([np.array(each)]), len(each), len(runs))
            raised = sum(alarm(run) is not None for run in runs)
            if raised:
                self._add("alarms", task, arm.name, raised, raised, len(runs))


def _possible(runs: list[Run]) -> tuple[float, float]:
    """The range that holds the possible returns of all these runs."""
    ends = [run.possible for run in runs]
    return min(low for low, _ in ends), max(high for _, high in ends)


def _estimate(*scores: list[np.ndarray], statistic: Callable[..., Estimate] = statistics.aggregate) -> Estimate:
    """An estimate; all nan where there is nothing to compute it from."""
    try:
        return statistic(*scores)
    except ValueError:
        return Estimate(NAN, NAN, NAN)
