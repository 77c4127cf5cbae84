"""Captions for the in-domain CLIP, from the lexicon of `runners.pretrain_data`, and how true they are of frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runners.pretrain_data import (
    ATTRIBUTES,
    BASELINES,
    CARTPOLE,
    FRESH,
    FRESH_SUBJECTS,
    MOUNTAINCAR,
    NEGATIONS,
    NEGATIONS_HELD_OUT,
    OPPOSITE,
    PAIRS,
    PAIRS_HELD_OUT,
    PENDULUM,
    QUALITIES,
    SUBJECTS,
    TAILS,
    TEMPLATES,
    TEMPLATES_HELD_OUT,
    THINGS,
    States,
)


@dataclass(frozen=True)
class Caption:
    """A sentence, the worlds it can be about, and what it claims: attributes and whether each is denied."""

    text: str
    worlds: tuple[int, ...]
    claims: tuple[tuple[str, bool], ...] = ()  # (attribute, denied); none claims only that the subject is there


def worlds_of(subject: str, tail: str = "") -> tuple[int, ...]:
    """Where a rod with this name and place can be seen: naming the cart rules the pendulum's world out."""
    return (CARTPOLE,) if "cart" in subject + tail else (CARTPOLE, PENDULUM)


def truth(captions: Sequence[Caption], states: States) -> tuple[np.ndarray, np.ndarray]:
    """How true each caption is of each frame, and whether it is about the frame's world at all.

    Returns:
        float32 in [0, 1] and bool, both (captions, frames).
    """
    table = {name: attribute.truth(states) for name, attribute in ATTRIBUTES.items()}
    meanings: dict[tuple[tuple[int, ...], tuple[tuple[str, bool], ...]], int] = {}  # many captions say the same
    index = [meanings.setdefault((caption.worlds, caption.claims), len(meanings)) for caption in captions]
    about = np.zeros((len(meanings), len(states)), bool)
    value = np.zeros((len(meanings), len(states)), np.float32)
    for row, (worlds, claims) in enumerate(meanings):
        about[row] = np.isin(states.world, worlds)
        value[row] = about[row]
        for name, denied in claims:
            value[row] *= 1 - table[name] if denied else table[name]
    return value[index], about[index]


class Grammar:
    """Draws captions.

    Args:
        rng: its random numbers.
        vocabulary: words for the sentences without meaning; in-domain words and their neighbours must not be among
            them.
        held_out: None draws what training may see; "synonyms", "fresh", "phrasings" or "pairs" only what it may not.
        attributes: what `draw` speaks about.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        vocabulary: Sequence[str] = THINGS,
        held_out: str | None = None,
        attributes: Sequence[str] = tuple(ATTRIBUTES),
    ) -> None:
        self.rng = rng
        self.attributes = tuple(attributes)
        self.vocabulary = list(vocabulary)
        self.held_out = held_out

    def pick(self, options: Sequence[str]) -> str:
        """One of several, all alike."""
        return options[int(self.rng.integers(len(options)))]

    def subject(self, about: str) -> str:
        """A name for a rod, cart or car."""
        if self.held_out == "fresh":
            return self.pick(FRESH_SUBJECTS[about])
        return self.pick(SUBJECTS[about][self.held_out == "synonyms"])

    def predicate(self, name: str) -> str:
        """A way to say an attribute."""
        if self.held_out == "fresh":
            return self.pick(FRESH[name])
        return self.pick(ATTRIBUTES[name].held_out if self.held_out == "synonyms" else ATTRIBUTES[name].said)

    def clause(self, name: str, *, denied: bool = False) -> Caption:
        """One claim about one subject."""
        about = ATTRIBUTES[name].about
        s, p, t = self.subject(about), self.predicate(name), self.pick(TAILS[about])
        t = "" if "cart" in s + p or (about == "rod" and name == "down") else t
        unseen = self.held_out == "phrasings"
        templates = (
            (NEGATIONS_HELD_OUT if unseen else NEGATIONS) if denied else (TEMPLATES_HELD_OUT if unseen else TEMPLATES)
        )
        template = self.pick(templates)
        if "{s}" not in template and name not in ("up", "down", "flat", "peak", "valley", "tilted"):
            template = templates[0]  # "on the left" alone does not say what is there
        text = template.format(s=s, p=p, t=t)
        worlds = {
            "rod": worlds_of(s, p + t) if "{s}" in template else worlds_of(p),
            "cart": (CARTPOLE,),
            "car": (MOUNTAINCAR,),
        }[about]
        return Caption(text, worlds, ((name, denied),))

    def pair(self) -> Caption:
        """Two claims about CartPole: its pole and its cart."""
        rods = [n for n, a in ATTRIBUTES.items() if a.about == "rod"]
        carts = [n for n, a in ATTRIBUTES.items() if a.about == "cart"]
        if self.held_out == "pairs":
            first = self.pick(tuple(PAIRS_HELD_OUT))
            second = PAIRS_HELD_OUT[first]
        else:
            while True:
                first, second = self.pick(rods), self.pick(carts)
                if PAIRS_HELD_OUT.get(first) != second:
                    break
        a = f"the {self.subject('rod')} is {self.predicate(first)}"
        b = f"the {self.subject('cart')} is {self.predicate(second)}"
        if self.rng.random() < 0.3:
            a, b = b, a
        return Caption(self.pick(PAIRS).format(a=a, b=b), (CARTPOLE,), ((first, False), (second, False)))

    def baseline(self) -> Caption:
        """A sentence that only says what kind of picture it is."""
        about = self.pick(("rod", "car"))
        text = self.pick(BASELINES[about])
        worlds = (MOUNTAINCAR,) if about == "car" else worlds_of(text)
        return Caption(text, worlds)

    def nothing(self) -> Caption:
        """A sentence that no frame of ours shows: gibberish, other topics, a wrong subject or a wrong predicate."""
        kind, rng = self.rng.random(), self.rng
        if kind < 0.25:
            words = [
                "".join(chr(97 + c) for c in rng.integers(26, size=rng.integers(2, 9)))
                for _ in range(rng.integers(1, 6))
            ]
            text = " ".join(words)
        elif kind < 0.5:
            text = " ".join(self.pick(self.vocabulary) for _ in range(rng.integers(1, 8)))
        elif kind < 0.75:
            text = self.pick(TEMPLATES[:-4]).format(s=self.pick(THINGS), p=self.pick(QUALITIES), t="")
        elif kind < 0.88:
            text = self.pick(TEMPLATES[:4]).format(
                s=self.pick(THINGS), p=self.predicate(self.pick(tuple(ATTRIBUTES))), t=""
            )
        else:
            text = self.pick(TEMPLATES[:4]).format(
                s=self.subject(self.pick(("rod", "car"))), p=self.pick(QUALITIES), t=""
            )
        return Caption(text, ())

    def draw(self, count: int) -> list[Caption]:
        """A training batch: claims with their opposites beside them, denials, pairs, baselines, nothing."""
        captions: list[Caption] = []
        while len(captions) < count:
            kind, name = self.rng.random(), self.pick(self.attributes)
            if kind < 0.48:
                captions.append(self.clause(name))
                if OPPOSITE.get(name) in self.attributes and self.rng.random() < 0.5:
                    captions.append(self.clause(OPPOSITE[name]))
            elif kind < 0.63:
                captions.append(self.clause(name, denied=True))
            elif kind < 0.78:
                captions.append(self.pair())
            elif kind < 0.84:
                captions.append(self.baseline())
            else:
                captions.append(self.nothing())
        return captions[:count]
