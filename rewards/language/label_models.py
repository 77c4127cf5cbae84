"""Tables of captions and labels, and the models learnt from them: one number a text, fitted to labels or to pairs.

    labels   y in [0, 1]   L = -w(y) (y log p + (1 - y) log(1 - p)),  p = sigmoid(f(text)),  w by inverse frequency
    pairs    y in [0, 1]   L = the same with p = sigmoid(f(second) - f(first)): Bradley and Terry's model, 0.5 for ties

Two networks read a text:

    ngrams    hashed words and character n-grams (3 to 5), embedded, averaged, through a small dense network; fast
    charcnn   the sources': 256 characters embedded in 32 numbers, six convolutions, dense layers; three pools

Sources: Zheng et al. 2024, ONI, arXiv 2410.23022, section 2 (both losses, the convolutions, Adam, batches of 256);
Klissarov et al. 2023, Motif, arXiv 2310.00166, section 3 (the ranking, its normaliser and quantile); Joulin et al.
2016, "Bag of Tricks for Efficient Text Classification", arXiv 1607.01759 (hashed n-grams).
Differences: one output with a sigmoid where the source has a softmax over two: the same loss; the rarer class weighs
more, at most `MAX_CLASS_WEIGHT` times; `ngrams` reads a number as so many digits, so that texts which differ by a
counter are alike.
When it fails: labels that depend on a number or on the order of words; fewer labels than kinds of texts; a caption that
comes back after `capacity` others is counted as new.
"""

import functools
import itertools
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.utils import skip_init

from lodestar.numerics.descent import Flat
from lodestar.state import Stateful
from rewards.llm.store import Item, texts_in

ENCODERS = ("ngrams", "charcnn")
# Hashed n-grams, and the numbers for each.
NGRAM_BUCKETS = 4096
NGRAM_WIDTH = 32
# What the convolutions read of a text; n-grams are taken from four times as many characters.
MAX_TEXT_BYTES = 256
# How much more a label of the rarer class weighs, at most.
MAX_CLASS_WEIGHT = 10.0
# Texts predicted at a time, to bound memory.
PREDICTION_BATCH = 1024
# A full table drops the oldest label.
MAX_LABELS = 100_000
# The first labels are too precious to hold out; from then on one in ten is.
LABELS_BEFORE_HOLDOUT = 100
HOLDOUT_EVERY = 10
# The accuracy looks at this many of the newest labels held out.
MAX_HOLDOUT_LABELS = 1000


