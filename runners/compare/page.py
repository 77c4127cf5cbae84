"""The report card as text for the terminal, and as one page of HTML that needs no other file."""

from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from runners.compare.candidate import Candidate, Card
from runners.compare.card import DO_NOT, NOT_JUDGED, USABLE, WEAK
from runners.compare.epic import PairDistance
from runners.compare.finite import EPS_OF_RANGE
from runners.report import html

REWARD_COLOUR = "#2f6fad"
TRUTH_COLOUR = "#c07a1f"
OTHER_COLOUR = "#b9bec6"
LABEL_COLOUR = "#33383f"
VERDICT_COLOURS = {USABLE: "#3d8b5f", WEAK: "#c9902b", DO_NOT: "#b5483f", NOT_JUDGED: "#7b828c"}
# Letters of a control's line on the terminal.
MAX_CONTROL_LETTERS = 140

# Names and values.
Facts = list[tuple[str, str]]
# By the names of the two rewards.
Pairs = dict[tuple[str, str], PairDistance]


def lines(env: str, cards: list[Card], between: Pairs) -> list[str]:
    """What the terminal shows."""
    text = []
    for card in cards:
        text += [f"{card['name']} on {env}", f"  VERDICT: {card['verdict']}: {'; '.join(card['reasons'])}"]
        text += starmap("  {:<30}{}".format, facts(card))
        for kind, sentence, numbers in _controls(card):
            line = f"  {f'control: {kind}':<30}{numbers}   {sentence!r}"
            text.append(line[:MAX_CONTROL_LETTERS])
        text += map("  note: {}".format, card["notes"])
        text.append("")
    for (one, other), pair in between.items():
        distances = f"{pair.name} {pair.value:.3f}, STARC {pair.starc:.3f} (on the sample's distribution)"
        text.append(f"{one} and {other}: {distances}")
    return text


def write(path: Path, env: str, candidates: list[Candidate], cards: list[Card], between: Pairs) -> Path:
    """Write the page."""
    pairs = []
    if between:
        pairs.append(("pair", "EPIC or Pearson distance", "STARC distance, on the sample's distribution"))
    for (one, other), pair in between.items():
        pairs.append((f"{one}, {other}", f"{pair.name} {pair.value:.3f}", f"{pair.starc:.3f}"))
    sections = []
    for candidate, card in zip(candidates, cards):
        frames = []
        for name, rows in extremes(candidate).items():
            frames.append((name.capitalize(), [_frame(candidate, card, row) for row in rows]))
        plots = [_histogram(candidate, card)]
        if card["landscape"] is not None:
            plots.insert(0, _landscape(card))
        section = {
            **card,
            "colour": VERDICT_COLOURS[card["verdict"]],
            "facts": facts(card),
            "controls": _controls(card),
            "plots": plots,
            "frames": frames,
        }
        sections.append(section)
    values = {"title": f"Rewards on {env}, before training", "between": pairs, "cards": sections}
    return html.write(path, "compare/card.html", values)


def facts(card: Card) -> Facts:
    """The card as rows of name and value."""
    truth = card["truth"]
    task = card["task"]
    rows = [(name, repr(text)) for name, text in card["sentences"].items()]
    rows.append(("scored on", f"{card['rows']:,} transitions: {card['about']}"))
    if truth:
        area = "no AUROC"
        if not np.isnan(truth["auroc"]):
            area = f"AUROC {truth['auroc']:.3f} {_interval(truth, 'auroc')}"
        rows.append(("goal or not", f"{area}; {card['met']:.1%} of the states meet the goal"))
    target = truth or task
    correlation = f"Pearson {target['pearson']:.3f} {_interval(target, 'pearson')}, Spearman {target['spearman']:.3f}"
    rows.append((f"with {card['target']}", correlation))
    rows += _distances(card)
    if card["audit"]:
        rows += _best_actions(card["audit"])
    if truth:
        rows.append(("with the task's reward", f"Pearson {task['pearson']:.3f}"))
    quantiles = " / ".join(map("{:.3g}".format, card["range"]))
    rows.append(("range", f"{quantiles} (min, 5 %, median, 95 %, max); {card['nonzero']:.0%} not zero"))
    order = card["order"]
    if order:
        rises = f"{order['reached']:.2f} with time in {order['episodes']} episodes until they meet the goal"
        if not np.isnan(order["failed"]):
            rises += f"; {order['failed']:.2f} in those that never do"
        rows.append(("value order", f"{rises}; higher at the goal than half-way in {order['cut']:.0%}"))
    if card["spread"] is not None:
        rows.append(("spread", f"{card['spread']:.0%} of the spread of the model's own phrases"))
    if card["phrases"]:
        rows.append(("nearest phrases", ", ".join(f"{text!r} {value:.2f}" for text, value in card["phrases"])))
    if "horizon" in card:
        rows.append(("effective horizon", card["horizon"]))
    rows += _costs(card["speed"])
    rows.append(("blank frames", f"{card['blank']:.1%}"))
    return rows


def _distances(card: Card) -> Facts:
    epic = "none: the reward or the task cannot be asked about made-up transitions"
    if card["epic"]:
        epic = f"{card['epic']['distance']:.3f} ({card['epic']['kind']})"
        if card["epic"]["goal"] is not None:
            epic += f", {card['epic']['goal']:.3f} to goal or not"
    starc = "none: it has a memory"
    if card["starc"]:
        starc = f"{card['starc']['distance']:.3f} {_interval(card['starc'], 'distance')} ({card['starc']['kind']})"
    return [("EPIC distance", epic), ("STARC distance", starc)]


