"""SAC: a Gaussian policy that is rewarded for its entropy, and critics for it; a learner without environment.

The critics learn the value of an action under the policy, its entropy included; the policy ascends their values of its
own actions. The transitions come from `agents.dyna.agent`, real or imagined. K critics side by side estimate Q(s, a); a
target follows them slowly, and its smallest or mean value is that of a next state. Options keep them bounded and smooth
where a model imagines states. `agents.off_policy.dqn` has the same critics.

Sources: Haarnoja et al. 2018, arXiv 1812.05905, equations 5, 6 (critics), 9 (policy), 18 (weight of the entropy),
appendix C. Two critics and their minimum, Fujimoto et al. 2018, 1802.09477; of two drawn from ten, Chen et al. 2021
(REDQ), 2101.05982. The mean of several with layer normalisation, and targets bounded by quantiles of the rewards, Kubo
et al. 2025 (DHMBPO), 2512.15439. Batch normalisation without targets, Bhatt et al. 2024 (CrossQ), 1902.05605. Spectral
and robust regularisation, Zheng et al. 2023, 2302.01244.

Differences from them: log std is mapped smoothly into [-5, 2]; gradients are clipped to a norm; spectral: weights are
divided after a step, where their norm exceeds the bound (Gouk et al. 2021, 1804.04368), which so holds for targets too;
robust: one step along the sign of Q's gradient, because that of the squared change is 0 where it begins; the range that
bounds targets always contains 0, the value of a terminal state; CrossQ's actor is not normalised.

When it fails: rewards that are large beside the entropy's weight leave no exploration until that has grown; a sparse
reward that random actions never reach; a spectral bound below what values need flattens them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from agents.networks.actor_critic import CLIP
from agents.networks.heads import HEADS
from agents.networks.stacked import ACTIVATIONS, NORMS, Stacked
from agents.off_policy.closed_form import (
    LOG_STD_HALF_RANGE,
    MAX_LOG_STD,
    MIN_LOG_STD,
    ClosedFormUpdate,
)
from agents.replay.replay import Rows
from lodestar.numerics.descent import Flat, draw_uniform
from lodestar.settings import Settings, preset_setting, setting
from lodestar.state import Stateful

# The logarithm of an entropy weight of 0: what it stands for rounds to 0, and it is finite.
LOG_OF_ZERO = -1000.0
# Of a Gaussian's log-density.
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
# Rate at which the running quantiles of rewards follow, and the share of rewards beyond each.
QUANTILE_RATE = 0.01
QUANTILE_TAIL = 0.01
# Power iterations for the first weights, so that the spectral bound holds from the first step on.
FIRST_POWER_ITERATIONS = 20


@dataclass
class LearnerConfig(Settings):
    """Settings of `SoftActorCritic` and `agents.off_policy.dqn.DeepQ`."""

    prefix = "agent."

    net_arch: list[int] = preset_setting([256, 256], "units of the hidden layers of each network", ">= 1")
    activation: str = setting("relu", "of actor and critics", choices=tuple(ACTIVATIONS))
    learning_rate: float = preset_setting(3e-4, "of Adam", "(0, 1]")
    gamma: float = preset_setting(0.99, "discount; here for bounded_targets only", "(0, 1]")
    tau: float = setting(0.005, "share of the new critics in their targets after each step", "(0, 1]")
    critics: int = preset_setting(2, "how many", ">= 1")
    target: str = preset_setting("min", "over the critics: what a state is worth", "min | mean")
    subset: int = preset_setting(
        0, "critics drawn for a target, their least value; the actor ascends the mean; 0: as target", ">= 0"
    )
    actor_every: int = preset_setting(1, "updates of the critics for one of the actor", ">= 1")
    norm: str = preset_setting("none", "of the critics; batch is CrossQ, without targets", choices=NORMS)
    dropout: float = preset_setting(0.0, "share of hidden units dropped in training", "[0, 1)")
    head: str = preset_setting("mse", "see agents.networks.heads", choices=tuple(HEADS))
    entropy: Any = preset_setting(
        "auto", "weight of the entropy: auto learns it, auto_0.1 from 0.1 on, a number fixes it"
    )
    target_entropy: float | None = setting(None, "of the policy, for auto; None for minus the action's size")
    bounded_targets: bool = preset_setting(False, "clip targets to running quantiles of rewards / (1 - gamma)")
    lipschitz: str = preset_setting("none", "keeps critics smooth", "none | spectral | robust")
    lipschitz_bound: float = setting(3.0, "spectral: largest norm of each layer, on whitened inputs", "> 0")
    lipschitz_weight: float = setting(0.1, "robust: of the penalty", "> 0")
    lipschitz_radius: float = setting(0.1, "robust: largest disturbance, in deviations of observations", "> 0")
    path: str = setting(
        "auto",
        "plain updates: by torch, or compiled by numba (extra `fast`), twice as fast; auto: after 10,000",
        "auto | numba | torch",
    )
    max_grad_norm: float = setting(10.0, "norm to which gradients are clipped", "> 0")
    reference: str = setting(
        "",
        "a policy to stay near: a file of one, or start, the one that training begins with",
    )
    kl: float = setting(0.0, "what a nat of divergence from the reference costs, beside the entropy", ">= 0")
    reference_every: int = setting(0, "rollouts after which the policy becomes the reference; 0: never", ">= 0")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_if(
            self.bounded_targets and self.gamma == 1,
            "agent.bounded_targets=True needs a discount below 1, and agent.gamma=1; lower gamma",
        )
        self.refuse_if(
            self.lipschitz == "spectral" and self.norm != "none",
            "agent.lipschitz=spectral bounds nothing behind agent.norm={norm}; give norm=none or robust",
        )
        self.refuse_if(
            bool(self.reference) != bool(self.kl),
            "agent.reference={reference} and agent.kl={kl} need each other; give both, as in agent.reference=start "
            "agent.kl=0.1, or neither",
        )
        self.refuse_if(self.subset > self.critics, "agent.subset={subset} needs as many agent.critics, not {critics}")
        self.first_alpha()

    def first_alpha(self) -> float:
        """The entropy's first weight; a ValueError for what is no weight."""
        text = str(self.entropy)
        learned = text.startswith("auto")
        if learned:
            text = text.removeprefix("auto").removeprefix("_") or "1"
        try:
            alpha = float(text)
        except ValueError:
            alpha = -1.0
        # A learned weight is learned as its logarithm, so that it cannot begin at 0.
        is_weight = 0 < alpha < math.inf or (alpha == 0 and not learned)
        if not is_weight:
            raise ValueError(f"agent.entropy={self.entropy!r}; give auto, auto_0.1, or a number that is 0 or more")
        return alpha