class CaptionTable:
    """Captions met, least recent first, with their counts; beyond `capacity` the least recent are forgotten."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        # Transitions so far, and those of them whose caption earned a reward when it was met.
        self.now = 0
        self.rewarded = 0
        # Transitions whose caption got its label only after they were rewarded.
        self.late = 0
        # In the order in which the captions were last met.
        self.counts: dict[str, int] = {}

    def count_captions(self, counts: Mapping[str, int], transitions: int) -> None:
        """Count the captions of so many transitions; none of them is empty."""
        self.now += transitions
        for text, count in counts.items():
            self.counts[text] = self.counts.pop(text, 0) + count
        surplus = max(len(self.counts) - self.capacity, 0)
        for text in list(itertools.islice(self.counts, surplus)):
            del self.counts[text]

    def newest(self, count: int) -> list[str]:
        return list(itertools.islice(reversed(self.counts), count))

    def state_dict(self) -> dict[str, Any]:
        return {
            "now": self.now,
            "rewarded": self.rewarded,
            "late": self.late,
            "texts": list(self.counts),
            "counts": list(self.counts.values()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.now = int(state["now"])
        # Checkpoints of 0.4.0 do not hold these.
        self.rewarded = int(state.get("rewarded", 0))
        self.late = int(state.get("late", 0))
        self.counts = dict(zip(state["texts"], map(int, state["counts"])))


class LabelTable:
    """Labels in [0, 1] of texts or pairs, NaN where unsure; of a hundred and more one in ten, by hash, is held out."""

    def __init__(self) -> None:
        # The oldest label first.
        self.values: dict[Item, float] = {}
        # All texts that have a label, alone or in a pair.
        self.texts: set[str] = set()
        self._held_out: set[Item] = set()

    def add(self, item: Item, value: float) -> None:
        """Take in an answer; a second one about an item replaces the first."""
        is_new = item not in self.values
        if is_new and len(self.values) >= LABELS_BEFORE_HOLDOUT and crc(item) % HOLDOUT_EVERY == 0:
            self._held_out.add(item)
        self.values[item] = value
        self.texts.update(texts_in(item))
        if len(self.values) > MAX_LABELS:
            oldest = next(iter(self.values))
            del self.values[oldest]
            self._held_out.discard(oldest)
            # The texts of a pair stay, as they may be in other pairs.
            if isinstance(oldest, str):
                self.texts.discard(oldest)

    def labelled_items(self, held: bool = False) -> tuple[list[Item], np.ndarray]:
        """Items with a label to learn from, or those that are held out; and their labels, float64 (B,)."""
        items = []
        values = []
        for item, value in self.values.items():
            if (item in self._held_out) == held and not math.isnan(value):
                items.append(item)
                values.append(value)
        return items, np.array(values)

    def metrics(self) -> dict[str, float]:
        values = np.fromiter(self.values.values(), np.float64, len(self.values))
        sure = len(values) - np.isnan(values).sum()
        return {"labels": float(sure), "positives": float((values > 0.5).sum())}

    def state_dict(self) -> dict[str, Any]:
        items = [item if isinstance(item, str) else list(item) for item in self.values]
        held_out = [item in self._held_out for item in self.values]
        return {"items": items, "values": np.array(list(self.values.values())), "held": np.array(held_out, bool)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        items = [item if isinstance(item, str) else tuple(item) for item in state["items"]]
        self.texts = set(itertools.chain.from_iterable(map(texts_in, items)))
        self.values = dict(zip(items, np.asarray(state["values"]).tolist()))
        self._held_out = set(itertools.compress(items, state["held"]))


def crc(item: Item) -> int:
    """A checksum of an item, equal in every process."""
    return zlib.crc32("\0".join(texts_in(item)).encode("utf-8", "surrogatepass"))


def fewest_of_a_kind(labels: np.ndarray, pairs: bool) -> int:
    """How many labels (B,) of pairs name a winner, or how many of texts are of the rarer class."""
    if pairs:
        return int((labels != 0.5).sum())
    return int(min((labels > 0.5).sum(), (labels <= 0.5).sum()))


@functools.lru_cache(1 << 16)
def buckets(text: str) -> np.ndarray:
    """The n-grams of a text: distinct numbers below `NGRAM_BUCKETS`, uint16 (G,), ascending; 0 is one of every text."""
    text = text[: 4 * MAX_TEXT_BYTES].lower()
    # Texts that differ by a counter share their character n-grams, but not their words.
    masked = f" {re.sub(r'[0-9]', '0', text)} "
    grams = {"=" + word for word in re.findall(r"\w+", text)}
    for n in (3, 4, 5):
        for start in range(len(masked) - n + 1):
            grams.add(masked[start : start + n])
    numbers = {0}
    for gram in grams:
        checksum = zlib.crc32(gram.encode("utf-8", "surrogatepass"))
        numbers.add(checksum % (NGRAM_BUCKETS - 1) + 1)
    return np.array(sorted(numbers), np.uint16)


@functools.lru_cache(1 << 16)
def characters(text: str) -> np.ndarray:
    """The first bytes of a text, uint8 (MAX_TEXT_BYTES,), filled up with 0."""
    data = text.encode("latin-1", "replace")[:MAX_TEXT_BYTES]
    return np.frombuffer(data.ljust(MAX_TEXT_BYTES, b"\0"), np.uint8)


class LabelModel(Stateful):
    """f(text), a number without bounds; sigmoid(f) is the chance that a text helps, or beats another one."""

    saved = ("net", "optimizer", "generator", "rng", "steps")

    def __init__(
        self, encoder: str, *, learning_rate: float, batch_size: int = 256, seed: int = 0, device: str = "cpu"
    ) -> None:
        self.device = device
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.steps = 0
        self.generator = torch.Generator().manual_seed(seed)
        self.rng = np.random.default_rng(seed)
        kind = _NGrams if encoder == "ngrams" else _CharCNN
        self.net: _NGrams | _CharCNN = kind(self.generator).to(device).eval()
        self.optimizer = Flat.of_parameters(list(self.net.parameters()), epsilon=1e-8)

    @torch.no_grad()
    def predict(self, items: Sequence[Item]) -> np.ndarray:
        """f of B texts, or f(second) - f(first) of B pairs, float32 (B,)."""
        if len(items) and not isinstance(items[0], str):
            first, second = zip(*items)
            return self.predict(second) - self.predict(first)
        pieces = [np.zeros(0, np.float32)]
        for start in range(0, len(items), PREDICTION_BATCH):
            f = self._logits(items[start : start + PREDICTION_BATCH])
            pieces.append(f.cpu().numpy())
        return np.concatenate(pieces)

    def fit(self, items: Sequence[Item], labels: np.ndarray, steps: int) -> float:
        """Take `steps` towards labels in [0, 1], (B,), of B texts or pairs (1: the second is better); the mean loss."""
        count = len(labels)
        weight = np.ones(count)
        if isinstance(items[0], str):
            # A label's weight is 1 / (2 share of its class), so that both classes count alike.
            positive = float(np.mean(labels))
            shares = np.maximum([1 - positive, positive], 1e-9)
            class_weights = np.minimum(0.5 / shares, MAX_CLASS_WEIGHT)
            weight = class_weights[0] + (class_weights[1] - class_weights[0]) * labels
        total = 0.0
        self.net.train()
        for _ in range(steps):
            if count <= self.batch_size:
                rows = np.arange(count)
            else:
                rows = self.rng.integers(count, size=self.batch_size)
            facts = np.stack([labels[rows], weight[rows]]).astype(np.float32)
            y, w = torch.from_numpy(facts).to(self.device)
            f = self._logits([items[row] for row in rows.tolist()])
            loss = binary_cross_entropy_with_logits(f, y, w)
            total += float(self.optimizer.descend(loss, self.learning_rate, 10.0))
        self.net.eval()
        self.steps += steps
        return total / max(steps, 1)

    def accuracy(self, items: Sequence[Item], labels: np.ndarray) -> float | None:
        """Share of the newest labels (B,) that the model agrees with, ties aside; None where there are none."""
        decided = np.flatnonzero(labels != 0.5)[-MAX_HOLDOUT_LABELS:]
        if not len(decided):
            return None
        predicted = self.predict([items[row] for row in decided]) > 0
        is_right = predicted == (labels[decided] > 0.5)
        return float(is_right.mean())

    def _logits(self, items: Sequence[Item]) -> torch.Tensor:
        if isinstance(items[0], str):
            return self._outputs(items)
        # All first texts, then all second ones, in one pass.
        first_texts, second_texts = zip(*items)
        first, second = self._outputs(first_texts + second_texts).chunk(2)
        return second - first

    def _outputs(self, texts: Any) -> torch.Tensor:
        inputs = [x.to(self.device) for x in self.net.read(texts)]
        f: torch.Tensor = self.net(*inputs)
        return f


class Normaliser(Stateful):
    """Scores -> rewards, never negative, unlike the sources': z = (f - mean) / std above 0 and the quantile, else 0."""

    saved = ("mean", "std", "threshold")

    def __init__(self) -> None:
        self.mean = 0.0
        self.std = 1.0
        self.threshold = 0.0

    def set(self, scores: np.ndarray, quantile: float) -> None:
        """Take mean, deviation and `quantile` in (0, 1) from the scores (B,) of distinct texts, B at least 1."""
        self.mean = float(scores.mean())
        self.std = max(float(scores.std()), 1e-6)
        z = (scores - self.mean) / self.std
        self.threshold = float(np.quantile(z, quantile))

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        z = (scores - self.mean) / self.std
        return np.where(z > self.threshold, np.maximum(z, 0), 0).astype(np.float32)


