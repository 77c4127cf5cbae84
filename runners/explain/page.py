"""What was found, as text for the terminal, and as one page of HTML that needs no other file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from runners.report import html, plots
from runners.run.curve import colours
from runners.run.output import aligned_lines

PICTURE_WIDTH = 224
MAX_PARTS_ON_PAGE = 12
MAX_PARTS_IN_TERMINAL = 6
# Number of a stream -> its title and its format.
STREAM_COLUMNS = {
    "weight": ("weight", "g"),
    "sum": ("sum an episode", ".2f"),
    "share": ("share", ".0%"),
    "cosine": ("cosine with the task's", ".2f"),
    "low": ("from", ".2f"),
    "high": ("to", ".2f"),
    "repeats": ("repeats", ".2f"),
    "flips": ("signs changed without it", ".0%"),
    "step": ("step without it", ".2f"),
    "explains": ("value explains", ".0%"),
}
# What explain.json holds.
Summary = Mapping[str, Any]


def headline(summary: Summary) -> str:
    """What was played."""
    actions = "sampled actions" if summary["sampled"] else "the policy"
    cut = f", {summary['cut']} cut" if summary["cut"] else ""
    return (
        f"{summary['episodes']} episodes of {summary['env']} with {actions} of agent {summary['agent']}, step "
        f"{summary['step']:,}, {summary['steps']:,} steps{cut}: task return {summary['task_return']:.2f}"
    )


def table(summary: Summary) -> list[list[str]]:
    """The streams, with a head; columns without a number are left out."""
    streams = summary["streams"]
    # Column by column, then turned.
    columns = [["stream", *streams]]
    for key, (title, number_format) in STREAM_COLUMNS.items():
        column = [title]
        for numbers in streams.values():
            cell = ""
            if key in numbers:
                cell = format(numbers[key], number_format)
            column.append(cell)
        if any(column[1:]):
            columns.append(column)
    return list(map(list, zip(*columns)))


def fidelity(tree: Summary) -> str:
    """How well the tree imitates, in a sentence."""
    measure = "the policy's choice in" if tree["discrete"] else "of the variance of the policy's actions:"
    constant = f"always {tree['answer']}: {tree['constant']:.1%}"
    return f"tree of {tree['rows']:,} held-out states: {measure} {tree['fidelity']:.1%}; {constant}"


def lines(summary: Summary) -> list[str]:
    """What the terminal shows."""
    text = [headline(summary)]
    text += map("  {}".format, aligned_lines(table(summary)))
    reads = map("{part} {moved:.2f}".format_map, summary["reads"][:MAX_PARTS_IN_TERMINAL])
    if summary["reads"]:
        text.append(f"reads: {', '.join(reads)}")
    splits = summary["splits"]
    if splits:
        parts = [f"{part['part']} {part['shares'][0]:.2f}" for part in splits["parts"]]
        text.append(f"its {splits['count']:,} trees ask about: {', '.join(parts[:MAX_PARTS_IN_TERMINAL])}")
    if summary["equations"]:
        text.append("its model of the world:")
        text += map("  {}".format, summary["equations"])
    if summary["tree"]:
        text.append(fidelity(summary["tree"]))
        text += map("  {}".format, summary["tree"]["rules"])
    if summary["polynomials"]:
        text.append(f"polynomials: {summary['polynomials']['fidelity']:.1%} of that variance")
        text += map("  {}".format, summary["polynomials"]["lines"])
    text += map("left out: {}".format, summary["left_out"])
    return text


def write(path: Path, summary: Summary, pictures: Mapping[Any, np.ndarray]) -> Path:
    """Write the page."""
    # Moments of a stream, and those of disagreement, which have a section of their own.
    moments: dict[str, list[Summary]] = {}
    for name, group in summary["moments"].items():
        moments[name] = []
        for moment in group:
            pixels = pictures.get(tuple(moment["moment"]))
            moments[name].append({**moment, "picture": html.picture(pixels, PICTURE_WIDTH)})
    reads = summary["reads"]
    with matplotlib.rc_context(plots.STYLE):
        curves = html.figure(_draw_curves(summary["streams"]))
        heat = html.figure(_draw_heat(reads))
    values = {
        **summary,
        "headline": headline(summary),
        "title": f"Where the choices come from: {summary['env']}, {summary['agent']}, {summary['reward']}",
        "table": table(summary),
        "fidelity": fidelity(summary["tree"]) if summary["tree"] else "",
        "disagreement": moments.pop("disagreement", []),
        "moments": moments,
        "reads": [(part["part"], f"{part['moved']:.3f}") for part in reads[:MAX_PARTS_ON_PAGE]],
        "curves": curves,
        "heat": heat,
    }
    return html.write(path, "explain/explain.html", values)


def _draw_curves(streams: Summary) -> Figure:
    """Each stream's reward along an episode."""
    figure, axes = plots.grid(len(streams), (3.4, 2.3))
    for axis, (name, numbers) in zip(axes, streams.items()):
        curve = numbers["curve"]
        centres = (np.arange(len(curve)) + 0.5) / len(curve)
        axis.plot(centres, curve, color=colours(streams)[name], linewidth=1.6)
        axis.set(title=name, xlabel="share of the episode", ylabel="reward a step, not weighted", xlim=(0, 1))
    return figure


def _draw_heat(reads: list[Summary]) -> Figure | None:
    """How much the policy changes while each cell of a grid is hidden; None without cells."""
    cells = {tuple(part["cell"]): part["moved"] for part in reads if part["cell"] is not None}
    if not cells:
        return None
    last_cell = np.max(list(cells), axis=0)
    heat = np.zeros(last_cell + 1)
    for cell, moved in cells.items():
        heat[cell] = moved
    figure, (axis,) = plots.grid(1, (3.6, 3.0))
    image = axis.imshow(heat, cmap="Greys", vmin=0)
    figure.colorbar(image, ax=axis)
    axis.set(xticks=[], yticks=[], title="change while a place is hidden")
    return figure