def _best_actions(audit: Card) -> Facts:
    tied = f"the best two tie in {audit['tied']:.0%} of states (under the target in {audit['tied_target']:.0%})"
    changed = f"changes {audit['moved']:.0%} of greedy choices ({audit['kind']})"
    informative = "undefined"
    if audit["informativeness"] is not None:
        informative = f"{audit['informativeness']:.2f} (1 tells at once, 0 nothing)"
    return [
        ("best actions", f"{tied}; noise of {EPS_OF_RANGE:.0%} of the range {changed}"),
        ("informativeness", informative),
    ]


def _costs(speed: dict[str, float]) -> Facts:
    """How long 100,000 steps take, and what they keep in memory."""
    rates = []
    seconds = 0.0
    for name in ("step", "render", "embed", "score"):
        if speed[name]:
            rates.append(f"{name} {speed[name]:,.0f}")
            seconds += 100_000 / speed[name]
    row_bytes = speed["bytes"]
    with_frames = speed["bytes_with_frames"]
    memory = f"{row_bytes * 2048 / 1e6:.3g} MB a rollout of 2,048, {row_bytes * 1e5 / 1e6:.3g} MB a replay of 100,000"
    if with_frames > row_bytes:
        memory += f" (with frames {with_frames * 1e5 / 1e9:.3g} GB)"
    return [("rows a second", f"{', '.join(rates)}; 100,000 steps take about {seconds:,.0f} s"), ("memory", memory)]


def _interval(values: Card, name: str) -> str:
    low, high = values.get(f"{name}_interval", (np.nan, np.nan))
    return "" if np.isnan(low) else f"[{low:.3f}, {high:.3f}]"


def _controls(card: Card) -> list[tuple[str, str, str]]:
    """Kind, sentence and numbers of each control, or why it has none."""
    rows = []
    for row in card["controls"]:
        text = row.get("error")
        if not text:
            text = f"Pearson {row['pearson']:+.2f}, range {row['low']:.2f} to {row['high']:.2f}"
            if "order" in row:
                text = f"order {row['order']:+.2f}, {text}"
            if np.isfinite(row.get("auroc", np.nan)):
                text = f"AUROC {row['auroc']:.2f}, {text}"
        rows.append((row["kind"], row["sentence"], text))
    return rows


def extremes(candidate: Candidate, count: int = 8) -> dict[str, list[int]]:
    """Rows of the highest and the lowest scores whose frames differ; empty where nothing was rendered."""
    frames = candidate.sample.batch.frame
    if frames is None:
        return {"highest": [], "lowest": []}
    counted = np.flatnonzero(candidate.sample.counted)
    descending = counted[np.argsort(-candidate.values[counted], kind="stable")]
    chosen = {}
    for name, rows in (("highest", descending), ("lowest", descending[::-1])):
        different: dict[bytes, int] = {}
        for row in rows:
            different.setdefault(frames[row].tobytes(), int(row))
            if len(different) == count:
                break
        chosen[name] = list(different.values())
    return chosen


def _frame(candidate: Candidate, card: Card, row: int) -> tuple[str, str, bool]:
    """A frame, its score, and whether it meets the goal."""
    frames: Any = candidate.sample.batch.frame
    frame = frames[row]
    met = card["truth"] is not None and bool(candidate.sample.truth[row, card["goal"]])
    # The reward read a square; people see the environment's own proportions.
    width = max(round(len(frame) * candidate.sample.proportion), 1)
    stretched = np.asarray(Image.fromarray(frame).resize((width, len(frame))))
    return html.picture(stretched), f"{candidate.values[row]:.3f}", met


def _landscape(card: Card) -> tuple[str, str]:
    """Reward and truth along the family's axis, and its caption."""
    landscape = card["landscape"]
    figure, axis = _axes()
    axis.plot(landscape["x"], landscape["reward"], color=REWARD_COLOUR, linewidth=1.8)
    axis.set_ylabel("reward", color=REWARD_COLOUR)
    axis.set_xlabel(card["axis"])
    other = axis.twinx()
    other.plot(landscape["x"], landscape["truth"], color=TRUTH_COLOUR, linewidth=1.3, linestyle="--")
    other.set_ylabel("truth" if card["truth"] else "task's reward", color=TRUTH_COLOUR)
    other.spines[["top"]].set_visible(False)
    other.tick_params(colors=LABEL_COLOUR, labelsize=8)
    return html.figure(figure, "png", dpi=140), f"{card['name']} along the {card['axis']}"


def _histogram(candidate: Candidate, card: Card) -> tuple[str, str]:
    """How often each reward occurs, at the goal and elsewhere, and the caption."""
    rows = candidate.sample.counted
    values = candidate.values[rows]
    met = np.zeros(len(values), bool)
    if card["truth"]:
        met = candidate.sample.truth[rows, card["goal"]]
    figure, axis = _axes()
    edges = np.linspace(values.min(), values.max() + 1e-9, 41).tolist()
    for mask, colour, label in (
        (~met, OTHER_COLOUR, "other states"),
        (met, TRUTH_COLOUR, "states at the goal"),
    ):
        if mask.any():
            share = np.full(int(mask.sum()), 1 / mask.sum())
            axis.hist(values[mask], edges, weights=share, color=colour, alpha=0.75, label=label)
    axis.set(xlabel="reward", ylabel="share of its kind")
    if met.any():
        axis.legend(frameon=False, fontsize=8)
    return html.figure(figure, "png", dpi=140), f"histogram of {card['name']}"


def _axes() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(4.6, 2.7), facecolor="#ffffff")
    FigureCanvasAgg(figure)
    # Placed by hand, as a layout engine would draw everything twice.
    axis = figure.add_axes((0.14, 0.18, 0.71, 0.78))
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(colors=LABEL_COLOUR, labelsize=8)
    return figure, axis
