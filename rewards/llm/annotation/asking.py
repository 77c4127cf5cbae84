"""Between a queue of texts and a judge in a process of its own: a thread that waits, so that training does not.

    offer, take  <->  queue  <->  this thread  <->  process of the judge  <->  server
                                  cache, breaker

A judge that fails is held back by a breaker and probed; a process that dies is noticed at once and started again, five
times in ten minutes; what it was asked waits again. Nothing that waits is lost meanwhile, and training continues.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from rewards.llm.annotation.queue import AnnotationQueue
from rewards.llm.annotation.worker import JudgeProcess
from rewards.llm.client import Breaker
from rewards.llm.store import AnswerStore, Item, Label

TRIES = 3  # of a text that a judge in good health has no usable answer to
BATCH = 64  # texts that a local judge gets together
DEATHS, SPAN = 5, 600.0  # so many in so many seconds
PATIENCE = 900.0  # seconds without an answer after which a process is taken for stuck
TICK = 1.0  # seconds after which the thread checks its state though no message came


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

    @property
    def worker_pid(self) -> int | None:
        """The process of the judge, None while there is none."""
        return getattr(self._worker, "pid", None)

    def wake(self) -> None:
        """There may be something to ask."""
        if self._inbox.empty():
            self._inbox.put(None)

    def close(self) -> None:
        """End the thread and the process of the judge."""
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
        try:
            message = self._inbox.get(timeout=min(wait, TICK) if wait > 0 else TICK)
        except queue.Empty:
            return
        while message is not None:
            self._hear(*message)
            try:
                message = self._inbox.get_nowait()
            except queue.Empty:
                return

    def _look_up(self, items: Sequence[Item]) -> list[Item]:
        """Answer what the cache knows; returns the others."""
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
        labels = []
        share = 1 / len(items)
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
