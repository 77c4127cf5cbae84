"""Learning: a constant reward that is scaled, self-imitation of six-dimensional actions, designed rewards."""

from __future__ import annotations

import json
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agents.ppo.agent import PPO, PPOConfig
from benchmarks.results import read_rows
from envs.make import make_vec
from runners.run.config import UsageError
from runners.train import train_in

RESULTS = Path(__file__).resolve().parents[3] / "assets" / "results"
ROLLOUTS = 120
HALFCHEETAH: dict[str, Any] = {"n_steps": 64, "batch_size": 256, "n_epochs": 2, "normalize_obs": True}
ENVS = 8


def measure() -> dict[str, float]:
    """The figures of this part."""
    figures = read_designed()
    figures["constant_scale_total"] = constant_scale_total()
    plain = train_halfcheetah(imitate=0.0)
    imitating = train_halfcheetah(imitate=3.0)
    figures["sil_gradient_6d"] = imitation_gradient()
    figures["sil_std_ratio"] = mean_deviation(imitating) / mean_deviation(plain)
    return figures


def read_designed() -> dict[str, float]:
    """What `exprd` measured in four rooms, without and with slip."""
    path = RESULTS / "exprd.json"
    figures = json.loads(path.read_text())["figures"] if path.exists() else {}
    names = ("exprd_return_ratio", "exprd_slip_return_ratio")
    missing = [name for name in names if name not in figures]
    if missing:
        raise UsageError(f"{path} has no {', '.join(missing)}; run `python -m benchmarks exprd` first")
    return {name: figures[name] for name in names}


def constant_scale_total() -> float:
    """Largest mean reward of a step in CartPole, whose reward is always 1, over its moving deviation."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["env=CartPole-v1", "reward=task", "reward.task.scale=ema", "total_timesteps=20000"]
        quiet = ["eval_episodes=1", "video=false", "logger=[]"]
        code, run_folder = train_in([*command, *quiet, f"run_dir={folder}/run"])
        if code != 0:
            raise RuntimeError(f"the run on CartPole ended with {code}")
        rows = read_rows(run_folder / "metrics.csv")
    return max(float(row["reward/total"]) for row in rows if row["reward/total"])


def train_halfcheetah(imitate: float) -> PPO:
    """PPO on HalfCheetah, with or without self-imitation, after 120 rollouts."""
    config = PPOConfig(**HALFCHEETAH, imitate=imitate)
    with closing(make_vec("HalfCheetah-v5", ENVS, seed=0, backend="batched")) as vector:
        return PPO(vector, config, seed=0).learn(ROLLOUTS * ENVS * config.n_steps)


def mean_deviation(model: PPO) -> float:
    """Of the policy, over its six dimensions."""
    assert model.policy.log_std is not None
    return float(model.policy.log_std.detach().exp().mean())


def imitation_gradient() -> float:
    """Largest slope of the mean's last layer, where actions of an untrained policy return 1 more than expected."""
    config = PPOConfig(**HALFCHEETAH, imitate=1.0)
    with closing(make_vec("HalfCheetah-v5", ENVS, seed=0, backend="batched")) as vector:
        model = PPO(vector, config, seed=0)
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((512, model.policy.inputs.size), np.float32)
    noise = torch.from_numpy(model.policy.actions.draw(rng, len(obs)))
    with torch.no_grad():
        outputs, values = model.policy(torch.from_numpy(obs), {})
        action = model.policy.actions.sample(outputs, model.policy.log_std, noise)
    imitation = model.extensions.imitation
    imitation.weights = np.ones(1, np.float32)
    rows = {"vector": obs, "pixels": {}, "mask": None, "action": action.numpy(), "worth": values[:, 0].numpy() + 1}
    imitation.step(model.autograd, rows, 0.0)
    slope = model.policy.pi_head.weight.grad
    assert isinstance(slope, torch.Tensor)
    return float(slope.abs().max())
