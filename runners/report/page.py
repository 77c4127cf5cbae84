"""The content of the report's page: what was compared, how strong the evidence is, tables, figures, videos.

Text from files is escaped by the template; videos are checked by their first bytes before they are embedded.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from lodestar.files import read_bytes
from runners.report import html, plots
from runners.report.comparison import Bands, Comparison, alarm, configurations
from runners.report.job_log import Entry
from runners.report.numbers import ALL_TASKS, MIN_BASELINE_LEAD, NAN, Numbers, Row
from runners.report.plots import label_steps
from runners.report.read import ELAPSED, Run
from runners.run.config import Values
from runners.run.folder import LIMIT, mean_costs
from runners.run.output import clock

# Of all videos of a page, and of one.
MAX_PAGE_VIDEO_BYTES = 24_000_000
MAX_VIDEO_BYTES = 4_000_000
# The height of a browser's controls, as a share of the width at which the page shows a video.
CONTROLS_OF_WIDTH = 0.3
# Of the configurations of all runs together.
MAX_CONFIG_CHARACTERS = 2_000_000
TOO_LARGE = "left out, as the page would become too large"
MAX_LISTED_COMMANDS = 3
MAX_COMMAND_CHARACTERS = 2000
# Agarwal et al. 2021 show how little fewer seeds say.
MIN_CONCLUSIVE_SEEDS = 5
DASH = "–"

# The cells of a line, and its lines.
TableRow = tuple[Any, ...]
Table = list[TableRow]


def write(path: Path, numbers: Numbers, bands: Bands, title: str, points: int) -> Path:
    """Write the page; a scatter or a stack of shares is drawn from `points` rows."""
    data = numbers.data
    values = {
        "title": title,
        "made_by": f"lodestar-rl, {time.strftime('%Y-%m-%d %H:%M')}",
        "opening": opening(data),
        "problems": data.problems,
        "evidence": evidence(numbers),
        "all_evaluated": all(numbers.evaluated.values()),
        # A task, whether its scores are those of training, and its rows.
        "scores": [(task, not final, _score_rows(numbers, task)) for task, final in numbers.evaluated.items()],
        "successes": bool(numbers.find("success")),
        "modes": bool(numbers.find("mode")),
        "early": _list_gaps(data, bands),
        "scales": scales(numbers),
        "overall": _overall_rows(numbers),
        "thresholds": _threshold_tables(numbers),
        "alarms": _alarm_rows(data),
        "costs": _cost_rows(data),
        "own_arms": data.own_arms,
        "settings": configurations(data),
        "configs": _config_texts(data),
        "looks": plots.arm_styles(data),
        "join": join,
        **_figures(numbers, bands, points),
        **_videos(numbers),
        **_provenance(data),
    }
    return html.write(path, "report/page.html", values)


def number(value: float, digits: int = 4, beside: Iterable[float] = ()) -> str:
    """A number with as many digits as can be read; a dash for NaN.

    It has as many decimal places as the largest number `beside` it.
    """
    if np.isnan(value):
        return DASH
    if np.isinf(value):
        return "never"
    largest = max(abs(other) for other in (value, *beside) if np.isfinite(other))
    # Very small numbers keep two digits, whatever stands beside them.
    if 0 < largest < 1e-3:
        text = f"{value:.2g}"
    else:
        order = int(np.floor(np.log10(max(largest, 1.0))))
        places = max(0, min(digits - 1 - order, 3))
        text = f"{value:,.{places}f}"
    return text.replace("-", "−")


def interval_texts(row: Row, digits: int = 4) -> tuple[str, str]:
    """A value and [low, high], all with as many places; or why there is no interval."""
    numbers = (row.value, row.low, row.high)
    value, low, high = [number(each, digits, numbers) for each in numbers]
    if np.isfinite(row.low):
        return value, f"[{low}, {high}]"
    if row.runs == 1:
        return value, "one run: no interval"
    return value, DASH


def signed_text(row: Row) -> str:
    """A difference and its interval, its sign always there."""
    return "+" * (row.value > 0) + " ".join(interval_texts(row))


def join(names: Iterable[object], most: int = 12) -> str:
    """A, B and C."""
    listed = list(map(str, names))
    if len(listed) > most:
        listed[most - 1 :] = [f"{len(listed) - most + 1} others"]
    parts = [", ".join(listed[:-1]), *listed[-1:]]
    return " and ".join(filter(None, parts))


def opening(data: Comparison) -> str:
    """The paragraph about what was compared, from the data alone."""
    if not data.own:
        return f"Published curves on {join(data.tasks)}; no run of ours."
    tasks = data.tasks[0]
    if len(data.tasks) > 1:
        tasks = f"{len(data.tasks)} tasks ({join(data.tasks)})"
    rewards = f"One arm ({join(data.own_arms)})"
    if len(data.own_arms) > 1:
        rewards = f"{len(data.own_arms)} arms ({join(data.own_arms)})"
    agents: Counter[str] = Counter()
    states: Counter[str] = Counter()
    totals = set()
    seeds = set()
    for run in data.own:
        agents[run.agent] += 1
        states[run.state] += 1
        if run.seed is not None:
            seeds.add(run.seed)
        if np.isfinite(run.total):
            totals.add(run.total)
    steps = join(map(_exact_steps, sorted(totals))) or "an unknown number of"
    text = f"{rewards} on {tasks}, agent {join(agents)}, {steps} steps a run, {_list_seeds(seeds)}. "
    text += f"{_count_finished(states)}."
    if data.published_arms:
        text += f" Beside them, published curves: {join(data.published_arms)}."
    return text


def _exact_steps(steps: float) -> str:
    """A short label if it is the whole number, else all digits."""
    if steps % 1000 == 0:
        return label_steps(steps)
    return f"{steps:,.0f}"


def _list_seeds(seeds: set[int]) -> str:
    listed = sorted(seeds)
    if len(listed) > 2:
        return f"seeds {listed[0]} to {listed[-1]}"
    return f"seed{'s' * (len(listed) > 1)} {join(listed)}"


def _count_finished(states: Counter[str]) -> str:
    """How many runs finished, and what became of the others."""
    total = sum(states.values())
    text = f"{states.pop('finished', 0)} of {total} runs finished"
    others = [f"{count} {state}" for state, count in states.most_common()]
    if others:
        text += f" ({'; '.join(others)})"
    return text


def evidence(numbers: Numbers) -> list[str]:
    """What differs, good or bad, and how much can be concluded; weak evidence is called so."""
    data = numbers.data
    lines = []
    with_interval = 0
    for row in numbers.find("difference"):
        with_interval += np.isfinite(row.low)
        if row.low > 0 or row.high < 0:
            verdict = "better" if row.low > 0 else "worse"
            lines.append(f"{row.task}: {row.arm} is {verdict} than {row.against}, {signed_text(row)} task return.")
    fewest = MIN_CONCLUSIVE_SEEDS
    for row in numbers.find("final"):
        if row.arm in data.own_arms:
            fewest = min(fewest, row.runs)
    if fewest < MIN_CONCLUSIVE_SEEDS:
        seeds = f"{fewest} seed{'s' * (fewest > 1)}" if fewest else "no score"
        lines.append(
            f"The evidence is thin: some cells have {seeds}, where {MIN_CONCLUSIVE_SEEDS} is the least to conclude "
            "from. Read intervals as hints, and missing ones as no knowledge at all."
        )
    trained = []
    overlapping = []
    for task, evaluated in numbers.evaluated.items():
        if not evaluated:
            trained.append(task)
        if _best_overlap(numbers, task):
            overlapping.append(task)
    if trained:
        lines.append(
            f"Nothing was evaluated on {join(trained)}: scores there are the last tenth of the training curves, "
            "exploration included."
        )
    if len(data.arms) > 1 and not any(arm.baseline for arm in data.arms):
        lines.append("No arm is trained on the task's reward alone, so nothing shows whether a learned reward helped.")
    # Over all tasks, where there are several.
    lines += map(_verdict, numbers.find("normalised_difference", task=ALL_TASKS))
    if overlapping:
        lines.append(f"The intervals of the two best arms overlap on {join(overlapping)}.")
    if with_interval > 1:
        # Many comparisons: some intervals exclude 0 without any difference.
        lines.append(
            f"{with_interval} differences are listed, each with a 95 % interval of its own: among {with_interval}, "
            f"about {number(0.05 * with_interval, 2)} would exclude 0 by chance alone."
        )
    alarmed = sum(row.runs for row in numbers.find("alarms"))
    if alarmed:
        runs = f"{alarmed} run{'s' * (alarmed > 1)}"
        lines.append(f"The hacking alarm was raised in {runs}: the learned return rose while the task's fell.")
    return lines


def _verdict(row: Row) -> str:
    text = f"{row.arm} against {row.against}, same seeds: {signed_text(row)} normalised"
    if not np.isfinite(row.low):
        return f"{text}; too few runs to say more."
    if row.low > 0:
        return f"{text}: better."
    if row.high < 0:
        return f"{text}: worse."
    return f"{text}: the interval holds 0, so no difference is shown."


def _best_overlap(numbers: Numbers, task: str) -> bool:
    """Whether the intervals of the two best arms overlap."""
    finals = [row for row in numbers.find("final", task=task) if np.isfinite(row.low)]
    finals.sort(key=lambda row: -row.value)
    return len(finals) > 1 and finals[1].high >= finals[0].low


def scales(numbers: Numbers) -> list[str]:
    """What 0 and 1 mean on each task, and what has no such scale; empty for a single arm."""
    if len(numbers.data.own_arms) < 2:
        return []
    tasks = defaultdict(list)
    for task, scale in numbers.scales.items():
        if not scale.missing:
            tasks[scale.name].append(task)
    lines = []
    for name, members in tasks.items():
        lines.append(f"On {join(members)}, 0 is a random policy's score and 1 is {name}.")
    if "best arm" in "".join(tasks):
        lines.append(
            "The best arm is the unit where there is no single baseline, or where the baseline's lead over a random "
            f"policy is less than {MIN_BASELINE_LEAD:.0%} of the best arm's."
        )
    return lines + list(map("Left out: {}.".format, numbers.left_out))


def _figures(numbers: Numbers, bands: Bands, points: int) -> Values:
    values: Values = {}
    with matplotlib.rc_context(plots.STYLE):
        shares, values["shares_left"] = plots.shares(numbers.data, points)
        truth, values["truth_left"] = plots.truth(numbers, points)
        figures = {
            "learning": plots.learning(numbers, bands) if bands else None,
            "aggregate": plots.aggregate(numbers),
            "forest": plots.forest(numbers),
            "shares": shares,
            "truth": truth,
        }
        for name, figure in figures.items():
            values[name] = html.figure(figure, transparent=True)
    return values


def _score_rows(numbers: Numbers, task: str) -> Table:
    """A task's rows of the main table.

    Columns: name, whether it is printed pale, value, interval, seeds, value by its mode, success,
    normalised value, difference to the baseline.
    """
    rows: Table = []
    scale = numbers.scales[task]
    for row in numbers.find("final", task=task):
        published = row.arm in numbers.data.published_arms
        seeds = str(row.runs)
        if row.runs != row.of:
            seeds += f" of {row.of}"
        mode = numbers.value("mode", task=task, arm=row.arm)
        success = _percentage(numbers.value("success", task=task, arm=row.arm))
        normalised = DASH
        # Published returns come from training, so they are on no scale of evaluations.
        if not scale.missing and np.isfinite(row.value) and not published:
            normalised = number(scale(row.value), 3)
        difference = numbers.find_one("difference", task=task, arm=row.arm)
        difference_text = DASH
        if difference is not None:
            difference_text = signed_text(difference)
        cells = [number(mode), success, normalised, difference_text]
        rows.append((row.arm, published, *interval_texts(row), seeds, *cells))
        # What the same policies do for each user they were told to serve.
        for user_row in numbers.find("told", task=task, arm=row.arm):
            user = user_row.against
            name = f"{row.arm}, told it serves {user}"
            success = _percentage(numbers.value("told_success", task=task, arm=row.arm, against=user))
            rows.append((name, True, *interval_texts(user_row), user_row.runs, DASH, success, "", ""))
    chance = numbers.value("random", task=task)
    if np.isfinite(chance):
        rows.append(("random policy", True, number(chance), "", "", "", "", "0", ""))
    return rows


def _percentage(share: float) -> str:
    if np.isnan(share):
        return DASH
    return f"{share:.0%}"


def _overall_rows(numbers: Numbers) -> Table:
    """An arm's normalised score and its probability of beating its baseline, with intervals."""
    rows = []
    for row in numbers.find("normalised"):
        improvement = numbers.find_one("improvement", arm=row.arm)
        probability = (DASH, DASH)
        if improvement is not None:
            probability = interval_texts(improvement, 3)
        rows.append((row.arm, *interval_texts(row, 3), row.runs, *probability))
    return rows


