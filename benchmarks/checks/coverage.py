"""Do the report's intervals cover the truth as often as they say? Synthetic experiments whose truth is known.

An experiment is 4 tasks with 5 seeds each (and 1 task; and 3 and 10 seeds), whose scores are drawn from a distribution
of one of four kinds. Its truth is the IQM of a hundred thousand seeds. Counted is how often the 95 % interval of
`runners.report.statistics` has it, and how often the percentile interval that is customary has.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks import results
from runners.report import statistics

KINDS = ("normal", "skewed", "two outcomes", "heavy tails")
CASES = ((4, 5), (1, 5), (4, 3), (4, 10))  # tasks, seeds
EXPERIMENTS = 1000
MANY = 100_000  # seeds, for the truth


def draw(kind: str, tasks: int, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """Scores (*shape, tasks): tasks differ in their mean, 0 to 1, and in their scatter."""
    mean = np.linspace(0, 1, tasks) if tasks > 1 else np.array([0.5])
    scatter = np.linspace(0.05, 0.3, tasks) if tasks > 1 else np.array([0.2])
    size = (*shape, tasks)
    if kind == "two outcomes":  # a run solves it or does not
        return 0.8 * (generator.random(size) < 0.3 + 0.4 * mean) + 0.05 * generator.standard_normal(size)
    if kind == "normal":
        noise = generator.standard_normal(size)
    elif kind == "skewed":
        noise = generator.exponential(size=size) - 1
    else:
        noise = generator.standard_t(3, size=size)
    return mean + scatter * noise


def rates(kind: str, tasks: int, seeds: int, experiments: int, generator: np.random.Generator) -> dict[str, float]:
    """Share of experiments whose interval has the truth, for ours and for the percentile interval."""
    truth = statistics.iqm(draw(kind, tasks, (MANY,), generator).ravel())
    hits = {"ours": 0, "percentile": 0}
    for _ in range(experiments):
        scores = list(draw(kind, tasks, (seeds,), generator).T)
        ours = statistics.aggregate(scores)
        low, high = statistics.percentiles(scores, lambda parts: statistics.iqm(np.concatenate(parts, 1)))
        hits["ours"] += int(ours.low <= truth <= ours.high)
        hits["percentile"] += int(low <= truth <= high)
    return {name: count / experiments for name, count in hits.items()}


def run(folder: Path) -> dict[str, float]:
    """Coverage of each kind and case; `coverage_95` is of 4 tasks with 5 seeds, over the four kinds."""
    path = folder / "coverage.csv"
    path.unlink(missing_ok=True)
    generator = np.random.default_rng(0)
    found: dict[tuple[int, int], list[dict[str, float]]] = {}
    for tasks, seeds in CASES:
        for kind in KINDS:
            found.setdefault((tasks, seeds), []).append(rates(kind, tasks, seeds, EXPERIMENTS, generator))
            row = {"kind": kind, "tasks": tasks, "seeds": seeds, "experiments": EXPERIMENTS, **found[tasks, seeds][-1]}
            results.append_rows(path, [row])
            print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    figures = {}
    for name, prefix in (("ours", "coverage"), ("percentile", "percentile_coverage")):
        for (tasks, seeds), each in found.items():
            label = f"{prefix}_95" if (tasks, seeds) == CASES[0] else f"{prefix}_95_{tasks}x{seeds}"
            figures[label] = float(np.mean([rate[name] for rate in each]))
        figures[f"{prefix}_95_worst"] = min(rate[name] for each in found.values() for rate in each)
    return figures
