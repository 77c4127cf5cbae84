"""A judge that only repeats: answers from a file of labels, or from the annotator's cache.

A file has one JSON object a line, as transcripts have: `text`, `other` (the second text of a pair, null or absent for a
single one) and `value` in [0, 1], null for unsure. What else a line holds is not read. The cache is an SQLite file with
the table `labels`.

Source: ours; Klissarov et al. 2023 (Motif, arXiv 2310.00166) learn from such a file, which somebody else's model wrote.
When it fails: texts that vary (numbers, names) are not in the file, and a text that is not there has no answer.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rewards.llm.judges.base import Answers, Judge

Key = tuple[str, str | None]
MISSING = "no label recorded"


class Recorded(Judge):
    """Answers found by the text, letter by letter; where lines contradict each other the last one counts.

    Args:
        path: the file, JSON lines or SQLite.
        goal: not read; the labels have the goal of whoever gave them.
        world: not read.

    Raises:
        ValueError: for a missing file, or a line that is no label. A last line that was cut off is passed over.
    """

    name = "recorded"
    local = True

    def __init__(self, path: str, goal: str = "", world: str = "") -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise ValueError(f"judge recorded: path={path!r} is no file; give one of labels, such as a transcript")
        with self.path.open("rb") as file:
            is_cache = file.read(16) == b"SQLite format 3\0"
        self.labels: dict[Key, float] = dict(_rows(self.path) if is_cache else _lines(self.path))
        if not self.labels:
            raise ValueError(f"judge recorded: {path} holds no labels; give a file in which somebody was asked")
        said = sorted((text, other or "", value) for (text, other), value in self.labels.items())
        self._digest = hashlib.sha256(json.dumps(said).encode()).hexdigest()[:12]

    @property
    def identity(self) -> str:
        return f"recorded {self._digest}"

    def label(self, texts: Sequence[str]) -> Answers:
        return _answers([self.labels.get((text, None)) for text in texts])

    def compare(self, first: Sequence[str], second: Sequence[str]) -> Answers:
        """What was recorded of the pair in either order, or what the labels of its two texts say."""
        return _answers([self._pair(one, two) for one, two in zip(first, second, strict=True)])

    def notes(self) -> list[str]:
        return [f"{len(self.labels)} labels are read from {self.path}, nobody is asked"]

    def _pair(self, one: str, two: str) -> float | None:
        if (one, two) in self.labels:
            return self.labels[one, two]
        if (two, one) in self.labels:
            return 1 - self.labels[two, one]
        values = self.labels.get((one, None)), self.labels.get((two, None))
        if values[0] is None or values[1] is None:
            return None
        gap = values[1] - values[0]
        return gap if math.isnan(gap) else (1 + float(np.sign(gap))) / 2


def _answers(values: Sequence[float | None]) -> Answers:
    failed = np.array([value is None for value in values], bool)
    numbers = np.array([math.nan if value is None else value for value in values], np.float32)
    return Answers(numbers, failed, MISSING if failed.any() else "")


def _lines(path: Path) -> Iterator[tuple[Key, float]]:
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:
                if not line.endswith("\n"):  # whoever wrote it was stopped in the middle
                    return
                row = None
            label = _label(row)
            if label is None:
                raise ValueError(
                    f"{path}, line {number} is {line.strip()[:80]!r}, no label; give text and a value in [0, 1] or null"
                )
            yield label


def _rows(path: Path) -> Iterator[tuple[Key, float]]:
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        try:
            rows = connection.execute("SELECT text, other, value FROM labels ORDER BY created, rowid").fetchall()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise ValueError(f"{path} cannot be read as a cache of labels ({error}); give another file") from None
    for number, (text, other, value) in enumerate(rows, start=1):
        label = _label({"text": text, "other": other or None, "value": value})
        if label is None:
            raise ValueError(f"{path}, row {number} of labels holds {value!r}; a value is a number in [0, 1] or null")
        yield label


def _label(row: Any) -> tuple[Key, float] | None:
    """What a decoded line says, None if it is no label."""
    if not isinstance(row, dict) or "value" not in row:
        return None
    text, other, value = row.get("text"), row.get("other"), row["value"]
    if not isinstance(text, str) or not isinstance(other, str | None):
        return None
    if value is None:
        return (text, other), math.nan
    right = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
    return ((text, other), float(value)) if right else None
