"""The update of PPO, twice: by torch's autograd for every network and device, and in NumPy, several times faster.

    L = -min(ratio A, clip(ratio) A) + value_weight sum_k (V_k - R_k)^2 - entropy_weight H

For 64 units and 64 rows a matrix product takes microseconds, and autograd costs more than the arithmetic. `NumpyUpdate`
keeps the policy's and the values' networks in one stack of weights (2, units, inputs), so that one call serves both;
every result goes into memory that was allocated once; gradients are the closed forms below, written into the vector
that `Flat` hands to Adam. Inputs that have only been 0 so far are left out of an update.

    categorical   d log p(a) / d logits = onehot(a) - p          d H / d logits = -p (log p + H)
    Gaussian      d log p(a) / d mean = (a - mean) / sigma^2     d log p(a) / d log sigma = ((a - mean) / sigma)^2 - 1
    PPO           d L / d log p = -A * ratio, where the clip does not hold it; else 0
    tanh          d h / d z = 1 - h^2

Source: Schulman et al. 2017, arXiv 1707.06347, equations 7 and 9. Difference: the values' errors are added over
streams. A test compares the two. `NumpyUpdate` takes CPUs and networks of fully connected layers only.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from agents.networks.actor_critic import CLIP, MASKED, ActorCritic, cosines, masked, stream_gradients
from agents.ppo.config import PPOConfig
from lodestar.numerics.flat import Flat

SIZES = 16  # of batches whose memory is kept
WIDE = 64  # inputs from which on it is faster to leave out those that are never used
BROAD = 100_000  # weights of a layer from which on acting looks for inputs that are 0 in all rows
ROWS = 1024  # of a forward pass over a rollout: what it touches then fits into the cache
MEASURED = 8  # minibatches of the last epoch whose losses are logged


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
    often = max(len(rows) // size // MEASURED, 1)
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


class NumpyUpdate:
    """Acts, evaluates and learns in NumPy with the weights of an `ActorCritic`, which it shares."""

    deferred = True  # `act` leaves values and log-probabilities to `evaluate`, once a rollout
    hidden = None  # never recurrent

    def __init__(self, net: ActorCritic, flat: Flat, config: PPOConfig) -> None:
        self.net, self.flat, self.config, self.learning_rate = net, flat, config, config.learning_rate
        self.actions = net.actions
        self.mean, self.scale = net.obs_mean.numpy(), net.obs_scale.numpy()
        self._buffers: dict[int, _Buffers] = {}
        self._kept: torch.Tensor | None = None  # of the parameters that an update moves, if not all
        self._narrow: tuple[np.ndarray, ...] | None = None  # of rows just evaluated, as `_narrowed` gives it
        self._table: np.ndarray | None = None  # the policy's first weights, (inputs, units), in that order in memory
        self._use(flat, net.inputs.size)

    def _use(self, flat: Flat, width: int) -> None:
        """Look at the parameters in `flat`, those of a network with `width` inputs; their order is `net.ordered`'s."""
        self.used = flat
        value, grad = flat.value.numpy(), flat.grad.numpy()
        begin = 0

        def take(*shape: int) -> tuple[np.ndarray, np.ndarray]:
            nonlocal begin
            end = begin + math.prod(shape)
            views = value[begin:end].reshape(shape), grad[begin:end].reshape(shape)
            begin = end
            return views

        self.layers: list[_Layer] = []
        for layer in (layer for layer in self.net.pi.children() if isinstance(layer, torch.nn.Linear)):
            units = layer.out_features
            (weight, weight_grad), (bias, bias_grad) = take(2, units, width), take(2, units)
            self.layers.append(_Layer(weight, weight.transpose(0, 2, 1), weight_grad, bias[:, None], bias_grad))
            width = units
        self.log_std = self.log_std_grad = None
        if self.net.log_std is not None:
            log_std, self.log_std_grad = take(self.actions.outputs)
            self.log_std = log_std[:, None]
        self.heads = []
        for head in (self.net.pi_head, self.net.vf_head):
            (weight, weight_grad), (bias, bias_grad) = take(head.out_features, width), take(head.out_features)
            self.heads.append(_Layer(weight, weight.T, weight_grad, bias[:, None], bias_grad))

    def begin_update(self, batch: Batch) -> Batch:
        """The batch without inputs that have been 0 so far, here and for Adam: two thirds of MiniGrid's."""
        (whole, used, narrow), self._narrow = self._narrow or self._narrowed(batch.vector), None
        if whole.ctypes.data != batch.vector.ctypes.data or len(whole) < len(batch.vector):  # others were evaluated
            _, used, narrow = self._narrowed(batch.vector)
        if used.all():
            return batch
        places = np.ones(len(self.flat.value), bool)
        places[: self.layers[0].weight.size] = np.tile(used, self.layers[0].bias.size)
        self._kept = torch.from_numpy(np.flatnonzero(places))
        self._use(self.flat.part(self._kept), int(used.sum()))
        return dataclasses.replace(batch, vector=narrow[: len(batch.vector)])

    def _narrowed(self, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows (B, D); which inputs are used, bool (D,), all where these are most; the rows with these alone."""
        size, units = self.net.inputs.size, self.layers[0].bias.size
        if size >= WIDE and not self.net.normalize_obs:
            first = slice(0, units * size)
            moved = (self.flat.mean[first] != 0) | (self.flat.square[first] != 0)
            used = vector.any(axis=0) | moved.view(units, size).any(0).numpy()
            if used.mean() <= 0.75:
                return vector, used, np.ascontiguousarray(vector[:, used])
        return vector, np.ones(size, bool), vector

    def end_update(self) -> None:
        if self._kept is not None:
            self.flat.put(self._kept, self.used)
            self._kept = None
            self._use(self.flat, self.net.inputs.size)

    def _buffers_of(self, rows: int) -> "_Buffers":
        if rows not in self._buffers:
            if len(self._buffers) > SIZES:  # the last minibatch of a NEXT_STEP rollout has another size each time
                self._buffers.clear()
            units = [layer.weight.shape[1] for layer in self.layers]
            self._buffers[rows] = _Buffers(rows, units, self.actions.outputs, self.net.vf_head.out_features)
        return self._buffers[rows]

    def prepare(self, vector: np.ndarray) -> np.ndarray:
        if not self.net.normalize_obs:
            return vector
        return np.clip((vector - self.mean) * self.scale, -CLIP, CLIP)

    def begin_rollout(self) -> None:
        """Until the next call weights stay as they are, or `act` would not see it."""
        broad = self.layers[0].weight[0].size >= BROAD and not self.net.normalize_obs
        self._table = np.ascontiguousarray(self.layers[0].transposed[0]) if broad else None

    def act(self, vector: np.ndarray, pixels: Any, noise: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        """Actions (B, choices) for observations (B, D), of those that are allowed: the policy's network alone."""
        h, first = self.prepare(vector), None
        if self._table is not None:
            used = np.flatnonzero(h.any(axis=0))
            if 2 * len(used) < len(self._table):  # as in a grid, which shows each cell by a one among zeros
                h, first = h.take(used, 1), self._table.take(used, 0)
        for layer, hidden in zip(self.layers, self._buffers_of(len(vector)).hidden):
            h = np.matmul(h, layer.transposed[0] if first is None else first, out=hidden[0])
            first = None
            h += layer.bias[0]
            np.tanh(h, out=h)
        outputs = np.matmul(h, self.heads[0].transposed)
        outputs += self.heads[0].bias[:, 0]
        if self.log_std is not None:
            return outputs + np.exp(self.log_std[:, 0]) * noise
        outputs += noise
        if mask is not None:
            outputs[~mask] = MASKED
        if len(self.actions.columns) == 1:
            return outputs.argmax(-1)[:, None]
        return np.stack([outputs[:, c].argmax(-1) for c in self.actions.columns], -1)

    def evaluate(
        self, vector: np.ndarray, pixels: Any, action: np.ndarray | None, mask: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Values (M, K), and log-probabilities (M',) of the first M' = len(action) = len(mask) rows."""
        rows, self._narrow = len(vector), self._narrowed(vector)
        _, used, vector = self._narrow
        first = None if used.all() else self.layers[0].transposed[:, used]
        values = np.empty((rows, self.net.vf_head.out_features), np.float32)
        log_prob = np.empty(0 if action is None else len(action), np.float32)
        for begin in range(0, rows, ROWS):
            end = min(begin + ROWS, rows)
            memory = self._buffers_of(end - begin)
            self._forward(self.prepare(vector[begin:end]), memory, first)
            values[begin:end] = memory.values.T
            if begin < len(log_prob):
                assert action is not None
                taken = np.zeros((end - begin, action.shape[1]), action.dtype)
                known = min(end, len(log_prob)) - begin
                taken[:known] = action[begin : begin + known]
                if mask is not None:
                    memory.outputs[:, :known][~mask[begin : begin + known].T] = MASKED
                log_prob[begin : begin + known] = self._distribution(memory, taken)[:known]
        return values, log_prob

    def _forward(self, vector: np.ndarray, memory: "_Buffers", first: np.ndarray | None = None) -> None:
        """`first`: weights (2, inputs, units) of the first layer, where rows have no other inputs."""
        h = vector
        for layer, hidden in zip(self.layers, memory.hidden):
            np.matmul(h, layer.transposed if first is None else first, out=hidden)
            first = None
            hidden += layer.bias
            np.tanh(hidden, out=hidden)
            h = hidden
        for layer, side, out in zip(self.heads, memory.transposed, (memory.outputs, memory.values)):
            np.matmul(layer.weight, side, out=out)
            out += layer.bias

    def _distribution(self, memory: "_Buffers", action: np.ndarray) -> np.ndarray:
        """Log-probabilities (B,) of `action` (B, choices); for categoricals `outputs` become log p."""
        outputs, scratch = memory.outputs, memory.scratch
        if self.log_std is not None:
            scaled = np.subtract(action.T, outputs, out=scratch)
            scaled *= np.exp(-self.log_std)
            constant = float(self.log_std.sum()) + 0.5 * math.log(2 * math.pi) * self.actions.choices
            return np.square(scaled).sum(0) * np.float32(-0.5) - np.float32(constant)
        log_prob: Any = None
        for choice, rows in enumerate(self.actions.columns):
            logits = outputs[rows]
            logits -= logits.max(0)
            logits -= np.log(np.exp(logits, out=scratch[rows]).sum(0))
            part = outputs.take(self._places(memory, action, choice))
            log_prob = part if log_prob is None else log_prob + part
        return log_prob

    def _places(self, memory: "_Buffers", action: np.ndarray, choice: int) -> np.ndarray:
        """Where the chosen outputs lie in the flattened (outputs, B)."""
        return (action[:, choice] + self.actions.columns[choice].start) * len(memory.ones) + memory.columns

    def update(self, batch: Batch, rows: np.ndarray | slice, measure: bool = False) -> dict[str, float]:
        """One gradient step on the rows (B,) of a rollout; with `measure`, also what it looked like before it."""
        count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        memory = self._buffers_of(count)
        vector, action, numbers = memory.take(batch, rows)
        vector = self.prepare(vector)
        self._forward(vector, memory)
        if batch.mask is not None:
            memory.outputs[~batch.mask[rows].T] = MASKED  # p is 0 there, and so is every gradient
        log_ratio = self._distribution(memory, action)
        log_ratio -= numbers[:, 0]
        ratio = np.exp(log_ratio)
        advantage = numbers[:, 1] - numbers[:, 1].mean()
        advantage /= math.sqrt(advantage @ advantage / max(count - 1, 1)) + 1e-8
        slope = advantage * ratio
        # The clip holds where the surrogate has grown by more than clip_range: a step further gains nothing.
        free = slope - advantage <= self.config.clip_range * np.abs(advantage)
        error = np.subtract(memory.values, numbers[:, 2:].T, out=memory.errors)
        measured = self._measure(memory, log_ratio, ratio, advantage, error) if measure else {}
        slope *= free
        slope *= -1.0 / count  # d L / d log p
        d_outputs = self._d_outputs(memory, action, slope)
        error *= 2.0 * self.config.value_weight / count
        self._backward(vector, memory, d_outputs, error)
        self.used.step(self.learning_rate, self.config.max_grad_norm)
        return measured

    def _d_outputs(self, memory: "_Buffers", action: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """Gradient of the loss with respect to the policy's outputs (outputs, B); overwrites the scratch memory."""
        weight, out = self.config.entropy_weight, memory.scratch
        if self.log_std is not None:  # the scratch holds (a - mean) / sigma
            assert self.log_std_grad is not None
            np.matmul(out * out - 1.0, slope, out=self.log_std_grad)
            if weight:
                self.log_std_grad -= weight
            out *= np.exp(-self.log_std)
            out *= slope
            return out
        p = np.exp(memory.outputs, out=memory.probabilities)
        np.multiply(p, -slope, out=out)
        flat = out.reshape(-1)
        for choice, rows in enumerate(self.actions.columns):
            flat[self._places(memory, action, choice)] += slope
            if weight:
                side, log = p[rows], memory.outputs[rows]
                out[rows] += (weight / len(slope)) * side * (log - (side * log).sum(0))
        return out

    def _backward(self, vector: np.ndarray, memory: "_Buffers", d_outputs: np.ndarray, d_values: np.ndarray) -> None:
        for layer, h, out, d in zip(self.heads, memory.hidden[-1], memory.back[-1], (d_outputs, d_values)):
            np.matmul(d, h, out=layer.weight_grad)
            np.matmul(d, memory.ones, out=layer.bias_grad)
            np.matmul(d.T, layer.weight, out=out)
        for number in range(len(self.layers) - 1, -1, -1):
            layer, hidden, back = self.layers[number], memory.hidden[number], memory.back[number]
            np.multiply(hidden, hidden, out=hidden)
            np.subtract(1.0, hidden, out=hidden)
            back *= hidden
            below = memory.hidden[number - 1] if number else vector
            np.matmul(memory.back_transposed[number], below, out=layer.weight_grad)
            np.matmul(memory.ones, back, out=layer.bias_grad)
            if number:
                np.matmul(back, layer.weight, out=memory.back[number - 1])

    def _measure(self, memory: "_Buffers", log_ratio: Any, ratio: Any, advantage: Any, error: Any) -> dict[str, float]:
        clip = self.config.clip_range
        clipped = np.clip(ratio, 1 - clip, 1 + clip)
        if self.log_std is not None:
            entropy = float(self.log_std.sum()) + self.actions.choices * 0.5 * math.log(2 * math.pi * math.e)
        else:
            entropy = -float((np.exp(memory.outputs) * memory.outputs).sum()) / len(ratio)
        return {
            "policy_loss": -float(np.minimum(advantage * ratio, advantage * clipped).mean()),
            "value_loss": float(np.square(error).sum()) / len(ratio),
            "entropy": entropy,
            "approx_kl": float((ratio - 1 - log_ratio).mean()),
            "clip_fraction": float((np.abs(ratio - 1) > clip).mean()),
        }


class _Layer(NamedTuple):
    """Views of the parameters of a layer: of both networks (2, units, inputs), or of a head (outputs, inputs)."""

    weight: np.ndarray
    transposed: np.ndarray  # its last two axes exchanged
    weight_grad: np.ndarray
    bias: np.ndarray
    bias_grad: np.ndarray


class _Buffers:
    """What a batch of B rows needs on its way through the network and back."""

    def __init__(self, rows: int, units: list[int], outputs: int, streams: int) -> None:
        self.hidden = [np.empty((2, rows, n), np.float32) for n in units]
        self.transposed = self.hidden[-1].transpose(0, 2, 1)
        self.back = [np.empty((2, rows, n), np.float32) for n in units]
        self.back_transposed = [back.transpose(0, 2, 1) for back in self.back]
        self.outputs, self.scratch, self.probabilities = (np.empty((outputs, rows), np.float32) for _ in range(3))
        self.values, self.errors = (np.empty((streams, rows), np.float32) for _ in range(2))
        self.ones = np.ones(rows, np.float32)
        self.columns = np.arange(rows)
        self._taken: list[np.ndarray] = []

    def take(self, batch: Batch, rows: np.ndarray | slice) -> list[np.ndarray]:
        """The rows of a batch: observations, actions, and (old log-probability, advantage, returns)."""
        sources = (batch.vector, batch.action, batch.numbers)
        if isinstance(rows, slice):
            return [x[rows] for x in sources]
        if not self._taken or self._taken[0].shape[1] != batch.vector.shape[1]:
            self._taken = [np.empty((len(rows), *x.shape[1:]), x.dtype) for x in sources]
        for source, target in zip(sources, self._taken):
            np.take(source, rows, axis=0, out=target, mode="clip")
        return self._taken
