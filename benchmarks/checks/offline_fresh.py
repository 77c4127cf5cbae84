"""Offline rows of the table of effects on ten fresh seeds: f-DVL at its better level, and CPL judged by regret.

    python -m benchmarks fdvl_fresh    IQL, f-DVL at level 0.6, and the three losses pushed to their sharpest
    python -m benchmarks cpl_regret    CPL from comparisons by regret and by return, beside cloning and a reward model

Data, agents and budgets are those of `offline_shelf`. Returns are normalised so that random actions are 0 and IQL on
the true rewards is 1, both of the same seeds. A regret is what an action loses against the best one: max Q(s, .) minus
Q(s, a) of the optimal Q, found by value iteration on a grid of the pendulum's angle and velocity; the scripted judge
compares sums of minus regrets where it compared sums of rewards. An interrupted measurement continues.

Level 0.6 was chosen on the five seeds of `offline_shelf`. Segments of 5 steps, in all arms, were chosen on seed 101, on
which 3,000 answers by regret gave -172; 25 steps gave -785 on seed 100, where answers by return gave -911. The verdicts
stand in effects.yaml, written before the first run of these seeds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results
from benchmarks.checks.fresh import SEEDS
from benchmarks.checks.offline import AGENT, DATA, STEPS

RATE = {"learning_rate": AGENT["learning_rate"]}
IQL: dict[str, Any] = {"agent_options": AGENT, "arms": ["true"]}
FDVL_ARMS: dict[str, dict[str, Any]] = {
    "iql": IQL,
    "fdvl": {**IQL, "agent_options": {**AGENT, "value_loss": "chi_square", "level": 0.6}},
    "fdvl_sharp": {**IQL, "agent_options": {**AGENT, "value_loss": "chi_square", "level": 0.99}},
    "quantile_sharp": {**IQL, "agent_options": {**AGENT, "value_loss": "quantile", "level": 0.99}},
    "xql_open": {
        **IQL,
        "agent_options": {**AGENT, "value_loss": "gumbel", "gumbel_clip": None, "temperature": 0.1},
    },
}
LENGTH = 5  # steps of a segment
ASTRAY = 10  # times the |V| of IQL
CPL_ARMS: dict[str, dict[str, Any]] = {
    "iql": IQL,
    "cloning": {"agent_options": AGENT, "arms": ["cloning"]},
    **{
        f"{algo}_{judge}_{queries}": {
            "algo": algo,
            "queries": queries,
            "length": LENGTH,
            "arms": ["preferences"],
            "agent_options": RATE if algo == "cpl" else AGENT,
        }
        for algo, judge in (("cpl", "regret"), ("cpl", "return"), ("iql", "return"))
        for queries in (300, 3000)
    },
}
GAMMA, ANGLES, VELOCITIES, TORQUES, SWEEPS = 0.98, 121, 121, 15, 300
MAX_SPEED, MAX_TORQUE, DT = 8.0, 2.0, 0.05


def run_fdvl(folder: Path) -> dict[str, float]:
    """Normalised returns, and of the sharp losses the share of runs whose values went astray."""
    rows = measured_rows(folder / "fdvl_fresh.csv", FDVL_ARMS)
    figures = returns(rows, FDVL_ARMS, "fdvl_fresh")
    usual = np.mean([abs(float(row["value"])) for row in rows if row["arm"] == "iql"])
    for arm in ("fdvl", "fdvl_sharp", "quantile_sharp", "xql_open"):
        astray = [float(abs(float(row["value"])) > ASTRAY * usual) for row in rows if row["arm"] == arm]
        figures[f"fdvl_fresh_{arm}_astray"] = float(np.mean(astray))
    return figures


def run_cpl(folder: Path) -> dict[str, float]:
    """Normalised returns of CPL from comparisons by regret and by return, and of its controls."""
    return returns(measured_rows(folder / "cpl_regret.csv", CPL_ARMS), CPL_ARMS, "cpl_regret")


def measured_rows(path: Path, arms: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """All rows of some arms, after those that are missing have been run."""
    for seed in SEEDS:
        for arm, given in arms.items():
            if results.lacks_row(path, arm=arm, seed=seed):
                row = measure(given, seed, by_regret="_regret_" in arm)
                results.append_rows(path, [{"arm": arm, "seed": seed, **row}])
    return results.read_rows(path)


def measure(given: dict[str, Any], seed: int, *, by_regret: bool, steps: int = STEPS) -> dict[str, Any]:
    """One row without its arm; a policy that diverged has the return of random actions."""
    from envs.recording import load
    from runners.evaluation.play import play
    from runners.offline import OfflineConfig
    from runners.offline import run as learn
    from runners.run.build import keep_freed_memory

    keep_freed_memory()
    began = time.perf_counter()
    batch = load(DATA)[0]
    if by_regret:
        batch = batch.replace(reward=-regrets(batch.obs, batch.action[:, 0]).astype(np.float32))
    try:
        found = learn(OfflineConfig([str(DATA)], env="Pendulum-v1", **{"steps": steps, "seed": seed, **given}), batch)
    except FloatingPointError:
        random = play("Pendulum-v1", None, 20, seed=seed).to_dict()["task_return"]
        return {"return": round(random, 3), "random": round(random, 3), "value": "inf", "accuracy": "", "seconds": 0}
    name = next(iter(found["arms"]))
    accuracy = found["labels"].get("accuracy", np.nan)
    row = {"return": found["arms"][name]["task_return"], "random": found["arms"]["random"]["task_return"]}
    row |= {"value": found["learned"][name].get("value", np.nan), "accuracy": accuracy}
    row["seconds"] = time.perf_counter() - began
    return {key: round(float(number), 3) for key, number in row.items()}


def returns(rows: list[dict[str, Any]], arms: dict[str, dict[str, Any]], prefix: str) -> dict[str, float]:
    """IQMs of normalised returns with their intervals."""
    random = float(np.mean([float(row["random"]) for row in rows]))
    of = {arm: [float(row["return"]) for row in rows if row["arm"] == arm] for arm in arms}
    top = results.summary("iql", of["iql"])["iql"]
    figures: dict[str, float] = {}
    for arm, values in of.items():
        figures |= results.summary(f"{prefix}_{arm}", [(value - random) / (top - random) for value in values])
    return figures


def regrets(obs: np.ndarray, torque: np.ndarray) -> np.ndarray:
    """What each action of Pendulum loses against the best one, at least 0: (N,), of observations (N, 3)."""
    value = optimal_values()
    angle, velocity = np.arctan2(obs[:, 1], obs[:, 0]), obs[:, 2].astype(np.float64)
    best = np.max([worth(value, angle, velocity, each) for each in torques()], axis=0)
    taken = worth(value, angle, velocity, np.clip(torque, -MAX_TORQUE, MAX_TORQUE))
    return np.maximum(best - taken, 0)


@cache
def optimal_values() -> np.ndarray:
    """Values of the best policy on the grid of angles and velocities, (ANGLES, VELOCITIES)."""
    angle, velocity = np.meshgrid(
        np.linspace(-np.pi, np.pi, ANGLES), np.linspace(-MAX_SPEED, MAX_SPEED, VELOCITIES), indexing="ij"
    )
    moves = [(reward(angle, velocity, each), between(*moved(angle, velocity, each))) for each in torques()]
    value = np.zeros((ANGLES, VELOCITIES))
    for _ in range(SWEEPS):
        value = np.max([gained + GAMMA * interpolate(value) for gained, interpolate in moves], axis=0)
    return value


def torques() -> np.ndarray:
    """The torques that are compared."""
    return np.linspace(-MAX_TORQUE, MAX_TORQUE, TORQUES)


def worth(value: np.ndarray, angle: np.ndarray, velocity: np.ndarray, torque: Any) -> np.ndarray:
    """Q: the reward of a torque and the discounted value of where it leads."""
    interpolate = between(*moved(angle, velocity, torque))
    return reward(angle, velocity, torque) + GAMMA * interpolate(value)


def reward(angle: np.ndarray, velocity: np.ndarray, torque: Any) -> np.ndarray:
    """Pendulum's own; angles are in [-pi, pi]."""
    return -(angle**2 + 0.1 * velocity**2 + 0.001 * np.square(torque))


