"""Why some bonuses do not lead to the key of KeyCorridorS3R3: what they reward, with random play.

    python -m benchmarks bonus_contrast

Each bonus is scaled by its return and weighs 0.03, as in the study `every_bonus`, and learns from 24 rollouts of 4,096
frames. The next six are looked at. An observation is new if the first-visit count of the suite says so. Three figures,
each the mean of three seeds:

    contrast_NAME_seen    the bonus of an observation seen before in its episode, over that of a new one
    contrast_NAME_late    the bonus of a new one after 120 steps, over that within the first ten
    contrast_NAME_left    the bonus of a step, over that in the first six rollouts that had a scale

A bonus that finds the key must reward what is new (`seen` near 0), also far from the start (`late` near 1), and go on
(`left` near 1). It was measured after `every_bonus` had run, so it explains and shows nothing by itself.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import rewards
from benchmarks import results
from envs.make import make_vec
from envs.transitions import Rollout
from envs.types import Memory
from rewards.adapters.guided import make_mix
from rewards.mix.mix import Mix
from runners.report.statistics import iqm

TASK = "MiniGrid-KeyCorridorS3R3-v0"
SEEDS = range(3)
ENVS = 32
STEPS = 128
LEARNING_ROLLOUTS = 24
MEASURED_ROLLOUTS = 6
EARLY_STEPS = 10
LATE_STEP = 120
SOLVED = 0.8
PANELS = {
    "seen": "an observation seen before,\nover a new one",
    "late": "a new one after 120 steps,\nover one in the first ten",
    "left": "a step after 24 rollouts,\nover one at first",
}
# Name of the figures -> reward and its options.
BONUSES: dict[str, tuple[str, dict[str, Any]]] = {
    "noveld": ("noveld", {}),
    "count": ("count", {}),
    "pseudocount": ("pseudocount", {}),
    "re3": ("re3", {}),
    "ngu": ("ngu", {}),
    "submodular": ("submodular", {}),
    "deir": ("deir", {}),
    "e3b": ("e3b", {}),
    "e3b_root": ("e3b", {"sqrt": True}),
    "e3b_wide": ("e3b", {"hidden": 256, "features": 256}),
    "e3b_wide_root": ("e3b", {"hidden": 256, "features": 256, "sqrt": True}),
    "ride": ("ride", {}),
    "ride_equal": ("ride", {"inverse_weight": 1.0, "forward_weight": 1.0}),
    "byol": ("byol", {}),
    "rnd": ("rnd", {}),
    "icm": ("icm", {}),
}


@dataclass
class Steps:
    """Single steps: the weighted bonus, whether the observation was new, and the step in its episode."""

    bonus: np.ndarray
    is_new: np.ndarray
    step: np.ndarray

    def mean(self, *conditions: np.ndarray) -> float:
        """The mean bonus of the steps for which all conditions hold."""
        chosen = np.logical_and.reduce(conditions)
        return float(self.bonus[chosen].mean())


def run(folder: Path) -> dict[str, float]:
    """Measure what has no row yet; the figures of all."""
    path = folder / "bonus_contrast.csv"
    for name in BONUSES:
        for seed in SEEDS:
            if results.lacks_row(path, bonus=name, seed=seed):
                results.append_rows(path, [{"bonus": name, "seed": seed, **measure(name, seed)}])
    rows = results.read_rows(path)
    figures = {}
    for name in BONUSES:
        for column in ("seen", "late", "left"):
            values = [float(row[column]) for row in rows if row["bonus"] == name]
            figures[f"contrast_{name}_{column}"] = float(np.mean(values))
    success = {name: float(iqm(values)) for name, values in successes(folder).items()}
    draw(figures, success, folder.parent / "figures" / "bonus_contrast.png")
    return figures


def successes(folder: Path) -> dict[str, list[float]]:
    """The success of each run of `every_bonus`, by bonus."""
    found: dict[str, list[float]] = {}
    for row in results.read_rows(folder / "every_bonus.csv"):
        found.setdefault(row["arm"], []).append(float(row["success"]))
    return found


def draw(figures: dict[str, float], success: dict[str, float], picture: Path) -> None:
    """A row for each bonus of `every_bonus`, the most successful at the top, and a panel for each figure."""
    import matplotlib
    from matplotlib.figure import Figure

    from runners.report import plots

    names = sorted(success, key=success.__getitem__)
    labels = [f"{name}  {success[name]:.2f}" for name in names]
    colours = ["C0" if success[name] >= SOLVED else "C1" for name in names]
    with matplotlib.rc_context(plots.STYLE):
        figure = Figure(figsize=(8, 3.6), layout="constrained")
        panels = figure.subplots(1, len(PANELS), sharey=True)
        for axes, (column, title) in zip(panels, PANELS.items()):
            axes.barh(labels, [figures[f"contrast_{name}_{column}"] for name in names], color=colours)
            axes.set_title(title, loc="left", fontsize=9)
        panels[0].set_ylabel("bonus, and its success")
        picture.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(picture, dpi=160)


def measure(name: str, seed: int) -> dict[str, float]:
    """The three figures of a bonus."""
    reward, options = BONUSES[name]
    config = rewards.get(reward).Config(scale="return", weight=0.03, **options)
    with closing(make_vec(TASK, ENVS, seed=seed, backend="batched")) as envs:
        spaces = (envs.single_observation_space, envs.single_action_space)
        # The count says which observations are new.
        chosen = {"count": rewards.get("count").Config(), reward: config}
        mix = make_mix(chosen, *spaces, gamma=0.99, seed=seed)
        first, last = _play(envs, mix, reward, seed)
    new = last.is_new
    early = last.mean(new, last.step < EARLY_STEPS)
    late = last.mean(new, last.step >= LATE_STEP)
    return {
        "seen": round(last.mean(~new) / last.mean(new), 4),
        "late": round(late / early, 4),
        "left": round(float(last.bonus.mean() / first.bonus.mean()), 4),
    }


def _play(envs: Any, mix: Mix, reward: str, seed: int) -> tuple[Steps, Steps]:
    """Steps of the first and of the last rollouts."""
    rollout = Rollout(STEPS, envs)
    envs.action_space.seed(seed)
    rollout.begin(*envs.reset(seed=seed))
    memory: Memory = mix.initial_memory(ENVS)
    rollouts = []
    for number in range(LEARNING_ROLLOUTS + MEASURED_ROLLOUTS):
        if number:
            rollout.roll()
        for t in range(STEPS):
            action = envs.action_space.sample()
            rollout.action[t] = action
            rollout.write(t, slice(0, ENVS), *envs.step(action))
        batch = rollout.transitions(mix.requires)
        raw, memory = mix.score(batch, memory)
        mix.update(batch, raw)
        bonus = mix.weighted_rewards(raw, 0)[reward]
        is_new = raw["count"] > 0
        valid = batch.valid
        rollouts.append(Steps(bonus[valid], is_new[valid], batch.step[valid]))
    # A scaled bonus is zero in the first rollout, which it takes its scale from.
    return _join(rollouts[1 : 1 + MEASURED_ROLLOUTS]), _join(rollouts[-MEASURED_ROLLOUTS:])


def _join(parts: list[Steps]) -> Steps:
    return Steps(
        np.concatenate([part.bonus for part in parts]),
        np.concatenate([part.is_new for part in parts]),
        np.concatenate([part.step for part in parts]),
    )
