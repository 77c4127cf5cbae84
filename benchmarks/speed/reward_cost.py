"""What learned rewards cost PPO: frames a CPU-second with each over those with the task alone, as `rnd_ratio`.

    cost_<name>            CartPole-v1, 8 environments in this process
    cost_<name>_minigrid   MiniGrid-DoorKey-6x6-v0, 64 batched; not debate, which reads at most 64 numbers, and not
                           users, whose sessions take minutes with segments of so many

Four rewards and the task alone take turns. Groups that have their rows are not measured again. `progress_model` draws,
so that PPO alone is no measure: `python -m benchmarks progress_model-speed`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks import results
from benchmarks.speed.measure import Measure, interleave, ratio
from runners.run.build import keep_freed_memory

WORLDS = {"": ("CartPole-v1", 8, "gym"), "_minigrid": ("MiniGrid-DoorKey-6x6-v0", 64, "batched")}
FRAMES, ROUNDS, GROUP = 16_384, 3, 4
HINT = {"effect": {"weight": "learned"}}
CIRCLE = {"judge": "circle"}  # on CartPole the task tells no two steps, or segments, apart: there is nothing to learn
REWARDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # name -> rewards beside the task, options of PPO
    "gate": ({"gate": {}}, {}),
    "par": ({"effect": {"shape": "par"}}, {}),
    "balance": ({"effect": {}}, {"balance": "min_norm"}),
    "blend_aligned": (HINT, {"blend": "aligned"}),
    "blend_implicit": (HINT, {"blend": "implicit"}),
    "self_play": ({"self_play": {}}, {}),
    "users": ({"users": {"users": {"ann": CIRCLE, "ben": CIRCLE}}}, {}),
    "history": ({"bradley_terry": {"of": "history", **CIRCLE}}, {}),
    "gail": ({"discriminator": {"demos": "{demos}"}}, {}),
    "airl": ({"discriminator": {"demos": "{demos}", "form": "airl"}}, {}),
    "success": ({"success": {"goals": "{demos}", "which": "all", "others": "{demos}"}}, {}),
    "success_online": ({"success": {"goals": "{demos}", "which": "all", "online": True}}, {}),
    "hilp": ({"hilp": {"data": "{demos}", "steps": 20}}, {}),
    "code": ({"code": {"file": "{code}"}}, {}),
    "table": ({"table": {"file": "{table}"}}, {}),
    "contrastive_ucb": ({"contrastive_ucb": {}}, {}),
    "implicit": ({"lare": {"form": "implicit"}}, {}),
    "two_level": ({"two_level": {}}, {}),
    "debate": ({"debate": CIRCLE}, {}),
}


def run(folder: Path) -> dict[str, float]:
    """Measure the groups that lack rows; about eight minutes for all."""
    import torch

    torch.set_num_threads(1)
    keep_freed_memory()
    path, figures = folder / "reward-cost.csv", dict[str, float]()
    with TemporaryDirectory() as scratch:
        for end, world in WORLDS.items():
            names = [name for name in REWARDS if not (end and name in ("debate", "users"))]
            for i in range(0, len(names), GROUP):
                group, members = f"{world[0]} {i}", ["task", *names[i : i + GROUP]]
                if not all(rates_in(path, group, name) for name in members):
                    files = written(world[0], Path(scratch))
                    interleave(path, group, ROUNDS, {name: learning(world, name, files) for name in members})
                rates = {name: rates_in(path, group, name) for name in members}
                figures |= {f"cost_{name}{end}": ratio(rates, name, "task") for name in members[1:]}
    return figures


def rates_in(path: Path, group: str, name: str) -> list[float]:
    """The rates of the last rounds, if there are as many."""
    rows = [row for row in results.read_rows(path) if (row["group"], row["variant"]) == (group, name)][-ROUNDS:]
    return [float(row["frames_per_cpu_second"]) for row in rows] if len(rows) == ROUNDS else []


def learning(world: tuple[str, int, str], name: str, files: dict[str, str]) -> Measure:
    """PPO with a reward beside the task's, or the task's alone."""
    (env_id, n, backend), (given, options) = world, REWARDS.get(name, ({}, {}))

    def measure() -> tuple[int, Callable[[], Any]]:
        import rewards
        from agents.ppo.agent import PPO, PPOConfig
        from envs.make import make_vec

        envs = make_vec(env_id, n, seed=0, backend=backend)
        spaces = envs.single_observation_space, envs.single_action_space
        mixed: dict[str, Any] = {"task": {}}
        for reward, asked in given.items():
            mixed[reward] = {k: v.format(**files) if isinstance(v, str) else v for k, v in asked.items()}
        mix: Any = rewards.make(mixed, *spaces, seed=0) if given else None
        model = PPO(envs, PPOConfig(n_steps=2048 // n, **options), scorer=mix, seed=0)

        def work() -> None:
            model.learn(FRAMES)
            envs.close()
            if mix is not None:
                mix.close()

        return FRAMES, work

    return measure


def written(env_id: str, folder: Path) -> dict[str, str]:
    """Files that rewards read: a recording of random actions, reward code, a table of two states."""
    from envs.make import make
    from envs.recording import record, save

    env: Any = make(env_id, seed=0)
    files = {name: str(folder / name) for name in ("demos", "code", "table")}
    save(files["demos"], record(env, None, 1_000, seed=0), {"env": env_id})
    size, count = int(np.prod(env.observation_space.shape)), int(env.action_space.n)
    Path(files["code"]).write_text('def reward(obs, action, next_obs):\n    return {"first": next_obs[:, 0] ** 2}\n')
    table = {"states": [[0.0] * size, [1.0] * size], "rewards": [[1.0] * count, [-1.0] * count]}
    Path(files["table"]).write_text(json.dumps(table))
    return files
