"""Any agent's policy as its probabilities: a list of distributions, one for each number of an action.

Gaussians are those before clipping or squashing, which changes neither the divergence of two policies nor the gradient
of a log-probability. Agents without probabilities (DQN, TD3) have choices only; those with a memory or a planner of
their own not even these as a function of the observation. `PolicyView.lacks` says so in a sentence.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Normal, kl_divergence

from agents.dyna.agent import Dyna
from agents.ppo.agent import PPO
from agents.qd import QD
from envs.types import Obs
from runners.run.config import UsageError

Parts = list[Distribution]  # of B states: one (B,) for each number of an action


@dataclass
class PolicyView:
    """What can be read of an agent; observations are (B, ...), memories (B, units) of a GRU or None."""

    model: Any
    parts: Callable[[Obs, Any], Parts] | None = None  # the policy in these states; None if it has no probabilities
    to_env: Callable[[np.ndarray], np.ndarray] = np.asarray  # chosen numbers (B, n) -> actions (B, *shape)
    parameters: list[Tensor] = field(default_factory=list)  # what the probabilities are a function of
    units: int = 0  # of a GRU
    blind: bool = False  # whether a choice depends on more than the observation and that memory
    lacks: str = ""  # a sentence about what cannot be explained, and why

    def choices(self, obs: Obs, memory: Any = None) -> np.ndarray:
        """The likeliest actions (B, *shape), as the environment takes them."""
        if self.parts is None:
            return np.asarray(self.model.predict(obs, deterministic=True)[0])
        with torch.no_grad():
            parts = self.parts(obs, memory)
        best = [part.probs.argmax(-1) if isinstance(part, Categorical) else part.mean for part in parts]
        return self.to_env(torch.stack(best, -1).numpy())

    def moved(self, obs: Obs, changed: Obs, memory: Any = None) -> np.ndarray:
        """How much changed observations change what is done, (B,) in [0, 1].

        Of discrete actions the probability that moves to other ones (total variation, mean over an action's numbers);
        of others how far the likeliest action moves, in shares of its range.
        """
        space = self.model.action_space
        if self.parts is not None and not isinstance(space, spaces.Box):
            with torch.no_grad():
                pairs = [*zip(self.parts(obs, memory), self.parts(changed, memory))]
            gaps = [0.5 * (one.probs - other.probs).abs().sum(-1) for one, other in pairs]  # type: ignore[attr-defined]
            return torch.stack(gaps).mean(0).numpy()
        one, other = (self.choices(x, memory) for x in (obs, changed))
        one, other = one.reshape(len(one), -1), other.reshape(len(one), -1)
        if not isinstance(space, spaces.Box):
            return (one != other).mean(1)
        wide = (space.high - space.low).ravel()
        wide = np.where(np.isfinite(wide), wide, np.maximum(np.ptp(one, 0), 1e-8))
        return np.minimum(np.abs(one - other) / wide, 1.0).mean(1)


def divergence(before: Parts, after: Parts) -> float:
    """Kullback-Leibler divergence of two policies, mean over the states, nats."""
    return float(torch.stack([kl_divergence(one, other) for one, other in zip(before, after)]).sum(0).mean())


def view(model: Any, name: str) -> PolicyView:
    """What can be read of an agent; `name` is for the sentence. A UsageError for one that was trained with masks."""
    policy, space = model.policy, model.action_space
    if getattr(model, "masked", False):
        raise UsageError(f"agent={name} acts by action masks, which explain does not read; evaluate and watch do")
    if isinstance(model, PPO):
        return _ppo(model)
    if isinstance(model, OnPolicyAlgorithm) and not hasattr(policy, "lstm_actor"):

        def to_env(x: np.ndarray) -> np.ndarray:
            x = np.clip(x, space.low, space.high) if isinstance(space, spaces.Box) else x
            return x.reshape(len(x), *space.shape).astype(space.dtype)

        return PolicyView(model, lambda obs, _: _sb3_parts(policy, obs), to_env, list(policy.parameters()))
    if isinstance(model, OffPolicyAlgorithm) and hasattr(getattr(policy, "actor", None), "get_action_dist_params"):
        policy.set_training_mode(False)

        def parts(obs: Obs, _: Any) -> Parts:
            mean, log_std, _ = policy.actor.get_action_dist_params(policy.obs_to_tensor(obs)[0])
            return _normals(mean, log_std.exp())

        def unscaled(x: np.ndarray) -> np.ndarray:
            return policy.unscale_action(np.tanh(x).reshape(len(x), *space.shape))

        return PolicyView(model, parts, unscaled, list(policy.actor.parameters()))
    if isinstance(model, OffPolicyAlgorithm | QD) or (isinstance(model, Dyna) and model.config.planner == "none"):
        why = "is read by its likeliest action only, without probabilities: no gradients, cosines and disagreements"
        return PolicyView(model, lacks=f"agent={name} {why}")
    why = "acts by a memory or by looking ahead, not by the observation alone: no gradients, cosines and saliency"
    return PolicyView(model, blind=True, lacks=f"agent={name} {why}")


def _ppo(model: PPO) -> PolicyView:
    net, inputs, actions = model.policy, model.policy.inputs, model.policy.actions

    def parts(obs: Obs, memory: Any) -> Parts:
        images = {key: torch.as_tensor(image) for key, image in inputs.pixels(obs).items()}
        read = net.features(torch.as_tensor(inputs.vector(obs)), images)
        if net.gru is not None:  # one step from the memory, which is taken as given
            read = net.unroll(read[None], torch.as_tensor(memory), torch.zeros(1, len(read), dtype=torch.bool))[0][0]
        outputs = net.heads(read)[0]
        if net.log_std is not None:
            return _normals(outputs, net.log_std.exp().expand_as(outputs))
        return [Categorical(logits=logits) for logits in outputs.split(actions.sizes, dim=-1)]

    return PolicyView(model, parts, actions.to_env, list(net.parameters()), net.gru.hidden_size if net.gru else 0)


def _normals(mean: Tensor, std: Tensor) -> Parts:
    return [Normal(*pair) for pair in zip(mean.unbind(-1), std.unbind(-1))]


def _sb3_parts(policy: Any, obs: Obs) -> Parts:
    found = policy.get_distribution(policy.obs_to_tensor(obs)[0]).distribution
    if isinstance(found, Normal):
        return _normals(found.mean, found.stddev)
    if isinstance(found, Bernoulli):
        return [Categorical(logits=torch.stack([0 * x, x], -1)) for x in found.logits.unbind(-1)]
    return found if isinstance(found, list) else [found]
