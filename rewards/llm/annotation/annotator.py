"""Asks a judge about texts beside training: new texts go in, labels come out later, and training never waits.

    annotator = Annotator("openai", {"model": "qwen3-4b-instruct", "goal": "..."}, cache="labels.sqlite", rate=20)
    annotator.offer(["You kill the newt!", "It's solid stone."], now)     new texts to be judged
    for text, value in annotator.take(now): ...                           what has been judged since

Three clocks decide when an answer is delivered:

    wall         when it is there: the judge works in a process of its own (`rewards.llm.annotation.asking`)
    steps        exactly `delay` steps after the question; local judges only. A study run twice gives the same numbers
    transcript   at the step at which a recorded run got it; no judge is asked. A run with a language model, replayed

Source: Zheng et al. 2024, "Online Intrinsic Rewards for Decision Making Agents from Large Language Model Feedback",
arXiv 2410.23022 (ONI), section 3.
Differences: the queue is bounded and a text is asked once; an unusable answer is no label, but asked again; a server or
a process that dies is noticed, waited for, and nothing is lost; budgets; a cache; replay.
When it fails: a judge slower than the texts labels only new ones; see `dropped` and `queued` among the metrics.
"""

import dataclasses
import functools
import itertools
import json
import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from lodestar.files import make_parent
from lodestar.settings import Settings, setting
from rewards.base import JudgeUse
from rewards.llm.annotation.asking import AnnotationQueue, Asker
from rewards.llm.annotation.worker import ask_judge
from rewards.llm.judges.base import TextJudge, check_judge, make_judge
from rewards.llm.judges.served import ServedJudge
from rewards.llm.store import Item, label_in, read_rows, row_of

# Seconds without any answer after which nothing is waited for, and between two looks.
WAIT_S = 120.0
WAIT_TICK_S = 0.002


@dataclass(kw_only=True)
class AnswerLimits(Settings):
    """How much may be asked, and where answers are kept: options of whatever asks a judge."""

    budget: int = setting(0, "answers in total, 0 for no limit; cached ones are free", ">= 0")
    token_budget: int = setting(0, "tokens in total, 0 for no limit; exceeded by at most what is in flight", ">= 0")
    cache: str = setting("", 'SQLite file of answers, shared by any number of runs; "" for none. clock=wall alone')


