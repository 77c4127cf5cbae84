"""Our GAIL beside that of the library `imitation`, on the same recording, with as many steps of the same environment.

    imitation_gail          return of theirs over five seeds, IQM; ours is `demonstrations_upright_gail`
    gail_over_imitation     ours over theirs, both less what random actions return

Theirs runs in a virtual environment of its own, with its quick start's settings (its PPO and its networks, too; ours
has ours). Ours are the runs of the study `demonstrations`, which comes first.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import results
from benchmarks.peers import peers
from benchmarks.study import Study, figures
from envs.recording import load
from runners.report import statistics
from runners.run.config import UsageError

SEEDS, STEPS = 5, 100_000
NEEDS = ("imitation==1.0.1", "numpy<2")


def run(folder: Path, home: Path = peers.HOME) -> dict[str, float]:
    """Run the seeds that have no row."""
    ours = figures(Study.read("demonstrations"), results.read_rows(folder / "demonstrations.csv"))
    if "demonstrations_upright_gail" not in ours:
        raise UsageError("there is nothing to compare with: run python -m benchmarks demonstrations first")
    path = folder / "imitation.csv"
    there = {row["seed"] for row in results.read_rows(path)}
    batch = load("upright")[0]
    arrays = {"obs": batch.obs, "action": batch.action, "next_obs": batch.next_obs, "ended": batch.ended}
    with tempfile.TemporaryDirectory() as work:
        np.savez(file := Path(work) / "demos.npz", **arrays)  # type: ignore[arg-type]
        for seed in range(SEEDS):
            if str(seed) not in there:
                command = [str(peers.environment(home, NEEDS)), str(peers.SCRIPTS / "imitation_gail.py")]
                said = peers.call([*command, str(file), str(STEPS), str(seed)], {"PYTHONPATH": str(peers.ROOT)})
                results.append_rows(path, [{"seed": seed, **json.loads(said.splitlines()[-1])}])
    theirs = statistics.iqm([float(row["return"]) for row in results.read_rows(path)])
    random = ours["demonstrations_upright_random"]
    ratio = (ours["demonstrations_upright_gail"] - random) / (theirs - random)
    return {"imitation_gail": float(theirs), "gail_over_imitation": float(ratio)}
