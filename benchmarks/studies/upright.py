"""The first promise, five times: does a sentence alone teach the pole to stand, and does it need CLIP to have learnt?

Each seed is one run of the README's command, `runners.train env=lodestar/CartPoleUpright-v0 reward=clip`, with its
control (the same run paid by an untrained CLIP) beside it and a random policy to compare with. The judge is the task's
own truth: steps out of 200 with the pole within 12 degrees of upright.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from runners.report import results

ENV = "lodestar/CartPoleUpright-v0"
SEEDS = 5


def run(folder: Path) -> dict[str, float]:
    """Run the seeds that are missing; returns the figures."""
    path = folder / "upright.csv"
    rows = results.read_rows(path)
    for seed in range(SEEDS):
        if str(seed) in {str(row["seed"]) for row in rows}:
            continue
        row = one(seed, Path("runs") / "bench-upright" / f"s{seed}")
        results.append_rows(path, [row])
        rows.append(row)
        print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    columns = {key: [float(row[key]) for row in rows] for key in ("clip", "untrained", "random")}
    figures = {f"upright_{key}": float(np.mean(values)) for key, values in columns.items()}
    return {**figures, "upright_clip_worst_seed": min(columns["clip"])}


def one(seed: int, place: Path) -> dict[str, Any]:
    """One run of the command; its row for the table."""
    command = [sys.executable, "-m", "runners.train", f"env={ENV}", "reward=clip", f"seed={seed}", f"run_dir={place}"]
    subprocess.run([*command, "video=false"], check=True)
    scores = json.loads((place / "result.json").read_text())
    control = next(name for name in scores if name.startswith("control"))
    first, second = (json.loads((p / "status.json").read_text()) for p in (place, place / "control" / "run"))
    return {
        "seed": seed,
        "clip": scores["this run"]["task_return"],
        "untrained": scores[control]["task_return"],
        "random": scores["random"]["task_return"],
        "episodes": scores["this run"]["episodes"],
        "steps": first["step"],
        "control_steps": second["step"],
    }
