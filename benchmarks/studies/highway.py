"""What semantics add to driving: VLM-RL's comparison at our scale, on highway-fast-v0.

Each run learns with our PPO on the array program of the highway, with its own drawings, and is paid by one reward. It
is judged by how it drives, over 100 episodes of the final policy in traffic it has not met.

    task        highway-env's own reward
    constant    speed and lane keeping, no picture: VLM-RL's synthesis with r = 1, the control
    lord        far from a collision, as LORD has it
    vlm_rm      near the goal's sentence, alpha 0.5
    contrast    the goal's sentence minus its negative
    synthesis   VLM-RL: the contrast sets the speed to drive
    random      uniform actions

The model is the in-domain lodestar-96, taught with captions made from simulator state, not the source's ViT-bigG-14.
Settings were chosen on seed 100 of `task` and `constant`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs import Job, run_missing
from runners.evaluate import interval
from runners.report import statistics

ENV = "highway-fast-v0"
SEEDS, STEPS, N_ENVS, EPISODES = 5, 20_000, 16, 100
SETTINGS: dict[str, Any] = {
    "n_steps": 64,
    "batch_size": 128,
    "n_epochs": 10,
    "learning_rate": 1e-3,
    "entropy_weight": 0.01,
    "gamma": 0.9,
}
ARMS: dict[str, tuple[str, dict[str, Any]] | None] = {  # arm -> reward, its options; goals are filled in
    "task": ("task", {}),
    "constant": ("synthesis", {"semantics": "constant"}),
    "lord": ("contrast", {"positive_weight": [0.0], "negative_weight": [1.0]}),
    "vlm_rm": ("clip", {"alpha": 0.5}),
    "contrast": ("contrast", {}),
    "synthesis": ("synthesis", {}),
    "random": None,
}
JUDGED = {"completion": "route completion", "collisions": "collision rate", "speed": "speed, km/h"}


def run(folder: Path) -> dict[str, float]:
    """Run what is missing; completion, collisions and speed of every reward, IQM of the seeds, with its interval."""
    jobs: list[Job] = [(train, (arm, seed)) for seed in range(SEEDS) for arm in ARMS]
    rows = run_missing(folder, "highway", ("arm", "seed"), jobs)
    figures: dict[str, float] = {}
    for arm in ARMS:
        for name in (*JUDGED, "task_return"):
            of = [float(row[name]) for row in rows if row["arm"] == arm]
            low, high = interval(of)
            key = f"highway_{arm}_{name}"
            figures |= {key: statistics.iqm(of), f"{key}_low": low, f"{key}_high": high}
    return figures


def train(arm: str, seed: int, steps: int = STEPS) -> dict[str, Any]:
    """One run: how its policy drives."""
    import torch

    from agents.ppo.agent import PPO, PPOConfig
    from envs.make import make_vec
    from runners.run.build import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(1)
    clock = time.perf_counter()
    pays, model = ARMS[arm], None
    if pays is not None:
        config = PPOConfig(**SETTINGS)
        wants: dict[str, Any] = {"frame_size": 96} if arm not in ("task", "constant") else {}
        envs = make_vec(ENV, N_ENVS, seed=1000 * seed, backend="batched", signals=True, **wants)
        model = PPO(envs, config, scorer=mix_of(envs, *pays, config.gamma, seed), seed=seed)
        model.learn(steps)
        envs.close()
    row = {key: round(value, 4) for key, value in drive(model, seed).items()}
    return {**row, "steps": steps, "seconds": round(time.perf_counter() - clock, 1)}


def mix_of(envs: Any, name: str, options: dict[str, Any], gamma: float, seed: int) -> Any:
    """The mix of one reward, with the sentences of the first goal."""
    import rewards
    from envs.make import goals

    goal = goals(ENV)[0]
    kind: Any = rewards.get(name).Config
    words = {"goal": goal.prompt, "negative": goal.negative, "baseline": goal.baseline, "model": "lodestar-96"}
    config = kind(**options, **{key: value for key, value in words.items() if hasattr(kind, key)})
    return rewards.make({name: config}, envs.single_observation_space, envs.single_action_space, gamma=gamma, seed=seed)


def drive(model: Any, seed: int) -> dict[str, float]:
    """How a policy (None: uniform actions) drives in `EPISODES` episodes, the first of each of as many environments."""
    from envs.driving.vehicle import Driving
    from envs.make import make_vec

    envs = make_vec(ENV, EPISODES, seed=1_000_000 + seed, backend="batched", signals=True)
    envs.action_space.seed(seed)
    obs, infos = envs.reset()
    drivers = [Driving(1.0) for _ in range(EPISODES)]
    for driver, signals in zip(drivers, infos["signals"].copy()):
        driver.begin(signals)
    running, returns = np.ones(EPISODES, bool), np.zeros(EPISODES)
    while running.any():
        actions = envs.action_space.sample() if model is None else model.predict(obs, deterministic=True)[0]
        obs, _, terminated, truncated, infos = envs.step(actions)
        ended = terminated | truncated
        last = infos["final_info"]["signals"] if ended.any() else infos["signals"]
        signals = np.where(ended[:, None], last, infos["signals"])
        for row in np.flatnonzero(running):
            drivers[row].step(signals[row].copy())
        if ended.any():
            returns = np.where(running & ended, infos["final_info"]["episode"]["r"], returns)
        running &= ~ended
    envs.close()
    rows = [driver.summary() for driver in drivers]
    means = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
    return {**{key: means[name] for key, name in JUDGED.items()}, "task_return": float(returns.mean())}
