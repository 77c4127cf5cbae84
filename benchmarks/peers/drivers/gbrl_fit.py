"""Fits trees by the library gbrl; prints a line of JSON: CPU seconds a tree, and the squared error that is left.

CASE is an .npz of x (B, D), y (B, K), the rows of each tree, batches, and depth and bins. A tree is fitted to F - y.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np


def main(case: str) -> None:
    """Fit and measure."""
    from gbrl.models.gbt import GBTModel

    data = np.load(case)
    x, y, batches = data["x"], data["y"], data["batches"]
    depth, bins = (int(n) for n in data["numbers"])
    structure = {"max_depth": depth, "grow_policy": "oblivious", "n_bins": bins, "min_data_in_leaf": 0, "par_th": 10**9}
    steps = {"algo": "SGD", "lr": 0.1, "start_idx": 0, "stop_idx": y.shape[1]}
    options = {"split_score_func": "L2", "generator_type": "Quantile", "control_variates": False}
    model: Any = GBTModel(structure, x.shape[1], y.shape[1], steps, options)
    seconds = 0.0
    for rows in batches:
        part = np.ascontiguousarray(x[rows])
        gradient = np.ascontiguousarray(predicted(model, part).reshape(len(rows), -1) - y[rows])
        began = time.process_time()
        model.step(part, gradient)
        seconds += time.process_time() - began
    left = np.square(predicted(model, x).reshape(y.shape) - y).mean()
    print(json.dumps({"seconds": seconds / len(batches), "loss": float(left)}))


def predicted(model: Any, x: np.ndarray) -> np.ndarray:
    """F of rows."""
    return np.asarray(model(x, requires_grad=False, tensor=False))


if __name__ == "__main__":
    main(sys.argv[1])
