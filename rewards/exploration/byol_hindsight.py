"""BYOL-Hindsight: BYOL-Explore whose bonus is only what remains unexplained once chance is known.

The codes of `byol` take the place of observations, its open loops that of states, and `hindsight` works on both.
Source: Jarrett, Tallec, Altche, Mesnard, Munos, Valko 2023, Curiosity in Hindsight, arXiv 2211.10515, section 4.
Differences, beside those of `byol` and `hindsight`: generator and critic shape the networks of their own alone; the
reconstructor takes the state before the action, and the action, where the paper's takes the state after it; the
negatives of a z are the others of its piece of 256 predictions, most of which look equally far ahead.
Fails when: chance follows from the action and looks like an outcome; when the critic lags behind z, which then copies
the code and hides what could be learnt.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lodestar.settings import setting
from rewards.exploration.byol import BYOL, BYOLConfig, distance
from rewards.exploration.hindsight import Hindsight, HindsightConfig

CRITIC_ROWS = 256  # predictions that the critic compares, every one with every one


@dataclass
class BYOLHindsightConfig(BYOLConfig, HindsightConfig):
    """Settings of BYOL-Explore and of curiosity in hindsight together."""

    freeze: int = 20_000
    chance: int = 16
    # In the codes of `byol` linear connections copy new outcomes as well, which then are no longer rewarded.
    skip: bool = False
    temper: float = setting(0.3, "lambda, beside errors of at most 4", tune=(0.1, 10.0, "log"))
    critic_steps: int = 1


class BYOLHindsight(BYOL, Hindsight):  # type: ignore[misc]  # Episodic's `score`, which has a memory
    """r = mean over k of reconstruction / lambda + information; see `hindsight`, with (b_{k-1}, a) for (x, a)."""

    Config = BYOLHindsightConfig

    def build_networks(self) -> None:
        Hindsight.build_networks(self)

    def trained_networks(self) -> list[torch.nn.Module]:
        return [self.encoder, self.loops, *super().trained_networks()]

    def error(  # type: ignore[override]
        self, before: Tensor, action: Tensor, ahead: Tensor, target: Tensor
    ) -> Tensor:
        return Hindsight.error(self, before, action, target)

    def costs(self, *predictions: Tensor) -> dict[str, Tensor]:
        before, action, _, target = predictions
        return Hindsight.loss(self, before, action, target)

    def reconstruction(self, given: Tensor, z: Tensor, after: Tensor) -> Tensor:
        return distance(self.predict_outcome(given, z), after)

    def chance(self, given: Tensor, after: Tensor, noise: np.ndarray | None) -> Tensor:
        # The generator learns the networks of its own alone, not the belief that it reads.
        return super().chance(given.detach(), after, noise)

    def batch_information(self, given: Tensor, z: Tensor) -> Tensor:
        # Predictions come in the order of their k, so most of a piece look equally far ahead.
        terms = []
        for piece_given, piece_z in zip(given.detach().split(CRITIC_ROWS), z.split(CRITIC_ROWS)):
            share = len(piece_z) / len(z)
            terms.append(share * super().batch_information(piece_given, piece_z))
        return torch.stack(terms).sum()
