"""The policy gradient of every stream, on part of a rollout: what is logged of it, and what extensions decide by."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from agents.networks.actor_critic import cosines
from agents.ppo.config import PPOConfig
from agents.ppo.seams import Batch, ScoredRollout
from agents.ppo.update import TorchUpdate

# Rows that gradients are taken on: where they are only logged, and where something is decided by them.
LOGGED_GRADIENT_ROWS = 256
DECIDING_GRADIENT_ROWS = 1024
# What gradients that are only logged may cost of an update's time.
MAX_COST_SHARE = 0.025


class StreamGradients:
    """Takes the gradients of K > 1 streams: every rollout where something is decided by them, else now and then."""

    def __init__(self, learner: TorchUpdate, streams: list[str], config: PPOConfig, n_envs: int, decide: bool) -> None:
        self.learner = learner
        self.streams = streams
        self.n_epochs = config.n_epochs
        # From one rollout whose gradients are taken to the next.
        self.every = 1
        self.rows = DECIDING_GRADIENT_ROWS
        if not decide:
            self.rows = LOGGED_GRADIENT_ROWS
            # In minibatches: a rollout's, and what the gradients cost, 8 for the first call of autograd.
            minibatches = config.n_epochs * n_envs * config.n_steps / config.batch_size
            cost = 8 + (1 + 2 * len(streams)) / 3 * self.rows / config.batch_size
            self.every = math.ceil(cost / (MAX_COST_SHARE * minibatches))
        if config.gru:
            # Of a recurrent policy sequences.
            self.rows = max(self.rows // config.sequence, 1)

    def is_due(self, n_updates: int) -> bool:
        return len(self.streams) > 1 and n_updates // self.n_epochs % self.every == 0

    def measure(self, scored: ScoredRollout, batch: Batch) -> dict[str, float]:
        """Write the gradients into the rollout; returns tags `stream/<name>/cosine`."""
        rng = np.random.default_rng(scored.timesteps)
        scored.gradient_rows = rng.permutation(scored.rows)[: self.rows]
        seen = {name: column for column, name in enumerate(self.streams) if scored.seen[column]}
        scored.gradients = self.learner.stream_gradients(batch, scored.gradient_rows, seen)
        mean_weights = scored.weights.mean((0, 1)).tolist()
        return alignment(scored.gradients, dict(zip(self.streams, mean_weights)))


def alignment(gradients: Mapping[str, Tensor], weights: Mapping[str, float]) -> dict[str, float]:
    """Tags `stream/<name>/cosine` of the streams' gradients (P,) with the task's, or with the weighted sum's."""
    vectors = dict(gradients)
    reference = "task"
    if "task" not in weights and gradients:
        # No stream has this name.
        reference = ""
        weighted = [weights[name] * gradient for name, gradient in gradients.items()]
        vectors[reference] = torch.stack(weighted).sum(0)
    others = [name for name in weights if name != "task"]
    tags = {f"stream/{name}/cosine": math.nan for name in others}
    if reference in vectors:
        table = cosines(vectors)
        for name in others:
            if name in table:
                tags[f"stream/{name}/cosine"] = table[name][reference]
    return tags
