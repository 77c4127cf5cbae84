"""Our PPO: its defaults; eight Gymnasium environments in this process."""

from __future__ import annotations

from typing import Any

DISTRIBUTION = "lodestar-rl"


def train(rollouts: int, laps: Any, *, names: tuple[str, ...] = ()) -> None:
    """See `drive`."""
    import torch

    import rewards
    from agents.ppo.agent import PPO
    from envs.make import make_vec

    torch.set_num_threads(1)

    class Timed(PPO):
        def end_rollout(self) -> None:
            super().end_rollout()
            laps()

    envs = make_vec("CartPole-v1", 8, seed=0, backend="gym")
    spaces = envs.single_observation_space, envs.single_action_space
    mix: Any = rewards.make(list(names), *spaces, seed=0) if names else None
    model = Timed(envs, scorer=mix, seed=0)
    update = model.learner.update

    def counted(batch: Any, rows: slice, *args: Any) -> Any:
        laps.minibatch(rows.stop - rows.start)
        return update(batch, rows, *args)

    model.learner.update = counted
    assert (model.config.net_arch, model.config.n_epochs) == ([64, 64], 10)
    model.learn(rollouts * 8 * 256)
