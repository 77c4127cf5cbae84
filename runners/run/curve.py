"""The picture of a run's log: learning curve, learned return against the task's, and what each stream contributed."""

import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from lodestar.files import replacing
from runners.run.child import Control
from runners.run.config import TextValues, Values
from runners.run.progress import LEARNED_RETURN, TASK_RETURN, diverging_rows, read_csv

TASK_COLOUR = "#4c9be8"
LEARNED_COLOUR = "#f2a541"
NEUTRAL_COLOUR = "#9aa0aa"
ALARM_COLOUR = "#d9607c"
STREAM_COLOURS = ("#5fbf77", "#9d7fe0", "#3fb8b0", "#b58a5a", "#c77fb5", "#7d8f3c")
CURVE_DPI = 130
# Tags that say what moved the policy, and their words; the first that a run has is drawn.
MOVERS = {
    "weight": "learned weight",
    "share": "share of the policy's direction",
    "cosine": "cosine with the task's policy gradient",
}

# A stream -> environment steps and values.
StreamLines = dict[str, tuple[np.ndarray, ...]]


def colours(streams: Iterable[str]) -> TextValues:
    """A stream's colour in every picture of a run; the task's is that of its return."""
    table = dict.fromkeys(streams, TASK_COLOUR)
    others = []
    for name in sorted(table):
        if name.split()[0] != "task":
            others.append(name)
    table.update(zip(others, itertools.cycle(STREAM_COLOURS)))
    return table


def curve(folder: Path, title: str, *, scores: Values | None = None, control: Control | None = None) -> Path:
    """Draw `curve.png` into a run's folder.

    The first panel has the task's and the learned return; where they part, it is shaded. If the agent's reward is not
    the task's alone, a second sets one against the other, a point a row of the log; with several streams a third shows
    their shares of the reward, and a fourth which of them moved the policy (`MOVERS`).
    """
    rows = read_csv(folder / "metrics.csv")
    steps, learned, task = _columns(rows, LEARNED_RETURN, TASK_RETURN)
    is_learned = len(learned) > 0 and not np.allclose(learned, task)
    shares = _by_stream(rows, r"reward/(\w+)_share")
    has_shares = len(shares) > 1
    moves, moves_label = _policy_moves(rows)
    panels = 1 + is_learned + has_shares + bool(moves)
    figure = Figure(figsize=(7 + 3.6 * (panels - 1), 4), layout="constrained")
    axes = iter(figure.subplots(1, panels, squeeze=False)[0])
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    axis = next(axes)
    _plot_task_returns(axis, rows, scores, control)
    handles, labels = axis.get_legend_handles_labels()
    if is_learned:
        learned_handles, learned_labels = _plot_learned_return(axis, steps, learned, task)
        handles += learned_handles
        labels += learned_labels
        _plot_against(next(axes), steps, learned, task)
    if has_shares:
        _plot_streams(next(axes), shares, "share of the reward")
    if moves:
        _plot_streams(next(axes), moves, moves_label)
    for one in figure.axes:
        one.spines["top"].set_visible(False)
    figure.legend(handles, labels, loc="outside lower left", ncols=3, frameon=False, fontsize=9)
    return _save(figure, folder / "curve.png")


def archive(folder: Path, model: Any) -> Path:
    """Draw `archive.png`: the returns of the best individuals on the map of an `agents.qd.QD`."""
    size = model.config.cells
    fitness = model.map["fitness"]
    is_reached = np.isfinite(fitness)
    figure = Figure(figsize=(5.4, 4.4), layout="constrained")
    axis = figure.subplots()
    cells = np.where(is_reached, fitness, np.nan).reshape(size, size).T
    image = axis.imshow(cells, origin="lower", extent=model.bounds.T.ravel(), aspect="auto")
    figure.colorbar(image, label="return")
    across, up = map("entry {} of the last observation".format, model.config.axes)
    axis.set(xlabel=across, ylabel=up, title=f"best of each cell; {is_reached.mean():.0%} reached")
    return _save(figure, folder / "archive.png")


def _save(figure: Figure, path: Path) -> Path:
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=CURVE_DPI)
    return path


def _marker(steps: np.ndarray, single: str = "o") -> str:
    """A line of a single point would not be seen without a marker."""
    return "" if len(steps) > 1 else single


