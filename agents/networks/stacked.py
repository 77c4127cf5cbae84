"""Several networks of equal shape side by side: one batched product for all members instead of a loop over them.

net = Stacked(5, inputs=20, hidden=[128, 128], outputs=34, activation="silu", seed=3)
net(x)                              (5, B, 34) from (B, 20), the same for all, or from (5, B, 20)
net(x, net.members([0, 3]))         (2, B, 34): some of them
net(x, generator=g)                 with dropout, whose masks `g` draws; without a generator nothing is dropped

Sources: layer normalisation Ba et al. 2016, arXiv 1607.06450, before the activation as in BRO and TD-MPC2; batch
renormalisation Ioffe 2017, arXiv 1702.03275, placed as CrossQ does (Bhatt et al. 2024, arXiv 1902.05605): on the input
and after each activation.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Activation = Callable[..., Tensor]
ACTIVATIONS: dict[str, Activation] = dict(relu=F.relu, silu=F.silu, mish=F.mish, elu=F.elu, tanh=torch.tanh)
NORMS = ("none", "layer", "batch")
# Share of a batch's statistics in the running ones.
MOMENTUM = 0.01
# How far batch statistics are corrected towards the running ones.
MAX_CORRECTION_SCALE = 3.0
MAX_CORRECTION_SHIFT = 5.0
# Steps of plain batch normalisation before the correction begins.
WARM_UP = 100_000


class Stacked(nn.Module):
    """K networks of fully connected layers, which begin as torch's do: +-1/sqrt(inputs).

    `members`, `inputs`, `outputs` are K, I and O; `dropout` is the share of hidden units dropped in training; `last` is
    what the last layer's first weights are multiplied by; 0 lets the networks begin at 0.
    """

    def __init__(
        self,
        members: int,
        inputs: int,
        hidden: list[int],
        outputs: int,
        *,
        activation: str = "relu",
        norm: str = "none",
        dropout: float = 0.0,
        last: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.count = members
        self.inputs = inputs
        self.outputs = outputs
        self.hidden = list(hidden)
        self.activation = ACTIVATIONS[activation]
        self.norm = norm
        self.dropout = dropout
        # Of each layer weight (K, I, O) and bias (K, 1, O); where there is layer normalisation also gain and shift.
        self.stack = nn.ParameterList()
        draw = torch.Generator().manual_seed(seed)
        sizes = [inputs, *hidden, outputs]
        for number, (before, after) in enumerate(itertools.pairwise(sizes)):
            limit = 1 / math.sqrt(before)
            is_last = number == len(hidden)
            for shape in ((members, before, after), (members, 1, after)):
                first = torch.empty(shape).uniform_(-limit, limit, generator=draw)
                self.stack.append(nn.Parameter(first * last if is_last else first))
            if norm == "layer" and not is_last:
                gain = torch.ones(members, 1, after)
                shift = torch.zeros_like(gain)
                self.stack += [nn.Parameter(gain), nn.Parameter(shift)]
        self.renorms = None
        if norm == "batch":
            self.renorms = nn.ModuleList(Renorm(members, size) for size in sizes[:-1])

    def weights(self) -> list[Tensor]:
        return list(self.stack)

    def members(self, which: Any) -> list[Tensor]:
        """Parameters of some members: an index, a slice, a list or a tensor of places."""
        if isinstance(which, int):
            which = slice(which, which + 1)
        return [p[which] for p in self.stack]

    def forward(
        self,
        x: Tensor,
        weights: list[Tensor] | None = None,
        *,
        generator: torch.Generator | None = None,
        batch_stats: bool = False,
    ) -> Tensor:
        """(B, I), the same for all, or (K, B, I) -> (K, B, O); `weights` are used instead of the module's own.

        `generator` draws what is dropped, None for no dropout. `batch_stats`, for norm="batch": statistics of this
        batch.
        """
        stack = iter(self.stack if weights is None else weights)
        depth = len(self.hidden)
        for number in range(depth + 1):
            if self.renorms is not None:
                x = self.renorms[number](x, batch_stats)
            weight = next(stack)
            bias = next(stack)
            # A batched product with a vector is five times slower than this one.
            if number == depth and self.outputs == 1:
                return torch.linalg.vecdot(x, weight.mT).unsqueeze(-1) + bias
            if x.dim() == 2:
                x = x.expand(len(weight), *x.shape)
            x = torch.baddbmm(bias, x, weight)
            if number == depth:
                return x
            if self.norm == "layer":
                gain = next(stack)
                shift = next(stack)
                normalised = F.layer_norm(x, x.shape[-1:])
                x = torch.addcmul(shift, normalised, gain)
            x = self.activation(x)
            if generator is not None and self.dropout:
                keep = torch.empty_like(x).bernoulli_(1 - self.dropout, generator=generator)
                x = x * keep / (1 - self.dropout)
        return x

    def fold(self, scale: Tensor, shift: Tensor, weights: list[Tensor] | None = None) -> None:
        """Adapt the first layer to inputs (x - shift) / scale, both (n,), so that outputs stay; or `weights`."""
        n = len(scale)
        if self.renorms is not None:
            # The running statistics belong to the module, not to other weights of its shape.
            first: Any = self.renorms[0]
            if weights is None:
                shifted_mean = first.mean[..., :n] - shift
                first.mean[..., :n] = shifted_mean / scale
                first.var[..., :n] /= scale.square()
            return
        stack = self.weights() if weights is None else weights
        with torch.no_grad():
            stack[1] += shift[None] @ stack[0][:, :n]
            stack[0][:, :n] *= scale[:, None]


class Renorm(nn.Module):
    """Batch renormalisation of K members' features (K, B, F): training sees what acting sees; no gain and shift."""

    mean: Tensor
    var: Tensor
    steps: Tensor

    def __init__(self, members: int, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(members, 1, features))
        self.register_buffer("var", torch.ones(members, 1, features))
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor, batch_stats: bool = False) -> Tensor:
        """(B, F) or (K, B, F) -> (K, B, F)."""
        if not batch_stats:
            return (x - self.mean) * torch.rsqrt(self.var + 1e-5)
        mean = x.mean(-2, keepdim=True)
        var = x.var(-2, unbiased=False, keepdim=True)
        deviation = torch.sqrt(var + 1e-5)
        with torch.no_grad():
            running = torch.sqrt(self.var + 1e-5)
            warm = self.steps >= WARM_UP
            # Equations 3 and 4 of batch renormalisation, r and d.
            scale = (deviation / running).clamp(1 / MAX_CORRECTION_SCALE, MAX_CORRECTION_SCALE)
            shift = ((mean - self.mean) / running).clamp(-MAX_CORRECTION_SHIFT, MAX_CORRECTION_SHIFT)
            scale = torch.where(warm, scale, 1.0)
            shift = torch.where(warm, shift, 0.0)
            self.mean.lerp_(mean.expand_as(self.mean), MOMENTUM)
            self.var.lerp_(var.expand_as(self.var), MOMENTUM)
            self.steps += 1
        return (x - mean) / deviation * scale + shift
