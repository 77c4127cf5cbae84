"""A language model behind any OpenAI-compatible server says which captions describe progress, or names the next goal.

One question a text, several at the same time. The answer is one token, Yes or No, of which the
probability counts (`one_token.py`). A server without log-probabilities is asked for JSON that is
checked here, a short reason first and then a word; what does not fit is a failure and never a label,
and "unsure" is an answer of its own (NaN).

Source: Klissarov et al. 2023, "Motif", arXiv 2310.00166 (which of two captions is better?); Zheng et al. 2024, "ONI",
arXiv 2410.23022 (is a caption helpful?).
Differences: the questions are worded by us, in `prompts/`; answers are words checked against a schema, where ONI looks
for a nonsense word anywhere in the text; neutral and harmful both have the value 0; a caption is quoted, so that what
stands in it cannot pass for part of the question (`prompts.py`); `both_orders` asks about a pair twice, against a
preference for a position; disagreement is unsure.
When it fails: a model that does not know the environment; captions that mean something only in their context; text that
an agent can write and that persuades the model from within its quotation, which no prompt rules out.
"""

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lodestar.settings import setting
from rewards.llm.client import JudgeError, Reply, RetryError, answer_form
from rewards.llm.judges import prompts
from rewards.llm.judges.base import Answers, TextJudge
from rewards.llm.judges.one_token import ONE_TOKEN, Conversation, OneToken, TokenJudge, yes_over_no
from rewards.llm.judges.served import ServedJudge, gather_answers
from rewards.llm.store import MAX_REASON_CHARACTERS, digest_of

# Of the schemas of labels and comparisons: answers of another version are not reused.
SCHEMA_VERSION = 1
CAPTION_LABELS = {"helpful": 1.0, "neutral": 0.0, "harmful": 0.0, "unsure": np.nan}
BETTER = {"first": 0.0, "equal": 0.5, "second": 1.0, "unsure": np.nan}
CLOSED_SCHEMA = {"additionalProperties": False}
EMPTY_CAPTION = prompts.quote("")
MAX_GOAL_CHARACTERS = 200


