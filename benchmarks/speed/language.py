"""What an annotator costs: frames per second of an agent beside it over those of the same agent without it.

    fps_ratio_busy    a server on this machine that answers each question after 200 ms, eight at a time
    fps_ratio_hang    a server that takes questions and never answers
    fps_ratio_dead    no server at all
    fps_ratio_nle     PPO on NetHackScore with ONI-retrieval (rules) and captions, over PPO alone

Wall time, since the annotator lives in a process of its own; turns and medians as in `benchmarks.speed.measure`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.speed.measure import Measure, interleave, ratio
from runners.run.build import keep_freed_memory

FRAMES = 60_000
NLE_FRAMES = 30_000
ROUNDS = 5
START = 3.0  # seconds in which a judge's process can import what it needs
NETHACK = "NetHackScore-v0"
_OPEN: list[Any] = []
DOORKEY = ("MiniGrid-DoorKey-8x8-v0", {"text": True, "captions": "full", "chatter": True})


def run(folder: Path) -> dict[str, float]:
    """Measure all ratios; writes a row for every measurement."""
    import torch

    from tests.faults.faulty_server import FaultyServer

    torch.set_num_threads(1)
    keep_freed_memory()
    path = folder / "language-speed.csv"
    path.unlink(missing_ok=True)
    dead = "http://127.0.0.1:9/v1"  # the port of discard, which no server listens on today
    with FaultyServer("minigrid", delay=0.2) as server:
        variants: dict[str, Measure] = {"without": _learning(*DOORKEY, FRAMES, {"model": "count"})}
        for name, url in (("busy", server.url("rules")), ("hang", server.url("hang")), ("dead", dead)):
            options = {"model": "rules", "url": url, "attempts": 1, "timeout": 5.0}
            variants[name] = _learning(
                *DOORKEY, FRAMES, {"model": "retrieval", "judge": "openai", "judge_options": options}
            )
        rates = interleave(path, "doorkey", ROUNDS, variants)["wall"]
    figures = {f"fps_ratio_{name}": ratio(rates, name, "without") for name in variants if name != "without"}
    read = {"model": "retrieval", "judge": "rules", "family": "nethack", "clock": "steps"}
    both = {"alone": _learning(NETHACK, {}, NLE_FRAMES), "oni": _learning(NETHACK, {"text": True}, NLE_FRAMES, read)}
    rates = interleave(path, "nethack", ROUNDS, both)["wall"]
    _OPEN.pop().close()
    return {**figures, "fps_ratio_nle": ratio(rates, "oni", "alone")}


def _learning(env_id: str, modalities: dict[str, Any], frames: int, oni: dict[str, Any] | None = None) -> Measure:
    """An agent that has started everything that it starts once, beside ONI with these options if there are any."""

    def measure() -> tuple[int, Callable[[], Any]]:
        import rewards
        from agents.ppo.agent import PPO, PPOConfig
        from envs.make import make_vec

        envs = make_vec(env_id, 16, seed=0, backend="auto", **modalities)
        configs: dict[str, Any] = {"task": None}
        if oni is not None:
            configs["oni"] = rewards.get("oni").Config(**{"weight": 0.1, "goal": "reach the green goal", **oni})
        config = PPOConfig(n_steps=128, batch_size=256, n_epochs=4)
        spaces = envs.single_observation_space, envs.single_action_space
        mix: Any = rewards.make(configs, *spaces, gamma=config.gamma, seed=0)
        model = PPO(envs, config, scorer=mix, seed=0)
        model.learn(4096)
        while _OPEN:
            _OPEN.pop().close()
        _OPEN.append(mix)  # the process of a judge ends after the clock has stopped
        time.sleep(START)
        return frames, lambda: model.learn(frames)

    return measure
