"""Our PPO; its defaults, but for what is set."""

from __future__ import annotations

from typing import Any

DISTRIBUTION = ("lodestar-rl", "numpy", "numba", "gymnasium")


def train(settings: dict[str, Any], laps: Any) -> None:
    """See `drive`."""
    import torch

    import rewards
    from agents.ppo.agent import PPO, PPOConfig
    from envs.make import make_vec

    torch.set_num_threads(1)

    class Timed(PPO):
        counted = 0

        def end_rollout(self) -> None:
            super().end_rollout()
            # Compiled epochs call nothing of ours between minibatches: Adam counts its steps itself.
            laps.minibatch(settings["minibatch"], int(self.learner.flat.steps) - self.counted)
            self.counted = int(self.learner.flat.steps)
            laps()

    n = settings["envs"]
    envs = make_vec(settings["task"], n, seed=0, backend=settings["backend"])
    spaces = envs.single_observation_space, envs.single_action_space
    names = settings.get("rewards")
    mix: Any = None
    if names:
        paths = {"path": "numba" if settings["path"] == "numba" else "torch"}
        learned = {name: hasattr(rewards.get(name).Config(), "path") for name in names}
        mix = rewards.make({name: paths if learned[name] else None for name in names}, *spaces, seed=0)
    config = PPOConfig(n_steps=settings["frames"] // n, batch_size=settings["minibatch"], path=settings["path"])
    model = Timed(envs, config, scorer=mix, seed=0)
    assert (model.config.net_arch, model.config.n_epochs) == ([64, 64], 10)
    laps.begin()
    model.learn(10**9)
