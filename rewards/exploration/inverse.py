"""Inverse dynamics: an embedding that keeps what the agent's actions change, and drops what they do not.

Two observations in a row pass the same encoder; from both embeddings a head guesses the action between them. Noise that
no action controls does not help the guess, so nothing keeps it in the embedding.
Source: Pathak, Agrawal, Efros, Darrell 2017, arXiv 1705.05363, section 2.2; Badia et al. 2020, arXiv 2002.06038, 2.1.
Fails when: what matters does not follow from the last action (a key that is carried), or noise follows the action (a
television with a remote control).
"""

from __future__ import annotations

from typing import Any

import torch

from envs.types import Obs, Transitions
from rewards.exploration.learned import Learned


class Embedded(Learned):
    """Base class of bonuses that live in an inverse-dynamics embedding."""

    requires = frozenset({"obs", "action", "next_obs"})

    def __init__(self, config: Any, *spaces: Any, **options: Any) -> None:
        super().__init__(config, *spaces, **options)
        hidden, features = config.hidden, config.features
        self.encoder = self.net(hidden, features)
        self.guess = self.head(2 * features, hidden, self.actions.size)

    def columns(self, batch: Transitions) -> tuple[torch.Tensor, ...]:
        return self.inputs(batch.obs), self.actions(batch.action), self.inputs(batch.next_obs)

    def loss(self, *columns: torch.Tensor) -> dict[str, torch.Tensor]:
        x, action, after = columns
        one, two = self.encode(x, after)
        return {"inverse_loss": self.inverse_loss(one, two, action)}

    def encode(self, x: torch.Tensor, after: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Embeddings (N, D) of two columns, in one pass."""
        one, two = self.encoder(torch.cat([x, after])).chunk(2)
        return one, two

    def inverse_loss(self, one: torch.Tensor, two: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """How badly the action between embeddings `one` and `two` is guessed."""
        return self.actions.loss(self.guess(torch.cat([one, two], dim=1)), action)

    def embedded(self, obs: Obs) -> torch.Tensor:
        """Observations (N, ...) -> embeddings (N, D), no gradient."""
        return self.in_pieces(self.encoder, self.inputs(obs))
