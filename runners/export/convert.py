"""Any agent's deterministic policy as a `runners.export.policy.Policy`: weights are copied, nothing is trained.

An agent whose action depends on more than the observation (the state of an LSTM or a world model, a planner's
look-ahead) has no such form: `NoForm` explains why.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from agents.networks.actor_critic import CLIP, Inputs
from runners.export.policy import (
    Affine,
    Cells,
    Clamp,
    Decision,
    Expectation,
    Linears,
    Mean,
    Part,
    Policy,
    Split,
    Standard,
    Symexp,
    Turned,
    described,
    sequence,
)

if TYPE_CHECKING:
    from agents.dyna.agent import Dyna
    from agents.iql import IQL
    from agents.ppo.agent import PPO

ACTIVATIONS = {"relu": nn.ReLU, "silu": nn.SiLU, "mish": nn.Mish, "elu": nn.ELU, "tanh": nn.Tanh}


class NoForm(ValueError):
    """The agent's policy is no function of the observation alone; the sentence says what it is."""


def convert(name: str, model: Any, observation_space: spaces.Space) -> Policy:
    """The deterministic policy of an agent.

    Args:
        name: of the agent, as on the command line; "iql" for a policy of `runners.offline`.
        model: the agent.
        observation_space: of the environment as the agent is shown it, images as the environment gives them.

    Raises:
        NoForm: if there is no such policy.
    """
    if name in ("recurrent_ppo", "world_model", "sqirl"):
        what = {"recurrent_ppo": "an LSTM's memory", "world_model": "a world model's memory", "sqirl": "looking ahead"}
        raise NoForm(f"agent={name} acts by {what[name]}, not by the observation alone")
    with torch.no_grad():
        if name == "ppo":
            return _ppo(model)
        if name == "dyna":
            return _dyna(model)
        if name == "iql":
            return _iql(model)
        return _sb3(name, model, observation_space)


# -------------------------------------------------------------------------------------------------- our own agents


def _ppo(model: PPO) -> Policy:
    net, inputs = model.policy, model.policy.inputs
    if net.gru is not None:
        raise NoForm("agent=ppo with agent.gru acts by a GRU's memory, not by the observation alone")
    parts, begin = [], 0
    for key, (_, _, length) in inputs.flat.items():
        layers: list[nn.Module] = []
        if net.normalize_obs:
            layers = _normalised(net.obs_mean[begin : begin + length], net.obs_scale[begin : begin + length], CLIP)
        if net.trunk is None:
            parts.append(_flat_part(inputs, key, layers))
        begin += length
    join: list[nn.Module] = []
    if net.trunk is not None:
        parts, join = _glyph_parts(net), list(net.trunk.join)
    parts += [Part(key or "obs", "image", _chain(net.convolutions[f"image_{key}"])) for key in inputs.images]
    decision = _decision(net.actions)
    if join and len(parts) > 1 and inputs.images:
        raise NoForm("agent.net=glyphs beside images has no exported form")
    return Policy(_inputs(model.observation_space), parts, _chain(*join, *net.pi, net.pi_head), decision, inputs.bare)


def _glyph_parts(net: Any) -> list[Part]:
    """The trunk's parts, in the order in which it joins them; the observation is one Box."""
    trunk, parts = net.trunk, []
    order = ["cells", *trunk.others]
    for name in order:
        place = (trunk.parts[name].start, trunk.parts[name].stop)
        layers: list[nn.Module] = []
        if net.normalize_obs:
            layers = _normalised(net.obs_mean[slice(*place)], net.obs_scale[slice(*place)], CLIP)
        if name == "cells":
            kinds = (place[1] - place[0]) // trunk.side**2
            layers += [Cells(trunk.side, kinds), *trunk.cells]
        else:
            layers += trunk.others[name]
        parts.append(Part("obs", "numbers", _chain(*layers), place=place))
    return parts


def _decision(actions: Any) -> Decision:
    """What the outputs of `agents.networks.actor_critic.Actions` mean."""
    dtype = np.dtype(actions.dtype).name
    if not actions.gaussian:
        starts = np.broadcast_to(np.asarray(actions.start, int), (len(actions.sizes),))
        return Decision("choose", actions.shape, dtype, tuple(actions.sizes), tuple(map(int, starts)))
    return _bounded("clip", actions.space)


