"""The figures of the report, drawn without a window: colours that colour-blind people can tell apart, few lines.

Text comes from files, so `$` in it is a dollar, not the beginning of a formula.
"""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_params_from_file
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from runners.report.comparison import Arm, Bands, Comparison, align_curves, learned_and_task_returns, step_grid
from runners.report.numbers import ALL_TASKS, Numbers, Row
from runners.report.read import Run

# Okabe and Ito 2008, without the yellow that vanishes on white.
ARM_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7a4b9e", "#8c6d31")
# Of a baseline, which is ink, of a control run, and of published runs and a random policy.
INK = "#24292f"
CONTROL_COLOUR = "#a08060"
PUBLISHED_COLOUR = "#7b828c"
PALE = "#d5d8dc"
# Lines of several arms that share one of these colours.
SHARED_COLOUR_LINES = {INK: ("-", "--", "-."), CONTROL_COLOUR: (":", "--"), PUBLISHED_COLOUR: ("--", "-.", ":")}
# Pale, because names are written on them.
STREAM_COLOURS = ("#8fc1e3", "#f2b48a", "#8fd1ba", "#e6bcd3", "#f3d38a", "#c9b3d9")
STYLE = rc_params_from_file(Path(__file__).with_name("style.txt"), use_default_template=False)
# The line of a random policy.
RANDOM: dict[str, Any] = {"color": PUBLISHED_COLOUR, "linewidth": 0.9, "linestyle": (0, (1, 2))}
# Panels side by side, and the size of one.
GRID_COLUMNS = 3
PANEL_INCHES = (3.7, 2.55)
# Of small multiples, which stand closer.
MAX_SMALL_PANELS = 24
SMALL_PANEL_COLUMNS = 4
# Up to so many arms with names of so many letters are written beside the lines themselves.
MAX_DIRECT_ARMS = 6
MAX_DIRECT_NAME = 18
# Of an axis: how far names beside the lines have to be apart.
NAME_GAP = 0.075


def arm_styles(data: Comparison) -> dict[str, dict[str, Any]]:
    """Arm -> colour and line, the same on the whole page."""
    by_arm = {}
    counts: Counter[str] = Counter()
    for arm in data.arms:
        colour = _shared_colour(arm)
        number = counts[colour]
        counts[colour] += 1
        if colour:
            lines = SHARED_COLOUR_LINES[colour]
            line = lines[number % len(lines)]
        else:
            colour = ARM_COLOURS[number % len(ARM_COLOURS)]
            line = "-" if number < len(ARM_COLOURS) else "--"
        by_arm[arm.name] = {"color": colour, "linestyle": line}
    return by_arm


def _shared_colour(arm: Arm) -> str:
    """The colour of a kind of arms; empty for those that have one of their own."""
    if arm.published:
        return PUBLISHED_COLOUR
    if arm.control:
        return CONTROL_COLOUR
    return INK if arm.reward == "task" else ""


