"""Asks a judge about texts beside training: what is new goes in, labels come out later, nothing ever waits.

    annotator = Annotator("openai", {"model": "qwen3-8b", "goal": "..."}, cache="labels.sqlite", rate=20)
    annotator.offer(["You kill the newt!", "It's solid stone."], now)     new texts to be judged
    for text, value in annotator.take(now): ...                           what has been judged since

Three clocks say when an answer comes:

    wall         when it is there: the judge works in a process of its own (`rewards.llm.annotation.asking`)
    steps        exactly `delay` steps after the question; local judges only. A study run twice gives the same numbers
    transcript   at the step at which a recorded run got it; nobody is asked. A run with a language model, replayed

Source: Zheng et al. 2024, "Online Intrinsic Rewards for Decision Making Agents from Large Language Model Feedback",
arXiv 2410.23022 (ONI), section 3. Differences: what waits is bounded and asked once; an unusable answer is no label,
but asked again; a server or a process that dies is noticed, waited for, and nothing is lost; budgets; a cache; replay.
When it fails: a judge slower than texts get stale labels only new ones; see `dropped` and `queued` among the metrics.
"""

from __future__ import annotations

import functools
import json
import sys
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

from rewards.llm.annotation.asking import Asker
from rewards.llm.annotation.queue import Item, Ledger
from rewards.llm.annotation.transcript import Transcript, read_transcript
from rewards.llm.annotation.worker import put
from rewards.llm.judges.base import JUDGES, Judge, make_judge
from rewards.named import check_named

CLOCKS = ("wall", "steps", "transcript")
ORDERS = ("newest", "oldest")


