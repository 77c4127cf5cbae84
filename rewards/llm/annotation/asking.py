"""Between a reward and a judge in a process of its own: a queue of texts, and a thread that waits; training does not.

    offer, take  <->  queue  <->  thread  <->  process of the judge  <->  server
                                  cache, breaker

    offered -> waiting -> asking -> answered (due at a step) -> taken
                  ^          |
                  +- failed -+ -> given up after `tries`

What waits is bounded, and what is asked next is what has the highest priority and, among equals, what came last: the
newest texts are those an agent meets again soon. A judge that fails is held back by a breaker and probed; a process
that dies is noticed at once and started again, five times in ten minutes; what it was asked waits again.
Source: Zheng et al. 2024, arXiv 2410.23022 (ONI), section 3, asks newest first from an unbounded list.
When it fails: a text that was dropped from a full queue is forgotten; it comes back only if it is met again.
"""

import itertools
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from rewards.llm.annotation.worker import JudgeProcess
from rewards.llm.client import Breaker
from rewards.llm.store import AnswerStore, Item, Label, texts_in

KNOWN = 100_000  # answered items that are remembered so as not to be asked again
COUNTS = ("asked", "answered", "unsure", "failed", "dropped", "cached", "tokens", "seconds")
TRIES = 3  # of a text that a judge in good health has no usable answer to
BATCH = 64  # texts that a local judge gets together
DEATHS, SPAN = 5, 600.0  # so many in so many seconds
PATIENCE = 900.0  # seconds without an answer after which a process is taken for stuck
TICK = 1.0  # seconds after which the thread checks its state though no message came


class AnnotationQueue:
    """Items on their way from a reward to a judge and back; for the one thread that holds `lock`, and never waits."""

    def __init__(
        self, capacity: int = 1000, newest: bool = True, rate: float = 0.0, budget: int = 0, token_budget: int = 0
    ) -> None:
        self.capacity, self.newest, self.rate = capacity, newest, rate
        self.budget, self.token_budget = budget, token_budget
        self.lock = threading.Lock()  # to be held around every call
        self.waiting: dict[Item, tuple[float, int]] = {}  # priority and serial number; the highest is next
        self.asking: dict[Item, tuple[float, int]] = {}  # the same of what is in flight
        self.fresh: list[Item] = []  # not looked up in a cache yet
        self.answers: deque[tuple[int, Item, Any]] = deque()  # step from which it may be taken, item, value
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
        for item, rank in zip(items, itertools.repeat(0.0) if priority is None else priority):
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
        due = list(itertools.takewhile(lambda answer: answer[0] <= now, self.answers))
        return [self.answers.popleft()[1:] for _ in due]

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


