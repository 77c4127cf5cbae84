"""Stone, paper, scissors: where PPO goes whose judge has no best arm.

lodestar/ProbeArms-v0 gives no rewards; the judge `circle` prefers each arm to the one before. SPO (`self_play`) should
circle around the mixture that nothing beats, so that the shares of the arms over training go to a third each;
Bradley-Terry (`bradley_terry`, the control) must put one arm above the others and pick it. Both learn from 300 answers,
with one pass over each rollout, chosen on seed 0, where four made larger circles (0.106); the rest on seed 100.

Verdict, written before the first run: shown if the largest distance of a share from a third, over the last half of
training and the mean over five seeds, is at most 0.05 with self_play and at least 0.5 with bradley_terry.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks import results

SEEDS, ARMS = 5, 3
STEPS = 60_000
NAMES = {"spo": "self_play", "bt": "bradley_terry"}
ASKED = ("judge=circle", "length=1", "seed_steps=0", "every=256", "queries=30", "budget=300")
AGENT = ("n_envs=8", "agent.n_steps=32", "agent.batch_size=256", "agent.n_epochs=1")


class Shares(BaseCallback):
    """Counts the actions of every rollout after the first half."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = np.zeros(ARMS)

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        if self.num_timesteps > STEPS // 2:
            self.counts += np.bincount(self.locals["batch"].action.ravel(), minlength=ARMS)


def run(folder: Path) -> dict[str, float]:
    """Run the seeds that have no row; the mean distance from a third of each way to learn."""
    path = folder / "circle.csv"
    for name, reward in NAMES.items():
        for seed in range(SEEDS):
            if results.lacks_row(path, reward=name, seed=seed):
                shares = learn(reward, seed)
                row = {f"arm_{arm}": round(share, 4) for arm, share in enumerate(shares)}
                results.append_rows(path, [{"reward": name, "seed": seed, **row}])
    rows = results.read_rows(path)
    far = {name: [distance(row) for row in rows if row["reward"] == name] for name in NAMES}
    return {f"{name}_cycle_distance": float(np.mean(found)) for name, found in far.items()}


def distance(row: dict[str, str]) -> float:
    """The largest distance of a share from an equal one."""
    return max(abs(float(row[f"arm_{arm}"]) - 1 / ARMS) for arm in range(ARMS))


def learn(reward: str, seed: int) -> list[float]:
    """The share of each arm over the last half of training."""
    from runners.cli.compose import compose
    from runners.run.build import build

    options = [f"reward.{reward}.{option}" for option in ASKED]
    common = ["env=lodestar/ProbeArms-v0", "preset=none", f"total_timesteps={STEPS}", f"seed={seed}", *AGENT]
    parts, shares = build(compose([*common, f"reward={reward}", *options])[0]), Shares()
    with closing(parts.venv):
        parts.model.learn(STEPS, callback=shares)
    return (shares.counts / shares.counts.sum()).tolist()
