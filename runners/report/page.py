"""The content of the report's page: what was compared, how strong the evidence is, tables, figures, videos.

Text from files is escaped by the template; videos are checked by their first bytes before they are embedded.
"""

import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from lodestar.files import read_bytes
from runners.cli.output import clock
from runners.report import html, plots
from runners.report.comparison import Band, Comparison, alarm, configurations
from runners.report.numbers import ALL, CLEAR, Numbers, Row
from runners.report.plots import label_steps
from runners.report.read import ELAPSED, Run
from runners.sweep.job import Entry

PAGE_VIDEOS, VIDEO = 24_000_000, 4_000_000  # bytes of all videos of a page, and of one
CONFIGS, TOO_LARGE = 2_000_000, "left out, as the page would become too large"  # characters of all configurations
ENOUGH = 5  # seeds; Agarwal et al. 2021 show what fewer do
NOTHING = "–"


def write(path: Path, numbers: Numbers, bands: dict[tuple[str, str], Band], title: str, points: int) -> None:
    """Write the page; a scatter or a stack of shares is drawn from `points` rows."""
    data = numbers.data
    spent = itertools.accumulate(len(run.text) for run in data.own)
    own = [arm.name for arm in data.arms if not arm.published]
    alarms = [
        (task, arm.name, NOTHING if run.seed is None else run.seed, f"{share:.0%}", f"{first:,.0f}", f"{last:,.0f}")
        for task, arm, runs in data.cells()
        for run in runs
        for share, first, last in filter(None, [alarm(run)])
    ]
    values = {
        "title": title,
        "made_by": f"lodestar-rl, {time.strftime('%Y-%m-%d %H:%M')}",
        "opening": opening(data),
        "problems": data.problems,
        "evidence": evidence(numbers),
        "all_evaluated": all(numbers.evaluated.values()),
        "scores": [(task, not numbers.evaluated[task], _scores(numbers, task)) for task in data.tasks],
        "successes": bool(numbers.find("success")),
        "modes": bool(numbers.find("mode")),
        "early": _early(bands),
        "scales": scales(numbers) if len(own) > 1 else [],
        "overall": [
            (row.arm, *printed(row, 3), row.runs, *(printed(better, 3) if better else (NOTHING, NOTHING)))
            for row in numbers.find("normalised")
            for better in [numbers.one("improvement", arm=row.arm)]
        ],
        "thresholds": _thresholds(numbers),
        "alarms": alarms,
        "own_arms": own,
        "settings": configurations(data),
        "configs": [(run.name, run.text if size <= CONFIGS else TOO_LARGE) for run, size in zip(data.own, spent)],
        "colours": {name: look["color"] for name, look in plots.looks(data).items()},
        "join": join,
        **_figures(numbers, bands, points),
        **_videos(numbers),
        **_provenance(data),
    }
    values["sections"] = [
        ("scores", "Scores", True),
        ("curves", "Learning curves", values["learning"]),
        ("aggregate", "Normalised scores", values["aggregate"] or values["scales"]),
        ("baseline", "Against the baseline", values["forest"]),
        ("efficiency", "Sample efficiency", values["thresholds"]),
        ("rewards", "What the rewards did", values["shares"] or values["truth"] or values["alarms"]),
        ("videos", "Videos", values["videos"] or values["videos_left"]),
        ("configurations", "Configurations", values["configs"]),
        ("provenance", "Provenance", True),
        ("methods", "How the numbers are made", True),
    ]
    html.write(path, "report/page.html", values)


def number(value: float, digits: int = 4, beside: Iterable[float] = ()) -> str:
    """A number with as many digits as can be read, and as many places as the largest `beside` it; a dash for nan."""
    if not np.isfinite(value):
        return NOTHING if np.isnan(value) else "never"
    largest = max((abs(one) for one in (value, *beside) if np.isfinite(one)), default=0.0)
    if 0 < largest < 1e-3:
        return f"{value:.2g}".replace("-", "−")
    size = int(np.floor(np.log10(largest))) if largest else 0
    places = max(0, min(digits - 1 - max(size, 0), 3))
    return f"{value:,.{places}f}".replace("-", "−")


def printed(row: Row, digits: int = 4) -> tuple[str, str]:
    """The value of a row and [low, high], all with as many places; or why there is no interval."""
    numbers = row.value, row.low, row.high
    value, low, high = (number(one, digits, numbers) for one in numbers)
    if np.isfinite(row.low):
        return value, f"[{low}, {high}]"
    return value, "one run: no interval" if row.runs == 1 else NOTHING