def _dyna(model: Dyna) -> Policy:
    if model.config.planner != "none":
        raise NoForm(f"agent=dyna with agent.planner={model.config.planner} acts by looking ahead in its model")
    encoding, learner = model.encoding, model.learner
    whitening = _normalised(learner.mean, learner.scale, CLIP)
    parts, layers = _own_parts(encoding, whitening)
    if encoding.discrete:
        layers += [*_stacked(learner.critic, learner.config.activation), *_values(learner), Mean(0)]
        return Policy(_inputs(encoding.observation_space), parts, _chain(*layers), _choice(encoding), encoding.bare)
    layers += [*_stacked(learner.actor, learner.config.activation, outputs=encoding.action_size), Mean(0), nn.Tanh()]
    decision = _bounded("rescale", encoding.action_space)
    return Policy(_inputs(encoding.observation_space), parts, _chain(*layers), decision, encoding.bare)


def _iql(model: IQL) -> Policy:
    net = model.net
    parts, layers = _own_parts(model.encoding, _normalised(net.mean, 1 / net.std, CLIP))
    rows = [(weight[-1], bias[-1, 0]) for weight, bias in net.layers()]
    rows[0] = (rows[0][0][: model.encoding.size], rows[0][1])  # what follows is an action, zero for the policy
    for number, (weight, bias) in enumerate(rows):
        layers += [_linear(weight, bias), *([nn.ReLU()] if number < len(rows) - 1 else [])]
    if model.discrete:
        decision = _choice(model.encoding)
    else:
        layers.append(nn.Tanh())
        decision = _bounded("rescale", model.action_space)
    return Policy(_inputs(model.observation_space), parts, _chain(*layers), decision, model.encoding.bare)


def _own_parts(inputs: Inputs, whitening: list[nn.Module]) -> tuple[list[Part], list[nn.Module]]:
    """Every entry as it is; what all of them go through first."""
    return [_flat_part(inputs, key, []) for key in inputs.flat], list(whitening)


def _flat_part(inputs: Inputs, key: str, layers: list[nn.Module]) -> Part:
    kind, sizes, _ = inputs.flat[key]
    if kind == "numbers":
        return Part(key or "obs", kind, _chain(*layers))
    starts = np.broadcast_to(inputs.starts[key], (len(sizes),))
    return Part(key or "obs", kind, _chain(*layers), sizes=tuple(map(int, sizes)), starts=tuple(map(int, starts)))


def _stacked(net: Any, activation: str, outputs: int | None = None) -> list[nn.Module]:
    """The layers of an `agents.networks.stacked.Stacked`; of the last one the first `outputs` numbers only."""
    stack = iter(net.weights())
    layers: list[nn.Module] = []
    depth = len(net.hidden)
    for number in range(depth + 1):
        if net.renorms is not None:
            renorm = net.renorms[number]
            layers.append(_affine(renorm.mean, torch.rsqrt(renorm.var + 1e-5)))
        weight, bias = next(stack), next(stack)
        if number == depth and outputs is not None:
            weight, bias = weight[..., :outputs], bias[..., :outputs]
        linear = Linears(*weight.shape)
        linear.weight.copy_(weight)
        linear.bias.copy_(bias)
        layers.append(linear)
        if number == depth:
            break
        if net.scaled[number]:
            gain, shift = next(stack), next(stack)
            layers += [Standard(), _affine(torch.zeros_like(gain), gain, shift)]
        layers.append(ACTIVATIONS[activation]())
    return layers


def _values(learner: Any) -> list[nn.Module]:
    """What turns the critics' outputs (K, B, values * head) into values (K, B, values)."""
    head = learner.head
    if head.outputs == 1:
        return []
    expectation = Expectation(head.outputs)
    expectation.centres.copy_(head.centres if head.support == "symlog" else head.centres * head.scale)
    return [Split(learner.values, head.outputs), expectation, *([Symexp()] if head.support == "symlog" else [])]


# ------------------------------------------------------------------------------------------------ Stable-Baselines3


def _sb3(name: str, model: Any, space: spaces.Space) -> Policy:
    policy: Any = model.policy
    if name in ("sb3_ppo", "a2c"):
        extractor, layers = policy.pi_features_extractor, [*policy.mlp_extractor.policy_net, policy.action_net]
        decision = _sb3_decision(model.action_space)
    elif name in ("dqn", "qrdqn"):
        net = policy.q_net if name == "dqn" else policy.quantile_net
        extractor, layers = net.features_extractor, list(net.q_net if name == "dqn" else net.quantile_net)
        if name == "qrdqn":
            layers += [Split(net.n_quantiles, int(model.action_space.n)), Mean(-2)]
        decision = _sb3_decision(model.action_space)
    else:
        actor = policy.actor
        extractor = actor.features_extractor
        layers = list(actor.mu) if name == "td3" else [*actor.latent_pi, actor.mu, nn.Tanh()]
        decision = _bounded("rescale", model.action_space)
    parts = _sb3_parts(extractor, model.observation_space, space)
    return Policy(_inputs(space), parts, _chain(*layers), decision, not isinstance(space, spaces.Dict))


