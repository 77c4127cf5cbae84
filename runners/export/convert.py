"""Any agent's deterministic policy as a `runners.export.policy.Policy`: weights are copied, nothing is trained.

An agent whose action depends on more than the observation (the state of an LSTM or a world model, a planner's
look-ahead) has no such form: `NoForm` explains why.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from agents.dyna.agent import Dyna
from agents.networks.actor_critic import CLIP, Inputs
from agents.offline.iql import IQL
from agents.ppo.agent import PPO
from runners.export.policy import Affine, Decision, Expectation, Function, Linears, Part, Policy, described, sequence

Layer = TypeVar("Layer", bound=nn.Module)
ACTIVATIONS = {"relu": nn.ReLU, "silu": nn.SiLU, "mish": nn.Mish, "elu": nn.ELU, "tanh": nn.Tanh}


class NoForm(ValueError):
    """The agent's policy is no function of the observation alone; the sentence says what it is."""


def convert(name: str, model: Any, observation_space: spaces.Space) -> Policy:
    """The deterministic policy of an agent, or `NoForm`; images with the axes that the environment gives them.

    `name` is the agent's on the command line; "iql", "cloning", "rcsl", ... for a policy of `runners.offline`.
    """
    if name == "qd":
        raise NoForm("agent=qd has no exported form")
    what = {"recurrent_ppo": "an LSTM's memory", "world_model": "a world model's memory", "sqirl": "looking ahead"}
    what |= {"cloning": "chunks of actions", **dict.fromkeys(("rcsl", "mbrcsl", "dt"), "the return that is left")}
    if name in what:
        raise NoForm(f"agent={name} acts by {what[name]}, not by the observation alone")
    with torch.no_grad():
        own: dict[str, Callable[[Any], Policy]] = {"ppo": _ppo, "dyna": _dyna, "iql": _iql}
        policy = own[name](model) if name in own else _sb3(name, model, observation_space)
    if getattr(model, "masked", False):
        if policy.action.kind != "choose":
            raise NoForm(f"agent={name} with action masks of {model.action_space} has no exported form")
        policy.action.masked = True
    return policy


def _ppo(model: PPO) -> Policy:
    net, inputs = model.policy, model.policy.inputs
    if net.gru is not None:
        raise NoForm("agent=ppo with agent.gru acts by a GRU's memory, not by the observation alone")
    if model.config.net == "trees":
        raise NoForm("agent.net=trees has no exported form")
    parts, begin = [], 0
    join: list[nn.Module] = []
    if net.trunk is not None:
        parts, join = _glyph_parts(net), list(net.trunk.join)
    else:
        for key, part in inputs.flat.items():
            parts.append(_flat_part(inputs, key, _whitening(net, slice(begin, begin + part.length))))
            begin += part.length
    parts += [Part(key or "obs", "image", _chain(net.convolutions[f"image_{key}"])) for key in inputs.images]
    actions = net.actions
    space = actions.space
    decision = _bounded("clip", space) if actions.gaussian else _choice(space, actions.sizes, actions.start)
    if join and len(parts) > 1 and inputs.images:
        raise NoForm("agent.net=glyphs beside images has no exported form")
    return Policy(_inputs(model.observation_space), parts, _chain(*join, *net.pi, net.pi_head), decision, inputs.bare)


def _glyph_parts(net: Any) -> list[Part]:
    """The trunk's parts, in the order in which it joins them; the observation is one Box."""
    trunk, parts = net.trunk, []
    for name in ("cells", *trunk.others):
        place = (trunk.parts[name].start, trunk.parts[name].stop)
        layers = _whitening(net, slice(*place))
        if name == "cells":
            kinds = (place[1] - place[0]) // trunk.side**2
            layers += [Function("cells", trunk.side, kinds), *trunk.cells]
        else:
            layers += trunk.others[name]
        parts.append(Part("obs", "numbers", _chain(*layers), place=place))
    return parts


def _normalised(mean: Tensor, scale: Tensor) -> list[nn.Module]:
    return [_affine(mean, scale), Function("clamp", -CLIP, CLIP)]


