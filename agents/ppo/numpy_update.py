"""The update of PPO in NumPy, several times faster than autograd for small networks.

    L = -min(ratio A, clip(ratio) A) + value_weight sum_k (V_k - R_k)^2 - entropy_weight H

For 64 units and 64 rows a matrix product takes microseconds, and autograd costs more than the
arithmetic. `NumpyUpdate` keeps the policy's and the values' networks in one stack of weights
(2, units, inputs), so that one call serves both. Every result goes into memory that was allocated
once. Gradients are the closed forms below, written into the vector that `Flat` hands to Adam. Inputs
that have only been 0 so far are left out of an update.

    categorical   d log p(a) / d logits = onehot(a) - p          d H / d logits = -p (log p + H)
    Gaussian      d log p(a) / d mean = (a - mean) / sigma^2     d log p(a) / d log sigma = ((a - mean) / sigma)^2 - 1
    PPO           d L / d log p = -A * ratio, where the clip does not hold it; else 0
    tanh, ReLU    d h / d z = 1 - h^2, h > 0

A test compares it with `agents.ppo.update.TorchUpdate`. It takes CPUs and networks of fully connected layers only.
`CompiledUpdate` makes all epochs in one compiled call (`agents.ppo.kernel`, by numba) where a run is long enough:

    agent.path=auto    NumPy until `COMPILE_AFTER_ROWS` were learned from, then compiled: short runs do not wait
    agent.path=numba   compiled from the first update
    other paths        never

How much was learned so far is part of a run's state: resumed or extended, it changes over at the same update.
"""

# Why short runs do not learn by autograd, or compiled from the start, CPU-seconds of `learn` on
# CartPole-v1 with 8 environments on one core, beside 3.6 s of imports:
#
#     frames     NumPy    autograd   compiled, warm cache   compiled, cold cache
#     20,000      0.7        4.0             2.2                    8.3
#     100,000     3.3       18               3.4                     -
#
# A warm cache must not choose the path either, since the two differ in the last digits: the same
# command would give another run. Without the extra `fast` there is no compiled path at all.

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
import torch

from agents.networks.actor_critic import CLIP, MASKED, ActorCritic
from agents.ppo.config import PPOConfig
from agents.ppo.seams import LOGGED_MINIBATCHES, Batch, Learner, Targets
from lodestar.numerics.compiled import kernel
from lodestar.numerics.descent import Flat

# Memory is kept for batches of so many sizes.
MAX_BUFFERED_SIZES = 16
# From so many inputs on it is faster to leave out those that are never used, if these are more than
# a quarter.
MANY_INPUTS = 64
MAX_USED_SHARE = 0.75
# From so many weights of a layer on acting looks for inputs that are 0 in all rows.
MANY_WEIGHTS = 100_000
# A forward pass over a rollout takes so many rows at once: what it touches then fits into the cache.
FORWARD_ROWS = 1024
# Rows are counted once an epoch: 200,000 frames at ten epochs, about 4 seconds in NumPy.
COMPILE_AFTER_ROWS = 2_000_000
# What the kernel measures, in its order.
KERNEL_METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


