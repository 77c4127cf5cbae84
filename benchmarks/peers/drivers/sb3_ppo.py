"""Stable-Baselines3's PPO, its defaults but for the rollout and the minibatches; its own vectors, in this process.

`input` is what it reads of MiniGrid: our one-hot numbers, or the 147 of the image as they are.
"""

from __future__ import annotations

from typing import Any

DISTRIBUTION = ("stable-baselines3", "torch", "gymnasium")


def train(settings: dict[str, Any], laps: Any) -> None:
    """See `drive`."""
    import gymnasium
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)

    def make() -> gymnasium.Env:
        if settings.get("input") == "onehot":
            from envs.make import make as ours

            return ours(settings["task"])
        if settings.get("input") == "raw":
            from minigrid.wrappers import ImgObsWrapper

            return gymnasium.wrappers.FlattenObservation(ImgObsWrapper(gymnasium.make(settings["task"])))
        return gymnasium.make(settings["task"])

    class Timed(PPO):
        def train(self) -> None:
            super().train()
            laps()

    n = settings["envs"]
    model = Timed(
        "MlpPolicy",
        make_vec_env(make, n, seed=0),
        n_steps=settings["frames"] // n,
        batch_size=settings["minibatch"],
        device="cpu",
        seed=0,
    )
    assert model.n_epochs == 10
    laps.watch(model.policy.value_net)
    laps.begin()
    model.learn(10**9)