def _whitening(net: Any, place: slice) -> list[nn.Module]:
    return _normalised(net.obs_mean[place], net.obs_scale[place]) if net.normalize_obs else []


def _dyna(model: Dyna) -> Policy:
    if model.config.planner != "none":
        raise NoForm(f"agent=dyna with agent.planner={model.config.planner} acts by looking ahead in its model")
    encoding, learner = model.encoding, model.learner
    parts = [_flat_part(encoding, key) for key in encoding.flat]
    layers = _normalised(learner.mean, learner.scale)
    activation, space = learner.config.activation, encoding.action_space
    if encoding.discrete:
        layers += [*_stacked(learner.critic, activation), *_values(learner), Function("mean", 0)]
        decision = _choice(space, space.n, space.start)
    else:
        layers += [*_stacked(learner.actor, activation, encoding.action_size), Function("mean", 0), nn.Tanh()]
        decision = _bounded("rescale", space)
    return Policy(_inputs(encoding.observation_space), parts, _chain(*layers), decision, encoding.bare)


def _iql(model: IQL) -> Policy:
    net = model.net
    space: Any = model.action_space
    parts = [_flat_part(model.encoding, key) for key in model.encoding.flat]
    layers = _normalised(net.mean, 1 / net.std)
    rows = [(weight[-1], bias[-1, 0]) for weight, bias in net.layers()]
    rows[0] = (rows[0][0][: model.encoding.size], rows[0][1])  # what follows is an action, zero for the policy
    for weight, bias in rows:  # a weight is (in, out)
        layers += [_filled(nn.Linear(*weight.shape), weight=weight.T, bias=bias), nn.ReLU()]
    del layers[-1]  # no activation behind the last one
    if model.discrete:
        decision = _choice(space, space.n, space.start)
    else:
        layers.append(nn.Tanh())
        decision = _bounded("rescale", space)
    return Policy(_inputs(model.observation_space), parts, _chain(*layers), decision, model.encoding.bare)


def _flat_part(inputs: Inputs, key: str, layers: Sequence[nn.Module] = ()) -> Part:
    part = inputs.flat[key]
    if not part.sizes:
        return Part(key or "obs", "numbers", _chain(*layers))
    return Part(key or "obs", "one-hot", _chain(*layers), **_groups(part.sizes, part.start))


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
        layers.append(_filled(Linears(*weight.shape), weight=weight, bias=bias))
        if number == depth:
            break
        if net.norm == "layer":
            gain, shift = next(stack), next(stack)
            layers += [Function("standard"), _affine(torch.zeros_like(gain), gain, shift)]
        layers.append(ACTIVATIONS[activation]())
    return layers


def _values(learner: Any) -> list[nn.Module]:
    """What turns the critics' outputs (K, B, values * head) into values (K, B, values)."""
    head = learner.head
    if head.outputs == 1:
        return []
    symlog = head.support == "symlog"
    expectation = _filled(Expectation(head.outputs), centres=head.centres if symlog else head.centres * head.scale)
    return [Function("split", learner.values, head.outputs), expectation, *([Function("symexp")] if symlog else [])]


def _sb3(name: str, model: Any, space: Any) -> Policy:
    policy: Any = model.policy
    if name in ("sb3_ppo", "a2c", "maskable_ppo"):
        extractor, layers = policy.pi_features_extractor, [*policy.mlp_extractor.policy_net, policy.action_net]
        decision = _sb3_decision(model.action_space)
    elif name in ("dqn", "qrdqn"):
        net = policy.q_net if name == "dqn" else policy.quantile_net
        extractor, layers = net.features_extractor, list(net.q_net if name == "dqn" else net.quantile_net)
        if name == "qrdqn":
            layers += [Function("split", net.n_quantiles, int(model.action_space.n)), Function("mean", -2)]
        decision = _sb3_decision(model.action_space)
    else:
        actor = policy.actor
        extractor = actor.features_extractor
        layers = list(actor.mu) if name == "td3" else [*actor.latent_pi, actor.mu, nn.Tanh()]
        decision = _bounded("rescale", model.action_space)
    seen, bare = model.observation_space, not isinstance(space, spaces.Dict)
    if bare:
        parts = [_sb3_part("obs", extractor, seen, space)]
    else:
        parts = [_sb3_part(key, layer, seen[key], space[key]) for key, layer in extractor.extractors.items()]
    return Policy(_inputs(space), parts, _chain(*layers), decision, bare)


