"""Action values and their targets: the base of `agents.off_policy.sac` and `agents.off_policy.dqn`.

K networks side by side estimate Q(s, a); a target follows them slowly, and its smallest or mean value is that of a next
state. Options keep them bounded and smooth where a model imagines states.

Sources: two critics and their minimum, Fujimoto et al. 2018, arXiv 1802.09477. The mean of several with layer
normalisation, and targets bounded by quantiles of the rewards, Kubo et al. 2025 (DHMBPO), arXiv 2512.15439. Batch
normalisation without targets, Bhatt et al. 2024 (CrossQ), arXiv 1902.05605. Spectral and robust regularisation, Zheng
et al. 2023, "Is Model Ensemble Necessary?", arXiv 2302.01244.

Differences:
  - spectral: weights are divided after a step, where their norm exceeds the bound (Gouk et al. 2021, arXiv 1804.04368),
    instead of inside the network: the bound then holds for targets as well, which are means of bounded weights;
  - robust: one step along the sign of Q's gradient, because that of the squared change is 0 where it begins;
  - the range that bounds targets always contains 0, the value of a terminal state;
  - CrossQ: width, learning rate and Adam's moments are left to the configuration; the actor is not normalised and moves
    at every step.

When it fails: a spectral bound below what values need flattens them; the minimum over many critics is too low.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from agents.networks.actor_critic import CLIP, Flat
from agents.networks.heads import HEADS, head_of
from agents.networks.stacked import ACTIVATIONS, NORMS, Stacked
from agents.state import Stateful
from envs.settings import Settings, setting

Pick = Callable[[Tensor], Tensor]
RATE = 0.01  # at which running quantiles follow
EDGE = 0.01  # share of rewards beyond each quantile


@dataclass
class LearnerConfig(Settings):
    """Settings of `agents.off_policy.sac.SoftActorCritic` and `agents.off_policy.dqn.DeepQ`."""

    prefix = "agent."

    net_arch: list[int] = setting(None, "units of the hidden layers of each network", low=1, otherwise=[256, 256])
    activation: str = setting("relu", "of actor and critics", choices=tuple(ACTIVATIONS))
    learning_rate: float = setting(None, "of Adam", above=0, high=1, otherwise=3e-4)
    gamma: float = setting(None, "discount; here for bounded_targets only", above=0, high=1, otherwise=0.99)
    tau: float = setting(0.005, "share of the new critics in their targets after each step", above=0, high=1)
    critics: int = setting(None, "how many", low=1, otherwise=2)
    target: str = setting(None, "over the critics: what a state is worth", choices=("min", "mean"), otherwise="min")
    norm: str = setting(None, "of the critics; batch is CrossQ, without targets", choices=NORMS, otherwise="none")
    dropout: float = setting(None, "share of hidden units dropped in training", low=0, below=1, otherwise=0.0)
    head: str = setting(
        None, "how critics represent values, see agents.networks.heads", choices=tuple(HEADS), otherwise="mse"
    )
    entropy: Any = setting(
        None, "weight of the entropy: auto learns it, auto_0.1 from 0.1 on, a number fixes it", otherwise="auto"
    )
    target_entropy: float | None = setting(None, "of the policy, for auto; None for minus the action's size")
    bounded_targets: bool = setting(None, "clip targets to running quantiles of rewards / (1 - gamma)", otherwise=False)
    lipschitz: str = setting(None, "keeps critics smooth", choices=("none", "spectral", "robust"), otherwise="none")
    lipschitz_bound: float = setting(3.0, "spectral: largest norm of each layer, on whitened inputs", above=0)
    lipschitz_weight: float = setting(0.1, "robust: of the penalty", above=0)
    lipschitz_radius: float = setting(0.1, "robust: largest disturbance, in deviations of observations", above=0)
    max_grad_norm: float = setting(10.0, "norm to which gradients are clipped", above=0)

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
        self.first_alpha()

    def first_alpha(self) -> float:
        """The weight of the entropy to begin with.

        Raises:
            ValueError: if `entropy` is out of range.
        """
        text = str(self.entropy)
        learned = text.startswith("auto")
        try:
            value = float(text.removeprefix("auto").removeprefix("_") or 1.0) if learned else float(text)
        except ValueError:
            value = -1.0
        if not (0 < value < math.inf if learned else 0 <= value < math.inf):
            raise ValueError(f"agent.entropy={self.entropy!r}; give auto, auto_0.1, or a number that is 0 or more")
        return value


class Critics(Stateful):
    """K networks for action values, their targets, and the whitening of observations in front of them.

    They read `obs_size` + `action_size` numbers (0 for values of all actions at once), and output `values` each.
    """

    saved: ClassVar[tuple[str, ...]] = (
        *("critic", "critic_flat", "target_flat", "head", "mean", "scale", "whitened", "low", "high", "watched"),
        *("vectors", "generator"),
    )

    def __init__(
        self, obs_size: int, action_size: int, values: int, config: LearnerConfig, *, seed: int, device: str
    ) -> None:
        self.config, self.values, self.device = config, values, torch.device(device)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.head = head_of(config.head).to(self.device)
        self.critic = Stacked(
            config.critics,
            obs_size + action_size,
            config.net_arch,
            values * self.head.outputs,
            activation=config.activation,
            norm=config.norm,
            dropout=config.dropout,
            last=1.0 if config.head == "mse" else 0.0,  # equal bins have the value 0; random ones could have a million
            seed=seed,
        ).to(self.device)
        self.critic_flat = Flat.over(list(self.critic.parameters()))
        self.target_flat = self.critic_flat.value.clone()
        sizes = [p.numel() for p in self.critic.parameters()]
        self.target = [t.view_as(p) for t, p in zip(self.target_flat.split(sizes), self.critic.parameters())]
        self.mean = torch.zeros(obs_size, device=self.device)
        self.scale = torch.ones(obs_size, device=self.device)  # multiplies: 1 / standard deviation
        self.whitened = torch.zeros((), device=self.device)  # how often `whiten` was called
        self.low, self.high = (torch.zeros((), device=self.device) for _ in range(2))  # quantiles of rewards
        self.watched = torch.zeros((), device=self.device)
        self.vectors: list[Tensor] = []
        if config.lipschitz == "spectral":
            draw = torch.Generator().manual_seed(seed)
            starts = [torch.randn(p.shape[0], p.shape[2], 1, generator=draw) for p in self._matrices()]
            self.vectors = [start.to(self.device) for start in starts]
            for _ in range(20):
                self.bound_weights()
            self.target_flat.copy_(self.critic_flat.value)

    def _matrices(self) -> list[Tensor]:
        """The layers' weights (K, I, O); without a norm every second parameter is one."""
        return [p.detach() for p in self.critic.weights()[::2]]

    def inputs(self, obs: Tensor) -> Tensor:
        """Observations (..., D) as networks read them: centred, divided by their deviation, and cut at ten."""
        return ((obs - self.mean) * self.scale).clamp(-CLIP, CLIP)

    @torch.no_grad()
    def whiten(self, mean: Tensor, std: Tensor) -> None:
        """Set the observations' mean and standard deviation, both (D,).

        The second time and later, the first layers are changed so that values and actions stay as they were: a jump of
        their inputs destroys what networks have learned.
        """
        mean, std = (torch.as_tensor(x, dtype=torch.float32, device=self.device) for x in (mean, std))
        scale = 1 / std.clamp(min=1e-3)
        if self.whitened > 0:
            self._fold(self.scale / scale, (mean - self.mean) * self.scale)
        self.mean.copy_(mean)
        self.scale.copy_(scale)
        self.whitened += 1

    def _fold(self, scale: Tensor, shift: Tensor) -> None:
        """x in the old inputs is (x - shift) / scale in the new ones."""
        self.critic.fold(scale, shift)
        if self.critic.renorms is None:
            self.critic.fold(scale, shift, self.target)

    def _outputs(self, x: Tensor, target: bool = False, **options: Any) -> Tensor:
        """Outputs of the critics, or of their targets: (K, B, values, outputs of the head)."""
        weights = self.target if target and self.critic.renorms is None else None
        return self.critic(x, weights, **options).unflatten(-1, (self.values, self.head.outputs))

    def aggregate(self, q: Tensor) -> Tensor:
        """Values (K, ...) -> the smallest or the mean (...)."""
        return q.amin(0) if self.config.target == "min" else q.mean(0)

    @torch.no_grad()
    def watch(self, reward: Tensor) -> None:
        """Let the range of targets follow rewards (B,); for `bounded_targets`."""
        ordered = reward.sort().values
        last = len(ordered) - 1
        rate = torch.clamp(1 / (self.watched + 1), min=RATE)
        for running, place in ((self.low, int(EDGE * last)), (self.high, last - int(EDGE * last))):
            running += rate * (ordered[place] - running)
        self.watched += 1

    def bounded(self, target: Tensor) -> Tensor:
        """Targets, clipped to what rewards within their quantiles can sum up to."""
        if not self.config.bounded_targets:
            return target
        most = 1 / (1 - self.config.gamma)
        return torch.minimum(torch.maximum(target, self.low.clamp(max=0) * most), self.high.clamp(min=0) * most)

    def descend(self, loss: Tensor) -> None:
        """One step of the critics down a loss, and of the targets after them."""
        flat, config = self.critic_flat, self.config
        flat.grad.zero_()
        loss.backward(inputs=list(self.critic.parameters()))
        flat.step(config.learning_rate, config.max_grad_norm)
        if self.vectors:
            self.bound_weights()
        self.target_flat.lerp_(flat.value, config.tau)

    @torch.no_grad()
    def bound_weights(self) -> None:
        """One power iteration for each layer; weights whose spectral norm exceeds the bound are divided."""
        for weight, right in zip(self._matrices(), self.vectors):
            left = torch.nn.functional.normalize(weight @ right, dim=1)
            across = weight.mT @ left
            norm = torch.linalg.vector_norm(across, dim=1, keepdim=True)
            right.copy_(across / norm.clamp(min=1e-12))
            weight.mul_((self.config.lipschitz_bound / norm.clamp(min=1e-12)).clamp(max=1.0))

    def regress(self, x: Tensor, out: Tensor, target: Tensor, pick: Pick) -> dict[str, Tensor]:
        """One step of the critics towards targets.

        Args:
            x: their inputs (B, I).
            out: their outputs (K, B, values, head).
            target: (B,); clipped with `bounded_targets`.
            pick: from outputs to those of the action that was taken, (K, B, head).
        """
        target = self.bounded(target)
        self.head.watch(target)
        out = pick(out)
        loss = self.head.loss(out, target).mean(-1).sum()
        q = self.head.value(out)
        if self.config.lipschitz == "robust":
            self.descend(loss + self.config.lipschitz_weight * self.robust_penalty(x, q, pick))
        else:
            self.descend(loss)
        q = q.detach()
        return {"critic_loss": loss.detach(), "q": q.mean(), "td": (q.mean(0) - target).abs()}

    def robust_penalty(self, x: Tensor, q: Tensor, pick: Pick) -> Tensor:
        """The squared change of q (K, B) under the worst small change of the observation: mean over B, sum over K."""
        start = x.detach().expand(len(q), *x.shape).clone().requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(self.head.value(pick(self._outputs(start))).sum(), start)
        step = self.config.lipschitz_radius * slope.sign()
        step[..., len(self.mean) :] = 0  # actions stay
        moved = self.head.value(pick(self._outputs(x.detach() + step)))
        return (moved - q).square().mean(-1).sum()
