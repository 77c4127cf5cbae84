"""Planners: search a model for an action before taking it, for B states at once.

Sources: Chua et al. 2018, arXiv 1805.12114 (CEM); Williams et al. 2017, "Information Theoretic MPC", and Hansen et al.
2024 (TD-MPC2), arXiv 2310.16828 (MPPI); Wang et al. 2024 (COPlanner), arXiv 2310.07220 (UPMPC). Differences: CEM cuts
its samples at the limits instead of drawing from a truncated Gaussian. MPPI's deterministic action is the mean. UPMPC's
uncertainty is the disagreement of means, in units of what the model was fitted to; its rewards are divided by their
running root mean square; nothing counts after an episode's end.

A plan costs K * H steps of the model for every state. CEM and MPPI need continuous actions.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from agents.dynamics.rollout import Act, Imagined, disagreement
from agents.networks.actor_critic import SpaceEncoding
from lodestar.numerics.descent import draw_normal
from lodestar.state import Stateful

# Share of the old mean square in UPMPC's running scale of rewards.
REWARD_SCALE_DECAY = 0.99

# `imagine` with all arguments but act, obs and horizon.
Rollout = Callable[..., Imagined]
# Observations (B, D) -> (B,).
Value = Callable[[Tensor], Tensor]


def returns(imagined: Imagined, reward: Tensor, gamma: float, value: Value | None = None) -> Tensor:
    """Discounted sums over the horizon of `reward` (H, B), and the value of where rollouts continue; (B,)."""
    total = torch.zeros_like(reward[0])
    if value is not None:
        total = torch.where(imagined.continues, value(imagined.next_obs[-1]), 0.0)
    for step_reward in reward.flip(0):
        total = step_reward + gamma * total
    return total


def _complete_scores(imagined: Imagined, score: Tensor) -> Tensor:
    """Scores (B,), the lowest there is for rollouts that were cut: else ending early would beat negative rewards."""
    complete = imagined.alive[-1] | imagined.terminated.any(0)
    lowest = torch.finfo(score.dtype).min
    return torch.where(complete & score.isfinite(), score, lowest)


@dataclass
class _Sequences(Stateful):
    """Base of CEM and MPPI: a Gaussian over H actions for B states; a call begins with the last `mean`, one step on."""

    saved = ("mean", "generator")

    encoding: SpaceEncoding
    # H, the steps looked ahead.
    horizon: int = 15
    # N, the sequences tried for each state in each of the `iterations`, to whose best the Gaussian is refitted.
    samples: int = 200
    iterations: int = 5
    elites: int = 20
    # Standard deviation to begin with.
    widest: float = 0.5
    gamma: float = 0.99
    seed: int = 0
    device: str | torch.device = "cpu"
    # How many of the `samples` the policy proposes, where there is one.
    policy_samples: int = 0

    def __post_init__(self) -> None:
        self.action_size = self.encoding.action_size
        self.mean: Tensor | None = None
        self.generator = torch.Generator(self.device).manual_seed(self.seed)

    @torch.no_grad()
    def plan(
        self,
        rollout: Rollout,
        obs: Tensor,
        *,
        value: Value | None = None,
        policy: Act | None = None,
        deterministic: bool = True,
        warm: bool = True,
    ) -> Tensor:
        """The first actions of the plans, (B, A) in [-1, 1].

        Args:
            value: of the last states; policy: proposes some of MPPI's sequences.
            deterministic: whether MPPI gives the mean instead of a random elite.
            warm: whether to begin with the plans of the last call, which were made for the states before these.
        """
        mean = obs.new_zeros(len(obs), self.horizon, self.action_size)
        if warm and self.mean is not None and self.mean.shape == mean.shape:
            # The last plans, one step on.
            mean[:, :-1] = self.mean[:, 1:]
        std = torch.full_like(mean, self.widest)
        proposed = self._propose(rollout, obs, policy)
        n_drawn = self.samples
        if proposed is not None:
            n_drawn -= proposed.shape[1]
        best = weight = mean
        for _ in range(self.iterations):
            shape = (len(obs), n_drawn, *mean.shape[1:])
            noise = draw_normal(self.generator, *shape).to(obs.dtype)
            # (B, N, H, A)
            spread = self._spread(mean, std)[:, None]
            sequences = mean[:, None] + spread * noise
            sequences = sequences.clamp(-1, 1)
            if proposed is not None:
                sequences = torch.cat([proposed, sequences], 1)
            scores = self._judge(rollout, obs, sequences, value)
            best_scores, index = scores.topk(self.elites, 1)
            index = index[..., None, None]
            index = index.expand(-1, -1, *mean.shape[1:])
            best = sequences.gather(1, index)
            mean, std, weight = self._refit(mean, std, best, best_scores)
        self.mean = mean
        if deterministic:
            return mean[:, 0].clone()
        return self._draw(best, weight, std)

    def _propose(self, rollout: Rollout, obs: Tensor, policy: Act | None) -> Tensor | None:
        """Sequences that the policy proposes, (B, P, H, A), or None."""
        if policy is None or not self.policy_samples:
            return None
        rows = obs.repeat_interleave(self.policy_samples, 0)
        imagined = rollout(act=policy, obs=rows, horizon=self.horizon)
        actions = imagined.action.transpose(0, 1)
        return actions.unflatten(0, (len(obs), -1))

    def _spread(self, mean: Tensor, std: Tensor) -> Tensor:
        """The deviation (B, H, A) that sequences are drawn with."""
        return std

    def _judge(self, rollout: Rollout, obs: Tensor, sequences: Tensor, value: Value | None) -> Tensor:
        """Scores (B, N) of sequences (B, N, H, A): their discounted imagined rewards."""
        actions = sequences.flatten(0, 1)
        rows = obs.repeat_interleave(sequences.shape[1], 0)

        def act(obs: Tensor, t: int) -> tuple[Tensor, None]:
            return actions[:, t], None

        imagined = rollout(act=act, obs=rows, horizon=self.horizon)
        scores = returns(imagined, imagined.reward, self.gamma, value)
        return _complete_scores(imagined, scores).view(len(obs), -1)

    def _refit(self, mean: Tensor, std: Tensor, best: Tensor, score: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """New mean and std (B, H, A) from the elites (B, E, H, A) and their scores (B, E), and the elites' weights."""
        raise NotImplementedError

    def _draw(self, best: Tensor, weight: Tensor, std: Tensor) -> Tensor:
        """The first action (B, A) of a random elite, with the Gaussian's noise."""
        elite = torch.multinomial(weight, 1, generator=self.generator)
        index = elite[..., None].expand(-1, -1, self.action_size)
        action = best[:, :, 0].gather(1, index)[:, 0]
        noise = draw_normal(self.generator, *action.shape)
        noisy = action + std[:, 0] * noise.to(action.dtype)
        return noisy.clamp(-1, 1)

    def reset(self, rows: Tensor) -> None:
        """Forget the plans of the rows, bool (B,), whose episodes ended."""
        if self.mean is not None:
            self.mean = self.mean.masked_fill(rows[:, None, None], 0.0)


@dataclass
class CEM(_Sequences):
    """The cross-entropy method: mean and variance become those of the elites."""

    # Share of the old mean and variance that stays, in [0, 1).
    momentum: float = 0.1

    def _spread(self, mean: Tensor, std: Tensor) -> Tensor:
        # Two standard deviations reach the nearer limit at most.
        room = (1 - mean.abs()).clamp(min=0)
        return torch.minimum(std, room / 2)

    def _refit(self, mean: Tensor, std: Tensor, best: Tensor, score: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean = best.mean(1).lerp(mean, self.momentum)
        variance = best.var(1, correction=0)
        variance = variance.lerp(std.square(), self.momentum)
        return mean, variance.sqrt(), torch.ones_like(score)


@dataclass
class MPPI(_Sequences):
    """Model-predictive path integral: elites count by exp(temperature * (return - best return))."""

    horizon: int = 3
    samples: int = 512
    iterations: int = 6
    elites: int = 64
    widest: float = 2.0
    # The smallest standard deviation.
    lowest: float = 0.05
    # Above 0, per unit of return; a larger one lets fewer sequences count.
    temperature: float = 0.5
    policy_samples: int = 24

    def _refit(self, mean: Tensor, std: Tensor, best: Tensor, score: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weight = torch.softmax(self.temperature * score, 1)
        share = weight[..., None, None]
        mean = (share * best).sum(1)
        deviation = best - mean[:, None]
        variance = (share * deviation.square()).sum(1)
        return mean, variance.sqrt().clamp(self.lowest, self.widest), weight


@dataclass
class UPMPC(Stateful):
    """A policy and uncertainty: argmax over K first actions of sum_t gamma^t (r_t / scale + alpha u_t)."""

    saved = ("square",)

    # K first actions, and H steps looked ahead.
    candidates: int = 5
    horizon: int = 5
    # The weight of uncertainty; above 0 it is sought (acting), below 0 avoided (imagining).
    alpha: float = 1.0
    gamma: float = 0.99
    # The running mean square of imagined rewards.
    square: Tensor | None = None

    @torch.no_grad()
    def plan(self, rollout: Rollout, policy: Act, obs: Tensor) -> Tensor:
        """Actions (B, A), each one that the stochastic `policy` proposed for its row of `obs` (B, D)."""
        rows = obs.repeat(self.candidates, 1)
        imagined = rollout(act=policy, obs=rows, horizon=self.horizon, penalty=disagreement)
        # The rollout subtracts its penalty, which here is no penalty but the uncertainty u_t.
        uncertainty = imagined.penalty
        reward = imagined.reward + uncertainty
        n_steps = imagined.alive.sum().clamp(min=1)
        square = reward.square().sum() / n_steps
        if self.square is not None:
            square = square.lerp(self.square.to(square), REWARD_SCALE_DECAY)
        self.square = square
        scale = square.sqrt().clamp(min=1e-6)
        score = returns(imagined, reward, self.gamma) / scale
        score = score + self.alpha * returns(imagined, uncertainty, self.gamma)
        best = _complete_scores(imagined, score).view(self.candidates, -1).argmax(0)
        first_actions = imagined.action[0].view(self.candidates, len(obs), -1)
        return first_actions[best, torch.arange(len(obs), device=obs.device)]
