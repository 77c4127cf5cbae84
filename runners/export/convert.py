"""Any agent's deterministic policy as a `runners.export.policy.Policy`: weights are copied, nothing is trained.

An agent whose action depends on more than the observation (the state of an LSTM or a world model, a planner's
look-ahead) has no such form: `NoForm` explains why.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from agents.dyna.agent import Dyna
from agents.networks.actor_critic import CLIP, Inputs, SpaceEncoding
from agents.offline.iql import IQL
from agents.ppo.agent import PPO
from agents.sb3.normalized import NormalizedObs
from envs import masks
from runners.export.policy import (
    LAYERS,
    Affine,
    Decision,
    Expectation,
    Function,
    Linears,
    Part,
    Policy,
    describe_layer,
    make_layers,
)

Layer = TypeVar("Layer", bound=nn.Module)
Modules = list[nn.Module]
# Agents that act by more than the observation, and by what.
MEMORIES = {
    "recurrent_ppo": "an LSTM's memory",
    "world_model": "a world model's memory",
    "sqirl": "looking ahead",
    "cloning": "chunks of actions",
    "rcsl": "the return that is left",
    "mbrcsl": "the return that is left",
    "dt": "the return that is left",
}


class NoForm(ValueError):
    """The agent's policy is no function of the observation alone; the sentence says what it is."""


def convert(name: str, model: Any, observation_space: spaces.Space) -> Policy:
    """The deterministic policy of an agent, or `NoForm`; images with the axes that the environment gives them.

    `name` is the agent's on the command line; "iql", "cloning", "rcsl", ... for a policy of `runners.offline`.
    """
    if name == "qd":
        raise NoForm("agent=qd has no exported form")
    if name in MEMORIES:
        raise NoForm(f"agent={name} acts by {MEMORIES[name]}, not by the observation alone")
    with torch.no_grad():
        if name == "ppo":
            policy = _convert_ppo(model)
        elif name == "dyna":
            policy = _convert_dyna(model)
        elif name == "iql":
            policy = _convert_iql(model)
        else:
            policy = _convert_sb3(name, model, observation_space)
    # Only agents of ours and maskable_ppo have the attribute.
    if getattr(model, "masked", False):
        if policy.action.kind != "choose":
            raise NoForm(f"agent={name} with action masks of {model.action_space} has no exported form")
        policy.action.masked = True
    return policy


def _convert_ppo(model: PPO) -> Policy:
    net = model.policy
    inputs = net.inputs
    if net.gru is not None:
        raise NoForm("agent=ppo with agent.gru acts by a GRU's memory, not by the observation alone")
    if model.config.net == "trees":
        raise NoForm("agent.net=trees has no exported form")
    join = []
    if net.trunk is not None:
        parts = _glyph_parts(net)
        join = list(net.trunk.join)
    else:
        parts = []
        begin = 0
        for key, part in inputs.flat.items():
            whitening = _whitening(net, slice(begin, begin + part.length))
            parts.append(_flat_part(inputs, key, whitening))
            begin += part.length
    for key in inputs.images:
        convolutions = net.convolutions[f"image_{key}"]
        parts.append(Part(key or "obs", "image", _chain([convolutions])))
    if join and len(parts) > 1 and inputs.images:
        raise NoForm("agent.net=glyphs beside images has no exported form")
    actions = net.actions
    if actions.gaussian:
        decision = _bounded_decision("clip", actions.space)
    else:
        decision = _choice_decision(actions.space)
    layers = _chain([*join, *net.pi, net.pi_head])
    return Policy(_describe_inputs(model.observation_space), parts, layers, decision, inputs.bare)


def _glyph_parts(net: Any) -> list[Part]:
    """The trunk's parts, in the order in which it joins them; the observation is one Box."""
    trunk = net.trunk
    parts = []
    for name in ("cells", *trunk.others):
        columns = trunk.parts[name]
        layers = _whitening(net, columns)
        if name == "cells":
            kinds = (columns.stop - columns.start) // trunk.side**2
            layers += [Function("cells", trunk.side, kinds), *trunk.cells]
        else:
            layers += trunk.others[name]
        parts.append(Part("obs", "numbers", _chain(layers), place=(columns.start, columns.stop)))
    return parts


def _normalise(mean: Tensor, scale: Tensor) -> Modules:
    return [_affine(mean, scale), Function("clamp", -CLIP, CLIP)]


def _whitening(net: Any, columns: slice) -> Modules:
    if not net.normalize_obs:
        return []
    return _normalise(net.obs_mean[columns], net.obs_scale[columns])


