"""Our PPO beside Stable-Baselines3's: same network (64 x 64), minibatches (64), epochs (10), environments and task.

    cpu_ratio_<task>       frames per CPU-second, one thread, the same 8 Gymnasium environments in this process
    wall_ratio_<task>      frames per second on two cores: with worker processes where a step is dear, ours and theirs
    batched_ratio_<task>   64 environments, ours as an array program, Stable-Baselines3's as Gymnasium's
    rnd_ratio, streams3_ratio   ours with RND, and with RND and counts, over ours without
    rest_share             what is neither environment, inference, reward nor update, of our time; the worst task

    numba_ratio_<task><environments>_mb<rows>   `python -m benchmarks compiled`: frames per CPU-second, update compiled
                           by numba, and ready, over NumPy's
    numba_cold_s, numba_warm_s   CPU-seconds of a process's first compiled update, without and with numba's disk cache

Where time goes is written to ppo_shares.csv and drawn in figures/ppo_time.png.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results
from benchmarks.speed.measure import Measure, Rates, interleave, ratio
from runners.run.build import keep_freed_memory

TASKS = {"cartpole": "CartPole-v1", "minigrid": "MiniGrid-DoorKey-6x6-v0", "halfcheetah": "HalfCheetah-v5"}
ROUNDS = 5
PARTS = ("environment", "inference", "reward", "update")


def run(folder: Path) -> dict[str, float]:
    """Measure everything; about six minutes on two free cores."""
    import torch

    torch.set_num_threads(1)
    keep_freed_memory()
    path = folder / "ppo.csv"
    path.unlink(missing_ok=True)
    figures: dict[str, float] = {}
    shares: list[dict[str, Any]] = []
    for task, env_id in TASKS.items():
        many = "gym" if task == "cartpole" else "workers"
        frames = 8_192
        variants = {
            "sb3": _sb3(env_id, 8, frames, shares),
            "ours": _ours(env_id, 8, frames, "gym", shares=shares),
            f"sb3, {many}": _sb3(env_id, 8, frames, workers=many == "workers"),
            f"ours, {many}": _ours(env_id, 8, frames, many),
        }
        rates = interleave(path, task, ROUNDS, variants)
        figures[f"cpu_ratio_{task}"] = ratio(rates["cpu"], "ours", "sb3")
        figures[f"wall_ratio_{task}"] = min(
            ratio(rates["wall"], f"ours, {many}", name) for name in variants if "sb3" in name
        )
        if task != "halfcheetah":
            rates = interleave(
                path,
                f"{task}, 64",
                ROUNDS,
                {"sb3": _sb3(env_id, 64, frames), "ours, batched": _ours(env_id, 64, 2 * frames, "batched")},
            )
            figures[f"batched_ratio_{task}"] = ratio(rates["wall"], "ours, batched", "sb3")
    figures |= _streams(path)
    figures["rest_share"] = max(row["rest"] for row in shares if row["agent"] == "ours")
    _draw(folder, shares)
    return figures


def compiled(folder: Path) -> dict[str, float]:
    """The compiled update beside NumPy's; about two minutes on two free cores."""
    import torch

    torch.set_num_threads(1)
    keep_freed_memory()
    path = folder / "compiled.csv"
    path.unlink(missing_ok=True)
    figures: dict[str, float] = {}
    cases = [("cartpole", n, rows) for n in (8, 64) for rows in (64, 256, 512)] + [("halfcheetah", 8, 64)]
    for task, n, rows in cases:
        backend = "batched" if task == "cartpole" else "gym"
        both = {name: _ours(TASKS[task], n, 8_192, backend, path=name, batch_size=rows) for name in ("numpy", "numba")}
        group = f"{task}{n}_mb{rows}"
        figures[f"numba_ratio_{group}"] = ratio(interleave(path, group, ROUNDS, both)["cpu"], "numba", "numpy")
    with tempfile.TemporaryDirectory() as cache:
        for name in ("numba_cold_s", "numba_warm_s"):
            code = f"from benchmarks.speed.ppo import first; print(first({str(cache)!r}))"
            answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            figures[name] = float(answer.stdout)
    return figures


def first(cache: str) -> float:
    """CPU-seconds of this process's first compiled update, with numba's cache in a folder."""
    os.environ["NUMBA_CACHE_DIR"] = cache
    _, work = _ours("CartPole-v1", 8, 2048, "batched", path="numpy")()
    work()
    _, work = _ours("CartPole-v1", 8, 2048, "batched", path="numba")()
    clock = time.process_time()
    work()
    return time.process_time() - clock


def _streams(path: Path) -> dict[str, float]:
    mixes = {"task": ["task"], "rnd": ["task", "rnd"], "streams3": ["task", "rnd", "count"]}
    variants = {name: _ours("CartPole-v1", 8, 16_384, "gym", names) for name, names in mixes.items()}
    rates: Rates = interleave(path, "streams", ROUNDS, variants)["cpu"]
    return {f"{name}_ratio": ratio(rates, name, "task") for name in ("rnd", "streams3")}


