"""The words of an in-domain CLIP: whole English words, with the frozen vectors that ship.

A caption grammar has a few hundred words, and a text tower trained on it alone reads a synonym as noise. In the shipped
vectors synonyms are neighbours. What remains of a sentence's sense, order and negation, the tower learns itself.
"""

import re
from itertools import compress
from pathlib import Path

import numpy as np

from rewards.vision.training.lexicon import NEGATIONS, PAIRS, TEMPLATES, Lexicon


def letters(text: str) -> list[str]:
    """The words of a text as the tokenizer sees them: lower case, no punctuation."""
    return re.findall("[a-z]+", text.lower().replace("'", ""))


def training_words(lexicon: Lexicon) -> list[str]:
    """Every word that a training caption may hold, sorted."""
    texts = [*TEMPLATES, *NEGATIONS, *PAIRS]
    texts += [*lexicon.things, *lexicon.qualities]
    for attribute in lexicon.attributes.values():
        texts += attribute.said
    for subject in lexicon.subjects.values():
        texts += [*subject.said, *subject.tails]
    for group in lexicon.baselines.values():
        texts += group
    without_slots = re.sub(r"\{.\}", " ", " ".join(texts))
    return sorted(set(letters(without_slots)))


def far_words(lexicon: Lexicon, words: list[str], vectors: np.ndarray) -> list[str]:
    """The half of the words that is least like any word of a caption: what sentences without meaning are made of.

    Were a neighbour of a caption's word among them, training would teach that synonyms mean nothing.
    """
    ours = set(training_words(lexicon))
    near = (vectors @ vectors[[word in ours for word in words]].T).max(1)
    return list(compress(words, near < np.median(near)))


def read(folder: Path) -> list[str]:
    """The words of a folder that `write` filled."""
    return (folder / "words.txt").read_text(encoding="utf-8").split()
