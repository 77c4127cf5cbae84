"""The report card as text for the terminal, and as one page of HTML that needs no other file."""

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

REWARD, TRUTH, OTHER, INK = "#2f6fad", "#c07a1f", "#b9bec6", "#33383f"
COLOURS = {USABLE: "#3d8b5f", WEAK: "#c9902b", DO_NOT: "#b5483f", NOT_JUDGED: "#7b828c"}
WIDTH = 140  # of a control's line, letters

Pairs = dict[tuple[str, str], PairDistance]  # by the names of the two rewards


def lines(env: str, cards: list[Card], between: Pairs) -> list[str]:
    """What the terminal shows."""
    text = []
    for card in cards:
        text += [f"{card['name']} on {env}", f"  VERDICT: {card['verdict']}: {'; '.join(card['reasons'])}"]
        text += [f"  {name:<30}{value}" for name, value in facts(card)]
        for kind, sentence, found in _controls(card):
            text.append(f"  {'control: ' + kind:<30}{found}   {sentence!r}"[:WIDTH])
        text += [*(f"  note: {note}" for note in card["notes"]), ""]
    for (one, other), (name, value, starc) in between.items():
        text.append(f"{one} and {other}: {name} {value:.3f}, STARC {starc:.3f} (on the sample's distribution)")
    return text


def write(path: Path, env: str, candidates: list[Candidate], cards: list[Card], between: Pairs) -> Path:
    """Write the page."""
    pairs = [(f"{a}, {b}", f"{name} {value:.3f}", f"{starc:.3f}") for (a, b), (name, value, starc) in between.items()]
    sections = [
        {
            **card,
            "colour": COLOURS[card["verdict"]],
            "facts": facts(card),
            "controls": _controls(card),
            "plots": [plot for plot in (_landscape(card), _histogram(candidate, card)) if plot],
            "frames": [(name.capitalize(), [_frame(candidate, card, row) for row in rows])
                       for name, rows in extremes(candidate).items()],
        }
        for candidate, card in zip(candidates, cards)
    ]  # fmt: skip
    header = [("pair", "EPIC or Pearson distance", "STARC distance, on the sample's distribution")]
    values = {"title": f"Rewards on {env}, before training", "between": pairs and header + pairs, "cards": sections}
    return html.write(path, "compare/card.html", values)


def facts(card: Card) -> list[tuple[str, str]]:
    """The card as rows of name and value."""
    truth, task, starc, epic = card["truth"], card["task"], card["starc"], card["epic"]
    target = truth or task
    rows = [(name, repr(text)) for name, text in card["sentences"].items()]
    rows.append(("scored on", f"{card['rows']:,} transitions: {card['about']}"))
    if truth:
        area = "no AUROC" if np.isnan(truth["auroc"]) else f"AUROC {truth['auroc']:.3f} {_interval(truth, 'auroc')}"
        rows.append(("goal or not", f"{area}; {card['met']:.1%} of the states meet the goal"))
    correlation = f"Pearson {target['pearson']:.3f} {_interval(target, 'pearson')}, Spearman {target['spearman']:.3f}"
    rows.append((f"with {card['target']}", correlation))
    distance = "none: the reward or the task cannot be asked about made-up transitions"
    if epic:
        distance = f"{epic['distance']:.3f} ({epic['kind']})"
        distance += "" if epic["goal"] is None else f", {epic['goal']:.3f} to goal or not"
    rows.append(("EPIC distance", distance))
    far = starc and f"{starc['distance']:.3f} {_interval(starc, 'distance')} ({starc['kind']})"
    rows.append(("STARC distance", far or "none: it has a memory"))
    if audit := card["audit"]:
        tied = f"the best two tie in {audit['tied']:.0%} of states (under the target in {audit['tied_target']:.0%})"
        noise = (
            f"noise of {EPS_OF_RANGE:.0%} of the range changes {audit['moved']:.0%} of greedy choices ({audit['kind']})"
        )
        early = audit["informativeness"]
        rows.append(("best actions", f"{tied}; {noise}"))
        rows.append(("informativeness", "undefined" if early is None else f"{early:.2f} (1 tells at once, 0 nothing)"))
    if truth:
        rows.append(("with the task's reward", f"Pearson {task['pearson']:.3f}"))
    quantiles = " / ".join(f"{q:.3g}" for q in card["range"])
    rows.append(("range", f"{quantiles} (min, 5 %, median, 95 %, max); {card['nonzero']:.0%} not zero"))
    if found := card.get("order"):
        others = "" if np.isnan(found["failed"]) else f"; {found['failed']:.2f} in those that never do"
        rises = f"{found['reached']:.2f} with time in {found['episodes']} episodes until they meet the goal{others}"
        rows.append(("value order", f"{rises}; higher at the goal than half-way in {found['cut']:.0%}"))
    if card["spread"] is not None:
        rows.append(("spread", f"{card['spread']:.0%} of the spread of the model's own phrases"))
    if card["phrases"]:
        rows.append(("nearest phrases", ", ".join(f"{text!r} {value:.2f}" for text, value in card["phrases"])))
    if "horizon" in card:
        rows.append(("effective horizon", card["horizon"]))
    speed = card["speed"]
    rates = {name: speed[name] for name in ("step", "render", "embed", "score") if speed[name]}
    seconds = 100_000 * sum(1 / rate for rate in rates.values())
    kept, frames = speed["bytes"], speed["bytes_with_frames"]
    memory = f"{kept * 2048 / 1e6:.3g} MB a rollout of 2,048, {kept * 1e5 / 1e6:.3g} MB a replay of 100,000"
    memory += f" (with frames {frames * 1e5 / 1e9:.3g} GB)" if frames > kept else ""
    listed = ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items())
    rows.append(("rows a second", f"{listed}; 100,000 steps take about {seconds:,.0f} s"))
    return [*rows, ("memory", memory), ("blank frames", f"{card['blank']:.1%}")]