class _NGrams(nn.Module):
    """The mean of the n-grams' embeddings, through one hidden layer."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.bag = skip_init(nn.EmbeddingBag, NGRAM_BUCKETS, NGRAM_WIDTH, mode="mean")
        # An n-gram that was never learnt adds nothing.
        nn.init.zeros_(self.bag.weight)
        self.hidden = _make_layer(NGRAM_WIDTH, 64, generator)
        self.out = _make_layer(64, 1, generator)

    def read(self, texts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Buckets of all texts, one after the other, and where each text begins."""
        grams = list(map(buckets, texts))
        ends = np.cumsum(list(map(len, grams)))
        begins = torch.from_numpy(np.r_[0, ends[:-1]])
        return torch.from_numpy(np.concatenate(grams, dtype=np.int64)), begins

    def forward(self, grams: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
        # A tanh, not a ReLU: it has a slope at 0, where all texts begin.
        hidden = torch.tanh(self.hidden(self.bag(grams, begins)))
        return self.out(hidden).squeeze(1)


class _CharCNN(nn.Module):
    """The sources' network, 256 bytes -> a number."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.embedding = skip_init(nn.Embedding, 256, 32)
        nn.init.normal_(self.embedding.weight, generator=generator)
        layers: list[nn.Module] = []
        for inputs, width, pool in ((32, 7, 3), (64, 7, 3), (64, 3, 0), (64, 3, 0), (64, 3, 0), (64, 3, 3)):
            layers += [_make_layer(inputs, 64, generator, width), nn.ReLU()]
            if pool:
                layers.append(nn.MaxPool1d(pool))
        self.convolutions = nn.Sequential(*layers, nn.Flatten())
        dense: list[nn.Module] = []
        for inputs, outputs in ((320, 128), (128, 512), (512, 512)):
            dense += [_make_layer(inputs, outputs, generator), nn.ReLU(), _Dropout(0.1, generator)]
        self.dense = nn.Sequential(*dense, _make_layer(512, 1, generator))

    def read(self, texts: Sequence[str]) -> tuple[torch.Tensor]:
        """Bytes, int64 (B, 256)."""
        data = np.stack(list(map(characters, texts)))
        return (torch.from_numpy(data.astype(np.int64)),)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        # Convolutions take the channels before the places: (B, 32, 256).
        embedded = self.embedding(text).transpose(1, 2)
        return self.dense(self.convolutions(embedded)).squeeze(1)


class _Dropout(nn.Module):
    """Dropout that leaves torch's global generator alone."""

    def __init__(self, share: float, generator: torch.Generator) -> None:
        super().__init__()
        self.keep = 1 - share
        self.generator = generator

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        mask = torch.empty(x.shape).bernoulli_(self.keep, generator=self.generator)
        return x * mask.to(x.device) / self.keep


def _make_layer(inputs: int, outputs: int, generator: torch.Generator, width: int = 0) -> nn.Linear | nn.Conv1d:
    """A dense layer, or a convolution of a width: orthogonal, without a draw from torch's global generator."""
    layer: Any
    if width:
        layer = skip_init(nn.Conv1d, inputs, outputs, width)
    else:
        layer = skip_init(nn.Linear, inputs, outputs)
    nn.init.orthogonal_(layer.weight, 2**0.5, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer
