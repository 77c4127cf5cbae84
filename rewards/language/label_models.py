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
more, at most `CAP` times; `ngrams` reads a number as so many digits, so that texts which differ by a counter are alike.
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

from lodestar.numerics.flat import Flat
from lodestar.state import Stateful
from rewards.llm.store import Item, texts_in

ENCODERS = ("ngrams", "charcnn")
BUCKETS, WIDTH = 4096, 32  # of hashed n-grams; numbers for each
LENGTH = 256  # bytes of a text that the convolutions read; n-grams are taken from four times as many characters
CAP = 10.0  # most that a label of the rarer class weighs
PIECE = 1024  # texts predicted at a time, to bound memory
MOST = 100_000  # labels kept; a full table drops the oldest
HELD_FROM = 100  # labels before any is held out: the first few are too precious
HELD = 10  # one label in so many is held out then
HELD_OUT = 1000  # labels held out that are looked at, at most


class CaptionTable:
    """Captions met, least recent first, with their counts; beyond `capacity` the least recent are forgotten."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.now = capacity, 0
        self.rewarded = 0  # of the transitions in `now`, those whose caption earned a reward when it was met
        self.counts: dict[str, int] = {}  # in the order in which they were last met

    def see(self, counts: Mapping[str, int], transitions: int) -> None:
        """Count the captions of so many transitions; none of them is empty."""
        self.now += transitions
        for text, count in counts.items():
            self.counts[text] = self.counts.pop(text, 0) + count
        for text in list(itertools.islice(self.counts, max(len(self.counts) - self.capacity, 0))):
            del self.counts[text]

    def newest(self, count: int) -> list[str]:
        return list(itertools.islice(reversed(self.counts), count))

    def state_dict(self) -> dict[str, Any]:
        return {
            "now": self.now,
            "rewarded": self.rewarded,
            "texts": list(self.counts),
            "counts": list(self.counts.values()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.now = int(state["now"])
        self.rewarded = int(state.get("rewarded", 0))  # checkpoints of 0.4.0 do not hold it
        self.counts = dict(zip(state["texts"], map(int, state["counts"])))


class LabelTable:
    """Labels in [0, 1] of texts or pairs, NaN where unsure; of a hundred and more one in ten, by hash, is held out."""

    def __init__(self) -> None:
        self.values: dict[Item, float] = {}  # the oldest first
        self.texts: set[str] = set()  # all that have a label, alone or in a pair
        self._held: set[Item] = set()

    def add(self, item: Item, value: float) -> None:
        """Take in an answer; a second one about an item replaces the first."""
        if item not in self.values and len(self.values) >= HELD_FROM and crc(item) % HELD == 0:
            self._held.add(item)
        self.values[item] = value
        self.texts.update(texts_in(item))
        if len(self.values) > MOST:
            oldest = next(iter(self.values))
            del self.values[oldest]
            self._held.discard(oldest)
            self.texts.difference_update([oldest] if isinstance(oldest, str) else ())  # a text may be in other pairs

    def sure(self, held: bool = False) -> tuple[list[Item], np.ndarray]:
        """Items with a label to learn from, or those that are held out; and their labels, float64 (B,)."""
        found = [(i, v) for i, v in self.values.items() if (i in self._held) == held and not math.isnan(v)]
        return [item for item, _ in found], np.array([value for _, value in found])

    def metrics(self) -> dict[str, float]:
        values = np.fromiter(self.values.values(), np.float64, len(self.values))
        return {"labels": float(len(values) - np.isnan(values).sum()), "positives": float((values > 0.5).sum())}

    def state_dict(self) -> dict[str, Any]:
        items = [item if isinstance(item, str) else list(item) for item in self.values]
        held = np.array([item in self._held for item in self.values], bool)
        return {"items": items, "values": np.array(list(self.values.values())), "held": held}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        items = [item if isinstance(item, str) else tuple(item) for item in state["items"]]
        self.values = dict(zip(items, np.asarray(state["values"]).tolist()))
        self._held = set(itertools.compress(items, state["held"]))
        self.texts = {text for item in items for text in texts_in(item)}


def crc(item: Item) -> int:
    """A checksum of an item, equal in every process."""
    return zlib.crc32("\0".join(texts_in(item)).encode("utf-8", "surrogatepass"))


@functools.lru_cache(1 << 16)
def buckets(text: str) -> np.ndarray:
    """The n-grams of a text: distinct numbers below `BUCKETS`, uint16 (G,), ascending; bucket 0 for every text."""
    text = text[: 4 * LENGTH].lower()
    masked = f" {re.sub(r'[0-9]', '0', text)} "
    grams = {masked[i : i + n] for n in (3, 4, 5) for i in range(len(masked) - n + 1)}
    grams.update(f"={word}" for word in re.findall(r"\w+", text))
    found = {zlib.crc32(gram.encode("utf-8", "surrogatepass")) % (BUCKETS - 1) + 1 for gram in grams}
    return np.array([0, *sorted(found)], np.uint16)


@functools.lru_cache(1 << 16)
def characters(text: str) -> np.ndarray:
    """The first bytes of a text, uint8 (LENGTH,), filled up with 0."""
    data = text.encode("latin-1", "replace")[:LENGTH]
    return np.frombuffer(data.ljust(LENGTH, b"\0"), np.uint8)


class LabelModel(Stateful):
    """f(text), a number without bounds; sigmoid(f) is the chance that a text helps, or beats another one."""

    saved = ("net", "optimizer", "generator", "rng", "steps")

    def __init__(
        self, encoder: str, *, learning_rate: float, batch_size: int = 256, seed: int = 0, device: str = "cpu"
    ) -> None:
        self.device, self.learning_rate, self.batch_size, self.steps = device, learning_rate, batch_size, 0
        self.generator = torch.Generator().manual_seed(seed)
        self.rng = np.random.default_rng(seed)
        net = _NGrams(self.generator) if encoder == "ngrams" else _CharCNN(self.generator)
        self.net: _NGrams | _CharCNN = net.to(device).eval()
        self.optimizer = Flat.over(list(self.net.parameters()), epsilon=1e-8)

    @torch.no_grad()
    def predict(self, items: Sequence[Item]) -> np.ndarray:
        """f of B texts, or f(second) - f(first) of B pairs, float32 (B,)."""
        if len(items) and not isinstance(items[0], str):
            first, second = zip(*items)
            return self.predict(second) - self.predict(first)
        pieces = [self._f(items[start : start + PIECE]).cpu().numpy() for start in range(0, len(items), PIECE)]
        return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)

    def fit(self, items: Sequence[Item], labels: np.ndarray, steps: int) -> float:
        """Take `steps` towards labels in [0, 1], (B,), of B texts or pairs (1: the second is better); the mean loss."""
        weight, count = np.ones(len(labels)), len(labels)
        if isinstance(items[0], str):
            positive = float(np.mean(labels))
            # a label's weight is 1 / (2 share of its class), so that both classes count alike
            weights = np.minimum(0.5 / np.maximum([1 - positive, positive], 1e-9), CAP)
            weight = weights[0] + (weights[1] - weights[0]) * labels
        total = 0.0
        self.net.train()
        for _ in range(steps):
            rows = np.arange(count) if count <= self.batch_size else self.rng.integers(count, size=self.batch_size)
            y, w = (torch.as_tensor(x[rows], dtype=torch.float32, device=self.device) for x in (labels, weight))
            value = binary_cross_entropy_with_logits(self._f([items[row] for row in rows]), y, w)
            self.optimizer.grad.zero_()
            value.backward()
            self.optimizer.step(self.learning_rate, max_grad_norm=10.0)
            total += float(value.detach())
        self.net.eval()
        self.steps += steps
        return total / max(steps, 1)

    def accuracy(self, items: Sequence[Item], labels: np.ndarray) -> float | None:
        """Share of the newest labels (B,) that the model agrees with, ties aside; None where there are none."""
        decided = np.flatnonzero(labels != 0.5)[-HELD_OUT:]
        right = (self.predict([items[row] for row in decided]) > 0) == (labels[decided] > 0.5)
        return float(right.mean()) if len(decided) else None

    def _f(self, items: Sequence[Item]) -> torch.Tensor:
        pairs = not isinstance(items[0], str)
        texts: Any = [text for side in zip(*items) for text in side] if pairs else items
        f = self.net(*(x.to(self.device) for x in self.net.read(texts)))
        if not pairs:
            return f
        first, second = f.chunk(2)
        return second - first


class Normaliser(Stateful):
    """Scores -> rewards, never negative, unlike the sources': z = (f - mean) / std above 0 and the quantile, else 0."""

    saved = ("mean", "std", "threshold")

    def __init__(self) -> None:
        self.mean, self.std, self.threshold = 0.0, 1.0, 0.0

    def set(self, scores: np.ndarray, quantile: float) -> None:
        """Take mean, deviation and `quantile` in (0, 1) from the scores (B,) of distinct texts, B at least 1."""
        self.mean, self.std = float(scores.mean()), max(float(scores.std()), 1e-6)
        self.threshold = float(np.quantile((scores - self.mean) / self.std, quantile))

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        z = (scores - self.mean) / self.std
        return np.where(z > self.threshold, np.maximum(z, 0), 0).astype(np.float32)