def signed(row: Row) -> str:
    """A difference and its interval, its sign always there."""
    return "+" * (row.value > 0) + " ".join(printed(row))


def join(names: Iterable[object], most: int = 12) -> str:
    """A, B and C."""
    listed = [str(name) for name in names]
    if len(listed) > most:
        listed = [*listed[: most - 1], f"{len(listed) - most + 1} others"]
    return " and ".join(filter(None, [", ".join(listed[:-1]), *listed[-1:]]))


def opening(data: Comparison) -> str:
    """The paragraph about what was compared, from the data alone."""
    own = data.own
    arms = [arm for arm in data.arms if not arm.published]
    if not own:
        return f"Published curves on {join(data.tasks)}; no run of ours."
    agents = join(dict.fromkeys(run.agent for run in own))
    tasks = f"{len(data.tasks)} tasks ({join(data.tasks)})" if len(data.tasks) > 1 else data.tasks[0]
    rewards = f"{len(arms)} arms ({join(arm.name for arm in arms)})" if len(arms) > 1 else f"one arm ({arms[0].name})"
    totals = sorted({run.total for run in own if np.isfinite(run.total)})
    steps = join(label_steps(total) if total % 1000 == 0 else f"{total:,.0f}" for total in totals)
    seeds = sorted({run.seed for run in own if run.seed is not None})
    listed = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 2 else f"seed{'s' * (len(seeds) > 1)} {join(seeds)}"
    states = Counter(run.state for run in own)
    rest = "; ".join(f"{count} {state}" for state, count in states.most_common() if state != "finished")
    finished = f"{states['finished']} of {len(own)} runs finished" + (f" ({rest})" if rest else "")
    text = f"{rewards} on {tasks}, agent {agents}, {steps or 'an unknown number of'} steps a run, {listed}. {finished}."
    published = [arm.name for arm in data.arms if arm.published]
    return text[0].upper() + text[1:] + (f" Beside them, published curves: {join(published)}." if published else "")


def evidence(numbers: Numbers) -> list[str]:
    """What differs, good or bad, and how much can be concluded; weak evidence is called so."""
    data = numbers.data
    lines = [
        f"{row.task}: {row.arm} is {'better' if row.low > 0 else 'worse'} than {row.against}, "
        f"{signed(row)} task return."
        for row in numbers.find("difference")
        if row.low > 0 or row.high < 0
    ]
    counts = [row.runs for row in numbers.find("final") if not data.arm(row.arm).published]
    if counts and min(counts) < ENOUGH:
        fewest = f"{min(counts)} seed{'s' * (min(counts) != 1)}" if min(counts) else "no score"
        lines.append(
            f"The evidence is thin: some cells have {fewest}, where {ENOUGH} is the least to conclude from. "
            "Read intervals as hints, and missing ones as no knowledge at all."
        )
    trained = [task for task, evaluated in numbers.evaluated.items() if not evaluated]
    if trained:
        lines.append(
            f"Nothing was evaluated on {join(trained)}: scores there are the last tenth of the training curves, "
            "exploration included."
        )
    if len(data.arms) > 1 and not any(arm.baseline for arm in data.arms):
        lines.append("No arm is trained on the task's reward alone, so nothing shows whether a learned reward helped.")
    lines += [_verdict(row) for row in numbers.find("normalised_difference", task=ALL)]
    overlapping = []
    for task in data.tasks:
        finals = [row for row in numbers.find("final", task=task) if np.isfinite(row.low)]
        best = sorted(finals, key=lambda row: -row.value)[:2]
        overlapping += [task] if len(best) > 1 and best[1].high >= best[0].low else []
    lines += [f"The intervals of the two best arms overlap on {join(overlapping)}."] if overlapping else []
    paired = sum(np.isfinite(row.low) for row in numbers.find("difference"))
    if paired > 1:
        lines.append(
            f"{paired} differences are listed, each with a 95 % interval of its own: among {paired}, about "
            f"{number(0.05 * paired, 2)} would exclude 0 by chance alone."
        )
    raised = sum(row.runs for row in numbers.find("alarms"))
    if raised:
        runs = f"{raised} run{'s' * (raised != 1)}"
        lines.append(f"The hacking alarm was raised in {runs}: the learned return rose while the task's fell.")
    return lines


