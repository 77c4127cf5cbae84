"""A trained policy as plain layers, with which an agent of another kind begins (`init_from=RUN`).

    layers = iql.policy_layers()        what is learned: by IQL, cloning, dyna
    dyna.begin_with(layers)             copies what fits, and returns its names; PPO does the same

The actions of the policy stay as they were, up to rounding. A ValueError refuses other sizes, as cutting or padding
layers would make another policy.

Sources: Zhou et al. 2024, "Efficient Online RL Fine-Tuning Need Not Retain Offline Data" (WSRL), arXiv 2412.07762:
actor and critics are taken, and the actor collects for some steps before anything learns. Nakamoto et al. 2023,
"Cal-QL", arXiv 2303.05479: critics of another scale destroy the actor at first.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from agents.networks.actor_critic import SpaceEncoding


class DenseLayer(NamedTuple):
    """Weight (I, O) and bias (O,) of a fully connected layer."""

    weight: Tensor
    bias: Tensor

    def select(self, outputs: slice) -> "DenseLayer":
        """Views of the numbers of some outputs."""
        return DenseLayer(self.weight[:, outputs], self.bias[outputs])

    @torch.no_grad()
    def copy(self, other: "DenseLayer") -> None:
        """Take over the numbers of another layer of the same shape."""
        self.weight.copy_(other.weight)
        self.bias.copy_(other.bias)


class CriticKind(NamedTuple):
    """What else than their shapes decides what the numbers of critics mean."""

    activation: str
    norm: str = "none"
    head: str = "mse"


@dataclass
class PolicyLayers:
    """Layers from whitened observations to logits, or to means of actions in [-1, 1], before a tanh if `squashed`.

    A Gaussian has one log-deviation for all states, `log_std` (A,), after a tanh or without one; or it has a last layer
    of its own for them, `deviation`, in SAC's form. Networks cut whitened observations at ten deviations.
    """

    encoding: SpaceEncoding
    layers: list[DenseLayer]
    activation: str
    # Of observations, (D,).
    mean: Tensor
    std: Tensor
    squashed: bool = False
    log_std: Tensor | None = None
    deviation: DenseLayer | None = None
    # Weights (K, I, O) and biases (K, 1, O) of K critics, as `agents.networks.stacked` has them; none: empty.
    critics: list[Tensor] = field(default_factory=list)
    critic_kind: CriticKind | None = None
    # The logarithm of the entropy's weight, (1,).
    log_alpha: Tensor | None = None

    @property
    def units(self) -> list[int]:
        """Units of the hidden layers."""
        return [len(layer.bias) for layer in self.layers[:-1]]

    def network_settings(self) -> str:
        """The settings of an agent whose hidden layers are like these."""
        units = ",".join(map(str, self.units))
        return f"agent.net_arch=[{units}] agent.activation={self.activation}"

    def copy_hidden(self, own: list[DenseLayer], activation: str) -> None:
        """Copy the hidden layers into an agent's own; a ValueError with the settings that fit, if these do not."""
        own_units = [len(layer.bias) for layer in own]
        if own_units != self.units or activation != self.activation:
            raise ValueError(
                f"its policy has hidden layers of {self.units} with {self.activation}, and this run's has {own_units} "
                f"with {activation}; give {self.network_settings()}"
            )
        for layer, source in zip(own, self.layers):
            layer.copy(source)

    def require_squashed(self, squashed: bool, agent: str) -> None:
        """Raise a ValueError if the means of a Gaussian would go through a tanh that they were not trained with."""
        if self.encoding.discrete or self.squashed == squashed:
            return
        words = {True: "a tanh behind its means", False: "no tanh behind its means"}
        raise ValueError(
            f"its policy has {words[self.squashed]}, and agent={agent} has {words[squashed]}; train iql or cloning "
            f"with agent.squash={str(squashed).lower()}"
        )


def layers_of(weights: list[Tensor]) -> list[DenseLayer]:
    """The layers of the only network of an `agents.networks.stacked.Stacked` without normalisation, as views."""
    return [DenseLayer(weight[0], bias[0, 0]) for weight, bias in zip(weights[::2], weights[1::2])]
