"""Asks a judge what it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rewards.language.judge import Answers, Judge
from rewards.language.ledger import Item


def put(judge: Judge, items: Sequence[Item]) -> Answers:
    """What a judge says to texts, or to pairs of them."""
    texts: Any = items
    return judge.label(texts) if isinstance(items[0], str) else judge.compare(*zip(*texts))
