"""PPO begins with the policy of another agent: the actor of IQL, a clone, or whatever has `policy_layers`.

Its values start untrained: `agent.actor_from=STEPS` lets them learn first. The other's whitening of observations is
folded into the first layer, or becomes PPO's own with `agent.normalize_obs=true`, as if it had seen as many.
"""

from typing import TYPE_CHECKING

import numpy as np
import torch

from agents.networks.policy_layers import DenseLayer, PolicyLayers

if TYPE_CHECKING:
    from agents.ppo.agent import PPO

# Enough that observations of the first rollouts hardly move the statistics that the policy was trained with.
OBSERVATIONS_SEEN = 1_000_000


@torch.no_grad()
def begin_with(agent: "PPO", source: PolicyLayers) -> list[str]:
    """Copy the actor, and return its name; a ValueError where it does not fit."""
    policy = agent.policy
    if not policy.is_mlp:
        raise ValueError("PPO begins with another agent's layers where it has no others; leave out agent.gru and net")
    source.require_squashed(False, "ppo")
    linear = [layer for layer in policy.pi if isinstance(layer, torch.nn.Linear)]
    hidden = [DenseLayer(layer.weight.T, layer.bias) for layer in linear]
    source.copy_hidden(hidden, agent.config.activation)
    head = DenseLayer(policy.pi_head.weight.T, policy.pi_head.bias)
    head.copy(source.layers[-1])
    if policy.actions.gaussian:
        # The other's actions are in [-1, 1], and PPO's in the environment's units.
        half_range = torch.as_tensor(policy.actions.high - policy.actions.low) / 2
        middle = torch.as_tensor(policy.actions.high + policy.actions.low) / 2
        head.weight.mul_(half_range)
        head.bias.mul_(half_range).add_(middle)
        if source.log_std is not None:
            policy.log_std.copy_(source.log_std + half_range.log())
    _take_whitening(agent, hidden[0], source)
    if agent.learnt is not policy:
        agent.learnt.load_state_dict(policy.state_dict())
    return ["actor"]


def _take_whitening(agent: "PPO", first: DenseLayer, source: PolicyLayers) -> None:
    if agent.config.normalize_obs:
        statistics = agent.obs_statistics
        statistics.mean = np.asarray(source.mean, np.float64)
        statistics.var = np.asarray(source.std, np.float64) ** 2
        statistics.count = OBSERVATIONS_SEEN
        for network in (agent.policy, agent.learnt):
            network.obs_mean.copy_(source.mean)
            network.obs_scale.copy_(1 / source.std)
        return
    first.weight.div_(source.std[:, None])
    first.bias.sub_(source.mean @ first.weight)
