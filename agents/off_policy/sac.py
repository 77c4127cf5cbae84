"""SAC: a Gaussian policy that is rewarded for staying random, and critics for it; no environment in it.

The critics learn what an action is worth when the policy goes on, its entropy included; the policy climbs what they
say of its own actions. Whoever collects or imagines transitions gives them in: `agents.dyna.agent`.

Source: Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications", arXiv 1812.05905, equations 5 and 6
(critics), 9 (policy), 18 (weight of the entropy); appendix C for tanh.

Differences from the source:
  - log std is squeezed smoothly into [-5, 2] instead of cut;
  - gradients are cut to a norm, and Adam's epsilon is 1e-5;
  - what `agents.off_policy.critics.LearnerConfig` can switch on.

When it fails: rewards that are large beside the entropy's weight leave no exploration until that weight has grown; a
sparse reward that random actions never meet.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from agents.networks.actor_critic import Flat
from agents.networks.stacked import Stacked
from agents.off_policy.critics import Critics, LearnerConfig, copied
from agents.off_policy.numpy_update import Fused

__all__ = ["LearnerConfig", "SoftActorCritic", "squashed"]

LOG_STD = (-5.0, 2.0)
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class Batch(Protocol):
    """What an update reads: `agents.replay.replay.Rows` has it."""

    obs: Tensor  # (B, D)
    action: Tensor  # (B, A)
    reward: Tensor  # (B,)
    next_obs: Tensor  # (B, D)
    discount: Tensor  # (B,), 0 where the episode has terminated


def squashed(outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions of a Gaussian behind a tanh, and their log-densities.

    Args:
        outputs: (..., 2A), means and unbounded log stds before the tanh.
        noise: (..., A), standard normal.

    Returns:
        (..., A) in [-1, 1] and (...).
    """
    mean, raw = outputs.chunk(2, -1)
    low, high = LOG_STD
    log_std = low + 0.5 * (high - low) * (torch.tanh(raw) + 1)
    before = torch.addcmul(mean, log_std.exp(), noise)
    # log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)), which no large u rounds to log 0
    steep = 2 * (math.log(2) - before - F.softplus(-2 * before))
    log_prob = (-0.5 * noise.square() - HALF_LOG_2PI - log_std - steep).sum(-1)
    return torch.tanh(before), log_prob


