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

from agents.offline.iql import AHEAD, IQL, PI, run
from envs.transitions import Transitions
from lodestar.numerics.flat import Flat
from lodestar.settings import Settings, setting

FEW = 10  # comparisons held out; fewer say nothing about when to stop
EVERY = 50  # steps between two looks at them


@dataclass
class CPLConfig(Settings):
    """Settings of `CPL`; the source's value in brackets where it differs."""

    prefix = "agent."
    learning_rate: float = setting(3e-4, "of Adam [1e-4]", above=0, high=1)
    batch_size: int = setting(256, "transitions a step of cloning", low=1)
    net_arch: list[int] = setting([64, 64], "units of the hidden layers [512, 512]", low=1)
    cloning: float = setting(0.4, "share of the steps, the first ones, that clone the recording", low=0, below=1)
    comparisons: int = setting(32, "comparisons a step after that [96]", low=1)
    alpha: float = setting(0.1, "weight of a log-probability", above=0)
    bias: float = setting(0.5, "lambda, of the worse segment: below 1 recorded actions stay likely", above=0, high=1)
    kl: bool = setting(False, "whether log-probabilities count beyond those of the cloned policy")


def cpl_loss(first: Tensor, second: Tensor, label: Tensor, bias: float) -> Tensor:
    """-label log sigma(A2 - bias A1) - (1 - label) log sigma(A1 - bias A2); `label` is P(second is better)."""
    return -label * logsigmoid(second - bias * first) - (1 - label) * logsigmoid(first - bias * second)


class CPL(IQL):
    """The policy of an `IQL`; its signal: first and second segments (L, M), and P(second is better) (M,)."""

    Config = CPLConfig

    def learn(self, steps: int) -> dict[str, float]:
        """Clone, take a new optimiser, compare; returns losses, and the accuracy on comparisons held out, if any."""
        config, cloned = self.config, round(self.config.cloning * steps)
        metrics = super().learn(cloned)
        self._flat = Flat.over([p for p in self.net.parameters() if p.requires_grad])
        with torch.no_grad():
            self._before = self._sums(slice(None)) * config.kl
        count, rest = len(self._label), steps - cloned
        held = slice(count // 10 if count >= 10 * FEW else 0)
        best, weights = math.inf, self._flat.value
        for step in range(rest):
            if step % AHEAD == 0:
                shape = (AHEAD, config.comparisons)
                draws = torch.randint(held.stop, count, shape, generator=self._generator, device=self.device)
            metrics["loss"] = float(self._flat.descend(self._loss(draws[step % AHEAD]), config.learning_rate))
            if held.stop and (step % EVERY == 0 or step == rest - 1):
                with torch.no_grad():
                    loss = float(self._loss(held))
                best, weights = (loss, self._flat.value.clone()) if loss < best else (best, weights)
        self._flat.value.copy_(weights)
        self._refuse_diverged()
        return metrics | {"accuracy": self._accuracy(held if held.stop else slice(None))}

    def _step(self, rows: Tensor) -> dict[str, Tensor]:
        width = self.encoding.obs_size
        loss = -self._log_prob(rows[:, :width], rows[:, 2 * width : -2]).mean()
        return {"cloning_loss": self._flat.descend(loss, self.config.learning_rate)}

    def _loss(self, rows: Any) -> Tensor:
        advantage = self._advantages(rows)
        return cpl_loss(advantage[:, 0], advantage[:, 1], self._label[rows], self.config.bias).mean()

    def _accuracy(self, rows: Any) -> float:
        """Share of the comparisons with a better side whose better side has the higher advantage."""
        with torch.no_grad():
            advantage = self._advantages(rows)
        label = self._label[rows]
        right = (advantage[:, 1] > advantage[:, 0]) == (label > 0.5)
        return float(right[label != 0.5].float().mean())

    def _advantages(self, rows: Any) -> Tensor:
        """What the policy says of both segments of comparisons, (B, 2): with `kl`, beyond the cloned policy."""
        return self.config.alpha * (self._sums(rows) - self._before[rows])

    def _sums(self, rows: Any) -> Tensor:
        """Log-probabilities of both segments of comparisons, summed over their steps: (B, 2)."""
        obs, action = self._obs[rows], self._action[rows]
        return self._log_prob(obs.flatten(0, 2), action.flatten(0, 2)).view(obs.shape[:3]).sum(-1)

    def _log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        """Of actions (B, A) in whitened observations (B, D): (B, 1)."""
        net = self.net
        policy = net.policy(run(net.layers(PI), net.inputs(obs, action, PI))[0])
        return net.log_prob(policy, action) if self.discrete else -(action - policy).square().sum(-1, keepdim=True)

    def _units(self, worth: np.ndarray) -> np.ndarray:
        return worth  # which nothing reads

    def _table(self, data: Transitions, signal: Any) -> Tensor:
        rows = super()._table(data, None)
        if signal is None or (signal[2] == 0.5).all():
            raise ValueError("CPL learns from comparisons that say which segment is better; give it some")
        seen = np.stack([self.encoding.vector(side.obs, leading=2) for side in signal[:2]])  # (2, L, M, D)
        taken = np.stack([self.encoding.encode(side.action) for side in signal[:2]])
        obs, self._action = (torch.from_numpy(x).to(self.device).movedim(2, 0) for x in (seen, taken))
        self._obs = self.net.whitened(obs)  # (M, 2, L, D)
        self._label = torch.tensor(signal[2], dtype=torch.float32, device=self.device)
        return rows
