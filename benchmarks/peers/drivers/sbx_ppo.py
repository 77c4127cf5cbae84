"""Stable-Baselines3's PPO in JAX, its defaults but for the length of a rollout; vectors are Stable-Baselines3's."""

from __future__ import annotations

from typing import Any

DISTRIBUTION = ("sbx-rl", "jax", "gymnasium")


def train(settings: dict[str, Any], laps: Any) -> None:
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

    n = settings["envs"]
    envs = make_vec_env(settings["task"], n, seed=0)
    steps = settings["frames"] // n
    model = Timed("MlpPolicy", envs, n_steps=steps, batch_size=settings["minibatch"], seed=0)
    assert model.n_epochs == 10
    laps.begin()
    model.learn(10**9)
