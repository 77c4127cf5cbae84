"""Two halves of a way, in different episodes: who puts them together?

A point starts at the lower of two crossings (`benchmarks.worlds:Crossings`); the upper left exit is worth 1. Recorded
are 300 walks from the lower crossing (a fifth to the upper one, the others out of the other three exits, which are
worth nothing) and 300 from the upper one (half of them to the left, half to the right), with noise of 0.3 in each
action, 20 steps long at most: none goes from the start to what is worth 1. Arms, of `runners.offline`: mbrcsl; mbrcsl
with a clone of one Gaussian (unimodal); dt, with 10 steps of context; rcsl, the same without a memory; iql, which
bootstraps; cloning. Success over 100 episodes; figures are IQMs over five seeds, `predicted` what the model says of the
rollouts that MBRCSL keeps and `recorded` what was, from the same starts.

Its verdict stands in effects.yaml and was written before the first run. Sizes, how many rollouts there are and which
share is kept, were chosen on seeds 100 and 101: with 2,000 and a tenth mbrcsl reached it there in 0.29 and 1.0 of the
episodes, dt, rcsl, unimodal and cloning in at most 0.01, iql in all. As it is now: 1.0 on seed 100, 0.0 on 102,
where most rollouts that are kept from the start are predicted half of the reward, by a model that smooths the exits.
To ask for what was kept from the nearest starts instead of one target gave 0.83, 0.2 and 0.0 on seeds 100 to 102.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results
from envs.make import make
from envs.recording import record
from envs.transitions import Transitions, concatenate

SEEDS, WALKS, LONG, NOISE, STEPS = 5, 300, 20, 0.3, 2000
NETWORK: dict[str, Any] = {"net_arch": [128, 128]}
WORLD = "benchmarks.worlds:Crossings-v0"
WAYS = {False: (((0, 1), (-1, 0), (1, 0), (0, -1)), (0.2, 0.3, 0.3, 0.2)), True: (((-1, 0), (1, 0)), (0.5, 0.5))}
ARMS: dict[str, dict[str, Any]] = {
    "mbrcsl": {"algo": "mbrcsl", "agent_options": NETWORK},
    "unimodal": {"algo": "mbrcsl", "agent_options": {**NETWORK, "components": 1}},
    "dt": {"algo": "dt", "agent_options": {"context": 10, "layers": 2, "batch_size": 32}},
    "rcsl": {"algo": "rcsl", "agent_options": NETWORK},
    "iql": {"algo": "iql", "agent_options": {"learning_rate": 1e-3}, "steps": 3 * STEPS},
    "cloning": {"algo": "cloning", "arms": ["cloning"], "agent_options": {**NETWORK, "chunk": 1}},
}


def run(folder: Path) -> dict[str, float]:
    """Run the arms and seeds that have no row; the success of each arm."""
    path = folder / "stitching.csv"
    for seed in range(SEEDS):
        for arm in ARMS:
            if results.lacks_row(path, arm=arm, seed=seed):
                results.append_rows(path, [{"arm": arm, "seed": seed, **measure(arm, seed)}])
    rows, found = results.read_rows(path), dict[str, float]()
    for arm in ARMS:
        for column in ("success", *(("predicted", "recorded") if arm == "mbrcsl" else ())):
            values = [float(row[column]) for row in rows if row["arm"] == arm]
            found |= results.summary(f"{arm}_{column}", values)
    return found


def measure(arm: str, seed: int, steps: int = STEPS) -> dict[str, Any]:
    """One row."""
    from runners.offline import OfflineConfig
    from runners.offline import run as learn

    given = {"arms": ["true"], "steps": steps, "episodes": 100, "seed": seed, "trust": True, **ARMS[arm]}
    found = learn(OfflineConfig(["walks"], env=WORLD, **given), walks(seed))
    name = given["arms"][0]
    kept = [found["learned"][name].get(f"{key}_return", "") for key in ("kept", "recorded")]
    return {"success": found["arms"][name]["success"], "predicted": kept[0], "recorded": kept[1]}


def walks(seed: int) -> Transitions:
    """The recording: straight on in one direction, with noise, until an exit or the end of time."""
    rng, parts = np.random.default_rng(seed), list[Transitions]()
    for upper, (ways, chances) in WAYS.items():
        way = np.zeros(2)

        def act(obs: np.ndarray, begins: np.ndarray, ways: Any = ways, chances: Any = chances) -> np.ndarray:
            nonlocal way
            way = np.array(ways[rng.choice(len(ways), p=chances)]) if begins[0] else way
            return np.clip(way + NOISE * rng.normal(size=(1, 2)), -1, 1).astype(np.float32)

        with closing(make(WORLD, upper=upper, max_episode_steps=LONG)) as env:
            batch = record(env, act, WALKS * LONG, seed=seed)
        parts.append(batch[: np.flatnonzero(batch.ended)[WALKS - 1] + 1])
    return concatenate(parts)
