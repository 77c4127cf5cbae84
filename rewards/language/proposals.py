"""Principles from recorded comparisons: a judge proposes them, and those are kept that predict pairs held out.

A comparison is a pair of short pieces of behaviour, each given as its captions, and which of them is better. A
principle predicts the piece of which more captions fulfil it; a tie is no prediction. With w right predictions and l
wrong ones on pairs that no proposal came from, it is kept if chance would be right as often with a probability of at
most `level`,

    p = sum over k >= w of C(w + l, k) / 2^(w + l) <= level,     and its weight is log((w + 1) / (l + 1))

Sources: Liu et al. 2025, "OpenRubrics", arXiv 2510.07743 (criteria from the contrast of a better and a worse answer,
rejected where they do not agree with the preference); Wang and Xiong 2025, "AutoRule", arXiv 2506.15651 (rules from
reasons for preferences, then merged).
Differences: held-out pairs decide, by a sign test, where OpenRubrics asks about the pair that a criterion came from; a
weight is the log-odds of being right, as if principles erred independently; equal sentences are merged, others not.
When it fails: few pairs (five right ones and none wrong is the least at a level of 0.05); many proposals, of which one
in twenty is kept by chance.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from rewards.language.principles import Principle
from rewards.llm.client import JudgeError
from rewards.llm.judges.base import TextJudge
from rewards.llm.judges.principles import PrincipleModel, item_of
from rewards.llm.store import AnswerStore, Label, label_in, read_rows

# What stands between the captions of a piece of behaviour.
CAPTION_BREAK = "\n"


class JudgedPair(NamedTuple):
    """The better and the worse piece of behaviour, each its captions with line breaks between."""

    better: str
    worse: str


class PrincipleRecord(NamedTuple):
    """How often a principle predicts the better piece, and how often the worse one."""

    text: str
    right: int
    wrong: int

    @property
    def chance(self) -> float:
        """The probability that a coin is right at least as often."""
        decided = self.right + self.wrong
        ways = sum(math.comb(decided, k) for k in range(self.right, decided + 1))
        return ways / 2**decided

    @property
    def weight(self) -> float:
        return round(math.log((self.right + 1) / (self.wrong + 1)), 2)


def read_comparisons(path: str) -> list[JudgedPair]:
    """The decided pairs of a file of labels; ValueError without any."""
    wrong = 'no comparison; give "text", "other" and a value in [0, 1], 1 where the other is better'
    comparisons = []
    for item, value in read_rows(path, label_in, wrong):
        if isinstance(item, str):
            raise ValueError(f"{path} has a label of a single text, {item[:80]!r}; give pairs: {wrong}")
        first, second = item
        if value > 0.5:
            comparisons.append(JudgedPair(second, first))
        elif value < 0.5:
            comparisons.append(JudgedPair(first, second))
    if not comparisons:
        raise ValueError(f"{path} has no pair of which one is better; record more comparisons")
    return comparisons


def propose(judge: PrincipleModel, comparisons: Sequence[JudgedPair], at_once: int, most: int) -> list[str]:
    """Different principles, at most so many of each question about `at_once` comparisons; JudgeError without any."""
    principles: dict[str, str] = {}
    failure = "the model proposed no principle"
    for start in range(0, len(comparisons), at_once):
        try:
            proposed = judge.propose(comparisons[start : start + at_once], most)
        except JudgeError as error:
            failure = str(error)
            continue
        for principle in proposed:
            # A bar would begin a pattern in a file.
            text = principle.replace(" | ", " / ")
            principles.setdefault(text.casefold().rstrip("."), text)
    if not principles:
        raise JudgeError(failure)
    return list(principles.values())


def measure(
    judge: TextJudge, principles: Sequence[str], comparisons: Sequence[JudgedPair], store: AnswerStore
) -> list[PrincipleRecord]:
    """How often each principle is right; JudgeError if a question gets no answer, unsure is no."""
    captions: dict[str, None] = {}
    for comparison in comparisons:
        for piece in comparison:
            captions.update(dict.fromkeys(filter(None, piece.split(CAPTION_BREAK))))
    findings = []
    for principle in principles:
        holds = _ask(judge, principle, list(captions), store)
        right = 0
        wrong = 0
        for comparison in comparisons:
            # A tie predicts neither piece.
            lead = _count(holds, comparison.better) - _count(holds, comparison.worse)
            right += lead > 0
            wrong += lead < 0
        findings.append(PrincipleRecord(principle, right, wrong))
    return findings


def keep(findings: Sequence[PrincipleRecord], level: float) -> list[Principle]:
    """The principles that predict better than chance, the heaviest first."""
    kept = []
    for finding in findings:
        if finding.chance <= level:
            kept.append(Principle(finding.text, finding.weight))
    return sorted(kept, key=lambda principle: -principle.weight)


def _count(holds: set[str], piece: str) -> int:
    """Of how many captions of a piece a principle holds."""
    return sum(caption in holds for caption in piece.split(CAPTION_BREAK))


def _ask(judge: TextJudge, principle: str, captions: Sequence[str], store: AnswerStore) -> set[str]:
    """The captions of which a principle holds; answers that the store has are not asked for again."""
    items = {item_of(principle, caption): caption for caption in captions}
    values = store.get(judge.identity, list(items))
    new = [item for item in items if item not in values]
    if new:
        answers = judge.label(new)
        if answers.failed.any():
            raise JudgeError(answers.failure)
        new_values = answers.value.tolist()
        store.put(judge.identity, list(map(Label, new, new_values)))
        values.update(zip(new, new_values))
    return {caption for item, caption in items.items() if values[item] > 0.5}