class Asker:
    """The thread, its process, its cache."""

    def __init__(
        self,
        pending: AnnotationQueue,
        job: dict[str, Any],  # kind, judge, options, concurrency
        cache: str,
        probe: float,
        say: Callable[[str], None],
    ) -> None:
        self.pending, self.say = pending, say
        self.identity = ""  # whose answers these are, once the judge has started
        self.notes: list[str] = []  # those of the judge
        self.trouble: Exception | None = None  # why there will never be an answer
        self.restarts = 0  # of the process
        self.breaker = Breaker(probe)
        self.failure = ""  # the sentence of the latest question without a usable answer
        self._job, self._cache_path = job, cache
        self._words = job["kind"] == "goals"  # answers are words, not numbers
        self._local = False  # a local judge gets many texts together, one batch at a time, and never changes its mind
        self._cache: AnswerStore | None = None
        self._worker: JudgeProcess | None = None
        self._ready = False  # the worker has sent its greeting
        self._deaths: deque[float] = deque(maxlen=DEATHS)
        self._restart = 0.0  # not before this time
        self._flight: dict[int, tuple[list[Item], float]] = {}
        self._questions = 0
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._stopping = False
        self._owner = os.getpid()
        self._thread = threading.Thread(target=self._run, name="annotator", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        if self._inbox.empty():
            self._inbox.put(None)

    def close(self) -> None:
        if os.getpid() != self._owner:  # a fork has neither
            return
        self._stopping = True
        self._inbox.put(None)
        worker = self._worker
        if worker is not None:
            worker.kill()  # the thread may be waiting for it
        self._thread.join()

    def _run(self) -> None:
        try:
            if self._cache_path:
                self._cache = AnswerStore(self._cache_path, say=self.say)
            while not self._stopping and self.trouble is None:
                self._turn()
        except Exception as error:  # training must not continue for days without labels because of a mistake in here
            self.trouble = error
        finally:
            if self._worker is not None:
                self._worker.end()
            if self._cache is not None:
                self._cache.close()

    def _turn(self) -> None:
        now = time.monotonic()
        if self._worker is None and now >= self._restart:
            try:
                self._worker, self._ready = JudgeProcess(self._job, self._inbox), False
            except OSError as error:
                self._died(f"could not be started ({error})", now)
        if self._worker is not None and self._ready:
            with self.pending.lock:
                fresh = [item for item in self.pending.fresh if item in self.pending.waiting]
                self.pending.fresh.clear()
            self._look_up(fresh)
            self._put_questions(now)
            if any(now - sent > PATIENCE for _, sent in self._flight.values()):
                self._worker.kill()
        wait = self.breaker.until - now if self.breaker.open else 0.0  # below 0 there was nothing to probe with
        with suppress(queue.Empty):
            message = self._inbox.get(timeout=min(wait, TICK) if wait > 0 else TICK)
            while message is not None:
                self._hear(*message)
                message = self._inbox.get_nowait()

    def _look_up(self, items: Sequence[Item]) -> list[Item]:
        if self._cache is None or not items:
            return list(items)
        found = (self._cache.words_of if self._words else self._cache.get)(self.identity, items)
        with self.pending.lock:
            for item, value in found.items():
                self.pending.answer(item, value, cached=True)
        return [item for item in items if item not in found]

    def _put_questions(self, now: float) -> None:
        slots, batch = (1, BATCH) if self._local else (self._job["concurrency"], 1)
        while len(self._flight) < slots:
            room = self.breaker.room(now)
            with self.pending.lock:
                drawn = self.pending.draw(batch if room is None else room)
            if not drawn:
                return
            items = self._look_up(drawn)  # another run may have asked since they came
            if not items:
                continue
            with self.pending.lock:
                self.pending.sent(items)
            self.breaker.asked()
            self._questions += 1
            self._flight[self._questions] = (items, now)
            assert self._worker is not None
            self._worker.send({"id": self._questions, "items": items})

    def _hear(self, worker: JudgeProcess, message: dict[str, Any] | None) -> None:
        if worker is not self._worker:
            return
        if message is None:
            self._worker = None
            self._died(worker.end(), time.monotonic())
        elif "refused" in message:
            if self.identity:  # it was well before: report it and start it again
                self.say(message["refused"])
            else:
                self.trouble = ValueError(message["refused"])
        elif "identity" in message:
            self.identity, self.notes, self._ready = message["identity"], message["notes"], True
            self._local = message["local"]
        elif message["id"] in self._flight:
            self._answered(self._flight.pop(message["id"])[0], message, time.monotonic())

    def _answered(self, items: list[Item], reply: dict[str, Any], now: float) -> None:
        labels, share = [], 1 / len(items)
        raw = reply["raw"] if len(reply["raw"]) == len(items) else [""] * len(items)
        ended = begun = False
        self.failure = reply["failure"] or self.failure
        if not all(reply["failed"]):
            ended = self.breaker.succeeded(now)
        elif not self._local:
            begun = self.breaker.failed(now)
        with self.pending.lock:
            self.pending.counts["tokens"] += reply["tokens"]
            for i, (item, value, failed) in enumerate(zip(items, reply["value"], reply["failed"])):
                if failed:
                    # A failure is the text's own only if the judge is well: it replied, or just answered others.
                    blame = bool(raw[i]) or self.breaker.streak <= 1
                    self.pending.fail(item, 1 if self._local else TRIES, blame)
                else:
                    value = float("nan") if value is None else value
                    labels.append(Label(item, value, raw[i], reply["seconds"] * share, round(reply["tokens"] * share)))
                    self.pending.counts["seconds"] += reply["seconds"] * share
                    self.pending.answer(item, raw[i] if self._words else value)
            spent, waiting = self.pending.spent(), len(self.pending.waiting)
        if begun:
            self.say(f"{reply['failure']}; trying again in {self.breaker.pause:g} s")
        if ended:
            self.say(f"the judge answers again, {waiting:,} texts wait")
        if spent:
            self.say(spent)
        if self._cache is not None and labels:
            self._cache.put(self.identity, labels)

    def _died(self, how: str, now: float) -> None:
        with self.pending.lock:
            for items, _ in self._flight.values():
                for item in items:
                    self.pending.fail(item, TRIES)
        self._flight.clear()
        if self.breaker.probing:
            self.breaker.failed(now)
        self._restart = max(now, self._deaths[0] + SPAN) if len(self._deaths) == DEATHS else now
        self._deaths.append(now)
        self.restarts += 1
        when = f"in {self._restart - now:.0f} s" if self._restart > now else "now"
        if not self._stopping:
            self.say(f"the process of the judge {how}; it is started again {when}")
