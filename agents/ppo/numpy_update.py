"""The PPO step of a small network, by hand in NumPy: what `agents.ppo.learner.Eager` does, several times faster.

For 64 units and 64 rows a matrix product takes microseconds, and torch's autograd spends more time on its books than on
arithmetic. Here the policy's and the values' networks lie in one stack of weights (2, units, inputs), so that one call
serves both; every result goes into memory that was allocated once; gradients are the closed forms below, written into
the vector that `Flat` hands to Adam. Inputs that were never anything but 0 are left out of an update.

    categorical   d log p(a) / d logits = onehot(a) - p          d H / d logits = -p (log p + H)
    Gaussian      d log p(a) / d mean = (a - mean) / sigma^2     d log p(a) / d log sigma = ((a - mean) / sigma)^2 - 1
    PPO           d L / d log p = -A * ratio, where the clip does not hold it; else 0
    tanh          d h / d z = 1 - h^2

Source: Schulman et al. 2017, arXiv 1707.06347, equations 7 and 9. Differences: none to the eager twin but rounding; a
test compares them. It knows CPUs and networks of fully connected layers; everything else takes the twin.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
import torch

from agents.networks.actor_critic import CLIP, ActorCritic, Flat
from agents.ppo.learner import Batch, Losses

SIZES = 16  # of batches whose memory is kept
WIDE = 64  # inputs from which on it pays to leave out those that are never used
ROWS = 1024  # of a forward pass over a rollout: what it touches then fits into the cache


class Fused:
    """Acts, evaluates and learns with the weights of an `ActorCritic`, which it shares."""

    deferred = True  # `act` leaves values and log-probabilities to `evaluate`, once a rollout

    def __init__(self, net: ActorCritic, flat: Flat, losses: Losses) -> None:
        self.net, self.flat, self.losses = net, flat, losses
        self.actions = net.actions
        self.mean, self.scale = net.obs_mean.numpy(), net.obs_scale.numpy()
        self._memory: dict[int, _Memory] = {}
        self._kept: torch.Tensor | None = None  # of the parameters that an update moves, if not all
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
        """The batch without inputs that have been 0 in every observation so far: their weights do not move.

        Worlds that are written one-hot, such as MiniGrid, use a third of their inputs. An input counts as used if it is
        not 0 here, or if Adam remembers a gradient.
        """
        size, units = self.net.inputs.size, self.layers[0].weight.shape[1]
        if size < WIDE or self.net.normalize_obs:
            return batch
        first = slice(0, 2 * units * size)
        moved = (self.flat.mean[first] != 0) | (self.flat.square[first] != 0)
        used = batch.vector.any(axis=0) | moved.view(2 * units, size).any(0).numpy()
        if used.mean() > 0.75:
            return batch
        places = np.ones(len(self.flat.value), bool)
        places[first] = np.tile(used, 2 * units)
        self._kept = torch.from_numpy(np.flatnonzero(places))
        self._use(self.flat.part(self._kept), int(used.sum()))
        return dataclasses.replace(batch, vector=np.ascontiguousarray(batch.vector[:, used]))

    def end_update(self) -> None:
        """Put the parameters that moved back among the others."""
        if self._kept is not None:
            self.flat.put(self._kept, self.used)
            self._kept = None
            self._use(self.flat, self.net.inputs.size)

    def _of(self, rows: int) -> _Memory:
        if rows not in self._memory:
            if len(self._memory) > SIZES:  # the last minibatch of a NEXT_STEP rollout has another size each time
                self._memory.clear()
            units = [layer.weight.shape[1] for layer in self.layers]
            self._memory[rows] = _Memory(rows, units, self.actions.outputs, self.net.vf_head.out_features)
        return self._memory[rows]

    def prepare(self, vector: np.ndarray) -> np.ndarray:
        """What the networks read of flat observations: normalised if the policy says so."""
        if not self.net.normalize_obs:
            return vector
        return np.clip((vector - self.mean) * self.scale, -CLIP, CLIP)

    def act(self, vector: np.ndarray, pixels: Any, noise: np.ndarray) -> np.ndarray:
        """Actions (B, choices) for observations (B, D): the policy's network alone."""
        h = self.prepare(vector)
        for layer, hidden in zip(self.layers, self._of(len(vector)).hidden):
            h = np.matmul(h, layer.turned[0], out=hidden[0])
            h += layer.bias[0]
            np.tanh(h, out=h)
        outputs = np.matmul(h, self.heads[0].turned)
        outputs += self.heads[0].bias[:, 0]
        if self.log_std is not None:
            return outputs + np.exp(self.log_std[:, 0]) * noise
        outputs += noise
        if len(self.actions.columns) == 1:
            return outputs.argmax(-1)[:, None]
        return np.stack([outputs[:, c].argmax(-1) for c in self.actions.columns], -1)

    def evaluate(self, vector: np.ndarray, pixels: Any, action: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Values (M, K), and log-probabilities (M',) of the first M' = len(action) rows."""
        rows = len(vector)
        values = np.empty((rows, self.net.vf_head.out_features), np.float32)
        log_prob = np.empty(0 if action is None else len(action), np.float32)
        for begin in range(0, rows, ROWS):
            end = min(begin + ROWS, rows)
            memory = self._of(end - begin)
            self._forward(self.prepare(vector[begin:end]), memory)
            values[begin:end] = memory.values.T
            if begin < len(log_prob):
                assert action is not None
                taken = np.zeros((end - begin, action.shape[1]), action.dtype)
                known = min(end, len(log_prob)) - begin
                taken[:known] = action[begin : begin + known]
                log_prob[begin : begin + known] = self._distribution(memory, taken)[:known]
        return values, log_prob

    def _forward(self, vector: np.ndarray, memory: _Memory) -> None:
        h = vector
        for layer, hidden in zip(self.layers, memory.hidden):
            np.matmul(h, layer.turned, out=hidden)
            hidden += layer.bias
            np.tanh(hidden, out=hidden)
            h = hidden
        for layer, side, out in zip(self.heads, memory.turned, (memory.outputs, memory.values)):
            np.matmul(layer.weight, side, out=out)
            out += layer.bias

    def _distribution(self, memory: _Memory, action: np.ndarray) -> np.ndarray:
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

    def _places(self, memory: _Memory, action: np.ndarray, choice: int) -> np.ndarray:
        """Where the chosen outputs lie in the flattened (outputs, B)."""
        return (action[:, choice] + self.actions.columns[choice].start) * len(memory.ones) + memory.columns

    def update(self, batch: Batch, rows: np.ndarray | slice, measure: bool = False) -> dict[str, float]:
        """One gradient step on the rows (B,) of a rollout; with `measure`, also what it looked like before it."""
        count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        memory = self._of(count)
        vector, action, numbers = memory.take(batch, rows)
        vector = self.prepare(vector)
        self._forward(vector, memory)
        log_ratio = self._distribution(memory, action)
        log_ratio -= numbers[:, 0]
        ratio = np.exp(log_ratio)
        advantage = numbers[:, 1]
        slope = advantage * ratio
        # The clip holds where the surrogate has grown by more than clip_range: a step further pays nothing.
        free = slope - advantage <= self.losses.clip_range * np.abs(advantage)
        error = np.subtract(memory.values, numbers[:, 2:].T, out=memory.errors)
        measured = self._measure(memory, log_ratio, ratio, advantage, error) if measure else {}
        slope *= free
        slope *= -1.0 / count  # d L / d log p
        d_outputs = self._d_outputs(memory, action, slope)
        error *= 2.0 * self.losses.value_weight / count
        self._backward(vector, memory, d_outputs, error)
        self.used.step(self.losses.learning_rate, self.losses.max_grad_norm)
        return measured

    def _d_outputs(self, memory: _Memory, action: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """Gradient of the loss with respect to the policy's outputs (outputs, B); overwrites the scratch memory."""
        weight, out = self.losses.entropy_weight, memory.scratch
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

    def _backward(self, vector: np.ndarray, memory: _Memory, d_outputs: np.ndarray, d_values: np.ndarray) -> None:
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
            np.matmul(memory.back_turned[number], below, out=layer.weight_grad)
            np.matmul(memory.ones, back, out=layer.bias_grad)
            if number:
                np.matmul(back, layer.weight, out=memory.back[number - 1])

    def _measure(self, memory: _Memory, log_ratio: Any, ratio: Any, advantage: Any, error: Any) -> dict[str, float]:
        clip = self.losses.clip_range
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
    turned: np.ndarray  # its last two axes exchanged
    weight_grad: np.ndarray
    bias: np.ndarray
    bias_grad: np.ndarray


class _Memory:
    """What a batch of B rows needs on its way through the network and back."""

    def __init__(self, rows: int, units: list[int], outputs: int, streams: int) -> None:
        self.hidden = [np.empty((2, rows, n), np.float32) for n in units]
        self.turned = self.hidden[-1].transpose(0, 2, 1)
        self.back = [np.empty((2, rows, n), np.float32) for n in units]
        self.back_turned = [back.transpose(0, 2, 1) for back in self.back]
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
