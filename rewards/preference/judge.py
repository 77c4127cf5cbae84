"""Who says which of two segments of behaviour is better: the contract of a judge, and the table of judges.

A pair of segments is two `Transitions` of shape (L, B): L consecutive steps of one episode, B pairs side by side; every
row is a valid transition. What you write, in one file:

    class Mine(Judge):
        requires = frozenset({"signals"})       # the fields of Transitions it reads
        def compare(self, first, second): ...   # float32 (B,)

A judge never sees the environment, the reward model or the agent. It answers 1 (the second is better), 0 (the first),
0.5 (equal), or NaN: unsure, or no answer came. Whoever asks drops the NaN; a judge that can fail answers NaN and says
why in `notes`, so that training goes on without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from envs.types import Transitions
from rewards.named import make_named

JUDGES: dict[str, str] = {
    "scripted": "rewards.preference.judges:Scripted",
    "heron": "rewards.preference.judges:Heron",
    "clip": "rewards.preference.judges:Clip",
    "recorded": "rewards.preference.judges:Recorded",
    "vlm": "rewards.preference.vlm:VLM",
}


class Judge(ABC):
    """Base class of every judge; the module's docstring is the contract.

    Attributes:
        name: what the table calls it.
        requires: fields of Transitions that it reads.
        frame_size: height and width of the frames it wants, pixels; None where any will do, or none are read.
        embedding: the extra that stands for a frame, if it reads that instead (`embed` computes it).
    """

    name: ClassVar[str] = ""
    requires: frozenset[str] = frozenset()
    frame_size: int | None = None
    embedding: str | None = None

    @abstractmethod
    def compare(self, first: Transitions, second: Transitions) -> np.ndarray:
        """Which of two segments is better, pair by pair.

        Args:
            first: shape (L, B).
            second: shape (L, B).

        Returns:
            float32 (B,): 1 for the second, 0 for the first, 0.5 for equal, NaN for unsure or unanswered.
        """

    def embed(self, batch: Transitions) -> np.ndarray:
        """The embedding (N, D) of `batch.frame`; only for judges that name one."""
        raise TypeError(f"the judge {self.name} names no embedding, so there is nothing to embed")

    def notes(self) -> list[str]:
        """Sentences a user should read: whose opinion this is, and what went wrong so far."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Everything that moves: generators, statistics, counts."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - a judge without state has nothing to do
        """Restore what `state_dict` returned."""


def make_judge(name: str, *, cached: str = "", seed: int = 0, device: str = "cpu", **options: Any) -> Judge:
    """The judge called `name`.

    Args:
        name: one of `JUDGES`.
        cached: a file of labels. Every pair is asked once and written there; the next run reads it instead.
        seed: of what the judge draws at random.
        device: where networks live, as torch writes it.
        **options: of that judge.

    Raises:
        ValueError: for an unknown name or option, with the nearest; or from the judge, for a value it refuses.
    """
    judge: Judge = make_named("judge", JUDGES, name, seed=seed, device=device, **options)
    if cached:
        from rewards.preference.judges import Recorded

        return Recorded(cached, judge)
    return judge
