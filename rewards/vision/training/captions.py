"""Captions for the in-domain CLIP, from a lexicon, and how true they are of frames.

A caption is made from simulator state, so every pair (caption, frame) has a graded truth in [0, 1]: fuzzy membership
per attribute, product for "and", 1 - membership for "not", 0 for whatever the frame does not show. Random sentences and
gibberish are captions too; their truth is 0 everywhere, so that a sentence without meaning pays the same for every
frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rewards.vision.training.lexicon import (
    NEGATIONS,
    NEGATIONS_HELD_OUT,
    PAIRS,
    TEMPLATES,
    TEMPLATES_HELD_OUT,
    THINGS,
    Attribute,
    Lexicon,
    States,
    SubjectNames,
)


@dataclass(frozen=True)
class Caption:
    """A sentence, the worlds it can be about, and what it claims: attributes and whether each is denied."""

    text: str
    worlds: tuple[int, ...]
    # (attribute, denied); none claims only that the subject is there.
    claims: tuple[tuple[str, bool], ...] = ()


def truth(lexicon: Lexicon, captions: Sequence[Caption], states: States) -> tuple[np.ndarray, np.ndarray]:
    """How true each caption is of each frame, and whether it is about the frame's world at all.

    Returns:
        float32 in [0, 1] and bool, both (captions, frames).
    """
    table = {name: attribute.truth(states) for name, attribute in lexicon.attributes.items()}
    # Many captions say the same.
    meanings: dict[Caption, int] = {}
    index = []
    for caption in captions:
        meaning = replace(caption, text="")
        index.append(meanings.setdefault(meaning, len(meanings)))
    about = np.zeros((len(meanings), len(states)), bool)
    value = np.zeros((len(meanings), len(states)), np.float32)
    for row, meaning in enumerate(meanings):
        about[row] = np.isin(states.world, meaning.worlds)
        value[row] = about[row]
        for name, denied in meaning.claims:
            value[row] *= 1 - table[name] if denied else table[name]
    return value[index], about[index]


@dataclass
class Grammar:
    """Draws captions.

    Args:
        lexicon: what it speaks of.
        rng: its random numbers.
        vocabulary: words for the sentences without meaning; in-domain words and their neighbours must not be among
            them.
        held_out: None draws what training may see; "synonyms", "fresh", "phrasings" or "pairs" only what it may not.
    """

    lexicon: Lexicon
    rng: np.random.Generator
    vocabulary: Sequence[str] = THINGS
    held_out: str | None = None

    def __post_init__(self) -> None:
        # What `draw` speaks about.
        self.attributes = tuple(self.lexicon.attributes)

    def pick(self, options: Sequence[str]) -> str:
        """One of several, all alike."""
        return options[int(self.rng.integers(len(options)))]

    def subject(self, about: str) -> str:
        """A name for a kind of thing."""
        return self._wording(self.lexicon.subjects[about])

    def predicate(self, name: str) -> str:
        """A way to say an attribute."""
        return self._wording(self.lexicon.attributes[name])

    def _wording(self, of: SubjectNames | Attribute) -> str:
        match self.held_out:
            case "fresh":
                return self.pick(of.fresh)
            case "synonyms":
                return self.pick(of.held_out)
        return self.pick(of.said)

    def clause(self, name: str, *, denied: bool = False) -> Caption:
        """One claim about one subject."""
        attribute = self.lexicon.attributes[name]
        subject = self.lexicon.subjects[attribute.about]
        s = self.subject(attribute.about)
        p = self.predicate(name)
        t = self.pick(subject.tails)
        if not subject.takes_tail(name, s + p):
            t = ""
        templates = NEGATIONS if denied else TEMPLATES
        if self.held_out == "phrasings":
            templates = NEGATIONS_HELD_OUT if denied else TEMPLATES_HELD_OUT
        template = self.pick(templates)
        # "On the left" alone does not say what is there.
        if "{s}" not in template and not attribute.alone:
            template = templates[0]
        said = s + p + t if "{s}" in template else p
        return Caption(template.format(s=s, p=p, t=t), self.lexicon.worlds_of(name, said), ((name, denied),))

    def pair(self) -> Caption:
        """Two claims about one picture, such as CartPole's pole and its cart."""
        groups = self.lexicon.pairs
        held_out = self.lexicon.pairs_held_out
        if self.held_out == "pairs":
            first = self.pick(tuple(held_out))
            second = held_out[first]
        else:
            firsts, seconds = groups[int(self.rng.integers(len(groups)))] if len(groups) > 1 else groups[0]
            while True:
                first = self.pick(firsts)
                second = self.pick(seconds)
                if held_out.get(first) != second:
                    break
        attributes = self.lexicon.attributes
        a = f"the {self.subject(attributes[first].about)} is {self.predicate(first)}"
        b = f"the {self.subject(attributes[second].about)} is {self.predicate(second)}"
        first_worlds = self.lexicon.worlds_of(first, a)
        second_worlds = self.lexicon.worlds_of(second, b)
        if self.rng.random() < 0.3:
            a, b = b, a
        both = tuple(world for world in first_worlds if world in second_worlds)
        return Caption(self.pick(PAIRS).format(a=a, b=b), both, ((first, False), (second, False)))

    def baseline(self) -> Caption:
        """A sentence that only says what kind of picture it is."""
        about = self.pick(tuple(self.lexicon.baselines))
        text = self.pick(self.lexicon.baselines[about])
        return Caption(text, self.lexicon.numbers(self.lexicon.subjects[about].worlds(text)))

    def unmatched_caption(self) -> Caption:
        """A sentence that no frame of ours shows: gibberish, other topics, a wrong subject or a wrong predicate."""
        kind = self.rng.random()
        rng = self.rng
        lexicon = self.lexicon
        if kind < 0.25:
            words = []
            for _ in range(rng.integers(1, 6)):
                codes = ord("a") + rng.integers(26, size=rng.integers(2, 9))
                words.append("".join(map(chr, codes)))
            text = " ".join(words)
        elif kind < 0.5:
            text = " ".join(self.pick(self.vocabulary) for _ in range(rng.integers(1, 8)))
        else:
            template = self.pick(TEMPLATES[:-4] if kind < 0.75 else TEMPLATES[:4])
            if kind < 0.88:
                s = self.pick(lexicon.things)
            else:
                s = self.subject(self.pick(tuple(lexicon.baselines)))
            if 0.75 <= kind < 0.88:
                p = self.predicate(self.pick(tuple(lexicon.attributes)))
            else:
                p = self.pick(lexicon.qualities)
            text = template.format(s=s, p=p, t="")
        return Caption(text, ())

    def draw(self, count: int) -> list[Caption]:
        """A training batch: claims with their opposites beside them, denials, pairs, baselines, nothing."""
        captions: list[Caption] = []
        while len(captions) < count:
            kind = self.rng.random()
            name = self.pick(self.attributes)
            if kind < 0.48:
                captions.append(self.clause(name))
                opposite = self.lexicon.opposite(name)
                if opposite in self.attributes and self.rng.random() < 0.5:
                    captions.append(self.clause(str(opposite)))
            elif kind < 0.63:
                captions.append(self.clause(name, denied=True))
            elif kind < 0.78 and self.lexicon.pairs:
                captions.append(self.pair())
            elif kind < 0.84:
                captions.append(self.baseline())
            else:
                captions.append(self.unmatched_caption())
        return captions[:count]