def moved(angle: np.ndarray, velocity: np.ndarray, torque: Any) -> tuple[np.ndarray, np.ndarray]:
    """Angle and velocity one step later."""
    pushed = velocity + (15.0 * np.sin(angle) + 3.0 * np.asarray(torque)) * DT
    velocity = np.clip(pushed, -MAX_SPEED, MAX_SPEED)
    return (angle + velocity * DT + np.pi) % (2 * np.pi) - np.pi, velocity


def between(angle: np.ndarray, velocity: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """What reads a table of the grid between its points."""
    x = (angle + np.pi) / (2 * np.pi) * (ANGLES - 1)
    y = (velocity + MAX_SPEED) / (2 * MAX_SPEED) * (VELOCITIES - 1)
    left = np.minimum(x.astype(int), ANGLES - 2)
    low = np.minimum(y.astype(int), VELOCITIES - 2)
    right_share, high_share = x - left, y - low
    corners = [
        (left * VELOCITIES + low, (1 - right_share) * (1 - high_share)),
        (left * VELOCITIES + low + 1, (1 - right_share) * high_share),
        ((left + 1) * VELOCITIES + low, right_share * (1 - high_share)),
        ((left + 1) * VELOCITIES + low + 1, right_share * high_share),
    ]

    def interpolate(value: np.ndarray) -> np.ndarray:
        flat = value.ravel()
        total = sum(weight * flat[place] for place, weight in corners)
        return np.asarray(total)

    return interpolate