def grid(
    count: int, size: tuple[float, float] = PANEL_INCHES, columns: int = GRID_COLUMNS, fixed: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels, margins as its text needs; `fixed` ones take a third of the time."""
    across = min(count, columns)
    if count == 4 and columns == 3:
        across = 2
    down = math.ceil(count / across)
    width = size[0] * across
    height = size[1] * down
    figure = Figure(figsize=(width, height), layout=None if fixed else "constrained", facecolor="white")
    FigureCanvasAgg(figure)
    if fixed:
        # Inches around and between the panels.
        figure.subplots_adjust(0.55 / width, 0.45 / height, 1 - 0.15 / width, 1 - 0.4 / height)
        figure.subplots_adjust(wspace=0.5 / (size[0] - 0.5), hspace=0.72 / (size[1] - 0.72))
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for axis in axes[count:]:
        axis.set_visible(False)
    return figure, list(axes[:count])


def learning(numbers: Numbers, bands: Bands, aggregated: bool = False) -> Figure:
    """Task return over steps, one panel a task.

    With the aggregate as a last panel it is the picture for a paper.
    """
    data = numbers.data
    rows = numbers.find("normalised")
    tasks = sorted({task for task, _ in bands}, key=data.tasks.index)
    with_aggregate = aggregated and len(rows) > 0 and len(data.arms) > 1
    count = len(tasks) + with_aggregate
    width, height = PANEL_INCHES
    columns = GRID_COLUMNS
    if count == 1:
        width, height = (6.4, 3.4)
    elif aggregated and count < 4:
        # The aggregate has a line for each arm.
        height = max(height, 0.2 * len(rows) + 0.8)
    elif aggregated and count > 6:
        columns = 4
    figure, axes = grid(max(count, 1), (width, height), columns)
    for axis, task in zip(axes, tasks):
        panel(axis, numbers, bands, task)
    if with_aggregate:
        draw_intervals(axes[-1], data, rows, "normalised score, IQM and 95 % interval")
        axes[-1].set_title("all tasks" if len(data.tasks) > 1 else "final score")
    if not _names_fit_beside_lines(data):
        _add_legend(figure, data)
    return figure


def panel(axis: Axes, numbers: Numbers, bands: Bands, task: str) -> None:
    """One task's curves: solid with a band while all runs are there, dashed where some have stopped."""
    data = numbers.data
    arm_looks = arm_styles(data)
    # The last value of each line, with its name and colour.
    ends = []
    extremes: list[float] = []
    for arm in data.arms:
        band = bands.get((task, arm.name))
        if band is None:
            continue
        look = arm_looks[arm.name]
        colour = look["color"]
        complete = np.where(band.is_complete, band.value, np.nan)
        axis.plot(band.steps, complete, **look, linewidth=1.5, zorder=3 - arm.published)
        axis.fill_between(band.steps, band.low, band.high, color=colour, alpha=0.16, linewidth=0)
        # A run that logged once has no line.
        if band.steps[0] == band.steps[-1]:
            axis.plot(band.steps[-1:], band.value[-1:], "o", color=colour, markersize=4)
        late = np.ones(len(band.steps), bool)
        if band.is_complete.any():
            late = band.steps >= band.steps[band.is_complete][-1]
        axis.plot(band.steps[late], band.value[late], color=colour, linestyle=(0, (1, 1.5)), linewidth=1.2)
        finite = band.value[np.isfinite(band.value)]
        if len(finite):
            ends.append((float(finite[-1]), arm.name, colour))
        extremes += band.span
    chance = numbers.value("random", task=task)
    if np.isfinite(chance):
        axis.axhline(chance, **RANDOM, zorder=1)
        ends.append((chance, "random policy", PUBLISHED_COLOUR))
    # By what happened: a band of two runs may reach far beyond it.
    extremes += [value for value, _, _ in ends]
    low = min(extremes)
    high = max(extremes)
    margin = 0.04 * (high - low) or 1.0
    axis.set_ylim(low - margin, high + margin)
    axis.set(title=cut(task, 44), xlabel="environment steps", ylabel="task return")
    _format_steps(axis)
    if _names_fit_beside_lines(data):
        _write_names(axis, ends)


def _write_names(axis: Axes, ends: list[tuple[float, str, str]]) -> None:
    """Write names at the ends of lines, moved apart where they would touch."""
    low, high = axis.get_ylim()
    ends.sort()
    values = np.array([value for value, _, _ in ends])
    # What the names below one need. Upwards from the lowest line, in shares of the axis, each stands above them; then
    # the top leaves room for those above it.
    room = NAME_GAP * np.arange(len(ends))
    heights = np.maximum.accumulate((values - low) / (high - low) - room) + room
    heights = np.minimum(heights, 1.02 - room[::-1])
    for (_, name, colour), height in zip(ends, heights):
        axis.text(1.02, height, name, transform=axis.transAxes, color=colour, fontsize=8, va="center")


def _names_fit_beside_lines(data: Comparison) -> bool:
    return len(data.arms) <= MAX_DIRECT_ARMS and all(len(arm.name) <= MAX_DIRECT_NAME for arm in data.arms)


def _add_legend(figure: Figure, data: Comparison) -> None:
    handles = []
    names = []
    for name, look in arm_styles(data).items():
        handles.append(Line2D([], [], **look, linewidth=1.6))
        names.append(cut(name, 60))
    handles.append(Line2D([], [], **RANDOM))
    names.append("random policy")
    # An inch has room for about 13 letters.
    room = int(figure.get_figwidth() * 13 / (max(map(len, names)) + 6))
    columns = max(1, min(len(names), room))
    figure.set_figheight(figure.get_figheight() + 0.2 * math.ceil(len(names) / columns))
    figure.legend(handles, names, loc="outside upper left", ncols=columns)


def aggregate(numbers: Numbers) -> Figure | None:
    """Normalised IQM, performance profiles and probability of improvement.

    None without two arms on a common scale.
    """
    rows = numbers.find("normalised")
    if len(rows) < 2:
        return None
    improvements = numbers.find("improvement")
    height = max(2.5, 0.3 * len(rows) + 1.3)
    figure, axes = grid(3 if improvements else 2, (3.7, height))
    draw_intervals(axes[0], numbers.data, rows, "normalised score, IQM")
    axes[0].axvline(0, color=PALE, linewidth=0.8, zorder=0)
    axes[0].axvline(1, color=PALE, linewidth=0.8, zorder=0)
    _draw_profiles(axes[1], numbers)
    if improvements:
        draw_intervals(axes[2], numbers.data, improvements, "probability of beating its baseline")
        axes[2].axvline(0.5, color=PALE, linewidth=0.8, zorder=0)
        axes[2].set_xlim(-0.02, 1.02)
    return figure


def draw_intervals(axis: Axes, data: Comparison, rows: Sequence[Row], caption: str) -> None:
    """A dot and its interval for each arm, from top to bottom."""
    arm_looks = arm_styles(data)
    names = []
    for i, row in enumerate(rows):
        colour = arm_looks[row.arm]["color"]
        if np.isfinite(row.low):
            axis.plot([row.low, row.high], [-i, -i], color=colour, linewidth=2.2, alpha=0.5, solid_capstyle="butt")
        axis.plot([row.value], [-i], "o", color=colour, markersize=5)
        names.append(cut(row.arm, 34))
    _label_rows(axis, names, caption)


def _label_rows(axis: Axes, names: list[str], caption: str) -> None:
    """Names down the left side; an empty one is a gap."""
    axis.set_yticks(-np.flatnonzero(names), list(filter(None, names)))
    axis.set_ylim(-len(names) + 0.4, 0.6)
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    axis.set_xlabel(caption)


def _draw_profiles(axis: Axes, numbers: Numbers) -> None:
    arm_looks = arm_styles(numbers.data)
    thresholds, profiles = numbers.profiles()
    for name, profile in profiles.items():
        look = arm_looks[name]
        axis.plot(thresholds, profile.value, **look, linewidth=1.5)
        axis.fill_between(thresholds, profile.low, profile.high, color=look["color"], alpha=0.13, linewidth=0)
    axis.set(xlabel="normalised score x", ylabel="share of runs above x", ylim=(-0.02, 1.02))


def forest(numbers: Numbers) -> Figure | None:
    """Paired differences to the baseline, normalised: each task, then all; None without a baseline."""
    # Rows of an arm follow each other, with a gap before the next arm.
    rows: list[Row | None] = []
    for arm in numbers.data.arms:
        arm_rows = numbers.find("normalised_difference", arm=arm.name)
        if len(arm_rows) == 2:
            # One task is all tasks.
            arm_rows.pop()
        if rows and arm_rows:
            rows.append(None)
        rows += arm_rows
    if not rows:
        return None
    figure, (axis,) = grid(1, (7.6, 0.9 + 0.235 * len(rows)))
    arm_looks = arm_styles(numbers.data)
    names = []
    weights = []
    for i, row in enumerate(rows):
        if row is None:
            names.append("")
            continue
        colour = arm_looks[row.arm]["color"]
        marker = "o"
        size = 4
        linewidth = 1.4
        weight = "normal"
        if row.task == ALL_TASKS:
            marker = "D"
            size = 6
            linewidth = 3
            weight = "bold"
        if np.isfinite(row.low):
            axis.plot([row.low, row.high], [-i, -i], color=colour, linewidth=linewidth, alpha=0.55)
        axis.plot([row.value], [-i], marker, color=colour, markersize=size)
        names.append(f"{cut(row.arm, 30)}, {cut(row.task, 30)}")
        weights.append(weight)
    axis.axvline(0, color=INK, linewidth=0.8, zorder=0)
    _label_rows(axis, names, "difference to the baseline, normalised")
    for label, weight in zip(axis.get_yticklabels(), weights):
        label.set_fontweight(weight)
    return figure


def shares(data: Comparison, points: int) -> tuple[Figure | None, int]:
    """Shares of the reward, mean over runs, one panel a cell that has several streams.

    The number is how many cells were left out.
    """
    cells = []
    for task, arm, runs in data.cells():
        steps, means = _mean_shares(runs, points)
        if len(means) > 1:
            cells.append((task, arm, steps, means))
    figure, axes, left_out = _small_panels(len(cells), 2.1, "environment steps", "share of the reward")
    for axis, (task, arm, steps, means) in zip(axes, cells):
        colours = []
        for i, name in enumerate(means):
            colour = PALE if name == "task" else STREAM_COLOURS[i % len(STREAM_COLOURS)]
            colours.append(colour)
        if steps[0] == steps[-1]:
            # The only row of a log is about all steps before it.
            steps = np.array([0.0, steps[-1]])
            means = {name: np.repeat(mean[:1], 2) for name, mean in means.items()}
        axis.stackplot(steps, *means.values(), colors=colours)
        _write_stream_names(axis, steps, means)
        axis.set_title(f"{cut(arm.name, 30)}\n{cut(task, 30)}", fontsize=8)
        axis.set(ylim=(0, 1), xlim=(steps[0], steps[-1]), yticks=(0, 0.5, 1))
        _format_steps(axis, 3)
    return figure, left_out


def _mean_shares(runs: list[Run], points: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """A grid of steps, and stream -> its share of the reward there, the task's first."""
    tags = set()
    steps = []
    for run in runs:
        for tag in run.table:
            tag_steps, _ = run.curve(tag)
            if tag.endswith("_share") and len(tag_steps):
                tags.add(tag)
                steps.append(tag_steps)
    common_steps = step_grid(steps, points)
    means = {}
    for tag in sorted(tags, key=lambda tag: (tag != "reward/task_share", tag)):
        curves = align_curves(runs, common_steps, tag)
        # Runs that have ended do not count; where all have, the share is 0.
        counts = np.maximum(np.isfinite(curves).sum(0), 1)
        stream = tag.removeprefix("reward/").removesuffix("_share")
        means[stream] = np.nansum(curves, 0) / counts
    return common_steps, means


def _write_stream_names(axis: Axes, steps: np.ndarray, means: dict[str, np.ndarray]) -> None:
    """Write each stream's name where its share is largest, if there is room."""
    lower = np.zeros(len(steps))
    for name, mean in means.items():
        largest = int(np.argmax(mean))
        if mean[largest] > 0.12:
            side = "center"
            if largest < len(steps) / 8:
                side = "left"
            elif largest > len(steps) * 7 / 8:
                side = "right"
            height = float(lower[largest] + mean[largest] / 2)
            axis.text(steps[largest], height, f" {cut(name, 16)} ", ha=side, va="center", fontsize=8)
        lower += mean


def truth(numbers: Numbers, points: int) -> tuple[Figure | None, int]:
    """Task return against learned return, a point a row of the log, one panel a cell.

    The number is how many cells were left out.
    """
    cells = []
    for task, arm, runs in numbers.data.cells():
        run_rows = list(map(learned_and_task_returns, runs))
        if any(len(steps) for steps, _, _ in run_rows):
            cells.append((task, arm, run_rows))
    figure, axes, left_out = _small_panels(len(cells), 2.3, "learned return", "task return")
    for axis, (task, arm, run_rows) in zip(axes, cells):
        most = max(20, points // len(run_rows))
        for steps, learned, task_return in run_rows:
            if not len(steps):
                continue
            # Evenly spread, first and last row among them.
            spread = np.linspace(0, len(steps) - 1, min(len(steps), most))
            rows = np.unique(spread.round().astype(int))
            progress = steps[rows] / max(steps[-1], 1)
            # Late rows are dark.
            colours = {"c": progress, "vmin": 0, "vmax": 1.1, "cmap": "viridis_r"}
            axis.scatter(learned[rows], task_return[rows], **colours, s=7, linewidths=0, rasterized=True)
        title = cut(arm.name, 24)
        correlation = numbers.value("rank_correlation", task=task, arm=arm.name)
        if np.isfinite(correlation):
            title += f"  ρ = {correlation:.2f}"
        axis.locator_params(nbins=4)
        axis.set_title(f"{title}\n{cut(task, 30)}", fontsize=8)
    return figure, left_out


def _small_panels(count: int, height: float, xlabel: str, ylabel: str) -> tuple[Figure | None, list[Axes], int]:
    """Small panels, labelled at the left and below only, None without one; and how many are too many."""
    if not count:
        return None, [], 0
    figure, axes = grid(min(count, MAX_SMALL_PANELS), (2.85, height), SMALL_PANEL_COLUMNS, fixed=True)
    for axis in axes[::SMALL_PANEL_COLUMNS]:
        axis.set_ylabel(ylabel)
    for axis in axes[-SMALL_PANEL_COLUMNS:]:
        axis.set_xlabel(xlabel)
    return figure, axes, max(0, count - MAX_SMALL_PANELS)


def _format_steps(axis: Axes, most: int = 5) -> None:
    axis.xaxis.set_major_locator(MaxNLocator(most))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: label_steps(value)))


def cut(text: str, most: int) -> str:
    """A text of at most so many printable letters, its middle left out."""
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    if len(text) <= most:
        return text
    # Names differ at their ends, too.
    half = (most - 3) // 2
    return f"{text[:half]}...{text[-half:]}"


def label_steps(steps: float) -> str:
    """A short number of steps: 950, 20k, 1.5M."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if steps >= size:
            return f"{steps / size:.3g}{letter}"
    return f"{steps:.0f}"
