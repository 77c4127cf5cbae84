"""Dynamics of discrete observations, entry by entry: each next value is predicted independently of the others.

A network maps (obs, action) to a probability for each binary entry and to a categorical for each one-hot; a second one
reads (obs, action, next_obs) and predicts the reward and whether the episode ends. Where an environment is made of
parts with rules of their own, parts learned separately generalise to combinations never seen.

Source: Young et al. 2023, arXiv 2211.02222: the "simple" model of independent Bernoullis. Differences: Discrete and
MultiDiscrete parts are categoricals, so that samples are observations again; logits begin at "stays as it is", with a
learned weight for each entry; reward and end are read off the sampled outcome.

When it fails: dependent entries (a ball that is here or there: independent entries show two balls, or none);
environments whose parts only show in images.
"""

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, log_softmax, one_hot, softplus

from agents.dynamics import Predicted
from agents.dynamics.ensemble import DynamicsEnsemble, EnsembleConfig
from agents.networks.actor_critic import SpaceEncoding
from agents.networks.stacked import Stacked

# The initial logit of an entry's present value: what never changes is not left to a network that overfits.
INITIAL_STAY_LOGIT = 6.0


class Factored(DynamicsEnsemble):
    """A `Dynamics` of independent entries; gradients do not flow through it, and `config.kind` has no meaning.

    `model_error` is the share of entries whose likeliest value is wrong; member predictions are each entry's
    probability p and its deviation. A ValueError refuses other entries than 0 and 1.
    """

    @torch.no_grad()
    def step(self, obs: Tensor, action: Tensor, *, sample: bool = True, member_predictions: bool = False) -> Predicted:
        """See `Dynamics.step`. Without `sample` every entry takes its likeliest value."""
        net = self.net
        x = torch.cat([obs, action], -1)
        means = stds = None
        if member_predictions:
            means = net.entries.probabilities(net(x, self._weights))
            stds = (means * (1 - means)).sqrt()
        if sample:
            next_obs = net.entries.sample(self._by_one_elite_each(x), self.generator)
        else:
            probabilities = net.entries.probabilities(net(x, self._elite)).mean(0)
            next_obs = net.entries.mode(probabilities)
        transition = torch.cat([x, next_obs], -1)
        reward, end_logits = net.outcome(transition, self._elite)
        ends = None if end_logits is None else end_logits.sigmoid().mean(0)
        return Predicted(next_obs, reward.mean(0), ends, means, stds)

    def _networks(self, encoding: SpaceEncoding, seed: int) -> nn.Module:
        return _Entries(encoding, self.config, seed)

    def _error(self, held: Tensor) -> float:
        obs, action, next_obs, _, _ = self.net.columns(held)
        predicted = self.step(obs, action, sample=False).next_obs
        return float((predicted != next_obs).float().mean())

    def _table(self, columns: tuple[Tensor, ...], rescale: bool) -> Tensor:
        """Rows of obs, action, next_obs, reward, terminated."""
        obs, action, next_obs, task, terminated, _ = columns
        table = torch.cat([obs, action, next_obs, task[:, None], terminated[:, None].float()], -1)
        not_binary = ((next_obs != 0) & (next_obs != 1)).nonzero()
        if len(not_binary):
            row, entry = not_binary[0].tolist()
            raise ValueError(
                f"entry {entry} of an observation is {float(next_obs[row, entry]):g}, and model=factored predicts 0 "
                "and 1; use model=ensemble"
            )
        largest = torch.maximum(self.net.unit, task.abs().amax())
        self.net.unit.copy_(largest)
        return table


