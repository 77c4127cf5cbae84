"""Every system beside its effect: what was claimed, what was measured, and whether that shows it.

    python -m benchmarks effects        writes effects.json, and the counts in README

docs/reference/effects.md is made from the same rows.

A study's `verdict` holds conditions on its figures, written down before it runs; those of measurements that are no
study stand in effects.yaml, as does what a system that has neither would `cost` to study. All of `shown` must hold, or
all of `contradicted`; neither is "not shown".

    a above b, a below b        two figures: 0 lies outside the interval of their difference
    a above 0.5, a below 0.5    a figure and a number: the number lies outside the figure's interval
    a >= 0.9, a < 0.9, ...      a level: in `shown` the figure must reach it, in `contradicted` its whole interval
    {any: [...]}                one of them is enough

Both directions have the same rule; `python -m benchmarks rule` simulates how often it errs. A verdict that rests on
fewer than five seeds is a pilot, which shows nothing. A study or an entry that names another in `again` has fresh seeds
and takes over its row. `post_hoc` says that a rule was changed after the data were seen: such a row is not shown until
it has fresh seeds.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from benchmarks import results, study
from benchmarks.figures import (
    Rows,
    Sample,
    Shares,
    difference,
    figures,
    leaves_of,
    make_sample,
    recorded_difference,
    samples_of,
)

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "assets" / "results"
README = ROOT / "README.md"
ENTRIES = study.FOLDER.parent / "effects.yaml"
SEEDS = 5
# Names of their own for two figures: cells of 196 that are visited among 128 random bits.
HEADLINES = {
    "hindsight_128_cells": "hindsight_skip_deafening_hindsight",
    "none_128_cells": "hindsight_skip_deafening_none",
}
VERDICTS = ("shown", "not shown", "contradicted", "not run")
LEVELS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
Figures = dict[str, float]


@dataclass(frozen=True)
class Effect:
    """A row of the table."""

    name: str  # of the study or measurement
    system: str
    claim: str
    verdict: str
    figures: Figures = field(default_factory=dict)  # those that the verdict rests on
    ends: Figures = field(default_factory=dict)  # of their intervals, as KEY_low and KEY_high
    seeds: int = 0
    hours: float = 0.0  # of one core
    cost: str = ""  # what it would take, of one that has no study yet
    post_hoc: str = ""  # how its rule was changed after its data were seen
    cause: str = ""  # why it is not shown

    def interval(self, key: str) -> str:
        """That of a figure, as in " [1, 2]", if it has one."""
        low = self.ends.get(f"{key}_low")
        high = self.ends.get(f"{key}_high")
        return "" if low is None or high is None else f" [{figure_text(low)}, {figure_text(high)}]"


def figure_text(value: float) -> str:
    """Four digits; thousands without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


@dataclass(frozen=True)
class Evidence:
    """Figures and, where they are known, the runs behind them."""

    figures: Figures
    samples: dict[str, Sample] = field(default_factory=dict)
    shares: Shares = field(default_factory=dict)
    rows: Rows = field(default_factory=list)

    def interval(self, key: str) -> tuple[float, float]:
        """That of a figure; the figure itself where none is recorded."""
        value = self.figures[key]
        return self.figures.get(f"{key}_low", value), self.figures.get(f"{key}_high", value)

    def difference(self, left: str, right: str) -> tuple[float, float]:
        """The interval of one figure minus another: from the runs if they are known, else from both intervals."""
        leaves = leaves_of(left, self.shares) | leaves_of(right, self.shares)
        if self.samples.keys() >= leaves:
            _, low, high = difference(self.samples, self.shares, left, right)
            return float(low), float(high)
        sides = [(self.figures[key], *self.interval(key)) for key in (left, right)]
        return recorded_difference(*sides)


