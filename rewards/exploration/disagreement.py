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
from rewards.exploration.learned import Columns, Learned, LearnedConfig, Losses


@dataclass
class DisagreementConfig(LearnedConfig):
    """Settings of disagreement; the paper's value in brackets where it differs."""

    members: int = setting(5, "forward models, K", ">= 2", tune=(2, 8))
    bootstrap: float = setting(0.8, "share of a minibatch for each member [1]", "(0, 1]", tune=(0.5, 1.0))


class Disagreement(Learned):
    """r(s, a) = mean over D of the variance over K of f_k(phi(s), a), where f_k(phi(s), a) predicts phi(s')."""

    Config = DisagreementConfig
    requires = frozenset({"obs", "action", "next_obs"})

    def build(self) -> None:
        super().build()
        config = self.config
        self.encoder = self.net(config.hidden, config.features).requires_grad_(False)
        sizes = (config.features + self.actions.size, config.hidden, config.features)
        members = [self.head(*sizes) for _ in range(config.members)]
        self.ensemble = StackedHeads(members)
        self.train_on(self.ensemble)

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        return self.in_pieces(self.variance, self.questions(batch)).cpu().numpy()

    def columns(self, batch: Transitions) -> Columns:
        target = self.in_pieces(self.encoder, self.inputs(batch.next_obs))
        return self.questions(batch), target

    def questions(self, batch: Transitions) -> Tensor:
        """What members read, (N, D + A): features of observations, and actions."""
        features = self.in_pieces(self.encoder, self.inputs(batch.obs))
        return torch.cat([features, self.actions(batch.action)], dim=1)

    def loss(self, *columns: Tensor) -> Losses:
        inputs, target = columns
        members = self.config.members
        if self.config.bootstrap < 1:
            # Each member has rows of its own: (B, ...) -> (K, M, ...).
            member_rows = np.stack(self.split_rows(np.arange(len(inputs))))
            rows = torch.from_numpy(member_rows).to(inputs.device)
            inputs = inputs.index_select(0, rows.flatten()).unflatten(0, rows.shape)
            target = target.index_select(0, rows.flatten()).unflatten(0, rows.shape)
        prediction = self.ensemble(inputs)
        return {"loss": members * mse_loss(prediction, target.expand(members, -1, -1))}

    def split_rows(self, rows: np.ndarray) -> list[np.ndarray]:
        """The rows that each member learns from, K times (M,)."""
        members = self.config.members
        share = self.config.bootstrap
        if share == 1:
            return [rows] * members
        size = math.ceil(share * len(rows))
        draws = self.rng.random((members, len(rows)), dtype=np.float32)
        order = draws.argsort(axis=1)
        return list(rows[order[:, :size]])

    def tape(self, tape: Tape, inputs: Units, target: Units) -> None:
        prediction = self.ensemble.tape(tape, inputs)
        tape.squares("loss", prediction, target, 1 / target.n)

    def variance(self, inputs: Tensor) -> Tensor:
        """What members read (N, D + A) -> variance over members, mean over features (N,)."""
        predictions = self.compiled.members(self.ensemble, inputs)
        if predictions is None:
            predictions = self.ensemble(inputs)
        # In place, as torch's own `var` is far slower.
        return predictions.sub_(predictions.mean(dim=0)).square_().mean(dim=(0, 2))


class StackedHeads(nn.Module):
    """K networks of one shape as one: two matrix products for all. (B, inputs) or (K, B, inputs) -> (K, B, outputs).
    With `levels=-1` without the last layer.
    """

    def __init__(self, members: list[nn.Sequential]) -> None:
        super().__init__()
        self.weights = nn.ParameterList()  # (K, inputs, outputs) of each layer
        self.biases = nn.ParameterList()  # (K, 1, outputs)
        for modules in zip(*members):
            if isinstance(modules[0], nn.Linear):
                weights = [module.weight.detach().T for module in modules]
                biases = [module.bias.detach()[None] for module in modules]
                self.weights.append(torch.stack(weights))
                self.biases.append(torch.stack(biases))

    def forward(self, x: Tensor, levels: int | None = None) -> Tensor:
        x = x.expand(len(self.weights[0]), -1, -1)
        for level, (weight, bias) in enumerate(zip([*self.weights][:levels], self.biases)):
            if level > 0:
                x = x.relu_()
            x = torch.baddbmm(bias, x, weight)
        return x

    def tape(self, tape: Tape, rows: Units) -> Units:
        """One member, that of the tape's part, written down."""
        for weight, bias in zip(self.weights, self.biases):
            n = weight.shape[-1]
            # Members lie one after the other, and their weights as (inputs, outputs): a step to the next output is 1.
            weight_begin = tape.places[weight.data_ptr()] + tape.part * weight[0].numel()
            bias_begin = tape.places[bias.data_ptr()] + tape.part * bias[0].numel()
            is_last = weight is self.weights[-1]
            rows = tape.linear(rows, n, (weight_begin, 1, n, bias_begin), relu=not is_last)
        return rows
