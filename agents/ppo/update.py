"""The update of PPO by torch's autograd, for every network and device.

    L = -min(ratio A, clip(ratio) A) + value_weight sum_k (V_k - R_k)^2 - entropy_weight H

Source: Schulman et al. 2017, arXiv 1707.06347, equations 7 and 9. Difference: the values' errors are added over
streams. `agents.ppo.numpy_update` is the same several times faster, for small networks.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agents.networks.actor_critic import ActorCritic, cosines, masked, stream_gradients
from agents.ppo.config import PPOConfig
from lodestar.numerics.flat import Flat

# So many minibatches of the last epoch have their losses logged.
LOGGED_MINIBATCHES = 8


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
    mask: Any = None  # bool (M, outputs), the actions that were allowed; None where all were

    def shuffled(self, order: np.ndarray) -> "Batch":
        """These rows of a batch without images and sequences, in this order, copied."""
        mask = None if self.mask is None else self.mask[order]
        return Batch(self.vector[order], {}, self.action[order], self.numbers[order], mask=mask)


def sequences(x: np.ndarray, length: int) -> np.ndarray:
    """(T, N, ...) -> (length, T / length * N, ...): sequences side by side, those of the first steps first."""
    count, n = len(x) // length, x.shape[1]
    parts = x.reshape(count, length, *x.shape[1:]).swapaxes(0, 1)
    return np.ascontiguousarray(parts).reshape(length, count * n, *x.shape[2:])


def advantages(
    rewards: np.ndarray,
    values: np.ndarray,
    last_values: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    valid: np.ndarray,
    gamma: np.ndarray,
    gae_lambda: float,
    episodic: np.ndarray,
) -> np.ndarray:
    """Generalised advantage estimates (T, N, K) of every stream; returns are advantages + values[:-1].

        delta_t = r_t + gamma * V(s_{t+1}) - V(s_t)         A_t = delta_t + gamma * lambda * A_{t+1}

    An episodic stream ends with its episode: after a termination V is 0, where time ran out V is that of the true last
    observation. One that is not continues into the next episode: dying must not look expensive to curiosity.

    `rewards` (T, N, K); `values` (T + 1, N, K), row T after the rollout; `last_values` (T, N, K), of a truncated
    episode's true last observation. A row that is not `valid`, bool (T, N), has advantage 0 and is passed over; if it
    is truncated, an episode was lost there: the row before is bootstrapped with its next observation. `gamma`,
    `episodic` (K,).
    """
    length, n, streams = rewards.shape
    following = values[1:]
    if not valid.all():
        following = following.copy()
        lost = truncated & ~valid
        for t in reversed(range(length - 1)):  # what follows a row that only resets is what follows its successor
            following[t] = np.where((valid | lost)[t + 1][:, None], following[t], following[t + 1])
    ended = (terminated | truncated) & valid
    stops = ended[..., None] & episodic
    at_end = np.where(truncated[..., None] & ~terminated[..., None], last_values, np.float32(0))
    delta = rewards + gamma * np.where(stops, at_end, following) - values[:-1]
    decay = np.where(stops, 0.0, gamma * gae_lambda).astype(np.float32)
    if not valid.all():
        delta[~valid], decay[~valid] = 0.0, 1.0
        decay[:-1][lost[1:]] = 0.0
    delta = delta.astype(np.float32, copy=False).reshape(length, n * streams)
    decay = decay.reshape(length, n * streams)
    out = delta.copy()
    scratch = np.empty(n * streams, np.float32)
    for t in range(length - 2, -1, -1):
        np.multiply(decay[t], out[t + 1], out=scratch)
        np.add(out[t], scratch, out=out[t])
    out = out.reshape(length, n, streams)
    return out if valid.all() else np.where(valid[..., None], out, np.float32(0))


def epochs(
    learner: Any, batch: Batch, rows: np.ndarray, size: int, config: PPOConfig, rng: np.random.Generator
) -> list[dict[str, float]]:
    """Minibatches of `size` rows, or sequences, over a rollout; what some of the last epoch's looked like."""
    narrow = not config.gru and not batch.pixels and math.prod(batch.vector.shape) < 2**18
    measured: list[dict[str, float]] = []
    often = max(len(rows) // size // LOGGED_MINIBATCHES, 1)
    for epoch in range(config.n_epochs):
        order: Any = rng.permutation(rows)
        # All rows at once are cheaper than a minibatch at a time, as long as they stay in the cache.
        shuffled = batch.shuffled(order) if narrow else batch
        for begin in range(0, len(order), size):
            end = min(begin + size, len(order))
            measure = epoch == config.n_epochs - 1 and begin // size % often == 0
            result = learner.update(shuffled, slice(begin, end) if narrow else order[begin:end], measure)
            if measure:
                measured.append(result)
    return measured


def alignment(pulls: Mapping[str, Tensor], weights: Mapping[str, float]) -> dict[str, float]:
    """Tags `stream/<name>/cosine` of the streams' gradients (P,) with the task's, or with the weighted sum's."""
    vectors, against = dict(pulls), "task"
    if "task" not in weights and pulls:
        vectors[against := ""] = torch.stack([weights[name] * pull for name, pull in pulls.items()]).sum(0)
    table = cosines(vectors) if against in vectors else {}
    others = [name for name in weights if name != "task"]
    return {f"stream/{name}/cosine": table[name][against] if name in table else math.nan for name in others}


def metrics(
    measured: list[dict[str, float]], returns: np.ndarray, values: np.ndarray, streams: list[str]
) -> dict[str, float]:
    """Tags: mean losses, and the share of each stream's variance (of rows (M, K)) that its value explains."""
    found = {f"train/{key}": float(np.mean([m[key] for m in measured])) for key in measured[0]}
    for column, name in enumerate(streams):
        variance = returns[:, column].var()
        explained = 1 - (returns[:, column] - values[:, column]).var() / variance if variance > 0 else np.nan
        found[f"train/explained_variance{f'_{name}' if len(streams) > 1 else ''}"] = float(explained)
    return found


class TorchUpdate:
    """Acts, evaluates and learns with torch; on the CPU it takes and gives NumPy arrays."""

    deferred = False  # `act` gives values and log-probabilities with the actions

    def __init__(self, net: ActorCritic, flat: Flat, config: PPOConfig) -> None:
        self.net, self.flat, self.config, self.learning_rate = net, flat, config, config.learning_rate
        self.actions, self.device = net.actions, flat.value.device
        self.hidden: Tensor | None = None  # (N, units) of a recurrent policy

    def tensor(self, x: Any) -> Tensor:
        return torch.as_tensor(x, device=self.device)

    def begin_update(self, batch: Batch) -> Batch:
        return batch

    def end_update(self) -> None:
        """Nothing was set aside."""

    def begin_rollout(self) -> None:
        """Weights are read where they are."""

    def start(self, n: int) -> None:
        assert self.net.gru is not None
        self.hidden = torch.zeros(n, self.net.gru.hidden_size, device=self.device)

    def _rows(self, vector: Any, pixels: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        return self.tensor(vector), {key: self.tensor(image) for key, image in pixels.items()}

    @torch.no_grad()
    def choose(
        self, vector: Any, pixels: Any, noise: Any, mask: Any = None, group: slice = slice(None), starts: Any = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Actions (B, choices), values (B, K), log-probabilities (B,) of some environments; `starts` empty it."""
        features = self.net.features(*self._rows(vector, pixels))
        if self.net.gru is not None:
            assert self.hidden is not None
            out, hidden = self.net.unroll(features[None], self.hidden[group], self.tensor(starts)[None])
            features, self.hidden[group] = out[0], hidden
        outputs, values = self.net.heads(features)
        outputs = masked(outputs, mask)
        action = self.actions.sample(outputs, self.net.log_std, self.tensor(noise))
        return action, values, self.actions.log_prob(outputs, self.net.log_std, action)[0]

    def act(self, *observed: Any) -> tuple[np.ndarray, ...]:
        """As `choose`, on the host."""
        return tuple(x.cpu().numpy() for x in self.choose(*observed))

    @torch.no_grad()
    def values(self, vector: Any, pixels: Any, hidden: Tensor | None = None) -> np.ndarray:
        """Values (B, K) of observations; a recurrent policy looks at them from `hidden` (B, units)."""
        features = self.net.features(*self._rows(vector, pixels))
        if self.net.gru is not None:
            assert hidden is not None
            starts = torch.zeros(1, len(features), dtype=torch.bool, device=self.device)
            features = self.net.unroll(features[None], hidden, starts)[0][0]
        return self.net.heads(features)[1].cpu().numpy()

    @torch.no_grad()
    def evaluate(self, vector: Any, pixels: Any, action: Any, mask: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Values (M, K), and log-probabilities of the first len(action) rows: what `NumpyUpdate.evaluate` gives."""
        outputs, values = self.net(*self._rows(vector, pixels))
        if action is None:
            return values.cpu().numpy(), np.empty(0, np.float32)
        outputs = masked(outputs[: len(action)], mask)
        log_prob, _ = self.actions.log_prob(outputs, self.net.log_std, self.tensor(action))
        return values.cpu().numpy(), log_prob.cpu().numpy()

    def update(self, batch: Batch, rows: Any, measure: bool = False) -> dict[str, float]:
        self.flat.grad.zero_()
        take = self._sequences if self.net.gru is not None else self._flat_rows
        outputs, values, action, numbers = take(batch, rows)
        log_prob, entropy = self.actions.log_prob(outputs, self.net.log_std, action)
        old, advantage, returns = numbers[:, 0], numbers[:, 1], numbers[:, 2:]
        advantage = advantage - advantage.mean()
        advantage /= advantage.norm() / max(len(advantage) - 1, 1) ** 0.5 + 1e-8
        ratio = torch.exp(log_prob - old)
        clip = self.config.clip_range
        surrogate = torch.minimum(advantage * ratio, advantage * ratio.clamp(1 - clip, 1 + clip))
        value_loss = (values - returns).square().sum(-1).mean()
        loss = self.config.value_weight * value_loss - surrogate.mean() - self.config.entropy_weight * entropy.mean()
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
        self._descend()
        return measured

    def _descend(self) -> None:
        self.flat.step(self.learning_rate, self.config.max_grad_norm)

    def scored(self, batch: Batch, rows: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities (B,), functions of the weights; those when acting; advantages (B, K) by today's values."""
        take = self._sequences if self.net.gru is not None else self._flat_rows
        outputs, values, action, numbers = take(batch, rows)
        log_prob, _ = self.actions.log_prob(outputs, self.net.log_std, action)
        advantage = numbers[:, 2:] - values.detach()
        return log_prob, numbers[:, 0], advantage - advantage.mean(0)

    def gradients(self, batch: Batch, rows: Any, streams: Mapping[str, int]) -> dict[str, Tensor]:
        """Stream (name -> its column) -> its policy gradient (P,) on some rows, for a recurrent policy sequences."""
        log_prob, _, advantage = self.scored(batch, rows)
        given = {name: advantage[:, column] for name, column in streams.items()}
        return stream_gradients(log_prob, given, self.net.policy_parameters())

    def _flat_rows(self, batch: Batch, rows: Any) -> tuple[Tensor, ...]:
        index = rows if isinstance(rows, slice) else self.tensor(rows)
        outputs, values = self._outputs(batch, index)
        outputs = masked(outputs, None if batch.mask is None else self.tensor(batch.mask)[index])
        return outputs, values, self.tensor(batch.action)[index], self.tensor(batch.numbers)[index]

    def _outputs(self, batch: Batch, index: Any) -> tuple[Tensor, Tensor]:
        vector, pixels = self._rows(batch.vector, batch.pixels)
        return self.net(vector[index], {key: image[index] for key, image in pixels.items()})

    def _sequences(self, batch: Batch, columns: Any) -> tuple[Tensor, ...]:
        index = self.tensor(columns)
        vector, pixels = self._rows(batch.vector[:, columns], {k: v[:, columns] for k, v in batch.pixels.items()})
        length, n = batch.starts.shape[0], len(columns)
        flat = vector.flatten(0, 1), {key: image.flatten(0, 1) for key, image in pixels.items()}
        features = self.net.features(*flat).view(length, n, -1)
        out, _ = self.net.unroll(features, batch.hidden[index], self.tensor(batch.starts[:, columns]))
        outputs, values = self.net.heads(out.flatten(0, 1))
        outputs = masked(outputs, None if batch.mask is None else self.tensor(batch.mask[:, columns]).flatten(0, 1))
        keep = torch.nonzero(self.tensor(batch.valid[:, columns]).flatten()).flatten()
        action, numbers = (self.tensor(x[:, columns]).flatten(0, 1) for x in (batch.action, batch.numbers))
        return outputs[keep], values[keep], action[keep], numbers[keep]
