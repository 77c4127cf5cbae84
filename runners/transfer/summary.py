"""The results: a table, transfer.json, matrix.csv and transfer.png."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from runners.report import results
from runners.report.statistics import aggregate
from runners.run.checkpoint import versions, write_atomically
from runners.transfer.config import TransferConfig
from runners.transfer.mbtl import generalised

OURS = "mbtl"


def summary(config: TransferConfig, orders: dict[str, list[int]], rows: dict[int, np.ndarray]) -> dict[str, Any]:
    """All results, as plain data.

    Args:
        config: with the tasks.
        orders: method -> the sources, in order.
        rows: source -> returns (seeds, N).
    """
    means = {source: values.mean(axis=0) for source, values in rows.items()}
    chosen = orders[OURS]
    best = np.max([means[source] for source in chosen], axis=0)
    found: dict[str, Any] = {
        **config.fixed(),
        "folder": str(config.folder),
        "budget": config.budget,
        "seeds": config.seeds,
        "steps": int(config.train.total_timesteps) * config.seeds * config.budget,
        "orders": {name: [config.label(source) for source in order] for name, order in orders.items()},
        "generalised": {
            name: generalised(np.array([means[s] for s in order])).tolist() for name, order in orders.items()
        },
        "at_home": float(np.mean([means[source][source] for source in chosen])),
        "best_of_all_at_home": float(np.mean(best[chosen])),
        "versions": versions(),
    }
    if config.seeds > 1:
        found["intervals"] = {}
        for name, order in orders.items():
            final = generalised(np.array([rows[source] for source in order]).transpose(0, 2, 1))[-1]
            found["intervals"][name] = [float(end) for end in aggregate([final])[1:]]
    return found


def table(found: dict[str, Any]) -> str:
    """The summary as text."""
    tasks, names = found["tasks"], found["orders"]
    lines = [f"task return, mean over {len(tasks)} tasks of the best policy that was trained, after k sources"]
    lines.append(f"  {'k':<14}" + "".join(f"{k + 1:>10}" for k in range(found["budget"])))
    for name, values in found["generalised"].items():
        shown = values if name != "equidistant" else [None] * (len(values) - 1) + values[-1:]  # spread for the whole
        cells = "".join(f"{'' if value is None else f'{value:.4g}':>10}" for value in shown)
        ends = found.get("intervals", {}).get(name)
        lines.append(f"  {name:<14}{cells}" + (f"   [{ends[0]:.4g}, {ends[1]:.4g}]" if ends else ""))
    lines += [f"  {name} chose {' '.join(order)}" for name, order in names.items()]
    lines.append(
        f"  on the {found['budget']} tasks trained on: each by its own policy {found['at_home']:.4g}, "
        f"by the best of them {found['best_of_all_at_home']:.4g}; a policy for every task would be {len(tasks)} runs"
    )
    if found["seeds"] == 1:
        lines.append("  one run a source: differences may be luck; seeds=3 or more gives intervals")
    return "\n".join(lines)


def write(config: TransferConfig, found: dict[str, Any], rows: dict[int, np.ndarray], command: str) -> Path:
    """transfer.json, matrix.csv (a row for every run, a column for every task) and the picture, which is returned."""
    write_atomically(config.folder / "transfer.json", json.dumps({"command": command, **found}, indent=1) + "\n")
    labels = config.labels
    lines = [
        {"source": config.label(source), "seed": seed, **dict(zip(labels, values.tolist()))}
        for source in sorted(rows)
        for seed, values in enumerate(rows[source])
    ]
    path = config.folder / "matrix.csv"
    path.unlink(missing_ok=True)
    results.append_rows(path, lines)
    return draw(config, found, rows)


def draw(config: TransferConfig, found: dict[str, Any], rows: dict[int, np.ndarray]) -> Path:
    """The transfers, a row a source with its place in the order, and what they add up to."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from runners.run.curve import COLOURS

    labels = config.labels
    sources = sorted(rows)
    place = {label: k + 1 for k, label in enumerate(found["orders"][OURS])}
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 1.5 + 0.35 * max(len(sources), 8)))
    image = left.imshow(np.array([rows[source].mean(axis=0) for source in sources]), aspect="auto")
    figure.colorbar(image, ax=left, label="task return")
    left.set_yticks(
        range(len(sources)), [f"{place[labels[s]]}. {labels[s]}" if labels[s] in place else labels[s] for s in sources]
    )
    left.set_xticks(range(len(labels)), labels, rotation=90, fontsize=7)
    left.scatter(sources, range(len(sources)), marker="s", facecolors="none", edgecolors="white")  # at home
    left.set(xlabel="task", ylabel="trained on (numbers: order of choice)", title="zero-shot transfer")
    for colour, (name, values) in zip(COLOURS, found["generalised"].items()):
        k = np.arange(1, len(values) + 1)
        if name == "equidistant":
            right.plot(k[-1:], values[-1:], "o", color=colour, label=name)
        else:
            right.plot(k, values, marker=".", color=colour, label=name)
    right.set(xlabel="sources trained on", ylabel="task return, mean over tasks", title=config.train.env)
    right.xaxis.get_major_locator().set_params(integer=True)
    right.legend()
    figure.tight_layout()
    path = config.folder / "transfer.png"
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path
