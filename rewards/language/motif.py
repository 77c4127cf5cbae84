"""Motif: a reward learnt from labels that were collected before training, then frozen.

Labels of captions, or preferences between two of them, are read from a file: what an annotator recorded or cached, or
what a person wrote. Pairs are fitted by a ranking, single labels by a classifier; both are normalised alike.

    r(s') = max(z, 0) 1[z > quantile of z over the distinct captions of the file] / N_ep(caption)^beta,
    z = (f - mean) / std over the same captions

Source: Klissarov, D'Oro, Sodhani, Raileanu, Bacon, Vincent, Zhang, Henaff 2023, "Motif: Intrinsic Motivation from
Artificial Intelligence Feedback", arXiv 2310.00166, section 3 (equations 1 and 2), and its code.
Differences: mean and deviation are those of distinct captions, as the quantile's (the source takes both over all
pairs); never negative; single labels will do, then f is the classifier's logit; n-grams by default, the source's
convolutions with encoder=charcnn; the caption of s' is rewarded, not that of s.
When it fails: captions unlike any in the file, which the model rates all the same; rewards never catch up with what the
agent finds only later. `reward=oni` asks about that.
"""

import copy
import functools
import hashlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lodestar.files import LARGE, read_bytes
from lodestar.settings import setting
from rewards.language.captioned import Captioned, CaptionedConfig
from rewards.language.label_models import ENCODERS, LabelModel, Normaliser, fewest_of_a_kind
from rewards.llm.judges.local import RecordedLabels
from rewards.llm.store import Item, texts_in

# Gradient steps on however few labels.
MIN_GRADIENT_STEPS = 100


@dataclass
class MotifConfig(CaptionedConfig):
    """Settings of motif; the source's value in brackets where it differs."""

    # As in the source, beside a task reward of weight 0.1 or 10.
    weight: Any = 0.1
    data: str = setting(
        "",
        'labels: JSONL, {"text", "value"} or {"text", "other", "value"} a line, a value in [0, 1] (1: it helps; of '
        "a pair: the other is better) or null for unsure; or an annotator's cache. Pairs are taken if there are any",
    )
    encoder: str = setting("ngrams", "ngrams or charcnn [charcnn]", choices=ENCODERS)
    quantile: float = setting(0.5, "rewarded above this quantile of z over the distinct captions", "(0, 1)")
    epochs: int = setting(10, "passes over the labels", ">= 1")
    held_out: float = setting(0.2, "share of the labels that are held out to measure with", "(0, 1)")
    learning_rate: float = setting(0.003, "Adam's step size [1e-5]", "> 0")
    batch_size: int = setting(256, "labels in a gradient step, at most [1024]", ">= 1")


class Motif(Captioned):
    """r(s') = max(z, 0) 1[z > quantile] / N_ep(caption)^beta, with a z that was fitted to labels of a file."""

    Config = MotifConfig
    config: MotifConfig

    def build(self) -> None:
        super().build()
        config = self.config
        path = Path(config.data)
        if not config.data or not path.is_file():
            raise ValueError(f"reward motif: data={config.data!r} is no file; give one that `runners.annotate` wrote")
        # The digest makes a file that has changed another key of the cache of fits.
        digest = hashlib.sha256(read_bytes(path.resolve(), LARGE)).hexdigest()
        settings = (config.epochs, config.held_out, config.encoder, config.learning_rate, config.batch_size)
        fitted = _fit_labels(str(path), digest, *settings, self.seed, self.device)
        self.model = LabelModel(config.encoder, learning_rate=config.learning_rate, seed=self.seed, device=self.device)
        self.model.load_state_dict(copy.deepcopy(fitted["model"]))
        self.normaliser = Normaliser()
        self.normaliser.set(fitted["scores"], config.quantile)
        self.about = fitted["about"]

    def value(self, texts: Sequence[str]) -> np.ndarray:
        return self.normaliser(self.model.predict(texts))

    def notes(self) -> list[str]:
        return list(self.about)


@functools.lru_cache(8)
def _fit_labels(
    path: str,
    digest: str,
    epochs: int,
    held_out: float,
    encoder: str,
    learning_rate: float,
    batch_size: int,
    seed: int,
    device: str,
) -> dict[str, Any]:
    """A model fitted to the labels of a file: its state, its scores of all captions, and notes on both."""
    values = {}
    for item, value in RecordedLabels(path).labels.items():
        if not math.isnan(value):
            values[item] = value
    pairs: list[Item] = [item for item in values if not isinstance(item, str)]
    items: list[Item] = pairs or list(values)
    if len(items) < 2:
        raise ValueError(f"reward motif: data={path!r} holds {len(items)} sure labels; give at least 2")
    labels = np.array([values[item] for item in items])
    order = np.random.default_rng(seed).permutation(len(items))
    test_count = max(round(held_out * len(items)), 1)
    test = order[:test_count]
    train = order[test_count:]
    if not fewest_of_a_kind(labels[train], bool(pairs)):
        raise ValueError(
            f"reward motif: data={path!r} holds {len(items)} labels that distinguish no caption; add others"
        )
    model = LabelModel(encoder, learning_rate=learning_rate, batch_size=batch_size, seed=seed, device=device)
    steps = max(epochs * math.ceil(len(train) / batch_size), MIN_GRADIENT_STEPS)
    model.fit([items[row] for row in train], labels[train], steps)
    accuracy = model.accuracy([items[row] for row in test], labels[test])
    texts = set(itertools.chain.from_iterable(map(texts_in, items)))
    kind = "pairs" if pairs else "labels"
    note = f"learnt from {len(items):,} {kind} of {len(texts):,} captions in {path}"
    note += "; the judgement is that of their author"
    if accuracy is not None:
        note += f"; {accuracy:.0%} of the {test_count:,} held out are predicted"
    return {"about": [note], "model": model.state_dict(), "scores": model.predict(sorted(texts))}
