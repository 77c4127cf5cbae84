"""Another judge with a measured accuracy: a share of its answers is inverted, always the same ones.

    value' = 1 - value   if u(text) < 1 - accuracy        u uniform in [0, 1) by hash of seed and text
    NaN                  if u'(text) < unsure
    1[u(text) < positive]  with shuffle: as many positive answers, about other texts

Source: Ruiz-Gonzalez et al. 2024, "Words as Beacons", arXiv 2410.08632 (language models measured once, then simulated
with the accuracy that was found). The shuffled labels are a control without meaning.
Differences: errors depend on the text alone, since a model at temperature 0 repeats itself.
When it fails: a real model errs alike about similar texts, and this one does not, so a learner averages it away.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from envs.settings import setting
from rewards.llm.judges.base import Answers, TextJudge, make_judge


@dataclass(eq=False)
class NoisyJudge(TextJudge):
    """Inverts answers of another judge."""

    goal: str = setting("", "of the other judge")
    family: str = setting("", "of the other judge")
    of: str = setting("rules", "the other judge's name; it must be one that answers in this process")
    of_options: dict[str, Any] | None = setting(None, "its options")
    accuracy: float = setting(1.0, "share of the answers that are left as they are", low=0, high=1)
    unsure: float = setting(0.0, "share of the answers that become NaN", low=0, high=1)
    shuffle: bool = setting(False, "whether the other judge is not asked at all, and `positive` of all texts are good")
    positive: float = setting(0.3, "that share", low=0, high=1)
    seed: int = setting(0, "decides which answers those are")

    name = "simulated"
    local = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.other: TextJudge | None = None
        if not self.shuffle:
            self.other = make_judge(self.of, **{"goal": self.goal, "family": self.family, **(self.of_options or {})})
            if not self.other.local:
                raise ValueError(
                    f"judge simulated: of={self.of!r} is asked outside this process; give a local one, such as rules"
                )

    @property
    def identity(self) -> str:
        rest = f"unsure={self.unsure:g} seed={self.seed}"
        if self.other is None:
            return f"simulated shuffle positive={self.positive:g} accuracy={self.accuracy:g} {rest}"
        return f"simulated accuracy={self.accuracy:g} {rest} of {self.other.identity}"

    def label(self, texts: Sequence[str]) -> Answers:
        if self.other is None:
            answers = Answers.of(self._draws("shuffle", texts) < self.positive)
        else:
            answers = self.other.label(texts)
        return self._blurred(answers, texts)

    def compare(self, first: Sequence[str], second: Sequence[str]) -> Answers:
        """A pair errs alike in both orders."""
        if self.other is None:
            return super().compare(first, second)
        pairs = ["\0".join(sorted(pair)) for pair in zip(first, second, strict=True)]
        return self._blurred(self.other.compare(first, second), pairs)

    def notes(self) -> list[str]:
        if self.other is None:
            return [f"labels are drawn at random, {self.positive:.0%} of all texts are good: a control without meaning"]
        lines = [f"a share of {1 - self.accuracy:g} of the labels is wrong on purpose, of {self.unsure:g} unsure"]
        return [*lines, *self.other.notes()]

    def close(self) -> None:
        if self.other is not None:
            self.other.close()

    def _blurred(self, answers: Answers, keys: Sequence[str]) -> Answers:
        value = answers.value.copy()
        if self.accuracy < 1:
            value = np.where(self._draws("error", keys) < 1 - self.accuracy, 1 - value, value)
        if self.unsure > 0:
            value[self._draws("unsure", keys) < self.unsure] = math.nan
        return Answers(value.astype(np.float32), answers.failed, answers.failure, answers.tokens, answers.raw)

    def _draws(self, kind: str, keys: Sequence[str]) -> np.ndarray:
        """A number in [0, 1) for each key, which depends on the seed, the kind and the key alone."""
        salt = hashlib.blake2b(f"{self.seed} {kind}".encode()).digest()[:32]
        digests = b"".join(
            hashlib.blake2b(key.encode("utf-8", "replace"), digest_size=8, key=salt).digest() for key in keys
        )
        return np.frombuffer(digests, "<u8") / 2.0**64
