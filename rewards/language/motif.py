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
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lodestar.files import LARGE, read_bytes
from lodestar.settings import setting
from rewards.language.captioned import Captioned, CaptionedConfig
from rewards.language.label_models import ENCODERS, LabelModel, Normaliser
from rewards.llm.judges.local import RecordedLabels
from rewards.llm.store import Item, texts_in

LEAST_STEPS = 100  # gradient steps on however few labels


@dataclass
class MotifConfig(CaptionedConfig):
    """Settings of motif; the source's value in brackets where it differs."""

    weight: Any = 0.1  # as in the source, beside a task reward of weight 0.1 or 10
    data: str = setting(
        "",
        'labels: JSONL, {"text", "value"} or {"text", "other", "value"} a line, a value in [0, 1] (1: it helps; of '
        "a pair: the other is better) or null for unsure; or an annotator's cache. Pairs are taken if there are any",
    )
    encoder: str = setting("ngrams", "ngrams or charcnn [charcnn]", choices=ENCODERS)
    quantile: float = setting(0.5, "rewarded above this quantile of z over the distinct captions", above=0, below=1)
    epochs: int = setting(10, "passes over the labels", low=1)
    held_out: float = setting(0.2, "share of the labels that are held out to measure with", above=0, below=1)
    learning_rate: float = setting(0.003, "Adam's step size [1e-5]", above=0)
    batch_size: int = setting(256, "labels in a gradient step, at most [1024]", low=1)


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
        settings = (config.encoder, config.epochs, config.held_out, config.learning_rate, config.batch_size)
        fitted = _fitted(
            str(path), hashlib.sha256(read_bytes(path.resolve(), LARGE)).hexdigest(), settings, self.seed, self.device
        )
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
def _fitted(
    path: str, digest: str, settings: tuple[str, int, float, float, int], seed: int, device: str
) -> dict[str, Any]:
    encoder, epochs, held_out, learning_rate, batch_size = settings
    known = {item: value for item, value in RecordedLabels(path).labels.items() if not math.isnan(value)}
    pairs = not all(isinstance(item, str) for item in known)
    items: list[Item] = [item for item in known if isinstance(item, str) != pairs]
    labels = np.array([known[item] for item in items])
    if len(items) < 2:
        raise ValueError(f"reward motif: data={path!r} holds {len(items)} sure labels; give at least 2")
    order = np.random.default_rng(seed).permutation(len(items))
    held = max(round(held_out * len(items)), 1)
    test, train = order[:held], order[held:]
    learnt = labels[train]
    if (pairs and not (learnt != 0.5).any()) or (not pairs and len(set(learnt > 0.5)) < 2):
        raise ValueError(
            f"reward motif: data={path!r} holds {len(items)} labels that distinguish no caption; add others"
        )
    model = LabelModel(encoder, learning_rate=learning_rate, batch_size=batch_size, seed=seed, device=device)
    steps = max(epochs * math.ceil(len(train) / batch_size), LEAST_STEPS)
    model.fit([items[row] for row in train], learnt, steps)
    texts = sorted({text for item in items for text in texts_in(item)})
    right = model.accuracy([items[row] for row in test], labels[test])
    about = (
        f"learnt from {len(items):,} {'pairs' if pairs else 'labels'} of {len(texts):,} captions in {path}; the "
        "judgement is that of their author"
        + ("" if right is None else f"; {right:.0%} of the {held:,} held out are predicted")
    )
    return {"about": [about], "model": model.state_dict(), "scores": model.predict(texts)}
