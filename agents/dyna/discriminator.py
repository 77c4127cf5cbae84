"""A discriminator of imagined transitions: how much an outcome looks like one of the real environment.

It learns to distinguish recorded transitions from the model's, and the mean of its last snapshots is a reward for
dynamics: of several proposed outcomes the best is taken, and a rollout ends where even that one looks imagined.

Source: Luo et al. 2024 (MOREC), arXiv 2310.05422: D(s, a, s' - s), r_D = -log(1 - mean_k clip(sigmoid D_k)), the choice
among candidates of all elites, the threshold 0.6. Gradient penalty: Mescheder et al. 2018, arXiv 1801.04406.
Differences (the training code is not public): the penalty is zero-centred, on points between an outcome and the model's
for the same (s, a); snapshots are kept over fits; the threshold is lowered where it would cut more than a twentieth of
held-out recorded transitions; inputs are whitened, by scalers that stay until the data has doubled.
When it fails: far from the data, where the discriminator has seen neither kind.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from agents.dynamics import Dynamics
from agents.dynamics.ensemble import Scaler, split
from agents.networks.actor_critic import CLIP, SpaceEncoding
from agents.networks.stacked import Stacked
from agents.replay.replay import Replay
from lodestar.numerics.descent import Flat, draw_integers, draw_uniform
from lodestar.state import Stateful

# The largest probability, so that the reward stays finite.
MAX_PROBABILITY = 1 - 1e-4
# The share of held-out recorded transitions that the calibrated threshold keeps, at least.
MIN_KEPT_SHARE = 0.95
# The source's threshold, which calibration only lowers.
MAX_THRESHOLD = 0.6


class DiscriminatorConfig(NamedTuple):
    """Settings of `Discriminator`."""

    # Units of each hidden layer.
    hidden: tuple[int, ...] = (128, 128)
    # How many snapshots are averaged, M, and the gradient steps between two of them.
    snapshots: int = 8
    every: int = 50
    # Recorded transitions in a minibatch, and as many imagined ones.
    batch_size: int = 256
    # Of Adam.
    learning_rate: float = 3e-4
    # Of the gradient penalty.
    gradient_weight: float = 0.1
    # The reward below which rollouts end; None: calibrated at each fit.
    threshold: float | None = None


def gradient_penalty(judge: Stacked, x: Tensor) -> Tensor:
    """Mean squared length of the gradient of a discriminator's logit at `x` (B, I); differentiable in its weights."""
    x = x.detach().requires_grad_()
    total = judge(x).sum()
    (slope,) = torch.autograd.grad(total, x, create_graph=True)
    squared_length = slope.square().sum(-1)
    return squared_length.mean()