def _verdict(row: Row) -> str:
    text = f"{row.arm} against {row.against}, same seeds: {signed(row)} normalised"
    if not np.isfinite(row.low):
        return f"{text}; too few runs to say more."
    if row.low > 0:
        return f"{text}: better."
    return f"{text}: worse." if row.high < 0 else f"{text}: the interval holds 0, so no difference is shown."


def scales(numbers: Numbers) -> list[str]:
    """What 0 and 1 mean on each task, and what has no such scale."""
    tasks: dict[str, list[str]] = defaultdict(list)
    for task, scale in numbers.scales.items():
        if not scale.missing:
            tasks[scale.name].append(task)
    lines = [f"On {join(members)}, 0 is a random policy's score and 1 is {name}." for name, members in tasks.items()]
    if any("best arm" in name for name in tasks):
        lines.append(
            "The best arm is the unit where there is no single baseline, or where the baseline's lead over a random "
            f"policy is less than {CLEAR:.0%} of the best arm's."
        )
    return lines + [f"Left out: {reason}." for reason in numbers.left_out]


def _figures(numbers: Numbers, bands: dict[tuple[str, str], Band], points: int) -> dict[str, Any]:
    with matplotlib.rc_context(plots.STYLE):
        shares, shares_left = plots.shares(numbers.data, points)
        truth, truth_left = plots.truth(numbers, points)
        drawn = {
            "learning": plots.learning(numbers, bands) if bands else None,
            "aggregate": plots.aggregate(numbers),
            "forest": plots.forest(numbers),
            "shares": shares,
            "truth": truth,
        }
        images = {name: html.figure(one, transparent=True) if one else "" for name, one in drawn.items()}
    return {**images, "shares_left": shares_left, "truth_left": truth_left}


def _scores(numbers: Numbers, task: str) -> list[tuple[Any, ...]]:
    """A task's rows of the main table."""
    rows: list[tuple[Any, ...]] = []
    scale = numbers.scales[task]
    for row in numbers.find("final", task=task):
        published = numbers.data.arm(row.arm).published
        difference = numbers.one("difference", task=task, arm=row.arm)
        success = numbers.one("success", task=task, arm=row.arm)
        scaled = not scale.missing and np.isfinite(row.value) and not published
        seeds = f"{row.runs}" if row.runs == row.of else f"{row.runs} of {row.of}"
        share = NOTHING if success is None else f"{success.value:.0%}"
        mode = numbers.one("mode", task=task, arm=row.arm)
        by_mode = NOTHING if mode is None else number(mode.value)
        normalised = number(float(scale(np.array(row.value))), 3) if scaled else NOTHING
        apart = NOTHING if difference is None else signed(difference)
        rows.append((row.arm, published, *printed(row), seeds, by_mode, share, normalised, apart))
        for told in numbers.find("told", task=task, arm=row.arm):
            own = numbers.one("told_success", task=task, arm=row.arm, against=told.against)
            share = NOTHING if own is None else f"{own.value:.0%}"
            rows.append(
                (f"{row.arm}, told it serves {told.against}", True, *printed(told), told.runs, NOTHING, share, "", "")
            )
    chance = numbers.one("random", task=task)
    if chance is not None and chance.runs:
        rows.append(("random policy", True, number(chance.value), "", "", "", "", "0", ""))
    return rows


def _early(bands: dict[tuple[str, str], Band]) -> list[str]:
    """A sentence about each arm whose runs did not all reach the same step."""
    lines = []
    for (task, arm), band in bands.items():
        there, whole = band.steps[band.runs > 0], band.steps[band.whole]
        if band.of > 1 and not len(whole):
            lines.append(f"{task}, {arm}: its {band.of} runs have no step in common, so there is no band.")
        elif len(whole) and whole[-1] < there[-1]:
            left, end = int(band.runs[band.runs > 0][-1]), label_steps(whole[-1])
            lines.append(f"{task}, {arm}: fewer than all {band.of} runs after {end} steps, {left} at the end.")
    return lines


