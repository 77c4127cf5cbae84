"""Our compiled update alone (`part` update), or only its matrix products, as many and of the same sizes (products).

Layers are as wide as they are in the update, which leaves out inputs that were never used.
"""

from __future__ import annotations

import time
from typing import Any

DISTRIBUTION = ("lodestar-rl", "numpy", "numba")


def train(settings: dict[str, Any], laps: Any) -> None:
    """See `drive`."""
    import numpy as np
    import torch

    from agents.ppo import agent
    from agents.ppo.numpy_update import CompiledUpdate
    from envs.make import make_vec

    torch.set_num_threads(1)
    alone, shapes, epochs = settings["part"] == "products", list[tuple[int, int]](), CompiledUpdate.run_epochs

    ended = time.process_time()

    def update(learner: Any, *rest: Any) -> Any:
        nonlocal ended
        laps.aside_cpu += time.process_time() - ended
        if alone and shapes:
            products, sizes = _products(), np.array(shapes)
            while True:
                products(sizes, settings["minibatch"], len(shapes) // 2, settings["updates"])
                laps.minibatch(settings["minibatch"], settings["updates"])
                laps()
        begin = learner.begin_update

        def begun(batch: Any) -> Any:
            result = begin(batch)
            heads = [(len(head.weight), head.weight.shape[1]) for head in learner.heads]
            hidden = [tuple(layer.weight.shape[1:]) for layer in learner.layers]
            shapes[:] = [shape for head in heads for shape in (*hidden, head)]
            return result

        learner.begin_update = begun
        measured = epochs(learner, *rest)
        learner.begin_update = begin
        if alone:
            ended = time.process_time()
            return measured
        laps.minibatch(settings["minibatch"], settings["updates"])
        laps()
        ended = time.process_time()
        return measured

    CompiledUpdate.run_epochs = update  # type: ignore[assignment, method-assign]
    n = settings["envs"]
    envs = make_vec(settings["task"], n, seed=0, backend=settings["backend"])
    config = agent.PPOConfig(n_steps=settings["frames"] // n, batch_size=settings["minibatch"], path=settings["path"])
    model = agent.PPO(envs, config, seed=0)
    laps.begin()
    ended = time.process_time()
    model.learn(10**9)


def _products() -> Any:
    """Forward, gradients of weights, and gradients of inputs where a layer has one below, so many times."""
    import numba
    import numpy as np

    from agents.ppo.kernel import padded_columns, product

    @numba.njit(error_model="numpy")
    def loop(shapes, rows, layers, times):  # type: ignore[no-untyped-def]
        zero, one, most = np.int64(0), np.int64(1), np.int64(rows)
        for i in range(len(shapes)):
            most = max(most, shapes[i, 0], shapes[i, 1])
        wide, size = padded_columns(rows), padded_columns(most)
        w, x, y = np.zeros(size * size, F), np.zeros(size * size, F), np.zeros(size * size, F)
        for _ in range(times):
            for i in range(len(shapes)):
                n, below = shapes[i, 0], shapes[i, 1]
                product(w, zero, below, one, x, zero, wide, y, zero, wide, n, wide, below)
                product(y, zero, wide, one, x, zero, padded_columns(below), w, zero, below, n, below, rows)
                if i % layers:
                    product(w, zero, one, below, y, zero, wide, x, zero, wide, below, wide, n)

    F = np.float32
    return loop
