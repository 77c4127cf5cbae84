"""rllte's PPO: its defaults but for the network, the rollout, and the minibatches; eight environments in this process.

The model that it saves after its first update is left out.
"""

from __future__ import annotations

from typing import Any

DISTRIBUTION = "rllte-core"


def train(rollouts: int, laps: Any, *, reward: bool = False) -> None:
    """See `drive`."""
    import torch
    from rllte.agent import PPO
    from rllte.env import make_rllte_env
    from rllte.xplore.reward import RND

    torch.set_num_threads(1)

    class Timed(PPO):
        def freeze(self, **kwargs: Any) -> None:
            super().freeze(**kwargs)
            laps.watch(self.policy.critic.critic[0])

        def update(self) -> None:
            super().update()
            laps()

        def save(self) -> None:
            pass

    envs = make_rllte_env("CartPole-v1", num_envs=8, seed=0, asynchronous=False)
    agent = Timed(envs, device="cpu", seed=0, num_steps=256, batch_size=64, n_epochs=10, hidden_dim=64)
    if reward:
        agent.set(reward=RND(envs, device="cpu"))
    agent.train(rollouts * 8 * 256)
