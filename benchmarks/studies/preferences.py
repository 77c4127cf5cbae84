"""Can an agent learn to swing a pendulum up from 300 comparisons, a tenth of them wrong, instead of its reward?

SAC learns Pendulum-v1 from the task's own reward (`task`), from `bradley_terry` (`preferences`), from the same reward
frozen when transitions are stored (`frozen`), and from comparisons of signals in order of importance, upright first,
then slow, then with little torque (`heron`). `random` is uniform torques. The judge `scripted` is synthetic: it
compares the task's rewards, and turns every tenth answer round. Everybody is judged by the task's own return of 20
episodes on the same seeds.

Rows are written as they end; an interrupted study goes on where it stopped. Settings were chosen on seed 100.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs import run_missing
from runners.evaluate import interval, play, policy

ENV = "Pendulum-v1"
SEEDS = 5
STEPS = 10_000  # environment steps, with a gradient step for every second
EPISODES = 20
AGENT: dict[str, Any] = {
    "learning_rate": 1e-3,
    "gamma": 0.95,
    "net_arch": [64, 64],
    "batch_size": 128,
    "learning_starts": 1000,
    "gradient_steps": 2,
}
N_ENVS = 4
LABELS = {"seed_steps": 1000, "every": 400, "queries": 20, "budget": 300}
SCRIPTED = {"judge": "scripted", "judge_options": {"mistakes": 0.1}}
HERON = {"order": ["height", "-spin", "-torque"], "names": ["height", "spin", "torque"]}
ARMS: dict[str, dict[str, Any] | None] = {
    "random": None,
    "task": None,
    "preferences": SCRIPTED,
    "frozen": {**SCRIPTED, "relabel": False},
    "heron": {"judge": "heron", "judge_options": HERON},
}


def run(folder: Path) -> dict[str, float]:
    """Run what is missing; mean returns over seeds, and how far from random to the task's own reward each arm got."""
    jobs: list[Any] = [(train, (arm, seed)) for seed in range(SEEDS) for arm in ARMS]
    jobs.sort(key=lambda job: job[1][0] == "heron")  # what may be interrupted comes last
    return figures(run_missing(folder, "preferences", ("arm", "seed"), jobs))


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Mean return of every arm with the 95 % interval of its IQM, and its share of what the task's reward teaches."""
    found: dict[str, float] = {}
    for arm in ARMS:
        values = [float(row["return"]) for row in rows if row["arm"] == arm]
        if values:
            found[f"preference_pendulum_{arm}"] = float(np.mean(values))
            found[f"preference_pendulum_{arm}_low"], found[f"preference_pendulum_{arm}_high"] = interval(values)
    least, most = found.get("preference_pendulum_random"), found.get("preference_pendulum_task")
    if least is None or most is None:
        return found
    for arm, key in (("preferences", "ratio"), ("frozen", "frozen_ratio"), ("heron", "heron_ratio")):
        if f"preference_pendulum_{arm}" in found:
            found[f"preference_pendulum_{key}"] = (found[f"preference_pendulum_{arm}"] - least) / (most - least)
    return found


def train(arm: str, seed: int, steps: int = STEPS, **changes: Any) -> dict[str, Any]:
    """One run: the task's return at the end, the labels used, and how well the reward knew the judge."""
    clock = time.perf_counter()
    last: dict[str, float] = {}
    act = None if arm == "random" else policy(_learn(arm, seed, steps, changes, last))
    scores = play(ENV, act, EPISODES, seed=seed)
    return {
        "return": round(float(np.mean(scores.returns)), 2),
        "labels": int(last.get("bradley_terry/labels", 0)),
        "accuracy": round(last["bradley_terry/accuracy"], 3) if "bradley_terry/accuracy" in last else "",
        "corr": round(last["reward/bradley_terry_corr"], 3) if "reward/bradley_terry_corr" in last else "",
        "steps": 0 if arm == "random" else steps,
        "seconds": round(time.perf_counter() - clock, 1),
    }


def _learn(arm: str, seed: int, steps: int, changes: dict[str, Any], last: dict[str, float]) -> Any:
    """SAC after training, paid by the arm's reward; the newest of every metric goes into `last`."""
    import torch
    from stable_baselines3.common.buffers import ReplayBuffer

    import rewards
    from agents.sb3.agent import SAC, SACConfig, make_venv
    from rewards.adapters.sb3 import RelabelCallback, relabelling

    class Watch(RelabelCallback):
        def _on_step(self) -> bool:
            last.update(self.buffer.metrics)
            return super()._on_step()

    torch.set_num_threads(1)
    options = ARMS[arm]
    configs: dict[str, Any] = {"task": None}
    if options is not None:
        configs = {"bradley_terry": rewards.get("bradley_terry").Config(**{**LABELS, **options, **changes})}
    venv = make_venv(ENV, N_ENVS, 1000 * seed, signals=arm == "heron")
    config = SACConfig(**AGENT)
    mix = rewards.make(configs, venv.observation_space, venv.action_space, gamma=config.gamma, seed=seed)
    buffer = (relabelling(ReplayBuffer), {"mix": mix, "update_every": 200})
    model = SAC.build(config, venv, seed=seed, device="cpu", buffer=buffer)
    model.learn(steps, callback=Watch())
    last.update(model.replay_buffer.metrics)
    venv.close()
    return model
