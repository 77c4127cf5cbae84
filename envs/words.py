"""Sentences as numbers, for observations that hold text: a hashed bag of words that needs no vocabulary."""

from __future__ import annotations

import functools
import hashlib
import re

import numpy as np

WORDS = 64


@functools.lru_cache(maxsize=4096)
def hashed_words(text: bytes) -> np.ndarray:
    """Which words a text has, whatever their order, case and number.

    Each word sets two of the places, so two words are told apart even where one of their places is the same.

    Args:
        text: latin letters count, everything else separates words.

    Returns:
        float32 (64,) in {0, 1}, read-only.
    """
    bag = np.zeros(WORDS, dtype=np.float32)
    for word in re.findall(rb"[a-z]+", text.lower()):
        # Not Python's hash(), which changes from process to process, nor crc32, whose bits depend on each other.
        bag[[byte % WORDS for byte in hashlib.blake2b(word, digest_size=8).digest()[:2]]] = 1.0
    bag.setflags(write=False)
    return bag
