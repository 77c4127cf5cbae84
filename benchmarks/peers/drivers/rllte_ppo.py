"""rllte's PPO: its defaults but for the network, the rollout, and the minibatches; eight environments in this process.

The model that it saves after its first update is left out; its one other reward is RND, with its defaults.
"""

from __future__ import annotations

from typing import Any

DISTRIBUTION = ("rllte-core", "torch", "gymnasium")


def train(settings: dict[str, Any], laps: Any) -> None:
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

    n = settings["envs"]
    envs = make_rllte_env(settings["task"], num_envs=n, seed=0, asynchronous=False)
    sizes = {"num_steps": settings["frames"] // n, "batch_size": settings["minibatch"], "n_epochs": 10}
    agent = Timed(envs, device="cpu", seed=0, hidden_dim=64, **sizes)
    if settings.get("rewards"):
        agent.set(reward=RND(envs, device="cpu"))
    laps.begin()
    agent.train(10**9)
