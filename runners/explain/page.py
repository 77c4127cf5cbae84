"""What was found, as text for the terminal, and as one page of HTML that needs no other file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from runners.report import html, plots
from runners.run.curve import colours

WIDTH = 224  # pixels of a picture
LISTED = 12  # parts of an observation
COLUMNS = {
    **{"weight": ("weight", "g"), "sum": ("sum an episode", ".2f"), "share": ("share", ".0%")},
    **{"cosine": ("cosine with the task's", ".2f"), "low": ("from", ".2f"), "high": ("to", ".2f")},
    **{"repeats": ("repeats", ".2f"), "flips": ("signs changed without it", ".0%")},
    **{"step": ("step without it", ".2f"), "explains": ("value explains", ".0%")},
}
Found = Mapping[str, Any]


def headline(found: Found) -> str:
    """What was played."""
    how = "sampled actions" if found["sampled"] else "the policy"
    cut = f", {found['cut']} cut" if found["cut"] else ""
    return (
        f"{found['episodes']} episodes of {found['env']} with {how} of agent {found['agent']}, step {found['step']:,}, "
        f"{found['steps']:,} steps{cut}: task return {found['task_return']:.2f}"
    )


def table(found: Found) -> list[list[str]]:
    """The streams, with a head; columns that nothing is known for are left out."""
    known = {key: of for key, of in COLUMNS.items() if any(key in each for each in found["streams"].values())}
    rows = [["stream", *(title for title, _ in known.values())]]
    for name, each in found["streams"].items():
        rows.append([name, *(format(each[key], form) if key in each else "" for key, (_, form) in known.items())])
    return rows


def fidelity(tree: Found) -> str:
    """How well the tree imitates, in a sentence."""
    what = "the policy's choice in" if tree["discrete"] else "of the variance of the policy's actions:"
    always = f"always {tree['answer']}: {tree['constant']:.1%}"
    return f"tree of {tree['rows']:,} held-out states: {what} {tree['fidelity']:.1%}; {always}"


def lines(found: Found) -> list[str]:
    """What the terminal shows."""
    rows = table(found)
    widths = [max(map(len, column)) for column in zip(*rows)]
    text = [headline(found)]
    text += ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    if found["reads"]:
        text.append("reads: " + ", ".join(f"{each['part']} {each['moved']:.2f}" for each in found["reads"][:6]))
    if splits := found["splits"]:
        asked = ", ".join(f"{each['part']} {each['shares'][0]:.2f}" for each in splits["parts"][:6])
        text.append(f"its {splits['count']:,} trees ask about: {asked}")
    if found["equations"]:
        text += ["its model of the world:", *(f"  {line}" for line in found["equations"])]
    if found["tree"]:
        text += [fidelity(found["tree"]), *(f"  {line}" for line in found["tree"]["rules"])]
    return [*text, *(f"left out: {sentence}" for sentence in found["left_out"])]


def write(path: Path, found: Found, pictures: Mapping[Any, np.ndarray]) -> Path:
    """Write the page."""
    moments = {
        name: [{**each, "picture": html.picture(pictures.get(tuple(each["moment"])), WIDTH)} for each in group]
        for name, group in found["moments"].items()
    }
    made: dict[str, Any] = {**found, "headline": headline(found), "table": table(found), "moments": moments}
    made["title"] = f"Where the choices come from: {found['env']}, {found['agent']}, {found['reward']}"
    made["fidelity"] = fidelity(found["tree"]) if found["tree"] else ""
    made["reads"] = [(each["part"], f"{each['moved']:.3f}") for each in found["reads"][:LISTED]]
    made["disagreement"] = moments.pop("disagreement", [])
    curves = {name: each["curve"] for name, each in found["streams"].items()}
    cells = [each for each in found["reads"] if each["cell"] is not None]
    with matplotlib.rc_context(plots.STYLE):
        figure, axes = plots.grid(len(curves), (3.4, 2.3))
        for axis, (name, values) in zip(axes, curves.items()):
            axis.plot((np.arange(len(values)) + 0.5) / len(values), values, color=colours(curves)[name], linewidth=1.6)
            axis.set(title=name, xlabel="share of the episode", ylabel="reward a step, not weighted", xlim=(0, 1))
        made["curves"], made["heat"] = html.figure(figure), ""
        if cells:
            heat = np.zeros(np.max([each["cell"] for each in cells], axis=0) + 1)
            for each in cells:
                heat[tuple(each["cell"])] = each["moved"]
            figure, (axis,) = plots.grid(1, (3.6, 3.0))
            figure.colorbar(axis.imshow(heat, cmap="Greys", vmin=0), ax=axis)
            axis.set(xticks=[], yticks=[], title="change while a place is hidden")
            made["heat"] = html.figure(figure)
    return html.write(path, "explain/explain.html", made)
