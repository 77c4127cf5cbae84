"""Stable-Baselines3's PPO in JAX, its defaults but for the length of a rollout; vectors are Stable-Baselines3's."""

from __future__ import annotations

from typing import Any

DISTRIBUTION = "sbx-rl"


def train(rollouts: int, laps: Any) -> None:
    """See `drive`."""
    import torch
    from sbx import PPO
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)

    class Timed(PPO):
        def _one_update(self, **kwargs: Any) -> Any:
            laps.minibatch(len(kwargs["observations"]))
            return PPO._one_update(**kwargs)

        def train(self) -> None:
            super().train()
            laps()

    model = Timed("MlpPolicy", make_vec_env("CartPole-v1", 8, seed=0), n_steps=256, seed=0)
    assert (model.batch_size, model.n_epochs) == (64, 10)
    model.learn(rollouts * 8 * 256)
