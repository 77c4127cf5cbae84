"""The PPO step of a small network, by hand in NumPy: what `agents.learner.Eager` does, several times faster.

For 64 units and 64 rows a matrix product takes microseconds, and torch's autograd spends more time on its books than on
arithmetic. Here the policy's and the values' networks lie in one stack of weights (2, units, inputs), so that one call
serves both; every result goes into memory that was allocated once; gradients are the closed forms below, written into
the vector that `Flat` hands to Adam.

    categorical   d log p(a) / d logits = onehot(a) - p          d H / d logits = -p (log p + H)
    Gaussian      d log p(a) / d mean = (a - mean) / sigma^2     d log p(a) / d log sigma = ((a - mean) / sigma)^2 - 1
    PPO           d L / d log p = -A * ratio, where the clip does not hold it; else 0
    tanh          d h / d z = 1 - h^2

Source: Schulman et al. 2017, arXiv 1707.06347, equations 7 and 9. Differences: none to the eager twin but rounding; a
test compares them. It knows CPUs and networks of fully connected layers; everything else takes the twin.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from agents.learner import Batch, Losses
from agents.nets import CLIP, ActorCritic, Flat

ROWS = 1024  # of a forward pass over a rollout: what it touches then fits into the cache


class Fused:
    """Acts, evaluates and learns with the weights of an `ActorCritic`, which it shares."""

    deferred = True  # `act` leaves values and log-probabilities to `evaluate`, once a rollout

    def __init__(self, net: ActorCritic, flat: Flat, losses: Losses) -> None:
        self.net, self.flat, self.losses = net, flat, losses
        self.actions = net.actions
        layers = [layer for layer in net.pi.children() if isinstance(layer, torch.nn.Linear)]
        begin, self.layers = 0, []
        value, grad = flat.value.numpy(), flat.grad.numpy()
        for layer in layers:
            units, width = layer.weight.shape
            weight, bias = slice(begin, begin + 2 * units * width), begin + 2 * units * width
            begin = bias + 2 * units
            self.layers.append(
                [x[weight].reshape(2, units, width) for x in (value, grad)]
                + [x[bias:begin].reshape(2, 1, units) for x in (value, grad)]
            )
        self.heads = [
            [x.detach().numpy() for x in (head.weight, head.weight.grad, head.bias, head.bias.grad)]  # type: ignore[union-attr]
            for head in (net.pi_head, net.vf_head)
        ]
        self.log_std = None if net.log_std is None else net.log_std.detach().numpy()
        self.log_std_grad = None if net.log_std is None else net.log_std.grad.numpy()  # type: ignore[union-attr]
        self.mean, self.scale = net.obs_mean.numpy(), net.obs_scale.numpy()
        self._memory: dict[int, _Memory] = {}

    def _of(self, rows: int) -> _Memory:
        if rows not in self._memory:
            self._memory[rows] = _Memory(rows, [w.shape[1] for w, *_ in self.layers], self.actions.outputs, self)
        return self._memory[rows]

    def prepare(self, vector: np.ndarray) -> np.ndarray:
        """What the networks read of flat observations: normalised if the policy says so."""
        if not self.net.normalize_obs:
            return vector
        return np.clip((vector - self.mean) * self.scale, -CLIP, CLIP)

    def act(self, vector: np.ndarray, pixels: Any, noise: np.ndarray) -> np.ndarray:
        """Actions (B, choices) for observations (B, D): the policy's network alone."""
        memory = self._of(len(vector))
        h = self.prepare(vector)
        for (weight, _, bias, _), hidden in zip(self.layers, memory.hidden):
            h = np.matmul(h, weight[0].T, out=hidden[0])
            h += bias[0]
            np.tanh(h, out=h)
        weight, _, bias, _ = self.heads[0]
        outputs = np.matmul(h, weight.T, out=memory.outputs)
        outputs += bias
        if self.log_std is not None:
            return outputs + np.exp(self.log_std) * noise
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
            values[begin:end] = memory.values
            if begin < len(log_prob):
                known = min(end, len(log_prob)) - begin
                assert action is not None
                log_prob[begin : begin + known] = self._distribution(memory, action[begin : begin + known], known)
        return values, log_prob

    def _forward(self, vector: np.ndarray, memory: _Memory) -> None:
        h = vector
        for (weight, _, bias, _), hidden in zip(self.layers, memory.hidden):
            np.matmul(h, weight.transpose(0, 2, 1), out=hidden)
            hidden += bias
            np.tanh(hidden, out=hidden)
            h = hidden
        for (weight, _, bias, _), side, out in zip(self.heads, h, (memory.outputs, memory.values)):
            np.matmul(side, weight.T, out=out)
            out += bias

    def _distribution(self, memory: _Memory, action: np.ndarray, rows: int) -> np.ndarray:
        """Log-probabilities of `action` (rows, choices); for categoricals `outputs` become log p."""
        outputs = memory.outputs[:rows]
        if self.log_std is not None:
            scaled = np.subtract(action, outputs, out=memory.scratch[:rows])
            scaled *= np.exp(-self.log_std)
            constant = float(self.log_std.sum()) + 0.5 * math.log(2 * math.pi) * self.actions.choices
            return np.einsum("ij,ij->i", scaled, scaled) * np.float32(-0.5) - np.float32(constant)
        log_prob: Any = 0.0
        for choice, columns in enumerate(self.actions.columns):
            logits = outputs[:, columns]
            logits -= logits.max(-1, keepdims=True)
            e = np.exp(logits, out=memory.scratch[:rows, columns])
            logits -= np.log(e.sum(-1, keepdims=True))
            log_prob = log_prob + logits[memory.rows[:rows], action[:, choice]]
        return log_prob

    def update(self, batch: Batch, rows: np.ndarray, measure: bool = False) -> dict[str, float]:
        """One gradient step on the rows (B,) of a rollout; with `measure`, also what it looked like before it."""
        memory = self._of(len(rows))
        vector, action, numbers = memory.take(batch, rows)
        vector = self.prepare(vector)
        self._forward(vector, memory)
        log_prob = self._distribution(memory, action, len(rows))
        old, advantage, returns = numbers[:, 0], numbers[:, 1], numbers[:, 2:]
        log_ratio = log_prob - old
        ratio = np.exp(log_ratio)
        clip = self.losses.clip_range
        free = np.where(advantage > 0, ratio < 1 + clip, ratio > 1 - clip)
        slope = advantage * ratio
        slope *= free
        slope *= -1.0 / len(rows)  # d L / d log p
        error = np.subtract(memory.values, returns, out=memory.errors)
        measured = self._measure(memory, log_ratio, ratio, advantage, error) if measure else {}
        d_outputs = self._d_outputs(memory, action, slope)
        error *= 2.0 * self.losses.value_weight / len(rows)
        self._backward(vector, memory, d_outputs, error)
        self.flat.step(self.losses.learning_rate, self.losses.max_grad_norm)
        return measured

    def _d_outputs(self, memory: _Memory, action: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """Gradient of the loss with respect to the policy's outputs (B, outputs); overwrites the scratch memory."""
        weight = self.losses.entropy_weight
        if self.log_std is not None:
            scaled = memory.scratch  # (a - mean) / sigma, left there by _distribution
            assert self.log_std_grad is not None
            np.matmul(slope, scaled * scaled - 1.0, out=self.log_std_grad)
            if weight:
                self.log_std_grad -= weight
            scaled *= np.exp(-self.log_std)
            scaled *= slope[:, None]
            return scaled
        out = memory.scratch
        log_p = memory.outputs
        p = np.exp(log_p, out=memory.probabilities)
        np.multiply(p, -slope[:, None], out=out)
        for choice, columns in enumerate(self.actions.columns):
            out[memory.rows, columns.start + action[:, choice]] += slope
            if weight:
                side, log = p[:, columns], log_p[:, columns]
                entropy = -np.einsum("ij,ij->i", side, log)
                out[:, columns] += (weight / len(slope)) * side * (log + entropy[:, None])
        return out

    def _backward(self, vector: np.ndarray, memory: _Memory, d_outputs: np.ndarray, d_values: np.ndarray) -> None:
        last = memory.hidden[-1]
        back = memory.back[-1]
        for (weight, weight_grad, _, bias_grad), h, out, d in zip(self.heads, last, back, (d_outputs, d_values)):
            np.matmul(d.T, h, out=weight_grad)
            np.matmul(memory.ones, d, out=bias_grad)
            np.matmul(d, weight, out=out)
        for number in range(len(self.layers) - 1, -1, -1):
            weight, weight_grad, _, bias_grad = self.layers[number]
            hidden, back = memory.hidden[number], memory.back[number]
            np.multiply(hidden, hidden, out=hidden)
            np.subtract(1.0, hidden, out=hidden)
            back *= hidden
            below = memory.hidden[number - 1] if number else vector
            np.matmul(back.transpose(0, 2, 1), below, out=weight_grad)
            np.matmul(memory.ones, back, out=bias_grad[:, 0])
            if number:
                np.matmul(back, weight, out=memory.back[number - 1])

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


class _Memory:
    """What a batch of B rows needs on its way through the network and back."""

    def __init__(self, rows: int, units: list[int], outputs: int, fused: Fused) -> None:
        self.hidden = [np.empty((2, rows, n), np.float32) for n in units]
        self.back = [np.empty((2, rows, n), np.float32) for n in units]
        self.outputs, self.scratch, self.probabilities = (np.empty((rows, outputs), np.float32) for _ in range(3))
        self.values, self.errors = (np.empty((rows, fused.net.vf_head.out_features), np.float32) for _ in range(2))
        self.ones = np.ones(rows, np.float32)
        self.rows = np.arange(rows)
        self._taken: list[np.ndarray] = []

    def take(self, batch: Batch, rows: np.ndarray) -> list[np.ndarray]:
        """The rows of a batch, copied: observations, actions, and (old log-probability, advantage, returns)."""
        sources = (batch.vector, batch.action, batch.numbers)
        if not self._taken:
            self._taken = [np.empty((len(rows), *x.shape[1:]), x.dtype) for x in sources]
        for source, target in zip(sources, self._taken):
            np.take(source, rows, axis=0, out=target, mode="clip")
        return self._taken
