"""Every system beside its effect: what was claimed, what was measured, and whether that shows it.

    python -m benchmarks effects        writes effects.json; docs/reference/effects.md is made from the same

A study's `verdict` holds conditions on its figures, written down before it runs; those of measurements that are no
study stand in effects.yaml, as does what a system that has neither would `cost` to study. All of `shown` must hold, or
all of `contradicted`; neither is "not shown".

    gail_return >= 0.9                  >=, <=, >, < against a number or another figure
    balance_a above balance_b           beyond the interval: the low end of one is above the high end of the other
    balance_a below 0.5                 the same downwards
    {any: [...]}                        one of them is enough

A verdict that rests on fewer than five seeds is a pilot, which shows nothing.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks import results, study

RESULTS = Path(__file__).resolve().parents[1] / "assets" / "results"
SEEDS = 5
VERDICTS = ("shown", "not shown", "contradicted", "not run")
COMPARE = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
Figures = dict[str, float]


@dataclass(frozen=True)
class Effect:
    """A row of the table."""

    name: str  # of the study or measurement
    system: str
    claim: str
    verdict: str
    figures: Figures  # those that the verdict rests on
    ends: Figures  # of their intervals, as KEY_low and KEY_high
    seeds: int
    hours: float  # of one core
    cost: str = ""  # what it would take, of one that has no study yet

    def interval(self, key: str) -> str:
        """That of a figure, as in " [1, 2]", if it has one."""
        low, high = (self.ends.get(f"{key}_{end}") for end in ("low", "high"))
        return "" if low is None or high is None else f" [{low:.4g}, {high:.4g}]"


def run(folder: Path) -> dict[str, float]:
    """How many systems show their effect."""
    found = list(effects(folder))
    decided = [effect.seeds for effect in found if effect.verdict in ("shown", "contradicted")]
    counts = {kind: sum(effect.verdict.startswith(kind) for effect in found) for kind in VERDICTS}
    figures: Figures = {"rows": len(found), **{kind.replace(" ", "_"): count for kind, count in counts.items()}}
    return figures | {"seeds_min": min(decided, default=0)}


def effects(folder: Path = RESULTS) -> Iterator[Effect]:
    """Every row, studies first."""
    for name in study.names():
        found = study.Study.read(name)
        if found.verdict:
            rows = results.read_rows(folder / f"{name}.csv")
            cells = [(cell.task, cell.arm) for cell in found.grid()]
            seeds = min((len([r for r in rows if (r.get("task"), r.get("arm")) == cell]) for cell in cells), default=0)
            yield _effect(folder, name, found.system, found.claim, found.verdict, rows, seeds)
    for name, entry in yaml.safe_load((study.FOLDER.parent / "effects.yaml").read_text()).items():
        if "cost" in entry:
            yield Effect(name, entry["system"], entry["claim"], "not run", {}, {}, 0, 0.0, entry["cost"])
            continue
        source = entry.get("of", name)  # the measurement, where one has several verdicts
        rows = results.read_rows(folder / f"{source}.csv")
        seeds = len({row["seed"] for row in rows if "seed" in row})
        yield _effect(folder, name, entry["system"], entry["claim"], entry["verdict"], rows, seeds, source)


def _effect(
    folder: Path,
    name: str,
    system: str,
    claim: str,
    verdict: dict[str, Any],
    rows: study.Rows,
    seeds: int,
    source: str = "",
) -> Effect:
    path = folder / f"{source or name}.json"
    known: Figures = json.loads(path.read_text())["figures"] if path.exists() else {}
    keys = list(dict.fromkeys(key for kind in ("shown", "contradicted") for key in _keys(verdict.get(kind, []))))
    said = judge(verdict, known) if known.keys() >= {*keys} else "not run"
    if seeds < SEEDS and said in ("shown", "contradicted"):
        said = "not shown (pilot)"
    hours = sum(float(row.get("seconds") or 0) for row in rows) / 3600
    found = {key: known[key] for key in keys if key in known}
    ends = {key: value for key, value in known.items() if key.endswith(("_low", "_high"))}
    return Effect(source or name, system, claim, said, found, ends, seeds, hours)


def judge(verdict: dict[str, Any], figures: Figures) -> str:
    """What conditions say of figures.

    Raises:
        KeyError: for a figure that is not there.

    Example:
        >>> judge({"shown": ["a above b"]}, {"a": 2, "a_low": 1.5, "b": 1, "b_high": 1.2})
        'shown'
    """
    for kind in ("shown", "contradicted"):
        if kind in verdict and all(holds(condition, figures) for condition in verdict[kind]):
            return kind
    return "not shown"


def holds(condition: str | dict[str, Any], figures: Figures) -> bool:
    """Whether one condition does."""
    if isinstance(condition, dict):
        return any(holds(part, figures) for part in condition["any"])
    left, sign, right = condition.split()
    if sign in COMPARE:
        return bool(COMPARE[sign](_value(left, figures), _value(right, figures)))
    ends = ("low", "high") if sign == "above" else ("high", "low")
    mine, other = (_value(key, figures, end) for key, end in zip((left, right), ends))
    return mine > other if sign == "above" else mine < other


def _value(text: str, figures: Figures, end: str = "") -> float:
    try:
        return float(text)
    except ValueError:
        return figures[f"{text}_{end}"] if end and f"{text}_{end}" in figures else figures[text]


def _keys(conditions: list[Any]) -> Iterator[str]:
    for condition in conditions:
        if isinstance(condition, dict):
            yield from _keys(condition["any"])
        else:
            yield from (word for word in condition.split()[::2] if not word.replace(".", "").lstrip("-").isdigit())
