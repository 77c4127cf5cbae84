"""Our SAC and DQN: agent=dyna with its preset `sac`, with the sizes that are set."""

from __future__ import annotations

from typing import Any

DISTRIBUTION = ("lodestar-rl", "torch", "gymnasium")


def train(settings: dict[str, Any], laps: Any) -> None:
    """See `drive`."""
    import torch

    from agents.dyna.agent import Dyna
    from agents.dyna.config import DynaConfig
    from envs.make import make_vec

    torch.set_num_threads(1)
    frames, starts = settings["frames"], settings["starts"]

    class Timed(Dyna):
        def _learn_from_replay(self) -> None:
            before = self._n_updates
            super()._learn_from_replay()
            laps.minibatch(self.config.batch_size, self._n_updates - before)
            if (self.num_timesteps - starts + 1) % frames == 0:
                laps()

    config = DynaConfig(
        preset="sac",
        net_arch=settings["net"],
        critics=settings["critics"],
        path=settings["path"],
        learning_rate=settings["learning_rate"],
        batch_size=settings["minibatch"],
        updates_per_step=settings["updates"] // frames,
        learning_starts=starts,
    )
    agent = Timed.build(config, make_vec(settings["task"], 1, seed=0, backend="gym"), seed=0, device="cpu")
    laps.begin()
    agent.learn(10**9, log_interval=None)
