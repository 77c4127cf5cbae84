"""Clip-Cov: some of the rows that would narrow the policy fastest get no gradient, so that its entropy falls later.

    c_i = (log pi(a_i | s_i) - mean) (A_i - mean)     over a minibatch of N rows, A of unit deviation
    of the rows with low < c_i < high a random share N have no part in the policy's loss

Entropy falls by about the covariance of log-probability and advantage: by likely actions that turn out well, and by
unlikely ones that turn out badly.

Source: Cui et al. 2025, "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models", arXiv
2505.22617, equations 10 to 12; SPEAR (`agents.ppo.plugins.imitate`) uses it with share 0.02 and high 40. Differences:
share N of a minibatch is often below 1 here, so it is rounded up or down at random, and right in the mean; the defaults
of low and high are the source's, whose advantages are of tokens; the updates of self-imitation are not clipped.
It learns by torch's autograd, which takes four times as long for small networks.
Fails when: entropy is too high already; no row has a covariance above low, as where the policy is still uniform.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from agents.ppo.seams import Batch
from agents.ppo.update import TorchUpdate


class ClipCovUpdate(TorchUpdate):
    """As `TorchUpdate`, without the policy gradient of some rows."""

    # Of the last minibatch: the share of its rows that had no gradient for it.
    dropped = 0.0

    def follow(self, timesteps: int, total_timesteps: int) -> None:
        super().follow(timesteps, total_timesteps)
        # A continued run draws the same rows.
        self.rng = np.random.default_rng([timesteps, 5])

    def surrogate(self, advantage: Tensor, ratio: Tensor, log_prob: Tensor) -> Tensor:
        surrogate = super().surrogate(advantage, ratio, log_prob)
        log_prob = log_prob.detach()
        covariance = (log_prob - log_prob.mean()) * advantage
        in_range = (covariance > self.config.clip_cov_low) & (covariance < self.config.clip_cov_high)
        # PPO's own clip takes the gradient of the others already.
        has_gradient = surrogate == advantage * ratio
        candidates = torch.nonzero(in_range & has_gradient).flatten().cpu().numpy()
        count = int(self.config.clip_cov * len(advantage) + self.rng.random())
        chosen = self.rng.permutation(candidates)[:count]
        self.dropped = len(chosen) / len(advantage)
        counts = torch.ones_like(advantage)
        counts[self.tensor(chosen)] = 0
        return surrogate * counts

    def update(self, batch: Batch, rows: Any, measure: bool = False) -> dict[str, float]:
        metrics = super().update(batch, rows, measure)
        if measure:
            metrics["clip_cov_fraction"] = self.dropped
        return metrics
