"""Losses that shape a latent: what it must tell of the observation, and how much of it.

    barlow        the latent agrees with the embedding number by number, and numbers do not repeat each other
    infonce       the latent picks its own embedding among those of the batch
    consistency   what was foreseen is what was then encoded
    recon         what a decoder says is the observation (the networks: `agents.world_model.encoders.Decoder`)
    divergence    what was seen is near what was expected, with free nats
    KLBudget      ... as near as a budget says, and no nearer
    Empowerment   what an action was can be read off what it changed

All take rows (..., X) and give (...,), or a number where rows are compared with each other; masks are the caller's.

Sources: Barlow Zbontar et al. 2021 (arXiv 2103.03230), on latents as in R2-Dreamer (2025); InfoNCE van den Oord et al.
2018 (1807.03748); consistency Hansen et al. 2024 (TD-MPC2, 2310.16828, equation 3); divergence Hafner et al. 2023
(DreamerV3, 2301.04104, equation 5); budget Zhu et al. 2023 (RePo, 2309.00082, equations 3 to 5); empowerment Bharadhwaj
et al. 2022 (INFO-POWER, 2204.08585, equation 4).

Differences from the sources:
  - embeddings are targets: no gradient reaches the encoder through `barlow`; `infonce` compares cosines;
  - the logarithm of the budget's multiplier moves by at most its rate a step, whatever the gap; it begins at 1e-3 and
    the rate is 1e-2, not 1e-5 and 1e-4, which would need 100 000 steps to matter;
  - the inverse model of a continuous action is one Gaussian with its own deviation for each number.

When they fail: a budget too small for a sparse reward empties the latent before the first reward; InfoNCE keeps
whatever tells rows apart, a noisy background too; reconstruction keeps what is large, not what matters.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agents.networks.actor_critic import linear
from agents.networks.heads import symlog


def barlow(said: Tensor, seen: Tensor, off_diagonal: float = 5e-4) -> Tensor:
    """sum_i (C_ii - 1)^2 + off_diagonal * sum_{i != j} C_ij^2, C the correlations of columns, over all rows.

    Args:
        said: (..., E), projected from the latent.
        seen: (..., E), the embedding; a target.
        off_diagonal: weight of what columns share.
    """
    x, y = _standardized(said), _standardized(seen.detach())
    square = (x.T @ y / len(x) - torch.eye(x.shape[-1], device=x.device)).square()
    own = square.diagonal().sum()
    return own + off_diagonal * (square.sum() - own)


def _standardized(x: Tensor) -> Tensor:
    x = x.flatten(0, -2)
    x = x - x.mean(0)
    return x * torch.rsqrt(x.square().mean(0) + 1e-8)


def infonce(said: Tensor, seen: Tensor, temperature: float = 0.1) -> Tensor:
    """-log of the chance with which each row of `said` picks its own of `seen`, by cosine; a mean.

    Its least is 0, log N is no information. Memory grows with the square of the rows.

    Args:
        said: (..., E), projected from the latent.
        seen: (..., E), the embedding.
        temperature: divides the cosines.
    """
    x, y = (F.normalize(z.flatten(0, -2), dim=-1) for z in (said, seen))
    return F.cross_entropy(x @ y.T / temperature, torch.arange(len(x), device=x.device))


def consistency(foreseen: Tensor, encoded: Tensor) -> Tensor:
    """Mean squared error of latents (..., Z) -> (...,); what was encoded is a target."""
    return (foreseen - encoded.detach()).square().mean(-1)


def recon_vector(said: Tensor, vector: Tensor) -> Tensor:
    """Squared error of numbers in symlog's space, summed: (..., D) -> (...,). `said` lives in that space."""
    return (said - symlog(vector)).square().sum(-1)


def recon_pixels(said: Tensor, image: Tensor) -> Tensor:
    """Squared error of pixels in [0, 1], summed: (..., C, H, W), uint8 -> (...,)."""
    return (said - image.to(said.dtype) / 255).square().sum((-3, -2, -1))


