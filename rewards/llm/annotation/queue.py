"""Which texts wait for a judge, which are being asked, which are answered; and how many may still be asked.

For one thread at a time, the one that holds `lock`; nothing in it waits, does I/O or asks a judge.

    offered -> waiting -> asking -> answered (due at a step) -> taken
                  ^          |
                  +- failed -+ -> given up after `tries`

What waits is bounded, and what is asked next is what has the highest priority and, among equals, what came last: an
agent meets new texts faster than a language model reads, and the newest are those it meets again soon.
Source: Zheng et al. 2024, arXiv 2410.23022 (ONI), section 3, asks newest first from an unbounded list; differences:
bounded, what waits or is being asked is not taken in a second time, priorities, a budget, a rate.
When it fails: a text that was dropped from a full queue is forgotten; it comes back only if it is met again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

from rewards.llm.store import Item, texts_in

KNOWN = 100_000  # answered items that are remembered so as not to be asked again
COUNTS = ("asked", "answered", "unsure", "failed", "dropped", "cached", "tokens", "seconds")


class AnnotationQueue:
    """Items on their way from a reward to a judge and back."""

    def __init__(
        self, capacity: int = 1000, newest: bool = True, rate: float = 0.0, budget: int = 0, token_budget: int = 0
    ) -> None:
        self.capacity, self.newest, self.rate = capacity, newest, rate
        self.budget, self.token_budget = budget, token_budget
        self.lock = threading.Lock()  # to be held around every call
        self.waiting: dict[Item, tuple[float, int]] = {}  # priority and serial number; the highest is next
        self.asking: dict[Item, tuple[float, int]] = {}  # the same of what is in flight
        self.fresh: list[Item] = []  # not looked up in a cache yet
        self.answers: deque[tuple[int, Item, Any]] = (
            deque()
        )  # step from which it may be taken, item, value (NaN: unsure)
        self.counts = dict.fromkeys(COUNTS, 0.0)
        self._known: dict[Item, None] = {}
        self._tries: dict[Item, int] = {}
        self._order: list[Item] | None = None  # what waits, the next one last; None when it must be sorted again
        self._serial = 0
        self._announced = False  # that a budget is spent
        self._now, self._credit = 0, 0.0

    def offer(self, items: Sequence[Item], priority: Sequence[float] | None = None) -> int:
        """Take in what is new, the newest last; what waits already moves to its new place. How many are new."""
        new = []
        for item, rank in zip(items, repeat(0.0) if priority is None else priority):
            if item in self._known or item in self.asking or not (item if isinstance(item, str) else all(item)):
                continue
            if item not in self.waiting:
                new.append(item)
            self._serial += 1
            self.waiting[item] = (float(rank), self._serial if self.newest else -self._serial)
            self._order = None
        surplus = len(self.waiting) - self.capacity
        if surplus > 0:
            for item in self._sorted()[:surplus]:
                del self.waiting[item]
            del self._sorted()[:surplus]
            self.counts["dropped"] += surplus
            new = [item for item in new if item in self.waiting]
            self.fresh = [item for item in self.fresh if item in self.waiting]
        self.fresh += new
        return len(new)

    def tick(self, now: int) -> None:
        """Earn questions by the steps since the last tick."""
        if now > self._now:
            gain = (now - self._now) * self.rate / 1000
            self._now, self._credit = now, min(self._credit + gain, gain + 1)  # + 1: fractions of a question add up

    def draw(self, most: int) -> list[Item]:
        """The next items to be asked, at most `most`, within budget and rate; they count as being asked from now on."""
        if self.budget:
            most = min(most, self.budget - int(self.counts["answered"]) - len(self.asking))
        if self.rate:
            most = min(most, int(self._credit))
        if self.token_budget and self.counts["tokens"] >= self.token_budget:
            return []
        order = self._sorted()
        drawn: list[Item] = []
        while order and len(drawn) < most:
            item = order.pop()
            place = self.waiting.pop(item, None)  # None: a cache answered it meanwhile
            if place is not None:
                self.asking[item] = place
                drawn.append(item)
        return drawn

    def sent(self, items: Sequence[Item]) -> None:
        """These were sent to the judge."""
        self.counts["asked"] += len(items)
        if self.rate:
            self._credit -= len(items)

    def answer(self, item: Item, value: Any, due: int = 0, cached: bool = False) -> None:
        """An item has an answer, a number or NaN for unsure or a text, which may be taken from step `due` on."""
        self.asking.pop(item, None)
        self.waiting.pop(item, None)
        self._remember(item)
        self.answers.append((due, item, value))
        self.counts["cached" if cached else "answered"] += 1
        self.counts["unsure"] += value != value

    def fail(self, item: Item, tries: int, blame: bool = True) -> None:
        """An item got no usable answer: it waits again behind all others, or is given up after `tries` with `blame`."""
        if self.asking.pop(item, None) is None:
            return
        self.counts["failed"] += 1
        self._tries[item] = self._tries.get(item, 0) + blame
        if self._tries[item] >= tries:
            self.counts["dropped"] += 1
            self._remember(item)
        else:
            self._serial += 1
            self.waiting[item] = (float("-inf"), -self._serial)
            self._order = None

    def take(self, now: int) -> list[tuple[Item, Any]]:
        """The answers that are due, in order."""
        taken = []
        while self.answers and self.answers[0][0] <= now:
            taken.append(self.answers.popleft()[1:])
        return taken

    def spent(self) -> str:
        """Which budget is spent, as a sentence, the first time; "" while there is some left, and afterwards."""
        if self._announced:
            return ""
        for what, budget, so_far in (("labels", self.budget, "answered"), ("tokens", self.token_budget, "tokens")):
            if budget and self.counts[so_far] >= budget:
                self._announced = True
                return f"the budget of {budget:,} {what} is spent, nothing is asked any more"
        return ""

    def metrics(self) -> dict[str, float]:
        """The counts, what waits, and the mean seconds that an answer took."""
        counts = dict(self.counts)
        latency = counts.pop("seconds") / max(counts["answered"], 1.0)
        return {**counts, "queued": float(len(self.waiting)), "latency": latency}

    def state_dict(self) -> dict[str, Any]:
        """Everything, as lists and numbers; what is being asked waits again."""
        open_ = {**self.waiting, **self.asking}
        return {
            "waiting": [[*texts_in(item), *open_[item]] for item in sorted(open_, key=open_.__getitem__)],
            "answers": [[due, *texts_in(item), None if value != value else value] for due, item, value in self.answers],
            "known": [list(texts_in(item)) for item in self._known],
            "counts": dict(self.counts),
            "serial": self._serial,
            "now": self._now,
            "credit": self._credit,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.waiting = {_item(texts): (rank, serial) for *texts, rank, serial in state["waiting"]}
        self.answers = deque(
            (due, _item(texts), float("nan") if value is None else value) for due, *texts, value in state["answers"]
        )
        self._known = dict.fromkeys(map(_item, state["known"]))
        self.counts = dict(state["counts"])
        self._serial, self._now, self._credit = state["serial"], state["now"], state["credit"]
        self.asking, self.fresh, self._order = {}, list(self.waiting), None
        self._tries = {}

    def _sorted(self) -> list[Item]:
        if self._order is None:
            self._order = sorted(self.waiting, key=self.waiting.__getitem__)
        return self._order

    def _remember(self, item: Item) -> None:
        self._tries.pop(item, None)
        self._known[item] = None
        if len(self._known) > KNOWN:
            del self._known[next(iter(self._known))]


def _item(texts: Iterable[str]) -> Item:
    first, *second = texts
    return (first, second[0]) if second else first