class Critics(Stateful):
    """K networks of `obs_size` + `action_size` inputs (0: all actions) and `values` outputs, with targets."""

    saved: ClassVar[tuple[str, ...]] = (
        "critic",
        "critic_flat",
        "target_flat",
        "head",
        "mean",
        "scale",
        "whitened",
        "low",
        "high",
        "watched",
        "vectors",
        "generator",
    )
    # What of it chooses actions.
    acting: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        obs_size: int,
        action_size: int,
        values: int,
        config: LearnerConfig,
        *,
        seed: int,
        device: str,
    ) -> None:
        self.config = config
        self.obs_size = obs_size
        self.values = values
        self.device = torch.device(device)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.head = HEADS[config.head]().to(self.device)
        # Bins of equal weight have the value 0; random ones could have one of a million.
        last_gain = 0.0
        if config.head == "mse":
            last_gain = 1.0
        critic = Stacked(
            config.critics,
            obs_size + action_size,
            config.net_arch,
            values * self.head.outputs,
            activation=config.activation,
            norm=config.norm,
            dropout=config.dropout,
            last=last_gain,
            seed=seed,
        )
        self.critic = critic.to(self.device)
        parameters = list(self.critic.parameters())
        self.critic_flat = Flat.of_parameters(parameters)
        self.target_flat = self.critic_flat.value.clone()
        pieces = self.target_flat.split([parameter.numel() for parameter in parameters])
        self.target = [piece.view_as(like) for piece, like in zip(pieces, parameters)]
        # Observations' means, and reciprocals of their standard deviations.
        self.mean = torch.zeros(obs_size, device=self.device)
        self.scale = torch.ones(obs_size, device=self.device)
        # How often `whiten` and `watch` were called, and the running quantiles of rewards.
        self.whitened = torch.zeros((), device=self.device)
        self.watched = torch.zeros((), device=self.device)
        self.low = torch.zeros((), device=self.device)
        self.high = torch.zeros((), device=self.device)
        # For each layer's weights (K, I, O) the right singular vectors of the power iteration.
        self.vectors: list[Tensor] = []
        if config.lipschitz == "spectral":
            draw = torch.Generator().manual_seed(seed)
            for weight in self._matrices():
                shape = (weight.shape[0], weight.shape[2], 1)
                start = torch.randn(shape, generator=draw)
                self.vectors.append(start.to(self.device))
            for _ in range(FIRST_POWER_ITERATIONS):
                self.bound_weights()
            self.target_flat.copy_(self.critic_flat.value)

    def _matrices(self) -> list[Tensor]:
        """The layers' weights (K, I, O); without a norm every second parameter is one."""
        return [parameter.detach() for parameter in self.critic.weights()[::2]]

    def inputs(self, obs: Tensor) -> Tensor:
        """Observations (..., D) as networks read them: centred, divided by their deviation, and cut at ten."""
        whitened = (obs - self.mean) * self.scale
        return whitened.clamp(-CLIP, CLIP)

    @torch.no_grad()
    def whiten(self, mean: Tensor, std: Tensor) -> None:
        """Set the observations' mean and deviation (D,); the first layers then keep values and actions as they were."""
        mean = torch.as_tensor(mean, dtype=torch.float32, device=self.device)
        std = torch.as_tensor(std, dtype=torch.float32, device=self.device)
        scale = 1 / std.clamp(min=1e-3)
        if self.whitened > 0:
            shift = (mean - self.mean) * self.scale
            self._fold_whitening(self.scale / scale, shift)
        self.mean.copy_(mean)
        self.scale.copy_(scale)
        self.whitened += 1

    def _fold_whitening(self, scale: Tensor, shift: Tensor) -> None:
        """Let the first layers read (x - shift) / scale where they read x."""
        self.critic.fold(scale, shift)
        if self.critic.renorms is None:
            self.critic.fold(scale, shift, self.target)

    def _outputs(self, x: Tensor, target: bool = False, **options: Any) -> Tensor:
        """Outputs of the critics, or of their targets: (K, B, values, outputs of the head)."""
        weights = None
        # CrossQ, whose critics have batch normalisation, has no targets.
        if target and self.critic.renorms is None:
            weights = self.target
        outputs = self.critic(x, weights, **options)
        return outputs.unflatten(-1, (self.values, self.head.outputs))

    def aggregate(self, q: Tensor, drawn: bool = False) -> Tensor:
        """Values (K, ...) -> the smallest or the mean (...).

        With a `subset` the smallest of so many if `drawn`, else the mean of all: the least of many critics is far below
        what any of them says, and a policy that ascends it avoids whatever they disagree on.
        """
        subset = self.config.subset
        if subset and drawn:
            order = draw_uniform(self.generator, len(q)).argsort()
            return q[order[:subset]].amin(0)
        if subset or self.config.target == "mean":
            return q.mean(0)
        return q.amin(0)

    @torch.no_grad()
    def watch(self, reward: Tensor) -> None:
        """Move the running quantiles towards those of rewards (B,); the first ones are taken as they are."""
        ordered = reward.sort().values
        last = len(ordered) - 1
        tail = int(QUANTILE_TAIL * last)
        rate = torch.clamp(1 / (self.watched + 1), min=QUANTILE_RATE)
        self.low += rate * (ordered[tail] - self.low)
        self.high += rate * (ordered[last - tail] - self.high)
        self.watched += 1

    def clip_target(self, target: Tensor) -> Tensor:
        """Targets, clipped to what rewards within their quantiles can sum up to."""
        if not self.config.bounded_targets:
            return target
        horizon = 1 / (1 - self.config.gamma)
        lowest = self.low.clamp(max=0) * horizon
        highest = self.high.clamp(min=0) * horizon
        target = torch.maximum(target, lowest)
        return torch.minimum(target, highest)

    def descend(self, loss: Tensor) -> None:
        """One step of Adam for the critics, and of their targets after them."""
        config = self.config
        self.critic_flat.descend(loss, config.learning_rate, config.max_grad_norm, list(self.critic.parameters()))
        if self.vectors:
            self.bound_weights()
        self.target_flat.lerp_(self.critic_flat.value, config.tau)

    @torch.no_grad()
    def bound_weights(self) -> None:
        """One power iteration for each layer; weights whose spectral norm exceeds the bound are divided."""
        for weight, right in zip(self._matrices(), self.vectors):
            left = F.normalize(weight @ right, dim=1)
            across = weight.mT @ left
            norm = torch.linalg.vector_norm(across, dim=1, keepdim=True)
            norm = norm.clamp(min=1e-12)
            right.copy_(across / norm)
            factor = self.config.lipschitz_bound / norm
            weight.mul_(factor.clamp(max=1.0))

    def join(self, obs: Tensor, action: Tensor) -> Tensor:
        """The critics' inputs (B, I)."""
        raise NotImplementedError

    def select(self, outputs: Tensor, action: Tensor) -> Tensor:
        """From outputs (K, B, values, head) those of the actions taken, (K, B, head)."""
        raise NotImplementedError

    def q(self, obs: Tensor, action: Tensor, target: bool = False) -> Tensor:
        """Values of each critic, or of its target, of (B, D) and (B, A): (K, B)."""
        outputs = self._outputs(self.join(obs, action), target)
        return self.head.value(self.select(outputs, action))

    def next_value(self, next_obs: Tensor) -> Tensor:
        """Value of states (B, D) by the targets, (B,)."""
        raise NotImplementedError

    def entropy_reward(self, obs: Tensor) -> Tensor:
        """What values of states (B, D) hold besides rewards, for acting there at random: (B,), 0 without entropy."""
        return torch.zeros(len(obs), device=self.device)

    def update(self, rows: Rows, actor: bool = True) -> dict[str, Tensor]:
        """One step of critics and targets, and of an `actor` if there is one. Returns metrics, on the device."""
        with torch.no_grad():
            target = rows.reward + rows.discount * self.next_value(rows.next_obs)
        return self.critic_step(rows.obs, rows.action, target, rows.reward)

    def critic_step(
        self, obs: Tensor, action: Tensor, target: Tensor, reward: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Equation 5, for targets (B,) of (B, D) and (B, A), summed over critics; `reward` (B,) bounds targets."""
        x = self.join(obs, action)
        out = self._outputs(x, generator=self.generator, batch_stats=True)
        return self.regress(x, out, target.detach(), action, reward)

    def regress(
        self, x: Tensor, out: Tensor, target: Tensor, action: Tensor, reward: Tensor | None
    ) -> dict[str, Tensor]:
        """One step of the critics, whose outputs for x are `out` (K, B, values, head), towards targets (B,)."""
        if reward is not None and self.config.bounded_targets:
            self.watch(reward)
        target = self.clip_target(target)
        prediction = self.select(out, action)
        q = self.head.value(prediction)
        critic_loss = self.head.loss(prediction, target).mean(-1).sum()
        loss = critic_loss
        if self.config.lipschitz == "robust":
            penalty = self.robust_penalty(x, q, action)
            loss = critic_loss + self.config.lipschitz_weight * penalty
        self.descend(loss)
        q = q.detach()
        error = (q.mean(0) - target).abs()
        return {"critic_loss": critic_loss.detach(), "q": q.mean(), "td": error}

    def robust_penalty(self, x: Tensor, q: Tensor, action: Tensor) -> Tensor:
        """The squared change of q (K, B) under the worst small change of the observation: mean over B, sum over K."""

        def values(inputs: Tensor) -> Tensor:
            outputs = self.select(self._outputs(inputs), action)
            return self.head.value(outputs)

        x = x.detach()
        observed = x.expand(len(q), *x.shape)
        start = observed.clone().requires_grad_()
        with torch.enable_grad():
            total = values(start).sum()
            (slope,) = torch.autograd.grad(total, start)
        step = self.config.lipschitz_radius * slope.sign()
        # The observation is disturbed, and the action behind it is not.
        step[..., len(self.mean) :] = 0
        change = values(x + step) - q
        return change.square().mean(-1).sum()


def moments(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Means and logarithms of deviations (..., A) before the tanh, of an actor's outputs (..., 2A)."""
    mean, raw = outputs.chunk(2, -1)
    return mean, MIN_LOG_STD + LOG_STD_HALF_RANGE * (torch.tanh(raw) + 1)


def squash(outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions of a tanh Gaussian, and their log-densities, of means and raw log stds (..., 2A), and noise (..., A)."""
    mean, log_std = moments(outputs)
    u = torch.addcmul(mean, log_std.exp(), noise)
    # log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)), which no large u rounds to log 0.
    # The order of the terms is that in which gradients are added up: another one changes their last digits.
    log_slope = 2 * (math.log(2) - u - F.softplus(-2 * u))
    log_density = -0.5 * noise.square() - HALF_LOG_2PI - log_std
    log_prob = (log_density - log_slope).sum(-1)
    return torch.tanh(u), log_prob


class SoftActorCritic(Critics):
    """Policy, critics and the weight of the entropy, for actions in [-1, 1]; `ClosedFormUpdate` if `fused`."""

    saved = (*Critics.saved, "actor", "actor_flat", "log_alpha", "alpha_flat")
    acting = ("actor", "mean", "scale")

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
        self.action_size = action_size
        actor = Stacked(
            1,
            obs_size,
            config.net_arch,
            2 * action_size,
            activation=config.activation,
            seed=seed + 1,
        )
        self.actor = actor.to(self.device)
        # The deviation begins near 1: behind the tanh that is nearly uniform.
        raw_of_one = math.atanh((MIN_LOG_STD + MAX_LOG_STD) / (MIN_LOG_STD - MAX_LOG_STD))
        with torch.no_grad():
            self.actor.stack[-1][..., action_size:] += raw_of_one
        self.actor_flat = Flat.of_parameters(list(self.actor.parameters()))
        self.learned_alpha = str(config.entropy).startswith("auto")
        alpha = config.first_alpha()
        log_alpha = math.log(alpha) if alpha > 0 else LOG_OF_ZERO
        self.log_alpha = torch.full((1,), log_alpha, device=self.device)
        self.alpha_flat = Flat(self.log_alpha)
        self.target_entropy = -float(action_size)
        if config.target_entropy is not None:
            self.target_entropy = float(config.target_entropy)
        # (B, D) -> (B,), the divergence from a reference policy, where there is one.
        self.divergence: Callable[[Tensor], Tensor] | None = None
        self.fused: ClosedFormUpdate | None = None
        if fused and ClosedFormUpdate.fits(self):
            self.fused = ClosedFormUpdate(self)

    @property
    def alpha(self) -> Tensor:
        return self.log_alpha[0].exp()

    def begin_with_alpha(self, log_alpha: Tensor) -> None:
        """Take over another agent's entropy weight, unless the settings give one."""
        # From a weight of 0 nothing can be learned.
        if str(self.config.entropy) == "auto" and bool(log_alpha.exp() > 0):
            self.log_alpha.copy_(log_alpha)

    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Actions (B, A) and their log-densities (B,), differentiable in obs and policy."""
        outputs = self.actor(self.inputs(obs))[0]
        noise = torch.empty_like(outputs[..., : self.action_size])
        noise.normal_(generator=self.generator)
        return squash(outputs, noise)

    @torch.no_grad()
    def act(self, obs: Tensor, deterministic: bool = False) -> Tensor:
        """Actions (B, A) to take; the mode's if deterministic."""
        if not deterministic:
            return self.sample(obs)[0]
        outputs = self.actor(self.inputs(obs))[0]
        return torch.tanh(outputs[:, : self.action_size])

    def next_value(self, next_obs: Tensor) -> Tensor:
        """Value of a state by the targets, the entropy of its first action included: (B,)."""
        action, log_prob = self.sample(next_obs)
        q = self.q(next_obs, action, target=True)
        return self.aggregate(q, drawn=True) - self.soft_cost(next_obs, log_prob)

    def soft_cost(self, obs: Tensor, log_prob: Tensor) -> Tensor:
        """What acting in states (B, D) costs besides rewards, for log-densities (B,): little entropy, divergence."""
        cost = self.alpha * log_prob
        if self.divergence is None:
            return cost
        return cost + self.config.kl * self.divergence(obs)

    def entropy_reward(self, obs: Tensor) -> Tensor:
        _, log_prob = self.sample(obs)
        return -self.soft_cost(obs, log_prob)

    def update(self, rows: Rows, actor: bool = True) -> dict[str, Tensor]:
        """One step of the critics, and of policy and entropy weight if `actor`."""
        if self.fused is not None and actor:
            return self.fused.update(rows)
        if self.critic.renorms is None:
            metrics = super().update(rows)
        else:
            metrics = self._joint_step(rows)
        if not actor:
            return metrics
        action, log_prob = self.sample(rows.obs)
        value = self.aggregate(self.q(rows.obs, action))
        objective = value - self.soft_cost(rows.obs, log_prob)
        if self.divergence is not None:
            metrics["reference_kl"] = self.divergence(rows.obs).detach().mean()
        return metrics | self.actor_step(objective, log_prob)

    def join(self, obs: Tensor, action: Tensor) -> Tensor:
        return torch.cat([self.inputs(obs), action], -1)

    def select(self, outputs: Tensor, action: Tensor) -> Tensor:
        return outputs[..., 0, :]

    def actor_step(self, objective: Tensor, log_prob: Tensor) -> dict[str, Tensor]:
        """Ascend `objective` (...), its entropy bonus included, and adapt the entropy's weight."""
        config = self.config
        # Critics and models get no gradient from the policy's loss.
        parameters = list(self.actor.parameters())
        loss = self.actor_flat.descend(-objective.mean(), config.learning_rate, config.max_grad_norm, parameters)
        return {"actor_loss": loss, **self.entropy_step(log_prob.detach())}

    def entropy_step(self, log_prob: Tensor) -> dict[str, Tensor]:
        """Equation 18, for log alpha: (...) log-densities of the policy's actions."""
        entropy = -log_prob.mean()
        alpha = self.alpha
        if self.learned_alpha:
            self.alpha_flat.grad.copy_(entropy - self.target_entropy)
            self.alpha_flat.step(self.config.learning_rate, math.inf)
        return {"alpha": alpha, "entropy": entropy}

    def _joint_step(self, rows: Rows) -> dict[str, Tensor]:
        """CrossQ: both states in one batch, so that its statistics are those of both, and no target network."""
        with torch.no_grad():
            next_action, log_prob = self.sample(rows.next_obs)
        both_obs = torch.cat([rows.obs, rows.next_obs])
        x = self.join(both_obs, torch.cat([rows.action, next_action]))
        out = self._outputs(x, generator=self.generator, batch_stats=True)
        now, following = out.chunk(2, 1)
        next_q = self.head.value(self.select(following.detach(), next_action))
        value = self.aggregate(next_q) - self.soft_cost(rows.next_obs, log_prob)
        target = rows.reward + rows.discount * value
        now_rows = x[: len(rows.obs)]
        return self.regress(now_rows, now, target, rows.action, rows.reward)

    def _fold_whitening(self, scale: Tensor, shift: Tensor) -> None:
        super()._fold_whitening(scale, shift)
        self.actor.fold(scale, shift)
