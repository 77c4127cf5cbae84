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
from lodestar.state import Stateful

DECAY = 0.99  # of UPMPC's running scale of rewards

Rollout = Callable[..., Imagined]  # `imagine` with all arguments but act, obs and horizon
Value = Callable[[Tensor], Tensor]  # observations (B, D) -> (B,)


def returns(imagined: Imagined, reward: Tensor, gamma: float, value: Value | None = None) -> Tensor:
    """Discounted sums over the horizon of `reward` (H, B), and the value of where rollouts continue; (B,)."""
    total = torch.zeros_like(reward[0])
    if value is not None:
        total = torch.where(imagined.continues, value(imagined.next_obs[-1]), 0.0)
    for now in reward.flip(0):
        total = now + gamma * total
    return total


def _judged(imagined: Imagined, score: Tensor) -> Tensor:
    """Scores (B,), the lowest there is for rollouts that were cut: else ending early would beat negative rewards."""
    whole = imagined.alive[-1] | imagined.terminated.any(0)
    return torch.where(whole & score.isfinite(), score, torch.finfo(score.dtype).min)


@dataclass
class _Sequences(Stateful):
    """Base of CEM and MPPI: a Gaussian over H actions for B states; a call begins with the last `mean`, one step on."""

    saved = ("mean", "generator")

    encoding: SpaceEncoding
    horizon: int  # H, steps looked ahead
    samples: int  # N, sequences for each state
    iterations: int  # how often the Gaussian is refitted
    elites: int  # how many of the best it is refitted to
    widest: float  # standard deviation to begin with
    gamma: float = 0.99
    seed: int = 0
    device: str | torch.device = "cpu"

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
        mean = self._begin(obs, warm)
        std = torch.full_like(mean, self.widest)
        proposed = self._propose(rollout, obs, policy)
        n = self.samples - (0 if proposed is None else proposed.shape[1])
        best = weight = mean
        for _ in range(self.iterations):
            noise = torch.randn(len(obs), n, *mean.shape[1:], generator=self.generator, device=obs.device)
            sequences = (mean[:, None] + self._spread(mean, std)[:, None] * noise.to(obs.dtype)).clamp(-1, 1)
            if proposed is not None:
                sequences = torch.cat([proposed, sequences], 1)
            score = self._judge(rollout, obs, sequences, value)
            top, index = score.topk(self.elites, 1)
            best = sequences.gather(1, index[..., None, None].expand(-1, -1, *mean.shape[1:]))
            mean, std, weight = self._refit(mean, std, best, top)
        self.mean = mean
        return mean[:, 0].clone() if deterministic else self._draw(best, weight, std)

    def _begin(self, obs: Tensor, warm: bool) -> Tensor:
        mean = obs.new_zeros(len(obs), self.horizon, self.action_size)
        if warm and self.mean is not None and self.mean.shape == mean.shape:
            mean[:, :-1] = self.mean[:, 1:]
        return mean

    def _propose(self, rollout: Rollout, obs: Tensor, policy: Act | None) -> Tensor | None:
        return None

    def _spread(self, mean: Tensor, std: Tensor) -> Tensor:
        return std

    def _judge(self, rollout: Rollout, obs: Tensor, sequences: Tensor, value: Value | None) -> Tensor:
        actions, rows = sequences.flatten(0, 1), obs.repeat_interleave(sequences.shape[1], 0)
        imagined = rollout(act=lambda obs, t: (actions[:, t], None), obs=rows, horizon=self.horizon)
        return _judged(imagined, returns(imagined, imagined.reward, self.gamma, value)).view(len(obs), -1)

    def _refit(self, mean: Tensor, std: Tensor, best: Tensor, score: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """New mean and std (B, H, A) from the elites (B, E, H, A) and their scores (B, E), and the elites' weights."""
        raise NotImplementedError

    def _draw(self, best: Tensor, weight: Tensor, std: Tensor) -> Tensor:
        chosen = torch.multinomial(weight, 1, generator=self.generator)
        action = best[:, :, 0].gather(1, chosen[..., None].expand(-1, -1, self.action_size))[:, 0]
        noise = torch.randn(action.shape, generator=self.generator, device=action.device).to(action.dtype)
        return (action + std[:, 0] * noise).clamp(-1, 1)

    def reset(self, rows: Tensor) -> None:
        """Forget the plans of the rows, bool (B,), whose episodes ended."""
        if self.mean is not None:
            self.mean = self.mean.masked_fill(rows[:, None, None], 0.0)


@dataclass
class CEM(_Sequences):
    """The cross-entropy method: mean and variance become those of the elites."""

    horizon: int = 15
    samples: int = 200
    iterations: int = 5
    elites: int = 20
    widest: float = 0.5
    momentum: float = 0.1  # in [0, 1), share of the old mean and variance that stays

    def _spread(self, mean: Tensor, std: Tensor) -> Tensor:
        # Two standard deviations reach the nearer limit at most.
        return torch.minimum(std, (1 - mean.abs()).clamp(min=0) / 2)

    def _refit(self, mean: Tensor, std: Tensor, best: Tensor, score: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean = best.mean(1).lerp(mean, self.momentum)
        variance = best.var(1, correction=0).lerp(std.square(), self.momentum)
        return mean, variance.sqrt(), torch.ones_like(score)


@dataclass
class MPPI(_Sequences):
    """Model-predictive path integral: elites count by exp(temperature * (return - best return))."""

    horizon: int = 3
    samples: int = 512
    iterations: int = 6
    elites: int = 64
    widest: float = 2.0
    lowest: float = 0.05  # standard deviation
    temperature: float = 0.5  # above 0, per unit of return; a larger one lets fewer sequences count
    policy_samples: int = 24  # how many of the `samples` the policy proposes, where there is one

    def _propose(self, rollout: Rollout, obs: Tensor, policy: Act | None) -> Tensor | None:
        if policy is None or not self.policy_samples:
            return None
        rows = obs.repeat_interleave(self.policy_samples, 0)
        imagined = rollout(act=policy, obs=rows, horizon=self.horizon)
        return imagined.action.transpose(0, 1).unflatten(0, (len(obs), -1))

    def _refit(self, mean: Tensor, std: Tensor, best: Tensor, score: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weight = torch.softmax(self.temperature * score, 1)
        share = weight[..., None, None]
        mean = (share * best).sum(1)
        std = (share * (best - mean[:, None]).square()).sum(1).sqrt().clamp(self.lowest, self.widest)
        return mean, std, weight


@dataclass
class UPMPC(Stateful):
    """A policy and uncertainty: argmax over K first actions of sum_t gamma^t (r_t / scale + alpha u_t)."""

    saved = ("square",)

    candidates: int = 5  # K
    horizon: int = 5  # H, steps looked ahead
    alpha: float = 1.0  # weight of uncertainty; above 0 it is sought (acting), below 0 avoided (imagining)
    gamma: float = 0.99
    square: Tensor | None = None  # running mean square of imagined rewards

    @torch.no_grad()
    def plan(self, rollout: Rollout, policy: Act, obs: Tensor) -> Tensor:
        """Actions (B, A), each one that the stochastic `policy` proposed for its row of `obs` (B, D)."""
        imagined = rollout(act=policy, obs=obs.repeat(self.candidates, 1), horizon=self.horizon, penalty=disagreement)
        reward = imagined.reward + imagined.penalty
        square = reward.square().sum() / imagined.alive.sum().clamp(min=1)
        self.square = square if self.square is None else square.lerp(self.square.to(square), DECAY)
        scale = self.square.sqrt().clamp(min=1e-6)
        score = returns(imagined, reward, self.gamma) / scale
        score = score + self.alpha * returns(imagined, imagined.penalty, self.gamma)
        best = _judged(imagined, score).view(self.candidates, -1).argmax(0)
        return imagined.action[0].view(self.candidates, len(obs), -1)[best, torch.arange(len(obs), device=obs.device)]