class SoftActorCritic(Critics):
    """Policy, critics and the weight of the entropy; every number stays a tensor on the device.

    Args:
        obs_size: D.
        action_size: A, numbers in [-1, 1].
        config: settings.
        seed: of weights and noise.
        device: as torch writes it.
        fused: whether steps that `agents.off_policy.numpy_update` can do are done by hand, several times faster.
    """

    def __init__(
        self,
        obs_size: int,
        action_size: int,
        config: LearnerConfig,
        *,
        seed: int = 0,
        device: str = "cpu",
        fused: bool = True,
    ) -> None:
        super().__init__(obs_size, action_size, 1, config, seed=seed, device=device)
        self.obs_size, self.action_size = obs_size, action_size
        shape: dict[str, Any] = {"activation": config.activation, "seed": seed + 1}
        self.actor = Stacked(1, obs_size, config.net_arch, 2 * action_size, **shape).to(self.device)
        with torch.no_grad():  # std begins near 1: behind the tanh that is nearly uniform
            self.actor.stack[-1][..., action_size:] += math.atanh((LOG_STD[0] + LOG_STD[1]) / (LOG_STD[0] - LOG_STD[1]))
        self.actor_flat = Flat.over(list(self.actor.parameters()))
        self.learned_alpha = str(config.entropy).startswith("auto")
        first = config.first_alpha()
        self.log_alpha = torch.full((1,), math.log(first) if first > 0 else -math.inf, device=self.device)
        self.alpha_flat = Flat(self.log_alpha)
        entropy = config.target_entropy
        self.target_entropy = -float(action_size) if entropy is None else float(entropy)
        self.fused = Fused(self) if fused and Fused.fits(self) else None

    @property
    def alpha(self) -> Tensor:
        """The weight of the entropy; without axes."""
        return self.log_alpha[0].exp()

    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Actions (B, A) and their log-densities (B,), differentiable in obs and policy."""
        outputs = self.actor(self.inputs(obs))[0]
        noise = torch.empty_like(outputs[..., : self.action_size]).normal_(generator=self.generator)
        return squashed(outputs, noise)

    @torch.no_grad()
    def act(self, obs: Tensor, deterministic: bool = False) -> Tensor:
        """Actions (B, A) to take; the mode's if deterministic."""
        if not deterministic:
            return self.sample(obs)[0]
        return torch.tanh(self.actor(self.inputs(obs))[0, :, : self.action_size])

    def q(self, obs: Tensor, action: Tensor, target: bool = False) -> Tensor:
        """What each critic, or its target, says of (B, D) and (B, A): (K, B)."""
        return self.head.value(_only(self._outputs(torch.cat([self.inputs(obs), action], -1), target)))

    def next_value(self, next_obs: Tensor) -> Tensor:
        """What a state is worth to the targets, the entropy of its first action included: (B,)."""
        action, log_prob = self.sample(next_obs)
        return self.aggregate(self.q(next_obs, action, target=True)) - self.alpha * log_prob

    def update(self, rows: Batch) -> dict[str, Tensor]:
        """One step of critics, targets, policy and entropy's weight. Returns numbers to log, still on the device."""
        if self.fused is not None:
            return self.fused.update(rows)
        if self.critic.renorms is not None:
            metrics = self._joint_step(rows)
        else:
            with torch.no_grad():
                target = rows.reward + rows.discount * self.next_value(rows.next_obs)
            metrics = self.critic_step(rows.obs, rows.action, target, rows.reward)
        action, log_prob = self.sample(rows.obs)
        objective = self.aggregate(self.q(rows.obs, action)) - self.alpha * log_prob
        return metrics | self.actor_step(objective, log_prob)

    def critic_step(
        self, obs: Tensor, action: Tensor, target: Tensor, reward: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Move the critics' values of (B, D) and (B, A) towards targets (B,); `reward` (B,) bounds them, if asked for.

        Source: equation 5, for any target; summed over critics.
        """
        if reward is not None and self.config.bounded_targets:
            self.watch(reward)
        x = torch.cat([self.inputs(obs), action], -1)
        out = self._outputs(x, generator=self.generator, batch_stats=True)
        return self.regress(x, out, target.detach(), _only)

    def actor_step(self, objective: Tensor, log_prob: Tensor) -> dict[str, Tensor]:
        """Climb `objective`, and move the entropy's weight to where the entropy is what it should be.

        Args:
            objective: (...), differentiable in the policy, its entropy bonus included; its mean is climbed.
            log_prob: (...), of the policy's actions.
        """
        flat, config = self.actor_flat, self.config
        loss = -objective.mean()
        flat.grad.zero_()
        loss.backward(inputs=list(self.actor.parameters()))  # critics and models get no gradient from it
        flat.step(config.learning_rate, config.max_grad_norm)
        return {"actor_loss": loss.detach(), **self.entropy_step(log_prob.detach())}

    def entropy_step(self, log_prob: Tensor) -> dict[str, Tensor]:
        """Equation 18, for log alpha: (...) log-densities of the policy's actions."""
        entropy, alpha = -log_prob.mean(), self.alpha
        if self.learned_alpha:
            self.alpha_flat.grad.copy_(entropy - self.target_entropy)
            self.alpha_flat.step(self.config.learning_rate, math.inf)
        return {"alpha": alpha, "entropy": entropy}

    def _joint_step(self, rows: Batch) -> dict[str, Tensor]:
        """CrossQ: both states in one batch, so that its statistics are those of both, and no target network."""
        with torch.no_grad():
            action, log_prob = self.sample(rows.next_obs)
        obs = self.inputs(torch.cat([rows.obs, rows.next_obs]))
        x = torch.cat([obs, torch.cat([rows.action, action])], -1)
        out = self._outputs(x, generator=self.generator, batch_stats=True)
        now, then = out.chunk(2, 1)
        value = self.aggregate(self.head.value(_only(then.detach()))) - self.alpha * log_prob
        if self.config.bounded_targets:
            self.watch(rows.reward)
        return self.regress(x[: len(rows.obs)], now, rows.reward + rows.discount * value, _only)

    def _fold(self, scale: Tensor, shift: Tensor) -> None:
        super()._fold(scale, shift)
        self.actor.fold(scale, shift)

    def state_dict(self) -> dict[str, Any]:
        """Everything that moves, as tensors (copies)."""
        mine = {
            "actor": self.actor.state_dict(),
            "actor_adam": self.actor_flat.state_dict(),
            "log_alpha": self.log_alpha,
            "alpha_adam": self.alpha_flat.state_dict(),
        }
        return super().state_dict() | copied(mine)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it, into the same memory."""
        super().load_state_dict(state)
        self.actor.load_state_dict(state["actor"])
        self.actor_flat.load_state_dict(state["actor_adam"])
        self.log_alpha.copy_(torch.as_tensor(state["log_alpha"]))
        self.alpha_flat.load_state_dict(state["alpha_adam"])


def _only(outputs: Tensor) -> Tensor:
    """The single value that a critic gives: (K, B, 1, head) -> (K, B, head)."""
    return outputs[..., 0, :]
