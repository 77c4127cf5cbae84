"""What a learned reward costs: frames per second with it over without it, measured side by side.

Turns and medians as in `benchmarks.speed.measure`. Freed memory is kept: page faults, which depend on what ran before,
would decide otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed.measure import Measure, interleave, ratio
from runners.run.build import keep_freed_memory

PPO_FRAMES = 8_192  # four rollouts of 8 x 256
SAC_FRAMES = 400
CLIP_BATCH, CLIP_BATCHES = 64, 4


def run(folder: Path) -> dict[str, float]:
    """Measure all ratios; writes a row for every measurement."""
    import torch

    torch.set_num_threads(1)
    keep_freed_memory()
    path = folder / "foundation.csv"
    path.unlink(missing_ok=True)
    figures: dict[str, float] = {}
    for group, (rounds, bare, variants) in _groups().items():
        rates = interleave(path, group, rounds, {"bare": bare, **variants})["cpu"]
        figures |= {name: ratio(rates, name, "bare") for name in variants}
    return figures


def _groups() -> dict[str, tuple[int, Measure, dict[str, Measure]]]:
    """What is compared -> (rounds, without a learned reward, figure -> with it)."""
    return {
        "ppo": (5, _ppo, {"rnd_callback_ratio": _ppo_callback, "rnd_wrapper_ratio": _ppo_wrapper}),
        "clip": (51, _clip_encoder, {"clip_encoder_ratio": _clip_reward}),
        "sac": (5, _sac, {"sac_relabel_ratio": _sac_relabel}),
    }


def _mix(venv: Any, names: list[str]) -> Any:
    import rewards

    return rewards.make(names, venv.observation_space, venv.action_space, seed=0)


def _ppo() -> tuple[int, Callable[[], Any]]:
    return _learn_ppo(None, None)


def _ppo_callback() -> tuple[int, Callable[[], Any]]:
    from rewards.adapters.sb3 import RewardCallback

    return _learn_ppo(None, lambda venv: RewardCallback(_mix(venv, ["task", "rnd"])))


def _ppo_wrapper() -> tuple[int, Callable[[], Any]]:
    from rewards.adapters.sb3 import RewardVecEnv

    return _learn_ppo(lambda venv: RewardVecEnv(venv, _mix(venv, ["task", "rnd"])), None)


def _learn_ppo(wrap: Any, callback: Any) -> tuple[int, Callable[[], Any]]:
    from agents.sb3.agent import SB3PPO, SB3PPOConfig, make_venv

    venv = make_venv("CartPole-v1", 8, 0)
    called = callback(venv) if callback else None
    model = SB3PPO.build(SB3PPOConfig(), wrap(venv) if wrap else venv, seed=0, device="cpu")
    return PPO_FRAMES, lambda: model.learn(PPO_FRAMES, callback=called)


def _sac() -> tuple[int, Callable[[], Any]]:
    return _learn_sac(False)


def _sac_relabel() -> tuple[int, Callable[[], Any]]:
    return _learn_sac(True)


def _learn_sac(relabel: bool) -> tuple[int, Callable[[], Any]]:
    from stable_baselines3.common.buffers import ReplayBuffer

    from agents.sb3.agent import SAC, SACConfig, make_venv
    from rewards.adapters.sb3 import RelabelCallback, relabelling

    venv = make_venv("Pendulum-v1", 1, 0)
    buffer = callback = None
    if relabel:
        buffer = relabelling(ReplayBuffer), {"mix": _mix(venv, ["task", "rnd"])}
        callback = RelabelCallback()
    config = SACConfig(learning_starts=100)
    model = SAC.build(config, venv, seed=0, device="cpu", buffer=buffer)
    return SAC_FRAMES, lambda: model.learn(SAC_FRAMES, callback=callback)


def _clip_encoder() -> tuple[int, Callable[[], Any]]:
    """The image tower alone, on pixels that are ready for it."""
    import torch

    clip, frames = _clip()
    encoder = clip.encoder
    pixels = torch.from_numpy(frames).permute(0, 3, 1, 2)  # channels last in memory, as the reward hands them over
    ready = (pixels / 255 - encoder.mean) / encoder.std

    def work() -> None:
        with torch.inference_mode():
            for _ in range(CLIP_BATCHES):
                encoder.model.encode_image(ready, normalize=True)

    return CLIP_BATCH * CLIP_BATCHES, work


def _clip_reward() -> tuple[int, Callable[[], Any]]:
    """From bytes to rewards: preprocessing, image tower, half precision, goal-baseline regularisation."""
    from rewards.check import random_rollout

    clip, frames = _clip()
    batch = (
        random_rollout(clip.observation_space, clip.action_space, steps=CLIP_BATCH, envs=1)
        .flatten()
        .replace(frame=frames)
    )

    def work() -> None:
        for _ in range(CLIP_BATCHES):
            clip.score(batch.replace(extras={"clip": clip.encoder.image(batch.frame, CLIP_BATCH)}))  # without its cache

    return CLIP_BATCH * CLIP_BATCHES, work


@functools.cache
def _clip() -> tuple[Any, np.ndarray]:
    """The small model without its training, which costs no time to the frame, and random frames (64, H, W, 3)."""
    import gymnasium as gym

    from rewards.vision.clip import Clip, ClipConfig

    config = ClipConfig(goal="pole upright", baseline="a pole", alpha=0.5, weights="untrained")
    clip = Clip(config, gym.spaces.Box(-1.0, 1.0, (4,)), gym.spaces.Discrete(2))
    assert clip.frame_size is not None
    shape = (CLIP_BATCH, clip.frame_size, clip.frame_size, 3)
    return clip, np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
