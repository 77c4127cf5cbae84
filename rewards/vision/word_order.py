"""Which of two things is said to be above or before the other, against what a model was taught.

Contrastive models hardly read the order of words (Yuksekgonul et al. 2022, arXiv 2210.01936): to one that was taught "the
acrobot is above the line", "the line is above the acrobot" is the same sentence. No measurement on frames tells, because
its scores are right for the sentence that was not written; so the two are compared as text.

Limitations: English, one relation a sentence, and only things that the phrases name in the same words.
"""

from __future__ import annotations

import re
from typing import NamedTuple

SENSES = {  # words of a relation -> its axis, and which way along it
    **dict.fromkeys(("above", "over", "on", "on top of", "atop", "higher than", "upon"), ("height", 1)),
    **dict.fromkeys(("below", "under", "beneath", "underneath", "lower than"), ("height", -1)),
    **dict.fromkeys(("in front of", "ahead of", "before"), ("front", 1)),
    **dict.fromkeys(("behind", "after"), ("front", -1)),
}
RELATION = re.compile(rf"\b({'|'.join(sorted(SENSES, key=len, reverse=True))})\b")
DENIAL = re.compile(r"\b(no|not|never|nothing|without)\b|n't\b")
EMPTY = frozenset("a an the is are it its of to and with".split())


class Related(NamedTuple):
    """The words on both sides of a relation; turned round where it says "below", so that two of one axis compare."""

    first: frozenset[str]
    second: frozenset[str]
    axis: str


def related(sentence: str) -> Related | None:
    """What a sentence relates, by its first relation; None where it relates nothing, or denies something."""
    text = sentence.lower()
    found = RELATION.search(text)
    if not found or DENIAL.search(text):
        return None
    before, after = (
        frozenset(re.findall("[a-z]+", part)) - EMPTY for part in (text[: found.start()], text[found.end() :])
    )
    axis, way = SENSES[found.group()]
    return Related(before, after, axis) if way > 0 else Related(after, before, axis)


def exchanged(sentence: str, phrases: list[str]) -> str | None:
    """A phrase that relates the same two things the other way round, if none relates them as the sentence does.

    Example:
        >>> exchanged("the line is above the acrobot", ["the acrobot is over the line", "a cart"])
        'the acrobot is over the line'
        >>> exchanged("the line is below the acrobot", ["the acrobot is over the line", "a cart"])
    """
    said, reverse = related(sentence), None
    if said is None:
        return None
    for phrase in phrases:
        taught = related(phrase)
        if taught is None or taught.axis != said.axis:
            continue
        if said.first & taught.first and said.second & taught.second:
            return None
        if said.first & taught.second and said.second & taught.first:
            reverse = reverse or phrase
    return reverse
