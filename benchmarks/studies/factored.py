"""Does a model of the world help where its parts are independent? Dyna beside replay, at equal updates and equal time.

`lodestar/ProcMaze-v0` and `lodestar/ButtonGrid-v0` draw a new world in every episode, so what pays is to learn the few
facts that all have in common.

    factored       a factored model imagines; the agent learns from imagined transitions alone
    replay         the same agent learns from what happened, with as many updates
    replay_longer  with so many updates that it takes at least as long as `factored`, model included
    random         actions at random

Everybody is the same double DQN with the same exploration, judged after training by the task's own return, discounted,
of 200 episodes: gamma^(steps - 1) for each that reached its end. `best` is what the shortest ways would have paid.

Source of the question: Young et al. 2023, "The Benefits of Model-Based Generalization in Reinforcement Learning", arXiv
2211.02222. Settings were chosen on seed 100. Rows are written as they end; an interrupted study goes on.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs import Job, run_missing
from runners.evaluate import interval
from runners.report import statistics

SEEDS, ENVS, EPISODES, LIMIT = 5, 4, 200, 100


@dataclass(frozen=True)
class World:
    """One of the worlds, and how many transitions an agent gets of it."""

    env_id: str
    steps: int
    options: dict[str, Any] = field(default_factory=dict)


WORLDS = {
    "procmaze": World("lodestar/ProcMaze-v0", 10_000, {"size": 3}),
    "buttongrid": World("lodestar/ButtonGrid-v0", 15_000, {"size": 3}),
}
SETTINGS: dict[str, Any] = {
    "learning_starts": 1000,
    "normalize_obs": "none",
    "gamma": 0.95,
    "updates_per_step": 1.0,
    "net_arch": [128, 128],
    "batch_size": 128,
    "tau": 0.02,
}
ARMS: dict[str, dict[str, Any]] = {
    "factored": {"preset": "factored", "real_ratio": 0.0, "model_hidden": [128, 128], "model_every": 500},
    "replay": {"preset": "sac"},
    "replay_longer": {"preset": "sac", "updates_per_step": 3.0},
    "random": {"preset": "sac", "learning_starts": 10**9},
}


def run(folder: Path) -> dict[str, float]:
    """Five seeds of every arm; interquartile means of returns, with intervals, and of the seconds a run took."""
    jobs: list[Job] = [(train, (world, arm, seed)) for seed in range(SEEDS) for world in WORLDS for arm in ARMS]
    rows = run_missing(folder, "factored", ("world", "arm", "seed"), jobs)
    figures: dict[str, float] = {}
    for world in WORLDS:
        figures[f"{world}_best"] = best(world, SETTINGS["gamma"])
        for arm in ARMS:
            mine = [row for row in rows if (row["world"], row["arm"]) == (world, arm)]
            returns = [float(row["return"]) for row in mine]
            low, high = interval(returns)
            key = f"{world}_{arm}"
            figures |= {f"{key}_return": statistics.iqm(returns), f"{key}_low": low, f"{key}_high": high}
            figures[f"{key}_seconds"] = statistics.iqm([float(row["seconds"]) for row in mine])
    return figures


def best(world: str, gamma: float, episodes: int = 1000) -> float:
    """Mean discounted return of the shortest ways."""
    from envs.make import make

    env: Any = make(WORLDS[world].env_id, seed=0, **WORLDS[world].options)
    steps = []
    for _ in range(episodes):
        env.reset()
        steps.append(env.unwrapped.shortest())
    return float(np.mean(gamma ** (np.array(steps) - 1.0)))


def train(world: str, arm: str, seed: int, steps: int | None = None, **changes: Any) -> dict[str, Any]:
    """One run: what its policy gets, and what it took; `changes` are settings of the agent."""
    import torch

    from agents.dyna.agent import Dyna, DynaConfig
    from envs.make import make_vec
    from runners.run.build import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(1)
    place = WORLDS[world]
    envs = make_vec(place.env_id, ENVS, seed=1000 * seed, **place.options)
    agent = Dyna(envs, DynaConfig(**{**SETTINGS, **ARMS[arm], **changes}), seed=seed)
    clock = time.process_time()  # of this process alone, whatever runs beside it
    agent.learn(steps or place.steps, log_interval=None)
    seconds = time.process_time() - clock
    envs.close()
    return {
        "return": round(judged(agent, world), 4),
        "steps": agent.num_timesteps,
        "updates": agent._n_updates,
        "seconds": round(seconds, 1),
    }


def judged(agent: Any, world: str) -> float:
    """Mean discounted return of the first episode in each of 200 environments, acting as in training."""
    from envs.make import make_vec

    place = WORLDS[world]
    envs = make_vec(place.env_id, EPISODES, seed=10**6, **place.options)
    obs, _ = envs.reset(seed=10**6)
    going, total = np.ones(EPISODES, bool), 0.0
    for t in range(LIMIT):
        obs, reward, terminated, truncated, _ = envs.step(agent.predict(obs)[0])
        total += agent.config.gamma**t * float((reward * going).sum())
        going &= ~(terminated | truncated)
    envs.close()
    return total / EPISODES
