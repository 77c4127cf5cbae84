"""CPL: a policy from comparisons of recorded segments alone, without a reward model and without values.

People's comparisons follow regret under the best policy; with maximum entropy that makes the policy itself the model of
preferences: the better one of two segments is that whose actions it finds more probable.

Source: Hejna et al. 2023, arXiv 2310.13639, and the authors' code. With `kl` probabilities count beyond those of the
cloned policy: Rafailov et al. 2023 (DPO), 2305.18290, on segments. Differences: a small network without dropout; after
cloning those weights are kept that are best on a tenth of the comparisons, where it is ten or more; discrete actions.
When it fails: few comparisons; a judge that compares what segments brought instead of how well they were acted.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from agents.offline.iql import IQL, MINIBATCHES_A_DRAW, PI
from envs.transitions import Transitions
from lodestar.settings import Settings, setting

# One in so many comparisons is held out, if these are enough to say when to stop.
HELD_OUT_DIVISOR = 10
MIN_HELD_OUT = 10
# Steps between two looks at the comparisons held out.
STEPS_BETWEEN_CHECKS = 50


@dataclass
class CPLConfig(Settings):
    """Settings of `CPL`; the source's value in brackets where it differs."""

    prefix = "agent."
    learning_rate: float = setting(3e-4, "of Adam [1e-4]", "(0, 1]")
    batch_size: int = setting(256, "transitions a step of cloning", ">= 1")
    net_arch: list[int] = setting([64, 64], "units of the hidden layers [512, 512]", ">= 1")
    squash: bool = setting(True, "whether a tanh bounds the means of actions, as in SAC; PPO has none")
    cloning: float = setting(0.4, "share of the steps, the first ones, that clone the recording", "[0, 1)")
    comparisons: int = setting(32, "comparisons a step after that [96]", ">= 1")
    alpha: float = setting(0.1, "weight of a log-probability", "> 0")
    bias: float = setting(0.5, "lambda, of the worse segment: below 1 recorded actions stay likely", "(0, 1]")
    kl: bool = setting(False, "whether log-probabilities count beyond those of the cloned policy")


def cpl_loss(first: Tensor, second: Tensor, label: Tensor, bias: float) -> Tensor:
    """-label log sigma(A2 - bias A1) - (1 - label) log sigma(A1 - bias A2); `label` is P(second is better)."""
    if_second = logsigmoid(second - bias * first)
    if_first = logsigmoid(first - bias * second)
    return -label * if_second - (1 - label) * if_first


class CPL(IQL):
    """The policy of an `IQL`; its signal: first and second segments (L, M), and P(second is better) (M,)."""

    Config = CPLConfig
    has_values = False

    def learn(self, steps: int, begin: int = 0, total: int = 0) -> dict[str, float]:
        """Clone, take a new optimiser, compare; returns losses, and the accuracy on comparisons held out, if any."""
        config = self.config
        cloning_steps = round(config.cloning * steps)
        metrics = super().learn(cloning_steps)
        self._flat = self._flatten()
        with torch.no_grad():
            self._before = self._sums(slice(None)) * config.kl
        loss = self._compare(steps - cloning_steps)
        if loss is not None:
            metrics["loss"] = loss
        self._refuse_diverged()
        held_out = self._held_out()
        rows = slice(held_out) if held_out else slice(None)
        return metrics | {"accuracy": self._accuracy(rows)}

    def _held_out(self) -> int:
        """How many comparisons, the first ones, say when to stop and are not learned from."""
        count = len(self._label) // HELD_OUT_DIVISOR
        return count if count >= MIN_HELD_OUT else 0

    def _compare(self, steps: int) -> float | None:
        """Learn from comparisons, and return to the weights that are best on those held out; returns the last loss."""
        config = self.config
        held_out = self._held_out()
        loss = None
        best_loss = math.inf
        best_weights = self._flat.value
        for step in range(steps):
            place = step % MINIBATCHES_A_DRAW
            if place == 0:
                shape = (MINIBATCHES_A_DRAW, config.comparisons)
                draws = torch.randint(held_out, len(self._label), shape, generator=self._generator, device=self.device)
            minibatch_loss = self._loss(draws[place])
            loss = float(self._flat.descend(minibatch_loss, config.learning_rate))
            if held_out and (step % STEPS_BETWEEN_CHECKS == 0 or step == steps - 1):
                with torch.no_grad():
                    held_out_loss = float(self._loss(slice(held_out)))
                if held_out_loss < best_loss:
                    best_loss = held_out_loss
                    best_weights = self._flat.value.clone()
        self._flat.value.copy_(best_weights)
        return loss

    def _step(self, rows: Tensor) -> dict[str, Tensor]:
        """Clone the actions of one minibatch."""
        width = self.encoding.obs_size
        # Behind both observations and the action stand the signal, and whether the episode continues.
        obs = rows[:, :width]
        action = rows[:, 2 * width : -2]
        loss = -self._log_prob(obs, action).mean()
        return {"cloning_loss": self._flat.descend(loss, self.config.learning_rate)}

    def _loss(self, rows: Any) -> Tensor:
        first, second = self._advantages(rows).unbind(1)
        loss = cpl_loss(first, second, self._label[rows], self.config.bias)
        return loss.mean()

    def _accuracy(self, rows: Any) -> float:
        """Share of the comparisons with a better side whose better side has the higher advantage."""
        with torch.no_grad():
            first, second = self._advantages(rows).unbind(1)
        label = self._label[rows]
        right = (second > first) == (label > 0.5)
        return float(right[label != 0.5].float().mean())

    def _advantages(self, rows: Any) -> Tensor:
        """What the policy says of both segments of comparisons, (B, 2): with `kl`, beyond the cloned policy."""
        return self.config.alpha * (self._sums(rows) - self._before[rows])

    def _sums(self, rows: Any) -> Tensor:
        """Log-probabilities of both segments of comparisons, summed over their steps: (B, 2)."""
        obs = self._obs[rows]
        action = self._action[rows]
        log_probs = self._log_prob(obs.flatten(0, 2), action.flatten(0, 2))
        return log_probs.view(obs.shape[:3]).sum(-1)

    def _log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        """Of actions (B, A) in whitened observations (B, D): (B, 1)."""
        net = self.net
        policy = net.policy(net(obs, action, PI)[0])
        if self.discrete:
            return net.log_prob(policy, action)
        return -(action - policy).square().sum(-1, keepdim=True)

    def _scale_signal(self, signal: np.ndarray) -> np.ndarray:
        # Nothing reads the rewards.
        return signal

    def _table(self, data: Transitions, signal: Any) -> Tensor:
        rows = super()._table(data, None)
        if signal is None or (signal[2] == 0.5).all():
            raise ValueError("CPL learns from comparisons that say which segment is better; give it some")
        first, second = signal[:2]
        obs = [self.encoding.vector(side.obs, leading=2) for side in (first, second)]
        action = [self.encoding.encode(side.action) for side in (first, second)]
        self._action = self._to_segments(action)
        self._obs = self.net.whiten(self._to_segments(obs))
        self._label = torch.tensor(signal[2], dtype=torch.float32, device=self.device)
        return rows

    def _to_segments(self, sides: list[np.ndarray]) -> Tensor:
        """Both sides of comparisons, (L, M, ...) each, as (M, 2, L, ...)."""
        return self.tensor(np.stack(sides)).movedim(2, 0)
