"""Cells: how a world model remembers, takes in what it sees, and imagines. All of them speak like this:

    state = cell.initial(B)                                     before an episode
    states, stats = cell.observe(embed, action, first, state)   (L, B, ...): what is known of the world at each moment
    state = cell.step({k: v[-1] for k, v in states.items()}, action[-1])    a moment on, without looking
    cell.features(states)                                       (L, B, F), what every other network reads

A state is a dict of tensors: "z", the latent (..., Z), and for cells that remember "h", the memory (..., H).
The state given to `observe` is what the cell expected of the first moment: `initial` at an episode's start, otherwise
`step` of the state before and the action taken in it. So a sequence in two parts equals the whole, and an agent that
acts calls `observe` with L = 1, then `step` with the action that it chose.

    Cell           the base: initial state, reset, unroll
    Categoricals   a latent of several categoricals with straight-through samples, and the divergence of two
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from agents.networks.actor_critic import linear

State = dict[str, Tensor]


class Cell(nn.Module):
    """The memory and the imagination of a world model.

    Attributes:
        size: F, length of the features.
        sizes: name -> length of each part of a state.
        generator: draws the samples; on the device of the weights.
    """

    size: int
    sizes: dict[str, int]

    def __init__(self, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(0) if generator is None else generator

    def initial(self, batch: int) -> State:
        """What is known before an episode: nothing. Each part (batch, length), zeros."""
        like = next(self.parameters())
        return {name: like.new_zeros(batch, length) for name, length in self.sizes.items()}

    def observe(
        self, embed: Tensor, action: Tensor, first: Tensor, state: State | None = None, *, sample: bool = True
    ) -> tuple[State, dict[str, Any]]:
        """What is known at each moment of a sequence.

        Args:
            embed: (L, B, E), the observation at t, encoded.
            action: (L, B, A), taken in it; the last one leads out of the sequence and is not read.
            first: bool (L, B), whether an episode begins at t: all before is forgotten.
            state: what was expected of t = 0, (B, ...); None for nothing.
            sample: False for the likeliest latent.

        Returns:
            States (L, B, ...), and what `kl` reads.
        """
        raise NotImplementedError

    def step(self, state: State, action: Tensor, *, sample: bool = True) -> State:
        """A moment on, imagined: (B, ...), (B, A) -> (B, ...)."""
        raise NotImplementedError

    def features(self, state: State) -> Tensor:
        """(..., F)."""
        return torch.cat([state["h"], state["z"]], -1)

    def kl(self, stats: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
        """How far what was seen lies from what was expected, in nats, (L, B); twice, and equal.

        Gradients of the first (dyn) move the expectation, those of the second (rep) the latent. None for a cell without
        distributions.
        """
        return None

    def unroll(self, state: State, action: Tensor, *, sample: bool = True) -> State:
        """Imagine what a sequence of actions (H, B, A) leads to: the states after each, (H, B, ...)."""
        states = []
        for a in action:
            state = self.step(state, a, sample=sample)
            states.append(state)
        return {name: torch.stack([s[name] for s in states]) for name in state}

    def _begin(self, first: Tensor, state: State | None) -> State:
        """The state at the begin of a sequence, emptied where an episode begins; `first` (B,)."""
        empty = self.initial(len(first))
        if state is None:
            return empty
        return {name: torch.where(first[:, None], empty[name], state[name]) for name in empty}


class Categoricals:
    """A latent of G categoricals over C classes each, as G * C numbers.

    A share of each distribution is uniform, so that no class is ever impossible and divergences stay finite
    (DreamerV3). Gradients pass a sample as if it were its probabilities (straight through, Bengio et al. 2013).

    Args:
        groups: G.
        classes: C, at least 2.
        uniform: that share, in (0, 1].

    Raises:
        ValueError: for sizes out of range.
    """

    def __init__(self, groups: int, classes: int, uniform: float = 0.01) -> None:
        if groups < 1 or classes < 2:
            raise ValueError(f"{groups} categoricals of {classes} classes are no latent; give at least 1 of at least 2")
        if not 0 < uniform <= 1:
            raise ValueError(f"a uniform share of {uniform} is out of range; give a number above 0, at most 1")
        self.groups, self.classes, self.uniform, self.size = groups, classes, uniform, groups * classes

    def probabilities(self, logits: Tensor) -> Tensor:
        """(..., G * C) -> (..., G, C)."""
        chances = torch.softmax(logits.unflatten(-1, (self.groups, self.classes)), -1)
        return torch.add(self.uniform / self.classes, chances, alpha=1 - self.uniform)

    def uniforms(self, generator: torch.Generator, *leading: int) -> Tensor:
        """Random numbers for `sample`, (*leading, G, 1)."""
        return torch.rand(*leading, self.groups, 1, generator=generator, device=generator.device)

    def sample(self, chances: Tensor, uniforms: Tensor | None) -> Tensor:
        """One-hot (..., G * C); the likeliest without random numbers."""
        return _StraightThrough.apply(chances, uniforms).flatten(-2)

    def kl(self, posterior: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
        """KL(posterior || prior) summed over groups, twice, (...,): gradients to the prior, gradients to the posterior.

        Both are probabilities (..., G, C). Hafner et al. 2023 (arXiv 2301.04104), equation 5, without free nats.
        """
        log_posterior, log_prior = posterior.log(), prior.log()
        fixed = posterior.detach()
        dyn = (fixed * (log_posterior.detach() - log_prior)).sum((-2, -1))
        return dyn, (posterior * (log_posterior - log_prior.detach())).sum((-2, -1))


class _StraightThrough(torch.autograd.Function):
    """One-hot: the class into whose share of [0, 1) the random number falls."""

    @staticmethod
    def forward(ctx: Any, chances: Tensor, uniforms: Tensor | None) -> Tensor:
        if uniforms is None:
            chosen = chances.argmax(-1, keepdim=True)
        else:  # one number a group: an eighth of the time that Gumbel noise takes
            chosen = (chances.cumsum(-1)[..., :-1] <= uniforms).sum(-1, keepdim=True)
        return torch.zeros_like(chances).scatter_(-1, chosen, 1.0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def layer(inputs: int, outputs: int) -> nn.Sequential:
    """Linear, LayerNorm, SiLU: the layer of all cells."""
    return nn.Sequential(linear(inputs, outputs, 1.0), nn.LayerNorm(outputs, eps=1e-3), nn.SiLU())


def mlp(inputs: int, hidden: int, outputs: int, gain: float = 1.0) -> nn.Sequential:
    """One hidden `layer`, then a linear one."""
    return nn.Sequential(layer(inputs, hidden), linear(hidden, outputs, gain))