def _interval(values: Card, name: str) -> str:
    low, high = values.get(f"{name}_interval", (np.nan, np.nan))
    return "" if np.isnan(low) else f"[{low:.3f}, {high:.3f}]"


def _controls(card: Card) -> list[tuple[str, str, str]]:
    """Kind, sentence and numbers of each control, or why it has none."""
    rows = []
    for row in card["controls"]:
        area = f"AUROC {row['auroc']:.2f}, " if np.isfinite(row.get("auroc", np.nan)) else ""
        area += f"order {row['order']:+.2f}, " if "order" in row else ""
        text = row.get("error") or f"{area}Pearson {row['pearson']:+.2f}, range {row['low']:.2f} to {row['high']:.2f}"
        rows.append((row["kind"], row["sentence"], text))
    return rows


def extremes(candidate: Candidate, count: int = 8) -> dict[str, list[int]]:
    """Rows of the highest and the lowest scores whose frames differ; empty where nothing was rendered."""
    frames = candidate.sample.batch.frame
    if frames is None:
        return {"highest": [], "lowest": []}
    order = np.flatnonzero(candidate.sample.counted)
    order = order[np.argsort(-candidate.values[order], kind="stable")]
    chosen = {}
    for name, rows in (("highest", order), ("lowest", order[::-1])):
        seen: dict[bytes, int] = {}
        for row in rows:
            seen.setdefault(frames[row].tobytes(), int(row))
            if len(seen) == count:
                break
        chosen[name] = list(seen.values())
    return chosen


def _frame(candidate: Candidate, card: Card, row: int) -> tuple[str, str, bool]:
    """A frame, its score, and whether it meets the goal."""
    frames: Any = candidate.sample.batch.frame

    met = card["truth"] is not None and bool(candidate.sample.truth[row, card["goal"]])
    frame = frames[row]
    shown = round(len(frame) * candidate.sample.proportion)
    # The reward read a square; people see the environment's own proportions.
    stretched = np.asarray(Image.fromarray(frame).resize((max(shown, 1), len(frame))))
    return html.picture(stretched), f"{candidate.values[row]:.3f}", met


def _landscape(card: Card) -> tuple[str, str] | None:
    """Reward and truth along the family's axis, and its caption; None without an axis."""
    found = card["landscape"]
    if found is None:
        return None
    figure, axis = _axes()
    axis.plot(found["x"], found["reward"], color=REWARD, linewidth=1.8)
    axis.set_ylabel("reward", color=REWARD)
    axis.set_xlabel(card["axis"])
    other = axis.twinx()
    other.plot(found["x"], found["truth"], color=TRUTH, linewidth=1.3, linestyle="--")
    other.set_ylabel("truth" if card["truth"] else "task's reward", color=TRUTH)
    other.spines[["top"]].set_visible(False)
    other.tick_params(colors=INK, labelsize=8)
    return html.figure(figure, "png", dpi=140), f"{card['name']} along the {card['axis']}"


def _histogram(candidate: Candidate, card: Card) -> tuple[str, str]:
    """How often each reward occurs, at the goal and elsewhere, and the caption."""
    rows = candidate.sample.counted
    values = candidate.values[rows]
    met = candidate.sample.truth[rows, card["goal"]] if card["truth"] else np.zeros(len(values), bool)
    figure, axis = _axes()
    edges = np.linspace(values.min(), values.max() + 1e-9, 41).tolist()
    for mask, colour, label in ((~met, OTHER, "other states"), (met, TRUTH, "states at the goal")):
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
    axis = figure.add_axes((0.14, 0.18, 0.71, 0.78))  # a layout engine would draw everything twice
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(colors=INK, labelsize=8)
    return figure, axis