class Annotator:
    """A judge beside training; `offer` and `take` never wait for it.

    Args:
        judge: one of `rewards.llm.judges.base.JUDGES`.
        judge_options: its options.
        pairs: items are pairs of texts, of which the judge says the better; otherwise single texts.
        clock: wall, steps or transcript, see above.
        delay: environment steps from question to delivery, at least 0; clock=steps alone.
        rate: items asked per 1,000 environment steps; 0 for no limit.
        budget: answers of the judge in total, 0 for no limit. Cached ones are free.
        token_budget: tokens in total, 0 for no limit; exceeded by at most the questions in the air.
        queue: items that may wait, at least 1; the oldest are let go of.
        concurrency: questions put side by side to a judge that is not local, at least 1.
        cache: SQLite file of answers, shared by any number of runs; "" for none. clock=wall alone.
        transcript: JSONL file of what is delivered, written, or with clock=transcript read; "" for none.
        order: newest or oldest first among items of equal priority.
        probe: seconds until a judge that cannot be reached is asked again, above 0.
        seed: for a judge that draws.

    Raises:
        ValueError: for a value out of range, an unknown judge or option; from `offer` and `take`, once the process of
            the judge has started, for a value that the judge refuses.
    """

    def __init__(
        self,
        judge: str,
        judge_options: dict[str, Any] | None = None,
        *,
        pairs: bool = False,
        clock: str = "wall",
        delay: int = 0,
        rate: float = 0.0,
        budget: int = 0,
        token_budget: int = 0,
        queue: int = 1000,
        concurrency: int = 8,
        cache: str = "",
        transcript: str = "",
        order: str = "newest",
        probe: float = 30.0,
        seed: int = 0,
    ) -> None:
        _check(clock, delay, rate, budget, token_budget, queue, concurrency, cache, transcript, order, probe)
        self.pairs, self.clock, self.delay = pairs, clock, delay
        self.events: deque[str] = deque(maxlen=100)
        self._ledger = Ledger(queue, order == "newest", rate, budget, token_budget)
        options = {"seed": seed, **(judge_options or {})}
        self._say = functools.partial(_say, self.events)  # no method: the thread must not keep this object alive
        self._judge: Judge | None = None
        self._asker: Asker | None = None
        self._start = functools.partial(Asker, self._ledger, judge, options, concurrency, cache, probe, self._say)
        self._identity = ""
        self._replay: list[tuple[int, Item, float]] = []
        self._position = 0  # lines of the transcript delivered so far
        self._transcript: Transcript | None = None
        if clock == "transcript":
            self._replay = read_transcript(transcript, pairs)
            return
        check_named("judge", JUDGES, judge, **options)
        if transcript:
            self._transcript = Transcript(transcript, self._say)
        if clock == "steps":
            self._judge = make_judge(judge, **options)
            if not self._judge.local:
                raise ValueError(
                    f"judge={judge} answers when it likes and clock=steps asks for answers at a step; use clock=wall, "
                    "or record a run with it and replay it with clock=transcript"
                )
            self._identity = self._judge.identity
        else:
            try:
                json.dumps(options)  # how they reach the judge's process
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"judge_options cannot be written as JSON ({error}); give numbers, text, lists"
                ) from None

    def offer(self, items: Sequence[Item], now: int, priority: Sequence[float] | None = None) -> int:
        """Take in what is new: neither known, nor in the air, nor empty. Never waits.

        Args:
            items: texts, or pairs of texts; the last is the newest.
            now: environment steps seen so far.
            priority: of each item; the highest is asked first. None for equal ones.

        Returns:
            How many were new and taken in; 0 in a replay.
        """
        if self.clock == "transcript" or not len(items):
            return 0
        if isinstance(items[0], str) == self.pairs:
            raise ValueError(f"pairs={self.pairs} and the first item is {items[0]!r:.80}; offer what was agreed on")
        with self._ledger.lock:
            self._ledger.tick(now)
            taken = self._ledger.offer(items, priority)
        self._ask(now)
        return taken

    def take(self, now: int) -> list[tuple[Item, float]]:
        """The answers that came since the last call, in [0, 1], NaN for unsure. Never waits."""
        if self.clock == "transcript":
            begin = self._position
            while self._position < len(self._replay) and self._replay[self._position][0] <= now:
                self._position += 1
            taken = [(item, value) for _, item, value in self._replay[begin : self._position]]
            self._ledger.counts["answered"] += len(taken)
            self._ledger.counts["unsure"] += sum(value != value for _, value in taken)
            return taken
        with self._ledger.lock:
            self._ledger.tick(now)
        self._ask(now)
        with self._ledger.lock:
            taken = self._ledger.take(now)
        if self._asker is not None:
            self._identity = self._asker.identity or self._identity
        self._position += len(taken)
        if self._transcript is not None:
            self._transcript.write(now, taken, self._identity)
        return taken

    def metrics(self) -> dict[str, float]:
        """Totals, what waits now (queued), whether the breaker is open, mean seconds of an answer (latency)."""
        with self._ledger.lock:
            metrics = self._ledger.metrics()
        asker = self._asker
        return {
            **metrics,
            "breaker": float(asker is not None and asker.breaker.open),
            "restarts": 0.0 if asker is None else float(asker.restarts),
        }

    @property
    def worker_pid(self) -> int | None:
        """The process of the judge, None while there is none."""
        return None if self._asker is None else self._asker.worker_pid

    def notes(self) -> list[str]:
        """Sentences a user should read: whose opinion this is, and what happened to it."""
        if self.clock == "transcript":
            return [f"labels are those of a recorded run, {len(self._replay):,} in all; nobody is asked"]
        judge = self._judge.notes() if self._judge is not None else []
        return judge + (self._asker.notes if self._asker is not None else []) + list(self.events)

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs: nothing is asked twice, nothing that waits or is on its way is lost."""
        with self._ledger.lock:
            state = self._ledger.state_dict()
        return {"ledger": state, "position": self._position, "identity": self._identity}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with self._ledger.lock:
            self._ledger.load_state_dict(state["ledger"])
        self._position, self._identity = state["position"], self._identity or state["identity"]
        if self._transcript is not None:
            self._transcript.close()
            self._transcript.lines = self._position

    def close(self) -> None:
        """End the judge and its process; what waits is still in the state."""
        if self._judge is not None:
            self._judge.close()
        if self._asker is not None:
            self._asker.stop()
        if self._transcript is not None:
            self._transcript.close()

    def _ask(self, now: int) -> None:
        """See to it that what may be asked by now is asked."""
        if self.clock == "steps":
            self._ask_here(now)
            return
        if self._asker is None:
            if not self._ledger.waiting:
                return  # a process is started only when there is something to ask
            self._asker = self._start()
            weakref.finalize(self, self._asker.stop)  # also at exit
        if self._asker.trouble is not None:
            raise self._asker.trouble
        self._asker.wake()

    def _ask_here(self, now: int) -> None:
        judge, ledger = self._judge, self._ledger
        assert judge is not None
        ledger.fresh.clear()  # there is no cache
        items = ledger.draw(ledger.queue)
        if items:
            ledger.sent(items)
            answers = put(judge, items)
            ledger.counts["tokens"] += answers.tokens
            for item, value, failed in zip(items, answers.value.tolist(), answers.failed.tolist()):
                if failed:
                    ledger.fail(item, 1)  # it would say the same again
                else:
                    ledger.answer(item, value, now + self.delay)
        if spent := ledger.spent():
            self._say(spent)


def _say(events: deque[str], sentence: str) -> None:
    events.append(sentence)
    print(f"annotator: {sentence}", file=sys.stderr, flush=True)


def _check(
    clock: str,
    delay: int,
    rate: float,
    budget: int,
    token_budget: int,
    queue: int,
    concurrency: int,
    cache: str,
    transcript: str,
    order: str,
    probe: float,
) -> None:
    for name, given, words in (("clock", clock, CLOCKS), ("order", order, ORDERS)):
        if given not in words:
            raise ValueError(f"{name}={given!r} is unknown; choose among {', '.join(words)}")
    numbers = {"delay": delay, "rate": rate, "budget": budget, "token_budget": token_budget}
    for name, number in numbers.items():
        if not 0 <= number < float("inf"):
            raise ValueError(f"{name}={number} is out of range; give 0 or more")
    for name, number in {"queue": queue, "concurrency": concurrency}.items():
        if number < 1:
            raise ValueError(f"{name}={number} is out of range; give at least 1")
    if not probe > 0:
        raise ValueError(f"probe={probe} is out of range; give seconds above 0")
    if delay and clock != "steps":
        raise ValueError(f"delay={delay} counts steps, and clock={clock}; use clock=steps, or leave delay at 0")
    if cache and clock != "wall":
        raise ValueError(f"cache={cache!r} would make what clock={clock} delivers hang on it; leave it empty")
    if clock == "transcript" and not transcript:
        raise ValueError("clock=transcript replays a file and transcript is empty; give the file that a run wrote")
