"""The vocabulary of the in-domain CLIP: whole English words, with vectors from a sentence encoder.

A caption grammar has a few hundred words, and a text tower trained on it alone reads a synonym as noise. So each word
gets a frozen vector in which synonyms are neighbours: how a sentence encoder (all-MiniLM-L6-v2, Apache-2.0) sees the
word in a few sentences, reduced to the tower's width. What remains of a sentence's sense, order and negation, the tower
learns itself.

The result is shipped (words.txt, bpe.txt.gz, and the first rows of the token table), so retraining needs no encoder.
"""

from __future__ import annotations

import gzip
import io
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from rewards.vision.training.lexicon import Lexicon
from rewards.vision.training.words import training_words

CONTEXTS = (
    "{}",
    "the {} is here",
    "it is {} now",
    "a long thin {}",
    "the rod is {}",
    "drive the {} away",
    "it stays at the {}",
)
LENGTH = 0.5  # of a word's vector
Merge = tuple[str, str]


def from_encoder(path: str, lexicon: Lexicon, width: int, count: int) -> tuple[list[str], np.ndarray]:
    """Choose `count` words and give each a vector, float32 (count, width).

    The words: those of the captions, the most frequent of the encoder's vocabulary, and the neighbours of the captions'
    words.

    Args:
        path: a folder that sentence-transformers can load.
        lexicon: what the captions are made of.
        width: length of the vectors.
        count: how many words.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ImportError(
            f"words={path!r} needs the package sentence-transformers, which is not installed; "
            "leave `words` out to reuse the shipped vocabulary"
        ) from error
    encoder = SentenceTransformer(path, device="cpu")
    # BERT's vocabulary is sorted by frequency; what comes before "the" are symbols.
    ranked = sorted(encoder.tokenizer.get_vocab().items(), key=lambda item: item[1])
    start = next(i for i, (word, _) in enumerate(ranked) if word == "the")
    ours = training_words(lexicon)
    known = list(dict.fromkeys([*ours, *(w for w, _ in ranked[start:] if w.isascii() and w.isalpha() and len(w) > 1)]))
    near = np.zeros(len(known))
    for context in CONTEXTS[1:3]:
        view = _in_context(encoder, known, context)
        view = view - view.mean(0)
        view /= np.linalg.norm(view, axis=1, keepdims=True)
        near += (view @ view[: len(ours)].T).max(1)
    closest = np.argsort(-near, kind="stable")
    frequent = known[len(ours) : len(ours) + count // 2]
    words = list(dict.fromkeys([*ours, *frequent, *(known[i] for i in closest)]))[:count]
    return words, reduce(np.stack([_in_context(encoder, words, context) for context in CONTEXTS]), width)


def _in_context(encoder: object, words: list[str], context: str) -> np.ndarray:
    """The encoder's last layer over each word's own tokens inside a sentence: float32 (words, features)."""
    tokens = encoder.tokenizer(words, add_special_tokens=False)["input_ids"]  # type: ignore[attr-defined]
    before = len(encoder.tokenizer(context.split("{}")[0], add_special_tokens=False)["input_ids"]) + 1  # type: ignore[attr-defined]
    states = encoder.encode([context.format(w) for w in words], output_value="token_embeddings", batch_size=256)  # type: ignore[attr-defined]
    return np.stack([np.asarray(s[before : before + len(t)].mean(0).cpu()) for s, t in zip(states, tokens)])


def reduce(views: np.ndarray, width: int) -> np.ndarray:
    """(contexts, words, features) -> principal components (words, width), rows of equal length."""
    centred = [view - view.mean(0) for view in views]
    joined = np.concatenate([view / np.linalg.norm(view, axis=1, keepdims=True) for view in centred], 1)
    joined = joined - joined.mean(0)
    left, singular, _ = np.linalg.svd(joined, full_matrices=False)
    vectors = left[:, :width] * singular[:width]
    return (LENGTH * vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def build_merges(words: Sequence[str], shared: int = 1500) -> list[Merge]:
    """Byte-pair merges under which each word of `words` is one token, and any other word falls into pieces.

    First `shared` ordinary merges, by frequency over the list; then, word after word, whatever still keeps it in
    pieces. A later merge cannot break an earlier word: a word is always merged in rank order, so it is complete before
    its turn comes.
    """
    corpus = {word: _characters(word) for word in words}
    counts = Counter(pair for parts in corpus.values() for pair in pairwise(parts))
    ranks: dict[Merge, int] = {}
    while len(ranks) < shared and counts:
        pair = max(counts, key=lambda p: (counts[p], p))
        ranks[pair] = len(ranks)
        for word, parts in corpus.items():
            merged = _merge(parts, pair)
            if len(merged) < len(parts):
                counts.subtract(pairwise(parts))
                counts.update(pairwise(merged))
                corpus[word] = merged
        counts = +counts  # drops what is gone
    for word in words:
        parts = corpus[word]
        while len(parts) > 1:
            parts = _characters(word)
            while pairs := [p for p in pairwise(parts) if p in ranks]:
                parts = _merge(parts, min(pairs, key=ranks.__getitem__))
            if len(parts) > 1:
                ranks[parts[0], parts[1]] = len(ranks)
    return list(ranks)


def _characters(word: str) -> tuple[str, ...]:
    return (*word[:-1], word[-1] + "</w>")


def _merge(parts: tuple[str, ...], pair: Merge) -> tuple[str, ...]:
    if pair[0] not in parts:
        return parts
    result: list[str] = []
    i = 0
    while i < len(parts):
        if parts[i : i + 2] == pair:
            result.append(parts[i] + parts[i + 1])
            i += 2
        else:
            result.append(parts[i])
            i += 1
    return tuple(result)


def write(folder: Path, words: Sequence[str]) -> None:
    """Write words.txt and the merges in open_clip's format, reproducibly."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "words.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    text = "\n".join(["# whole words of words.txt", *(" ".join(pair) for pair in build_merges(words))])
    buffer = io.BytesIO()
    with gzip.GzipFile(
        filename="", fileobj=buffer, mode="wb", mtime=0
    ) as file:  # no time stamp: the same bytes each time
        file.write(text.encode("utf-8"))
    (folder / "bpe.txt.gz").write_bytes(buffer.getvalue())
