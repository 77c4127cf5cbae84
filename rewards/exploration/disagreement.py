"""Disagreement: a bonus where the predictions of an ensemble of forward models differ.

Members agree about what all have learnt, and come to predict the same mean of noise, which stops being rewarded.
Source: Pathak, Gandhi, Gupta 2019, arXiv 1906.04161, section 3.
Differences: members predict the features of a frozen random network, the paper's choice for Atari; they differ in their
initial weights and in the rows they learn from, a random share of each minibatch; the reward is not differentiated.
Fails when: noise has too many outcomes to be averaged soon, or the members share their mistakes.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from envs.transitions import Transitions
from envs.types import Memory
from lodestar.settings import setting
from rewards.exploration.compiled.tape import Tape, Units
from rewards.exploration.learned import Learned, LearnedConfig


@dataclass
class DisagreementConfig(LearnedConfig):
    """Settings of disagreement; the paper's value in brackets where it differs."""

    members: int = setting(5, "forward models, K", low=2, tune=(2, 8))
    bootstrap: float = setting(0.8, "share of a minibatch for each member [1]", above=0, high=1, tune=(0.5, 1.0))


class Disagreement(Learned):
    """r(s, a) = mean over D of the variance over K of f_k(phi(s), a), where f_k(phi(s), a) predicts phi(s')."""

    Config = DisagreementConfig
    requires = frozenset({"obs", "action", "next_obs"})

    def build(self) -> None:
        super().build()
        config = self.config
        self.encoder = self.net(config.hidden, config.features).requires_grad_(False)
        sizes = (config.features + self.actions.size, config.hidden, config.features)
        self.ensemble = StackedHeads([self.head(*sizes) for _ in range(config.members)])
        self.train_on(self.ensemble)

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        return self.in_pieces(self.variance, self.questions(batch)).cpu().numpy()

    def columns(self, batch: Transitions) -> tuple[Tensor, ...]:
        return self.questions(batch), self.in_pieces(self.encoder, self.inputs(batch.next_obs))

    def questions(self, batch: Transitions) -> Tensor:
        """What members read, (N, D + A): features of observations, and actions."""
        return torch.cat([self.in_pieces(self.encoder, self.inputs(batch.obs)), self.actions(batch.action)], dim=1)

    def loss(self, *columns: Tensor) -> dict[str, Tensor]:
        inputs, target = columns
        members, share = self.config.members, self.config.bootstrap
        if share < 1:
            rows = torch.from_numpy(np.stack(self.parts(np.arange(len(inputs))))).to(inputs.device)
            inputs, target = (x.index_select(0, rows.flatten()).unflatten(0, rows.shape) for x in columns)
        return {"loss": members * mse_loss(self.ensemble(inputs), target.expand(members, -1, -1))}

    def parts(self, rows: np.ndarray) -> list[np.ndarray]:
        """The rows that each member learns from, K times (M,)."""
        members, share = self.config.members, self.config.bootstrap
        if share == 1:
            return [rows] * members
        drawn = self.rng.random((members, len(rows)), dtype=np.float32).argsort(axis=1)
        return [*rows[drawn[:, : math.ceil(share * len(rows))]]]

    def tape(self, tape: Tape, inputs: Units, target: Units) -> None:
        tape.squares("loss", self.ensemble.tape(tape, inputs), target, 1 / target.n)

    def variance(self, inputs: Tensor) -> Tensor:
        """What members read (N, D + A) -> variance over members, mean over features (N,)."""
        rated = self.compiled.members(self.ensemble, inputs)
        predictions = self.ensemble(inputs) if rated is None else rated
        return predictions.sub_(predictions.mean(dim=0)).square_().mean(dim=(0, 2))  # torch's own var is far slower


class StackedHeads(nn.Module):
    """K networks of one shape as one: two matrix products for all. (B, inputs) or (K, B, inputs) -> (K, B, outputs).
    With `levels=-1` without the last layer.
    """

    def __init__(self, members: list[nn.Sequential]) -> None:
        super().__init__()
        layers = [[module for module in member if isinstance(module, nn.Linear)] for member in members]
        self.weights = nn.ParameterList(torch.stack([m.weight.detach().T for m in level]) for level in zip(*layers))
        self.biases = nn.ParameterList(torch.stack([m.bias.detach()[None] for m in level]) for level in zip(*layers))

    def forward(self, x: Tensor, levels: int | None = None) -> Tensor:
        x = x.expand(len(self.weights[0]), -1, -1)
        for level, (weight, bias) in enumerate(zip([*self.weights][:levels], self.biases)):
            x = torch.baddbmm(bias, x.relu_() if level else x, weight)
        return x

    def tape(self, tape: Tape, rows: Units) -> Units:
        """One member, that of the tape's part, written down."""
        for weight, bias in zip(self.weights, self.biases):
            n = weight.shape[-1]
            begins = [tape.places[x.data_ptr()] + tape.part * x[0].numel() for x in (weight, bias)]
            rows = tape.linear(rows, n, (begins[0], 1, n, begins[1]), weight is not self.weights[-1])
        return rows
