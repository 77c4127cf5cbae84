"""The reward of an agent that was given none: the task's own, as the only stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from envs.types import Memory, StreamScorer, Transitions


@dataclass
class TaskStream:
    """How the stream is discounted."""

    gamma: float
    episodic: bool = True


class TaskScorer:
    """A `ReplayScorer` of one stream, `task`."""

    requires: frozenset[str] = frozenset({"reward"})
    relabelable, differentiable = True, False
    is_task, keeps = True, False

    def __init__(self, gamma: float) -> None:
        self.streams = {"task": TaskStream(gamma)}

    def initial_memory(self, n: int) -> Memory:
        """None to speak of."""
        return {}

    def embed(self, batch: Transitions) -> Transitions:
        """The batch as it is."""
        return batch

    def score(self, batch: Transitions, memory: Memory = None) -> tuple[dict[str, Any], Memory]:
        """The environment's reward, 0 in rows that are no transitions."""
        return {"task": np.where(batch.valid, batch.reward, np.float32(0))}, memory

    def keep(self, batch: Transitions, memory: Memory) -> tuple[dict[str, Any], Memory]:
        """Nothing: the reward lies in the replay already."""
        return {}, memory

    def again(self, batch: Transitions) -> dict[str, Any]:
        """As `score`."""
        return self.score(batch)[0]

    def combine(self, raw: dict[str, Any], timesteps: Any) -> Any:
        """The only stream."""
        return raw["task"]

    def scaled(self, raw: dict[str, Any]) -> dict[str, Any]:
        """As it is."""
        return raw

    def weights(self, timesteps: Any) -> dict[str, Any]:
        """One."""
        return {"task": 1.0}

    def total(self, batch: Transitions, memory: Memory, timesteps: int) -> tuple[Any, Memory]:
        """The `Scorer` protocol."""
        return self.score(batch)[0]["task"], memory

    def update(self, batch: Transitions, raw: dict[str, Any], timesteps: Any = 0) -> dict[str, float]:
        """Nothing learns."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""


def checked(scorer: Any, kind: Any = StreamScorer) -> Any:
    """The scorer itself.

    Args:
        scorer: what pays.
        kind: what it must be: `StreamScorer`, or `ReplayScorer` for an agent with a replay.

    Raises:
        ValueError: if it is none, or has no streams.
    """
    if not isinstance(scorer, kind) or not scorer.streams:
        lacks = "streams that can be told apart"
        lacks += "" if kind is StreamScorer else " and paid anew (StreamScorer's members, and keep, again, combine)"
        raise ValueError(
            f"scorer={scorer!r} has no {lacks}; give what rewards.make returns, or None for the task's own reward"
        )
    return scorer
