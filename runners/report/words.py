"""What the report says in sentences: what was compared, how strong the evidence is, and numbers as people read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from runners.report.curves import label_steps
from runners.report.numbers import ALL, CLEAR, Numbers, Row
from runners.report.study import Study

ENOUGH = 5  # seeds; Agarwal et al. 2021 show what fewer do
NOTHING = "–"


def number(value: float, digits: int = 4, beside: Iterable[float] = ()) -> str:
    """A number with as many digits as can be read: 0.123, 12.34, 12,340; a dash for nan.

    Args:
        value: the number.
        digits: that count.
        beside: numbers it is shown with, which all get as many places as the largest of them.
    """
    if not np.isfinite(value):
        return NOTHING if np.isnan(value) else "never"
    largest = max((abs(one) for one in (value, *beside) if np.isfinite(one)), default=0.0)
    if 0 < largest < 1e-3:
        return f"{value:.2g}".replace("-", "−")
    size = int(np.floor(np.log10(largest))) if largest else 0
    places = max(0, min(digits - 1 - max(size, 0), 3))
    return f"{value:,.{places}f}".replace("-", "−")


def interval(row: Row, digits: int = 4) -> str:
    """[low, high], or why there is none."""
    if not np.isfinite(row.low):
        return "one run: no interval" if row.runs == 1 else NOTHING
    both = [number(end, digits, (row.value, row.low, row.high)) for end in (row.low, row.high)]
    return f"[{both[0]}, {both[1]}]"


def middle(row: Row, digits: int = 4) -> str:
    """The value of a row, with as many places as its interval."""
    return number(row.value, digits, (row.low, row.high))


def join(names: Iterable[object], most: int = 12) -> str:
    """A, B and C."""
    listed = [str(name) for name in names]
    if len(listed) > most:
        listed = [*listed[: most - 1], f"{len(listed) - most + 1} others"]
    return " and ".join(filter(None, [", ".join(listed[:-1]), *listed[-1:]]))


def opening(made: Study) -> str:
    """The paragraph about what was compared, from the data alone."""
    own = made.own
    arms = [arm for arm in made.arms if not arm.published]
    if not own:
        return f"Curves of others on {join(made.tasks)}; no run of ours."
    agents = join(dict.fromkeys(run.agent for run in own))
    tasks = f"{len(made.tasks)} tasks ({join(made.tasks)})" if len(made.tasks) > 1 else made.tasks[0]
    rewards = f"{len(arms)} arms ({join(arm.name for arm in arms)})" if len(arms) > 1 else f"one arm ({arms[0].name})"
    totals = sorted({run.total for run in own if np.isfinite(run.total)})
    steps = (
        join(label_steps(total) if total % 1000 == 0 else f"{total:,.0f}" for total in totals)
        if totals
        else "an unknown number of"
    )
    seeds = sorted({run.seed for run in own if run.seed is not None})
    spoken = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 2 else f"seed{'s' * (len(seeds) > 1)} {join(seeds)}"
    states = Counter(run.state for run in own)
    rest = "; ".join(f"{count} {state}" for state, count in states.most_common() if state != "finished")
    finished = f"{states['finished']} of {len(own)} runs finished" + (f" ({rest})" if rest else "")
    said = f"{rewards} on {tasks}, agent {agents}, {steps} steps a run, {spoken}. {finished}."
    others = [arm.name for arm in made.arms if arm.published]
    return said[0].upper() + said[1:] + (f" Beside them, others' curves: {join(others)}." if others else "")


def evidence(made: Study, found: Numbers) -> list[str]:
    """How much can be concluded; weak evidence is called so."""
    said: list[str] = []
    finals = [row for row in found.find("final") if not made.arm(row.arm).published]
    counts = [row.runs for row in finals]
    if counts and min(counts) < ENOUGH:
        fewest = f"{min(counts)} seed{'s' * (min(counts) != 1)}" if min(counts) else "no score"
        said.append(
            f"The evidence is thin: some cells have {fewest}, where {ENOUGH} is the least to conclude from. "
            "Read intervals as hints, and missing ones as no knowledge at all."
        )
    trained = [task for task, told in found.evaluated.items() if not told]
    if trained:
        said.append(
            f"Nothing was evaluated on {join(trained)}: scores there are the last tenth of the training curves, "
            "exploration included."
        )
    twins = [arm for arm in made.arms if arm.twin]
    paired = [row for row in found.find("difference") if np.isfinite(row.low)]
    if not twins and len(made.arms) > 1:
        said.append("No arm is paid by the task alone, so nothing here says whether a learned reward helped or hurt.")
    said += [_verdict(row) for row in found.find("normalised_difference", task=ALL)]
    said += _overlaps(found)
    if len(paired) > 1:
        said.append(
            f"{len(paired)} differences are shown, each with a 95 % interval of its own: among {len(paired)}, about "
            f"{number(0.05 * len(paired), 2)} would exclude 0 by chance alone."
        )
    rang = found.find("alarms")
    if rang:
        total = sum(row.runs for row in rang)
        said.append(
            f"The hacking alarm rang in {total} run{'s' * (total != 1)}: the learned return rose while the task's fell."
        )
    return said


def _verdict(row: Row) -> str:
    words = f"{row.arm} against {row.against}, same seeds: {signed(row)} normalised"
    if not np.isfinite(row.low):
        return f"{words}; too few runs to say more."
    if row.low > 0:
        return f"{words}: better."
    return f"{words}: worse." if row.high < 0 else f"{words}: the interval holds 0, so no difference is shown."


def _overlaps(found: Numbers) -> list[str]:
    """Tasks on which the two best arms cannot be told apart."""
    alike = []
    for task in found.units:
        ranked = sorted((row for row in found.find("final", task=task) if np.isfinite(row.low)), key=lambda r: -r.value)
        if len(ranked) > 1 and ranked[1].high >= ranked[0].low:
            alike.append(task)
    return [f"The intervals of the two best arms overlap on {join(alike)}."] if alike else []


def signed(row: Row) -> str:
    """A difference and its interval, its sign always there."""
    return "+" * (row.value > 0) + f"{middle(row)} {interval(row)}"


def units(found: Numbers) -> list[str]:
    """What 0 and 1 mean on each task, and what has no such scale."""
    named: dict[str, list[str]] = {}
    for task, unit in found.units.items():
        if not unit.why_not:
            named.setdefault(unit.who, []).append(task)
    said = [f"On {join(tasks)}, 0 is what a random policy scores and 1 is {who}." for who, tasks in named.items()]
    if any("best arm" in who for who in named):
        said.append(
            "The best arm is the unit where there is no single twin, or where the twin's lead over a random policy is "
            f"less than {CLEAR:.0%} of the best arm's."
        )
    return said + [f"Left out: {reason}." for reason in found.left_out]


METHODS = (
    "A run's score is the mean task return of its final evaluation: whole episodes after training, from seeds that "
    "training never used. The learned reward is never its own judge.",
    "IQM is the interquartile mean, of what is left without the lowest and the highest quarter of the runs. Intervals "
    "are of 95 %, from a bootstrap stratified by task (Agarwal et al. 2021, Deep Reinforcement Learning at the Edge of "
    "the Statistical Precipice, arXiv 2108.13264), stretched for few runs as runners/report/statistics.py explains. Bands "
    "hold at each step, not for the whole curve at once.",
    "Learning curves are means over the last 100 training episodes, put on a common grid by interpolation and never "
    "continued beyond a run's last row. A solid line is the IQM over all runs of an arm; where some have ended, those "
    "that are left go on dotted, without a band.",
    "Curves of others are drawn as their files have them, averaged over the last twentieth of their rows, 100 at most; "
    "they are training returns of other code on other machines, and stand beside ours without being compared.",
    "A performance profile is the share of runs that score above each level, mean over tasks. The probability of "
    "improvement is how often a run of an arm beats one of its twin on the same task, ties counted by half.",
    "Differences to the twin are taken seed by seed. The same seed gives both arms the same environments, not the same "
    "luck: after the first update their episodes differ.",
    "Steps to a threshold are those at which the training curve first reaches it, median over runs; a run that never "
    "does counts as infinitely slow.",
    "Rank correlation (Spearman) of learned and task return is computed within each run over its log, then averaged as "
    "above. Both rise with training in most runs, so a high one is no proof that a reward is right; a low one is a "
    "warning.",
)
NOT_SHOWN = (
    "What this page cannot show: how much was tried before these runs, how the numbers would move under other "
    "hyper-parameters, and what happens with more steps. A run that failed has no score and is not counted as a zero: "
    "where failures are the method's own, the numbers flatter it."
)