def _list_gaps(data: Comparison, bands: Bands) -> list[str]:
    """A sentence about each task without a curve, and about each arm whose runs did not all reach the same step."""
    lines = []
    without_curve = [task for task in data.tasks if all(task != drawn for drawn, _ in bands)]
    if without_curve:
        lines.append(f"There is no curve of {join(without_curve)}: no row of the logs has a task return.")
    for (task, arm), band in bands.items():
        with_any = np.flatnonzero(band.runs > 0)
        complete = np.flatnonzero(band.is_complete)
        if len(complete):
            if complete[-1] < with_any[-1]:
                end = label_steps(band.steps[complete[-1]])
                left = int(band.runs[with_any[-1]])
                lines.append(f"{task}, {arm}: fewer than all {band.of} runs after {end} steps, {left} at the end.")
        elif band.of > 1:
            lines.append(f"{task}, {arm}: its {band.of} runs have no step in common, so there is no band.")
    return lines


def _threshold_tables(numbers: Numbers) -> Table:
    """A table a task: its thresholds, and for each arm three cells for each threshold.

    They are the median of the steps to it, their range, and how many runs got there.
    """
    tables = []
    for task, limits in numbers.thresholds.items():
        arms = defaultdict(list)
        for row in numbers.find("steps_to", task=task):
            # The row is infinite where no run got there.
            median, low, high = map(_steps_or_never, (row.value, row.low, row.high))
            steps_range = DASH
            if row.runs:
                steps_range = f"{low} to {high}"
            arms[row.arm].append((median, steps_range, f"{row.runs} of {row.of}"))
        if arms:
            captions = [(caption, number(limit)) for caption, limit in limits]
            tables.append((task, captions, arms.items()))
    return tables