class _Entries(nn.Module):
    """Both networks, on rows (..., W): obs, action, next_obs, reward, terminated."""

    unit: Tensor

    def __init__(self, encoding: SpaceEncoding, config: EnsembleConfig, seed: int) -> None:
        super().__init__()
        self.entries = Entries(encoding)
        self.width = encoding.obs_size
        self.actions = encoding.action_size
        self.terminations = config.terminations
        k = config.members
        d = encoding.obs_size
        inputs = d + encoding.action_size
        options: Any = {"activation": "elu", "norm": config.norm, "seed": seed}
        self.stays = nn.Parameter(torch.full((k, 1, d), INITIAL_STAY_LOGIT))
        self.next = Stacked(k, inputs, config.hidden, d, last=0.1, **options)
        self.reward = Stacked(k, inputs + d, config.hidden, 2, last=0.1, **options)
        # The largest reward seen, what the network's rewards are multiplied by.
        self.register_buffer("unit", torch.full((), 1e-6))

    def columns(self, rows: Tensor) -> tuple[Tensor, ...]:
        """obs, action and next_obs (..., n), reward and terminated (...,)."""
        widths = [self.width, self.actions, self.width, 2]
        obs, action, next_obs, numbers = rows.split(widths, -1)
        return obs, action, next_obs, numbers[..., 0], numbers[..., 1]

    def forward(self, x: Tensor, weights: list[Tensor]) -> Tensor:
        """(B, D + A) or (K, B, D + A) -> logits (K, B, D) of the next observation."""
        stays, *network_weights = weights
        change = self.next(x, network_weights[: len(self.next.stack)])
        # -1 or 1 for an entry that is 0 or 1.
        sign = 2 * x[..., : self.width] - 1
        return change + stays * sign

    def outcome(self, x: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor | None]:
        """(B, 2 D + A) or (K, B, 2 D + A) -> reward (K, B), logit (K, B) of an end."""
        out = self.reward(x, weights[1 + len(self.next.stack) :])
        ends = out[..., 1] if self.terminations else None
        return out[..., 0] * self.unit, ends

    def losses(self, rows: Tensor) -> Tensor:
        """Each member's (K,) negative log-likelihood of an outcome, with the reward's squared error."""
        obs, action, next_obs, reward, terminated = self.columns(rows)
        weights: list[Tensor] = list(self.parameters())
        x = torch.cat([obs, action], -1)
        loss = self.entries.loss(self(x, weights), next_obs)
        transition = torch.cat([x, next_obs], -1)
        predicted, ends = self.outcome(transition, weights)
        error = (predicted - reward) / self.unit
        loss = loss + error.square()
        if ends is not None:
            labels = terminated.expand_as(ends)
            loss = loss + binary_cross_entropy_with_logits(ends, labels, reduction="none")
        return loss.mean(1)

    def bound_loss(self) -> float:
        return 0.0


def _is_binary(space: spaces.Space) -> bool:
    if isinstance(space, spaces.MultiBinary):
        return True
    assert isinstance(space, spaces.Box)
    return bool((space.low >= 0).all() and (space.high <= 1).all())


class Entries(nn.Module):
    """The columns of an observation that are bits, and those that form a one-hot."""

    bits: Tensor

    def __init__(self, encoding: SpaceEncoding) -> None:
        super().__init__()
        if encoding.images:
            raise ValueError(f"model=factored cannot predict images in {encoding.observation_space}; use world_model")
        bits: list[int] = []
        # Number of values -> the columns of every one-hot with so many.
        hots: dict[int, list[list[int]]] = {}
        begin = 0
        for key, part in encoding.flat.items():
            space = encoding.observation_space if encoding.bare else encoding.observation_space[key]
            end = begin + part.length
            if part.sizes:
                start = begin
                for size in part.sizes:
                    columns = list(range(start, start + size))
                    hots.setdefault(size, []).append(columns)
                    start += size
            elif _is_binary(space):
                bits += range(begin, end)
            else:
                raise ValueError(f"model=factored predicts 0 and 1, and {space} holds others; use model=ensemble")
            begin = end
        self.register_buffer("bits", torch.tensor(bits, dtype=torch.int64), persistent=False)
        self._sizes = list(hots)
        for size, positions in hots.items():
            self.register_buffer(f"hots_{size}", torch.tensor(positions), persistent=False)

    @property
    def hots(self) -> list[Tensor]:
        """Columns of the one-hots, (how many, values) for each number of values."""
        return [getattr(self, f"hots_{size}") for size in self._sizes]

    def probabilities(self, logits: Tensor) -> Tensor:
        """(..., D) of each column being 1."""
        out = logits.sigmoid()
        for columns in self.hots:
            out[..., columns] = logits[..., columns].softmax(-1)
        return out

    def sample(self, logits: Tensor, generator: torch.Generator) -> Tensor:
        """A random observation (..., D)."""
        noise = torch.empty_like(logits).exponential_(generator=generator)
        # P(exponential > x) = exp(-x), here the sigmoid of the logit.
        bits = noise > softplus(-logits)
        # Minus the logarithm of the same numbers is Gumbel noise.
        return self._choose(bits, logits - noise.log())

    def mode(self, probabilities: Tensor) -> Tensor:
        """The likeliest value of every entry, (..., D)."""
        return self._choose(probabilities > 0.5, probabilities)

    def _choose(self, bits: Tensor, scores: Tensor) -> Tensor:
        """The bits (..., D), and of each one-hot the value with the largest score (..., D)."""
        out = bits.float()
        for columns in self.hots:
            index = scores[..., columns].argmax(-1)
            out[..., columns] = one_hot(index, columns.shape[1]).float()
        return out

    def loss(self, logits: Tensor, obs: Tensor) -> Tensor:
        """Negative log-likelihood of an observation (..., D), summed over its entries: (...)."""
        obs = obs.expand_as(logits)
        bit_logits = logits
        bits = obs
        if self._sizes:
            bit_logits = logits[..., self.bits]
            bits = obs[..., self.bits]
        loss = binary_cross_entropy_with_logits(bit_logits, bits, reduction="none").sum(-1)
        for columns in self.hots:
            log_probs = log_softmax(logits[..., columns], -1)
            log_prob = log_probs * obs[..., columns]
            loss = loss - log_prob.sum((-1, -2))
        return loss