class Discriminator(Stateful):
    """How recorded and imagined transitions differ: r_D(s, a, s') = -log(1 - mean_k clip(sigmoid D_k)), above 0."""

    saved = ("judge", "panel", "scaler", "_flat", "threshold", "_scaled_at", "_taken", "generator")

    def __init__(
        self, encoding: SpaceEncoding, config: DiscriminatorConfig, *, seed: int = 0, device: str = "cpu"
    ) -> None:
        self.config = config
        self.device = torch.device(device)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        width = 2 * encoding.obs_size + encoding.action_size
        judge = Stacked(1, width, list(config.hidden), 1, activation="silu", seed=seed)
        self.judge = judge.to(self.device)
        # The last snapshots of the judge, a ring.
        panel = Stacked(config.snapshots, width, list(config.hidden), 1, activation="silu")
        self.panel = panel.to(self.device)
        self.panel.requires_grad_(False)
        self.scaler = Scaler(width).to(self.device)
        self._flat = Flat.of_parameters(self.judge.weights())  # type: ignore[arg-type]
        # `choose` keeps no outcome with a reward below it.
        self.threshold = torch.tensor(config.threshold or 0.0, device=self.device)
        # Rows there were when the scalers were set, and snapshots taken so far.
        self._scaled_at = 0
        self._taken = 0

    def reward(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """How much each transition (..., D), (..., A), (..., D) looks like a recorded one, (...,)."""
        x = self._inputs(obs, action, next_obs)
        n_snapshots = max(1, min(self._taken, self.config.snapshots))
        snapshots = self.panel.members(slice(0, n_snapshots))
        logits = self.panel(x.flatten(0, -2), snapshots)
        probability = torch.sigmoid(logits).mean(0)
        probability = probability.clamp(max=MAX_PROBABILITY)
        return -torch.log1p(-probability).view(x.shape[:-1])

    @torch.no_grad()
    def choose(self, obs: Tensor, action: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """One of N outcomes (N, B, D) for each row (B,), and whether it is good enough to continue from, bool (B,)."""
        n = len(candidates)
        obs = obs.expand(n, -1, -1)
        action = action.expand(n, -1, -1)
        reward = self.reward(obs, action, candidates)
        index = reward.argmax(0)
        best_reward = reward.gather(0, index[None])[0]
        return index, best_reward >= self.threshold

    def fit(self, replay: Replay, model: Dynamics, steps: int) -> dict[str, float]:
        """Learn to tell a replay's transitions from the model's: judge_loss (log 2 if alike), _penalty, _threshold."""
        obs, action, next_obs = replay.arrays()[:3]
        rows, held = split(len(obs), device=self.device)
        if replay.added >= 2 * self._scaled_at:
            self._scaled_at = replay.added
            transitions = torch.cat([obs, action, next_obs - obs], -1)
            self._rescale(transitions)
        loss = torch.zeros((), device=self.device)
        penalty = loss
        size = self.config.batch_size
        for begin in range(0, steps, self.config.every):
            count = min(self.config.every, steps - begin)
            places = draw_integers(self.generator, len(rows), count * size)
            index = rows[places]
            s = obs.index_select(0, index)
            a = action.index_select(0, index)
            s_next = next_obs.index_select(0, index)
            # The model predicts all outcomes up to the next snapshot at once.
            with torch.no_grad():
                imagined = model.step(s, a).next_obs
                real = self._inputs(s, a, s_next)
                fake = self._inputs(s, a, imagined)
            for real_batch, fake_batch in zip(real.split(size), fake.split(size)):
                loss, penalty = self._update(real_batch, fake_batch)
            self._snapshot()
        if self.config.threshold is None:
            reward = self.reward(obs[held], action[held], next_obs[held])
            threshold = torch.quantile(reward, 1 - MIN_KEPT_SHARE)
            self.threshold = threshold.clamp(max=MAX_THRESHOLD)
        return {
            "judge_loss": float(loss),
            "judge_penalty": float(penalty),
            "judge_threshold": float(self.threshold),
        }

    def _rescale(self, rows: Tensor) -> None:
        """Fit the scalers; networks that have learned are adapted, so that their outputs stay."""
        mean = self.scaler.mean.clone()
        scale = self.scaler.scale.clone()
        self.scaler.fit(rows)
        if self._taken:
            relative_scale = self.scaler.scale / scale
            shift = (self.scaler.mean - mean) / scale
            self.judge.fold(relative_scale, shift)
            self.panel.fold(relative_scale, shift)

    def _inputs(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """Whitened (s, a, s' - s), cut where a model diverged."""
        transitions = torch.cat([obs, action, next_obs - obs], -1)
        x = self.scaler(transitions)
        x = torch.nan_to_num(x, CLIP, CLIP, -CLIP)
        return x.clamp(-CLIP, CLIP)

    def _update(self, real: Tensor, fake: Tensor) -> tuple[Tensor, Tensor]:
        """One step of Adam on (B, I) of each kind; cross-entropy and penalty."""
        inputs = torch.cat([real, fake])
        logits = self.judge(inputs)[0, :, 0]
        labels = torch.zeros_like(logits)
        labels[: len(real)] = 1
        loss = binary_cross_entropy_with_logits(logits, labels)
        share = draw_uniform(self.generator, len(real), 1)
        penalty = gradient_penalty(self.judge, fake.lerp(real, share))
        objective = loss + self.config.gradient_weight * penalty
        self._flat.descend(objective, self.config.learning_rate, 10.0)
        return loss.detach(), penalty.detach()

    @torch.no_grad()
    def _snapshot(self) -> None:
        """Copy the judge to the panel, over its oldest member."""
        place = self._taken % self.config.snapshots
        for member, weight in zip(self.panel.weights(), self.judge.weights()):
            member[place] = weight[0]
        self._taken += 1
