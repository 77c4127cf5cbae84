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
from agents.world_model.imag_ac import Behaviour, one_hot_argmax
from agents.world_model.model import LatentModel, Losses, weighted_mean
from lodestar.mappings import take_rows
from lodestar.numerics.descent import draw_integers, draw_normal, draw_uniform

# Deviation of the noise on target actions, and where it is cut.
TARGET_NOISE_STD = 0.2
MAX_TARGET_NOISE = 0.3
# Weight of the policy's squared outputs before tanh: where tanh is flat their gradient would vanish.
PRE_TANH_WEIGHT = 1e-5


def n_step(
    reward: Tensor, terminated: Tensor, first: Tensor, valid: Tensor, n: int, gamma: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Discounted rewards from the first row of each sequence (L, B), L > n, on, until an end or for n steps.

    Returns the sum (B,), the discount of the value after it (0 after an end), the row (B,) whose observation has that
    value, and bool (B,) whether the return is known: a row whose episode was cut after it has no successor.
    """
    # The next row's observation follows this row's action.
    linked = valid[:n] & ~first[1 : n + 1]
    ended = valid[:n] & (terminated[:n] > 0)
    # Row i counts while all rows before it are linked and not ended.
    continued = linked[:-1] & ~ended[:-1]
    unbroken = torch.cat([torch.ones_like(linked[:1]), continued])
    reached = unbroken.cumprod(0).bool()
    counted = reached & (linked | ended)
    times = torch.arange(n, device=reward.device, dtype=reward.dtype)
    powers = gamma**times
    discounted = counted * powers[:, None] * reward[:n]
    total = discounted.sum(0)
    count = counted.sum(0)
    is_over = (counted & ended).any(0)
    discount = gamma ** count.to(reward.dtype) * ~is_over
    return total, discount, count, counted[0]


class LatentTD3(Behaviour):
    """Values on a `SimNorm` model's hidden (z, a), and for continuous actions a policy on z."""

    networks = {"critic": "q", "slow": "slow_q", "actor": "policy", "slow_actor": "slow_policy"}
    scale: Tensor
    slow_scale: Tensor

    def _build(self, encoding: SpaceEncoding, features: int, seed: int) -> None:
        hidden = self.config.hidden
        # The last layer begins small: values near 0, and no ties between actions.
        self.q = Stacked(
            self.config.critics,
            hidden,
            [hidden, hidden],
            1,
            activation="elu",
            norm="layer",
            last=0.1,
            seed=seed,
        )
        self.slow_q = copy.deepcopy(self.q)
        # Where actions are enumerated the policy has nothing to learn, but a flat vector needs parameters.
        self.policy = mlp(features, hidden, self.action_size, 0.01, layers=2)
        self.slow_policy = copy.deepcopy(self.policy)
        # What rewards are divided by.
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("slow_scale", torch.ones(()))
        # The last update's rows (B,) of the replay, and the largest error of any critic there (B,).
        self.errors: tuple[Tensor, Tensor] | None = None

    def act(self, world: LatentModel, state: State, memory: State, deterministic: bool = False) -> tuple[Tensor, State]:
        z = state["z"]
        noise = 0.0 if deterministic else self.config.exploration
        if not self.discrete:
            action = torch.tanh(self.policy(z))
            action = action + noise * draw_normal(self.generator, *action.shape)
            return action.clamp(-1, 1), memory
        values = self._values(world.cell, self.q, z)
        action = one_hot_argmax(values.mean(0))
        if noise:
            generator = self.generator
            chance = draw_uniform(generator, len(z), 1)
            index = draw_integers(generator, self.action_size, len(z))
            random_action = F.one_hot(index, self.action_size).to(z.dtype)
            action = torch.where(chance < noise / 2, random_action, action)
        return action, memory

    def begin_burst(self, world: LatentModel, reward: Tensor) -> None:
        """Copy the weights to the slow networks, and set the scale of rewards (...,)."""
        self._flats["slow"].value.copy_(self._flats["critic"].value)
        self._flats["slow_actor"].value.copy_(self._flats["actor"].value)
        world.catch_up()
        self.slow_scale.copy_(self.scale)
        size = reward.square().mean().sqrt()
        # Where all rewards are 0 the scale stays.
        scale = torch.where(size > 0, size, self.scale)
        self.scale.copy_(scale)

    def update(self, world: LatentModel, seq: Sequences) -> Losses:
        """One step of critics and policy on sequences longer than `n_step`; returns metrics."""
        with torch.no_grad():
            pixels = take_rows(seq.pixels, 0)
            z = world.encode(seq.vector[0], pixels)
            target, known = self._value_targets(world, seq)
            zsa = joint_hidden(world.cell, z, seq.action[0])
        q = self.q(zsa).squeeze(-1)
        error = (q - target).abs()
        losses = F.smooth_l1_loss(q, target.expand_as(q), reduction="none")
        # `known` has no axis of critics, so that the losses are summed over them.
        loss = weighted_mean(losses, known)
        self.descend(loss, "critic")
        largest_error = error.detach().amax(0)
        self.errors = (seq.index[0], torch.where(known, largest_error, 0.0))
        metrics = {"critic_loss": loss, "value": q.mean() * self.scale, "reward_scale": self.scale}
        if not self.discrete:
            metrics["actor_loss"] = self._update_policy(world, z, known)
        self.updates += 1
        return metrics

    def _value_targets(self, world: LatentModel, seq: Sequences) -> tuple[Tensor, Tensor]:
        """Targets of the first rows' values in the scale of rewards, and bool whether they are known; both (B,)."""
        slow = world.slow
        assert slow is not None, "behaviour=td3 has target copies"
        config = self.config
        total, discount, last, known = n_step(
            seq.reward, seq.terminated, seq.first, seq.valid, config.n_step, config.gamma
        )
        columns = torch.arange(len(total), device=total.device)
        next_vector = seq.vector[last, columns]
        next_pixels = take_rows(seq.pixels, (last, columns))
        next_z = world.encode(next_vector, next_pixels, slow=True)
        next_value = self._next_value(slow["cell"], next_z)
        target = total + discount * next_value * self.slow_scale
        return target / self.scale, known

    def _update_policy(self, world: LatentModel, z: Tensor, known: Tensor) -> Tensor:
        """One step of the policy, which ascends the critics' mean; its loss."""
        pre_tanh = self.policy(z)
        action = torch.tanh(pre_tanh)
        zsa = joint_hidden(world.cell, z, action, frozen=True)
        critics = [p.detach() for p in self.q.weights()]
        value = self.q(zsa, critics).mean(0).squeeze(-1)
        penalty = PRE_TANH_WEIGHT * pre_tanh.square().mean(-1)
        loss = weighted_mean(penalty - value, known)
        self.descend(loss, "actor")
        return loss

    def _next_value(self, cell: Any, z: Tensor) -> Tensor:
        """Values of latents (B, Z) by the slow networks: (B,)."""
        if self.discrete:
            values = self._values(cell, self.slow_q, z)
            best_action = one_hot_argmax(values.mean(0))
            return (values.amin(0) * best_action).sum(-1)
        action = torch.tanh(self.slow_policy(z))
        noise = TARGET_NOISE_STD * draw_normal(self.generator, *action.shape)
        noise = noise.clamp(-MAX_TARGET_NOISE, MAX_TARGET_NOISE)
        action = (action + noise).clamp(-1, 1)
        zsa = joint_hidden(cell, z, action)
        return self.slow_q(zsa).amin(0).squeeze(-1)

    def _values(self, cell: Any, q: Stacked, z: Tensor) -> Tensor:
        """Values of all actions, (K, B, A)."""
        # Every latent with every action, (B A, Z) and (B A, A).
        actions = torch.eye(self.action_size, device=z.device)
        actions = actions.repeat(len(z), 1)
        latents = z.repeat_interleave(self.action_size, 0)
        zsa = joint_hidden(cell, latents, actions)
        return q(zsa).view(-1, len(z), self.action_size)


def joint_hidden(cell: Any, z: Tensor, action: Tensor, frozen: bool = False) -> Tensor:
    """The last hidden layer on the way from (z, a) to the next latent: (B, hidden)."""
    trunk = cell.next[:-1]
    both = torch.cat([z, action], -1)
    if not frozen:
        return trunk(both)
    # Gradients reach the action, not the model's weights.
    weights = {name: p.detach() for name, p in trunk.named_parameters()}
    return functional_call(trunk, weights, (both,))
