"""The picture of a run's log: learning curve, learned return against the task's, and what each stream contributed."""

import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from lodestar.files import replacing
from runners.run.control import Control
from runners.run.progress import LEARNED_RETURN, TASK_RETURN, apart, read_csv

TASK, LEARNED, GREY, ALARM = "#4c9be8", "#f2a541", "#9aa0aa", "#d9607c"
STREAMS = ("#5fbf77", "#9d7fe0", "#3fb8b0", "#b58a5a", "#c77fb5", "#7d8f3c")
MOVERS = {  # tags that say what moved the policy, and their words; the first that a run has is drawn
    "weight": "learned weight",
    "share": "share of the policy's direction",
    "cosine": "cosine with the task's policy gradient",
}


def colours(streams: Iterable[str]) -> dict[str, str]:
    """A stream's colour in every picture of a run; the task's is that of its return."""
    names = list(streams)
    others = dict(zip(sorted(name for name in names if name.split()[0] != "task"), itertools.cycle(STREAMS)))
    return {name: others.get(name, TASK) for name in names}


def curve(folder: Path, title: str, *, scores: dict[str, Any] | None = None, control: Control | None = None) -> Path:
    """Draw `curve.png` into a run's folder.

    The first panel has the task's and the learned return; where they part, it is shaded. If the agent's reward is not
    the task's alone, a second sets one against the other, a point a row of the log; with several streams a third shows
    their shares of the reward, and a fourth which of them moved the policy (`MOVERS`).
    """
    rows = read_csv(folder / "metrics.csv")
    steps, task = _columns(rows, TASK_RETURN)
    both, proxy, truth = _columns(rows, LEARNED_RETURN, TASK_RETURN)
    learned = len(proxy) > 0 and not np.allclose(proxy, truth)
    shares = _by_stream(rows, r"reward/(\w+)_share")
    moved, moved_by = dict[str, tuple[np.ndarray, ...]](), ""
    for kind, label in MOVERS.items():
        if not moved:
            moved, moved_by = _by_stream(rows, rf"stream/(\w+)/{kind}"), label
    panels = 1 + learned + (len(shares) > 1) + bool(moved)
    figure = Figure(figsize=(7 + 3.6 * (panels - 1), 4), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    axis = axes[0, 0]
    axis.plot(steps, task, color=TASK, linewidth=2, label="task return", marker="" if len(steps) > 1 else "o")
    if control is not None and (control.run / "metrics.csv").exists():
        other = _columns(read_csv(control.run / "metrics.csv"), TASK_RETURN)
        axis.plot(*other, color=GREY, linewidth=1.5, label=f"task return, {control.label}")
    if scores:
        axis.axhline(scores["random"]["task_return"], color=GREY, linestyle=":", label="task return, random policy")
    axis.set(xlabel="environment steps")
    axis.set_ylabel("task return", color=TASK)
    handles, labels = axis.get_legend_handles_labels()
    if learned:
        more = _second_scale(axis, both, proxy, truth)
        handles, labels = handles + more[0], labels + more[1]
        _against(axes[0, 1], both, proxy, truth)
    if len(shares) > 1:
        _streams(axes[0, 1 + learned], shares, "share of the reward")
    if moved:
        _streams(axes[0, -1], moved, moved_by)
    for one in figure.axes:
        one.spines["top"].set_visible(False)
    figure.legend(handles, labels, loc="outside lower left", ncols=3, frameon=False, fontsize=9)
    path = folder / "curve.png"
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=130)
    return path


def archive(folder: Path, model: Any) -> Path:
    """Draw `archive.png`: the returns of the best individuals on the map of an `agents.qd.QD`."""
    size, fitness = model.config.cells, model.map["fitness"]
    figure = Figure(figsize=(5.4, 4.4), layout="constrained")
    axis = figure.subplots()
    shown = np.where(np.isfinite(fitness), fitness, np.nan).reshape(size, size).T
    figure.colorbar(axis.imshow(shown, origin="lower", extent=model.bounds.T.ravel(), aspect="auto"), label="return")
    names = [f"entry {entry} of the last observation" for entry in model.config.axes]
    axis.set(xlabel=names[0], ylabel=names[1], title=f"best of each cell; {np.isfinite(fitness).mean():.0%} reached")
    path = folder / "archive.png"
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=130)
    return path


def _second_scale(axis: Any, steps: np.ndarray, proxy: np.ndarray, truth: np.ndarray) -> tuple[list[Any], list[str]]:
    """The learned return on a scale of its own, and shades where the two part; returns what the legend gets."""
    other = axis.twinx()
    other.plot(steps, proxy, color=LEARNED, linewidth=1.5, label="learned return", marker="" if len(steps) > 1 else "s")
    other.set_ylabel("learned return", color=LEARNED)
    alarm = apart(truth, proxy)
    if alarm.any():
        across = other.get_xaxis_transform()
        other.fill_between(steps, 0, 1, where=alarm, transform=across, color=ALARM, alpha=0.15, label="alarm")
    return other.get_legend_handles_labels()


def _against(axis: Any, steps: np.ndarray, proxy: np.ndarray, truth: np.ndarray) -> None:
    """One point a row of the log, early ones pale: with a reward that serves the task they climb to the upper right."""
    axis.plot(proxy, truth, color=GREY, linewidth=0.6, alpha=0.6)
    points = axis.scatter(proxy, truth, c=steps, s=16, cmap="viridis_r", zorder=2)
    axis.get_figure().colorbar(points, ax=axis, label="environment steps", pad=0.02)
    axis.set(xlabel="learned return", ylabel="task return")
    if len(proxy) > 2 and np.std(proxy) > 0 and np.std(truth) > 0:
        axis.set_title(f"correlation {np.corrcoef(proxy, truth)[0, 1]:.2f}", fontsize=9, loc="left")


def _streams(axis: Any, lines: dict[str, tuple[np.ndarray, ...]], label: str) -> None:
    for (name, colour), (steps, values) in zip(colours(lines).items(), lines.values()):
        axis.plot(steps, values, color=colour, linewidth=1.5, label=name, marker="" if len(steps) > 1 else "o")
    low = -1 if "cosine" in label else 0
    axis.set(xlabel="environment steps", ylabel=label, ylim=(low, None if "weight" in label else 1))
    if low:
        axis.axhline(0, color=GREY, linewidth=0.6)
    axis.legend(frameon=False, fontsize=9)


def _by_stream(rows: list[dict[str, str]], tags: str) -> dict[str, tuple[np.ndarray, ...]]:
    """Stream -> (steps, values) of the tags that fit the pattern, whose group is the stream's name."""
    found = {match[1]: tag for row in rows for tag in row if row[tag] and (match := re.fullmatch(tags, tag))}
    return {name: _columns(rows, found[name]) for name in sorted(found)}


def _columns(rows: list[dict[str, str]], *tags: str) -> tuple[np.ndarray, ...]:
    """Steps, and the values of the tags, of the rows that have all of them."""
    whole = [row for row in rows if all(row.get(tag) for tag in tags)]
    return tuple(np.array([float(row[name]) for row in whole]) for name in ("step", *tags))
