"""Another judge, seen through a measured accuracy: so many of its answers are turned round, always the same ones.

    value' = 1 - value   if u(text) < 1 - accuracy        u uniform in [0, 1) by hash of seed and text
    NaN                  if u'(text) < unsure
    1[u(text) < positive]  with shuffle: as many positive answers, about other texts

Source: Ruiz-Gonzalez et al. 2024, "Words as Beacons", arXiv 2410.08632 (language models measured once, then simulated
with the accuracy that was found). The shuffled labels are a control: what they teach, no meaning taught.
Differences: errors hang on the text and not on a coin tossed anew, since a model at temperature 0 repeats itself.
When it fails: a real model errs alike about similar texts, and this one does not, so a learner averages it away.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rewards.llm.judges.base import Answers, Judge, make_judge


class Simulated(Judge):
    """Turns answers of another judge round.

    Args:
        goal: of the other judge.
        world: of the other judge.
        of: the other judge's name; it must be one that answers in this process.
        of_options: its options.
        accuracy: share of the answers that are left as they are, in [0, 1]; the noise is 1 - accuracy.
        unsure: share of the answers that become NaN, in [0, 1].
        shuffle: whether the other judge is not asked at all, and `positive` of all texts are good.
        positive: that share, in [0, 1].
        seed: decides which answers those are.

    Raises:
        ValueError: for a share out of range, or another judge that is not local.
    """

    name = "simulated"
    local = True

    def __init__(
        self,
        goal: str = "",
        world: str = "",
        of: str = "rules",
        of_options: dict[str, Any] | None = None,
        accuracy: float = 1.0,
        unsure: float = 0.0,
        shuffle: bool = False,
        positive: float = 0.3,
        seed: int = 0,
    ) -> None:
        for key, value in (("accuracy", accuracy), ("unsure", unsure), ("positive", positive)):
            if not 0 <= value <= 1:
                raise ValueError(f"judge simulated: {key}={value} is no share; give a number in [0, 1]")
        self.of = None if shuffle else make_judge(of, **{"goal": goal, "world": world, **(of_options or {})})
        if self.of is not None and not self.of.local:
            raise ValueError(
                f"judge simulated: of={of!r} is asked outside this process; give a local one, such as rules"
            )
        self.accuracy, self.unsure, self.positive, self.seed = accuracy, unsure, positive, seed

    @property
    def identity(self) -> str:
        rest = f"unsure={self.unsure:g} seed={self.seed}"
        if self.of is None:
            return f"simulated shuffle positive={self.positive:g} accuracy={self.accuracy:g} {rest}"
        return f"simulated accuracy={self.accuracy:g} {rest} of {self.of.identity}"

    def label(self, texts: Sequence[str]) -> Answers:
        if self.of is None:
            answers = Answers.of(self._draws("shuffle", texts) < self.positive)
        else:
            answers = self.of.label(texts)
        return self._blurred(answers, texts)

    def compare(self, first: Sequence[str], second: Sequence[str]) -> Answers:
        """A pair errs alike in both orders."""
        if self.of is None:
            return super().compare(first, second)
        pairs = ["\0".join(sorted(pair)) for pair in zip(first, second, strict=True)]
        return self._blurred(self.of.compare(first, second), pairs)

    def notes(self) -> list[str]:
        if self.of is None:
            return [f"labels are drawn at random, {self.positive:.0%} of all texts are good: a control without meaning"]
        lines = [f"a share of {1 - self.accuracy:g} of the labels is wrong on purpose, of {self.unsure:g} unsure"]
        return [*lines, *self.of.notes()]

    def close(self) -> None:
        if self.of is not None:
            self.of.close()

    def _blurred(self, answers: Answers, keys: Sequence[str]) -> Answers:
        value = answers.value.copy()
        if self.accuracy < 1:
            value = np.where(self._draws("error", keys) < 1 - self.accuracy, 1 - value, value)
        if self.unsure > 0:
            value[self._draws("unsure", keys) < self.unsure] = math.nan
        return Answers(value.astype(np.float32), answers.failed, answers.failure, answers.tokens, answers.raw)

    def _draws(self, kind: str, keys: Sequence[str]) -> np.ndarray:
        """A number in [0, 1) for each key, which hangs on the seed, the kind and the key alone."""
        salt = hashlib.blake2b(f"{self.seed} {kind}".encode()).digest()[:32]
        digests = b"".join(
            hashlib.blake2b(key.encode("utf-8", "replace"), digest_size=8, key=salt).digest() for key in keys
        )
        return np.frombuffer(digests, "<u8") / 2.0**64
