"""NetHack with captions judged beside training: how deep, what score, and what counting or curiosity do instead.

Our PPO on 32 games at once, two million frames, on lodestar/NetHackScore-v0 and lodestar/NetHackStaircase3-v0:

    none         the task's reward alone
    rnd          and RND
    count        and 1/N^3 for every message, no judge
    rules        and ONI-retrieval with the rulebook's labels
    embedding    and ONI-retrieval with labels by similarity of sentence embeddings
    random       uniform actions

The judges are a rule judge and an embedding judge, no language model. A run is judged by 20 episodes of its final
policy, which acts by chance as it did while it learnt (the likeliest action, taken always, bumps into one wall until
time is up): the deepest level of an episode, its score and the task's return. Runs go on one process a core; an
interrupted study goes on where it stopped.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.jobs import Job, run_missing
from benchmarks.studies.captions import NOTHING, of_labels
from runners.evaluate import interval
from runners.report import statistics

SEEDS = 2
FRAMES = 2_000_000
N_ENVS = 32
EPISODES = 20
TASKS = {"score": "lodestar/NetHackScore-v0", "staircase": "lodestar/NetHackStaircase3-v0"}
ARMS: dict[str, tuple[str, dict[str, Any]]] = {  # arm -> bonus, its options
    "none": ("", {}),
    "rnd": ("rnd", {"scale": "return"}),
    "count": ("oni", {"model": "count"}),
    "rules": ("oni", {"judge": "rules"}),
    "embedding": ("oni", {"judge": "embedding"}),
    "random": ("", {}),
}
SETTINGS: dict[str, Any] = {
    "n_steps": 64,
    "batch_size": 512,
    "n_epochs": 2,
    "learning_rate": 5e-4,
    "entropy_weight": 0.01,
}
TASK_WEIGHT, WEIGHT = 0.1, 0.1
MEASURED = ("depth", "score", "experience level", "gold", "deepest of all")


def run(folder: Path) -> dict[str, float]:
    """Run what is missing; score, level and label coverage of every arm on every task."""
    jobs: list[Job] = [(train, (task, arm, seed)) for seed in range(SEEDS) for task in TASKS for arm in ARMS]
    return figures(run_missing(folder, "nethack", ("task", "arm", "seed"), jobs))


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """IQM over seeds of what each arm reached; the interval where there are several seeds."""
    found: dict[str, float] = {}
    for task in TASKS:
        for arm in ARMS:
            group = [row for row in rows if (row["task"], row["arm"]) == (task, arm)]
            key = f"nethack_{arm}" if task == "score" else f"nethack_{task}_{arm}"
            for name, column in {"score": "score", "level": "depth", "coverage": "coverage"}.items():
                values = [float(row[column]) for row in group]
                if values:
                    found[f"{key}_{name}"] = statistics.iqm(values)
                if len(values) > 1:
                    found[f"{key}_{name}_low"], found[f"{key}_{name}_high"] = interval(values)
    return found


def train(task: str, arm: str, seed: int, frames: int = FRAMES, episodes: int = EPISODES) -> dict[str, Any]:
    """One run: what its final policy reaches, frames per second of training, what became of the labels."""
    import torch

    import rewards
    from agents.ppo.agent import PPO, PPOConfig
    from envs.make import make_vec
    from runners.evaluate import play, policy
    from runners.run.build import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(1)
    reward, options = ARMS[arm]
    reads, act, row = reward == "oni", None, dict(NOTHING)
    clock = time.perf_counter()
    if arm != "random":
        envs = make_vec(TASKS[task], N_ENVS, seed=1000 * seed, backend="batched", text=reads)
        configs: dict[str, Any] = {"task": rewards.get("task").Config(weight=TASK_WEIGHT)}
        if reward:
            known: dict[str, Any] = {"family": "nethack", "goal": aim(TASKS[task])} if reads else {}
            configs[reward] = rewards.get(reward).Config(**{"weight": WEIGHT, **known, **options})
        config = PPOConfig(**SETTINGS)
        spaces = envs.single_observation_space, envs.single_action_space
        mix = rewards.make(configs, *spaces, gamma=config.gamma, seed=seed)
        model = PPO(envs, config, scorer=mix, seed=seed)
        model.learn(frames)
        if reads:
            row = of_labels(mix.streams["oni"].reward, model.collector.rollout.modalities["text"])
        mix.close()
        envs.close()
        act = policy(model, TASKS[task])
    seconds = time.perf_counter() - clock
    scores = play(TASKS[task], act, episodes, seed=seed, max_steps=100_000)
    reached = {name: round(scores.metrics[name], 3) for name in MEASURED}
    reached |= {"task_return": round(float(scores.to_dict()["task_return"]), 3)}
    fps = round(frames / seconds, 1) if arm != "random" else ""
    return {**reached, **row, "frames": frames, "frames_per_second": fps, "seconds": round(seconds, 1)}


def aim(env_id: str) -> str:
    """What judges are told is wanted there."""
    from envs.family import family_of
    from envs.make import spec_of

    spec = spec_of(env_id)
    return family_of(spec).aim(spec)
