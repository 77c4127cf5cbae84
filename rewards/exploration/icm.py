"""Intrinsic curiosity: a bonus for transitions whose outcome is mispredicted in a space of what actions control.

An inverse-dynamics embedding keeps what actions change; the error of a forward model in it is the bonus.
Source: Pathak, Agrawal, Efros, Darrell 2017, arXiv 1705.05363, equations 2 to 7.
Differences: the mix's `weight` takes the place of eta and of lambda; vectors pass dense layers.
Fails when: an action shows something unpredictable (a television with a remote control): the error stays, and the agent
with it. See `hindsight`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lodestar.settings import setting
from rewards.exploration.compiled.tape import Tape, Units
from rewards.exploration.learned import InverseDynamics, LearnedConfig, Losses


@dataclass
class ICMConfig(LearnedConfig):
    """Settings of ICM; the paper's value in brackets where it differs."""

    features: int = setting(64, "size of the embedding [288, of images]")
    hidden: int = setting(64, "width of the hidden layers [256]")
    forward_share: float = setting(0.2, "beta, the forward model's share of the loss", "[0, 1]", tune=(0.05, 0.95))


class ICM(InverseDynamics):
    """r(s, a, s') = 1/2 |f(phi(s), a) - phi(s')|**2."""

    Config = ICMConfig

    def build(self) -> None:
        super().build()
        config = self.config
        self.forward_model = self.head(config.features + self.actions.size, config.hidden, config.features)
        self.train_on(self.encoder, self.prediction, self.forward_model)

    def loss(self, *columns: Tensor) -> Losses:
        x, action, after = columns
        one, two = self.encode(x, after)
        share = self.config.forward_share
        forward = self.distance(one, action, two).mean()
        inverse = self.inverse_loss(one, two, action)
        # Equation 7 without the policy's term.
        return {"forward_loss": share * forward, "inverse_loss": (1 - share) * inverse}

    def tape(self, tape: Tape, x: Units, action: Units, after: Units) -> None:
        share = self.config.forward_share
        one, two = tape.apply_to_each(self.encoder.dense, x, after)
        prediction = tape.net(self.forward_model, one, action)
        tape.squares("forward_loss", prediction, two, 0.5, share)
        self.tape_inverse(tape, one, two, action, 1 - share)

    def error(self, x: Tensor, action: Tensor, after: Tensor) -> Tensor:
        """Half the squared error of the forward model (N,)."""
        one, two = self.encode(x, after)
        return self.distance(one, action, two)

    def distance(self, one: Tensor, action: Tensor, two: Tensor) -> Tensor:
        """As `error`, of embeddings (N, D)."""
        prediction = self.forward_model(torch.cat([one, action], dim=1))
        return 0.5 * (prediction - two).square().sum(dim=1)
