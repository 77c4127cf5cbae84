"""A trunk for observations that declare their parts, such as NetHack's: cells, status and words.

    cells, (side, side, kinds) one-hot   two convolutions of 3 x 3, 32 channels, then 128 units
    every other part                     64 units
    all of them                          joined into 256

Source: the shape, not the sizes, is that of the baseline of the NetHack challenge of 2021 (Hambro et al. 2022,
arXiv 2203.11889), which ONI and Motif use too.
Differences: cells are kinds of things, not pictures of letters; a square of 9 x 9 cells, not 12 x 12; layers are
smaller. Recurrence is `ActorCritic`'s.
Fails when: the space declares no parts, or a wrapper made a new space without them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from agents.networks.actor_critic import linear

JOINED = 256


class Glyphs(nn.Module):
    """Float32 (B, D) -> (B, 256).

    Args:
        space: with `parts`, name -> its place among the D numbers, and `shape_of_cells` = (side, side, kinds) of the
            part "cells", channels last.

    Raises:
        ValueError: if the space declares no parts.
    """

    width = JOINED

    def __init__(self, space: spaces.Space) -> None:
        super().__init__()
        parts: Any = getattr(space, "parts", None)
        if parts is None:
            raise ValueError(
                f'agent.net="glyphs" needs observations in parts, as NetHack gives them, not {space}; give "mlp"'
            )
        self.parts = {name: part for name, part in parts.items() if part.stop > part.start}
        self.side, _, kinds = space.shape_of_cells  # type: ignore[attr-defined]
        layers: list[nn.Module] = []
        for before, kernel in ((kinds, min(3, self.side)), (32, min(3, max(self.side - 2, 1)))):
            layers += [nn.Conv2d(before, 32, kernel), nn.ReLU()]
            nn.init.orthogonal_(layers[-2].weight, math.sqrt(2))  # type: ignore[arg-type]
            nn.init.zeros_(layers[-2].bias)  # type: ignore[arg-type]
        left = max(self.side - 4, 1) ** 2 * 32
        self.cells = nn.Sequential(*layers, nn.Flatten(), linear(left, 128, math.sqrt(2)), nn.ReLU())
        self.others = nn.ModuleDict(
            {
                name: nn.Sequential(linear(part.stop - part.start, 64, math.sqrt(2)), nn.ReLU())
                for name, part in self.parts.items()
                if name != "cells"
            }
        )
        self.join = nn.Sequential(linear(128 + 64 * len(self.others), JOINED, math.sqrt(2)), nn.ReLU())

    def forward(self, vector: Tensor) -> Tensor:
        """Features of a batch."""
        cells = vector[:, self.parts["cells"]].view(len(vector), self.side, self.side, -1).permute(0, 3, 1, 2)
        features = [self.cells(cells), *(layer(vector[:, self.parts[name]]) for name, layer in self.others.items())]
        return self.join(torch.cat(features, -1))
