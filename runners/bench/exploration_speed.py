"""Our exploration rewards beside rllte-core's of the same name: transitions per CPU-second, scored and learnt from.

    speed_<method>_<observation>    ours over theirs, median over rounds of the ratios of neighbours
    speed_<method>                  the smaller of the two observations

Observations are a vector of 16 numbers and an image of 7 x 7 x 3 bytes; a rollout is 128 steps of eight environments.
Both sides have networks of one size, rllte's: an encoder with 256 hidden units and 128 outputs (32 for ngu and
pseudocount), minibatches of 256, one pass. Ours and theirs take turns, each in a process and a virtual environment of
its own, on one thread of one core. What is measured, and how it is checked, says
`runners/bench/drivers/drive_reward.py`.

What differs, and stays: rllte scales its scores as it computes them, ours leaves that to the mix. Our RND's predictor
has one hidden layer more than its target, theirs has not. Of the minibatches of disagreement each of our four members
learns from every one, theirs take turns. Our RIDE counts cells in the episode, theirs the nearest neighbours; our RE3
seeks neighbours in the episode, theirs among the 1,000 latest steps. A method that one side lacks is skipped with a
sentence.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import rewards
from runners import results
from runners.bench import peers

METHODS = ("rnd", "icm", "disagreement", "ride", "ngu", "pseudocount", "e3b", "re3")
OBSERVATIONS = ("vector", "image")
ROUNDS = 3


def run(folder: Path, methods: Sequence[str] = METHODS, home: Path = peers.HOME) -> dict[str, float]:
    """Measure all that can be measured; writes a row for every measurement.

    Raises:
        RuntimeError: if ours does not run.
    """
    path = folder / "exploration-speed.csv"
    path.unlink(missing_ok=True)
    try:
        python = peers.environment(home, peers.RLLTE)
    except RuntimeError as error:
        print(f"rllte is skipped: {error}", file=sys.stderr)
        return {}
    known = [method for method in methods if method in rewards.TABLE]
    for method in sorted(set(methods) - set(known)):
        print(f"{method} is skipped: there is no reward of ours with that name", file=sys.stderr)
    ratios: dict[str, dict[str, list[float]]] = {method: {name: [] for name in OBSERVATIONS} for method in known}
    for turn in range(1, ROUNDS + 1):
        for method in list(ratios):
            ours = _measure(Path(sys.executable), "ours_rewards", method)
            try:
                theirs = _measure(python, "rllte_rewards", method)
            except RuntimeError as error:
                print(f"{method} is skipped: {error}", file=sys.stderr)
                del ratios[method]
                continue
            for pair in zip(ours, theirs):
                results.append_rows(path, [_row(peer, method, turn, row) for peer, row in zip(("ours", "rllte"), pair)])
                ratios[method][pair[0]["observation"]].append(_rate(pair[0]) / _rate(pair[1]))
    return _figures(ratios)


def _row(peer: str, method: str, turn: int, row: dict[str, Any]) -> dict[str, Any]:
    rate = round(_rate(row), 1)
    return {"peer": peer, "method": method, "round": turn, **row, "transitions_per_cpu_second": rate}


def _figures(ratios: dict[str, dict[str, list[float]]]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for method, found in ratios.items():
        medians = {f"speed_{method}_{name}": float(np.median(values)) for name, values in found.items()}
        figures |= {f"speed_{method}": min(medians.values())} | medians
    return figures


def _rate(row: dict[str, Any]) -> float:
    return row["transitions"] / row["cpu_seconds"]


def _measure(python: Path, script: str, method: str) -> list[dict[str, Any]]:
    """Observation, version, transitions of a rollout and its CPU seconds, for each observation.

    Raises:
        RuntimeError: if it fails.
    """
    path = {"PYTHONPATH": str(peers.ROOT)} if script.startswith("ours") else {}
    command = [str(python), str(peers.SCRIPTS / "drive_reward.py"), script, method]
    return json.loads(peers.call(command, path).splitlines()[-1])
