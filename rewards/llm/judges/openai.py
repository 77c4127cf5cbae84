"""A language model behind any OpenAI-compatible server says which captions tell of progress.

One question a text, several at the same time: servers put questions that come together into one batch by themselves.
The answer is JSON that is checked here, a short reason first and then a word; what does not fit is a failure and never
a label, and "unsure" is an answer of its own (NaN).

Source: Klissarov et al. 2023, "Motif", arXiv 2310.00166 (which of two captions is better?); Zheng et al. 2024, "ONI",
arXiv 2410.23022 (is a caption helpful?).
Differences from the sources:
  - the questions are worded by us, in `prompts/`; answers are words checked against a schema, where ONI looks for a
    nonsense word anywhere in the text and takes anything else for "not helpful";
  - neutral and harmful are told apart in the question, and are both worth 0;
  - a caption is quoted, so that what stands in it cannot pass for part of the question (`prompts.py`);
  - `both_orders` asks about a pair twice, against a preference for a position; disagreement is unsure.

When it fails: a model that knows nothing of the world; captions that mean something only in their context; text that an
agent can write and that persuades the model from within its quotation, which no prompt rules out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from rewards.llm.client import Chat, JudgeError, Said
from rewards.llm.judges import prompts
from rewards.llm.judges.base import Answers, Judge

VERSION = 1  # of the two schemas
LABELS = {"helpful": 1.0, "neutral": 0.0, "harmful": 0.0, "unsure": np.nan}
BETTER = {"first": 0.0, "equal": 0.5, "second": 1.0, "unsure": np.nan}
NOTHING = prompts.quote("")
LONGEST = 2000  # characters that are kept of what was said


def _schema(key: str, words: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"reason": {"type": "string"}, key: {"type": "string", "enum": list(words)}},
        "required": ["reason", key],
        "additionalProperties": False,
    }


class OpenAI(Judge):
    """Asks `url` about each text; safe to use from several threads.

    Args:
        model: its name on the server.
        url: the API's root.
        goal: what is wanted; "" for what the world's file says.
        world: family of the texts, whose knowledge stands in the question if there is a file of it.
        key: the environment variable with the API key.
        reworded: whether the second wording of the question is used, to see how much hangs on the first.
        both_orders: whether pairs are asked about in both orders.
        concurrency: questions that one call asks at the same time, in [1, 64].
        attempts: how often a question is tried, at least 1.
        timeout: seconds for one attempt.
        connect: seconds until a connection must stand.
        backoff: seconds of the first wait between attempts.
        max_tokens: length of an answer, tokens.
        body: more of the request's body; None takes an entry out, as in {"max_tokens": None}.

    Raises:
        ValueError: for a value out of range, or no goal at all.
    """

    name = "openai"

    def __init__(
        self,
        model: str,
        url: str = "http://localhost:8000/v1",
        goal: str = "",
        world: str = "",
        key: str = "OPENAI_API_KEY",
        reworded: bool = False,
        both_orders: bool = False,
        concurrency: int = 8,
        attempts: int = 4,
        timeout: float = 20.0,
        connect: float = 2.0,
        backoff: float = 1.0,
        max_tokens: int = 256,
        body: dict[str, Any] | None = None,
    ) -> None:
        known = prompts.world(world)
        goal = goal.strip() or known.goal
        if not goal:
            raise ValueError(f'judge openai: nothing is known of world={world!r}; say what is wanted in goal="..."')
        if not 1 <= concurrency <= 64:
            raise ValueError(f"judge openai: concurrency={concurrency} is out of range; give 1 to 64 questions")
        more = {"temperature": 0, "max_tokens": max_tokens, **(body or {})}
        options = {name: value for name, value in more.items() if value is not None}
        self.chat = Chat(
            model, url, key=key, attempts=attempts, timeout=timeout, connect=connect, backoff=backoff, options=options
        )
        self.both_orders, self.concurrency = both_orders, concurrency
        self._told = {"goal": goal, "knowledge": known.knowledge}
        wording = "_reworded" if reworded else ""
        version, self._label = prompts.question(f"label{wording}")
        version_too, self._compare = prompts.question(f"compare{wording}")
        asked = json.dumps([self._label, self._compare, self._told, options], sort_keys=True)
        self._identity = (
            f"openai {model} label{wording}={version} compare{wording}={version_too} schema={VERSION} "
            f"orders={1 + both_orders} asked={hashlib.sha256(asked.encode()).hexdigest()[:12]}"
        )

    @property
    def identity(self) -> str:
        return self._identity

    def label(self, texts: Sequence[str]) -> Answers:
        """A text of which nothing can be seen is not asked about: unsure."""
        modalities = [prompts.quote(text) for text in texts]
        asked = [[prompts.fill(self._label, caption=one, **self._told)] if one != NOTHING else [] for one in modalities]
        return self._all(asked, "label", LABELS, unasked=np.nan)

    def compare(self, first: Sequence[str], second: Sequence[str]) -> Answers:
        """Texts that look alike are not asked about: equal."""
        modalities = [(prompts.quote(one), prompts.quote(two)) for one, two in zip(first, second, strict=True)]
        orders = [((one, two), (two, one))[: 1 + self.both_orders] if one != two else () for one, two in modalities]
        asked = [[prompts.fill(self._compare, first=x, second=y, **self._told) for x, y in order] for order in orders]
        return self._all(asked, "better", BETTER, unasked=0.5)

    def notes(self) -> list[str]:
        return [f"labels are those of {self.chat.model} at {self.chat.url}, asked for: {self._told['goal']}"]

    def close(self) -> None:
        self.chat.close()

    def _all(self, asked: Sequence[Sequence[str]], key: str, words: dict[str, float], unasked: float) -> Answers:
        """The answers to B items of no, one or two questions each."""
        schema = _schema(key, list(words))

        def one(questions: Sequence[str]) -> tuple[float, str, int, str]:
            return self._one(questions, key, schema, words) if questions else (unasked, "", 0, "")

        if len(asked) == 1:
            answers = [one(asked[0])]
        else:
            executor = ThreadPoolExecutor(self.concurrency)
            try:
                answers = list(executor.map(one, asked))
            finally:  # an interruption does not wait for a slow server
                executor.shutdown(wait=False, cancel_futures=True)
        failures = [failure for _, failure, _, _ in answers]
        return Answers(
            np.array([value for value, *_ in answers], np.float32),
            np.array([bool(failure) for failure in failures], bool),
            next(filter(None, failures), ""),
            sum(tokens for _, _, tokens, _ in answers),
            [raw for *_, raw in answers],
        )

    def _one(
        self, questions: Sequence[str], key: str, schema: dict[str, Any], words: dict[str, float]
    ) -> tuple[float, str, int, str]:
        """Value, failure, tokens and what was said; the second question of two shows the pair the other way round."""
        values: list[float] = []
        spoken, tokens, failure = [], 0, ""
        for text in questions:
            said = Said()
            try:
                value = words[self.chat.ask([text], schema, said)[key]]
                values.append(1 - value if values else value)
            except JudgeError as error:
                failure = str(error)
            tokens += said.tokens
            spoken.append(said.text)
            if failure:
                break
        agreed = not failure and values[0] == values[-1]  # NaN, unsure, agrees with nothing
        return values[0] if agreed else np.nan, failure, tokens, "\n".join(spoken)[:LONGEST]