@dataclass(kw_only=True)
class AnswerTimes(AnswerLimits):
    """The same beside training: when it is asked, and when answers come."""

    clock: str = setting(
        "auto",
        "wall (answers come when they come), steps (after `delay`, of judges in this process), or transcript (as that "
        "file recorded); auto is steps where the judge allows it, else wall",
        "auto | wall | steps | transcript",
    )
    delay: int = setting(0, "environment steps from question to answer, with clock=steps", ">= 0")
    rate: float = setting(0.0, "questions per 1,000 environment steps; 0 for no limit", ">= 0")
    transcript: str = setting(
        "", "JSONL file in which the labels of this run are recorded, or from which it is replayed"
    )

    def times(self) -> dict[str, Any]:
        """The options of this group alone."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(AnswerTimes)}


@dataclass(eq=False, repr=False)
class Annotator(AnswerTimes):
    """A judge beside training. Raises ValueError for a value out of range, an unknown judge or option, and for what a
    judge on a server refuses; `offer` and `take` for what another judge refuses in its process.
    """

    judge: str = setting(help="one of the judges of its kind")
    judge_options: dict[str, Any] | None = setting(None, "its options")
    kind: str = setting(
        "texts",
        "texts, windows of frames, principles, or goals, whose answers are words",
        "texts | windows | principles | goals",
    )
    pairs: bool = setting(False, "whether items are pairs of texts, of which the judge names the better")
    clock: str = dataclasses.field(default="wall", kw_only=True)
    queue: int = setting(1000, "items that may wait; the oldest are dropped", ">= 1")
    concurrency: int = setting(8, "questions sent at the same time to a judge that is not local", ">= 1")
    order: str = setting("newest", "newest or oldest first among items of equal priority", "newest | oldest")
    probe: float = setting(30.0, "seconds until a judge that cannot be reached is asked again", "> 0")
    seed: int = setting(0, "for a judge that draws")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clock == "auto":
            is_local = check_judge(self.judge, self.kind, **(self.judge_options or {})).local
            self.clock = "steps" if is_local and not self.cache else "wall"
        clock = self.clock
        if self.delay and clock != "steps":
            raise ValueError(f"delay={self.delay} counts steps, and clock={clock}; use clock=steps, or delay=0")
        if self.cache and clock != "wall":
            raise ValueError(f"cache={self.cache!r} would change what clock={clock} delivers; leave it empty")
        if clock == "transcript" and not self.transcript:
            raise ValueError("clock=transcript replays a file and transcript is empty; give the file that a run wrote")
        self.events: deque[str] = deque(maxlen=100)
        self._queue = AnnotationQueue(self.queue, self.order == "newest", self.rate, self.budget, self.token_budget)
        options = {"seed": self.seed, **(self.judge_options or {})}
        # Not a method, because the thread must not keep this object alive.
        self._say = functools.partial(_log_event, self.events)
        self._judge: TextJudge | None = None
        self._asker: Asker | None = None
        self._job: dict[str, Any] = {"kind": self.kind, "judge": self.judge, "options": options}
        self._identity = ""
        # The judge's notes until its process has sent them.
        self._judge_notes: list[str] = []
        # A transcript that is replayed, and how many of its lines were delivered so far.
        self._replay: list[tuple[int, Item, float]] = []
        self._position = 0
        self._transcript: Transcript | None = None
        if self.clock == "transcript":
            self._replay = read_transcript(self.transcript, self.pairs)
            return
        judge_class = check_judge(self.judge, self.kind, **options)
        # The judge knows what it, or its server, can take: where it or its options say so, that counts.
        self._job["concurrency"] = options.get("concurrency", judge_class.slots or self.concurrency)
        if self.transcript:
            self._transcript = Transcript(self.transcript, self._say)
        if self.clock == "steps":
            if not judge_class.local:
                raise ValueError(f"judge={self.judge} answers when it likes; use clock=wall, or clock=transcript")
            judge: TextJudge = make_judge(self.judge, self.kind, **options)
            self._judge = judge
            self._identity = judge.identity
        else:
            # As JSON they reach the judge's process.
            try:
                json.dumps(options)
            except (TypeError, ValueError) as error:
                raise ValueError(f"judge_options are no JSON ({error}); give numbers, text, lists") from None
            # A judge on a server is made at once, so its values are refused now and not by its process.
            if issubclass(judge_class, ServedJudge):
                make_judge(self.judge, self.kind, **options).close()

    def offer(self, items: Sequence[Item], now: int, priority: Sequence[float] | None = None) -> int:
        """Take in what is new among texts or pairs at step `now`, the newest last; how many. High priorities are asked
        first.
        """
        if self.clock == "transcript" or not len(items):
            return 0
        if isinstance(items[0], str) == self.pairs:
            raise ValueError(f"pairs={self.pairs} and the first item is {items[0]!r:.80}; offer what pairs= says")
        with self._queue.lock:
            self._queue.tick(now)
            new = self._queue.offer(items, priority)
        self._ask(now)
        return new

    def take(self, now: int) -> list[tuple[Item, Any]]:
        """The answers that came since the last call, in [0, 1], NaN for unsure; or words. Never waits."""
        with self._queue.lock:
            self._queue.tick(now)
            # A recorded run's answers come at the steps at which it got them.
            for due, item, value in itertools.islice(self._replay, self._position, None):
                if due > now:
                    break
                self._queue.answer(item, value)
        self._ask(now)
        with self._queue.lock:
            answers = self._queue.take(now)
        if self._asker is not None:
            self._identity = self._asker.identity or self._identity
        self._position += len(answers)
        if self._transcript is not None:
            self._transcript.write(now, answers, self._identity)
        return answers

    def wait(self, items: Sequence[Item]) -> None:
        """Until each of these has an answer or was given up; not longer than the judge is asked, or says anything."""
        if self._asker is None:
            return
        until = time.monotonic() + WAIT_S
        answered = -1.0
        while time.monotonic() < until:
            if self._asker.trouble is not None or self._asker.breaker.open:
                return
            with self._queue.lock:
                if self._queue.spent_limit() or not self._queue.holds(items):
                    return
                count = self._queue.counts["answered"]
            if count > answered:
                answered = count
                until = time.monotonic() + WAIT_S
            time.sleep(WAIT_TICK_S)

    def metrics(self) -> dict[str, float]:
        """Totals, what waits now (queued), whether the breaker is open, mean seconds of an answer (latency)."""
        with self._queue.lock:
            metrics = self._queue.metrics()
        asker = self._asker
        metrics["breaker"] = float(asker is not None and asker.breaker.open)
        metrics["restarts"] = 0.0 if asker is None else float(asker.restarts)
        return metrics

    def judge_use(self) -> JudgeUse:
        """Of the whole run, also where it was resumed."""
        with self._queue.lock:
            counts = dict(self._queue.counts)
        sure = counts["answered"] + counts["cached"] - counts["unsure"]
        use = {name: int(counts[name]) for name in ("asked", "answered", "cached")}
        return JudgeUse(**use, labels=int(sure), failure=self.failure)

    def preflight(self) -> str:
        if self.clock != "wall":
            return ""
        with closing(make_judge(self.judge, self.kind, **self._job["options"])) as judge:
            # The judge's own process greets too late for the notes that a run begins with.
            self._judge_notes = judge.notes()
            return str(judge.reach())

    @property
    def failure(self) -> str:
        return "" if self._asker is None else self._asker.failure

    def notes(self) -> list[str]:
        if self.clock == "transcript":
            return [f"labels are those of a recorded run, {len(self._replay):,} in all; no judge is asked"]
        notes = self._judge_notes
        if self._judge is not None:
            notes = self._judge.notes()
        elif self._asker is not None:
            notes = self._asker.notes or notes
        return [*notes, *self.events]

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs: nothing is asked twice, nothing that waits or is in flight is lost."""
        with self._queue.lock:
            state = self._queue.state_dict()
        return {"queue": state, "position": self._position, "identity": self._identity}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with self._queue.lock:
            self._queue.load_state_dict(state["queue"])
        self._position = state["position"]
        self._identity = self._identity or state["identity"]
        if self._transcript is not None:
            self._transcript.close()
            self._transcript.lines = self._position

    def close(self) -> None:
        for part in (self._judge, self._asker, self._transcript):
            if part is not None:
                part.close()

    def _ask(self, now: int) -> None:
        if self.clock == "steps":
            self._ask_here(now)
            return
        if self._asker is None:
            # A process is started only when there is something to ask.
            if not self._queue.waiting:
                return
            self._asker = Asker(self._queue, self._job, self.cache, self.probe, self._say)
            # It ends with this object, and at exit.
            weakref.finalize(self, self._asker.close)
        if self._asker.trouble is not None:
            raise self._asker.trouble
        self._asker.wake()

    def _ask_here(self, now: int) -> None:
        judge = self._judge
        queue = self._queue
        assert judge is not None
        # There is no cache in which what is new could be looked up.
        queue.fresh.clear()
        items = queue.draw(queue.capacity)
        if items:
            queue.count_asked(items)
            answers = ask_judge(judge, items)
            queue.counts["tokens"] += answers.tokens
            for item, value, failed in zip(items, answers.value.tolist(), answers.failed.tolist()):
                if failed:
                    # It would answer the same again, so one try is enough.
                    queue.fail(item, 1)
                else:
                    queue.answer(item, value, now + self.delay)
        spent = queue.spent_message()
        if spent:
            self._say(spent)


