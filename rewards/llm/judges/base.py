"""Who says what a caption is worth: the contract of a judge of texts, and the table of judges.

What you write, in one file:

    class Mine(Judge):
        def label(self, texts): ...             # how good is each text? in [0, 1]
        def compare(self, first, second): ...   # which of two is better?

A judge sees captions, never the environment, the agent or the reward. It answers each question with a number or with
NaN, unsure: NaN is an answer too, never a silent 0. A question that got no usable answer is `failed`: it may be asked
again, an unsure one is not. A judge never raises because a server or a file is ill; only its constructor raises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from rewards.named import make_named

JUDGES: dict[str, str] = {
    "rules": "rewards.llm.judges.rules:Rules",
    "recorded": "rewards.llm.judges.recorded:Recorded",
    "openai": "rewards.llm.judges.openai:OpenAI",
    "embedding": "rewards.llm.judges.embedding:Embedding",
    "simulated": "rewards.llm.judges.simulated:Simulated",
}


@dataclass
class Answers:
    """What a judge said to B questions.

    Attributes:
        value: float32 (B,) in [0, 1]; of a text, how much what it tells helps (1) or does not (0); of a pair, 1 if the
            second is better, 0 if the first, 0.5 if equal. NaN where the judge was unsure or failed.
        failed: bool (B,), no usable answer came.
        failure: the sentence of the first failure, "" without one.
        tokens: language-model tokens that the answers cost, question and answer together.
        raw: what was said, word for word, at most 2,000 characters each; empty where there are no words.
    """

    value: np.ndarray
    failed: np.ndarray
    failure: str = ""
    tokens: int = 0
    raw: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, value: Any) -> Answers:
        """Answers none of which failed."""
        value = np.asarray(value, np.float32)
        return cls(value, np.zeros(value.shape, bool))


class Judge(ABC):
    """Base class of every judge of texts; the module's docstring is the contract.

    Attributes:
        name: what the table calls it.
        local: it answers within microseconds in this process, and the same question always alike.
    """

    name: ClassVar[str] = ""
    local: ClassVar[bool] = False

    @property
    def identity(self) -> str:
        """Whose answers these are: judge, model, version of prompt and schema, goal. Equal strings, equal answers."""
        return self.name

    @abstractmethod
    def label(self, texts: Sequence[str]) -> Answers:
        """How good is what each of B texts tells, for the judge's goal?"""

    def compare(self, first: Sequence[str], second: Sequence[str]) -> Answers:
        """Which of two texts tells of the better state, pair by pair? By their labels, unless a judge knows better."""
        both = self.label([*first, *second])
        one, two = np.split(both.value, 2)
        value = np.where(np.isnan(one) | np.isnan(two), np.nan, (1 + np.sign(two - one)) / 2)
        half = len(first)
        failed = both.failed[:half] | both.failed[half:]
        return Answers(value.astype(np.float32), failed, both.failure, both.tokens)

    def notes(self) -> list[str]:
        """Sentences a user should read: whose opinion this is, and what it costs."""
        return []

    def close(self) -> None:  # noqa: B027 - most judges hold nothing open
        """Give back connections and processes."""


def make_judge(name: str, **options: Any) -> Judge:
    """The judge called `name`.

    Args:
        name: one of `JUDGES`.
        **options: of that judge. Every judge knows `goal` (a sentence: what is good) and `world` (the family of
            environments that the texts come from, such as "nethack"; "" for none in particular); runners fill both in.

    Raises:
        ValueError: for an unknown name or option, with the nearest; or from the judge, for a value it refuses.
    """
    return make_named("judge", JUDGES, name, **options)
