"""What was met and what was said of it: two bounded tables of texts, in plain lists when they are saved.

When they fail: a caption that comes back after `capacity` others is counted as new. A table of labels that is full
lets go of the oldest.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

Item = Any  # a text, or a pair of texts

MOST = 100_000  # labels kept
HELD_FROM = 100  # labels before any is held out: the first few are too precious
HELD = 10  # one label in so many is held out then


class Met:
    """Captions met, least recent first, with how often; beyond `capacity` the least recent are forgotten.

    Attributes:
        now: transitions seen.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity, self.now = capacity, 0
        self.counts: dict[str, int] = {}  # in the order in which they were last met

    def see(self, counts: Mapping[str, int], transitions: int) -> None:
        """`transitions` brought these captions, so often each; none of them is empty."""
        self.now += transitions
        for text, count in counts.items():
            self.counts[text] = self.counts.pop(text, 0) + count
        surplus = len(self.counts) - self.capacity
        for text in list(itertools.islice(self.counts, max(surplus, 0))):
            del self.counts[text]

    def newest(self, count: int) -> list[str]:
        """The captions met last, at most `count`."""
        return list(itertools.islice(reversed(self.counts), count))

    def state_dict(self) -> dict[str, Any]:
        return {"now": self.now, "texts": list(self.counts), "counts": list(self.counts.values())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.now = int(state["now"])
        self.counts = dict(zip(state["texts"], map(int, state["counts"])))


class Labels:
    """Labels of texts, or of pairs of them: in [0, 1], NaN where the judge was unsure.

    One in ten is held out by the hash of its item, once there are a hundred: to measure with, not to learn from.

    Attributes:
        values: item -> label, the oldest first.
        texts: every text that a label speaks of.
    """

    def __init__(self) -> None:
        self.values: dict[Item, float] = {}
        self.texts: set[str] = set()
        self._held: set[Item] = set()

    def add(self, item: Item, value: float) -> None:
        """Take in an answer; a second one about an item replaces the first."""
        if item not in self.values and len(self.values) >= HELD_FROM and crc(item) % HELD == 0:
            self._held.add(item)
        self.values[item] = value
        self.texts.update([item] if isinstance(item, str) else item)
        if len(self.values) > MOST:
            oldest = next(iter(self.values))
            del self.values[oldest]
            self._held.discard(oldest)
            self.texts.difference_update([oldest] if isinstance(oldest, str) else ())

    def sure(self, held: bool = False) -> tuple[list[Item], np.ndarray]:
        """Items with a label to learn from, or those that are held out; and their labels, float64 (B,)."""
        found = [(i, v) for i, v in self.values.items() if (i in self._held) == held and not math.isnan(v)]
        return [item for item, _ in found], np.array([value for _, value in found])

    def metrics(self) -> dict[str, float]:
        """How many labels are sure, how many of those above 0.5."""
        values = np.fromiter(self.values.values(), np.float64, len(self.values))
        return {"labels": float(len(values) - np.isnan(values).sum()), "positives": float((values > 0.5).sum())}

    def state_dict(self) -> dict[str, Any]:
        items = [item if isinstance(item, str) else list(item) for item in self.values]
        held = np.array([item in self._held for item in self.values], bool)
        return {"items": items, "values": np.array(list(self.values.values())), "held": held}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        items = [item if isinstance(item, str) else tuple(item) for item in state["items"]]
        self.values = dict(zip(items, np.asarray(state["values"]).tolist()))
        self._held = set(itertools.compress(items, state["held"]))
        self.texts = {text for item in items for text in ([item] if isinstance(item, str) else item)}


def crc(item: Item) -> int:
    """A number that an item has in every process."""
    text = item if isinstance(item, str) else "\0".join(item)
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))