def _log_event(events: deque[str], sentence: str) -> None:
    events.append(sentence)
    print(f"annotator: {sentence}", file=sys.stderr, flush=True)


class Transcript:
    """The labels of a run in order of delivery, a file that is read by a replay; one JSON object a line:

        {"now": 2048, "text": "You kill the newt!", "other": null, "value": 1.0, "judge": "rules nethack 1"}

    `now` is the environment step at which the run got it. What stands there from another run is moved to `path.1` ...;
    a file that cannot be written is reported, one that is removed meanwhile written again. To resume, set `lines`, how
    many belong to this run: what was written after that is cut off.
    """

    def __init__(self, path: str | Path, say: Callable[[str], None]) -> None:
        self.path = Path(path)
        self.lines = 0
        self._say = say
        self._file: IO[str] | None = None
        self._broken = False

    def write(self, now: int, delivered: Sequence[tuple[Item, float]], judge: str) -> None:
        if self._broken:
            return
        try:
            # A run without a single label leaves an empty file: that is what a replay of it needs.
            if self._file is None:
                self._file = self._open()
            if not delivered:
                return
            # The file that is open may no longer be the one at the path.
            status = os.fstat(self._file.fileno())
            if not (self.path.exists() and os.path.samestat(self.path.stat(), status)):
                self._file = self._rescue(self._file)
            for item, value in delivered:
                line = {"now": int(now), **row_of(item, value), "judge": judge}
                self._file.write(json.dumps(line) + "\n")
            self._file.flush()
            self.lines += len(delivered)
        except OSError as error:
            self._broken = True
            self._say(f"the transcript {self.path} cannot be written ({error}); the run continues without it")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> IO[str]:
        make_parent(self.path)
        if self.lines:
            self._cut()
        elif self.path.exists() and self.path.stat().st_size:
            candidates = (Path(f"{self.path}.{number}") for number in itertools.count(1))
            backup = next(path for path in candidates if not path.exists())
            os.rename(self.path, backup)
            self._say(f"the transcript of an earlier run was moved to {backup}")
        return open(self.path, "a+", encoding="ascii")

    def _rescue(self, file: IO[str]) -> IO[str]:
        """A new file with the lines of the one that was removed, which lives until it is closed."""
        with file:
            file.seek(0)
            lines = file.read()
        make_parent(self.path)
        self.path.write_text(lines, encoding="ascii")
        self._say(f"the transcript {self.path} was removed while it was in use; it was written anew")
        return open(self.path, "a+", encoding="ascii")

    def _cut(self) -> None:
        """Cut off what was written after the checkpoint that is resumed, and a last line without an end."""
        self.path.touch()
        lines = self.path.read_bytes().splitlines(True)[: self.lines]
        lines = [line for line in lines if line.endswith(b"\n")]
        if len(lines) < self.lines:
            self._say(
                f"the transcript {self.path} holds {len(lines)} of the {self.lines} labels that the run has had; "
                "a replay of it will differ from the run"
            )
            self.lines = len(lines)
        os.truncate(self.path, sum(map(len, lines)))


def read_transcript(path: str | Path, pairs: bool = False) -> list[tuple[int, Item, float]]:
    """The lines of a transcript: (now, item, value), NaN for unsure; ValueError for a line that cannot be used."""

    def parse(row: dict[str, Any]) -> tuple[int, Item, float]:
        item, value = label_in(row)
        if isinstance(item, str) == pairs:
            raise ValueError("the other kind")
        return int(row["now"]), item, value

    kind = "a pair (now, text, other, value)" if pairs else "a text (now, text, value)"
    return list(read_rows(path, parse, f"no label of {kind}; repair or delete the line"))