def _sb3_part(key: str, layer: Any, seen: Any, given: Any) -> Part:
    """What a features extractor reads of one entry; `seen` has images' channels first."""
    from stable_baselines3.common.preprocessing import is_image_space

    if isinstance(seen, spaces.Discrete | spaces.MultiDiscrete):
        return Part(key, "one-hot", _chain(), **_groups(seen.n if isinstance(seen, spaces.Discrete) else seen.nvec, 0))
    if not (isinstance(seen, spaces.Box) and is_image_space(seen)):
        return Part(key, "numbers", _chain())
    turned = [Function("turned")] if seen.shape != given.shape else []
    convolved = [*layer.cnn, *layer.linear] if hasattr(layer, "cnn") else [nn.Flatten()]
    return Part(key, "image", _chain(*turned, *convolved))


def _sb3_decision(space: Any) -> Decision:
    if isinstance(space, spaces.Box):
        return _bounded("clip", space)
    if isinstance(space, spaces.MultiBinary):
        return Decision("threshold", space.shape, np.dtype(space.dtype).name)
    return _choice(space, space.n if isinstance(space, spaces.Discrete) else space.nvec, space.start)


def _inputs(space: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    parts = space.spaces if isinstance(space, spaces.Dict) else {"obs": space}
    return {key: (tuple(part.shape or ()), np.dtype(part.dtype).name) for key, part in parts.items()}


def _choice(space: Any, sizes: Any, starts: Any) -> Decision:
    return Decision("choose", tuple(space.shape or ()), np.dtype(space.dtype).name, **_groups(sizes, starts))


def _groups(sizes: Any, starts: Any) -> dict[str, Any]:
    """Of one-hots or of choices: how many numbers each has, and its smallest."""
    sizes = np.ravel(sizes)
    starts = np.broadcast_to(np.ravel(starts), sizes.shape)
    return {"sizes": tuple(map(int, sizes)), "starts": tuple(map(int, starts))}


def _bounded(kind: str, space: Any) -> Decision:
    decision = Decision(kind, tuple(space.shape), np.dtype(space.dtype).name)
    return _filled(decision, low=torch.as_tensor(space.low.ravel()), high=torch.as_tensor(space.high.ravel()))


def _chain(*layers: nn.Module) -> nn.Sequential:
    """Copies of the layers, one after the other; sequences among them opened, normalisations as they are in use."""
    flat = itertools.chain.from_iterable(layer if isinstance(layer, nn.Sequential) else [layer] for layer in layers)
    return nn.Sequential(*(_renorm(layer) if hasattr(layer, "ra_mean") else _copied(layer) for layer in flat))


def _copied(layer: nn.Module) -> nn.Module:
    """Built afresh: a copy would take along the agent's gradients, which are views of one long vector."""
    made = sequence([described(layer)])[0]
    made.load_state_dict(layer.state_dict())
    return made


def _renorm(layer: Any) -> Affine:
    """sb3-contrib's BatchRenorm as it is when it acts."""
    scale, bias = (layer.scale, layer.bias) if layer.affine else (torch.ones(()), torch.zeros(()))
    return _affine(layer.ra_mean, scale / torch.sqrt(layer.ra_var + layer.eps), bias)


def _affine(shift: Tensor, scale: Tensor, bias: Tensor | None = None) -> Affine:
    bias = torch.zeros(()) if bias is None else bias
    return _filled(Affine(*shift.shape), shift=shift, scale=scale, bias=bias)


def _filled(layer: Layer, **values: Tensor) -> Layer:
    """The layer, its parameters and buffers set."""
    for name, value in values.items():
        getattr(layer, name).copy_(value)
    return layer