def _ours(
    env_id: str,
    n: int,
    frames: int,
    backend: str,
    names: list[str] | None = None,
    shares: list[Any] | None = None,
    **settings: Any,
) -> Measure:
    def measure() -> tuple[int, Callable[[], Any]]:
        import rewards
        from agents.ppo.agent import PPO, PPOConfig
        from envs.make import make_vec

        envs = make_vec(env_id, n, seed=0, backend=backend)
        spaces = envs.single_observation_space, envs.single_action_space
        mix: Any = rewards.make(names, *spaces, seed=0) if names else None
        model = PPO(envs, PPOConfig(n_steps=2048 // n, **settings), scorer=mix, seed=0)

        def work() -> None:
            clock = time.perf_counter()
            model.learn(frames)
            clock = time.perf_counter() - clock
            envs.close()
            if shares is not None:
                shares.append({"task": env_id, "agent": "ours", **_share(model.seconds, clock)})

        return frames, work

    return measure


def _sb3(env_id: str, n: int, frames: int, shares: list[Any] | None = None, workers: bool = False) -> Measure:
    """Stable-Baselines3's, its parts timed from outside; its own vectors of processes where it has workers."""

    def measure() -> tuple[int, Callable[[], Any]]:
        from stable_baselines3 import PPO
        from stable_baselines3.common.vec_env import SubprocVecEnv

        from agents.sb3.agent import make_venv
        from envs.make import make

        makers: list[Callable[[], Any]] = [partial(make, env_id, seed=i) for i in range(n)]
        venv = SubprocVecEnv(makers, start_method="fork") if workers else make_venv(env_id, n, 0)
        model = PPO("MlpPolicy", venv, n_steps=2048 // n, batch_size=64, n_epochs=10, device="cpu", seed=0)
        seconds = dict.fromkeys((*PARTS, "rollout"), 0.0)
        _time(venv, "step_wait", seconds, "environment")
        _time(model, "collect_rollouts", seconds, "rollout")
        _time(model, "train", seconds, "update")

        def work() -> None:
            clock = time.perf_counter()
            model.learn(frames)
            clock = time.perf_counter() - clock
            venv.close()
            if shares is not None:
                seconds["inference"] = seconds.pop("rollout") - seconds["environment"]
                shares.append({"task": env_id, "agent": "sb3", **_share(seconds, clock)})

        return frames, work

    return measure


def _time(owner: Any, name: str, seconds: dict[str, float], part: str) -> None:
    call = getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        clock = time.perf_counter()
        result = call(*args, **kwargs)
        seconds[part] += time.perf_counter() - clock
        return result

    setattr(owner, name, timed)


def _share(seconds: dict[str, float], total: float) -> dict[str, float]:
    """Shares of the time, and the whole in seconds."""
    known = {part: round(seconds[part] / total, 4) for part in PARTS}
    return {**known, "rest": round(1 - sum(known.values()), 4), "seconds": round(total, 4)}


def _draw(folder: Path, shares: list[dict[str, Any]]) -> None:
    """Medians of the shares, as a table and as bars in microseconds a frame."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows: list[dict[str, Any]] = []
    for env_id in TASKS.values():
        for agent in ("sb3", "ours"):
            some = [row for row in shares if (row["task"], row["agent"]) == (env_id, agent)][1:]
            row = {key: float(np.median([r[key] for r in some])) for key in (*PARTS, "rest", "seconds")}
            rows.append({"task": env_id, "agent": agent, **{key: round(value, 4) for key, value in row.items()}})
    (folder / "ppo_shares.csv").unlink(missing_ok=True)
    results.append_rows(folder / "ppo_shares.csv", rows)
    figure, axes = plt.subplots(1, len(TASKS), figsize=(9, 2.6), layout="constrained")
    colours = dict(zip((*PARTS, "rest"), ("#4c956c", "#2c6e9b", "#c44536", "#e09f3e", "#b0b0b0")))
    for axis, env_id in zip(axes, TASKS.values()):
        for place, agent in enumerate(("ours", "sb3")):
            row = next(r for r in rows if (r["task"], r["agent"]) == (env_id, agent))
            left = 0.0
            for part, colour in colours.items():
                width = row[part] * row["seconds"] / 8_192 * 1e6
                axis.barh(place, width, left=left, color=colour, label=part if place == 0 else None)
                left += width
        axis.set_yticks([0, 1], ["ours", "SB3"])
        axis.set_title(env_id, fontsize=9)
        axis.set_xlabel("microseconds a frame", fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncol=5, fontsize=8, frameon=False)
    picture = folder.parent / "figures" / "ppo_time.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=150)
    plt.close(figure)
