"""The picture of `reward-swap`: returns after the reward has changed its mind, paid anew and as it was stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.studies.reward_swap import PLAN, POINTS, TASKS
from runners.report import results

COLOURS = {"relabel": "#2c6e9b", "stale": "#c07a1f"}
WORDS = {"relabel": "paid anew", "stale": "as it was stored"}
TITLES = {
    ("task", "dyna"): "dyna (model-based)",
    ("task", "sac"): "dyna, no model (SAC)",
    ("task", "mrq"): "world_model (MR.Q)",
    ("preference", "dyna"): "dyna, comparisons",
    ("rnd", "dyna"): "dyna, RND, sparse",
    ("clip", "dyna"): "dyna, CLIP's sentence",
}


def curves(rows: list[dict[str, Any]], task: str, agent: str, arm: str) -> np.ndarray:
    """Returns at the change, on the way and at the end: a row for each seed, float64 (seeds, POINTS + 1)."""
    chosen = [r for r in rows if (r["task"], r["agent"], r["arm"]) == (task, agent, arm)]
    names = [*(f"after_{100 * i // POINTS}" for i in range(POINTS)), "return"]
    return np.array([[float(row[name]) for name in names] for row in chosen]).reshape(-1, len(names))


def draw(folder: Path) -> Path:
    """Draw what there is of the study into figures/reward_swap.png beside `folder`."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = results.read_rows(folder / "reward-swap.csv")
    panels = [where for where in PLAN if any(len(curves(rows, *where, arm)) for arm in COLOURS)]
    figure, axes = plt.subplots(
        1, len(panels), figsize=(2.1 * len(panels) + 0.4, 2.2), layout="constrained", squeeze=False
    )
    for axis, (task, agent) in zip(axes[0], panels):
        env_id, steps = TASKS[task]
        x = np.linspace(0, steps / 2, POINTS + 1)
        seeds = 0
        for arm, colour in COLOURS.items():
            values = curves(rows, task, agent, arm)
            if not len(values):
                continue
            seeds = max(seeds, len(values))
            axis.fill_between(x, values.min(0), values.max(0), color=colour, alpha=0.18, linewidth=0)
            axis.plot(x, values.mean(0), color=colour, linewidth=1.8, label=WORDS[arm])
        axis.set_title(
            f"{TITLES[task, agent]}\n{env_id.removeprefix('lodestar/')}, {seeds} seed{'s'[: seeds > 1]}", fontsize=7.5
        )
        low, high = axis.dataLim.intervaly
        if low == high:  # nobody was ever paid
            axis.set_ylim(low - 1, low + 20)
        axis.set_xlabel("steps after the change", fontsize=7)
        axis.tick_params(labelsize=6.5, length=2)
        axis.grid(color="#eeeeee", linewidth=0.7)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("task return", fontsize=7)
    axes[0][0].legend(fontsize=6.5, frameon=False, loc="upper left")
    picture = folder.parent / "figures" / "reward_swap.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=160)
    plt.close(figure)
    return picture