def divergence(dyn: Tensor, rep: Tensor, dyn_weight: float = 1.0, rep_weight: float = 0.1, free: float = 1.0) -> Tensor:
    """Both sides of a cell's `kl` (...,), none of which pulls below `free` nats: (...,)."""
    return dyn_weight * dyn.clamp(min=free) + rep_weight * rep.clamp(min=free)


class KLBudget(nn.Module):
    """beta * (balance * dyn + (1 - balance) * rep - budget), where beta rises as long as the budget is overspent.

    Args:
        budget: epsilon, nats a step, above 0.
        learning_rate: the most that log beta moves in a step, above 0.
        balance: share of the divergence that moves the expectation, in [0, 1]; the source's k / (1 + k) with k = 5.
        beta: to begin with, above 0.

    Raises:
        ValueError: for numbers out of range.
    """

    log_beta: Tensor

    def __init__(
        self, budget: float = 3.0, learning_rate: float = 1e-2, balance: float = 5 / 6, beta: float = 1e-3
    ) -> None:
        super().__init__()
        for name, value in (("budget", budget), ("learning_rate", learning_rate), ("beta", beta)):
            if not 0 < value < math.inf:
                raise ValueError(f"a KL budget's {name}={value} is out of range; give a number above 0")
        if not 0 <= balance <= 1:
            raise ValueError(f"a KL budget's balance={balance} is out of range; give a number in [0, 1]")
        self.budget, self.learning_rate, self.balance = budget, learning_rate, balance
        self.register_buffer("log_beta", torch.tensor(math.log(beta)))

    @property
    def beta(self) -> Tensor:
        """The multiplier, a 0-d tensor."""
        return self.log_beta.exp()

    def forward(self, dyn: Tensor, rep: Tensor) -> Tensor:
        """The loss of mean divergences (0-d), and one step of the dual: call it once for each step of the model."""
        over = self.balance * dyn + (1 - self.balance) * rep - self.budget
        loss = self.beta * over
        with torch.no_grad():
            self.log_beta += self.learning_rate * torch.nan_to_num(over).clamp(-1, 1)
        return loss


class Empowerment(nn.Module):
    """log q(a | s, s') - log pi(a | s): what an action changed tells more of it than the policy did beforehand.

    Its mean over actions of the policy is a lower bound of I(a; s' | s).

    Args:
        features: F, length of a latent.
        action_size: A.
        discrete: whether actions are one-hot.
        hidden: units of the hidden layer.
    """

    def __init__(self, features: int, action_size: int, discrete: bool, hidden: int = 128) -> None:
        super().__init__()
        self.discrete = discrete
        self.net = nn.Sequential(
            linear(2 * features, hidden, 1.0),
            nn.LayerNorm(hidden, eps=1e-3),
            nn.SiLU(),
            linear(hidden, action_size * (1 if discrete else 2), 0.01),
        )

    def log_prob(self, features: Tensor, next_features: Tensor, action: Tensor) -> Tensor:
        """log q of actions (..., A) that led from one latent (..., F) to the next: (...,). Maximise it to learn q."""
        out = self.net(torch.cat([features, next_features], -1))
        if self.discrete:
            return (torch.log_softmax(out, -1) * action).sum(-1)
        mean, log_std = out.chunk(2, -1)
        log_std = log_std.clamp(-4.0, 1.0)
        scaled = (action - torch.tanh(mean)) * torch.exp(-log_std)
        return -(0.5 * scaled.square() + log_std + 0.5 * math.log(2 * math.pi)).sum(-1)

    def forward(self, features: Tensor, next_features: Tensor, action: Tensor, log_prob: Tensor) -> Tensor:
        """Nats (...,); `log_prob` (...,) is the policy's."""
        return self.log_prob(features, next_features, action) - log_prob
