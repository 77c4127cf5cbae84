"""The reward of an agent that was given none: the task's own, as the only stream."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from envs.transitions import Transitions
from envs.types import Array, Memory


class TaskScorer:
    """A `ReplayScorer` of one stream, `task`: the environment's reward, 0 in rows that are not valid."""

    requires: frozenset[str] = frozenset({"reward"})
    relabelable, differentiable = True, False
    is_task, keeps = True, False

    def __init__(self, gamma: float) -> None:
        self.streams: Mapping[str, Any] = {"task": SimpleNamespace(gamma=gamma, episodic=True)}

    def initial_memory(self, n: int) -> Memory:
        return {}

    def embed(self, batch: Transitions) -> Transitions:
        return batch

    def score(self, batch: Transitions, memory: Memory = None) -> tuple[dict[str, Array], Memory]:
        return {"task": np.where(batch.valid, batch.reward, np.float32(0))}, memory

    def keep(self, batch: Transitions, memory: Memory) -> tuple[dict[str, Array], Memory]:
        return {}, memory

    def relabel(self, batch: Transitions) -> dict[str, Array]:
        return self.score(batch)[0]

    def combine(self, raw: dict[str, Array], timesteps: Any) -> Array:
        return raw["task"]

    def scaled(self, raw: dict[str, Array]) -> dict[str, Array]:
        return raw

    def weights(self, timesteps: Any) -> dict[str, float]:
        return {"task": 1.0}

    def total(self, batch: Transitions, memory: Memory, timesteps: int) -> tuple[Array, Memory]:
        return self.score(batch)[0]["task"], memory

    def update(self, batch: Transitions, raw: dict[str, Array], timesteps: Any = 0) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
