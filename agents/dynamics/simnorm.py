"""SimNorm: the latent is the encoded observation, made of small simplices; the cell of TD-MPC2.

Nothing is remembered and nothing is random: the latent at t is a function of the observation at t, and a network says
which latent an action leads to. A softmax in groups keeps latents bounded and sparse, so that nothing is reconstructed
and still nothing collapses as long as reward and value hold it.

    z_t = SimNorm(LayerNorm(W embed_t))        expected: z_{t+1} = SimNorm(LayerNorm(f(z_t, a_t)))

Source: Hansen, Su & Wang 2024, "TD-MPC2: scalable, robust world models for continuous control", arXiv 2310.16828,
section 3.1 and equation 5 (SimNorm).

Differences from the source:
  - Dreamer's layers (LayerNorm, SiLU), not Mish; latent 128, not 512.

When it fails: partial observation (give a stack of frames, or `rssm`); a world that rolls dice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from agents.dynamics.cells import Cell, State, layer
from agents.networks.actor_critic import linear


class SimNorm(Cell):
    """Latent "z" (..., latent); the features are the latent.

    Args:
        embed_size: E.
        action_size: A.
        latent: Z, a multiple of `simplex`.
        simplex: numbers of a group, which sum to one.
        hidden: units of the two hidden layers.
        generator: unused, for the cells' common signature.

    Raises:
        ValueError: for a latent that does not fall into such groups.
    """

    def __init__(
        self,
        embed_size: int,
        action_size: int,
        *,
        latent: int = 128,
        simplex: int = 8,
        hidden: int = 128,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(generator)
        if simplex < 2 or latent < simplex or latent % simplex:
            raise ValueError(
                f"a latent of {latent} numbers does not fall into groups of {simplex}; give a multiple of at least 2"
            )
        self.simplex = simplex
        self.sizes = {"z": latent}
        self.size = latent
        self.seen = _normed(embed_size, latent)
        self.next = nn.Sequential(layer(latent + action_size, hidden), layer(hidden, hidden), _normed(hidden, latent))

    def observe(
        self, embed: Tensor, action: Tensor, first: Tensor, state: State | None = None, *, sample: bool = True
    ) -> tuple[State, dict[str, Any]]:
        return {"z": self.normalized(self.seen(embed))}, {}

    def step(self, state: State, action: Tensor, *, sample: bool = True) -> State:
        return {"z": self.normalized(self.next(torch.cat([state["z"], action], -1)))}

    def features(self, state: State) -> Tensor:
        return state["z"]

    def normalized(self, x: Tensor) -> Tensor:
        """A softmax in every group: (..., Z) -> (..., Z)."""
        return torch.softmax(x.unflatten(-1, (-1, self.simplex)), -1).flatten(-2)


def _normed(inputs: int, outputs: int) -> nn.Sequential:
    """Without the norm the first softmaxes are nearly even, and the latent says little for hundreds of steps."""
    return nn.Sequential(linear(inputs, outputs, 1.0), nn.LayerNorm(outputs, eps=1e-3))
