"""SAC and DQN of Stable-Baselines3 and of sbx, which have one interface; the module of the class is set."""

from __future__ import annotations

import importlib
from typing import Any

DISTRIBUTION = ("stable-baselines3", "torch", "gymnasium")


def train(settings: dict[str, Any], laps: Any) -> None:
    """See `drive`."""
    import torch

    torch.set_num_threads(1)
    module, name = settings["kind"]
    base: Any = getattr(importlib.import_module(module), name)
    frames, starts = settings["frames"], settings["starts"]

    class Timed(base):
        def train(self, gradient_steps: int, batch_size: int) -> None:
            before = self._n_updates
            super().train(gradient_steps, batch_size)
            laps.minibatch(batch_size, self._n_updates - before)
            if (self.num_timesteps - starts + 1) % frames == 0:
                laps()

    model = Timed(
        "MlpPolicy",
        settings["task"],
        policy_kwargs={"net_arch": settings["net"]},
        learning_rate=settings["learning_rate"],
        batch_size=settings["minibatch"],
        train_freq=1,
        gradient_steps=settings["updates"] // frames,
        learning_starts=starts - 1,  # theirs begins one step later
        buffer_size=200_000,
        device="cpu",
        seed=0,
    )
    laps.begin()
    model.learn(10**9)
