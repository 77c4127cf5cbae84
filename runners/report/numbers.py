"""The numbers of the report: final scores, their aggregate over tasks, differences to the baseline, sample efficiency.

All of them are `Row`s, which the page prints and report.csv holds; intervals are those of `runners.report.statistics`.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lodestar.mappings import map_values
from runners.report import statistics
from runners.report.comparison import Arm, Comparison, alarm, learned_and_task_returns, score
from runners.report.read import TASK_RETURN, Run, possible_returns
from runners.report.statistics import Estimate
from runners.run.folder import OTHER_WAY, TOLD

# A baseline is the unit of a task if its lead over a random policy is more than this share of the
# best arm's.
MIN_BASELINE_LEAD = 0.1
# Points at which performance profiles are computed.
PROFILE_POINTS = 101
ALL_TASKS = "all tasks"
NAN = float("nan")


@dataclass
class Row:
    """One number, and its interval.

    Figures: final, success, mode (the final return of a sampled policy's mode), told and
    told_success (of one user, who is served), random, normalised, improvement, difference,
    normalised_difference, steps_to, rank_correlation, alarms.

    `against` is the name of the other arm, the user who is served, or the threshold, "" for none.
    `runs` is from how many runs the number was computed, `of` how many there are.
    """

    figure: str
    task: str
    arm: str
    against: str
    value: float
    low: float
    high: float
    runs: int
    of: int


@dataclass
class TaskScale:
    """A task's scale of normalised scores: a random policy has 0, the reference 1.

    `name` is the reference in words. `missing` says why the task has no scale, "" if it has one.
    """

    random: float = NAN
    reference: float = NAN
    name: str = ""
    missing: str = ""

    def __call__(self, scores: Any) -> Any:
        """Normalised scores of a number or an array."""
        return (scores - self.random) / (self.reference - self.random)


class Numbers:
    """Everything that is computed, and what is needed to read it.

    `reference` is the arm that scores 1 on every task, by default the baseline or the best;
    `threshold` has a task return to be reached for each task, or for all under "".

    Attributes:
        evaluated: task -> whether its scores are final evaluations; else they are the last tenth of
            training curves.
        scores: (task, arm) -> seed -> score.
        thresholds: task -> captions and task returns.
        left_out: why a task or an arm is not in the aggregates.
    """

    def __init__(self, data: Comparison, reference: str = "", threshold: dict[str, float] | None = None) -> None:
        self.data = data
        self.rows: list[Row] = []
        self.left_out: list[str] = []
        self.scores: dict[tuple[str, str], dict[Any, float]] = defaultdict(dict)
        self.evaluated = dict.fromkeys(data.tasks, False)
        for run in data.own:
            if np.isfinite(run.result("task_return")):
                self.evaluated[run.task] = True
        self._add_finals()
        self.scales = {}
        self._scaled_tasks = []
        for task in data.tasks:
            scale = self._make_scale(task, reference)
            self.scales[task] = scale
            if not scale.missing:
                self._scaled_tasks.append(task)
        self._add_aggregates()
        self._add_differences()
        limits = threshold or {}
        self.thresholds = {}
        for task in data.tasks:
            limit = limits.get(task, limits.get(""))
            if limit is None:
                self.thresholds[task] = self._default_thresholds(task)
            else:
                self.thresholds[task] = [("as given", limit)]
        self._add_steps_to()
        self._add_reward_quality()

    def find(self, figure: str, **wanted: str) -> list[Row]:
        """Rows of a figure with the wanted values, as in `task="CartPole-v1"`."""
        wanted["figure"] = figure
        return [row for row in self.rows if wanted.items() <= vars(row).items()]

    def find_one(self, figure: str, **wanted: str) -> Row | None:
        """The only row, or None."""
        return next(iter(self.find(figure, **wanted)), None)

    def value(self, figure: str, **wanted: str) -> float:
        """The number of the only row, NaN without one."""
        row = self.find_one(figure, **wanted)
        return NAN if row is None else row.value

    def profiles(self) -> tuple[np.ndarray, dict[str, Estimate]]:
        """Normalised scores (K,), and arm -> share of its runs above each; at least one arm has an aggregate."""
        strata = {}
        for row in self.find("normalised"):
            strata[row.arm] = self._normalised_scores(row.arm)
        scores = np.concatenate(list(itertools.chain(*strata.values())))
        # The axis reaches beyond [0, 1] as far as scores do, to [-1, 2] at most.
        low = np.clip(scores.min(), -1, 0)
        high = np.clip(scores.max(), 1, 2)
        thresholds = np.linspace(low, high, PROFILE_POINTS)
        return thresholds, map_values(lambda parts: statistics.profile(parts, thresholds), strata)

    def _add(
        self, figure: str, task: str, arm: str, estimate: Any, runs: int = 0, of: int = 0, against: str = ""
    ) -> None:
        """Add a row; `estimate` is a number, or a tuple of a number and its interval."""
        if not isinstance(estimate, tuple):
            estimate = (estimate, NAN, NAN)
        value, low, high = map(float, estimate)
        self.rows.append(Row(figure, task, arm, against, value, low, high, runs, of))

    def _score_array(self, task: str, arm: str) -> np.ndarray:
        return np.array(list(self.scores[task, arm].values()), np.float64)

    def _normalised_scores(self, arm: str) -> list[np.ndarray]:
        """An array for each task that has a scale."""
        return [self.scales[task](self._score_array(task, arm)) for task in self._scaled_tasks]

    def _add_finals(self) -> None:
        """Final scores of the random policy and of each arm, in all ways they were evaluated."""
        for task in self.data.tasks:
            runs = [run for run in self.data.runs if run.task == task]
            chance = _results(runs, "task_return", "random")
            # The row is there without a random policy, too: scales look for it.
            mean = np.mean(chance) if chance else NAN
            self._add("random", task, "random policy", mean, len(chance))
            for arm in self.data.arms:
                if task in arm.cells:
                    self._add_finals_of(task, arm)

    def _add_finals_of(self, task: str, arm: Arm) -> None:
        runs = arm.cells[task]
        scores = self.scores[task, arm.name]
        policies = {}
        for run in runs:
            run_score = score(run, self.evaluated[task])
            if np.isfinite(run_score):
                scores[run.key] = run_score
            policies.update(run.scores)
        lows, highs = np.transpose([possible_returns(run.scores) for run in runs])
        estimate = _estimate([self._score_array(task, arm.name)])
        estimate = statistics.clip_interval(estimate, lows.min(), highs.max())
        self._add("final", task, arm.name, estimate, len(scores), len(runs))
        successes = _results(runs, "success")
        if successes:
            self._add("success", task, arm.name, np.mean(successes), len(successes), len(runs))
        modes = _results(runs, "task_return", OTHER_WAY)
        if modes:
            self._add("mode", task, arm.name, statistics.iqm(modes), len(modes), len(runs))
        # What the policies do for each user, told whom they serve.
        for policy in policies:
            if not policy.startswith(TOLD):
                continue
            user = policy.removeprefix(TOLD)
            for figure, key in (("told", "task_return"), ("told_success", "success")):
                values = _results(runs, key, policy)
                if values:
                    estimate = _estimate([np.array(values)])
                    self._add(figure, task, arm.name, estimate, len(values), len(runs), user)

    def _make_scale(self, task: str, reference: str) -> TaskScale:
        chance = self.value("random", task=task)
        means = {}
        for arm in self.data.arms:
            if not arm.published and self.scores[task, arm.name]:
                means[arm.name] = self._score_array(task, arm.name).mean()
        if np.isnan(chance):
            return TaskScale(missing="no run measured a random policy there")
        if not means:
            return TaskScale(missing="no run has a score there")
        if reference:
            if means.get(reference, chance) <= chance:
                return TaskScale(missing=f"{reference} has no score above a random policy's there")
            return TaskScale(chance, means[reference], f"the mean of {reference}")
        baselines = list(means.keys() & self.data.baselines)
        # Several baselines, as of several agents, name no unit.
        if len(baselines) > 1:
            baselines = []
        unit = _find_unit(means, chance, baselines)
        if not unit:
            return TaskScale(missing="no arm is better than a random policy there")
        name = unit if unit in baselines else f"the best arm, {unit}"
        return TaskScale(chance, means[unit], f"the mean of {name}")

    def _add_aggregates(self) -> None:
        """Normalised scores and how likely an arm beats its baseline, over tasks with a scale."""
        for task, scale in self.scales.items():
            if scale.missing:
                self.left_out.append(f"{task}: {scale.missing}")
        for arm in self.data.arms:
            if arm.published or not self._scaled_tasks:
                continue
            missing = [task for task in self._scaled_tasks if not self.scores[task, arm.name]]
            if missing:
                self.left_out.append(f"{arm.name}: it has no score on {', '.join(missing)}")
                continue
            strata = self._normalised_scores(arm.name)
            count = sum(map(len, strata))
            self._add("normalised", ALL_TASKS, arm.name, _estimate(strata), count, len(arm.runs))
            if arm.baseline:
                self._add_improvement(arm)

    def _add_improvement(self, arm: Arm) -> None:
        ours = []
        theirs = []
        for task in self.data.tasks:
            if self.scores[task, arm.name] and self.scores[task, arm.baseline]:
                ours.append(self._score_array(task, arm.name))
                theirs.append(self._score_array(task, arm.baseline))
        if ours:
            estimate = _estimate(ours, theirs, statistic=statistics.probability_of_improvement)
            count = sum(map(len, ours))
            self._add("improvement", ALL_TASKS, arm.name, estimate, count, against=arm.baseline)

    def _add_differences(self) -> None:
        """Differences to the baseline with the same seeds: on each task, and normalised over all."""
        for arm in self.data.arms:
            if not arm.baseline:
                continue
            normalised = []
            for task in self.data.tasks:
                ours = self.scores[task, arm.name]
                theirs = self.scores[task, arm.baseline]
                # Scores of both arms, paired by seed.
                pairs = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
                if not pairs:
                    continue
                x, y = np.transpose(pairs)
                counts = (len(pairs), len(ours.keys() | theirs.keys()))
                estimate = _estimate([x], [y], statistic=statistics.paired_difference)
                self._add("difference", task, arm.name, estimate, *counts, arm.baseline)
                scale = self.scales[task]
                if not scale.missing:
                    difference = scale(x) - scale(y)
                    normalised.append(difference)
                    estimate = _estimate([difference])
                    self._add("normalised_difference", task, arm.name, estimate, *counts, arm.baseline)
            if normalised:
                count = sum(map(len, normalised))
                estimate = _estimate(normalised)
                self._add("normalised_difference", ALL_TASKS, arm.name, estimate, count, count, arm.baseline)

    def _add_steps_to(self) -> None:
        """Steps to a task return: the median over runs, the fastest and the slowest."""
        for task, limits in self.thresholds.items():
            for caption, limit in limits:
                for arm in self.data.arms:
                    # A run that never gets there is infinitely slow.
                    steps = []
                    for run in arm.cells.get(task, []):
                        run_steps, values = run.curve(TASK_RETURN)
                        if len(run_steps):
                            steps.append(statistics.steps_to_threshold(run_steps, values, limit))
                    if steps:
                        estimate = (np.median(steps), min(steps), max(steps))
                        reached = int(np.isfinite(steps).sum())
                        self._add("steps_to", task, arm.name, estimate, reached, len(steps), caption)

    def _default_thresholds(self, task: str) -> list[tuple[str, float]]:
        """Where the baseline's training ends, and half of the way there from a random policy.

        It is the best arm's if the baseline did not improve.
        """
        ends = {}
        for arm in self.data.arms:
            tails = []
            for run in arm.cells.get(task, []):
                tail = score(run, False)
                if not run.published and np.isfinite(tail):
                    tails.append(tail)
            if tails:
                ends[arm.name] = statistics.iqm(tails)
        if not ends:
            return []
        start = self.value("random", task=task)
        if np.isnan(start):
            first_returns = []
            for run in self.data.own:
                _, values = run.curve(TASK_RETURN)
                if run.task == task:
                    first_returns += values[:1].tolist()
            start = min(first_returns)
        reference = _find_unit(ends, start, [name for name in self.data.baselines if name in ends])
        if not reference:
            return []
        end = ends[reference]
        caption = f"where the training of {reference} ends"
        return [(f"half of the way from a random policy to {caption}", (start + end) / 2), (caption, end)]

    def _add_reward_quality(self) -> None:
        """Rank correlation of learned and task return within runs, and runs with the hacking alarm."""
        from scipy.stats import spearmanr

        for task, arm, runs in self.data.cells():
            correlations = []
            for run in runs:
                _, learned, task_return = learned_and_task_returns(run)
                # Two points, or a constant, have no rank correlation.
                if len(learned) > 2 and np.ptp(learned) > 0 and np.ptp(task_return) > 0:
                    correlations.append(spearmanr(learned, task_return).statistic)
            if correlations:
                estimate = _estimate([np.array(correlations)])
                self._add("rank_correlation", task, arm.name, estimate, len(correlations), len(runs))
            alarms = len(list(filter(alarm, runs)))
            if alarms:
                self._add("alarms", task, arm.name, alarms, alarms, len(runs))


def _find_unit(values: dict[str, float], start: float, baselines: list[str]) -> str:
    """The first baseline, or the best arm where that leads much further over the start; "" where no arm leads."""
    best = max(values, key=values.__getitem__)
    lead = values[best] - start
    if lead <= 0:
        return ""
    if baselines and values[baselines[0]] - start > MIN_BASELINE_LEAD * lead:
        return baselines[0]
    return best


def _results(runs: list[Run], key: str, policy: str = "this run") -> list[float]:
    """A number of the final evaluation of each run that has it."""
    values = [run.result(key, policy) for run in runs]
    return list(filter(np.isfinite, values))


def _estimate(*scores: list[np.ndarray], statistic: Callable[..., Estimate] = statistics.aggregate) -> Estimate:
    """An estimate; all NaN where there is nothing to compute it from."""
    try:
        return statistic(*scores)
    except ValueError:
        return Estimate(NAN, NAN, NAN)
