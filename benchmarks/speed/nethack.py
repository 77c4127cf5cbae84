"""NetHack beside the NetHack Learning Environment itself: steps per CPU-second, one thread, random actions.

    nle_adapter_ratio          NetHackScore-v0, 8 games as one program, observations encoded, over 8 of NLE's
                               environments in a loop, which encode nothing
    nethack_text_ratio         the same with captions
    nethack_single_ratio       our single environments, adapted and captioned, over NLE's
    nethack_steps              steps per CPU-second of 32 games as one program with captions, lodestar/NetHackScore-v0

NLE's write the glyphs, the status and the message, and nothing else. All play the same actions; games end and begin as
they come. Ratios are medians over rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed.measure import Measure, interleave, ratio

ROUNDS, N, MANY, STEPS = 5, 8, 32, 1_000
NLE_ID, OURS = "NetHackScore-v0", "lodestar/NetHackScore-v0"


def run(folder: Path, rounds: int = ROUNDS, share: float = 1.0) -> dict[str, float]:
    """Measure; about a minute and a half. `share` of the steps are taken."""
    path = folder / "nethack-speed.csv"
    path.unlink(missing_ok=True)
    steps = max(int(STEPS * share), 1)
    variants = {
        "nle": _bare(steps),
        "program": _drive(NLE_ID, N, steps, "batched", False),
        "program, text": _drive(NLE_ID, N, steps, "batched", True),
        "single, text": _drive(NLE_ID, N, steps, "gym", True),
        "ours, 32 games, text": _drive(OURS, MANY, max(steps // 4, 1), "batched", True),
    }
    rates = interleave(path, "NetHack", rounds, variants)["cpu"]
    return {
        "nle_adapter_ratio": ratio(rates, "program", "nle"),
        "nethack_text_ratio": ratio(rates, "program, text", "nle"),
        "nethack_single_ratio": ratio(rates, "single, text", "nle"),
        "nethack_steps": float(np.median(rates["ours, 32 games, text"])),
    }


def _actions(steps: int, n: int) -> np.ndarray:
    return np.random.default_rng(0).integers(23, size=(steps, n))


def _bare(steps: int) -> Measure:
    def measure() -> tuple[int, Callable[[], Any]]:
        import gymnasium as gym
        import nle  # noqa: F401

        envs = [gym.make(NLE_ID, observation_keys=("glyphs", "blstats", "message")) for _ in range(N)]
        for number, env in enumerate(envs, 1):
            inner: Any = env.unwrapped
            inner.seed(number, number, reseed=False)
            env.reset()

        def work() -> None:
            for row in _actions(steps, N).tolist():
                for env, action in zip(envs, row):
                    _, _, terminated, truncated, _ = env.step(action)
                    if terminated or truncated:
                        env.reset()
            for env in envs:
                env.close()

        return steps * N, work

    return measure


def _drive(env_id: str, n: int, steps: int, backend: str, text: bool) -> Measure:
    def measure() -> tuple[int, Callable[[], Any]]:
        from envs.make import make_vec

        envs = make_vec(env_id, n, seed=0, backend=backend, text=text)
        envs.reset()

        def work() -> None:
            for row in _actions(steps, n):
                envs.step(row)
            envs.close()

        return steps * n, work

    return measure
