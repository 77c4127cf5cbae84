"""Two measurements on ten fresh seeds, because the rule of their verdicts was changed after their rows were seen.

    python -m benchmarks recoil_fresh    imitation from arbitrary recordings: the arms of `offline_shelf` that judge it
    python -m benchmarks resip_fresh     a residual over a frozen base, the wide hole of `resip`

Everything but the seeds is as it was, the verdicts in effects.yaml too. An interrupted measurement continues.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import results
from benchmarks.checks import offline_shelf, resip

SEEDS = range(300, 310)
RECOIL_ARMS = ("recoil", "cloning_union", "cloning_one")
RESIP_ARMS = ("resip", "base", "ppo", "random")
RESIP_EPS = 0.02


def run_recoil(folder: Path) -> dict[str, float]:
    """Returns of each arm, as they are."""
    path = folder / "recoil_fresh.csv"
    for seed in SEEDS:
        for arm in RECOIL_ARMS:
            if results.lacks_row(path, arm=arm, seed=seed):
                results.append_rows(path, [offline_shelf.measure(arm, seed)])
    rows = results.read_rows(path)
    figures: dict[str, float] = {}
    for arm in RECOIL_ARMS:
        values = [float(row["return"]) for row in rows if row["arm"] == arm]
        figures |= results.summary(f"{arm}_fresh_return", values)
    return figures


def run_resip(folder: Path) -> dict[str, float]:
    """Success of each arm."""
    path = folder / "resip_fresh.csv"
    for seed in SEEDS:
        if results.lacks_row(path, seed=seed):
            row = resip.compare(seed, RESIP_EPS, resip.STEPS)
            results.append_rows(path, [{"seed": seed, "eps": RESIP_EPS, **row}])
    rows = results.read_rows(path)
    figures: dict[str, float] = {}
    for arm in RESIP_ARMS:
        figures |= results.summary(f"resip_fresh_{arm}", [float(row[arm]) for row in rows])
    return figures
