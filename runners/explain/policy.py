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
from lodestar.mappings import map_values
from runners.run.config import UsageError

# Distributions in B states: one (B,) for each number of an action.
Parts = list[Distribution]


@dataclass
class PolicyView:
    """What can be read of an agent; observations are (B, ...), memories (B, units) of a GRU or None.

    Attributes:
        distributions: one for each number of an action, in some states; None if the policy has no probabilities.
        to_env: chosen numbers (B, n) -> actions (B, *shape).
        parameters: what the probabilities are a function of.
        units: of a GRU.
        blind: whether a choice depends on more than the observation and that memory.
        lacks: a sentence about what cannot be explained, and why.
    """

    model: Any
    distributions: Callable[[Obs, Any], Parts] | None = None
    to_env: Callable[[np.ndarray], np.ndarray] = np.asarray
    parameters: list[Tensor] = field(default_factory=list)
    units: int = 0
    blind: bool = False
    lacks: str = ""

    def choices(self, obs: Obs, memory: Any = None) -> np.ndarray:
        """The likeliest actions (B, *shape), as the environment takes them."""
        if self.distributions is None:
            return np.asarray(self.model.predict(obs, deterministic=True)[0])
        with torch.no_grad():
            parts = self.distributions(obs, memory)
        # Of a Gaussian the mean is its mode.
        return self.to_env(torch.stack([part.mode for part in parts], -1).numpy())

    def movement(self, obs: Obs, changed: Obs, memory: Any = None) -> np.ndarray:
        """How much changed observations change what is done, (B,) in [0, 1].

        Of discrete actions the probability that moves to other ones (total variation, mean over an action's numbers);
        of others how far the likeliest action moves, in shares of its range.
        """
        space = self.model.action_space
        continuous = isinstance(space, spaces.Box)
        if self.distributions is not None and not continuous:
            with torch.no_grad():
                before: Any = self.distributions(obs, memory)
                after: Any = self.distributions(changed, memory)
            gaps = [0.5 * (part.probs - other.probs).abs().sum(-1) for part, other in zip(before, after)]
            return torch.stack(gaps).mean(0).numpy()
        actions = self.choices(obs, memory)
        actions = actions.reshape(len(actions), -1)
        changed_actions = self.choices(changed, memory).reshape(actions.shape)
        if not continuous:
            return (actions != changed_actions).mean(1)
        width = (space.high - space.low).ravel()
        # An unbounded action counts by the range of what the policy does.
        width = np.where(np.isfinite(width), width, np.maximum(np.ptp(actions, 0), 1e-8))
        return np.minimum(np.abs(actions - changed_actions) / width, 1.0).mean(1)


def divergence(before: Parts, after: Parts) -> float:
    """Kullback-Leibler divergence of two policies, mean over the states, nats."""
    return float(torch.stack(list(map(kl_divergence, before, after))).sum(0).mean())


def view(model: Any, name: str) -> PolicyView:
    """What can be read of an agent; `name` is for the sentence.

    Raises a UsageError for one that was trained with masks.
    """
    policy = model.policy
    if getattr(model, "masked", False):
        raise UsageError(f"agent={name} acts by action masks, which explain does not read; evaluate and watch do")
    if isinstance(model, PPO):
        return _view_ppo(model)
    # A recurrent policy of SB3 has an LSTM, whose memory is not a GRU's.
    if isinstance(model, OnPolicyAlgorithm) and not hasattr(policy, "lstm_actor"):
        return _view_sb3_on_policy(model)
    # Of SB3's off-policy actors only those of SAC and its kind are distributions.
    if isinstance(model, OffPolicyAlgorithm) and hasattr(getattr(policy, "actor", None), "get_action_dist_params"):
        return _view_sb3_gaussian_actor(model)
    if isinstance(model, OffPolicyAlgorithm | QD) or (isinstance(model, Dyna) and model.config.planner == "none"):
        reason = "is read by its likeliest action only, without probabilities: no gradients, cosines and disagreements"
        return PolicyView(model, lacks=f"agent={name} {reason}")
    reason = "acts by a memory or by looking ahead, not by the observation alone: no gradients, cosines and saliency"
    return PolicyView(model, blind=True, lacks=f"agent={name} {reason}")


def _view_ppo(model: PPO) -> PolicyView:
    network = model.policy
    inputs = network.inputs
    actions = network.actions

    def distributions(obs: Obs, memory: Any) -> Parts:
        images = map_values(torch.as_tensor, inputs.pixels(obs))
        features = network.features(torch.as_tensor(inputs.vector(obs)), images)
        if network.gru is not None:
            # One step from the memory, which is taken as given.
            no_begins = torch.zeros(1, len(features), dtype=torch.bool)
            unrolled, *_ = network.unroll(features[None], torch.as_tensor(memory), no_begins)
            features = unrolled[0]
        outputs = network.heads(features)[0]
        if network.log_std is not None:
            return _normals(outputs, network.log_std.exp().expand_as(outputs))
        return [Categorical(logits=logits) for logits in outputs.split(actions.sizes, dim=-1)]

    units = network.gru.hidden_size if network.gru else 0
    return PolicyView(model, distributions, actions.to_env, list(network.parameters()), units)


def _view_sb3_on_policy(model: Any) -> PolicyView:
    policy = model.policy
    space = model.action_space

    def distributions(obs: Obs, _: Any) -> Parts:
        distribution = policy.get_distribution(policy.obs_to_tensor(obs)[0]).distribution
        if isinstance(distribution, Normal):
            return _normals(distribution.mean, distribution.stddev)
        if isinstance(distribution, Bernoulli):
            # A bit is a choice of two, with logits 0 and its own.
            logits = torch.stack([0 * distribution.logits, distribution.logits], -1)
            return [Categorical(logits=pair) for pair in logits.unbind(1)]
        return distribution if isinstance(distribution, list) else [distribution]

    def to_env(numbers: np.ndarray) -> np.ndarray:
        if isinstance(space, spaces.Box):
            numbers = np.clip(numbers, space.low, space.high)
        return numbers.reshape(len(numbers), *space.shape).astype(space.dtype)

    return PolicyView(model, distributions, to_env, list(policy.parameters()))


def _view_sb3_gaussian_actor(model: Any) -> PolicyView:
    policy = model.policy
    policy.set_training_mode(False)

    def distributions(obs: Obs, _: Any) -> Parts:
        mean, log_std, _ = policy.actor.get_action_dist_params(policy.obs_to_tensor(obs)[0])
        return _normals(mean, log_std.exp())

    def to_env(numbers: np.ndarray) -> np.ndarray:
        squashed = np.tanh(numbers)
        return policy.unscale_action(squashed.reshape(len(squashed), *model.action_space.shape))

    return PolicyView(model, distributions, to_env, list(policy.actor.parameters()))


def _normals(mean: Tensor, std: Tensor) -> Parts:
    return list(map(Normal, mean.unbind(-1), std.unbind(-1)))
