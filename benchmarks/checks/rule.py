"""How often the rule of the effects' table errs: two arms of simulated scores, compared as a study's are.

    python -m benchmarks rule

Scores are normal with deviation 1, unpaired, 5 or 10 seeds an arm. `rule_false_positive` is the largest share of pairs
without a difference that are called different in one given direction; `rule_power` is the share found where the means
are two deviations apart, with 5 seeds. The figures that end in `_overlap` are of the rule that was used before: two
intervals that must not overlap.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks import results
from benchmarks.figures import STATISTICS, Sample, difference
from runners.report import statistics

SEED_COUNTS = (5, 10)
EFFECTS = (0.0, 1.6, 2.0, 3.0)  # in deviations
PAIRS = 3000


def run(folder: Path) -> dict[str, float]:
    """Simulate every number of seeds and every effect; one row each."""
    rows = [simulate(seeds, effect) for seeds in SEED_COUNTS for effect in EFFECTS]
    path = folder / "rule.csv"
    path.unlink(missing_ok=True)
    results.append_rows(path, rows)
    without_effect = [row["difference"] for row in rows if row["effect"] == 0]
    overlap_without_effect = [row["overlap"] for row in rows if row["effect"] == 0]
    two_deviations = next(row for row in rows if row["seeds"] == 5 and row["effect"] == 2)
    return {
        "rule_false_positive": max(without_effect),
        "rule_power": two_deviations["difference"],
        "rule_false_positive_overlap": max(overlap_without_effect),
        "rule_power_overlap": two_deviations["overlap"],
    }


def simulate(seeds: int, effect: float, pairs: int = PAIRS) -> dict[str, float]:
    """The share of pairs in which the better arm is called better, by either rule."""
    generator = np.random.default_rng([seeds, round(10 * effect)])
    names = [str(seed) for seed in range(seeds)]
    found_by_difference = 0
    found_by_overlap = 0
    for _ in range(pairs):
        left = generator.normal(effect, 1, seeds)
        right = generator.normal(0, 1, seeds)
        samples = {
            "left": Sample("score", "iqm", names, left),
            "right": Sample("score", "iqm", names, right),
        }
        found_by_difference += bool(difference(samples, {}, "left", "right").low > 0)
        found_by_overlap += bool(iqm_interval(left).low > iqm_interval(right).high)
    return {
        "seeds": seeds,
        "effect": effect,
        "difference": found_by_difference / pairs,
        "overlap": found_by_overlap / pairs,
    }


def iqm_interval(scores: np.ndarray) -> statistics.Estimate:
    """The IQM of one arm with its interval."""
    return statistics.interval([scores], lambda parts: STATISTICS["iqm"](parts[0]))