def _steps_or_never(steps: float) -> str:
    if np.isfinite(steps):
        return f"{steps:,.0f}"
    return "never"


def _alarm_rows(data: Comparison) -> Table:
    """Task, arm, seed, share of the log, first and last step of each run with the hacking alarm."""
    rows: Table = []
    for task, arm, runs in data.cells():
        for run in runs:
            alarmed = alarm(run)
            if alarmed is not None:
                share, first, last = alarmed
                seed = DASH if run.seed is None else run.seed
                rows.append((task, arm.name, seed, f"{share:.0%}", f"{first:,.0f}", f"{last:,.0f}"))
    return rows


def _cost_rows(data: Comparison) -> Table:
    """Task, arm, stream, limit, mean cost over runs, and how many of the runs held it, of each stream with a limit."""
    rows: Table = []
    for task, arm, runs in data.cells():
        costs: dict[tuple[str, float], list[float]] = defaultdict(list)
        for run in runs:
            scores = run.scores.get("this run", {})
            for name, cost in mean_costs(scores).items():
                costs[name, scores["metrics"][f"{name}{LIMIT}"]].append(cost)
        for (name, limit), measured in costs.items():
            held = sum(cost <= limit for cost in measured)
            cells = (number(limit), number(float(np.mean(measured))), f"{held} of {len(measured)}")
            rows.append((task, arm.name, name, *cells))
    return rows


