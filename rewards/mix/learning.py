"""A reward that learns, kept sound: losses that are no numbers are left out, and thrice in a row the weights go back.

A loss that is no number says that the batch, or the model, is spoilt. `Learned.descend` takes no step on it. If it
happens `PATIENCE` times in a row the model itself is suspected, and the last weights that gave sound losses come back;
weights that are no numbers come back at once. Training goes on; `<name>/skipped` and `<name>/restored` tell.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch

from envs.finite import is_finite
from envs.types import Transitions
from rewards.base import Reward

PATIENCE = 3  # updates in a row
EVERY = 10  # sound updates between two copies of the weights


class Learning:
    """Lets a reward learn, and looks at what came of it.

    Attributes:
        skipped: updates with a loss that was no number; restored: how often weights went back. Both so far.
    """

    def __init__(self, reward: Reward) -> None:
        self.reward = reward
        self.skipped = self.restored = 0
        self._in_a_row = self._sound = 0
        self._good: list[Any] | None = None  # a run that goes on takes its first copy at its first sound update

    def update(self, batch: Transitions) -> dict[str, float]:
        """`Reward.update`, with what was found beside its metrics."""
        optimizers = [value for value in vars(self.reward).values() if isinstance(value, torch.optim.Optimizer)]
        if optimizers and self._good is None and _sound(optimizers):
            self._keep(optimizers)
        metrics = self.reward.update(batch)
        if not optimizers or not metrics:
            return metrics
        spoilt = not _sound(optimizers)
        if spoilt or not all(math.isfinite(value) for key, value in metrics.items() if "loss" in key):
            self.skipped += 1
            self._in_a_row += 1
            if spoilt or self._in_a_row >= PATIENCE:
                self._restore(optimizers)
        else:
            self._in_a_row = 0
            self._sound += 1
            if self._sound % EVERY == 0:
                self._keep(optimizers)
        if not self.skipped:
            return metrics
        return {**metrics, "skipped": float(self.skipped), "restored": float(self.restored)}

    def _keep(self, optimizers: list[Any]) -> None:
        self._good = [copy.deepcopy(([p.detach() for p in _weights(o)], o.state_dict())) for o in optimizers]

    def _restore(self, optimizers: list[Any]) -> None:
        self.restored += 1
        self._in_a_row = 0
        for optimizer, (weights, state) in zip(optimizers, self._good or ()):
            with torch.no_grad():
                for parameter, good in zip(_weights(optimizer), weights):
                    parameter.copy_(good)
            optimizer.load_state_dict(copy.deepcopy(state))

    def state_dict(self) -> dict[str, Any]:
        return {"skipped": self.skipped, "restored": self.restored, "row": self._in_a_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.skipped, self.restored, self._in_a_row = state["skipped"], state["restored"], state["row"]


def _weights(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _sound(optimizers: list[Any]) -> bool:
    return all(is_finite(parameter.detach()) for optimizer in optimizers for parameter in _weights(optimizer))
