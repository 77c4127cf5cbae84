"""SSM: a memory that is a gated sum of the past, computed for a whole sequence at once; the cell of Drama.

Each frame has its latent, whatever came before; a stack of linear recurrences over latents and actions says which
latent comes next. As the recurrence is linear, training needs no loop over time, and imagination one cheap step.

    z_t ~ q(. | embed_t)        s_t = a_t s_{t-1} + sqrt(1 - a_t^2) i_t x_t        h_{t+1} = layers(z_t, a_t, s)
    expected: z_{t+1} ~ p(. | h_{t+1})        decay a_t and gate i_t are functions of the layer's input x_t

Source: Wang et al. 2025, "Drama: Mamba-enabled model-based reinforcement learning is sample and parameter efficient",
arXiv 2410.08893; the recurrence is that of De et al. 2024, "Griffin", arXiv 2402.19427, equations 1 to 4 (RG-LRU).

Differences from the source:
  - a diagonal gated recurrence in plain torch in place of Mamba: no CUDA kernels to build, runs on a CPU;
  - every layer is LayerNorm, recurrence, gate, and back to the width, added to its input; no convolution, no MLP;
  - width 128, 16 categoricals of 8 classes.

When it fails: frames that only the past explains: the latent does not see it, only the memory does.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agents.dynamics.cells import Categoricals, Cell, State, layer, mlp
from agents.networks.actor_critic import linear

SHARPNESS = 8.0  # c of Griffin's equation 3


class SSM(Cell):
    """Memory "h" (..., memory), latent "z" (..., groups * classes), and the sums "s" (..., layers * memory).

    Args:
        embed_size: E.
        action_size: A.
        memory: width of each recurrence.
        layers: how many.
        groups: categoricals of the latent.
        classes: of each.
        hidden: units of the hidden layers in front of distributions.
        generator: draws the latents; None for one on the CPU, seeded with 0.

    Raises:
        ValueError: for a latent without a choice.
    """

    def __init__(
        self,
        embed_size: int,
        action_size: int,
        *,
        memory: int = 128,
        layers: int = 2,
        groups: int = 16,
        classes: int = 8,
        hidden: int = 128,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(generator)
        self.latent = Categoricals(groups, classes)
        self.sizes = {"h": memory, "z": self.latent.size, "s": layers * memory}
        self.size = memory + self.latent.size
        self.seen = mlp(embed_size, hidden, self.latent.size)
        self.prior = mlp(memory, hidden, self.latent.size)
        self.enter = layer(self.latent.size + action_size, memory)
        self.layers = nn.ModuleList(_Recurrence(memory) for _ in range(layers))

    def observe(
        self, embed: Tensor, action: Tensor, first: Tensor, state: State | None = None, *, sample: bool = True
    ) -> tuple[State, dict[str, Any]]:
        begin = self._begin(first[0], state)
        continues = (~first)[..., None].to(embed.dtype)
        posterior = self.latent.probabilities(self.seen(embed))
        z = self.latent.sample(posterior, self.latent.uniforms(self.generator, *first.shape) if sample else None)
        x, sums = self.enter(torch.cat([z[:-1], action[:-1]], -1)), []
        for recurrence, s in zip(self.layers, begin["s"].chunk(len(self.layers), -1)):
            x, after = recurrence(x, s, continues[:-1])
            sums.append(torch.cat([s[None], after]))
        states = {
            "h": torch.cat([begin["h"][None], x]) * continues,
            "z": z,
            "s": torch.cat(sums, -1) * continues,
        }
        return states, {"posterior": posterior, "prior": self.latent.probabilities(self.prior(states["h"]))}

    def step(self, state: State, action: Tensor, *, sample: bool = True) -> State:
        x, sums = self.enter(torch.cat([state["z"], action], -1))[None], []
        for recurrence, s in zip(self.layers, state["s"].chunk(len(self.layers), -1)):
            x, after = recurrence(x, s)
            sums.append(after[0])
        uniforms = self.latent.uniforms(self.generator, len(action)) if sample else None
        z = self.latent.sample(self.latent.probabilities(self.prior(x[0])), uniforms)
        return {"h": x[0], "z": z, "s": torch.cat(sums, -1)}

    def kl(self, stats: dict[str, Any]) -> tuple[Tensor, Tensor]:
        return self.latent.kl(stats["posterior"], stats["prior"])


class _Recurrence(nn.Module):
    """(L, B, W) -> (L, B, W), and its sums (L, B, W)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=1e-3)
        self.enter = linear(width, 4 * width, 1.0)
        self.leave = linear(width, width, 1.0)
        slowest = -torch.linspace(0.9, 0.999, width).log() / SHARPNESS  # with an open gate, as in Griffin
        self.rate = nn.Parameter(torch.log(torch.expm1(slowest)))

    def forward(self, x: Tensor, s: Tensor, continues: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
        value, gate, decay, leaves = self.enter(self.norm(x)).chunk(4, -1)
        log_a = -SHARPNESS * F.softplus(self.rate) * torch.sigmoid(decay)
        kept = (-torch.expm1(2 * log_a)).clamp(min=1e-6).sqrt()  # the sum keeps its variance; below, the root is steep
        sums = scan(log_a.exp() * continues, kept * torch.sigmoid(gate) * value, s)
        return x + self.leave(sums * F.silu(leaves)), sums


def scan(a: Tensor, b: Tensor, s: Tensor) -> Tensor:
    """s_t = a_t s_{t-1} + b_t for all t, from s_{-1} = `s`.

    Args:
        a: (L, B, W); 0 where nothing is carried over.
        b: (L, B, W).
        s: (B, W).

    Returns:
        (L, B, W), after about 2 sqrt(L) steps one after the other. Differentiable once.
    """
    return torch.addcmul(b, a, s[None]) if len(a) == 1 else _Scan.apply(a, b, s)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, s: Tensor) -> Tensor:
        sums = _in_chunks(a, b, s)
        ctx.save_for_backward(a, s, sums)
        return sums

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, s, sums = ctx.saved_tensors
        if not len(a):
            return a, a, torch.zeros_like(s)
        # What a sum does to the loss it does now, or through the next one: the same recurrence, backwards.
        back = torch.cat([torch.zeros_like(a[:1]), a[1:].flip(0)])
        grad = _in_chunks(back, grads[0].flip(0), torch.zeros_like(s)).flip(0)
        return grad * torch.cat([s[None], sums[:-1]]), grad, grad[0] * a[0]


def _in_chunks(a: Tensor, b: Tensor, s: Tensor) -> Tensor:
    """The recurrence: inside all chunks at once as if nothing came before, then from chunk to chunk what did."""
    length = len(a)
    size = max(1, math.isqrt(length))
    missing = -length % size
    if missing:
        a, b = (F.pad(x, (0, 0, 0, 0, 0, missing)) for x in (a, b))
    sums, carried = (x.clone().unflatten(0, (-1, size)) for x in (b, a))  # (chunks, size, B, W)
    for t in range(1, size):
        sums[:, t].addcmul_(carried[:, t], sums[:, t - 1])
        carried[:, t].mul_(carried[:, t - 1])
    for chunk, share in zip(sums, carried):
        chunk.addcmul_(share, s)
        s = chunk[-1]
    return sums.flatten(0, 1)[:length]