def _config_texts(data: Comparison) -> list[tuple[str, str]]:
    """The name and the config.yaml of each run, as long as the budget lasts."""
    texts = []
    spent = 0
    for run in data.own:
        spent += len(run.text)
        texts.append((run.name, TOO_LARGE if spent > MAX_CONFIG_CHARACTERS else run.text))
    return texts


def _videos(numbers: Numbers) -> Values:
    """One video a cell as long as the budget lasts; names of cells whose video is left out."""
    videos = []
    left_out = []
    spent = 0
    for task, arm, runs in numbers.data.cells():
        scores = numbers.scores[task, arm.name]
        run, path = _find_median_video(runs, scores)
        if run is None:
            continue
        caption = f"{arm.name}, {task}, seed {run.seed}"
        try:
            content = read_bytes(path, MAX_VIDEO_BYTES)
        except OSError:
            # It is too large, or cannot be read.
            content = b""
        kind = _media_type(content)
        if not kind or spent + len(content) > MAX_PAGE_VIDEO_BYTES:
            left_out.append(caption)
            continue
        spent += len(content)
        if run.key in scores:
            caption += f", task return {number(scores[run.key])}"
        videos.append((html.data_uri(content, kind), caption, _player_ratio(content)))
    return {"videos": videos, "videos_left": join(left_out, 30)}


