"""Is a sentence enough? Five tasks learnt from CLIP alone, beside what a reward that means nothing teaches.

Each run learns with our PPO and is paid by one reward for frames; the task's own reward is never paid. It is judged by
the task's own truth over 20 episodes of the final policy.

    clip        cosine with the goal's sentence
    contrast    the goal's sentence minus its negative
    untrained   clip with a model that has learnt nothing
    gibberish   clip with a sentence that means nothing
    task        the task's own reward, as a reference
    random      uniform actions

Where the task ends at the goal (Acrobot, MiniGrid) scores are paid as differences, so that lingering earns nothing.
The models are in-domain: taught with captions made from simulator state. Settings were chosen on seed 100.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.jobs import Job, run_missing
from runners.evaluate import interval
from runners.report import statistics

SEEDS, CONTROL_SEEDS = 5, 2
EPISODES = 20
GIBBERISH = "qwv zzxk blorp"
ARMS = ("clip", "contrast", "untrained", "gibberish", "task", "random")
MEANINGLESS = ("untrained", "gibberish")
FAST = {"n_steps": 128, "batch_size": 128, "n_epochs": 10, "learning_rate": 1e-3, "entropy_weight": 0.01}


@dataclass(frozen=True)
class Task:
    """A task, how long it is learnt, and how its scores are paid."""

    env_id: str
    steps: int
    model: str = "lodestar"
    shape: str = "none"
    settings: dict[str, Any] = field(default_factory=dict)
    n_envs: int = 16
    backend: str = "batched"


TASKS = {
    "cartpole": Task("lodestar/CartPoleUpright-v0", 40_000, n_envs=8, settings={}),
    "mountaincar": Task(
        "lodestar/MountainCarGoal-v0", 80_000, settings={**FAST, "gamma": 0.995, "entropy_weight": 0.03}
    ),
    "pendulum": Task("lodestar/PendulumUpright-v0", 80_000, settings={**FAST, "gamma": 0.95}),
    "acrobot": Task("Acrobot-v1", 40_000, model="lodestar-96", shape="delta", settings=FAST),
    "minigrid": Task(
        "MiniGrid-Empty-Random-6x6-v0", 20_000, model="lodestar-96", shape="delta", settings=FAST, backend="gym"
    ),
}


def run(folder: Path) -> dict[str, float]:
    """Run what is missing; success of every task and reward, IQM of the seeds, with its interval."""
    jobs: list[Job] = [
        (train, (name, arm, seed))
        for seed in range(SEEDS)
        for name in TASKS
        for arm in ARMS
        if seed < (CONTROL_SEEDS if arm in MEANINGLESS else SEEDS)
    ]
    return figures(run_missing(folder, "sentences", ("task", "arm", "seed"), jobs))


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Success and its interval of every task and reward that has rows."""
    found: dict[str, float] = {}
    for name in TASKS:
        for arm in ARMS:
            of = [float(row["success"]) for row in rows if (row["task"], row["arm"]) == (name, arm)]
            if not of:
                continue
            low, high = interval(of)
            found |= {f"{name}_{arm}": statistics.iqm(of), f"{name}_{arm}_low": low, f"{name}_{arm}_high": high}
    return found


def train(name: str, arm: str, seed: int, task: Task | None = None) -> dict[str, Any]:
    """One run: share of episodes that succeed, steps at the goal in an episode, the task's return."""
    import torch

    from agents.ppo.agent import PPO, PPOConfig
    from envs.make import goals, make_vec
    from runners.evaluate import play, policy
    from runners.run.build import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(1)
    task = task or TASKS[name]
    clock = time.perf_counter()
    goal, act = goals(task.env_id)[0], None
    if arm != "random":
        pays = reward_of(task, arm)
        config = PPOConfig(**task.settings)
        size = None if arm == "task" else 64 if task.model == "lodestar" else 96
        envs = make_vec(task.env_id, task.n_envs, seed=1000 * seed, backend=task.backend, frame_size=size)
        model = PPO(envs, config, scorer=mix_of(envs, pays, config.gamma, seed), seed=seed)
        model.learn(task.steps)
        envs.close()
        act = policy(model)
    scores = play(task.env_id, act, EPISODES, seed=seed, goal=goal)
    row = scores.to_dict()
    kept = {key: round(float(row[key]), 4) for key in ("success", "goal_steps", "task_return", "length")}
    return {**kept, "steps": task.steps, "seconds": round(time.perf_counter() - clock, 1)}


def reward_of(task: Task, arm: str) -> dict[str, dict[str, Any]]:
    """Reward -> its options."""
    from envs.make import goals

    goal = goals(task.env_id)[0]
    if arm == "task":
        return {"task": {}}
    options = {"goal": goal.prompt, "model": task.model, "shape": task.shape}
    if arm == "contrast":
        return {"contrast": {**options, "negative": goal.negative}}
    changes = {"untrained": {"weights": "untrained"}, "gibberish": {"goal": GIBBERISH}}.get(arm, {})
    return {"clip": {**options, **changes}}


def mix_of(envs: Any, pays: dict[str, dict[str, Any]], gamma: float, seed: int) -> Any:
    """The mix of one reward with its options."""
    import rewards

    configs: dict[str, Any] = {name: rewards.get(name).Config(**options) for name, options in pays.items()}
    return rewards.make(configs, envs.single_observation_space, envs.single_action_space, gamma=gamma, seed=seed)
