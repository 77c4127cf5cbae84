"""Networks that remember the steps before: K gated recurrent units of one shape as one, with a number at every step.

    r, u = sigmoid(W x + b + U h + c)    n = tanh(W' x + b' + r (U' h + c'))    h <- (1 - u) n + u h    f = w h + v

Source: Cho et al. 2014, arXiv 1406.1078 (GRU); equations as torch.nn.GRU has them. Causal: a step's number depends on
it and on those before. Differences: K members in one product, as in `StackedHeads`.
"""

import math

import torch
from torch import Tensor, nn


class StackedGRU(nn.Module):
    """Sequences (B, L, inputs) or (K, B, L, inputs) -> numbers (K, B, L); `step` by step where they are not whole."""

    def __init__(self, members: int, inputs: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.hidden = hidden
        # In this order: weights and biases of the inputs, of the state before, and of the head.
        self.weights = nn.ParameterList()
        gates = 3 * hidden
        for before, after in ((inputs, gates), (hidden, gates), (hidden, 1)):
            for rows in (before, 1):
                weight = torch.empty(members, rows, after)
                weight.uniform_(-1, 1, generator=generator)
                self.weights.append(weight / math.sqrt(hidden))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.states(x))

    def states(self, x: Tensor) -> Tensor:
        """h after every step of sequences that begin at h = 0: (K, B, L, hidden)."""
        batch, length = x.shape[-3:-1]
        gates = self.gates(x.flatten(-3, -2))
        gates = gates.unflatten(1, (batch, length))
        h = gates.new_zeros(len(gates), batch, self.hidden)
        states = []
        for t in range(length):
            h = self.step(gates[:, :, t], h)
            states.append(h)
        return torch.stack(states, dim=2)

    def gates(self, x: Tensor) -> Tensor:
        """What rows (N, inputs), or (K, N, inputs), contribute to the gates: (K, N, 3 hidden)."""
        weight = self.weights[0]
        rows = x.expand(len(weight), -1, -1)
        return torch.baddbmm(self.weights[1], rows, weight)

    def step(self, gates: Tensor, h: Tensor) -> Tensor:
        """h (K, N, hidden) one step later."""
        recurrent = torch.baddbmm(self.weights[3], h, self.weights[2])
        sizes = [2 * self.hidden, self.hidden]
        gates, candidate = gates.split(sizes, dim=-1)
        recurrent_gates, recurrent_candidate = recurrent.split(sizes, dim=-1)
        shares = torch.sigmoid(gates + recurrent_gates)
        reset, keep = shares.chunk(2, dim=-1)
        new = torch.tanh(candidate + reset * recurrent_candidate)
        # Equal to (1 - keep) * new + keep * h, with one product less.
        return new + keep * (h - new)

    def head(self, h: Tensor) -> Tensor:
        """The number of each state (K, ..., hidden): (K, ...)."""
        rows = h.flatten(1, -2)
        numbers = torch.baddbmm(self.weights[5], rows, self.weights[4])
        return numbers.reshape(h.shape[:-1])
