"""A language model behind any OpenAI-compatible server says which captions describe progress, or names the next goal.

One question a text, several at the same time. The answer is JSON that is checked here, a short reason first and then a
word; what does not fit is a failure and never a label, and "unsure" is an answer of its own (NaN).

Source: Klissarov et al. 2023, "Motif", arXiv 2310.00166 (which of two captions is better?); Zheng et al. 2024, "ONI",
arXiv 2410.23022 (is a caption helpful?).
Differences: the questions are worded by us, in `prompts/`; answers are words checked against a schema, where ONI looks
for a nonsense word anywhere in the text; neutral and harmful both have the value 0; a caption is quoted, so that what
stands in it cannot pass for part of the question (`prompts.py`); `both_orders` asks about a pair twice, against a
preference for a position; disagreement is unsure.
When it fails: a model that does not know the environment; captions that mean something only in their context; text that
an agent can write and that persuades the model from within its quotation, which no prompt rules out.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lodestar.settings import setting
from rewards.llm.client import JudgeError, Reply, ServedJudge, answer_form, in_parallel
from rewards.llm.judges import prompts
from rewards.llm.judges.base import Answers, TextJudge
from rewards.llm.store import WORDS

VERSION = 1  # of the two schemas
LABELS = {"helpful": 1.0, "neutral": 0.0, "harmful": 0.0, "unsure": np.nan}
BETTER = {"first": 0.0, "equal": 0.5, "second": 1.0, "unsure": np.nan}
CLOSED = {"additionalProperties": False}
NOTHING = prompts.quote("")
GOAL_LENGTH = 200  # characters of a goal


class ServerJudge(ServedJudge, TextJudge):
    """What judges share that ask one question an item: the server, several items at the same time."""

    name = "openai"

    def gather(self, one: Callable[[Any, Reply], tuple[float, str]], asked: Sequence[Any]) -> Answers:
        """The answers to B questions; `one` returns value and words of each, and raises JudgeError without any."""

        def tried(question: Any) -> tuple[float, str, int, str]:
            reply = Reply()
            try:
                value, words = one(question, reply)
                return value, "", reply.tokens, words
            except JudgeError as error:
                return np.nan, str(error), reply.tokens, reply.text

        answers: list[Any] = in_parallel(tried, asked, self.concurrency)
        values, failures, tokens, raw = zip(*answers) if answers else ((),) * 4
        failed = np.array([*map(bool, failures)], bool)
        return Answers(np.array(values, np.float32), failed, next(filter(None, failures), ""), sum(tokens), list(raw))


@dataclass(eq=False)
class TextModel(ServerJudge):
    """Asks a language model about each text; safe to use from several threads."""

    goal: str = setting("", 'what is wanted; "" for what the family\'s file says')
    family: str = setting("", "the texts' environment family; what its file says of it stands in the question")
    reworded: bool = setting(False, "whether the second wording of the question is used, to compare with the first")
    both_orders: bool = setting(False, "whether pairs are asked about in both orders")
    timeout: float = 20.0
    connect: float = 2.0
    max_tokens: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        known = prompts.background(self.family)
        goal = self.goal.strip() or known.goal
        if not goal:
            raise ValueError(f'judge openai: nothing is known of family={self.family!r}; say what is good: goal="..."')
        self._told = {"goal": goal, "knowledge": known.knowledge}
        wording = "_reworded" if self.reworded else ""
        version, self._label = prompts.question(f"label{wording}")
        version_too, self._compare = prompts.question(f"compare{wording}")
        asked = json.dumps([self._label, self._compare, self._told, self.options], sort_keys=True)
        self._identity = (
            f"openai {self.model} label{wording}={version} compare{wording}={version_too} schema={VERSION} "
            f"orders={1 + self.both_orders} asked={hashlib.sha256(asked.encode()).hexdigest()[:12]}"
        )

    def label(self, texts: Sequence[str]) -> Answers:
        """A text of which nothing can be seen is not asked about: unsure."""
        quoted = [prompts.quote(text) for text in texts]
        asked = [[prompts.fill(self._label, caption=one, **self._told)] if one != NOTHING else [] for one in quoted]
        return self._all(asked, "label", LABELS, unasked=np.nan)

    def compare(self, first: Sequence[str], second: Sequence[str]) -> Answers:
        """Texts that look alike are not asked about: equal."""
        quoted = [(prompts.quote(one), prompts.quote(two)) for one, two in zip(first, second, strict=True)]
        orders = [((one, two), (two, one))[: 1 + self.both_orders] if one != two else () for one, two in quoted]
        asked = [[prompts.fill(self._compare, first=x, second=y, **self._told) for x, y in order] for order in orders]
        return self._all(asked, "better", BETTER, unasked=0.5)

    def notes(self) -> list[str]:
        return [f"labels are those of {self.model} at {self.url}, asked for: {self._told['goal']}"]

    def _all(self, asked: Sequence[Sequence[str]], key: str, words: dict[str, float], unasked: float) -> Answers:
        schema = answer_form(reason={"type": "string"}, **{key: {"type": "string", "enum": list(words)}}) | CLOSED

        def one(questions: Sequence[str], reply: Reply) -> tuple[float, str]:
            """The second question of two shows the pair in the other order."""
            values, texts = [] if questions else [unasked], []
            for text in questions:
                value = words[self.chat.ask([text], schema, reply)[key]]
                values.append(1 - value if values else value)
                texts.append(reply.text)
            # NaN, unsure, agrees with nothing
            return values[0] if values[0] == values[-1] else np.nan, "\n".join(texts)[:WORDS]

        return self.gather(one, asked)


@dataclass(eq=False)
class GoalModel(ServerJudge):
    """Names the next goal of an agent. A text is a JSON list of the captions it met last; the goal stands in `raw`."""

    goal: str = setting("", "what counts in the whole task; empty for getting far")
    attempts: int = 1
    max_tokens: int = 256

    @property
    def identity(self) -> str:
        return f"goals {prompts.sections('goals')['version']} {self.model}"

    def label(self, texts: Sequence[str]) -> Answers:
        schema = answer_form(goal={"type": "string"}) | CLOSED

        def one(text: str, reply: Reply) -> tuple[float, str]:
            told = f"[{', '.join(map(prompts.quote, json.loads(text)))}]"
            asked = prompts.sections("goals")["next"].format(goal=self.goal or "to get far", told=told)
            goal = " ".join(self.chat.ask([asked], schema, reply)["goal"].split())[:GOAL_LENGTH]
            if not goal:
                raise JudgeError("an empty goal")
            return np.nan, goal

        return self.gather(one, texts)