class _NGrams(nn.Module):
    """The mean of the n-grams' embeddings, through one hidden layer."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.bag = skip_init(nn.EmbeddingBag, BUCKETS, WIDTH, mode="mean")
        nn.init.zeros_(self.bag.weight)  # what was never learnt adds nothing
        self.hidden, self.out = _layer(WIDTH, 64, generator), _layer(64, 1, generator)

    def read(self, texts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Buckets of all texts, one after the other, and where each text begins."""
        found = [buckets(text) for text in texts]
        ends = np.cumsum([len(x) for x in found])
        return torch.from_numpy(np.concatenate(found, dtype=np.int64)), torch.from_numpy(np.r_[0, ends[:-1]])

    def forward(self, grams: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
        # tanh, not ReLU: it has a slope at 0, where all texts begin
        return self.out(torch.tanh(self.hidden(self.bag(grams, begins)))).squeeze(1)


class _CharCNN(nn.Module):
    """The sources' network, 256 bytes -> a number."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.embedding = skip_init(nn.Embedding, 256, 32)
        nn.init.normal_(self.embedding.weight, generator=generator)
        layers: list[nn.Module] = []
        for inputs, width, pool in ((32, 7, 3), (64, 7, 3), (64, 3, 0), (64, 3, 0), (64, 3, 0), (64, 3, 3)):
            layers += [_layer(inputs, 64, generator, width), nn.ReLU(), *[nn.MaxPool1d(pool)] * bool(pool)]
        self.convolutions = nn.Sequential(*layers, nn.Flatten())
        self.dense = nn.Sequential()
        for inputs, outputs in ((320, 128), (128, 512), (512, 512)):
            self.dense.extend([_layer(inputs, outputs, generator), nn.ReLU(), _Dropout(0.1, generator)])
        self.dense.append(_layer(512, 1, generator))

    def read(self, texts: Sequence[str]) -> tuple[torch.Tensor]:
        """Bytes, int64 (B, 256)."""
        return (torch.from_numpy(np.stack([characters(text) for text in texts]).astype(np.int64)),)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.dense(self.convolutions(self.embedding(text).transpose(1, 2))).squeeze(1)


class _Dropout(nn.Module):
    """Dropout that leaves torch's global generator alone."""

    def __init__(self, share: float, generator: torch.Generator) -> None:
        super().__init__()
        self.keep, self.generator = 1 - share, generator

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        mask = torch.empty(x.shape).bernoulli_(self.keep, generator=self.generator)
        return x * mask.to(x.device) / self.keep


def _layer(inputs: int, outputs: int, generator: torch.Generator, width: int = 0) -> nn.Linear | nn.Conv1d:
    """A dense layer, or a convolution of a width: orthogonal, without a draw from torch's global generator."""
    shape = (inputs, outputs, width) if width else (inputs, outputs)
    layer: Any = skip_init(nn.Conv1d if width else nn.Linear, *shape)
    nn.init.orthogonal_(layer.weight, 2**0.5, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer
