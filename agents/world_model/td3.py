"""TD3 on a representation that predicts itself (MR.Q): a model-based latent, no rollouts.

The latent model learns to predict its own latents, rewards and ends a few steps ahead; its hidden layer for (z, a) is
the input of values, its latent z that of the policy. One set of settings serves vectors and images.

    zsa = f(z, a)        Q_k(zsa) -> sum_{i<n} gamma^i r_i / s + gamma^n min_k Q'_k(zsa'(z', pi'(z') + noise))

Source: Fujimoto et al. 2025 (MR.Q), arXiv 2501.16142; prioritised rows as in Fujimoto et al. 2020 (LAP), 2007.06049.
Differences: the latent is SimNorm's; discrete actions are enumerated, there is no policy; rewards are divided by their
root mean square, gentler to rare ones than the mean of their sizes; returns are cut at the last observation of a
truncated episode; the end is a probability, with its weight from the start.
When it fails: partial observation (there is no memory); sparse rewards that action noise does not reach.
"""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from agents.dynamics.cells import State, mlp
from agents.networks.actor_critic import SpaceEncoding
from agents.networks.stacked import Stacked
from agents.replay.replay import Sequences
from agents.world_model.imag_ac import Behaviour
from agents.world_model.model import LatentModel, Replayed, weighted_mean

SMOOTHING = (0.2, 0.3)  # deviation of the noise on target actions, and where it is cut
CALM = 1e-5  # weight of the policy's squared outputs before tanh, which keeps their gradient from vanishing


def n_step(
    reward: Tensor, terminated: Tensor, first: Tensor, valid: Tensor, n: int, gamma: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Discounted rewards from the first row of each sequence (L, B), L > n, on, until an end or for n steps.

    Returns the sum (B,), the discount of the value after it (0 after an end), the row (B,) whose observation has that
    value, and bool (B,) whether the return is known: a row whose episode was cut after it has no successor.
    """
    linked = valid[:n] & ~first[1 : n + 1]  # the next row's observation follows this one
    ended = valid[:n] & (terminated[:n] > 0)
    continues = torch.cat([torch.ones_like(linked[:1]), linked[:-1] & ~ended[:-1]]).cumprod(0).bool()
    taken = continues & (linked | ended)
    powers = gamma ** torch.arange(n, device=reward.device, dtype=reward.dtype)
    total = (taken * powers[:, None] * reward[:n]).sum(0)
    count = taken.sum(0)
    discount = gamma ** count.to(reward.dtype) * ~(taken & ended).any(0)
    return total, discount, count, taken[0]


class LatentTD3(Behaviour):
    """Values on a `SimNorm` model's hidden (z, a), and for continuous actions a policy on z."""

    networks = {"critic": "q", "slow": "slow_q", "actor": "policy", "slow_actor": "slow_policy"}
    scale: Tensor
    slow_scale: Tensor

    def _build(self, encoding: SpaceEncoding, features: int, seed: int) -> None:
        hidden = self.config.hidden
        sizes = (self.config.critics, hidden, [hidden, hidden], 1)
        self.q = Stacked(*sizes, activation="elu", norm="layer", last=0.1, seed=seed)  # near 0, and no ties
        self.slow_q = copy.deepcopy(self.q)
        # nothing to learn where actions are enumerated, but a module has parameters
        self.policy = mlp(features, hidden, self.action_size, 0.01, layers=2)
        self.slow_policy = copy.deepcopy(self.policy)
        self.register_buffer("scale", torch.ones(()))  # what rewards are divided by
        self.register_buffer("slow_scale", torch.ones(()))
        self.errors: tuple[Tensor, Tensor] | None = None  # the last rows (B,), the largest error of any critic (B,)

    def act(self, world: LatentModel, state: State, memory: State, deterministic: bool = False) -> tuple[Tensor, State]:
        z, noise = state["z"], 0.0 if deterministic else self.config.exploration
        if not self.discrete:
            action = torch.tanh(self.policy(z))
            return (action + noise * self._normal(action)).clamp(-1, 1), memory
        action = self._greedy(self._values(world.cell, self.q, z).mean(0))
        if noise:
            chance = torch.rand(len(z), 1, generator=self.generator, device=z.device)
            random = torch.randint(self.action_size, (len(z),), generator=self.generator, device=z.device)
            action = torch.where(chance < noise / 2, F.one_hot(random, self.action_size).to(z.dtype), action)
        return action, memory

    def begin_burst(self, world: LatentModel, reward: Tensor) -> None:
        """Copy the weights to the slow networks, and set the scale of rewards (...,)."""
        for slow, fast in (("slow", "critic"), ("slow_actor", "actor")):
            self._flats[slow].value.copy_(self._flats[fast].value)
        world.catch_up()
        self.slow_scale.copy_(self.scale)
        size = reward.square().mean().sqrt()
        self.scale.copy_(torch.where(size > 0, size, self.scale))  # all are 0: keep the scale

    def update(self, world: LatentModel, sequences: Sequences, replayed: Replayed | None = None) -> dict[str, Tensor]:
        """One step of critics and policy on sequences longer than `n_step`; returns metrics."""
        config, seq, slow = self.config, sequences, world.slow
        assert slow is not None, "behaviour=td3 has target copies"
        given = (seq.reward, seq.terminated, seq.first, seq.valid)
        total, discount, last, known = n_step(*given, config.n_step, config.gamma)
        rows = torch.arange(len(total), device=total.device)
        with torch.no_grad():
            z = world.encode(seq.vector[0], {key: image[0] for key, image in seq.pixels.items()})["z"]
            ahead = {key: image[last, rows] for key, image in seq.pixels.items()}
            next_z = world.encode(seq.vector[last, rows], ahead, slow=True)["z"]
            target = (total + discount * self._next_value(slow["cell"], next_z) * self.slow_scale) / self.scale
            zsa = joint(world.cell, z, seq.action[0])
        q = self.q(zsa).squeeze(-1)
        gap = (q - target).abs()
        loss = weighted_mean(F.smooth_l1_loss(q, target.expand_as(q), reduction="none"), known)  # summed over critics
        self.descend(loss, "critic")
        self.errors = (seq.index[0], torch.where(known, gap.detach().amax(0), 0.0))
        metrics = {"critic_loss": loss, "value": q.mean() * self.scale, "reward_scale": self.scale}
        if not self.discrete:  # the policy ascends the mean value
            raw = self.policy(z)
            zsa = joint(world.cell, z, torch.tanh(raw), frozen=True)
            value = self.q(zsa, [p.detach() for p in self.q.weights()]).mean(0).squeeze(-1)
            loss = weighted_mean(CALM * raw.square().mean(-1) - value, known)
            self.descend(loss, "actor")
            metrics["actor_loss"] = loss
        self.updates += 1
        return metrics

    def _next_value(self, cell: Any, z: Tensor) -> Tensor:
        """Values of latents (B, Z) by the slow networks: (B,)."""
        if self.discrete:
            values = self._values(cell, self.slow_q, z)
            return (values.amin(0) * self._greedy(values.mean(0))).sum(-1)
        action = torch.tanh(self.slow_policy(z))
        noise = (SMOOTHING[0] * self._normal(action)).clamp(-SMOOTHING[1], SMOOTHING[1])
        return self.slow_q(joint(cell, z, (action + noise).clamp(-1, 1))).amin(0).squeeze(-1)

    def _values(self, cell: Any, q: Stacked, z: Tensor) -> Tensor:
        """Values of all actions, (K, B, A)."""
        every = torch.eye(self.action_size, device=z.device).repeat(len(z), 1)
        return q(joint(cell, z.repeat_interleave(self.action_size, 0), every)).view(-1, len(z), self.action_size)

    def _greedy(self, values: Tensor) -> Tensor:
        return F.one_hot(values.argmax(-1), self.action_size).to(values.dtype)

    def _normal(self, like: Tensor) -> Tensor:
        return torch.empty_like(like).normal_(generator=self.generator)


def joint(cell: Any, z: Tensor, action: Tensor, frozen: bool = False) -> Tensor:
    """The last hidden layer on the way from (z, a) to the next latent: (B, hidden)."""
    trunk, both = cell.next[:-1], torch.cat([z, action], -1)
    if not frozen:
        return trunk(both)
    return functional_call(trunk, {name: p.detach() for name, p in trunk.named_parameters()}, (both,))
