"""Which network PPO learns with, and what moves its weights."""

from typing import TYPE_CHECKING, Any

import torch

from agents.networks.actor_critic import Actions, ActorCritic, Glyphs, Inputs
from agents.ppo.config import PPOConfig
from agents.ppo.device import on_device
from agents.ppo.extensions import extension_classes
from agents.ppo.numpy_update import CompiledUpdate
from agents.ppo.seams import Learner
from agents.ppo.trees import TreePolicy, TreesUpdate
from agents.ppo.update import TorchUpdate
from lodestar.numerics.descent import Flat

if TYPE_CHECKING:
    from agents.ppo.agent import PPO


def make_policy(agent: "PPO") -> ActorCritic:
    """Policy and values of the streams, with weights drawn from the seed."""
    config = agent.config
    streams = len(agent.streams)
    inputs = Inputs(agent.observation_space)
    actions = Actions(agent.action_space)
    config.refuse_if(
        config.noise_correlation and not actions.gaussian,
        "agent.noise_correlation={noise_correlation} is for actions that are numbers; leave it out for choices",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(agent.seed)
        if config.net == "trees":
            return TreePolicy(inputs, actions, streams, config.tree_depth)
        trunk = None
        if config.net == "glyphs":
            trunk = Glyphs(agent.observation_space)
        return ActorCritic(
            inputs,
            actions,
            list(config.net_arch),
            streams,
            gru=config.gru,
            normalize_obs=config.normalize_obs,
            trunk=trunk,
            zero_last=config.zero_last,
            log_std=config.log_std,
            activation=config.activation,
            is_orthogonal=config.orthogonal,
        )


def make_learner(network: ActorCritic, config: PPOConfig, envs: Any) -> Learner:
    """What acts and learns with this network, in these environments."""
    flat = Flat.of_parameters(network.ordered())
    if isinstance(network, TreePolicy):
        return TreesUpdate(network, flat, config)
    for _, kind in extension_classes("learner", config, {}):
        return kind(network, flat, config)
    on_host = flat.value.device.type == "cpu" and not on_device(envs)
    if network.is_mlp and on_host and config.path != "eager":
        return CompiledUpdate(network, flat, config)
    return TorchUpdate(network, flat, config)
