"""All that a GPU is for, in one call of ten minutes: whether it computes what the CPU does, and how fast.

    gpu_equal_programs   largest difference of an observation between array programs there and here, same actions
    gpu_equal_policy     largest difference of an output of one network on the same observations
    gpu_equal_clip       largest difference of an embedding of the small CLIP
    gpu_ppo_frames       frames a second of PPO on 4,096 CartPoles (backend=device), learning included
    gpu_ppo_rnd_frames   with RND beside it
    gpu_ppo_over_cpu     frames a second over those of the same run on one core here
    gpu_clip_frames      frames a second that ViT-B-32 embeds in bf16, random weights
    gpu_clip_ratio       over its image tower alone, whose input is on the device already
    gpu_sac_over_cpu, gpu_world_model_over_cpu           frames a second, learning included
    gpu_halfcheetah_frames, gpu_humanoid_frames          steps a second of 4,096 robots by mujoco-warp

A part that fails prints its error, and the next follows. It has never met a GPU: tests run all but the robots on a CPU.
"""

from __future__ import annotations

import copy
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from envs.make import make_vec
from rewards.vision.encoder import UNTRAINED, ClipEncoder
from runners.cli.compose import compose
from runners.run.build import Parts, build

PLAIN = ["preset=none", "control=none", "video=false", "eval_episodes=0", "logger=[]"]
PROGRAMS = ("CartPole-v1", "Acrobot-v1", "MiniGrid-DoorKey-6x6-v0")
ENVS, STEPS, ROLLOUTS = 4096, 32, 8
PPO = ["env=CartPole-v1", f"agent.n_steps={STEPS}", "agent.n_epochs=4"]
OTHERS = {"sac": ["env=Pendulum-v1", "agent=sac"], "world_model": ["env=CartPole-v1", "agent=world_model"]}


def run(folder: Path) -> dict[str, float]:
    """On whatever CUDA's first device is; an ImportError where there is none."""
    import torch

    if not torch.cuda.is_available():
        raise ImportError("there is no GPU")
    figures: dict[str, float] = {}
    for part in (programs, policy, ppo, clip, others, robots):
        try:
            figures |= part("cuda")
            print(part.__name__, figures, flush=True)
        except Exception:
            traceback.print_exc()
    return figures


def programs(device: str, n: int = 64, steps: int = 50) -> dict[str, float]:
    """Both sides begin in the same states and take the same actions."""
    worst = 0.0
    for name in PROGRAMS:
        there = make_vec(name, n, backend="device", device=device)
        here = make_vec(name, n, backend="batched")
        here.action_space.seed(0)
        seen = [(there.reset()[0], here.reset()[0])]
        for _ in range(steps):
            actions = here.action_space.sample()
            seen.append((there.step(actions)[0], here.step(actions)[0]))
            worst = max(worst, float(abs(seen[-1][0].cpu().numpy() - seen[-1][1]).max()))
    return {"gpu_equal_programs": worst}


def policy(device: str, n: int = ENVS) -> dict[str, float]:
    """A network that has learned from one rollout."""
    model: Any = _made(PPO, device, n).model
    model.learn(n * STEPS)
    seen, net = model.collector.vector[-1], model.policy
    pairs = zip(net(seen, {}), copy.deepcopy(net).cpu()(seen.cpu(), {}))
    return {"gpu_equal_policy": max(float((there.detach().cpu() - here.detach()).abs().max()) for there, here in pairs)}


def ppo(device: str, n: int = ENVS, rollouts: int = ROLLOUTS) -> dict[str, float]:
    """Minibatches of a quarter of a rollout."""
    there, rnd = (_rate(_made([*PPO, *more], device, n), rollouts * n * STEPS) for more in ([], ["reward=rnd"]))
    here = _rate(_made(PPO, "cpu", n, "batched"), rollouts * n * STEPS)
    return {"gpu_ppo_frames": there, "gpu_ppo_rnd_frames": rnd, "gpu_ppo_over_cpu": there / here}


def clip(device: str, model: str = "ViT-B-32", rows: int = 8192, batch: int = 512) -> dict[str, float]:
    """Frames as large as the model reads; the tower alone gets one batch again and again."""
    import torch

    rng = np.random.default_rng(0)
    small = [ClipEncoder("lodestar", "", device=place) for place in (device, "cpu")]
    frames = rng.integers(0, 255, (64, small[0].size, small[0].size, 3), np.uint8)
    there, here = (one.image(frames, 64).astype(np.float32) for one in small)
    encoder = ClipEncoder(model, UNTRAINED, device=device, precision="bf16")
    frames = rng.integers(0, 255, (rows, encoder.size, encoder.size, 3), np.uint8)
    pixels = torch.rand(batch, 3, encoder.size, encoder.size, device=device)

    def tower() -> None:
        with torch.inference_mode(), encoder._autocast():
            for _ in range(rows // batch):
                found = encoder.model.encode_image(pixels, normalize=True)
            found.cpu()  # waits for all

    alone, whole = _seconds(tower), _seconds(lambda: encoder.image(frames, batch))
    figures = {"gpu_equal_clip": float(abs(there - here).max())}
    return figures | {"gpu_clip_frames": rows / whole, "gpu_clip_ratio": alone / whole}


def others(device: str, steps: int = 4_000) -> dict[str, float]:
    """With their own settings, from the first update on."""
    figures = {}
    for name, run in OTHERS.items():
        there, here = (_rate(_made(run, place, 0, "auto"), steps) for place in (device, "cpu"))
        figures[f"gpu_{name}_over_cpu"] = there / here
    return figures


def robots(device: str, n: int = ENVS, steps: int = 200) -> dict[str, float]:
    """Random actions; the first time, which compiles, is not counted."""
    import torch

    figures = {}
    for robot in ("HalfCheetah", "Humanoid"):
        envs: Any = make_vec(f"{robot}-v5", n, backend="device", device=device)
        envs.reset()
        actions = torch.rand(steps, *envs.action_space.shape, device=device) * 2 - 1

        def play(envs: Any = envs, actions: Any = actions) -> None:
            for action in actions:
                rewards = envs.step(action)[1]
            rewards.cpu()  # waits for all

        seconds = _seconds(play)
        figures[f"gpu_{robot.lower()}_frames"] = n * steps / seconds
    return figures


def _made(arguments: list[str], device: str, n: int, backend: str = "device") -> Parts:
    more = [f"n_envs={n}", f"agent.batch_size={n * STEPS // 4}"] if n else []
    return build(compose([*PLAIN, *arguments, *more, f"device={device}", f"backend={backend}"])[0])


def _rate(parts: Parts, frames: int) -> float:
    """Frames a second, once as many were learned from."""
    seconds = _seconds(lambda: parts.model.learn(frames))
    parts.venv.close()
    return frames / seconds


def _seconds(work: Callable[[], Any]) -> float:
    """Of the second of two calls."""
    work()
    clock = time.perf_counter()
    work()
    return time.perf_counter() - clock
