"""A reward that changes its mind: do agents recover that pay the past anew, and those that stored what it paid?

Half of training a reward pays with the wrong sign; then, at once, with the right one, as a learned reward does that
was taught something new. `relabel` pays replayed and imagined transitions by the reward as it is now; `stale` keeps for
each what was paid at the time it happened. All else is equal. `random` acts at random; `known` is paid with the right
sign from the first step. Everybody is judged by the task's own return of 20 episodes on the same seeds.

    task         Pendulum-v1, its own reward with the sign exchanged
    preference   Pendulum-v1, a reward learnt from comparisons, its sign exchanged, which goes on learning
    rnd          PendulumSparse, the task and RND, whose sign is exchanged: boredom that turns into curiosity
    clip         PendulumUpright, a sentence that says the opposite, then the goal; distilled into a head

Rows are written as they end; an interrupted study goes on where it stopped. Settings were chosen on seed 100.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs import run_missing
from rewards.base import Reward
from runners.evaluate import interval, play, policy
from runners.report import statistics

SEEDS = 5
EPISODES = 20
POINTS = 5  # at which the policy is looked at after the change, the change included, the end apart
DYNA = {"preset": "single", "updates_per_step": 2.0, "batch_size": 128, "learning_starts": 500}
MRQ = {"preset": "mrq", "learning_starts": 500}
AGENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "dyna": ("dyna", DYNA),
    "sac": ("dyna", {**DYNA, "preset": "sac"}),
    "mrq": ("world_model", MRQ),
}
TASKS: dict[str, tuple[str, int]] = {  # what changes its mind -> environment, environment steps
    "task": ("Pendulum-v1", 5_000),
    "preference": ("Pendulum-v1", 6_000),
    "rnd": ("lodestar/PendulumSparse-v0", 10_000),
    "clip": ("lodestar/PendulumUpright-v0", 6_000),
}
PLAN = [("task", agent) for agent in AGENTS] + [("preference", "dyna"), ("rnd", "dyna"), ("clip", "dyna")]
ARMS = ("relabel", "stale", "known", "random")


class Turned(Reward):
    """Another reward times a sign that can be exchanged; everything else is the other's."""

    def __init__(self, inner: Reward, sign: float = -1.0) -> None:
        super().__init__(inner.config, inner.observation_space, inner.action_space, seed=inner.seed)
        self.inner, self.sign = inner, sign
        for name in ("requires", "role", "relabelable", "frame_size", "embedding", "keeps_frames"):
            setattr(self, name, getattr(inner, name))

    def score(self, batch: Any, memory: Any = None) -> Any:
        return np.float32(self.sign) * np.asarray(self.inner.score(batch), np.float32)

    def update(self, batch: Any) -> dict[str, float]:
        return self.inner.update(batch)

    def embed(self, batch: Any) -> Any:
        return self.inner.embed(batch)


def run(folder: Path) -> dict[str, float]:
    """Run what is missing; the task's return at the end by arm, and the share of the way from random to `known`."""
    jobs: list[Any] = []
    for seed in range(SEEDS):
        for task, agent in PLAN:
            jobs += [(train, (task, agent, arm, seed)) for arm in ARMS]
    rows = run_missing(folder, "reward-swap", ("task", "agent", "arm", "seed"), jobs)
    from benchmarks.studies.reward_swap_figure import draw

    draw(folder)
    return figures(rows)


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """`swap_<arm>_<agent>` for the task's own reward, `swap_<arm>_<task>` for the others: IQM and 95 % interval."""
    found: dict[str, float] = {}
    for task, agent in PLAN:
        for arm in ARMS:
            chosen = [r for r in rows if (r["task"], r["agent"], r["arm"]) == (task, agent, arm)]
            values = [float(row["return"]) for row in chosen]
            if not values:
                continue
            key = f"swap_{arm}_{agent if task == 'task' else task}"
            found[key] = statistics.iqm(values)
            found[f"{key}_low"], found[f"{key}_high"] = interval(values)
            found[f"{key}_seeds"] = len(values)
            on_the_way = [
                [float(row[f"after_{100 * i // POINTS}"]) for i in range(1, POINTS)]
                for row in chosen
                if row["steps"] != "0"
            ]
            if on_the_way:  # how soon: the mean over the second half, without its ends
                found[f"{key}_way"] = statistics.iqm([float(np.mean(x)) for x in on_the_way])
    return found


def train(task: str, agent: str, arm: str, seed: int, steps: int | None = None, **changes: Any) -> dict[str, Any]:
    """One run: the task's return before the change and at the end, and the seconds of CPU it took."""
    env_id, length = TASKS[task]
    length = steps or length
    clock = time.process_time()
    curve: list[float] = []
    act = None
    if arm != "random":
        curve, act = _learn(task, agent, arm, seed, length, changes)
    seconds = time.process_time() - clock
    final = play(env_id, act, EPISODES, seed=seed)
    row: dict[str, Any] = {"return": round(float(np.mean(final.returns)), 2), "steps": len(curve) and length}
    for point in range(POINTS):  # the first where the reward changed its mind
        row[f"after_{100 * point // POINTS}"] = round(curve[point], 2) if curve else ""
    return {**row, "cpu_seconds": round(seconds, 1)}


def _learn(task: str, agent: str, arm: str, seed: int, steps: int, changes: dict[str, Any]) -> tuple[list[float], Any]:
    """The returns of five episodes at the change and on the way, and the policy at the end."""
    import torch

    import agents
    from envs.make import make_vec
    from rewards.mix.mix import Mix

    torch.set_num_threads(1)
    env_id, _ = TASKS[task]
    name, settings = AGENTS[agent]
    kind = agents.get(name)
    config = kind.Config(**{**settings, "relabel": arm != "stale", **changes})
    shown: dict[str, Any] = {"frame_size": 64} if task == "clip" else {}
    envs = make_vec(env_id, 1, seed=1000 * seed, **shown)
    streams, turned = _streams(task, envs.single_observation_space, envs.single_action_space, config.gamma, seed)
    model = kind.build(config, envs, seed=seed, device="cpu", scorer=Mix(streams))
    if arm == "known":
        turned.sign = 1.0
    act, curve, half = policy(model, env_id), [], steps // 2
    model.learn(steps - half, log_interval=None)
    turned.sign = 1.0
    for _ in range(POINTS):
        curve.append(float(np.mean(play(env_id, act, 5, seed=seed).returns)))
        model.learn(half // POINTS, log_interval=None, reset_num_timesteps=False)
    envs.close()
    return curve, act


def _streams(task: str, obs: Any, act: Any, gamma: float, seed: int) -> tuple[list[Any], Turned]:
    """The mix's streams, and the reward among them that will change its mind."""
    import rewards
    from rewards.mix.mix import Stream

    def reward(name: str, **options: Any) -> Reward:
        return rewards.get(name)(rewards.get(name).Config(**options), obs, act, seed=seed)

    if task == "task":
        turned = Turned(reward("task"))
    elif task == "preference":
        turned = Turned(reward("bradley_terry", judge="scripted", seed_steps=500, every=300, queries=20, budget=200))
    elif task == "clip":
        goal = "pendulum in the upright position"
        turned = Turned(reward("clip", goal=goal))
    else:
        turned = Turned(reward("rnd", learning_rate=1e-3))
        turned.config = dataclasses.replace(turned.config, weight=1.0, scale="ema")
        return [Stream("task", reward("task"), gamma=gamma), Stream("rnd", turned, gamma=gamma)], turned
    return [Stream("turned", turned, gamma=gamma)], turned
