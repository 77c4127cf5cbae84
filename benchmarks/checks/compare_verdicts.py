"""Does `runners.compare` let a user's own words through, and stop what does not mean the goal?

The sentences and what is counted stand in `verdict_sentences.csv`. The figures are those of the third set, which was
held out; those of the first two, which the rules were made with, have `_first` and `_second` behind their names.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.checks.bad_prompts import one

SENTENCES = Path(__file__).with_name("verdict_sentences.csv")
READ = 0.9  # AUROC above which the model reads a good sentence as its author meant it
FRAMES = 2000


def run(folder: Path) -> dict[str, float]:
    """The card of every held-out sentence; writes the table, returns the figures, prints what was judged wrongly."""
    rows = [
        {"set": row["set"], "why": row["why"], **one(row["env"], row["sentence"], row["kind"], FRAMES, row["goal"])}
        for row in held_out_sentences()
    ]
    path = folder / "compare-verdicts.csv"
    path.unlink(missing_ok=True)
    results.append_rows(path, rows)
    found: dict[str, float] = {}
    for number, suffix in (("1", "_first"), ("2", "_second"), ("3", "")):
        counts = figures([row for row in rows if row["set"] == number])
        found |= {f"{name}{suffix}": value for name, value in counts.items()}
    return found


def held_out_sentences() -> list[dict[str, str]]:
    """Rows with set, env, goal, kind, why and sentence."""
    lines = SENTENCES.read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """What the file of the sentences says that is counted; prints the sentences it is about."""
    good, bad = ([row for row in rows if row["kind"] == kind] for kind in ("good", "bad"))
    found = {
        "compare_false_alarms": [row for row in good if row["auroc"] >= READ and row["verdict"] != "usable"],
        "compare_missed_bad": [row for row in bad if row["verdict"] == "usable"],
        "compare_misread_good": [row for row in good if not row["auroc"] >= READ],
    }
    for name, named in found.items():
        for row in named:
            print(f"{name}: {row['sentence']!r} on {row['env']}: {row['verdict']}, AUROC {row['auroc']}")
    return {name: len(named) for name, named in found.items()}
