"""PPO's epochs in one compiled call (`agents.ppo.kernel`, by numba), from where a run is long enough for it.

    agent.path=auto    NumPy until `COMPILE_AFTER_ROWS` were learned from, then compiled: short runs do not wait
    agent.path=numba   compiled from the first update
    other paths        never

How much was learned so far is part of a run's state: resumed or extended, it changes over at the same update.
"""

import math
from typing import Any

import numpy as np

from agents.ppo.numpy_update import NumpyUpdate
from agents.ppo.seams import LOGGED_MINIBATCHES, Batch
from lodestar.numerics.compiled import kernel

# Rows are counted once an epoch: 200,000 frames at ten epochs, about 4 seconds in NumPy.
COMPILE_AFTER_ROWS = 2_000_000
# What the kernel measures, in its order.
KERNEL_METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


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
        measured = compiled.epochs(
            flat.value.numpy(),
            flat.grad.numpy(),
            flat.mean.numpy(),
            flat.square.numpy(),
            int(flat.steps),
            log_std,
            log_std_grad,
            compiled.ParameterLayout(*self._parameter_layout()),
            writable_floats(self.normalize(batch.vector)),
            writable_floats(batch.action),
            writable_floats(batch.targets.rows),
            mask,
            np.stack(orders).astype(np.int64, copy=False),
            rows_a_batch,
            np.array(columns, np.int64),
            settings,
            max(rows // rows_a_batch // LOGGED_MINIBATCHES, 1),
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