def _convert_dyna(model: Dyna) -> Policy:
    if model.config.planner != "none":
        raise NoForm(f"agent=dyna with agent.planner={model.config.planner} acts by looking ahead in its model")
    encoding = model.encoding
    learner = model.learner
    activation = learner.config.activation
    layers = _normalise(learner.mean, learner.scale)
    # The mean over the members of the ensemble of critics, or of actors, axis 0.
    if encoding.discrete:
        layers += [*_stacked_layers(learner.critic, activation), *_critic_values(learner)]
    else:
        layers += _stacked_layers(learner.actor, activation, encoding.action_size)
    return _vector_policy(encoding, [*layers, Function("mean", 0)])


def _convert_iql(model: IQL) -> Policy:
    net = model.net
    encoding = model.encoding
    layers = _normalise(net.mean, 1 / net.std)
    for number, (weights, biases) in enumerate(net.layers()):
        # The policy is the last of the networks side by side; a weight is (in, out).
        weight = weights[-1]
        if number == 0:
            # The columns behind the observation hold an action, which is zero for the policy.
            weight = weight[: encoding.size]
        else:
            layers.append(nn.ReLU())
        layers.append(_fill(nn.Linear(*weight.shape), weight=weight.T, bias=biases[-1, 0]))
    return _vector_policy(encoding, layers)


def _vector_policy(encoding: SpaceEncoding, layers: Modules) -> Policy:
    """Of layers that read a flat vector; the numbers of an action are squashed, and scaled to their range."""
    if encoding.discrete:
        decision = _choice_decision(encoding.action_space)
    else:
        layers = [*layers, nn.Tanh()]
        decision = _bounded_decision("rescale", encoding.action_space)
    parts = [_flat_part(encoding, key) for key in encoding.flat]
    return Policy(_describe_inputs(encoding.observation_space), parts, _chain(layers), decision, encoding.bare)


def _flat_part(inputs: Inputs, key: str, layers: Sequence[nn.Module] = ()) -> Part:
    part = inputs.flat[key]
    if not part.sizes:
        return Part(key or "obs", "numbers", _chain(layers))
    return Part(key or "obs", "one-hot", _chain(layers), **_groups(part.sizes, part.start))


def _stacked_layers(net: Any, activation: str, outputs: int | None = None) -> Modules:
    """The layers of an `agents.networks.stacked.Stacked`; of the last one the first `outputs` numbers only."""
    weights = iter(net.weights())
    layers: Modules = []
    last = len(net.hidden)
    for number in range(last + 1):
        if net.renorms is not None:
            renorm = net.renorms[number]
            layers.append(_affine(renorm.mean, torch.rsqrt(renorm.var + 1e-5)))
        weight = next(weights)
        bias = next(weights)
        if number == last and outputs is not None:
            weight = weight[..., :outputs]
            bias = bias[..., :outputs]
        layers.append(_fill(Linears(*weight.shape), weight=weight, bias=bias))
        if number == last:
            break
        if net.norm == "layer":
            gain = next(weights)
            shift = next(weights)
            layers += [Function("standard"), _affine(torch.zeros_like(gain), gain, bias=shift)]
        layers.append(LAYERS[activation]())
    return layers


def _critic_values(learner: Any) -> Modules:
    """What turns the critics' outputs (K, B, values * head) into values (K, B, values)."""
    head = learner.head
    if head.outputs == 1:
        return []
    means = _fill(Expectation(head.outputs), centres=head.centres)
    return [Function("split", learner.values, head.outputs), means, Function("symexp")]


def _convert_sb3(name: str, model: Any, space: Any) -> Policy:
    policy = model.policy
    decision = _sb3_decision(model.action_space)
    if name in ("sb3_ppo", "a2c", "maskable_ppo"):
        extractor = policy.pi_features_extractor
        layers = [*policy.mlp_extractor.policy_net, policy.action_net]
    elif name == "dqn":
        extractor = policy.q_net.features_extractor
        layers = list(policy.q_net.q_net)
    elif name == "qrdqn":
        net = policy.quantile_net
        extractor = net.features_extractor
        quantiles = Function("split", net.n_quantiles, int(model.action_space.n))
        layers = [*net.quantile_net, quantiles, Function("mean", -2)]
    else:
        actor = policy.actor
        extractor = actor.features_extractor
        # TD3's `mu` ends in a tanh of its own.
        layers = list(actor.mu) if name == "td3" else [*actor.latent_pi, actor.mu, nn.Tanh()]
        decision = _bounded_decision("rescale", model.action_space)
    sb3_space = model.observation_space
    bare = not isinstance(space, spaces.Dict)
    if bare:
        parts = [_sb3_part("obs", extractor, sb3_space, space)]
    else:
        parts = [_sb3_part(key, layer, sb3_space[key], space[key]) for key, layer in extractor.extractors.items()]
    return Policy(_describe_inputs(space), parts, _chain(layers), decision, bare)