def _find_median_video(runs: list[Run], scores: dict[Any, float]) -> tuple[Run | None, Path]:
    """Of the runs with a video the one whose score is nearest the median, and its file."""
    median = np.median(list(scores.values())) if scores else 0.0

    def rank(run: Run) -> tuple[float, int]:
        return abs(scores.get(run.key, np.inf) - median), run.seed or 0

    for run in sorted(runs, key=rank):
        for name in ("video.mp4", "video.gif"):
            if run.folder and (run.folder / name).is_file():
                return run, run.folder / name
    return None, Path()


def _media_type(content: bytes) -> str:
    """By the first bytes of a file; empty if it is no video that a page can show."""
    if content[4:8] == b"ftyp":
        return "video/mp4"
    if content.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    return ""


def _player_ratio(content: bytes) -> float:
    """Width over height of a player whose controls stand below the picture, as the captions are at its lower edge."""
    # An MP4 says the picture's size in the last eight bytes of its track's header, in 65,536ths of a pixel.
    place = content.find(b"tkhd")
    start = place - 4
    length = int.from_bytes(content[start:place], "big")
    size = content[start + length - 8 : start + length]
    if place < 4 or len(size) < 8:
        return 1.0
    width = int.from_bytes(size[:4], "big")
    height = int.from_bytes(size[4:], "big")
    if not width or not height:
        return 1.0
    return round(width / (height + CONTROLS_OF_WIDTH * width), 4)


def _provenance(data: Comparison) -> Values:
    """Versions, machines, times and commands, and a line for each run."""
    packages = defaultdict(set)
    hosts = set()
    times = []
    seconds = []
    commands = dict.fromkeys(data.commands)
    for run in data.own:
        for package, version in run.versions.items():
            packages[package].add(version)
        if run.status.get("host"):
            hosts.add(str(run.status["host"]))
        if run.status.get("time"):
            times.append(str(run.status["time"]))
        duration = _duration(run)
        if np.isfinite(duration):
            seconds.append(duration)
        # Of a run that was continued the last command.
        commands.update(dict.fromkeys(run.commands[-1:]))
    used = []
    mixed = []
    for package, versions in packages.items():
        used.append(f"{package} {' and '.join(sorted(versions))}")
        if len(versions) > 1:
            mixed.append(package)
    # Runs of one report may come from machines with different versions.
    lines = ["No run says which versions it used."]
    if used:
        lines = [f"Made with {join(used, 40)}."]
    if mixed:
        lines.append(f"Not all runs used the same {join(mixed)}.")
    if hosts:
        lines.append(f"Machines: {join(sorted(hosts))}.")
    if times:
        lines.append(f"Runs ended between {min(times)} and {max(times)}.")
    if seconds:
        lines.append(f"Training took {clock(sum(seconds))} in all, summed over runs.")
    listed = [command[:MAX_COMMAND_CHARACTERS] for command in commands]
    if len(listed) > MAX_LISTED_COMMANDS:
        listed[MAX_LISTED_COMMANDS:] = [f"... and {len(listed) - MAX_LISTED_COMMANDS} more"]
    return {"versions": " ".join(lines), "runs": list(map(_run_row, data.runs)), "commands": "\n".join(listed)}


def _run_row(run: Run) -> TableRow:
    """Name, state, exit code, steps, starts, time, end and place of a run, for the list of all."""
    # A run outside a sweep has no entry, and each of its commands was a start.
    attempt = run.attempt or Entry()
    starts = attempt.attempts or len(run.commands) or DASH
    place = attempt.where or str(run.status.get("host", DASH))
    code = run.status.get("exit_code")
    if code is None:
        code = DASH
    step = DASH
    if len(run.steps):
        step = f"{run.last_step:,.0f}"
    end = str(run.status.get("time", DASH))
    return run.name, run.state, code, step, starts, _clock(_duration(run)), end, place


def _duration(run: Run) -> float:
    """Seconds that a run took: what its sweep measured, or what its last start logged."""
    if run.attempt is not None and run.attempt.seconds:
        return float(run.attempt.seconds)
    _, elapsed = run.curve(ELAPSED)
    if not len(elapsed):
        return NAN
    return float(elapsed[-1])


def _clock(seconds: float) -> str:
    if np.isnan(seconds):
        return DASH
    return clock(seconds)
