"""The picture of `exploration` and `noisy_rooms`: a row for each method, a column for each task, its interval."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.studies.exploration import TASKS
from runners.evaluate import interval
from runners.report import results, statistics

CONTROLS = ("random", "none", "count", "count_lifetime")
TITLES = {
    "keycorridor": "KeyCorridorS3R2",
    "multiroom": "MultiRoom-N4-S5",
    "mountaincar": "MountainCar",
    "pendulum": "Pendulum, sparse",
    "deepsea10": "DeepSea 10",
    "deepsea20": "DeepSea 20",
    "deepsea30": "DeepSea 30",
}
Panel = tuple[
    str, str, tuple[float, float], dict[str, list[float]]
]  # title, what, limits, arm -> a value for each seed


def draw(folder: Path) -> None:
    """Draw what there is of both studies into figures/exploration.png beside `folder`."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = _panels(folder)
    found = {arm for *_, values in panels for arm in values}
    arms = [arm for arm in CONTROLS if arm in found] + sorted(found - set(CONTROLS))
    size = (1.25 * len(panels) + 1.4, 0.21 * len(arms) + 0.9)
    figure, axes = plt.subplots(1, len(panels), figsize=size, sharey=True, layout="constrained", squeeze=False)
    for axis, (title, what, limits, values) in zip(axes[0], panels):
        for place, arm in enumerate(arms):
            if arm not in values:
                continue
            colour = "#8d99a6" if arm in CONTROLS else "#2c6e9b"
            low, high = interval(values[arm])
            axis.plot([low, high], [place, place], color=colour, linewidth=2.2, alpha=0.35, solid_capstyle="butt")
            axis.plot(statistics.iqm(values[arm]), place, "o", color=colour, markersize=4.5)
        margin = 0.06 * (limits[1] - limits[0])
        axis.set_xlim(limits[0] - margin, limits[1] + margin)
        axis.set_title(title, fontsize=7.5)
        axis.set_xlabel(what, fontsize=7)
        axis.tick_params(labelsize=6.5, length=2)
        axis.grid(axis="y", color="#eeeeee", linewidth=0.7)
        axis.set_axisbelow(True)
        axis.spines[["top", "right", "left"]].set_visible(False)
    axes[0][0].set_yticks(range(len(arms)), arms)
    axes[0][0].invert_yaxis()
    picture = folder.parent / "figures" / "exploration.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=160)
    plt.close(figure)


def _panels(folder: Path) -> list[Panel]:
    panels: list[Panel] = []
    rows = results.read_rows(folder / "exploration.csv")
    for name, task in TASKS.items():
        values = _by_arm([row for row in rows if row["task"] == name], task.judged_by)
        limits = (-200.0, -100.0) if task.judged_by == "return" else (0.0, 1.0)
        panels += [(TITLES[name], task.judged_by, limits, values)] if values else []
    rooms = [row for row in results.read_rows(folder / "noisy_rooms.csv") if row["world"] == "on_demand"]
    if rooms:
        panels.append(("noisy rooms", "cells seen", (0.0, 207.0), _by_arm(rooms, "cells")))
        panels.append(("noisy rooms", "no-op share", (0.0, 1.0), _by_arm(rooms, "noop")))
    return panels


def _by_arm(rows: list[dict[str, Any]], column: str) -> dict[str, list[float]]:
    arms = dict.fromkeys(row["arm"] for row in rows)
    return {arm: [float(row[column]) for row in rows if row["arm"] == arm] for arm in arms}
