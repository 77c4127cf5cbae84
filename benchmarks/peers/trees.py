"""Our fit of an oblivious tree beside that of the library gbrl, on the same rows: CPU seconds a tree, one thread.

    trees_fit_speed          theirs over ours, 4 inputs, 3 outputs, depth 4, 32 bins, as an update of PPO does: 40 trees
                             to minibatches of 512 of 2,048 rows; ours places its thresholds once for all of them
    trees_fit_speed_256      the same with 256 bins;  trees_fit_speed_147: with 147 inputs and 16 bins
    trees_fit_speed_alone    ours places its thresholds for every tree, as theirs does
    trees_fit_loss           squared error left after 200 trees, ours over theirs: they do the same

Theirs runs in a virtual environment of its own; turns are taken, figures are medians.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import results
from benchmarks.peers import peers
from lodestar.numerics.trees import Bins, fit

NEEDS = ("gbrl==1.1.9",)
ROUNDS, ROWS, BATCH, TREES, OUTPUTS, DEPTH = 3, 2048, 512, 40, 3, 4
CASES = {"": (4, 32, 5), "_256": (4, 256, 2), "_147": (147, 16, 1)}  # inputs, bins, updates


def run(folder: Path, home: Path = peers.HOME) -> dict[str, float]:
    """Measure; about two minutes."""
    path, python = folder / "trees-speed.csv", peers.environment(home, NEEDS)
    path.unlink(missing_ok=True)
    found: dict[tuple[str, str], list[float]] = {}
    for turn in range(ROUNDS):
        for case, (inputs, bins, updates) in CASES.items():
            x, y, batches = problem(inputs, updates, turn)
            with tempfile.TemporaryDirectory() as work:
                np.savez(file := Path(work) / "case.npz", x=x, y=y, batches=batches, numbers=[DEPTH, bins])
                theirs = json.loads(peers.call([str(python), str(peers.SCRIPTS / "gbrl_fit.py"), str(file)]))
            each = {"gbrl": theirs, "ours": ours(x, y, batches, bins), "alone": ours(x, y, batches, bins, once=False)}
            for who, row in each.items():
                results.append_rows(path, [{"case": f"trees{case}", "round": turn, "who": who, **row}])
                for key in ("seconds", "loss"):
                    found.setdefault((who + case, key), []).append(row[key])
    middle = {key: float(np.median(values)) for key, values in found.items()}
    speeds = {f"trees_fit_speed{case}": middle[f"gbrl{case}", "seconds"] for case in CASES}
    figures = {key: value / middle[key.replace("trees_fit_speed", "ours"), "seconds"] for key, value in speeds.items()}
    figures["trees_fit_speed_alone"] = middle["gbrl", "seconds"] / middle["alone", "seconds"]
    return {**figures, "trees_fit_loss": middle["ours", "loss"] / middle["gbrl", "loss"]}


def problem(inputs: int, updates: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows (B, D), smooth functions of the first four entries (B, K), and the rows of each minibatch."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(ROWS, inputs)).astype(np.float32)
    y = np.sin(2 * x[:, :4] @ rng.normal(size=(4, OUTPUTS))).astype(np.float32)
    epochs = updates * TREES * BATCH // ROWS
    return x, y, np.concatenate([rng.permutation(ROWS).reshape(-1, BATCH) for _ in range(epochs)])


def ours(x: np.ndarray, y: np.ndarray, batches: np.ndarray, bins: int, once: bool = True) -> dict[str, float]:
    """The same as the driver of theirs; `once`: thresholds for the trees of an update together."""
    found, seconds, everything = np.zeros_like(y), 0.0, Bins.of(x, bins)
    for number, rows in enumerate(batches):
        gradient = (found - y)[rows]
        began = time.process_time()
        if once and number % TREES == 0:
            everything = Bins.of(x, bins)
        placed = everything._replace(place=everything.place[rows]) if once else Bins.of(x[rows], bins)
        tree = fit(placed, gradient, DEPTH)
        seconds += time.process_time() - began
        found -= np.float32(0.1) * tree.at(x)
    return {"seconds": seconds / len(batches), "loss": float(np.square(found - y).mean())}
