"""Sample Factory's PPO in its serial mode: everything in this process, one rollout, one update, in turn.

A minibatch must hold whole trajectories here: an environment collects four of 64 steps for an update, not one of 256.
CartPole, eight environments and minibatches of 64 alone. Its defaults but for network, rollout and minibatches; no
running normalisation of observations and returns, which it has switched on and the others have not.
"""

from __future__ import annotations

from typing import Any

DISTRIBUTION = ("sample-factory", "torch", "gymnasium")
OPTIONS = """
--algo=APPO --env=CartPole-v1 --experiment=speed --train_dir=. --device=cpu --seed=0 --serial_mode=True
--async_rl=False --num_workers=1 --num_envs_per_worker=8 --worker_num_splits=1 --rollout=64 --batch_size=64
--num_batches_per_epoch=32 --num_epochs=10 --shuffle_minibatches=True --use_rnn=False --nonlinearity=tanh
--actor_critic_share_weights=False --normalize_input=False --normalize_returns=False --encoder_mlp_layers 64 64
"""


def make(name: str, *_: Any, **__: Any) -> Any:
    """An environment; it is asked for its spaces in a process of its own, which must find this function."""
    import gymnasium

    return gymnasium.make(name)


def train(settings: dict[str, Any], laps: Any) -> None:
    """See `drive`."""
    import torch
    from sample_factory.algo.learning.learner import Learner
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import run_rl

    init, update = Learner.init, Learner.train

    def watched(self: Any) -> Any:
        torch.set_num_threads(1)
        result = init(self)
        laps.watch(self.actor_critic.critic_linear)
        return result

    def timed(self: Any, batch: Any) -> Any:
        result = update(self, batch)
        laps()
        return result

    Learner.init, Learner.train = watched, timed
    register_env("CartPole-v1", make)
    options = [*OPTIONS.split(), f"--train_for_env_steps={10**9}"]
    laps.begin()
    parser, _ = parse_sf_args(argv=options)
    run_rl(parse_full_cfg(parser, options))