class NumpyUpdate(Learner):
    """Acts, evaluates and learns in NumPy with the weights of an `ActorCritic`, which it shares."""

    deferred = True

    def __init__(self, net: ActorCritic, flat: Flat, config: PPOConfig) -> None:
        super().__init__(net, flat, config)
        self.mean = net.obs_mean.numpy()
        self.scale = net.obs_scale.numpy()
        self._buffers: dict[int, _Buffers] = {}
        # Where the parameters lie that this update moves; None for all of them.
        self._moved_places: torch.Tensor | None = None
        # Of the rows that were evaluated last, which are usually those that are learnt from next.
        self._cached: _UsedInputs | None = None
        # The policy's first weights, (inputs, units), in that order in memory; None where they are small.
        self._first_weights: np.ndarray | None = None
        self._view_parameters(flat, net.inputs.size)

    def _view_parameters(self, flat: Flat, width: int) -> None:
        """Look at the parameters in `flat`, those of a network with `width` inputs, in the order of `net.ordered`."""
        self.active = flat
        value = flat.value.numpy()
        grad = flat.grad.numpy()
        begin = 0

        def next_views(*shape: int) -> tuple[np.ndarray, np.ndarray]:
            """Values and gradients of the parameters that come next."""
            nonlocal begin
            end = begin + math.prod(shape)
            place = slice(begin, end)
            begin = end
            return value[place].reshape(shape), grad[place].reshape(shape)

        self.layers: list[_Layer] = []
        for layer in self.net.pi.children():
            if isinstance(layer, torch.nn.Linear):
                units = layer.out_features
                weight, weight_grad = next_views(2, units, width)
                bias, bias_grad = next_views(2, units)
                transposed = weight.transpose(0, 2, 1)
                layer_views = _Layer(weight, transposed, weight_grad, bias[:, None], bias_grad)
                self.layers.append(layer_views)
                width = units
        self.log_std: np.ndarray | None = None
        self.log_std_grad: np.ndarray | None = None
        if self.net.log_std is not None:
            log_std, self.log_std_grad = next_views(self.actions.outputs)
            self.log_std = log_std[:, None]
        self.heads: list[_Layer] = []
        for head in (self.net.pi_head, self.net.vf_head):
            weight, weight_grad = next_views(head.out_features, width)
            bias, bias_grad = next_views(head.out_features)
            head_views = _Layer(weight, weight.T, weight_grad, bias[:, None], bias_grad)
            self.heads.append(head_views)

    def begin_update(self, batch: Batch) -> Batch:
        """The batch without inputs that have been 0 so far, here and for Adam: two thirds of MiniGrid's."""
        cached = self._cached
        self._cached = None
        if cached is None or not cached.begins_with(batch.vector):
            cached = self._select_used_inputs(batch.vector)
        if cached.used.all():
            return batch
        first = self.layers[0]
        is_moved = np.ones(len(self.flat.value), bool)
        moved_weights = np.tile(cached.used, first.bias.size)
        is_moved[: first.weight.size] = moved_weights
        self._moved_places = torch.from_numpy(np.flatnonzero(is_moved))
        moved = self.flat.part(self._moved_places)
        self._view_parameters(moved, int(cached.used.sum()))
        return dataclasses.replace(batch, vector=cached.narrow[: len(batch.vector)])

    def end_update(self) -> None:
        if self._moved_places is not None:
            self.flat.put(self._moved_places, self.active)
            self._moved_places = None
            self._view_parameters(self.flat, self.net.inputs.size)

    def _select_used_inputs(self, vector: np.ndarray) -> "_UsedInputs":
        """The inputs that are not 0 in all rows (B, D) or were moved before; all of them where these are most."""
        inputs = self.net.inputs.size
        units = self.layers[0].bias.size
        if inputs >= MANY_INPUTS and not self.net.normalize_obs:
            first = slice(0, units * inputs)
            has_moments = (self.flat.mean[first] != 0) | (self.flat.square[first] != 0)
            was_moved = has_moments.view(units, inputs).any(0).numpy()
            used = vector.any(axis=0) | was_moved
            if used.mean() <= MAX_USED_SHARE:
                return _UsedInputs(vector, used, np.ascontiguousarray(vector[:, used]))
        return _UsedInputs(vector, np.ones(inputs, bool), vector)

    def _buffers_of(self, rows: int) -> "_Buffers":
        if rows not in self._buffers:
            # The last minibatch of a NEXT_STEP rollout has another size each time.
            if len(self._buffers) > MAX_BUFFERED_SIZES:
                self._buffers.clear()
            units = [layer.weight.shape[1] for layer in self.layers]
            streams = self.net.vf_head.out_features
            self._buffers[rows] = _Buffers(rows, units, self.actions.outputs, streams)
        return self._buffers[rows]

    def normalize(self, vector: np.ndarray) -> np.ndarray:
        if not self.net.normalize_obs:
            return vector
        return np.clip((vector - self.mean) * self.scale, -CLIP, CLIP)

    def begin_rollout(self) -> None:
        self._first_weights = None
        if self.layers[0].weight[0].size >= MANY_WEIGHTS and not self.net.normalize_obs:
            self._first_weights = np.ascontiguousarray(self.layers[0].transposed[0])

    def act(
        self,
        vector: np.ndarray,
        pixels: Any,
        noise: np.ndarray,
        mask: np.ndarray | None = None,
        *memory: Any,
    ) -> np.ndarray:
        """Actions (B, choices) for observations (B, D), of those that are allowed: the policy's network alone."""
        h = self.normalize(vector)
        weights = self.layers[0].transposed[0]
        if self._first_weights is not None:
            # A grid shows each cell by a one among zeros, whose weights need not be read.
            nonzero = np.flatnonzero(h.any(axis=0))
            if 2 * len(nonzero) < len(self._first_weights):
                h = h.take(nonzero, 1)
                weights = self._first_weights.take(nonzero, 0)
        buffers = self._buffers_of(len(vector))
        for number, layer in enumerate(self.layers):
            if number > 0:
                weights = layer.transposed[0]
            h = np.matmul(h, weights, out=buffers.hidden[number][0])
            h += layer.bias[0]
            self._activate(h)
        outputs = np.matmul(h, self.heads[0].transposed)
        outputs += self.heads[0].bias[:, 0]
        if self.log_std is not None:
            return outputs + np.exp(self.log_std[:, 0]) * noise
        # The largest of logits + Gumbel noise is a sample.
        outputs += noise
        if mask is not None:
            outputs[~mask] = MASKED
        if len(self.actions.columns) == 1:
            return outputs.argmax(-1)[:, None]
        choices = [outputs[:, columns].argmax(-1) for columns in self.actions.columns]
        return np.stack(choices, -1)

    def evaluate(
        self,
        vector: np.ndarray,
        pixels: Any,
        action: np.ndarray | None,
        mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        rows = len(vector)
        rows_with_action = 0 if action is None else len(action)
        self._cached = self._select_used_inputs(vector)
        weights = None
        if not self._cached.used.all():
            weights = self.layers[0].transposed[:, self._cached.used]
        values = np.empty((rows, self.net.vf_head.out_features), np.float32)
        log_prob = np.empty(rows_with_action, np.float32)
        for begin in range(0, rows, FORWARD_ROWS):
            end = min(begin + FORWARD_ROWS, rows)
            buffers = self._buffers_of(end - begin)
            normalised = self.normalize(self._cached.narrow[begin:end])
            self._forward(normalised, buffers, weights)
            values[begin:end] = buffers.values.T
            if action is None or begin >= rows_with_action:
                continue
            # The last rows may have no action: theirs is 0, and what comes of it is not kept.
            count = min(end, rows_with_action) - begin
            chosen = np.zeros((end - begin, action.shape[1]), action.dtype)
            chosen[:count] = action[begin : begin + count]
            if mask is not None:
                forbidden = ~mask[begin : begin + count].T
                buffers.outputs[:, :count][forbidden] = MASKED
            log_prob[begin : begin + count] = self._log_prob(buffers, chosen)[:count]
        return values, log_prob

    def _forward(self, vector: np.ndarray, buffers: "_Buffers", first_weights: np.ndarray | None = None) -> None:
        """Outputs and values of rows; `first_weights` (2, inputs, units) where rows lack the inputs never used."""
        h = vector
        weights = self.layers[0].transposed if first_weights is None else first_weights
        for number, (layer, hidden) in enumerate(zip(self.layers, buffers.hidden)):
            if number > 0:
                weights = layer.transposed
            np.matmul(h, weights, out=hidden)
            hidden += layer.bias
            self._activate(hidden)
            h = hidden
        outs = (buffers.outputs, buffers.values)
        for head, features, out in zip(self.heads, buffers.transposed, outs):
            np.matmul(head.weight, features, out=out)
            out += head.bias

    def _activate(self, hidden: np.ndarray) -> None:
        if self.config.activation == "relu":
            np.maximum(hidden, 0.0, out=hidden)
        else:
            np.tanh(hidden, out=hidden)

    def _slope(self, hidden: np.ndarray) -> np.ndarray:
        """Of the activation, where it gave `hidden`, which may be overwritten."""
        if self.config.activation == "relu":
            return hidden > 0
        np.multiply(hidden, hidden, out=hidden)
        return np.subtract(1.0, hidden, out=hidden)

    def _log_prob(self, buffers: "_Buffers", action: np.ndarray) -> np.ndarray:
        """Log-probabilities (B,) of `action` (B, choices); for categoricals `outputs` become log p."""
        outputs = buffers.outputs
        scratch = buffers.scratch
        if self.log_std is not None:
            scaled = np.subtract(action.T, outputs, out=scratch)
            scaled *= np.exp(-self.log_std)
            half_log_2pi = 0.5 * math.log(2 * math.pi)
            constant = float(self.log_std.sum()) + half_log_2pi * self.actions.choices
            squares = np.square(scaled).sum(0)
            return squares * np.float32(-0.5) - np.float32(constant)
        log_prob: Any = None
        for choice, rows in enumerate(self.actions.columns):
            logits = outputs[rows]
            logits -= logits.max(0)
            total = np.exp(logits, out=scratch[rows]).sum(0)
            logits -= np.log(total)
            choice_log_prob = outputs.take(self._chosen_places(buffers, action, choice))
            log_prob = choice_log_prob if log_prob is None else log_prob + choice_log_prob
        return log_prob

    def _chosen_places(self, buffers: "_Buffers", action: np.ndarray, choice: int) -> np.ndarray:
        """Where the chosen outputs lie in the flattened (outputs, B)."""
        output = action[:, choice] + self.actions.columns[choice].start
        return output * len(buffers.ones) + buffers.columns

    def update(self, batch: Batch, rows: np.ndarray | slice, measure: bool = False) -> dict[str, float]:
        config = self.config
        count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        buffers = self._buffers_of(count)
        vector, action, targets = buffers.gather(batch, rows)
        vector = self.normalize(vector)
        self._forward(vector, buffers)
        if batch.mask is not None:
            # There p is 0, and so is every gradient.
            buffers.outputs[~batch.mask[rows].T] = MASKED
        log_ratio = self._log_prob(buffers, action)
        log_ratio -= targets.log_prob
        ratio = np.exp(log_ratio)
        advantage = targets.advantage - targets.advantage.mean()
        advantage /= math.sqrt(advantage @ advantage / max(count - 1, 1)) + 1e-8
        slope = advantage * ratio
        # The clip holds where the surrogate has grown by more than clip_range: a step further gains nothing.
        is_free = slope - advantage <= self.clip_range * np.abs(advantage)
        error = np.subtract(buffers.values, targets.returns.T, out=buffers.errors)
        metrics = {}
        if measure:
            metrics = self._measure(buffers, log_ratio, ratio, advantage, error)
        # d L / d log p.
        slope *= is_free
        slope *= -1.0 / count
        d_outputs = self._output_gradient(buffers, action, slope)
        error *= 2.0 * config.value_weight / count
        self._backward(vector, buffers, d_outputs, error)
        self.active.step(self.learning_rate, config.max_grad_norm)
        return metrics

    def _output_gradient(self, buffers: "_Buffers", action: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """Gradient of the loss with respect to the policy's outputs (outputs, B); overwrites the scratch memory."""
        entropy_weight = self.entropy_weight
        out = buffers.scratch
        if self.log_std is not None:
            # The scratch memory holds (a - mean) / sigma.
            assert self.log_std_grad is not None
            np.matmul(out * out - 1.0, slope, out=self.log_std_grad)
            if entropy_weight:
                self.log_std_grad -= entropy_weight
            out *= np.exp(-self.log_std)
            out *= slope
            return out
        p = np.exp(buffers.outputs, out=buffers.probabilities)
        np.multiply(p, -slope, out=out)
        flat = out.reshape(-1)
        for choice, rows in enumerate(self.actions.columns):
            flat[self._chosen_places(buffers, action, choice)] += slope
            if entropy_weight:
                log_p = buffers.outputs[rows]
                negative_entropy = (p[rows] * log_p).sum(0)
                out[rows] += (entropy_weight / len(slope)) * p[rows] * (log_p - negative_entropy)
        return out

    def _backward(self, vector: np.ndarray, buffers: "_Buffers", d_outputs: np.ndarray, d_values: np.ndarray) -> None:
        """Gradients of all weights from those of the outputs (outputs, B) and the values (K, B)."""
        gradients = (d_outputs, d_values)
        heads = zip(self.heads, buffers.hidden[-1], buffers.back[-1], gradients)
        for head, features, back, gradient in heads:
            np.matmul(gradient, features, out=head.weight_grad)
            np.matmul(gradient, buffers.ones, out=head.bias_grad)
            np.matmul(gradient.T, head.weight, out=back)
        for number in range(len(self.layers) - 1, -1, -1):
            layer = self.layers[number]
            hidden = buffers.hidden[number]
            back = buffers.back[number]
            back *= self._slope(hidden)
            below = buffers.hidden[number - 1] if number else vector
            np.matmul(buffers.back_transposed[number], below, out=layer.weight_grad)
            np.matmul(buffers.ones, back, out=layer.bias_grad)
            if number:
                np.matmul(back, layer.weight, out=buffers.back[number - 1])

    def _measure(self, buffers: "_Buffers", log_ratio: Any, ratio: Any, advantage: Any, error: Any) -> dict[str, float]:
        clip = self.clip_range
        clipped_ratio = np.clip(ratio, 1 - clip, 1 + clip)
        if self.log_std is not None:
            constant = self.actions.choices * 0.5 * math.log(2 * math.pi * math.e)
            entropy = float(self.log_std.sum()) + constant
        else:
            log_p = buffers.outputs
            negative_entropies = np.exp(log_p) * log_p
            entropy = -float(negative_entropies.sum()) / len(ratio)
        surrogate = np.minimum(advantage * ratio, advantage * clipped_ratio)
        change = ratio - 1
        is_clipped = np.abs(change) > clip
        return {
            "policy_loss": -float(surrogate.mean()),
            "value_loss": float(np.square(error).sum()) / len(ratio),
            "entropy": entropy,
            "approx_kl": float((change - log_ratio).mean()),
            "clip_fraction": float(is_clipped.mean()),
        }


class _UsedInputs(NamedTuple):
    """Rows of observations (B, D), and what is left of them without the inputs that are never used."""

    vector: np.ndarray
    # bool (D,): which inputs are used.
    used: np.ndarray
    # (B, used inputs).
    narrow: np.ndarray

    def begins_with(self, vector: np.ndarray) -> bool:
        """Whether `vector` is the first rows of these, in the same memory."""
        same_memory = self.vector.ctypes.data == vector.ctypes.data
        return same_memory and len(self.vector) >= len(vector)


class _Layer(NamedTuple):
    """Views of the parameters of a layer: of both networks (2, units, inputs), or of a head (outputs, inputs)."""

    weight: np.ndarray
    # With its last two axes exchanged.
    transposed: np.ndarray
    weight_grad: np.ndarray
    bias: np.ndarray
    bias_grad: np.ndarray


class _Buffers:
    """What a batch of B rows needs on its way through the network and back."""

    def __init__(self, rows: int, units: list[int], outputs: int, streams: int) -> None:
        # Of both networks, (2, B, units) a layer, and the gradients with respect to these.
        self.hidden = [np.empty((2, rows, n), np.float32) for n in units]
        self.transposed = self.hidden[-1].transpose(0, 2, 1)
        self.back = [np.empty((2, rows, n), np.float32) for n in units]
        self.back_transposed = [back.transpose(0, 2, 1) for back in self.back]
        self.outputs = np.empty((outputs, rows), np.float32)
        self.scratch = np.empty((outputs, rows), np.float32)
        self.probabilities = np.empty((outputs, rows), np.float32)
        self.values = np.empty((streams, rows), np.float32)
        self.errors = np.empty((streams, rows), np.float32)
        self.ones = np.ones(rows, np.float32)
        self.columns = np.arange(rows)
        self._gathered: list[np.ndarray] = []

    def gather(self, batch: Batch, rows: np.ndarray | slice) -> tuple[np.ndarray, np.ndarray, Targets]:
        """The rows of a batch: observations, actions, targets."""
        sources = (batch.vector, batch.action, batch.targets.rows)
        if isinstance(rows, slice):
            return batch.vector[rows], batch.action[rows], batch.targets[rows]
        if not self._gathered or self._gathered[0].shape[1] != batch.vector.shape[1]:
            self._gathered = [np.empty((len(rows), *x.shape[1:]), x.dtype) for x in sources]
        for source, target in zip(sources, self._gathered):
            np.take(source, rows, axis=0, out=target, mode="clip")
        vector, action, targets = self._gathered
        return vector, action, Targets(targets)


class CompiledUpdate(NumpyUpdate):
    """Learns in NumPy at first, and in a compiled call as soon as a run is long enough."""

    def _run_minibatches(
        self, batch: Batch, orders: list[np.ndarray], rows_a_batch: int, learned_rows: int
    ) -> list[dict[str, float]]:
        compiled = self._load_kernel(learned_rows)
        # The kernel reads at least one input.
        if compiled is None or not batch.vector.shape[1]:
            return super()._run_minibatches(batch, orders, rows_a_batch, learned_rows)
        return self._run_compiled(compiled, batch, orders, rows_a_batch)

    def _load_kernel(self, learned_rows: int) -> Any:
        """The compiled module, after so many rows; None where the update stays in NumPy."""
        is_long = self.config.path == "auto" and learned_rows >= COMPILE_AFTER_ROWS
        if not is_long and self.config.path != "numba":
            return None
        return kernel("agents.ppo.kernel", "PPO's update", "NumPy, a third as fast as compiled")

    def _run_compiled(
        self, compiled: Any, batch: Batch, orders: list[np.ndarray], rows_a_batch: int
    ) -> list[dict[str, float]]:
        config = self.config
        flat = self.active
        # One signature serves all networks and spaces, so what is missing is empty.
        mask = np.zeros((0, 0), bool)
        if batch.mask is not None:
            mask = np.require(batch.mask, bool, ["C", "W"])
        log_std = log_std_grad = np.zeros(0, np.float32)
        if self.log_std is not None and self.log_std_grad is not None:
            log_std = self.log_std[:, 0]
            log_std_grad = self.log_std_grad
        # Where each categorical begins among the outputs, and the end of the last one.
        columns = [column.start for column in self.actions.columns]
        if columns:
            columns.append(self.actions.outputs)
        settings = compiled.EpochSettings(
            float(self.learning_rate),
            np.float32(self.clip_range),
            np.float32(self.entropy_weight),
            np.float32(config.value_weight),
            float(config.max_grad_norm),
            config.activation == "relu",
        )
        rows = len(orders[0])
        row_orders = np.stack(orders).astype(np.int64, copy=False)
        parameter_layout = compiled.ParameterLayout(*self._parameter_layout())
        minibatches_between = max(rows // rows_a_batch // LOGGED_MINIBATCHES, 1)
        measured = compiled.epochs(
            flat.value.numpy(),
            flat.grad.numpy(),
            flat.mean.numpy(),
            flat.square.numpy(),
            int(flat.steps),
            log_std,
            log_std_grad,
            parameter_layout,
            writable_floats(self.normalize(batch.vector)),
            writable_floats(batch.action),
            writable_floats(batch.targets.rows),
            mask,
            row_orders,
            rows_a_batch,
            np.array(columns, np.int64),
            settings,
            minibatches_between,
        )
        flat.steps += len(orders) * math.ceil(rows / rows_a_batch)
        return [dict(zip(KERNEL_METRICS, losses)) for losses in measured.tolist()]

    def _parameter_layout(self) -> np.ndarray:
        """For each layer of both networks outputs, inputs, and where weights and biases begin; (4, 2, layers)."""
        start = self.active.value.data_ptr()

        def offset(view: np.ndarray) -> int:
            return (view.ctypes.data - start) // view.itemsize

        def place(weight: np.ndarray, bias: np.ndarray) -> list[int]:
            return [*weight.shape, offset(weight), offset(bias)]

        rows = []
        for network, head in enumerate(self.heads):
            network_rows = [place(layer.weight[network], layer.bias[network]) for layer in self.layers]
            network_rows.append(place(head.weight, head.bias))
            rows.append(network_rows)
        layout = np.array(rows, np.int64)
        return np.ascontiguousarray(layout.transpose(2, 0, 1))


def writable_floats(x: np.ndarray) -> np.ndarray:
    """As the kernel's one signature takes it: float32, contiguous and writable."""
    return np.require(x, np.float32, ["C", "W"])
