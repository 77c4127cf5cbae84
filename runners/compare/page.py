"""The report card as one page of HTML that needs no other file: pictures and plots are inside."""

from __future__ import annotations

import base64
import io
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from runners.compare.__main__ import control_text, facts
from runners.compare.card import DO_NOT, NOT_JUDGED, USABLE, WEAK, pictures

if TYPE_CHECKING:
    from runners.compare.card import Card
    from runners.compare.subject import Subject

REWARD, TRUTH, OTHER, INK = "#2f6fad", "#c07a1f", "#b9bec6", "#33383f"
COLOURS = {USABLE: "#3d8b5f", WEAK: "#c9902b", DO_NOT: "#b5483f", NOT_JUDGED: "#7b828c"}
SHOWN = 96  # pixels of a picture on the page
STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#24292f;background:#fbfbfa;margin:2.5em auto;
max-width:62em;padding:0 1.5em}
h1{font-size:1.35em;font-weight:600;margin:0 0 1.2em} h2{font-size:1.15em;font-weight:600;margin:2.2em 0 .5em}
h3{font-size:.85em;font-weight:600;color:#6b727b;margin:1.6em 0 .4em;text-transform:uppercase;letter-spacing:.05em}
.verdict{border-left:5px solid;padding:.55em .9em;background:#fff;margin:.4em 0 1em} .verdict b{display:block}
table{border-collapse:collapse;width:100%} td,th{padding:.22em .8em .22em 0;text-align:left;vertical-align:top;
border-bottom:1px solid #ececea;font-weight:400} th{color:#6b727b;white-space:nowrap;width:10.5em}
.row{display:flex;flex-wrap:wrap;gap:.5em} figure{margin:0;font-size:.75em;color:#6b727b;text-align:center}
figure img{display:block;image-rendering:pixelated;border:1px solid #e3e3e0} .met{color:#c07a1f;font-weight:600}
.plots img{width:48%;min-width:20em} ul{margin:.3em 0;padding-left:1.2em;color:#4a5058}
"""


def write(path: Path, env: str, subjects: list[Subject], cards: list[Card], between: dict[Any, Any]) -> Path:
    """Write the page.

    Args:
        path: of the HTML file; its folder is made.
        env: id of the environment.
        subjects: the rewards.
        cards: what was found about each.
        between: pair of names -> (EPIC, STARC).
    """
    parts = [f"<h1>Rewards on {escape(env)}, before training</h1>"]
    if between:
        rows = [("pair", "EPIC distance", "STARC distance, on the sample's distribution")]
        rows += [(f"{a}, {b}", f"{epic:.3f}", f"{starc:.3f}") for (a, b), (epic, starc) in between.items()]
        parts.append(_table(rows))
    parts += [_section(subject, made) for subject, made in zip(subjects, cards)]
    title = f"{', '.join(made['name'] for made in cards)} on {env}"
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def _section(subject: Subject, made: Card) -> str:
    colour = COLOURS[made["verdict"]]
    reasons = escape("; ".join(made["reasons"]))
    parts = [
        f"<h2>{escape(made['name'])}</h2>",
        f'<div class="verdict" style="border-color:{colour}"><b style="color:{colour}">{made["verdict"]}</b>{reasons}'
        "</div>",
        _table(facts(made)),
    ]
    plots = [plot for plot in (landscape_plot(made), histogram(subject, made)) if plot]
    if plots:
        parts.append(f'<h3>Reward and truth</h3><div class="row plots">{"".join(plots)}</div>')
    for name, rows in pictures(subject).items():
        if rows:
            shown = "".join(_picture(subject, made, row) for row in rows)
            parts.append(f'<h3>{name.capitalize()} scores</h3><div class="row">{shown}</div>')
    if made["controls"]:
        rivals = [(row["kind"], row["sentence"], control_text(row)) for row in made["controls"]]
        parts.append("<h3>Controls: what should not work</h3>" + _table(rivals))
    if made["notes"]:
        parts.append("<h3>Notes</h3><ul>" + "".join(f"<li>{escape(note)}</li>" for note in made["notes"]) + "</ul>")
    return "".join(parts)


def _table(rows: list[Any]) -> str:
    body = "".join(
        f"<tr><th>{escape(str(first))}</th>{''.join(f'<td>{escape(str(cell))}</td>' for cell in rest)}</tr>"
        for first, *rest in rows
    )
    return f"<table>{body}</table>"


def _picture(subject: Subject, made: Card, row: int) -> str:
    from PIL import Image

    frames: Any = subject.sample.batch.frame
    buffer = io.BytesIO()
    Image.fromarray(frames[row]).save(buffer, "PNG")
    met = made["truth"] is not None and bool(subject.sample.truth[row, made["goal"]])
    words = f"{subject.values[row]:.3f}" + (' <span class="met">goal</span>' if met else "")
    return f'<figure><img width="{SHOWN}" height="{SHOWN}" alt="" src="{_data(buffer)}">{words}</figure>'


def _data(buffer: io.BytesIO) -> str:
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def landscape_plot(made: Card) -> str:
    """Reward and truth along the family's axis, as an <img>; empty without an axis."""
    found = made["landscape"]
    if found is None:
        return ""
    figure, axis = _figure()
    axis.plot(found["x"], found["reward"], color=REWARD, linewidth=1.8)
    axis.set_ylabel("reward", color=REWARD)
    axis.set_xlabel(found["axis"])
    other = axis.twinx()
    other.plot(found["x"], found["truth"], color=TRUTH, linewidth=1.3, linestyle="--")
    other.set_ylabel("truth" if made["truth"] else "task's reward", color=TRUTH)
    other.spines[["top"]].set_visible(False)
    other.tick_params(colors=INK, labelsize=8)
    return _image(figure, f"{made['name']} along the {found['axis']}")


def histogram(subject: Subject, made: Card) -> str:
    """How often each reward is given, at the goal and elsewhere, as an <img>."""
    rows = subject.sample.counted
    values = subject.values[rows]
    met = subject.sample.truth[rows, made["goal"]] if made["truth"] else np.zeros(len(values), bool)
    figure, axis = _figure()
    edges = np.linspace(values.min(), values.max() + 1e-9, 41)
    for mask, colour, label in ((~met, OTHER, "other states"), (met, TRUTH, "states at the goal")):
        if mask.any():
            share = np.full(int(mask.sum()), 1 / mask.sum())
            axis.hist(values[mask], edges, weights=share, color=colour, alpha=0.75, label=label)
    axis.set_xlabel("reward")
    axis.set_ylabel("share of its kind")
    if met.any():
        axis.legend(frameon=False, fontsize=8)
    return _image(figure, f"histogram of {made['name']}")


def _figure() -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 2.7), facecolor="#ffffff")
    FigureCanvasAgg(figure)
    axis = figure.add_axes((0.14, 0.18, 0.71, 0.78))  # a layout engine would draw everything twice
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(colors=INK, labelsize=8)
    return figure, axis


def _image(figure: Any, words: str) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=140)
    return f'<img alt="{escape(words)}" src="{_data(buffer)}">'