def _thresholds(numbers: Numbers) -> list[tuple[Any, ...]]:
    """A block a task: its thresholds, and for each arm the median steps to each and how many runs got there."""

    def cells(row: Row) -> tuple[str, str, str]:
        median, low, high = (f"{x:,.0f}" if np.isfinite(x) else "never" for x in (row.value, row.low, row.high))
        return median, f"{low} to {high}" if row.runs else NOTHING, f"{row.runs} of {row.of}"

    blocks = []
    for task, limits in numbers.thresholds.items():
        arms = [(arm.name, numbers.find("steps_to", task=task, arm=arm.name)) for arm in numbers.data.arms]
        rows = [(name, list(map(cells, found))) for name, found in arms if found]
        if rows:
            blocks.append((task, [(caption, number(limit)) for caption, limit in limits], rows))
    return blocks


def _videos(numbers: Numbers) -> dict[str, Any]:
    """One video a cell, of the run whose score is nearest the median, as long as the budget lasts."""
    videos, left, spent = [], [], 0
    for task, arm, runs in numbers.data.cells():
        scores = numbers.scores[task, arm.name]
        median = float(np.median(list(scores.values()))) if scores else 0.0
        places = [(run, run.folder / name) for run in runs if run.folder for name in ("video.mp4", "video.gif")]
        found = [(run, path) for run, path in places if path.is_file()]
        if not found:
            continue
        run, path = min(found, key=lambda one: (abs(scores.get(one[0].seed, np.inf) - median), one[0].seed or 0))
        caption, content = f"{arm.name}, {task}, seed {run.seed}", b""
        with suppress(OSError):  # too large, or it cannot be read
            content = read_bytes(path, VIDEO)
        kind = "video/mp4" if content[4:8] == b"ftyp" else "image/gif" if content[:6] in (b"GIF87a", b"GIF89a") else ""
        if not kind or spent + len(content) > PAGE_VIDEOS:
            left.append(caption)
            continue
        spent += len(content)
        score = f", task return {number(scores[run.seed])}" if run.seed in scores else ""
        videos.append((html.embedded(content, kind), caption + score))
    return {"videos": videos, "videos_left": join(left, 30)}


def _provenance(data: Comparison) -> dict[str, Any]:
    own = data.own
    packages: dict[str, set[str]] = defaultdict(set)
    for package, version in (pair for run in own for pair in run.versions.items()):
        packages[package].add(version)
    used = join((f"{name} {' and '.join(sorted(found))}" for name, found in packages.items()), 40)
    mixed = [name for name, found in packages.items() if len(found) > 1]
    hosts = sorted({str(run.status["host"]) for run in own if run.status.get("host")})
    times = sorted(str(run.status["time"]) for run in own if run.status.get("time"))
    lines = [f"Made with {used}." if used else "No run says which versions it used."]
    lines += [f"Not all runs used the same {join(mixed)}."] if mixed else []
    lines += [f"Machines: {join(hosts)}."] if hosts else []
    lines += [f"Runs ended between {times[0]} and {times[-1]}."] if times else []
    spent = [seconds for run in own if np.isfinite(seconds := _seconds(run))]
    lines += [f"Training took {_clock(sum(spent))} in all, summed over runs."] if spent else []
    commands = list(dict.fromkeys(data.commands + [line for run in own for line in run.commands[-1:]]))
    listed = [line[:2000] for line in commands[:3]]
    listed += [f"... and {len(commands) - 3} more"] if len(commands) > 3 else []
    return {"versions": " ".join(lines), "runs": list(map(_account, data.runs)), "commands": "\n".join(listed)}


def _account(run: Run) -> tuple[Any, ...]:
    """A run's line in the list of all."""
    attempt = run.attempt or Entry()
    starts = attempt.attempts or len(run.commands) or NOTHING
    where = attempt.where or str(run.status.get("host", NOTHING))
    code = run.status.get("exit_code")
    step = f"{run.last:,.0f}" if len(run.steps) else NOTHING
    ended = str(run.status.get("time", NOTHING))
    return run.name, run.state, NOTHING if code is None else code, step, starts, _clock(_seconds(run)), ended, where


def _seconds(run: Run) -> float:
    """That a run took: what its sweep measured, or what its last start logged."""
    if run.attempt is not None and run.attempt.seconds:
        return float(run.attempt.seconds)
    _, elapsed = run.curve(ELAPSED)
    return float(elapsed[-1]) if len(elapsed) else float("nan")


def _clock(seconds: float) -> str:
    return clock(seconds) if np.isfinite(seconds) else NOTHING
