"""Offline to online: SAC on a pendulum that begins with what IQL learned from a recording of middling policies.

    python -m benchmarks online_from_iql

The recording is `pendulum`. IQL learns from it for 4,000 minibatches, then SAC for 6,000 steps, an update a step. Arms:

    scratch      SAC as it comes, 500 random steps first; so has rlpd
    iql          it begins with IQL's actor and critics
    actor        with the actor alone, and fresh critics
    actor_late   the same, and the actor learns from step 1,500 on (agent.actor_from)
    actor_demos  the same again, and the recording is half of each batch (agent.demos)
    untrained    with actor and critics of an IQL that made no minibatch: the control of iql
    rlpd         SAC as it comes, with the recording as half of each batch (agent.demos)
    oracle       it begins with the actor and critics of the scratch arm's SAC after its 6,000 steps

All that begin with a policy act with it for the first 500 steps. The modes are evaluated on the same 20 starts every
250 steps. The score is the step from which two evaluations in a row return -250 or more; a run that never does counts
6,000. `dip` is what the return of the first 2,000 steps falls at most below that at step 0: forgetting. The verdict
stands in effects.yaml, written before the first run of these seeds. Estimate: 35 core-minutes.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results

SEEDS = range(900, 908)
STEPS = 6000
EVAL_EVERY = 250
EVAL_EPISODES = 20
EPISODE_STEPS = 200
THRESHOLD = -250.0
# Evaluations in a row that have to reach it.
EVALUATIONS = 2
DIP_STEPS = 2000
MINIBATCHES = 4000
RECORDING = "pendulum"
UNITS = [64, 64]
SAC: dict[str, Any] = {"preset": "sac", "net_arch": UNITS, "batch_size": 128, "updates_per_step": 1.0, "path": "torch"}
# The settings of each arm beside those of all.
ARMS: dict[str, dict[str, Any]] = {
    "scratch": {},
    "iql": {},
    "actor": {},
    "actor_late": {"actor_from": 1500},
    "actor_demos": {"actor_from": 1500, "demos": RECORDING},
    "untrained": {},
    "rlpd": {"demos": RECORDING},
    "oracle": {},
}


def run(folder: Path) -> dict[str, float]:
    """Train the seeds that have no row; IQMs of steps and dips with their intervals, and ratios to scratch."""
    path = folder / "online_from_iql.csv"
    for seed in SEEDS:
        if results.lacks_row(path, seed=seed):
            results.append_rows(path, measure(seed))
    return figures(results.read_rows(path))


def measure(seed: int, steps: int = STEPS) -> list[dict[str, Any]]:
    """The rows of all arms with one seed."""
    import torch

    import envs.make
    from agents.dyna.agent import Dyna
    from agents.dyna.config import DynaConfig
    from runners.run.build import keep_freed_memory

    torch.set_num_threads(1)
    keep_freed_memory()
    vector = envs.make.make_vec("Pendulum-v1", 1, backend="batched")
    sources = {"iql": iql(vector, seed, MINIBATCHES), "untrained": iql(vector, seed, 0)}
    sources["actor"] = sources["iql"]
    sources["actor_late"] = sources["iql"]
    sources["actor_demos"] = sources["iql"]
    rows = []
    for arm, options in ARMS.items():
        began = time.perf_counter()
        agent = Dyna(vector, DynaConfig(**SAC, **options), seed=seed)
        if arm in sources:
            layers = sources[arm].policy_layers()
            if arm.startswith("actor"):
                layers.critics = []
            agent.begin_with(layers)
        returns = learning_curve(agent, steps)
        if arm == "scratch":
            sources["oracle"] = agent
        rows.append(row_of(arm, seed, returns, time.perf_counter() - began))
    return rows


def iql(vector: Any, seed: int, minibatches: int) -> Any:
    """IQL after so many minibatches of the recording."""
    from agents.offline.iql import IQL, IQLConfig
    from envs.recording import load

    spaces = (vector.single_observation_space, vector.single_action_space)
    learner = IQL(IQLConfig(net_arch=UNITS, learning_rate=1e-3), *spaces, load(RECORDING)[0], seed=seed)
    learner.learn(minibatches)
    return learner


def learning_curve(agent: Any, steps: int) -> np.ndarray:
    """Mean returns of the agent's modes before it learns, and after every `EVAL_EVERY` steps."""
    returns = [evaluate(agent)]
    for _ in range(steps // EVAL_EVERY):
        agent.learn(EVAL_EVERY, reset_num_timesteps=False)
        returns.append(evaluate(agent))
    return np.array(returns)


def evaluate(agent: Any) -> float:
    """The mean return of the agent's modes from starts that are the same for all."""
    import envs.make

    vector = envs.make.make_vec("Pendulum-v1", EVAL_EPISODES, backend="batched")
    obs, _ = vector.reset(seed=12345)
    total = 0.0
    for _ in range(EPISODE_STEPS):
        action, _ = agent.predict(obs, deterministic=True)
        obs, reward, _, _, _ = vector.step(action)
        total += float(reward.mean())
    return total


def row_of(arm: str, seed: int, returns: np.ndarray, seconds: float) -> dict[str, Any]:
    """What a learning curve of mean returns says."""
    reached = returns >= THRESHOLD
    in_a_row = np.lib.stride_tricks.sliding_window_view(reached, EVALUATIONS).all(1)
    solved_at = EVAL_EVERY * (len(returns) - 1)
    if in_a_row.any():
        solved_at = EVAL_EVERY * int(in_a_row.argmax())
    early = returns[: 1 + DIP_STEPS // EVAL_EVERY]
    return {
        "arm": arm,
        "seed": seed,
        "steps": solved_at,
        "first": round(returns[0], 1),
        "dip": round(returns[0] - early.min(), 1),
        "last": round(returns[-1], 1),
        "seconds": round(seconds, 1),
    }


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """IQMs with their intervals, and each arm's steps as a share of those from scratch."""
    summaries: dict[str, float] = {}
    for arm in ARMS:
        arm_rows = [row for row in rows if row["arm"] == arm]
        for column in ("steps", "first", "dip", "last"):
            values = [float(row[column]) for row in arm_rows]
            summaries |= results.summary(f"online_from_iql_{arm}_{column}", values)
    scratch = summaries["online_from_iql_scratch_steps"]
    for arm in ARMS:
        summaries[f"online_from_iql_{arm}_ratio"] = summaries[f"online_from_iql_{arm}_steps"] / scratch
    summaries["online_from_iql_steps_ratio"] = summaries["online_from_iql_iql_ratio"]
    return summaries
