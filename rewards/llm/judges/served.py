"""Judges whose answers come from a server: `ServedJudge` asks it, `ModelJudge` also keeps what it answered.

An answer that was kept is not asked for again, in this run or in the next one that is given the same file. One that a
judge cannot read is asked for again.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from lodestar.settings import setting
from rewards.llm.client import Breaker, Chat, Endpoint, JudgeError, Reply, in_parallel
from rewards.llm.judges.base import Answers, Judge
from rewards.llm.store import AnswerStore, Label

T = TypeVar("T")
R = TypeVar("R")
# The longest answer that is kept.
MAX_STORED_CHARACTERS = 1_000_000


@dataclass(eq=False)
class ServedJudge(Endpoint, Judge):
    """Base class of judges that ask a server."""

    name = "openai"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.chat = Chat(self)

    def reach(self) -> str:
        return self.chat.reach()

    def close(self) -> None:
        self.chat.close()


@dataclass(eq=False)
class ModelJudge(ServedJudge):
    """Base class of those that keep its answers: a subclass calls `ask_kept` with its questions."""

    answers: str = setting("", "a file of answers (*.sqlite), read and added to; empty keeps them in memory only")
    failures: int = setting(5, "failed questions in a row after which the server is not asked for a while", ">= 1")
    pause: float = setting(60.0, "seconds of that while", ">= 0")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.breaker = Breaker(self.pause, self.failures)
        self.store = AnswerStore(self.answers, words=MAX_STORED_CHARACTERS)

    def ask_kept(
        self, questions: Mapping[str, T], ask: Callable[[T], str], read: Callable[[str], R]
    ) -> tuple[dict[str, R], dict[str, R | JudgeError]]:
        """What `read` makes of answers to questions by their keys: of kept ones, and of those that `ask` returns now,
        or why not. One that `read` refuses is asked for again.
        """

        def answer(key: str) -> R:
            words = ask(questions[key])
            self.store.put(self.identity, [Label(key, raw=words)], instead=key in stored)
            return read(words)

        stored = self.store.words_of(self.identity, list(questions))
        readable: dict[str, R] = {}
        for key, words in stored.items():
            with suppress(KeyError, ValueError, TypeError, AttributeError, RecursionError):
                readable[str(key)] = read(words)
        new = [key for key in questions if key not in readable]
        answers: list[R | JudgeError] = []
        if new:
            answers = in_parallel(answer, new, self.concurrency, self.breaker)
        return readable, dict(zip(new, answers))

    def reach(self) -> str:
        # The answers in the file may be all that is needed.
        if len(self.store):
            return ""
        return super().reach()

    def close(self) -> None:
        super().close()
        self.store.close()


def gather_answers(one: Callable[[Any, Reply], float], asked: Sequence[Any], concurrency: int) -> Answers:
    """The answers to B questions, so many at a time; `one` returns the value of each, with words and cost in the reply,
    or raises JudgeError.
    """
    replies = [Reply() for _ in asked]
    outcomes = in_parallel(lambda question: one(*question), list(zip(asked, replies)), concurrency)
    answers = Answers.failures(len(replies), "")
    for row, outcome in enumerate(outcomes):
        if isinstance(outcome, JudgeError):
            answers.failure = answers.failure or str(outcome)
        else:
            answers.value[row] = outcome
            answers.failed[row] = False
    answers.tokens = sum(reply.tokens for reply in replies)
    answers.raw = [reply.text for reply in replies]
    return answers
