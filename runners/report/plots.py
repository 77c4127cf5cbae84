"""The figures of the report, drawn without a window: colours that colour-blind people can tell apart, few lines.

Text comes from files, so `$` in it is a dollar, not the beginning of a formula.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from runners.report.comparison import Band, Comparison, against, aligned, step_grid
from runners.report.numbers import ALL, Numbers, Row

# Okabe and Ito 2008, without the yellow that vanishes on white; the baseline is ink, published runs are grey.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7a4b9e", "#8c6d31")
INK, CONTROL, GREY, PALE = "#24292f", "#a08060", "#7b828c", "#d5d8dc"
STREAMS = ("#8fc1e3", "#f2b48a", "#8fd1ba", "#e6bcd3", "#f3d38a", "#c9b3d9")  # pale: names are written on them
TASK_STREAM = "#d5d8dc"
STYLE: dict[Any, Any] = {
    **{"font.size": 9, "axes.titlesize": 9.5, "axes.labelsize": 8.5, "legend.fontsize": 8.5, "axes.linewidth": 0.7},
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 8),
    **dict.fromkeys(("xtick.color", "ytick.color"), "#5a616a"),
    **dict.fromkeys(("axes.labelcolor", "text.color"), INK),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon", "text.parse_math"), False),
    **{"axes.titlelocation": "left", "axes.edgecolor": "#9aa0a8", "svg.hashsalt": "lodestar", "svg.fonttype": "path"},
}
RANDOM: dict[str, Any] = {"color": GREY, "linewidth": 0.9, "linestyle": (0, (1, 2))}  # a random policy's line
COLUMNS, PANEL = 3, (3.7, 2.55)  # panels side by side, and the size of one, inches
MOST_PANELS = 24  # of small multiples
SHORT, FEW = 18, 6  # letters of an arm's name and number of arms that are written beside the lines themselves


def looks(data: Comparison) -> dict[str, dict[str, Any]]:
    """Arm -> colour and line, the same on the whole page."""
    found: dict[str, dict[str, Any]] = {}
    counts: Counter[str] = Counter()
    lines = {INK: ("-", "--", "-."), CONTROL: (":", "--"), GREY: ("--", "-.", ":")}
    for arm in data.arms:
        colour = GREY if arm.published else CONTROL if arm.control else INK if arm.reward == "task" else ""
        i = counts[colour]
        counts[colour] += 1
        line = lines[colour][i % len(lines[colour])] if colour else "-" if i < len(COLOURS) else "--"
        found[arm.name] = {"color": colour or COLOURS[i % len(COLOURS)], "linestyle": line}
    return found


def grid(
    count: int, size: tuple[float, float] = PANEL, columns: int = COLUMNS, fixed: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels, margins as what is written needs; `fixed` ones take a third of the time."""
    across = 2 if count == 4 and columns == 3 else min(count, columns)
    down = -(-count // across)
    wide, high = size[0] * across, size[1] * down
    figure = Figure(figsize=(wide, high), layout=None if fixed else "constrained", facecolor="white")
    FigureCanvasAgg(figure)
    if fixed:  # inches around and between the panels
        figure.subplots_adjust(0.55 / wide, 0.45 / high, 1 - 0.15 / wide, 1 - 0.4 / high)
        figure.subplots_adjust(wspace=0.5 / (size[0] - 0.5), hspace=0.72 / (size[1] - 0.72))
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for axis in axes[count:]:
        axis.set_visible(False)
    return figure, list(axes[:count])


def learning(numbers: Numbers, bands: dict[tuple[str, str], Band], aggregated: bool = False) -> Figure:
    """Task return over steps, one panel a task; with the aggregate as a last panel it is the picture for a paper."""
    data, rows = numbers.data, numbers.find("normalised")
    tasks = [task for task in data.tasks if any((task, arm.name) in bands for arm in data.arms)]
    both = aggregated and bool(rows) and len(data.arms) > 1
    count = len(tasks) + both
    high = max(PANEL[1], 0.2 * len(rows) + 0.8 if aggregated and count < 4 else 0)
    size = (6.4, 3.4) if count == 1 else (PANEL[0], high)
    figure, axes = grid(max(count, 1), size, 4 if aggregated and count > 6 else COLUMNS)
    for axis, task in zip(axes, tasks):
        panel(axis, numbers, bands, task)
    if both:
        dots(axes[-1], data, rows, "normalised score, IQM and 95 % interval")
        axes[-1].set_title("all tasks" if len(data.tasks) > 1 else "final score")
    if not _direct(data):
        _legend(figure, data)
    return figure


def panel(axis: Axes, numbers: Numbers, bands: dict[tuple[str, str], Band], task: str) -> None:
    """One task's curves: solid with a band while all runs are there, dashed where some have stopped."""
    data = numbers.data
    seen = looks(data)
    ends: list[tuple[float, str, str]] = []
    for arm in data.arms:
        drawn = bands.get((task, arm.name))
        if drawn is None:
            continue
        look = seen[arm.name]
        colour = look["color"]
        every = np.where(drawn.whole, drawn.value, np.nan)
        axis.plot(drawn.steps, every, **look, linewidth=1.5, zorder=3 - arm.published)
        axis.fill_between(drawn.steps, drawn.low, drawn.high, color=colour, alpha=0.16, linewidth=0)
        late = drawn.steps >= drawn.steps[drawn.whole][-1] if drawn.whole.any() else np.ones(len(drawn.steps), bool)
        axis.plot(drawn.steps[late], drawn.value[late], color=colour, linestyle=(0, (1, 1.5)), linewidth=1.2)
        ends += [(float(end), arm.name, colour) for end in drawn.value[np.isfinite(drawn.value)][-1:]]
    chance = numbers.one("random", task=task)
    if chance is not None and np.isfinite(chance.value):
        axis.axhline(chance.value, **RANDOM, zorder=1)
        ends.append((chance.value, "random policy", GREY))
    reached = [end for (at, _), band in bands.items() if at == task for end in band.span]
    reached += [value for value, _, _ in ends]
    low, high = min(reached), max(reached)
    margin = 0.04 * (high - low) or 1.0
    axis.set_ylim(low - margin, high + margin)  # a band of two runs may reach far beyond anything that happened
    axis.set(title=cut(task, 44), xlabel="environment steps", ylabel="task return")
    _steps(axis)
    if _direct(data):
        _beside(axis, ends)


def _beside(axis: Axes, ends: list[tuple[float, str, str]]) -> None:
    """Write names at the ends of lines, moved apart where they would touch."""
    (low, high), gap = axis.get_ylim(), 0.075
    placed: list[float] = []
    ordered = sorted(ends)
    for value, _, _ in ordered:
        placed.append(max((value - low) / (high - low), placed[-1] + gap if placed else -np.inf))
    limit = 1.02
    for i in reversed(range(len(placed))):
        placed[i] = min(placed[i], limit)
        limit = placed[i] - gap
    for (_, name, colour), place in zip(ordered, placed):
        axis.text(1.02, place, name, transform=axis.transAxes, color=colour, fontsize=8, va="center")


def _direct(data: Comparison) -> bool:
    return len(data.arms) <= FEW and all(len(arm.name) <= SHORT for arm in data.arms)


def _legend(figure: Figure, data: Comparison) -> None:
    handles = [Line2D([], [], **look, linewidth=1.6) for look in looks(data).values()] + [Line2D([], [], **RANDOM)]
    names = [cut(arm.name, 60) for arm in data.arms] + ["random policy"]
    fit = int(figure.get_figwidth() * 13 / (max(map(len, names)) + 6))  # about 13 letters an inch
    columns = max(1, min(len(names), fit))
    figure.set_figheight(figure.get_figheight() + 0.2 * -(-len(names) // columns))
    figure.legend(handles, names, loc="outside upper left", ncols=columns)


def aggregate(numbers: Numbers) -> Figure | None:
    """Normalised IQM, performance profiles and probability of improvement; None without two arms on a common scale."""
    rows, data = numbers.find("normalised"), numbers.data
    if len(rows) < 2:
        return None
    better = numbers.find("improvement")
    figure, axes = grid(3 if better else 2, (3.7, max(2.5, 0.3 * len(rows) + 1.3)))
    dots(axes[0], data, rows, "normalised score, IQM")
    for place in (0, 1):
        axes[0].axvline(place, color=PALE, linewidth=0.8, zorder=0)
    _profiles(axes[1], numbers)
    if better:
        dots(axes[2], data, better, "probability of beating its baseline")
        axes[2].axvline(0.5, color=PALE, linewidth=0.8, zorder=0)
        axes[2].set_xlim(-0.02, 1.02)
    return figure


def dots(axis: Axes, data: Comparison, rows: Sequence[Row], caption: str) -> None:
    """A dot and its interval for each arm, from top to bottom."""
    seen = looks(data)
    for i, row in enumerate(rows):
        colour = seen[row.arm]["color"]
        if np.isfinite(row.low):
            axis.plot([row.low, row.high], [-i, -i], color=colour, linewidth=2.2, alpha=0.5, solid_capstyle="butt")
        axis.plot([row.value], [-i], "o", color=colour, markersize=5)
    _list(axis, [cut(row.arm, 34) for row in rows], caption)


def _list(axis: Axes, names: list[str], caption: str) -> None:
    """Names down the left side; an empty one is a gap."""
    axis.set_yticks([-i for i, name in enumerate(names) if name], list(filter(None, names)))
    axis.set_ylim(-len(names) + 0.4, 0.6)
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    axis.set_xlabel(caption)


def _profiles(axis: Axes, numbers: Numbers) -> None:
    seen = looks(numbers.data)
    thresholds, every = numbers.profiles()
    for name, estimate in every.items():
        axis.plot(thresholds, estimate.value, **seen[name], linewidth=1.5)
        axis.fill_between(thresholds, estimate.low, estimate.high, color=seen[name]["color"], alpha=0.13, linewidth=0)
    axis.set(xlabel="normalised score x", ylabel="share of runs above x", ylim=(-0.02, 1.02))


def forest(numbers: Numbers) -> Figure | None:
    """Paired differences to the baseline, normalised: each task, then all; None without a baseline."""
    rows: list[Row | None] = []
    for arm in numbers.data.arms:
        mine = numbers.find("normalised_difference", arm=arm.name)
        mine = mine[:1] if len(mine) == 2 else mine  # one task is all tasks
        if mine:
            rows += [*([None] if rows else []), *mine]
    if not rows:
        return None
    figure, (axis,) = grid(1, (7.6, 0.9 + 0.235 * len(rows)))
    seen = looks(numbers.data)
    for i, row in enumerate(rows):
        if row is not None:
            colour, whole = seen[row.arm]["color"], row.task == ALL
            if np.isfinite(row.low):
                axis.plot([row.low, row.high], [-i, -i], color=colour, linewidth=3 if whole else 1.4, alpha=0.55)
            axis.plot([row.value], [-i], "D" if whole else "o", color=colour, markersize=6 if whole else 4)
    axis.axvline(0, color=INK, linewidth=0.8, zorder=0)
    names = [f"{cut(row.arm, 30)}, {cut(row.task, 30)}" if row else "" for row in rows]
    _list(axis, names, "difference to the baseline, normalised")
    for label, row in zip(axis.get_yticklabels(), [row for row in rows if row]):
        label.set_fontweight("bold" if row.task == ALL else "normal")
    return figure


def shares(data: Comparison, points: int) -> tuple[Figure | None, int]:
    """Shares of the reward, mean over runs, one panel a cell that has several streams; and how many were left out."""
    cells = []
    for task, arm, runs in data.cells():
        logged = {tag for run in runs for tag in run.table if tag.endswith("_share") and len(run.curve(tag)[0])}
        tags = sorted(logged, key=lambda tag: (tag != "reward/task_share", tag))
        if len(tags) > 1:
            steps = step_grid([run.curve(tag)[0] for run in runs for tag in tags], points)
            curves = {tag.removeprefix("reward/").removesuffix("_share"): aligned(runs, steps, tag) for tag in tags}
            means = {name: np.nansum(x, 0) / np.maximum(np.isfinite(x).sum(0), 1) for name, x in curves.items()}
            cells.append((task, arm, steps, means))
    figure, axes = _multiples(len(cells), 2.1, "environment steps", "share of the reward")
    for axis, (task, arm, steps, means) in zip(axes, cells):
        colours = [TASK_STREAM if name == "task" else STREAMS[i % len(STREAMS)] for i, name in enumerate(means)]
        axis.stackplot(steps, *means.values(), colors=colours)
        total = np.zeros(len(steps))
        for name, mean in means.items():
            middle = int(np.argmax(mean))
            if mean[middle] > 0.12:
                side = "left" if middle < len(steps) / 8 else "right" if middle > len(steps) * 7 / 8 else "center"
                place = steps[middle], float(total[middle] + mean[middle] / 2)
                axis.text(*place, f" {cut(name, 16)} ", ha=side, va="center", fontsize=8)
            total += mean
        axis.set_title(f"{cut(arm.name, 30)}\n{cut(task, 30)}", fontsize=8)
        axis.set(ylim=(0, 1), xlim=(steps[0], steps[-1]), yticks=(0, 0.5, 1))
        _steps(axis, 3)
    return figure, max(0, len(cells) - MOST_PANELS)


def truth(numbers: Numbers, points: int) -> tuple[Figure | None, int]:
    """Task return against learned return, a point a row of the log, one panel a cell; and how many were left out."""
    cells = [(task, arm, [against(run) for run in runs]) for task, arm, runs in numbers.data.cells()]
    cells = [cell for cell in cells if any(len(rows[0]) for rows in cell[2])]
    figure, axes = _multiples(len(cells), 2.3, "learned return", "task return")
    for axis, (task, arm, each) in zip(axes, cells):
        for steps, learned, task_return in each:
            if len(steps):
                most = max(20, points // len(each))  # rows, evenly spread, first and last among them
                rows = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), most)).round().astype(int))
                progress = steps[rows] / max(steps[-1], 1)
                axis.scatter(
                    learned[rows], task_return[rows], c=progress, vmin=0, vmax=1.1, s=7, cmap="viridis_r", linewidths=0,
                    rasterized=True,
                )  # fmt: skip
        row = numbers.one("rank_correlation", task=task, arm=arm.name)
        correlation = f"  ρ = {row.value:.2f}" if row is not None else ""
        axis.locator_params(nbins=4)
        axis.set_title(f"{cut(arm.name, 24)}{correlation}\n{cut(task, 30)}", fontsize=8)
    return figure, max(0, len(cells) - MOST_PANELS)


def _multiples(count: int, high: float, x: str, y: str) -> tuple[Figure | None, list[Axes]]:
    """Small panels, at most so many, labelled at the left and below only; None without one."""
    figure, axes = grid(min(count, MOST_PANELS), (2.85, high), 4, fixed=True) if count else (None, [])
    for i, axis in enumerate(axes):
        axis.set(ylabel=y if i % 4 == 0 else "", xlabel=x if i + 4 >= len(axes) else "")
    return figure, axes


def _steps(axis: Axes, most: int = 5) -> None:
    axis.xaxis.set_major_locator(MaxNLocator(most))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: label_steps(value)))


def cut(text: str, most: int) -> str:
    """A text of at most so many printable letters, its middle left out."""
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    half = (most - 3) // 2  # names differ at their ends, too
    return text if len(text) <= most else f"{text[:half]}...{text[-half:]}"


def label_steps(steps: float) -> str:
    """A short number of steps: 950, 20k, 1.5M."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if steps >= size:
            return f"{steps / size:.3g}{letter}"
    return f"{steps:.0f}"
