"""What a video reward model beside training costs: frames a second of PPO that draws, with it and without it.

    progress_model_fps_ratio    a server on this machine that grades each window after 200 ms, eight at a time
    cost_progress_model         the same, beside the cost_<name> of `reward-cost`

Wall time, since the judge lives in a process of its own; turns and medians as in `benchmarks.speed.measure`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.speed.measure import Measure, interleave, ratio
from runners.run.build import keep_freed_memory

FRAMES, ROUNDS, START = 6_000, 5, 3.0  # START: seconds in which the judge's process can import what it needs


def run(folder: Path) -> dict[str, float]:
    """Measure; about five minutes."""
    import torch

    from tests.faults.faulty_server import FaultyServer

    torch.set_num_threads(1)
    keep_freed_memory()
    path = folder / "progress_model-speed.csv"
    path.unlink(missing_ok=True)
    with FaultyServer("minigrid", delay=0.2) as server:
        options = {"model": "grades", "url": server.url("rules"), "attempts": 1}
        asked = {"judge": "score", "judge_options": options, "goal": "the pole stands upright"}
        variants = {"without": _learning({"task": None}), "with": _learning({"task": None, "progress_model": asked})}
        rates = interleave(path, "cartpole", ROUNDS, variants)["wall"]
    cost = ratio(rates, "with", "without")
    return {"progress_model_fps_ratio": cost, "cost_progress_model": cost}


def _learning(configs: dict[str, Any]) -> Measure:
    """PPO on frames of CartPole that are drawn in any case, with these rewards."""
    opened: list[Any] = []

    def measure() -> tuple[int, Callable[[], Any]]:
        import rewards
        from agents.ppo.agent import PPO, PPOConfig
        from envs.make import make_vec

        while opened:
            opened.pop().close()
        envs = make_vec("CartPole-v1", 8, seed=0, frame_size=96)
        config = PPOConfig(n_steps=128, batch_size=256, n_epochs=4)
        spaces = envs.single_observation_space, envs.single_action_space
        mix: Any = rewards.make(configs, *spaces, gamma=config.gamma, seed=0)
        opened.append(mix)  # the judge's process ends after the clock has stopped
        model = PPO(envs, config, scorer=mix, seed=0)
        model.learn(1024)
        time.sleep(START)
        return FRAMES, lambda: model.learn(FRAMES)

    return measure