def _sb3_parts(extractor: Any, seen: Any, given: Any) -> list[Part]:
    """What a features extractor reads, entry by entry in its order; `seen` has images' channels first."""
    if not isinstance(seen, spaces.Dict):
        return [_sb3_part("obs", extractor, seen, given)]
    return [_sb3_part(key, layer, seen[key], given[key]) for key, layer in extractor.extractors.items()]


def _sb3_part(key: str, layer: Any, seen: Any, given: Any) -> Part:
    from stable_baselines3.common.preprocessing import is_image_space

    if isinstance(seen, spaces.Discrete | spaces.MultiDiscrete):
        sizes = np.atleast_1d(seen.n if isinstance(seen, spaces.Discrete) else seen.nvec.ravel())
        return Part(key, "one-hot", _chain(), sizes=tuple(map(int, sizes)), starts=(0,) * len(sizes))
    if not (isinstance(seen, spaces.Box) and is_image_space(seen)):
        return Part(key, "numbers", _chain())
    turned = [Turned()] if seen.shape != given.shape else []
    convolved = [*layer.cnn, *layer.linear] if hasattr(layer, "cnn") else [nn.Flatten()]
    return Part(key, "image", _chain(*turned, *convolved))


def _sb3_decision(space: Any) -> Decision:
    dtype, shape = np.dtype(space.dtype).name, tuple(space.shape or ())
    if isinstance(space, spaces.Box):
        return _bounded("clip", space)
    if isinstance(space, spaces.MultiBinary):
        return Decision("threshold", shape, dtype)
    sizes = np.atleast_1d(space.n if isinstance(space, spaces.Discrete) else space.nvec.ravel())
    starts = np.broadcast_to(np.asarray(getattr(space, "start", 0)).ravel(), (len(sizes),))
    return Decision("choose", shape, dtype, tuple(map(int, sizes)), tuple(map(int, starts)))


# ------------------------------------------------------------------------------------------------------- what both use


def _inputs(space: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    parts = space.spaces if isinstance(space, spaces.Dict) else {"obs": space}
    return {key: (tuple(part.shape or ()), np.dtype(part.dtype).name) for key, part in parts.items()}


def _choice(encoding: Any) -> Decision:
    space = encoding.action_space
    return Decision("choose", (), np.dtype(space.dtype).name, (int(space.n),), (int(space.start),))


def _bounded(kind: str, space: Any) -> Decision:
    decision: Any = Decision(kind, tuple(space.shape), np.dtype(space.dtype).name)
    decision.low.copy_(torch.as_tensor(space.low.ravel()))
    decision.high.copy_(torch.as_tensor(space.high.ravel()))
    return decision


def _chain(*layers: nn.Module) -> nn.Sequential:
    """Copies of the layers, one after the other; sequences among them opened, normalisations as they are in use."""
    flat = itertools.chain.from_iterable(layer if isinstance(layer, nn.Sequential) else [layer] for layer in layers)
    return nn.Sequential(*(_renorm(layer) if hasattr(layer, "ra_mean") else _copied(layer) for layer in flat))


def _copied(layer: nn.Module) -> nn.Module:
    """Made anew: a copy would take along the agent's gradients, which are views of one long vector."""
    made = sequence([described(layer)])[0]
    made.load_state_dict(layer.state_dict())
    return made


def _renorm(layer: Any) -> Affine:
    """sb3-contrib's BatchRenorm as it is when it acts."""
    scale, bias = (layer.scale, layer.bias) if layer.affine else (torch.ones(()), torch.zeros(()))
    return _affine(layer.ra_mean, scale / torch.sqrt(layer.ra_var + layer.eps), bias)


def _normalised(mean: Tensor, scale: Tensor, clip: float) -> list[nn.Module]:
    return [_affine(mean, scale), Clamp(-clip, clip)]


def _affine(shift: Tensor, scale: Tensor, bias: Tensor | None = None) -> Affine:
    layer: Any = Affine(*shift.shape)
    layer.shift.copy_(shift)
    layer.scale.copy_(scale)
    if bias is not None:
        layer.bias.copy_(bias)
    return layer


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """From a weight (in, out)."""
    layer = nn.Linear(*weight.shape)
    layer.weight.copy_(weight.T)
    layer.bias.copy_(bias)
    return layer
