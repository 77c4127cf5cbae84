"""A recording of random play that CLIP rates: what a policy that learned from the ratings alone is worth to the task.

    python -m benchmarks offline_rewards

Random play balances a pole for moments (CartPoleUpright, 5,000 steps with frames, a recording a seed). IQL learns from
it with the ratings of CLIP (clip), of a CLIP that was never trained (untrained) and of the task (task); cloning ignores
them. All settings are the command's defaults; nothing was tuned on this world. Each recording's four runs come from
`runners.sweep`. Verdict, written before the first run: shown if clip returns more than untrained and than cloning,
beyond the intervals of the differences.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import results

WORLD = "lodestar/CartPoleUpright-v0"
SEEDS = range(800, 805)
RECORDED_STEPS = 5000
FRAME_PIXELS = 64
# Each sweep's arms, by agent and reward, and what it is given beside the recording.
SWEEPS: dict[str, dict[str, Any]] = {
    "iql": {"agent": "iql", "reward": "task,clip"},
    "untrained": {"agent": "iql", "reward": "clip", "reward.clip.weights": "untrained"},
    "cloning": {"agent": "cloning", "reward": "task"},
}
# A sweep and a folder's agent and reward -> the arm.
ARMS = {
    ("iql", "iql-clip"): "clip",
    ("iql", "iql-task"): "task",
    ("untrained", "iql-clip"): "untrained",
    ("cloning", "cloning-task"): "cloning",
}


def run(folder: Path) -> dict[str, float]:
    """The arms' returns with their intervals, and how many runs the sweeps made; an interrupted one continues."""
    path = folder / "offline_rewards.csv"
    for seed in SEEDS:
        if results.lacks_row(path, seed=seed):
            results.append_rows(path, measure(seed))
    rows = results.read_rows(path)
    figures: dict[str, float] = {"offline_sweep_runs": float(len(rows))}
    for arm in ARMS.values():
        returns = [float(row["return"]) for row in rows if row["arm"] == arm]
        figures |= results.summary(f"offline_{arm}_return", returns)
    return figures


def measure(seed: int, minibatches: int = 10_000) -> list[dict[str, Any]]:
    """A row for each arm on one recording."""
    from lodestar.files import read_json
    from runners.record import main as record
    from runners.sweep.__main__ import main as sweep

    rows = []
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        try:
            recording = f"env={WORLD} policy=random steps={RECORDED_STEPS} frames={FRAME_PIXELS} seed={seed}"
            _require_success(record([*recording.split(), "out=random.safetensors"]))
            for name, keys in SWEEPS.items():
                given = [f"{key}={value}" for key, value in keys.items()]
                common = f"data=random.safetensors seed={seed} total_timesteps={minibatches} video=false control=none"
                evaluation = f"eval_every={minibatches} name={name}"
                _require_success(sweep([*given, *common.split(), *evaluation.split()]))
                for path in sorted(Path("runs/sweeps", name).rglob("result.json")):
                    cell = path.parent.parent.name
                    scores = read_json(path)
                    row = {"arm": ARMS[name, cell], "seed": seed}
                    row["return"] = round(scores["this run"]["task_return"], 3)
                    row["random"] = round(scores["random"]["task_return"], 3)
                    rows.append(row)
        finally:
            os.chdir(home)
    return rows


def _require_success(code: int) -> None:
    if code:
        raise RuntimeError(f"a command of the measurement ended with code {code}; what it printed says why")