def _plot_task_returns(axis: Any, rows: list[TextValues], scores: Values | None, control: Control | None) -> None:
    steps, task = _columns(rows, TASK_RETURN)
    axis.plot(steps, task, color=TASK_COLOUR, linewidth=2, label="task return", marker=_marker(steps))
    if control is not None and (control.run / "metrics.csv").exists():
        control_rows = read_csv(control.run / "metrics.csv")
        label = f"task return, {control.label}"
        axis.plot(*_columns(control_rows, TASK_RETURN), color=NEUTRAL_COLOUR, linewidth=1.5, label=label)
    for policy in ("random", "untrained"):
        if scores and policy in scores:
            label = f"task return, {policy} policy"
            axis.axhline(scores[policy]["task_return"], color=NEUTRAL_COLOUR, linestyle=":", label=label)
    axis.set(xlabel="environment steps")
    axis.set_ylabel("task return", color=TASK_COLOUR)


def _plot_learned_return(
    axis: Any, steps: np.ndarray, learned: np.ndarray, task: np.ndarray
) -> tuple[list[Any], list[str]]:
    """The learned return on a scale of its own, and shades where the two part; returns what the legend gets."""
    other = axis.twinx()
    label = "learned return"
    other.plot(steps, learned, color=LEARNED_COLOUR, linewidth=1.5, label=label, marker=_marker(steps, "s"))
    other.set_ylabel(label, color=LEARNED_COLOUR)
    alarm = diverging_rows(task, learned)
    if alarm.any():
        # From the bottom of the panel to its top, whatever the returns are.
        transform = other.get_xaxis_transform()
        shade = {"color": ALARM_COLOUR, "alpha": 0.15, "label": "alarm"}
        other.fill_between(steps, 0, 1, where=alarm, transform=transform, **shade)
    return other.get_legend_handles_labels()


def _plot_against(axis: Any, steps: np.ndarray, learned: np.ndarray, task: np.ndarray) -> None:
    """One point a row of the log, early ones pale: with a reward that serves the task they climb to the upper right."""
    axis.plot(learned, task, color=NEUTRAL_COLOUR, linewidth=0.6, alpha=0.6)
    points = axis.scatter(learned, task, c=steps, s=16, cmap="viridis_r", zorder=2)
    axis.get_figure().colorbar(points, ax=axis, label="environment steps", pad=0.02)
    axis.set(xlabel="learned return", ylabel="task return")
    if len(learned) > 2 and np.std(learned) > 0 and np.std(task) > 0:
        axis.set_title(f"correlation {np.corrcoef(learned, task)[0, 1]:.2f}", fontsize=9, loc="left")


def _plot_streams(axis: Any, lines: StreamLines, label: str) -> None:
    for name, colour in colours(lines).items():
        steps, values = lines[name]
        axis.plot(steps, values, color=colour, linewidth=1.5, label=name, marker=_marker(steps))
    # A weight has no upper limit, a cosine may be negative, a share neither.
    is_cosine = "cosine" in label
    axis.set(xlabel="environment steps", ylabel=label)
    axis.set_ylim(-1 if is_cosine else 0, None if "weight" in label else 1)
    if is_cosine:
        axis.axhline(0, color=NEUTRAL_COLOUR, linewidth=0.6)
    axis.legend(frameon=False, fontsize=9)


def _policy_moves(rows: list[TextValues]) -> tuple[StreamLines, str]:
    """What moved the policy, by stream, and its words; nothing where no such tag was logged."""
    for kind, label in MOVERS.items():
        lines = _by_stream(rows, rf"stream/(\w+)/{kind}")
        if lines:
            return lines, label
    return {}, ""


def _by_stream(rows: list[TextValues], pattern: str) -> StreamLines:
    """The lines of the tags that fit a pattern, whose group is the stream's name."""
    tags = {}
    for row in rows:
        for tag, value in row.items():
            match = re.fullmatch(pattern, tag)
            if match and value:
                tags[match[1]] = tag
    return {name: _columns(rows, tags[name]) for name in sorted(tags)}


def _columns(rows: list[TextValues], *tags: str) -> tuple[np.ndarray, ...]:
    """Steps, and the values of the tags, of the rows that have all of them."""
    columns = []
    complete = [row for row in rows if all(map(row.get, tags))]
    for name in ("step", *tags):
        columns.append(np.array([float(row[name]) for row in complete]))
    return tuple(columns)
