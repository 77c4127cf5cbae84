"""A reward as it was: what it paid when the agent was there is stored, and never paid anew.

This is what replays without relabelling do to rewards that learn, and the control for everything that relabels:
`relabel=False`. What is imagined is then paid by a network fitted to what was stored.
"""

from __future__ import annotations

from typing import Any

from envs.types import Memory, Transitions

PAID = "paid"  # the column


class FrozenReward:
    """A `ReplayScorer` around another: kept transitions are paid once, with the weights and scales of that moment.

    Args:
        scorer: whose rewards go stale; it goes on learning.

    Attributes:
        timesteps: environment steps at which `keep` pays; set by the agent.
    """

    is_task, keeps, relabelable, differentiable = False, True, True, False

    def __init__(self, scorer: Any) -> None:
        self.scorer, self.timesteps = scorer, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["scorer"], name)

    def keep(self, batch: Transitions, memory: Memory) -> tuple[dict[str, Any], Memory]:
        """What (T, N) transitions are worth now, as a column to store beside those that the rewards learn from."""
        columns, memory = self.scorer.keep(batch, memory)
        paid = self.scorer.combine(self.scorer.again(_with(batch, columns)), self.timesteps)
        return {**columns, PAID: paid}, memory

    def again(self, batch: Transitions) -> dict[str, Any]:
        """What they were worth then."""
        return {PAID: batch.extras[PAID]}

    def combine(self, raw: dict[str, Any], timesteps: Any) -> Any:
        """The reward; of scores by stream what they add up to now."""
        return raw[PAID] if PAID in raw else self.scorer.combine(raw, timesteps)

    def update(self, batch: Transitions, raw: dict[str, Any], timesteps: Any) -> dict[str, float]:
        """The rewards go on learning, from what they say now."""
        return self.scorer.update(batch, self.scorer.again(batch), timesteps)


def _with(batch: Transitions, columns: dict[str, Any]) -> Transitions:
    """The batch with what a replay keeps beside it, as its fields and extras."""
    own = {name: value for name, value in columns.items() if name in Transitions.__dataclass_fields__}
    rest = {name: value for name, value in columns.items() if name not in own}
    return batch.replace(**own, extras={**batch.extras, **rest})