@dataclass(eq=False)
class TextModel(ServedJudge, TokenJudge):
    """Asks a language model about each text; safe to use from several threads."""

    reworded: bool = setting(False, "whether the second wording of the question is used, to compare with the first")
    both_orders: bool = setting(False, "whether pairs are asked about in both orders; with answer=json")
    answer: str = setting(
        "auto",
        "what is asked for: one `token`, Yes or No, by its probability; or `json`, a reason and a word; auto is token "
        "where the server gives log-probabilities",
        "auto | token | json",
    )
    timeout: float = 20.0
    connect: float = 2.0
    max_tokens: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        self._context = {"goal": self.wanted, "knowledge": prompts.background(self.family).knowledge}
        wording = "_reworded" if self.reworded else ""
        questions = prompts.sections("captions")
        version = questions["version"]
        self._label_prompt = questions[f"label{wording}"]
        self._compare_prompt = questions[f"compare{wording}"]
        # Whether one token is asked for; None until the server has shown what it gives.
        self._asks_token = {"auto": None, "token": True, "json": False}[self.answer]
        self._choice_lock = threading.Lock()
        # Whatever may change an answer is part of the identity by which answers are kept.
        parts: list[Any] = [self._label_prompt, self._compare_prompt, self._context, self.options]
        form = f"label{wording}={version} compare{wording}={version} schema={SCHEMA_VERSION}"
        if self.answer != "json":
            parts.append(self.one_token.digest(self.unsure))
            form = f"answer={self.answer} {form}"
        digest = digest_of(parts, sort_keys=True)[:12]
        self._identity = f"openai {self.model} {form} orders={1 + self.both_orders} asked={digest}"

    def conversation(self) -> Conversation:
        return OneToken(self.wanted, self.family, self.reworded)

    def label(self, texts: Sequence[str]) -> Answers:
        """A text of which nothing can be seen is not asked about: unsure."""
        try:
            if self._choose_token(texts):
                return super().label(texts)
        except JudgeError as error:
            return Answers.failures(len(texts), str(error))
        questions: list[list[str]] = []
        for caption in map(prompts.quote, texts):
            if caption == EMPTY_CAPTION:
                questions.append([])
            else:
                questions.append([prompts.fill(self._label_prompt, caption=caption, **self._context)])
        return self._ask_all(questions, "label", CAPTION_LABELS, unasked=np.nan)

    def compare(self, first: Sequence[str], second: Sequence[str]) -> Answers:
        """Texts that look alike are not asked about: equal."""
        pairs = list(zip(first, second, strict=True))
        try:
            if self._choose_token([*first, *second]):
                return super().compare(first, second)
        except JudgeError as error:
            return Answers.failures(len(first), str(error))
        questions: list[list[str]] = []
        for pair in pairs:
            one, two = map(prompts.quote, pair)
            orders: list[str] = []
            if one != two:
                orders.append(prompts.fill(self._compare_prompt, first=one, second=two, **self._context))
                if self.both_orders:
                    orders.append(prompts.fill(self._compare_prompt, first=two, second=one, **self._context))
            questions.append(orders)
        return self._ask_all(questions, "better", BETTER, unasked=0.5)

    def scores(self, texts: Sequence[str]) -> Answers:
        return gather_answers(self._score, texts, self.concurrency)

    def _score(self, text: str, reply: Reply) -> float:
        if not prompts.clean(text):
            return np.nan
        question = self.one_token.question(text)
        self.chat.ask([question], None, reply, turns=self.one_token.turns, **ONE_TOKEN)
        return yes_over_no(reply.candidates)

    def _choose_token(self, texts: Sequence[str]) -> bool:
        """Whether one token is asked for; RetryError where the server cannot be asked now."""
        visible = list(filter(prompts.clean, texts))
        with self._choice_lock:
            if self._asks_token is None and visible:
                try:
                    self._score(visible[0], Reply())
                    self._asks_token = True
                except RetryError:
                    raise
                except JudgeError:
                    # It refuses the request, gives no log-probabilities, or the model thinks first.
                    self._asks_token = False
            return bool(self._asks_token)

    def notes(self) -> list[str]:
        return [f"labels are those of {self.model} at {self.url}, asked for: {self.wanted}"]

    def _ask_all(
        self, questions: Sequence[Sequence[str]], key: str, values: dict[str, float], unasked: float
    ) -> Answers:
        """Answers to items with no question, one, or two, of which the second shows a pair in the other order."""
        word = {"type": "string", "enum": list(values)}
        schema = answer_form(reason={"type": "string"}, **{key: word}) | CLOSED_SCHEMA

        def ask_item(orders: Sequence[str], reply: Reply) -> float:
            if not orders:
                return unasked
            answers = []
            texts = []
            for question in orders:
                answers.append(values[self.chat.ask([question], schema, reply)[key]])
                texts.append(reply.text)
            reply.text = "\n".join(texts)[:MAX_REASON_CHARACTERS]
            # Orders that disagree are unsure, and NaN agrees with nothing.
            if len(answers) == 2 and answers[0] != 1 - answers[1]:
                return np.nan
            return answers[0]

        return gather_answers(ask_item, questions, self.concurrency)


@dataclass(eq=False)
class GoalModel(ServedJudge, TextJudge):
    """Names the next goal of an agent. A text is a JSON list of the captions it met last; the goal stands in `raw`."""

    goal: str = setting("", "what counts in the whole task; empty for getting far")
    attempts: int = 1
    max_tokens: int = 256

    @property
    def identity(self) -> str:
        return f"goals {prompts.sections('goals')['version']} {self.model}"

    def label(self, texts: Sequence[str]) -> Answers:
        schema = answer_form(goal={"type": "string"}) | CLOSED_SCHEMA

        def ask_for_goal(text: str, reply: Reply) -> float:
            captions = ", ".join(map(prompts.quote, json.loads(text)))
            prompt = prompts.sections("goals")["next"]
            question = prompt.format(goal=self.goal or "to get far", told=f"[{captions}]")
            answer = self.chat.ask([question], schema, reply)
            goal = " ".join(answer["goal"].split())[:MAX_GOAL_CHARACTERS]
            if not goal:
                raise JudgeError("an empty goal")
            reply.text = goal
            return np.nan

        return gather_answers(ask_for_goal, texts, self.concurrency)
