"""What PPO minimises, and the twin that computes it with torch's autograd: every network, every device.

    L = -min(ratio A, clip(ratio) A) + value_weight sum_k (V_k - R_k)^2 - entropy_weight H

Source: Schulman et al. 2017, arXiv 1707.06347, equation 9. Difference: the values' errors are added over streams.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agents.networks.actor_critic import ActorCritic, Flat


@dataclass
class Losses:
    """The numbers in the loss and in its minimisation."""

    learning_rate: float
    clip_range: float
    entropy_weight: float
    value_weight: float
    max_grad_norm: float


@dataclass
class Batch:
    """A rollout as rows to learn from: M = T * N, or for a recurrent policy (T, M) sequences with their states."""

    vector: Any  # float32 (M, D), not normalised
    pixels: dict[str, Any]  # uint8 (M, C, H, W)
    action: Any  # (M, choices): int64, or float32 for a Gaussian
    numbers: Any  # float32 (M, 2 + K): log-probability when acting, advantage, returns
    valid: Any = None  # bool (T, M), recurrent only
    starts: Any = None  # bool (T, M), recurrent only: an episode begins here
    hidden: Any = None  # float32 (M, units), recurrent only: before the first row

    def take(self, rows: np.ndarray) -> Batch:
        """Some rows, copied."""
        pixels = {key: image[rows] for key, image in self.pixels.items()}
        return Batch(self.vector[rows], pixels, self.action[rows], self.numbers[rows])


class Eager:
    """Acts, evaluates and learns with torch; on the CPU it takes and gives NumPy arrays."""

    deferred = False  # `act` gives values and log-probabilities with the actions

    def __init__(self, net: ActorCritic, flat: Flat, losses: Losses) -> None:
        self.net, self.flat, self.losses = net, flat, losses
        self.actions = net.actions
        self.device = flat.value.device
        self.hidden: Tensor | None = None  # (N, units) of a recurrent policy

    def tensor(self, x: Any) -> Tensor:
        """On the policy's device; shares memory where it is there already."""
        return torch.as_tensor(x, device=self.device)

    def begin_update(self, batch: Batch) -> Batch:
        """The batch as `update` wants it."""
        return batch

    def end_update(self) -> None:
        """Nothing was set aside."""

    def start(self, n: int) -> None:
        """Empty the recurrent state of N environments."""
        if self.net.gru is not None:
            self.hidden = torch.zeros(n, self.net.gru.hidden_size, device=self.device)

    def _rows(self, vector: Any, pixels: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        return self.tensor(vector), {key: self.tensor(image) for key, image in pixels.items()}

    @torch.no_grad()
    def choose(self, vector: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Actions (B, choices), values (B, K), log-probabilities (B,) without leaving the device."""
        outputs, values = self.net(vector, {})
        action = self.actions.sample(outputs, self.net.log_std, noise)
        return action, values, self.actions.log_prob(outputs, self.net.log_std, action)[0]

    @torch.no_grad()
    def value(self, vector: Tensor) -> Tensor:
        """Values (B, K) without leaving the device."""
        return self.net(vector, {})[1]

    @torch.no_grad()
    def act(self, vector: Any, pixels: Any, noise: Any, group: slice = slice(None), starts: Any = None) -> Any:
        """Actions (B, choices), values (B, K), log-probabilities (B,) of a group of environments.

        `starts`, bool (B,), empties the recurrent state where an episode begins.
        """
        features = self.net.features(*self._rows(vector, pixels))
        if self.net.gru is not None:
            assert self.hidden is not None
            out, hidden = self.net.unroll(features[None], self.hidden[group], self.tensor(starts)[None])
            features, self.hidden[group] = out[0], hidden
        outputs, values = self.net.heads(features)
        action = self.actions.sample(outputs, self.net.log_std, self.tensor(noise))
        log_prob, _ = self.actions.log_prob(outputs, self.net.log_std, action)
        return tuple(x.cpu().numpy() for x in (action, values, log_prob))

    @torch.no_grad()
    def values(self, vector: Any, pixels: Any, hidden: Tensor | None = None) -> np.ndarray:
        """Values (B, K) of observations; a recurrent policy looks at them from `hidden` (B, units)."""
        features = self.net.features(*self._rows(vector, pixels))
        if self.net.gru is not None:
            assert hidden is not None
            starts = torch.zeros(1, len(features), dtype=torch.bool, device=self.device)
            features = self.net.unroll(features[None], hidden, starts)[0][0]
        return self.net.vf_head(self.net.vf(features)).cpu().numpy()

    @torch.no_grad()
    def evaluate(self, vector: Any, pixels: Any, action: Any) -> tuple[np.ndarray, np.ndarray]:
        """Values (M, K), and log-probabilities of the first len(action) rows: what `Fused.evaluate` gives."""
        outputs, values = self.net(*self._rows(vector, pixels))
        if action is None:
            return values.cpu().numpy(), np.empty(0, np.float32)
        log_prob, _ = self.actions.log_prob(outputs[: len(action)], self.net.log_std, self.tensor(action))
        return values.cpu().numpy(), log_prob.cpu().numpy()

    def update(self, batch: Batch, rows: Any, measure: bool = False) -> dict[str, float]:
        """One gradient step on some rows, or for a recurrent policy on some sequences."""
        self.flat.grad.zero_()
        take = self._sequences if self.net.gru is not None else self._flat_rows
        outputs, values, action, numbers = take(batch, rows)
        log_prob, entropy = self.actions.log_prob(outputs, self.net.log_std, action)
        old, advantage, returns = numbers[:, 0], numbers[:, 1], numbers[:, 2:]
        ratio = torch.exp(log_prob - old)
        clip = self.losses.clip_range
        surrogate = torch.minimum(advantage * ratio, advantage * ratio.clamp(1 - clip, 1 + clip))
        value_loss = (values - returns).square().sum(-1).mean()
        loss = self.losses.value_weight * value_loss - surrogate.mean() - self.losses.entropy_weight * entropy.mean()
        loss.backward()
        measured = {}
        if measure:
            with torch.no_grad():
                measured = {
                    "policy_loss": -float(surrogate.mean()),
                    "value_loss": float(value_loss),
                    "entropy": float(entropy.mean()),
                    "approx_kl": float((ratio - 1 - (log_prob - old)).mean()),
                    "clip_fraction": float(((ratio - 1).abs() > clip).float().mean()),
                }
        self.flat.step(self.losses.learning_rate, self.losses.max_grad_norm)
        return measured

    def _flat_rows(self, batch: Batch, rows: Any) -> tuple[Tensor, ...]:
        index = rows if isinstance(rows, slice) else self.tensor(rows)
        vector, pixels = self._rows(batch.vector, batch.pixels)
        outputs, values = self.net(vector[index], {key: image[index] for key, image in pixels.items()})
        return outputs, values, self.tensor(batch.action)[index], self.tensor(batch.numbers)[index]

    def _sequences(self, batch: Batch, columns: Any) -> tuple[Tensor, ...]:
        index = self.tensor(columns)
        vector, pixels = self._rows(batch.vector[:, columns], {k: v[:, columns] for k, v in batch.pixels.items()})
        length, n = batch.starts.shape[0], len(columns)
        flat = vector.flatten(0, 1), {key: image.flatten(0, 1) for key, image in pixels.items()}
        features = self.net.features(*flat).view(length, n, -1)
        out, _ = self.net.unroll(features, batch.hidden[index], self.tensor(batch.starts[:, columns]))
        outputs, values = self.net.heads(out.flatten(0, 1))
        keep = torch.nonzero(self.tensor(batch.valid[:, columns]).flatten()).flatten()
        action, numbers = (self.tensor(x[:, columns]).flatten(0, 1) for x in (batch.action, batch.numbers))
        return outputs[keep], values[keep], action[keep], numbers[keep]
