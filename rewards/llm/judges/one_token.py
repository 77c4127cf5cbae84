"""Judges that give each caption a score, and labels by where the score lies among those of other captions.

    score(c) = log P(Yes) - log P(No)         the first token of a language model's answer, after examples
    z(c)     = (score(c) - median) / spread   over the captions scored so far; spread is the median of |score - median|.
                                              Captions that differ in their numbers alone count once
    label    = 1[z > 0], NaN where |z| <= unsure         which of two is better: the one with the higher score

The examples are turns of a conversation: captions of all families that have a file, the family's own last, each
answered Yes or No. One token is asked for, so a small model on a CPU labels several captions a second.

Source: the score is that of zero-shot classifiers by language models, as in Zhao et al. 2021, "Calibrate Before Use",
arXiv 2102.09690, who remove a model's preference for a word by a constant; the constant is the running median here.
Differences: a label needs no threshold of the model's own, of which small models have a poor one; a pair is compared by
two scores, since small models choose a pair's first or second place whatever stands there.
When it fails: captions of which far more or far fewer than half are progress; the first captions, for which there is
little to compare with but the family's phrases; a model that does not know what the words mean.
"""

import math
import re
import threading
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lodestar.settings import setting
from rewards.llm.client import JudgeError
from rewards.llm.judges import prompts
from rewards.llm.judges.base import Answers, TextJudge
from rewards.llm.store import digest_of

Message = dict[str, Any]
# What a request holds beside its messages. Twenty candidates are as many as servers give.
ONE_TOKEN: dict[str, Any] = {"max_tokens": 1, "logprobs": True, "top_logprobs": 20}
# Of each family that is not the captions' own: so many examples of progress, and as many of none.
EXAMPLES_OF_OTHERS = 1
# Phrases of the family of each kind with which the median begins, and examples of its own.
MAX_ANCHORS = 4
# The newest captions that the median is taken over.
MAX_SCORES = 1000
# No label is given to captions so near to the median, in spreads.
UNSURE = 0.25
# Scores whose median distance is smaller are alike.
MIN_SPREAD = 1e-3


class NoLogProbabilitiesError(JudgeError):
    """An answer without the probabilities of Yes and No."""


def yes_over_no(candidates: Sequence[tuple[str, float]]) -> float:
    """log P(Yes) - log P(No); a word that is not among the candidates has the probability of the last one."""
    logs: dict[str, list[float]] = {"yes": [], "no": []}
    for token, log_probability in candidates:
        logs.get(token.strip().lower(), []).append(log_probability)
    if not (logs["yes"] or logs["no"]):
        listed = ", ".join(repr(token) for token, _ in candidates[:5]) or "none"
        raise NoLogProbabilitiesError(f"no probability of Yes or No came (the candidates: {listed}); use answer=json")
    least = min(log_probability for _, log_probability in candidates)
    yes = np.logaddexp.reduce(logs["yes"] or [least])
    no = np.logaddexp.reduce(logs["no"] or [least])
    return float(yes - no)


class Conversation:
    """A question about an item, the last turn, which alone changes: servers keep what stands before it."""

    def __init__(self, introduction: str) -> None:
        self.turns: list[Message] = [{"role": "system", "content": introduction}]

    def question(self, item: str) -> str:
        """The last turn about an item."""
        raise NotImplementedError

    def messages(self, item: str) -> list[Message]:
        return [*self.turns, {"role": "user", "content": self.question(item)}]

    def digest(self, unsure: float) -> str:
        """Of all that may change an answer of one model."""
        raise NotImplementedError

    def add_example(self, item: str, answer: str) -> None:
        self.turns = [*self.messages(item), {"role": "assistant", "content": answer}]


class OneToken(Conversation):
    """The conversation about a caption."""

    def __init__(self, goal: str, family: str, reworded: bool = False) -> None:
        wordings = prompts.sections("token")
        self._wording = wordings["reworded" if reworded else "message"]
        super().__init__(prompts.fill(wordings["introduction"], goal=goal))
        for name in prompts.family_names():
            if name != family:
                self._add_examples(name, EXAMPLES_OF_OTHERS)
        self._add_examples(family, MAX_ANCHORS)

    def digest(self, unsure: float) -> str:
        return digest_of([self.messages(""), unsure])[:12]

    def question(self, item: str) -> str:
        return prompts.fill(self._wording, caption=prompts.quote(item))

    def _add_examples(self, family: str, most: int) -> None:
        examples = prompts.background(family).examples
        for answer, is_helpful in (("Yes", True), ("No", False)):
            captions = [caption for caption, helps in examples if helps == is_helpful]
            for caption in captions[:most]:
                self.add_example(caption, answer)


