"""What all judges share that ask a model on a server and keep its answers: each question is asked once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from envs.settings import setting
from rewards.llm.client import Breaker, Chat, Endpoint, JudgeError, in_parallel
from rewards.llm.judges.base import Judge
from rewards.llm.store import AnswerStore, Label

KEPT = 1_000_000  # characters of an answer
T = TypeVar("T")


@dataclass(eq=False)
class ModelJudge(Endpoint, Judge):
    """Base class: a subclass calls `ask_kept` with its questions."""

    answers: str = setting("", "a file of answers (*.sqlite), read and added to; empty keeps them in memory only")
    failures: int = setting(5, "failed questions in a row after which the server is not asked for a while", low=1)
    pause: float = setting(60.0, "seconds of that while", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.chat, self.breaker = Chat(self), Breaker(self.pause, self.failures)
        self.store = AnswerStore(self.answers, words=KEPT)

    def ask_kept(self, questions: Mapping[str, T], ask: Callable[[T], str]) -> dict[str, str | JudgeError]:
        """Answers to questions by their keys: kept ones, and those that `ask` returns, which are kept; or why not."""

        def answer(key: str) -> str:
            words = ask(questions[key])
            self.store.put(self.identity, [Label(key, raw=words)])
            return words

        kept = self.store.words_of(self.identity, list(questions))
        new = [key for key in questions if key not in kept]
        asked = in_parallel(answer, new, self.concurrency, self.breaker) if new else []
        return {**{str(key): words for key, words in kept.items()}, **dict(zip(new, asked))}

    def close(self) -> None:
        self.chat.close()
        self.store.close()
