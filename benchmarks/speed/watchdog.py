"""What the watchdog costs: our workers beside Gymnasium's and Stable-Baselines3's, which have none.

    vec_ratio             steps a second over those of Gymnasium's AsyncVectorEnv (shared memory): the least of the rows
    vec_ratio_<env>       the same for one environment, a process for each copy
    vec_ratio_<env>_several   the same with ours in half as many processes
    sb3_vec_ratio         steps a second as an SB3 VecEnv over those of SubprocVecEnv, CartPole

Environments: CartPole, MiniGrid with its pictures, and one whose step keeps a core busy for a millisecond. All step
what `envs.make` makes, with the same random actions; episodes end and begin as they come. Ratios are medians over
rounds of wall time, because the CPU time of workers cannot be read.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from benchmarks.speed.measure import Measure, interleave, ratio

ROUNDS, N = 9, 4
BUSY = "LodestarBusy-v0"
ENVS = {"cartpole": ("CartPole-v1", 1500), "minigrid": ("MiniGrid-DoorKey-8x8-v0", 600), "busy": (BUSY, 200)}


class Busy(gym.Env):
    """A step takes a millisecond of a core."""

    observation_space, action_space = spaces.Box(-1, 1, (8,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(8, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        end = time.perf_counter() + 1e-3
        while time.perf_counter() < end:
            pass
        return np.zeros(8, np.float32), 1.0, False, False, {}


gym.register(BUSY, f"{__name__}:Busy", max_episode_steps=200)


def run(folder: Path, rounds: int = ROUNDS, share: float = 1.0) -> dict[str, float]:
    """Measure; about two minutes. `share` of the steps are taken."""
    path = folder / "watchdog.csv"
    path.unlink(missing_ok=True)
    figures: dict[str, float] = {}
    for name, (env_id, steps) in ENVS.items():
        makers: dict[str, Callable[[], Any]] = {
            "ours": functools.partial(_ours, env_id, N),
            "several": functools.partial(_ours, env_id, N // 2),
            "gymnasium": functools.partial(_theirs, env_id),
        }
        rates = _beside(path, name, rounds, makers, max(int(steps * share), 2))
        figures[f"vec_ratio_{name}"] = ratio(rates, "ours", "gymnasium")
        figures[f"vec_ratio_{name}_several"] = ratio(rates, "several", "gymnasium")
    figures["vec_ratio"] = min(figures.values())
    sb3: dict[str, Callable[[], Any]] = {"ours": _our_venv, "stable-baselines3": _their_venv}
    rates = _beside(path, "sb3", rounds, sb3, max(int(ENVS["cartpole"][1] * share), 2))
    figures["sb3_vec_ratio"] = ratio(rates, "ours", "stable-baselines3")
    return figures


def _beside(
    path: Path, group: str, rounds: int, makers: dict[str, Callable[[], Any]], steps: int
) -> dict[str, list[float]]:
    """Steps a second of each variant in each round; each vector is made once."""
    vectors: dict[str, Any] = {}
    try:
        for name, make in makers.items():
            vectors[name] = make()
            vectors[name].reset()
        variants: dict[str, Measure] = {name: functools.partial(_walk, envs, steps) for name, envs in vectors.items()}
        return interleave(path, group, rounds, variants)["wall"]
    finally:
        for envs in vectors.values():
            envs.close()


def _walk(envs: Any, steps: int) -> tuple[int, Callable[[], None]]:
    space = getattr(envs, "single_action_space", envs.action_space)
    actions = np.random.default_rng(0).integers(space.n, size=(steps, N))

    def work() -> None:
        for row in actions:
            envs.step(row)

    return steps * N, work


def _id(env_id: str) -> str:
    return f"{__name__}:{env_id}" if env_id == BUSY else env_id  # known to workers by its module


def _ours(env_id: str, processes: int) -> Any:
    from envs.make import make_vec

    return make_vec(_id(env_id), N, backend="workers", processes=processes)


def _theirs(env_id: str) -> Any:
    from envs.make import make_vec

    return make_vec(_id(env_id), N, backend="async")


def _our_venv() -> Any:
    from agents.sb3.agent import make_venv

    return make_venv("CartPole-v1", N, 0, workers={"processes": N})


def _their_venv() -> Any:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    from envs.make import make

    return SubprocVecEnv([functools.partial(make, "CartPole-v1", seed=row) for row in range(N)], "forkserver")
