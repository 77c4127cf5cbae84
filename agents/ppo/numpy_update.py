"""The update of PPO in NumPy, several times faster than autograd for small networks.

    L = -min(ratio A, clip(ratio) A) + value_weight sum_k (V_k - R_k)^2 - entropy_weight H

For 64 units and 64 rows a matrix product takes microseconds, and autograd costs more than the arithmetic. `NumpyUpdate`
keeps the policy's and the values' networks in one stack of weights (2, units, inputs), so that one call serves both.
Every result goes into memory that was allocated once. Gradients are the closed forms below, written into the vector
that `Flat` hands to Adam. Inputs that have only been 0 so far are left out of an update.

    categorical   d log p(a) / d logits = onehot(a) - p          d H / d logits = -p (log p + H)
    Gaussian      d log p(a) / d mean = (a - mean) / sigma^2     d log p(a) / d log sigma = ((a - mean) / sigma)^2 - 1
    PPO           d L / d log p = -A * ratio, where the clip does not hold it; else 0
    tanh          d h / d z = 1 - h^2

A test compares it with `agents.ppo.update.TorchUpdate`. It takes CPUs and networks of fully connected layers only.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
import torch

from agents.networks.actor_critic import CLIP, MASKED, ActorCritic
from agents.ppo.config import PPOConfig
from agents.ppo.update import Batch
from lodestar.numerics.flat import Flat

# Memory is kept for batches of so many sizes.
KEPT_BATCH_SIZES = 16
# From so many inputs on it is faster to leave out those that are never used.
MANY_INPUTS = 64
# From so many weights of a layer on acting looks for inputs that are 0 in all rows.
MANY_WEIGHTS = 100_000
# A forward pass over a rollout takes so many rows at once: what it touches then fits into the cache.
FORWARD_ROWS = 1024


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
        if size >= MANY_INPUTS and not self.net.normalize_obs:
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
            if (
                len(self._buffers) > KEPT_BATCH_SIZES
            ):  # the last minibatch of a NEXT_STEP rollout has another size each time
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
        broad = self.layers[0].weight[0].size >= MANY_WEIGHTS and not self.net.normalize_obs
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
        for begin in range(0, rows, FORWARD_ROWS):
            end = min(begin + FORWARD_ROWS, rows)
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
