"""tianshou's PPO, its defaults but for network, rollout and minibatches."""

from __future__ import annotations

from typing import Any

DISTRIBUTION = ("tianshou", "torch", "gymnasium")


def train(settings: dict[str, Any], laps: Any) -> None:
    """See `drive`."""
    import gymnasium
    import torch
    from tianshou.algorithm import PPO
    from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.trainer import OnPolicyTrainerParams
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

    torch.set_num_threads(1)
    torch.manual_seed(0)

    class Timed(PPO):
        def update(self, *args: Any, **kwargs: Any) -> Any:
            result = super().update(*args, **kwargs)
            laps()
            return result

    def net() -> Any:
        return Net(state_shape=4, hidden_sizes=[64, 64], activation=torch.nn.Tanh)

    space = gymnasium.make(settings["task"]).action_space
    actor = DiscreteActor(preprocess_net=net(), action_shape=2, softmax_output=False)
    policy = ProbabilisticActorPolicy(
        actor=actor,
        dist_fn=lambda logits: torch.distributions.Categorical(logits=logits),
        action_space=space,
        action_scaling=False,
        action_bound_method=None,
    )
    critic = DiscreteCritic(preprocess_net=net())
    laps.watch(critic.last)
    algorithm = Timed(policy=policy, critic=critic, optim=AdamOptimizerFactory(lr=3e-4), max_grad_norm=0.5)
    envs = DummyVectorEnv([lambda: gymnasium.make(settings["task"]) for _ in range(settings["envs"])])
    params = OnPolicyTrainerParams(
        training_collector=Collector(algorithm, envs, VectorReplayBuffer(settings["frames"], settings["envs"])),
        max_epochs=10**5,
        epoch_num_steps=settings["frames"] * 10,
        collection_step_num_env_steps=settings["frames"],
        batch_size=settings["minibatch"],
        update_step_num_repetitions=10,
        verbose=False,
        show_progress=False,
    )
    laps.begin()
    algorithm.run_training(params)