def _sb3_part(key: str, layer: Any, sb3_space: Any, space: Any) -> Part:
    """What a features extractor reads of one entry; `sb3_space` has images' channels first, `space` the env's axes."""
    from stable_baselines3.common.preprocessing import is_image_space

    if isinstance(sb3_space, spaces.Discrete | spaces.MultiDiscrete):
        return Part(key, "one-hot", _chain(), **_groups(masks.sizes(sb3_space), 0))
    if isinstance(layer, NormalizedObs):
        return Part(key, "numbers", _chain(_normalise(layer.mean.float(), layer.scale.float())))
    if not (isinstance(sb3_space, spaces.Box) and is_image_space(sb3_space)):
        return Part(key, "numbers", _chain())
    layers: Modules = []
    if sb3_space.shape != space.shape:
        layers.append(Function("turned"))
    # NatureCNN has convolutions; the extractor of an agent without them flattens the image.
    if hasattr(layer, "cnn"):
        layers += [*layer.cnn, *layer.linear]
    else:
        layers.append(nn.Flatten())
    return Part(key, "image", _chain(layers))


def _sb3_decision(space: Any) -> Decision:
    if isinstance(space, spaces.Box):
        return _bounded_decision("clip", space)
    if isinstance(space, spaces.MultiBinary):
        return Decision("threshold", space.shape, np.dtype(space.dtype).name)
    return _choice_decision(space)


def _describe_inputs(space: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    """The shape and dtype of each entry of an observation."""
    entries = space.spaces if isinstance(space, spaces.Dict) else {"obs": space}
    return {key: (tuple(entry.shape or ()), np.dtype(entry.dtype).name) for key, entry in entries.items()}


def _choice_decision(space: Any) -> Decision:
    groups = _groups(masks.sizes(space), getattr(space, "start", 0))
    return Decision("choose", tuple(space.shape or ()), np.dtype(space.dtype).name, **groups)


def _groups(sizes: Any, starts: Any) -> dict[str, Any]:
    """Of one-hots or of choices: how many numbers each has, and its smallest."""
    sizes = np.ravel(sizes)
    starts = np.broadcast_to(np.ravel(starts), sizes.shape)
    return {"sizes": tuple(map(int, sizes)), "starts": tuple(map(int, starts))}


def _bounded_decision(kind: str, space: Any) -> Decision:
    decision = Decision(kind, tuple(space.shape), np.dtype(space.dtype).name)
    return _fill(decision, low=torch.as_tensor(space.low.ravel()), high=torch.as_tensor(space.high.ravel()))


def _chain(layers: Iterable[nn.Module] = ()) -> nn.Sequential:
    """Copies of the layers, one after the other; sequences among them opened, normalisations as they are in use."""
    copies: Modules = []
    for layer in layers:
        if isinstance(layer, nn.Sequential):
            copies += _chain(layer)
        elif hasattr(layer, "ra_mean"):
            copies.append(_frozen_renorm(layer))
        else:
            # Built afresh: a copy would take along the agent's gradients, which are views of one long vector.
            made = make_layers([describe_layer(layer)])
            made[0].load_state_dict(layer.state_dict())
            copies += made
    return nn.Sequential(*copies)


def _frozen_renorm(layer: Any) -> Affine:
    """sb3-contrib's BatchRenorm as it is when it acts."""
    scale = layer.scale if layer.affine else torch.ones(())
    bias = layer.bias if layer.affine else torch.zeros(())
    return _affine(layer.ra_mean, scale / torch.sqrt(layer.ra_var + layer.eps), bias=bias)


def _affine(shift: Tensor, scale: Tensor, **bias: Tensor) -> Affine:
    return _fill(Affine(*shift.shape), shift=shift, scale=scale, **bias)


def _fill(layer: Layer, **values: Tensor) -> Layer:
    """The layer, its parameters and buffers set."""
    for name, value in values.items():
        getattr(layer, name).copy_(value)
    return layer
