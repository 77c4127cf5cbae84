"""Forward prediction: a bonus for the error of a forward model about the next observation.

The oldest curiosity and the plainest, kept as the control that better ones are measured against.
Source: Schmidhuber 1991; Stadie, Levine, Abbeel 2015, arXiv 1507.00814; Burda et al. 2018, arXiv 1808.04355.
Differences: observations are predicted as they are, whitened; those with images as features of a frozen random network,
the "random features" of Burda et al.
Fails when: something is unpredictable: its error never ends, and the agent stays to watch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from envs.transitions import Transitions
from envs.types import Obs
from lodestar.settings import setting
from rewards.exploration.compiled.tape import Tape, Units
from rewards.exploration.learned import Columns, Learned, LearnedConfig, Losses, Net


@dataclass
class ForwardConfig(LearnedConfig):
    """Settings of forward prediction."""

    features: int = setting(64, "size of what stands for an observation with images; others are predicted as they are")
    hidden: int = 128


class Forward(Learned):
    """r(s, a, s') = |f(x, a) - x'|**2, x the whitened observation or its random features."""

    Config = ForwardConfig
    requires = frozenset({"obs", "action", "next_obs"})

    def build(self) -> None:
        super().build()
        config = self.config
        # `features` makes the code of an observation with images; a vector is its own code.
        self.features: Net | None = None
        self.width = self.layout.size
        if self.layout.images:
            self.features = self.net(config.hidden, config.features).requires_grad_(False)
            self.width = config.features
        self.build_networks()

    def build_networks(self) -> None:
        hidden = self.config.hidden
        self.model = self.head(self.width + self.actions.size, hidden, hidden, self.width, gain=0.1)
        self.train_on(self.model)

    def columns(self, batch: Transitions) -> Columns:
        return self.code(batch.obs), self.actions(batch.action), self.code(batch.next_obs)

    def code(self, obs: Obs) -> Tensor:
        """What stands for observations (N, ...): float32 (N, width)."""
        x = self.inputs(obs)
        if self.features is None:
            return x
        return self.in_pieces(self.features, x)

    def loss(self, *columns: Tensor) -> Losses:
        return {"loss": self.error(*columns).mean()}

    def tape(self, tape: Tape, x: Units, action: Units, after: Units) -> None:
        prediction = tape.net(self.model, x, action)
        tape.squares("loss", prediction, after, 1.0)

    def error(self, x: Tensor, action: Tensor, after: Tensor) -> Tensor:
        """Squared error of the prediction, summed over the observation (N,)."""
        prediction = self.model(torch.cat([x, action], dim=1))
        return (prediction - after).square().sum(dim=1)