class RunningMedian:
    """Scores of the newest distinct captions, for several threads.

    Of captions that differ in their numbers alone the newest counts: a message of ever new numbers would otherwise be
    most of the captions, hence the median.
    """

    def __init__(self) -> None:
        self._scores: dict[str, float] = {}
        self._lock = threading.Lock()

    def add(self, texts: Sequence[str], scores: np.ndarray) -> None:
        with self._lock:
            for text, score in zip(texts, scores.tolist()):
                if not math.isnan(score):
                    self._scores[re.sub(r"[0-9]+", "0", text)] = score
            while len(self._scores) > MAX_SCORES:
                del self._scores[next(iter(self._scores))]

    def standardise(self, scores: np.ndarray) -> np.ndarray:
        """z of scores (B,)."""
        with self._lock:
            known = np.fromiter(self._scores.values(), np.float64, len(self._scores))
        if not len(known):
            return np.full(scores.shape, np.nan)
        median = np.median(known)
        spread = np.median(np.abs(known - median))
        return (scores - median) / max(spread, MIN_SPREAD)


class ScoredJudge(TextJudge):
    """Base class: a subclass gives scores, and calls `begin_scores` when it is made."""

    unsure: float

    def begin_scores(self, anchors: Sequence[str] = ()) -> None:
        """The median begins with these captions, which are scored with the first question."""
        self.median = RunningMedian()
        self._anchors = list(anchors)
        self._anchor_lock = threading.Lock()

    @abstractmethod
    def scores(self, texts: Sequence[str]) -> Answers:
        """How good is what each of B texts describes? The values are scores on any scale."""

    def standardised_scores(self, texts: Sequence[str]) -> Answers:
        """z of B texts, which join those that the median is taken over."""
        anchor_tokens = 0
        with self._anchor_lock:
            if self._anchors:
                anchors = self.scores(self._anchors)
                anchor_tokens = anchors.tokens
                self.median.add(self._anchors, anchors.value)
                if not anchors.failed.any():
                    self._anchors = []
        answers = self.scores(texts)
        self.median.add(texts, answers.value)
        answers.value = self.median.standardise(answers.value)
        answers.tokens += anchor_tokens
        return answers

    def label(self, texts: Sequence[str]) -> Answers:
        answers = self.standardised_scores(texts)
        z = answers.value
        answers.value = (z > 0).astype(np.float32)
        # False for NaN, too.
        answers.value[~(np.abs(z) > self.unsure)] = np.nan
        return answers

    def compare(self, first: Sequence[str], second: Sequence[str]) -> Answers:
        """Captions whose z differ by no more than `unsure` are equal."""
        return self.standardised_scores([*first, *second]).compare_halves(self.unsure)


@dataclass(eq=False, kw_only=True)
class TokenJudge(ScoredJudge):
    """Base class of those that ask a language model for one token about each text."""

    goal: str = setting("", 'what is wanted; "" for what the family\'s file says')
    family: str = setting("", "the texts' environment family; what its file says of it stands in the question")
    unsure: float = setting(UNSURE, "no label of a caption so near to the median, in spreads", ">= 0")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.wanted = self.goal.strip() or prompts.background(self.family).goal
        if not self.wanted:
            raise ValueError(f'{self.prefix}nothing is known of family={self.family!r}; say what is good: goal="..."')
        self.begin_scores(anchors_of(self.family))
        self.one_token = self.conversation()

    def conversation(self) -> Conversation:
        return OneToken(self.wanted, self.family)


def anchors_of(family: str) -> list[str]:
    """Captions with which a median begins, as many of progress as of none: the family's, or one of each of others."""
    background = prompts.background(family)
    count = min(len(background.good), len(background.other), MAX_ANCHORS)
    if count:
        return [*background.good[:count], *background.other[:count]]
    anchors = []
    for name in prompts.family_names():
        # The first caption of either label stays.
        captions = {helps: caption for caption, helps in reversed(prompts.background(name).examples)}
        anchors += [captions[True], captions[False]]
    return anchors
