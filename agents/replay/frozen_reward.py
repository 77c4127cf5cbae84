"""Rewards of the time of collection: computed once, stored, and never relabelled.

This is what replays without relabelling do to rewards that learn, and the control for relabelling: `relabel=False`.
Imagined transitions then get their rewards from a network fitted to the stored ones.
"""

from __future__ import annotations

from typing import Any

from envs.transitions import Transitions
from envs.types import Memory

STORED = "stored_reward"  # the column


class FrozenReward:
    """A `ReplayScorer` around another: transitions are scored once, with the weights and scales of that moment.

    The scorer itself continues to learn.

    Attributes:
        timesteps: environment steps at which `keep` scores; set by the agent.
    """

    is_task, keeps, relabelable, differentiable = False, True, True, False

    def __init__(self, scorer: Any) -> None:
        self.scorer, self.timesteps = scorer, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["scorer"], name)

    def keep(self, batch: Transitions, memory: Memory) -> tuple[dict[str, Any], Memory]:
        """The rewards of (T, N) transitions as a column, beside those that the scorer learns from."""
        columns, memory = self.scorer.keep(batch, memory)
        reward = self.scorer.combine(self.scorer.relabel(_with(batch, columns)), self.timesteps)
        return {**columns, STORED: reward}, memory

    def relabel(self, batch: Transitions) -> dict[str, Any]:
        """The stored rewards."""
        return {STORED: batch.extras[STORED]}

    def combine(self, raw: dict[str, Any], timesteps: Any) -> Any:
        """The stored reward; scores by stream are combined as usual."""
        return raw[STORED] if STORED in raw else self.scorer.combine(raw, timesteps)

    def update(self, batch: Transitions, raw: dict[str, Any], timesteps: Any) -> dict[str, float]:
        """The scorer learns from its current scores."""
        return self.scorer.update(batch, self.scorer.relabel(batch), timesteps)


def _with(batch: Transitions, columns: dict[str, Any]) -> Transitions:
    """The batch with these columns as its fields and extras."""
    own = {name: value for name, value in columns.items() if name in Transitions.__dataclass_fields__}
    rest = {name: value for name, value in columns.items() if name not in own}
    return batch.replace(**own, extras={**batch.extras, **rest})