def run(folder: Path) -> dict[str, float]:
    """How many systems show their effect, and the figures that decide."""
    found = list(effects(folder))
    decided = [effect for effect in found if effect.verdict in ("shown", "contradicted")]
    counts: Figures = {"rows": len(found)}
    for kind in VERDICTS:
        counts[kind.replace(" ", "_")] = sum(effect.verdict.startswith(kind) for effect in found)
    counts["post_hoc"] = sum(bool(effect.post_hoc) for effect in decided)
    counts["seeds_min"] = min((effect.seeds for effect in decided), default=0)
    if folder == RESULTS:
        write_counts(README, counts)
    figures_of_rows: Figures = {}
    for effect in found:
        figures_of_rows |= effect.figures
    for name, key in HEADLINES.items():
        if key in figures_of_rows:
            figures_of_rows[name] = figures_of_rows[key]
    return figures_of_rows | counts


def counts_sentence(figures: Figures) -> str:
    """The verdicts counted, as README says it."""
    rows, *counts = (f"{figures[kind]:.0f}" for kind in ("rows", "shown", "not_shown", "contradicted", "not_run"))
    shown, not_shown, contradicted, not_run = counts
    return (
        f"Of {rows} claims of methods {shown} are shown, {not_shown} not shown, {contradicted} contradicted and "
        f"{not_run} not run yet"
    )


def write_counts(readme: Path, figures: Figures) -> None:
    """Bring the sentence that counts the verdicts up to date in README."""
    text = readme.read_text()
    readme.write_text(re.sub(r"Of \d+ claims of methods .* not run yet", counts_sentence(figures), text))


def effects(folder: Path = RESULTS) -> Iterator[Effect]:
    """Every row, studies first."""
    studies = [found for found in map(study.Study.read, study.names()) if found.verdict]
    entries = yaml.load(ENTRIES.read_text(), yaml.CSafeLoader)
    # Fresh seeds take over a row once every cell has enough of them.
    again = {found.again: found for found in studies if found.again and seeds_of(found, folder) >= SEEDS}
    for found in studies:
        if not found.again:
            yield study_effect(folder, again.get(found.name, found), found.system)
    retried = {name: entry for name, entry in entries.items() if "again" in entry}
    fresh = {entry["again"]: measured_effect(folder, name, entry) for name, entry in retried.items()}
    for name, entry in entries.items():
        if name in retried:
            continue
        if name in again:
            yield study_effect(folder, again[name], entry["system"])
        elif name in fresh and fresh[name].verdict != "not run" and fresh[name].seeds >= SEEDS:
            yield fresh[name]
        elif "cost" in entry:
            yield Effect(name, entry["system"], entry["claim"], "not run", cost=entry["cost"])
        else:
            yield measured_effect(folder, name, entry)


def seeds_of(found: study.Study, folder: Path) -> int:
    """How many seeds the cell has that has the fewest."""
    rows = results.read_rows(folder / f"{found.name}.csv")
    cells = [(row.get("task"), row.get("arm")) for row in rows]
    return min((cells.count((cell.task, cell.arm)) for cell in found.grid()), default=0)


def study_effect(folder: Path, found: study.Study, system: str) -> Effect:
    """The row of a study."""
    known = Effect(found.name, system, found.claim, "not run", post_hoc=found.post_hoc, cause=found.cause)
    # Its figures are written when all runs have ended: the rows of an interrupted study decide nothing.
    if not (folder / f"{found.name}.json").exists():
        return known
    evidence = study_evidence(folder, found)
    return judged_effect(known, found.verdict, evidence, seeds_of(found, folder))


def study_evidence(folder: Path, found: study.Study) -> Evidence:
    """The figures of a study, computed from its rows."""
    rows = results.read_rows(folder / f"{found.name}.csv")
    known = read_figures(folder / f"{found.name}.json") | figures(found, rows)
    return Evidence(known, samples_of(found, rows), found.shares, rows)


def measured_effect(folder: Path, name: str, entry: dict[str, Any]) -> Effect:
    """The row of a measurement, which `of` names where it has several verdicts."""
    source = entry.get("of", name)
    if source in study.names():
        evidence = study_evidence(folder, study.Study.read(source))
    else:
        rows = results.read_rows(folder / f"{source}.csv")
        known_figures = read_figures(folder / f"{source}.json")
        evidence = Evidence(known_figures, named_samples(entry.get("samples", {}), rows), rows=rows)
    notes = {key: entry[key] for key in ("post_hoc", "cause") if key in entry}
    known = Effect(source, entry["system"], entry["claim"], "not run", **notes)
    seeds = len({row["seed"] for row in evidence.rows if "seed" in row})
    return judged_effect(known, entry["verdict"], evidence, seeds)


