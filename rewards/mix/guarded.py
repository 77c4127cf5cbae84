"""A reward's updates, guarded: a loss that is NaN or infinite does not spoil its weights for good."""

import copy
import math
from collections.abc import Iterator
from typing import Any

import torch

from envs.transitions import Transitions, is_finite
from lodestar.numerics.flat import Flat
from lodestar.state import Stateful
from rewards.base import Reward

# In a row, whose loss is not finite.
MAX_BAD_UPDATES = 3
# Finite updates between two copies of the weights.
COPY_INTERVAL = 10


class GuardedUpdates(Stateful):
    """`Reward.update`, with recovery from losses that are NaN or infinite.

    `Learned.descend` takes no step on such a loss. If it happens `MAX_BAD_UPDATES` times in a row the model itself is
    suspected, and the last weights that gave finite losses are restored; weights that are not finite at once. Training
    continues; `<name>/skipped` and `<name>/restored` count.
    """

    saved = {"skipped": "skipped", "restored": "restored", "row": "_skipped_in_a_row"}

    def __init__(self, reward: Reward) -> None:
        self.reward = reward
        self.skipped = 0
        self.restored = 0
        self._skipped_in_a_row = 0
        self._finite_updates = 0
        # Weights and state of each optimiser; a resumed run takes its first copy at its first finite update.
        self._good_copy: list[tuple[list[torch.Tensor], dict[str, Any]]] | None = None

    def update(self, batch: Transitions) -> dict[str, float]:
        optimizers = list(optimizers_of(self.reward))
        if optimizers and self._good_copy is None and _all_finite(optimizers):
            self._copy_weights(optimizers)
        metrics = self.reward.update(batch)
        if not optimizers or not metrics:
            return metrics
        weights_spoilt = not _all_finite(optimizers)
        losses_finite = all(math.isfinite(value) for key, value in metrics.items() if "loss" in key)
        if weights_spoilt or not losses_finite:
            self.skipped += 1
            self._skipped_in_a_row += 1
            if weights_spoilt or self._skipped_in_a_row >= MAX_BAD_UPDATES:
                self._restore_weights(optimizers)
        else:
            self._skipped_in_a_row = 0
            self._finite_updates += 1
            if self._finite_updates % COPY_INTERVAL == 0:
                self._copy_weights(optimizers)
        if not self.skipped:
            return metrics
        return {**metrics, "skipped": float(self.skipped), "restored": float(self.restored)}

    def _copy_weights(self, optimizers: list[Any]) -> None:
        self._good_copy = []
        for optimizer in optimizers:
            weights = [parameter.detach().clone() for parameter in _weights(optimizer)]
            self._good_copy.append((weights, copy.deepcopy(optimizer.state_dict())))

    def _restore_weights(self, optimizers: list[Any]) -> None:
        self.restored += 1
        self._skipped_in_a_row = 0
        for optimizer, (weights, state) in zip(optimizers, self._good_copy or ()):
            with torch.no_grad():
                for parameter, good in zip(_weights(optimizer), weights):
                    parameter.copy_(good)
            optimizer.load_state_dict(copy.deepcopy(state))


def _weights(optimizer: Flat | torch.optim.Optimizer) -> list[torch.Tensor]:
    if isinstance(optimizer, Flat):
        return [optimizer.value]
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _all_finite(optimizers: list[Any]) -> bool:
    for optimizer in optimizers:
        for parameter in _weights(optimizer):
            if not is_finite(parameter.detach()):
                return False
    return True


def optimizers_of(reward: Reward) -> Iterator[Any]:
    """What moves the weights of a reward that learns."""
    for value in vars(reward).values():
        if isinstance(value, Flat | torch.optim.Optimizer):
            yield value
