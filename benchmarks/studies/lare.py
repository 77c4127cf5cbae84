"""Can an agent swing a pendulum up if all it is paid is the sum of an episode, at its end?

SAC learns Pendulum-v1 from that sum as it comes (`late`), from the same sum handed out over the steps by return
decomposition of observations and actions (`raw`, RRD) and of three factors (`factors`, LaRe), and from the reward of
every step (`dense`, what the sum is made of). The factors were written by hand in the form that a language model is
asked for; no model wrote them, and they are the parts of the true reward, so they show what right factors are worth,
not whether a model finds them. Everybody is judged by the task's own return of 20 episodes on the same seeds.

Two seeds a row: a look, not a proof. Rows are written as they end; an interrupted study goes on where it stopped.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs import run_missing
from runners.evaluate import play, policy

ENV = "Pendulum-v1"
SEEDS = 2
STEPS = 6_000  # environment steps, with a gradient step for every second
EPISODES = 20
N_ENVS = 4
AGENT: dict[str, Any] = {
    "learning_rate": 1e-3,
    "gamma": 0.95,
    "net_arch": [64, 64],
    "batch_size": 128,
    "learning_starts": 1000,
    "gradient_steps": 2,
}
HANDED_OUT: dict[str, Any] = {"hidden": 64, "steps": 100, "learning_rate": 3e-3}
ARMS: dict[str, dict[str, Any] | None] = {
    "random": None,
    "late": {"task": {}},
    "raw": {"lare": HANDED_OUT},
    "factors": {"lare": {**HANDED_OUT, "code": "pendulum"}},
    "dense": {"task": {}},
}


def run(folder: Path) -> dict[str, float]:
    """Run what is missing; mean returns over seeds, and how well the handed out reward knows the true one."""
    jobs: list[Any] = [(train, (arm, seed)) for seed in range(SEEDS) for arm in ARMS]
    return figures(run_missing(folder, "lare", ("arm", "seed"), jobs))


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Of every arm the mean, least and greatest return; of those that hand out, correlation with the true reward."""
    found: dict[str, float] = {}
    for arm in ARMS:
        values = [float(row["return"]) for row in rows if row["arm"] == arm]
        if values:
            found[f"lare_{arm}"] = float(np.mean(values))
            found[f"lare_{arm}_low"], found[f"lare_{arm}_high"] = min(values), max(values)
        known = [float(row["corr"]) for row in rows if row["arm"] == arm and row["corr"] != ""]
        if known:
            found[f"lare_{arm}_corr"] = float(np.mean(known))
    return found


def train(arm: str, seed: int, steps: int = STEPS) -> dict[str, Any]:
    """One run: the task's return at the end, and the correlation of the learned reward with the true one."""
    clock = time.perf_counter()
    act, corr = None, ""
    if arm != "random":
        model, corr = _learn(arm, seed, steps)
        act = policy(model)
    scores = play(ENV, act, EPISODES, seed=seed)
    return {
        "return": round(float(np.mean(scores.returns)), 2),
        "corr": corr,
        "steps": 0 if arm == "random" else steps,
        "seconds": round(time.perf_counter() - clock, 1),
    }


def _learn(arm: str, seed: int, steps: int) -> tuple[Any, Any]:
    """SAC after training, and the correlation over what is in its buffer; "" where nothing was learned."""
    import torch
    from stable_baselines3.common.buffers import ReplayBuffer
    from stable_baselines3.common.vec_env import DummyVecEnv

    from agents.sb3.agent import SAC, SACConfig
    from envs.disturb import EpisodicReward
    from envs.make import make
    from rewards.adapters.sb3 import RelabelCallback, relabelling
    from rewards.language.lare import LaRe
    from rewards.mix.mix import Mix, Stream
    from rewards.task import Task

    torch.set_num_threads(1)

    def maker(index: int) -> Any:
        env = make(ENV, seed=1000 * seed + index)
        return env if arm == "dense" else EpisodicReward(env)

    venv = DummyVecEnv([lambda index=index: maker(index) for index in range(N_ENVS)])  # type: ignore[misc]
    venv.seed(1000 * seed)
    config = SACConfig(**AGENT)
    (name, options), *_ = (ARMS[arm] or {}).items()
    kind: Any = {"task": Task, "lare": LaRe}[name]
    reward = kind(kind.Config(**options), venv.observation_space, venv.action_space, seed=seed)
    mix = Mix([Stream(name, reward, gamma=config.gamma)])
    buffer = (relabelling(ReplayBuffer), {"mix": mix, "update_every": 400})
    model = SAC.build(config, venv, seed=seed, device="cpu", buffer=buffer)
    model.learn(steps, callback=RelabelCallback())
    venv.close()
    return model, _correlation(model.replay_buffer, reward) if name == "lare" else ""


def _correlation(buffer: Any, reward: Any) -> float:
    """Of the learned reward with the pendulum's own, over all that is stored."""
    from envs.transitions import from_replay

    rows, columns = np.indices((buffer.pos, buffer.n_envs)).reshape(2, -1)
    batch = from_replay(buffer, rows, columns)
    angle, speed = np.arctan2(batch.obs[:, 1], batch.obs[:, 0]), batch.obs[:, 2]
    true = -(angle**2 + 0.1 * speed**2 + 0.001 * batch.action[:, 0] ** 2)
    return round(float(np.corrcoef(reward.score(batch), true)[0, 1]), 3)
