"""TorchRL's parts in the loop of its tutorial; `compile`: its loss by torch.compile."""

from __future__ import annotations

from typing import Any

DISTRIBUTION = ("torchrl", "torch", "gymnasium")


def train(settings: dict[str, Any], laps: Any) -> None:
    """See `drive`."""
    import torch
    from tensordict.nn import TensorDictModule
    from torch import nn
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
    from torchrl.envs import GymEnv, SerialEnv
    from torchrl.modules import OneHotCategorical, ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    torch.set_num_threads(1)
    torch.manual_seed(0)

    def net(outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))

    envs = SerialEnv(settings["envs"], lambda: GymEnv(settings["task"]))
    policy = TensorDictModule(net(2), in_keys=["observation"], out_keys=["logits"])
    actor = ProbabilisticActor(
        policy, spec=envs.action_spec, in_keys=["logits"], distribution_class=OneHotCategorical, return_log_prob=True
    )
    critic = ValueOperator(net(1), in_keys=["observation"])
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    loss_module = ClipPPOLoss(actor, critic, clip_epsilon=0.2, entropy_coeff=0.0, loss_critic_type="l2")
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=3e-4)
    frames, size = settings["frames"], settings["minibatch"]
    buffer = ReplayBuffer(storage=LazyTensorStorage(frames), sampler=SamplerWithoutReplacement(), batch_size=size)
    collector = Collector(envs, actor, frames_per_batch=frames, total_frames=-1)
    losses_of = torch.compile(loss_module) if settings["compile"] else loss_module
    laps.begin()
    for rollout in collector:
        with torch.no_grad():
            advantage(rollout)
        buffer.empty()
        buffer.extend(rollout.reshape(-1))
        for _ in range(10):
            for minibatch in buffer:
                losses = losses_of(minibatch)
                laps.minibatch(len(minibatch))
                loss = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                loss.backward()
                nn.utils.clip_grad_norm_(loss_module.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
        laps()
