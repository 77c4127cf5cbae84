"""A judge that only repeats: answers from a file of labels, or from the annotator's cache.

A file has one JSON object a line, as transcripts have: `text`, `other` (the second text of a pair, null or absent for a
single one) and `value` in [0, 1], null for unsure; other keys are ignored. The cache is an `AnswerStore`.

Source: ours; Klissarov et al. 2023 (Motif, arXiv 2310.00166) learn from such a file, labelled by another model.
When it fails: texts that vary (numbers, names) are not in the file, and a text that is not there has no answer.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from envs.settings import setting
from rewards.llm.judges.base import Answers, TextJudge
from rewards.llm.store import label_in, read_rows

MISSING = "no label recorded"


@dataclass(eq=False)
class RecordedLabels(TextJudge):
    """Answers found by the exact text; where lines contradict each other the last one counts; raises ValueError for a
    missing file, or a line that is no label. A last line that was cut off is passed over.
    """

    path: str = setting(help="the file, JSON lines or SQLite")
    goal: str = setting("", "not read; the labels have a goal of their own")
    family: str = setting("", "not read")

    name = "recorded"
    local = True

    def __post_init__(self) -> None:
        if not Path(self.path).is_file():
            raise ValueError(f"judge recorded: path={self.path!r} is no file; give one of labels, such as a transcript")
        self.labels = dict(read_rows(self.path, label_in, "no label; give text and a value in [0, 1] or null"))
        if not self.labels:
            raise ValueError(f"judge recorded: {self.path} holds no labels; give a file that a judge's run wrote")
        keys = ((item, "", value) if isinstance(item, str) else (*item, value) for item, value in self.labels.items())
        self._digest = hashlib.sha256(json.dumps(sorted(keys)).encode()).hexdigest()[:12]

    @property
    def identity(self) -> str:
        return f"recorded {self._digest}"

    def label(self, texts: Sequence[str]) -> Answers:
        return _answers([self.labels.get(text) for text in texts])

    def compare(self, first: Sequence[str], second: Sequence[str]) -> Answers:
        """What was recorded of the pair in either order, or what the labels of its two texts say."""
        return _answers([self._pair(one, two) for one, two in zip(first, second, strict=True)])

    def notes(self) -> list[str]:
        return [f"{len(self.labels)} labels are read from {self.path}, no judge is asked"]

    def _pair(self, one: str, two: str) -> float | None:
        if (one, two) in self.labels:
            return self.labels[one, two]
        if (two, one) in self.labels:
            return 1 - self.labels[two, one]
        values = self.labels.get(one), self.labels.get(two)
        if values[0] is None or values[1] is None:
            return None
        gap = values[1] - values[0]
        return gap if math.isnan(gap) else (1 + float(np.sign(gap))) / 2


def _answers(values: Sequence[float | None]) -> Answers:
    failed = np.array([value is None for value in values], bool)
    numbers = np.array([math.nan if value is None else value for value in values], np.float32)
    return Answers(numbers, failed, MISSING if failed.any() else "")
