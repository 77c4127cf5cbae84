"""Our exploration rewards beside rllte-core's of the same name: transitions per CPU-second, scored and learnt from.

    speed_<method>                  ours over theirs, each with its own default sizes; the smaller of two observations
    speed_<method>_<observation>    one of the two: the median over rounds of the ratio of neighbours
    speed_<method>_equal            the smaller of the two, ours with networks as large as theirs

Observations are a vector of 16 numbers and an image of 7 x 7 x 3 bytes, which passes dense layers; a rollout is 128
steps of eight environments. Our networks are 64 wide with 64 outputs by default; theirs 256 with 128 (32 for ngu and
pseudocount). Both learn in one pass of minibatches of 256. Ours and theirs take turns, each in a process and a virtual
environment of its own, on one thread of one core. What is measured, and how it is checked, says
`benchmarks/peers/drivers/drive_reward.py`. A method that one side lacks is skipped with a sentence.

Not like for like, also with equal networks:
    rllte scales its scores as it computes them, ours leaves that to the mix;
    ours shortens gradients and whitens observations for every method, rllte never shortens them and whitens for rnd,
    disagreement, ngu and re3 alone;
    our memories of an episode see `next_obs` and the state it begins in, theirs see `obs`;
    each of our disagreement's members learns from its share of every minibatch, theirs take turns, so that ours learn
    three times as much (four times by default, when ours are five and theirs four);
    the predictor in our NGU has a hidden layer more;
    our RIDE counts cells in the episode, theirs weighs nearest neighbours;
    our RE3 seeks the third neighbour by default, the fifth with equal sizes, within the episode, theirs the fifth
    among the latest 1,000 steps of the environment;
    rllte's NGU stops with an error in 1.0.1 unless an attribute is set; its pseudo-counts visit environments one by
    one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import rewards
from benchmarks import results
from benchmarks.peers import peers

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
    ratios: dict[str, dict[tuple[str, str], list[float]]] = {method: {} for method in known}
    for turn in range(1, ROUNDS + 1):
        for method in list(ratios):
            ours = measured(Path(sys.executable), "ours_rewards", method)
            try:
                theirs = measured(python, "rllte_rewards", method)
            except RuntimeError as error:
                print(f"{method} is skipped: {error}", file=sys.stderr)
                del ratios[method]
                continue
            results.append_rows(path, [_row("ours", method, turn, row) for row in ours])
            results.append_rows(path, [_row("rllte", method, turn, row) for row in theirs])
            rates = {row["observation"]: _rate(row) for row in theirs}
            for row in ours:
                ratio = _rate(row) / rates[row["observation"]]
                ratios[method].setdefault((row["variant"], row["observation"]), []).append(ratio)
    return _figures(ratios)


def _row(peer: str, method: str, turn: int, row: dict[str, Any]) -> dict[str, Any]:
    rate = round(_rate(row), 1)
    return {"peer": peer, "method": method, "round": turn, **row, "transitions_per_cpu_second": rate}


def _figures(ratios: dict[str, dict[tuple[str, str], list[float]]]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for method, found in ratios.items():
        default, equal = (
            {name: float(np.median(found[variant, name])) for name in OBSERVATIONS} for variant in ("default", "equal")
        )
        figures |= {f"speed_{method}": min(default.values()), f"speed_{method}_equal": min(equal.values())}
        figures |= {f"speed_{method}_{name}": value for name, value in default.items()}
    return figures


def _rate(row: dict[str, Any]) -> float:
    return row["transitions"] / row["cpu_seconds"]


def measured(python: Path, script: str, method: str) -> list[dict[str, Any]]:
    """Variant, observation, version, transitions of a rollout and its CPU seconds, for each variant and observation.

    Raises:
        RuntimeError: if it fails.
    """
    path = {"PYTHONPATH": str(peers.ROOT)} if script.startswith("ours") else {}
    command = [str(python), str(peers.SCRIPTS / "drive_reward.py"), script, method]
    return json.loads(peers.call(command, path).splitlines()[-1])