def named_samples(named: dict[str, dict[str, Any]], rows: Rows) -> dict[str, Sample]:
    """The runs behind a measurement's figures: of each a `column`, and what other columns must be."""
    found: dict[str, Sample] = {}
    for key, wanted in named.items():
        fixed = {name: str(value) for name, value in wanted.items() if name != "column"}
        own_rows = [row for row in rows if all(row[name] == value for name, value in fixed.items())]
        sample = make_sample(own_rows, wanted["column"])
        if sample is not None:
            found[key] = sample
    return found


def judged_effect(known: Effect, verdict: dict[str, list[Any]], evidence: Evidence, seeds: int) -> Effect:
    """The row with its verdict and the figures that the verdict rests on."""
    keys = list(dict.fromkeys(key for conditions in verdict.values() for key in keys_of(conditions)))
    said = "not run"
    if evidence.figures.keys() >= {*keys}:
        said = judge(verdict, evidence)
    if seeds < SEEDS and said in ("shown", "contradicted"):
        said = "not shown (pilot)"
    if known.post_hoc and said in ("shown", "contradicted"):
        said = f"not shown (post hoc: {said})"
    return Effect(
        known.name,
        known.system,
        known.claim,
        said,
        figures={key: evidence.figures[key] for key in keys if key in evidence.figures},
        ends={key: value for key, value in evidence.figures.items() if key.endswith(("_low", "_high"))},
        seeds=seeds,
        hours=sum(float(row.get("seconds") or 0) for row in evidence.rows) / 3600,
        post_hoc=known.post_hoc,
        cause=known.cause,
    )


def read_figures(path: Path) -> Figures:
    """The figures of a file of results; none if there is no such file."""
    return json.loads(path.read_text())["figures"] if path.exists() else {}


def judge(verdict: dict[str, list[Any]], evidence: Evidence) -> str:
    """What conditions say of figures.

    Raises:
        KeyError: for a figure that is not there.

    Example:
        >>> judge({"shown": ["a above b"]}, Evidence({"a": 2, "a_low": 1.5, "b": 1, "b_high": 1.2}))
        'shown'
    """
    for kind in ("shown", "contradicted"):
        if kind in verdict and all(holds(condition, evidence, kind) for condition in verdict[kind]):
            return kind
    return "not shown"


def holds(condition: str | dict[str, Any], evidence: Evidence, kind: str) -> bool:
    """Whether one condition does; `kind` is the verdict that it belongs to.

    Raises:
        ValueError: for two figures compared as points, which decide nothing.
    """
    if isinstance(condition, dict):
        return any(holds(part, evidence, kind) for part in condition["any"])
    left, sign, right = condition.split()
    if not is_number(right):
        if sign not in ("above", "below"):
            raise ValueError(f"{condition!r} compares two points; write above or below")
        low, high = evidence.difference(left, right)
        return low > 0 if sign == "above" else high < 0
    level = float(right)
    low, high = evidence.interval(left)
    if sign == "above":
        return low > level
    if sign == "below":
        return high < level
    compare = LEVELS[sign]
    if kind == "contradicted":
        return bool(compare(low, level) and compare(high, level))
    return bool(compare(evidence.figures[left], level))


def keys_of(conditions: list[Any]) -> Iterator[str]:
    """The figures that conditions name."""
    for condition in conditions:
        if isinstance(condition, dict):
            yield from keys_of(condition["any"])
        else:
            left, _, right = condition.split()
            yield left
            if not is_number(right):
                yield right


def is_number(text: str) -> bool:
    """Whether a word of a condition is a number and no figure's name."""
    try:
        float(text)
    except ValueError:
        return False
    return True
