"""Judges of principles: does a statement, such as "The player opened a door.", hold of what a caption tells?

An item is a principle and a caption in one text (`item_of`), so that annotators, stores, transcripts and the judges
`recorded` and `simulated` treat it as any other text. 1 is yes, 0 is no, NaN is unsure.

    openai    a language model on a server: log P(Yes) > log P(No) of one token after examples, or JSON without those
    local     the same of a language model in a file
    rules     a regular expression for each principle, written by hand: no model is asked

Source: Wang et al. 2025, "RLBFF: Binary Flexible Feedback to bridge between Human Feedback & Verifiable Rewards", arXiv
2509.21319: one answer, yes or no, about one text and one principle, by the probability of a token.
Differences: the model is not trained for it, and sees examples instead; the answer is cut at one half.
When it fails: a model of a few hundred million weights, whose answers are near to a coin's (`one_token.py` has the
median for those, which needs about half of all captions to be good: seldom so for one principle).
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lodestar.settings import setting
from rewards.llm.client import JudgeError, answer_form
from rewards.llm.judges import prompts
from rewards.llm.judges.base import Answers, TextJudge
from rewards.llm.judges.gguf_model import LocalModel
from rewards.llm.judges.local import NoisyJudge
from rewards.llm.judges.one_token import Conversation, TokenJudge
from rewards.llm.judges.openai import CLOSED_SCHEMA, TextModel
from rewards.llm.store import digest_of

HOLDS = {"yes": 1.0, "no": 0.0, "unsure": np.nan}
# What stands in the place of the goal that judges of captions have.
NO_GOAL = "what the principles say"


def item_of(principle: str, caption: str) -> str:
    """What a judge is asked about, as one text."""
    return json.dumps([principle, caption])


def parts_of(item: str) -> tuple[str, str]:
    """Principle and caption of an item."""
    principle, caption = json.loads(item)
    return principle, caption


class PrincipleQuestion(Conversation):
    """The conversation about a principle and a caption."""

    def __init__(self) -> None:
        wordings = prompts.sections("principles")
        self._wording = wordings["message"]
        super().__init__(wordings["introduction"])
        for line in wordings["examples"].splitlines():
            answer, principle, caption = line.split(" | ")
            self.add_example(item_of(principle, caption), answer)
        self._digest = digest_of(wordings)[:12]

    def digest(self, unsure: float) -> str:
        return self._digest

    def question(self, item: str) -> str:
        return fill_in(self._wording, item)


def fill_in(wording: str, item: str) -> str:
    """A wording with the principle and the caption of an item."""
    principle, caption = parts_of(item)
    return prompts.fill(wording, principle=principle, caption=prompts.quote(caption))


@dataclass(eq=False, kw_only=True)
class PrincipleJudge(TokenJudge):
    """What both language models share: the conversation, and an answer that is cut at one half."""

    goal: str = setting(NO_GOAL, "not read")

    def conversation(self) -> Conversation:
        return PrincipleQuestion()

    def label(self, texts: Sequence[str]) -> Answers:
        answers = self.scores(texts)
        scores = answers.value
        # Yes where it is the likelier word; NaN stays.
        answers.value = np.where(np.isnan(scores), scores, scores > 0).astype(np.float32)
        return answers


@dataclass(eq=False)
class PrincipleModel(PrincipleJudge, TextModel):
    """Asks a language model on a server."""

    def __post_init__(self) -> None:
        super().__post_init__()
        digest = digest_of([self.answer, self.one_token.digest(self.unsure), self.options], sort_keys=True)[:12]
        self._identity = f"principles {self.model} asked={digest}"

    def label(self, texts: Sequence[str]) -> Answers:
        try:
            if self._choose_token(texts):
                return super().label(texts)
        except JudgeError as error:
            return Answers.failures(len(texts), str(error))
        wording = prompts.sections("principles")["json"]
        questions = [[fill_in(wording, item)] for item in texts]
        return self._ask_all(questions, "holds", HOLDS, unasked=np.nan)

    def notes(self) -> list[str]:
        return [f"principles are judged by {self.model} at {self.url}"]

    def propose(self, pairs: Sequence[tuple[str, str]], most: int) -> list[str]:
        """At most so many principles from pairs of texts, the better one first; JudgeError without an answer."""
        lines = []
        for number, (better, worse) in enumerate(pairs, start=1):
            quoted = [prompts.quote(piece.replace("\n", "; ")) for piece in (better, worse)]
            lines.append(f"Pair {number}\nbetter: {quoted[0]}\nworse: {quoted[1]}")
        wording = prompts.sections("principles")["propose"]
        # The texts hold no braces: `quote` makes parentheses of them.
        question = wording.format(pairs="\n\n".join(lines), most=most)
        schema = answer_form(principles={"type": "array", "items": {"type": "string"}}) | CLOSED_SCHEMA
        answer = self.chat.ask([question], schema)
        principles = [" ".join(principle.split()) for principle in answer["principles"]]
        return list(filter(None, principles))[:most]


@dataclass(eq=False)
class LocalPrinciples(PrincipleJudge, LocalModel):
    """Asks a language model in this process."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._identity = f"principles {self._identity}"

    def notes(self) -> list[str]:
        return [f"principles are judged by {self.path.name}, which runs beside training"]


@dataclass(eq=False)
class PrincipleRules(TextJudge):
    """Looks for a pattern in the caption."""

    patterns: dict[str, str] = setting(help="principle -> regular expression; the reward fills them in")
    goal: str = setting("", "not read")
    family: str = setting("", "not read")

    name = "rules"
    local = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.compiled: dict[str, re.Pattern[str]] = {}
        for principle, pattern in self.patterns.items():
            try:
                self.compiled[principle] = re.compile(pattern, re.IGNORECASE)
            except re.error as error:
                raise ValueError(
                    f"judge rules: the pattern {pattern!r} of {principle!r} is no regular expression ({error})"
                ) from None
        digest = digest_of(self.patterns, sort_keys=True)
        self._identity = f"principles rules {digest[:12]}"

    def label(self, texts: Sequence[str]) -> Answers:
        values = []
        for principle, caption in map(parts_of, texts):
            found = principle in self.compiled and self.compiled[principle].search(caption)
            values.append(float(bool(found)))
        return Answers.of(values)

    def notes(self) -> list[str]:
        return [f"principles are judged by {len(self.compiled)} patterns written by hand, no model is asked"]


class NoisyPrinciples(NoisyJudge):
    """Inverts answers of another judge of principles, or draws them."""

    kind = "principles"
