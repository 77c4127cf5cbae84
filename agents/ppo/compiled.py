"""PPO's epochs in one compiled call (`agents.ppo.kernel`, by numba), from where a run is long enough for it.

    agent.path=auto             NumPy until `LONG` rows were learned from, then compiled: short runs do not wait
    agent.path=numba            compiled from the first update
    agent.path=numpy, eager     never

How much was learned so far is part of a run's state: resumed or extended, it changes over at the same update.
"""

import math
from typing import Any

import numpy as np

from agents.ppo import update
from agents.ppo.config import PPOConfig
from agents.ppo.numpy_update import NumpyUpdate
from lodestar.numerics.compiled import kernel, say

LONG = 2_000_000  # rows: 200,000 frames at ten epochs, about 4 seconds in NumPy
WHOSE = "PPO's update"
LOSSES = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


def epochs(
    learner: Any, batch: update.Batch, rows: np.ndarray, size: int, config: PPOConfig, rng: Any, passes: int
) -> list[dict[str, float]]:
    """As `agents.ppo.update.epochs`; `passes`: epochs before."""
    asked = config.path == "numba" or (config.path == "auto" and passes * len(rows) >= LONG)
    fits = isinstance(learner, NumpyUpdate)
    if config.path == "numba" and not fits:
        say(WHOSE, "torch, as agent.path=numba is for fully connected networks without memory or images, on the CPU")
    compiled = kernel("agents.ppo.kernel", WHOSE, "NumPy, a third as fast as compiled") if asked and fits else None
    batch = learner.begin_update(batch)
    if compiled is None or not batch.vector.shape[1]:
        measured = update.epochs(learner, batch, rows, size, config, rng)
    else:
        measured = _compiled(compiled, learner, batch, rows, size, config, rng)
    learner.end_update()
    return measured


def _compiled(
    compiled: Any, learner: Any, batch: update.Batch, rows: np.ndarray, size: int, config: PPOConfig, rng: Any
) -> list[dict[str, float]]:
    order = np.stack([rng.permutation(rows) for _ in range(config.n_epochs)]).astype(np.int64, copy=False)
    read = (learner.prepare(batch.vector), batch.action, batch.numbers)
    vector, action, numbers = (np.require(x, np.float32, ["C", "W"]) for x in read)
    mask = np.zeros((0, 0), bool) if batch.mask is None else np.require(batch.mask, bool, ["C", "W"])
    ends = [column.stop for column in learner.actions.columns]
    none = np.zeros(0, np.float32)
    gaussian = (none, none) if learner.log_std is None else (learner.log_std[:, 0], learner.log_std_grad)
    layout, begin = [], learner.used.value.data_ptr()
    for net, head in enumerate(learner.heads):
        layers = [*((layer.weight[net], layer.bias[net]) for layer in learner.layers), (head.weight, head.bias)]
        layout.append([[*w.shape, *((x.ctypes.data - begin) // x.itemsize for x in (w, b))] for w, b in layers])
    flat, often = learner.used, max(len(rows) // size // update.LOGGED_MINIBATCHES, 1)
    limits = (config.clip_range, config.entropy_weight, config.value_weight, config.max_grad_norm)
    measured = compiled.epochs(
        *(x.numpy() for x in (flat.value, flat.grad, flat.mean, flat.square)),
        int(flat.steps),
        *gaussian,
        np.ascontiguousarray(np.array(layout, np.int64).transpose(2, 0, 1)),
        *(vector, action, numbers, mask, order, size),
        np.array([0, *ends] if ends else [], np.int64),
        np.array([learner.learning_rate, *limits], np.float64),
        often,
    )
    flat.steps += config.n_epochs * math.ceil(len(rows) / size)
    return [dict(zip(LOSSES, row)) for row in measured.tolist()]
