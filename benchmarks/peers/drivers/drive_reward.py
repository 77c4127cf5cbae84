"""Measures one library's reward: `python drive_reward.py PEER METHOD` where it is installed; one line of JSON.

PEER is a file beside this one with DISTRIBUTION, a package's name; VARIANTS, which sizes of networks it has; and
`make(method, shape, envs, variant)`, which returns two functions: `prepare(rollout)` turns a rollout of arrays into the
library's own, off the clock, and `learn(prepared)` scores it, learns from it and returns the scores (T, N), on the
clock. Where gradients are not torch's, a third says how many minibatches were learnt from so far.

A rollout is 128 steps of eight environments whose episodes end at random. Its numbers are noise, the same for all; no
time depends on them. The first rollouts fill memories and are not measured. That every transition was learnt from in
minibatches of 256, and that the scores are scores, is checked, not believed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy as np

T, N, ACTIONS = 128, 8, 5
END = 0.02  # chance that a step ends its episode
SHAPES = {"vector": (16,), "image": (3, 7, 7)}  # float32, normal; and uint8
ROLLOUTS = 5
WARM = {"re3": 8}  # rollouts until rllte's memory is full; 2 elsewhere
BATCH = 256
UNLEARNT = ("re3",)  # methods without anything to learn


def rollouts(shape: tuple[int, ...], seed: int = 0) -> Iterator[dict[str, np.ndarray]]:
    """Rollouts without end: entries named as in `envs.transitions.Transitions`, with leading shape (T, N)."""
    rng = np.random.default_rng(seed)

    def draw(*lead: int) -> np.ndarray:
        if len(shape) == 3:
            return rng.integers(0, 256, (*lead, *shape), dtype=np.uint8)
        return rng.standard_normal((*lead, *shape), dtype=np.float32)

    last, step = draw(N), np.zeros(N, np.int64)
    while True:
        ended, true_next = rng.random((T, N)) < END, draw(T, N)
        steps, obs = np.empty((T, N), np.int64), np.empty_like(true_next)
        for t in range(T):
            obs[t], steps[t] = last, step
            last = np.where(ended[t].reshape(N, *[1] * len(shape)), draw(N), true_next[t])
            step = np.where(ended[t], 0, step + 1)
        yield {
            "obs": obs,
            "action": rng.integers(0, ACTIONS, (T, N)),
            "reward": np.zeros((T, N), np.float32),
            "next_obs": true_next,
            "terminated": ended,
            "truncated": np.zeros((T, N), bool),
            "step": steps,
        }


@contextlib.contextmanager
def counted() -> Iterator[list[int]]:
    """A list that grows by one with every gradient that torch computes."""
    import torch

    calls: list[int] = []
    backward = torch.Tensor.backward

    def watched(self: torch.Tensor, *args: Any, **options: Any) -> None:
        calls.append(1)
        backward(self, *args, **options)

    torch.Tensor.backward = watched  # type: ignore[method-assign, assignment]
    try:
        yield calls
    finally:
        torch.Tensor.backward = backward  # type: ignore[method-assign]


def measure(peer: Any, method: str, observation: str, variant: str) -> dict[str, Any]:
    """The library's version, the transitions of a rollout, and the median of its CPU time, seconds."""
    shape, seconds, needed = SHAPES[observation], [], 0 if method in UNLEARNT else T * N // BATCH
    prepare, learn, *learnt = peer.make(method, shape, N, variant)
    warm = WARM.get(method, 2)
    for index, rollout in zip(range(warm + ROLLOUTS), rollouts(shape)):
        prepared = prepare(rollout)
        before = sum(count() for count in learnt)
        with counted() as gradients:
            start = time.process_time()
            scores = learn(prepared)
            seconds.append(time.process_time() - start)
        minibatches = sum(count() for count in learnt) - before or len(gradients)
        assert minibatches >= needed, f"{minibatches} minibatches instead of {needed} in rollout {index}"
        scores = np.asarray(scores)
        assert scores.shape == (T, N) and np.isfinite(scores).all() and scores.std() > 0, "these are no scores"
    row = {"variant": variant, "observation": observation, "version": version(peer.DISTRIBUTION)}
    return {**row, "transitions": T * N, "cpu_seconds": round(statistics.median(seconds[warm:]), 6)}


def main(name: str, method: str) -> None:
    """Measure each variant and observation on one thread of one core, and print."""
    if hasattr(os, "sched_setaffinity"):  # on one core no thread waits for another at the cost of CPU time
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    with contextlib.redirect_stdout(sys.stderr):
        peer = importlib.import_module(name)
        rows = [measure(peer, method, observation, variant) for variant in peer.VARIANTS for observation in SHAPES]
    print(json.dumps(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
