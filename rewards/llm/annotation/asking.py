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
import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rewards.llm.annotation.worker import JudgeProcess
from rewards.llm.client import Breaker
from rewards.llm.store import AnswerStore, Item, Label, texts_in, without_nan

# Answered items that are remembered, so that they are not asked about again.
MAX_ANSWERED_ITEMS = 100_000
COUNTS = ("asked", "answered", "unsure", "failed", "dropped", "cached", "tokens", "seconds")
# How often a text is asked about to which a judge in good health has no usable answer.
MAX_TRIES = 3
# How many texts a local judge gets together.
LOCAL_BATCH_TEXTS = 64
# A process that dies is started again so often within so many seconds.
MAX_DEATHS = 5
DEATH_WINDOW_S = 600.0
# Without an answer for so many seconds a process is taken for stuck.
ANSWER_TIMEOUT_S = 900.0
# Seconds after which the thread checks its state though no message came.
TICK = 1.0


@dataclass(eq=False)
class AnnotationQueue:
    """Items on their way from a reward to a judge and back; for the one thread that holds `lock`, and never waits."""

    capacity: int = 1000
    newest: bool = True
    rate: float = 0.0
    budget: int = 0
    token_budget: int = 0

    def __post_init__(self) -> None:
        # To be held around every call.
        self.lock = threading.Lock()
        # Priority and serial number of what waits and of what is in flight; the highest is next.
        self.waiting: dict[Item, tuple[float, int]] = {}
        self.asking: dict[Item, tuple[float, int]] = {}
        # What has not been looked up in a cache yet.
        self.fresh: list[Item] = []
        # Step from which an answer may be taken, item, value.
        self.answers: deque[tuple[int, Item, Any]] = deque()
        self.counts = dict.fromkeys(COUNTS, 0.0)
        # As an ordered set, the oldest first.
        self._answered: dict[Item, None] = {}
        self._tries: dict[Item, int] = {}
        # What waits, the next one last; None when it must be sorted again.
        self._order: list[Item] | None = None
        self._serial = 0
        # Whether it was said that a budget is spent.
        self._announced = False
        # The step of the last tick, and how many questions were earned and not asked.
        self._now = 0
        self._credit = 0.0

    def offer(self, items: Sequence[Item], priority: Sequence[float] | None = None) -> int:
        """Take in what is new, the newest last; what waits already moves to its new place. How many are new."""
        new = []
        ranks = itertools.repeat(0.0) if priority is None else priority
        for item, rank in zip(items, ranks):
            has_text = all(texts_in(item))
            if item in self._answered or item in self.asking or not has_text:
                continue
            if item not in self.waiting:
                new.append(item)
            self._serial += 1
            serial = self._serial if self.newest else -self._serial
            self.waiting[item] = (float(rank), serial)
            self._order = None
        surplus = len(self.waiting) - self.capacity
        if surplus > 0:
            for item in self._sorted_items()[:surplus]:
                del self.waiting[item]
            del self._sorted_items()[:surplus]
            self.counts["dropped"] += surplus
            new = [item for item in new if item in self.waiting]
            self.fresh = [item for item in self.fresh if item in self.waiting]
        self.fresh += new
        return len(new)

    def tick(self, now: int) -> None:
        """Earn questions by the steps since the last tick."""
        if now > self._now:
            gain = (now - self._now) * self.rate / 1000
            self._now = now
            # No more than one question is saved up, so that fractions of one add up.
            self._credit = min(self._credit + gain, gain + 1)

    def draw(self, most: int) -> list[Item]:
        """The next items to be asked, at most `most`, within budget and rate; they count as being asked from now on."""
        if self.budget:
            most = min(most, self.budget - int(self.counts["answered"]) - len(self.asking))
        if self.rate:
            most = min(most, int(self._credit))
        if self.spent_limit():
            return []
        order = self._sorted_items()
        drawn: list[Item] = []
        while order and len(drawn) < most:
            item = order.pop()
            # None if a cache has answered it meanwhile.
            place = self.waiting.pop(item, None)
            if place is not None:
                self.asking[item] = place
                drawn.append(item)
        return drawn

    def count_asked(self, items: Sequence[Item]) -> None:
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
        """Items and values of the answers that are due."""
        answers: list[tuple[Item, Any]] = []
        while self.answers and self.answers[0][0] <= now:
            _, item, value = self.answers.popleft()
            answers.append((item, value))
        return answers

    def spent_message(self) -> str:
        """Which budget is spent, as a sentence, the first time; "" while there is some left, and afterwards."""
        limit = self.spent_limit()
        if self._announced or not limit:
            return ""
        self._announced = True
        return f"the budget of {limit} is spent, nothing is asked any more"

    def spent_limit(self) -> str:
        """The budget by which nothing is asked any more; "" while there is some left."""
        if 0 < self.budget <= self.counts["answered"]:
            return f"{self.budget:,} labels"
        if 0 < self.token_budget <= self.counts["tokens"]:
            return f"{self.token_budget:,} tokens"
        return ""

    def holds(self, items: Sequence[Item]) -> bool:
        """Whether any of these waits or is being asked about."""
        return any(item in self.waiting or item in self.asking for item in items)

    def metrics(self) -> dict[str, float]:
        counts = dict(self.counts)
        latency = counts.pop("seconds") / max(counts["answered"], 1.0)
        return {**counts, "queued": float(len(self.waiting)), "latency": latency}

    def state_dict(self) -> dict[str, Any]:
        """Everything, as lists and numbers; what is being asked waits again."""
        places = {**self.waiting, **self.asking}
        in_order = sorted(places, key=places.__getitem__)
        return {
            "waiting": [[*texts_in(item), *places[item]] for item in in_order],
            "answers": [[due, *texts_in(item), without_nan(value)] for due, item, value in self.answers],
            "known": [list(texts_in(item)) for item in self._answered],
            "counts": dict(self.counts),
            "serial": self._serial,
            "now": self._now,
            "credit": self._credit,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.waiting = {_item(texts): (rank, serial) for *texts, rank, serial in state["waiting"]}
        self.answers = deque()
        for due, *texts, value in state["answers"]:
            self.answers.append((due, _item(texts), math.nan if value is None else value))
        self._answered = dict.fromkeys(map(_item, state["known"]))
        self.counts = dict(state["counts"])
        self._serial = state["serial"]
        self._now = state["now"]
        self._credit = state["credit"]
        self.asking = {}
        self.fresh = list(self.waiting)
        self._order = None
        self._tries = {}

    def _sorted_items(self) -> list[Item]:
        if self._order is None:
            self._order = sorted(self.waiting, key=self.waiting.__getitem__)
        return self._order

    def _remember(self, item: Item) -> None:
        self._tries.pop(item, None)
        self._answered[item] = None
        if len(self._answered) > MAX_ANSWERED_ITEMS:
            oldest = next(iter(self._answered))
            del self._answered[oldest]


def _item(texts: Iterable[str]) -> Item:
    first, *others = texts
    if not others:
        return first
    return first, others[0]


@dataclass(eq=False)
class Asker:
    """The thread, its process, its cache. A job holds kind, judge, options and concurrency."""

    pending: AnnotationQueue
    job: dict[str, Any]
    cache: str
    probe: float
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        # Whose answers these are, and its notes, once the judge has started.
        self.identity = ""
        self.notes: list[str] = []
        # Why there will never be an answer.
        self.trouble: Exception | None = None
        # How often the process was started again.
        self.restarts = 0
        self.breaker = Breaker(self.probe)
        # The sentence of the latest question without a usable answer.
        self.failure = ""
        # Whether answers are words and not numbers.
        self._words = self.job["kind"] == "goals"
        # A local judge gets many texts together, one batch at a time, and never changes its mind.
        self._local = False
        self._cache: AnswerStore | None = None
        self._worker: JudgeProcess | None = None
        # Whether the worker has sent its greeting.
        self._ready = False
        # Times of the latest deaths, and the time before which the process is not started again.
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS)
        self._restart = 0.0
        # Questions that were sent: number -> items and time.
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
        # A fork has neither thread nor process.
        if os.getpid() != self._owner:
            return
        self._stopping = True
        self._inbox.put(None)
        worker = self._worker
        if worker is not None:
            # The thread may be waiting for it.
            worker.kill()
        self._thread.join()

    def _run(self) -> None:
        try:
            if self.cache:
                self._cache = AnswerStore(self.cache, say=self.say)
            while not self._stopping and self.trouble is None:
                self._run_once()
        except Exception as error:
            # Training must not continue for days without labels because of a mistake in here.
            self.trouble = error
        finally:
            if self._worker is not None:
                self._worker.end()
            if self._cache is not None:
                self._cache.close()

    def _run_once(self) -> None:
        now = time.monotonic()
        if self._worker is None and now >= self._restart:
            try:
                self._worker = JudgeProcess(self.job, self._inbox)
                self._ready = False
            except OSError as error:
                self._handle_death(f"could not be started ({error})", now)
        if self._worker is not None and self._ready:
            with self.pending.lock:
                fresh = [item for item in self.pending.fresh if item in self.pending.waiting]
                self.pending.fresh.clear()
            self._look_up(fresh)
            self._put_questions(now)
            if any(now - sent > ANSWER_TIMEOUT_S for _, sent in self._flight.values()):
                self._worker.kill()
        # Until the next probe, at most; where that time is over there was nothing to probe with.
        timeout = TICK
        if self.breaker.open and self.breaker.until > now:
            timeout = min(self.breaker.until - now, TICK)
        with suppress(queue.Empty):
            message = self._inbox.get(timeout=timeout)
            while message is not None:
                self._handle_message(*message)
                message = self._inbox.get_nowait()

    def _look_up(self, items: Sequence[Item]) -> list[Item]:
        """Answer what the cache holds; returns the other items."""
        if self._cache is None or not items:
            return list(items)
        look_up: Callable[..., dict[Item, Any]] = self._cache.words_of if self._words else self._cache.get
        answers = look_up(self.identity, items)
        with self.pending.lock:
            for item, value in answers.items():
                self.pending.answer(item, value, cached=True)
        unanswered = []
        for item in items:
            if item not in answers:
                unanswered.append(item)
        return unanswered

    def _put_questions(self, now: float) -> None:
        # One batch of many texts at a time, or many questions of one text.
        slots = self.job["concurrency"]
        batch_size = 1
        if self._local:
            slots = 1
            batch_size = LOCAL_BATCH_TEXTS
        while len(self._flight) < slots:
            room = self.breaker.room(now)
            with self.pending.lock:
                drawn = self.pending.draw(batch_size if room is None else room)
            if not drawn:
                return
            # Another run may have asked since they came.
            items = self._look_up(drawn)
            if not items:
                continue
            with self.pending.lock:
                self.pending.count_asked(items)
            self.breaker.note_question()
            self._questions += 1
            self._flight[self._questions] = (items, now)
            assert self._worker is not None
            self._worker.send({"id": self._questions, "items": items})

    def _handle_message(self, worker: JudgeProcess, message: dict[str, Any] | None) -> None:
        if worker is not self._worker:
            return
        if message is None:
            self._worker = None
            self._handle_death(worker.end(), time.monotonic())
        elif "refused" in message:
            # A judge that has run before is reported and started again.
            if self.identity:
                self.say(message["refused"])
            else:
                self.trouble = ValueError(message["refused"])
        elif "identity" in message:
            self.identity = message["identity"]
            self.notes = message["notes"]
            self._local = message["local"]
            self._ready = True
        elif message["id"] in self._flight:
            items, _ = self._flight.pop(message["id"])
            self._take_reply(items, message, time.monotonic())

    def _take_reply(self, items: list[Item], reply: dict[str, Any], now: float) -> None:
        # What a reply cost is shared out evenly among its items.
        share = 1 / len(items)
        seconds = reply["seconds"] * share
        tokens = round(reply["tokens"] * share)
        raw = reply["raw"]
        if len(raw) != len(items):
            raw = [""] * len(items)
        labels = []
        outage_ended = False
        outage_began = False
        self.failure = reply["failure"] or self.failure
        if not all(reply["failed"]):
            outage_ended = self.breaker.note_success(now)
        elif not self._local:
            outage_began = self.breaker.note_failure(now)
        max_tries = 1 if self._local else MAX_TRIES
        with self.pending.lock:
            self.pending.counts["tokens"] += reply["tokens"]
            for item, value, failed, words in zip(items, reply["value"], reply["failed"], raw):
                if failed:
                    # A failure is the text's own only if the judge is well: it replied, or just answered others.
                    blame = bool(words) or self.breaker.streak <= 1
                    self.pending.fail(item, max_tries, blame)
                    continue
                if value is None:
                    value = math.nan
                labels.append(Label(item, value, words, seconds, tokens))
                self.pending.counts["seconds"] += seconds
                self.pending.answer(item, words if self._words else value)
            spent = self.pending.spent_message()
            waiting = len(self.pending.waiting)
        if outage_began:
            self.say(f"{reply['failure']}; trying again in {self.breaker.pause:g} s")
        if outage_ended:
            self.say(f"the judge answers again, {waiting:,} texts wait")
        if spent:
            self.say(spent)
        if self._cache is not None and labels:
            self._cache.put(self.identity, labels)

    def _handle_death(self, how: str, now: float) -> None:
        with self.pending.lock:
            for items, _ in self._flight.values():
                for item in items:
                    self.pending.fail(item, MAX_TRIES)
        self._flight.clear()
        if self.breaker.probing:
            self.breaker.note_failure(now)
        self._restart = now
        if len(self._deaths) == MAX_DEATHS:
            self._restart = max(now, self._deaths[0] + DEATH_WINDOW_S)
        self._deaths.append(now)
        self.restarts += 1
        when = "now"
        if self._restart > now:
            when = f"in {self._restart - now:.0f} s"
        if not self._stopping:
            self.say(f"the process of the judge {how}; it is started again {when}")
