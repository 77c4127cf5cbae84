"""MuJoCo's kernels for GPUs (mujoco-warp, extra `device`) beside MuJoCo itself, wherever torch computes.

    warp_equal_<robot>   largest difference of a velocity, in m/s or rad/s, after 21 steps of the physics from the same
                         starts with the same controls; two robots, both sides with Newton's solver
    warp_equal           the largest of HalfCheetah's and Humanoid's

On a CPU Warp compiles the kernels for ten minutes the first time, and keeps them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

ROBOTS, STEPS = ("HalfCheetah", "Humanoid"), 21


def run(folder: Path) -> dict[str, float]:
    """Compare; two minutes once the kernels are compiled."""
    figures = {f"warp_equal_{robot.lower()}": difference(robot) for robot in ROBOTS}
    return {**figures, "warp_equal": max(figures.values())}


def difference(robot: str) -> float:
    """Largest difference of a velocity after `STEPS` steps of the physics."""
    import mujoco
    import torch

    from envs.make import make_batched, make_vec

    place = "cuda" if torch.cuda.is_available() else "cpu"
    device: Any = make_vec(f"{robot}-v5", 2, backend="device", device=place, frame_skip=1)
    host = make_batched(f"{robot}-v5", 2, frame_skip=1)
    host.world.model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    device.reset()
    host.reset()
    space, rng = host.single_action_space, np.random.default_rng(0)
    for _ in range(STEPS):
        actions = rng.uniform(space.low, space.high, host.action_space.shape).astype(np.float32)
        device.step(actions)
        host.step(actions)
    velocities = device.snapshot()["state"]["physics"] - host.state["physics"]
    return float(abs(velocities[:, host._velocities]).max())
