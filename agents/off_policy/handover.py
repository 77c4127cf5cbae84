"""Actor and critics of SAC and DQN as plain layers, and learners that begin with another agent's.

    policy_layers(learner, encoding)     see `agents.networks.policy_layers`
    begin_with(learner, source)          ["actor", "critics"], or what of it fits

Critics are taken where they have the same number, sizes, activation, normalisation and kind of value. Others start
untrained, and can destroy a trained actor before they know its values: `agent.actor_from=STEPS` lets them learn first.
"""

import torch

from agents.networks.actor_critic import SpaceEncoding
from agents.networks.policy_layers import CriticKind, PolicyLayers, layers_of
from agents.off_policy.closed_form import LOG_STD_HALF_RANGE, MIN_LOG_STD
from agents.off_policy.sac import Critics, SoftActorCritic

# A deviation at the very end of SAC's range would have an infinite raw number.
MAX_RANGE_SHARE = 0.999


def policy_layers(learner: Critics, encoding: SpaceEncoding) -> PolicyLayers:
    """What a learner's actor and critics are; a ValueError for DQN, which has no policy of its own."""
    if not isinstance(learner, SoftActorCritic):
        raise ValueError("its policy, of DQN, is the best of its values, and no other agent begins with those")
    layers = layers_of(learner.actor.weights())
    last = layers.pop()
    # Outputs are the means, then the deviations.
    size = learner.action_size
    layers.append(last.select(slice(0, size)))
    log_alpha = learner.log_alpha if learner.learned_alpha else None
    return PolicyLayers(
        encoding,
        layers,
        learner.config.activation,
        learner.mean,
        1 / learner.scale,
        squashed=True,
        deviation=last.select(slice(size, None)),
        critics=learner.critic.weights(),
        critic_kind=_kind(learner),
        log_alpha=log_alpha,
    )


@torch.no_grad()
def begin_with(learner: Critics, source: PolicyLayers) -> list[str]:
    """Copy what fits, and return its names; a ValueError where the actor does not fit, or DQN takes nothing."""
    taken = []
    if isinstance(learner, SoftActorCritic):
        _begin_actor(learner, source)
        taken.append("actor")
    shapes = [tensor.shape for tensor in learner.critic.weights()]
    source_shapes = [tensor.shape for tensor in source.critics]
    if shapes == source_shapes and _kind(learner) == source.critic_kind:
        for own, tensor in zip(learner.critic.weights(), source.critics):
            own.copy_(tensor)
        learner.target_flat.copy_(learner.critic_flat.value)
        taken.append("critics")
    elif not taken:
        raise ValueError(
            "DQN begins with critics, and the other agent has none of the same number and sizes; give agent.critics=2 "
            + source.network_settings()
        )
    learner.mean.copy_(source.mean)
    learner.scale.copy_(1 / source.std)
    # From now on other statistics are folded into the first layers.
    learner.whitened.fill_(1)
    return taken


def _begin_actor(learner: SoftActorCritic, source: PolicyLayers) -> None:
    source.require_squashed(True, "dyna")
    layers = layers_of(learner.actor.weights())
    last = layers.pop()
    source.copy_hidden(layers, learner.config.activation)
    size = learner.action_size
    last.select(slice(0, size)).copy(source.layers[-1])
    deviation = last.select(slice(size, None))
    if source.deviation is not None:
        deviation.copy(source.deviation)
    elif source.log_std is not None:
        # The same deviation in all states.
        deviation.weight.zero_()
        # The inverse of how `moments` reads outputs as logarithms of deviations.
        share = (source.log_std - MIN_LOG_STD) / LOG_STD_HALF_RANGE - 1
        deviation.bias.copy_(torch.atanh(share.clamp(-MAX_RANGE_SHARE, MAX_RANGE_SHARE)))
    if source.log_alpha is not None:
        learner.begin_with_alpha(source.log_alpha)


def _kind(learner: Critics) -> CriticKind | None:
    """None for batch normalisation, whose statistics are no part of the layers."""
    config = learner.config
    if config.norm == "batch":
        return None
    return CriticKind(config.activation, config.norm, config.head)
