"""GAIL of the library `imitation`, with the settings of its quick start, but rounds as short as ours.

DEMOS is an .npz of obs, action, next_obs and ended; one line of JSON: the version, and the mean return of 20 episodes.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from typing import Any

import numpy as np


def main(demos: str, steps: int, seed: int) -> None:
    """Train and evaluate."""
    import torch
    from imitation.algorithms.adversarial.gail import GAIL
    from imitation.data.types import Transitions
    from imitation.rewards.reward_nets import BasicRewardNet
    from imitation.util.networks import RunningNorm
    from imitation.util.util import make_vec_env
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy

    import envs  # noqa: F401 (registers our environments)

    torch.set_num_threads(1)
    data = np.load(demos)
    infos = np.array([{}] * len(data["obs"]))
    shown = Transitions(data["obs"], data["action"], infos, data["next_obs"], data["ended"])
    venv = make_vec_env("lodestar/CartPoleUpright-v0", rng=np.random.default_rng(seed), n_envs=8)
    settings: Any = {
        "n_steps": 256,
        "batch_size": 64,
        "ent_coef": 0.0,
        "learning_rate": 4e-4,
        "gamma": 0.95,
        "n_epochs": 5,
    }
    learner = PPO("MlpPolicy", venv, seed=seed, device="cpu", **settings)
    net = BasicRewardNet(venv.observation_space, venv.action_space, normalize_input_layer=RunningNorm)
    sizes = {"demo_batch_size": 1000, "gen_replay_buffer_capacity": 2048, "n_disc_updates_per_round": 8}
    trainer = GAIL(
        demonstrations=shown, venv=venv, gen_algo=learner, reward_net=net, allow_variable_horizon=True, **sizes
    )
    trainer.train(steps)
    mean: Any = evaluate_policy(learner, venv, 20)[0]
    print(json.dumps({"version": version("imitation"), "return": float(mean)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
