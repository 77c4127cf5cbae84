"""The model itself: open_clip's description of it, its words, and what is written beside its weights."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from assets.clip.train import words as vocabulary
from assets.clip.train.worlds import MODELS, Model
from assets.clip.train.worlds.lexicon import Lexicon

Tensor = Any  # torch.Tensor; torch is imported where it is used
ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / MODELS["lodestar"].folder  # of words: all models read with those of the first
CONTEXT = 64  # tokens
WIDTH = 96  # of the text tower, and of a word's vector
WORDS = 8000
NEAR = 0.85  # similarity with a known phrase below which a prompt counts as unfamiliar


def description(model: Model, vocab_size: int) -> dict[str, Any]:
    """open_clip's description of a model: a small ResNet, two text layers of width 96, how frames are normalised."""
    return {
        "model_cfg": {
            "embed_dim": 64,
            "custom_text": True,
            "vision_cfg": {"layers": [1, 1, 1, 1], "width": model.width, "image_size": model.size},
            "text_cfg": {
                "context_length": CONTEXT,
                "vocab_size": vocab_size,
                "width": WIDTH,
                "heads": 4,
                "layers": 2,
                "tokenizer_kwargs": {"bpe_path": "bpe.txt.gz", "clean": "canonicalize"},
            },
        },
        "preprocess_cfg": {
            "mean": [model.mean] * 3,
            "std": [model.std] * 3,
            "interpolation": "bilinear",
            "resize_mode": "squash",
        },
    }


def tokenizer_of(folder: Path) -> Any:
    """open_clip's tokenizer over the merges in `folder`."""
    from open_clip.tokenizer import SimpleTokenizer

    return SimpleTokenizer(bpe_path=str(folder / "bpe.txt.gz"), clean="canonicalize", context_length=CONTEXT)


def prepare(
    of: Model, folder: Path, words: list[str], vectors: np.ndarray, *, seed: int, new_words: bool = False
) -> tuple[Any, Any, Tensor]:
    """An untrained model whose words have their vectors: (model, tokenizer, mask of its token table's frozen rows)."""
    import open_clip
    import torch

    if new_words or not (SOURCE / "bpe.txt.gz").is_file():
        vocabulary.write(folder, words)
    elif folder.resolve() != SOURCE.resolve():
        for name in ("words.txt", "bpe.txt.gz"):
            shutil.copyfile(SOURCE / name, folder / name)
    tokenize = tokenizer_of(folder)
    torch.manual_seed(seed)
    described = description(of, tokenize.vocab_size)
    (folder / "open_clip_config.json").write_text(json.dumps(described, indent=2) + "\n")
    model = open_clip.create_model(f"local-dir:{folder}", load_weights=False)
    rows = torch.tensor([tokenize.encode(word)[0] for word in words])
    frozen = torch.zeros(tokenize.vocab_size, dtype=torch.bool)
    frozen[rows] = True
    with torch.no_grad():
        model.text.token_embedding.weight[rows] = torch.from_numpy(vectors)
    return model, tokenize, frozen


def known_words(of: Model, encoder: str = "") -> tuple[list[str], np.ndarray]:
    """Words and vectors: from a sentence encoder, or those of the first shipped model."""
    if encoder:
        return vocabulary.from_encoder(encoder, of.lexicon(), WIDTH, WORDS)
    from safetensors.numpy import load_file

    if not (SOURCE / "words.txt").is_file():
        raise FileNotFoundError(f"{SOURCE} has no words.txt to start from; give words=<folder of all-MiniLM-L6-v2>")
    words, tokenize = vocabulary.read(SOURCE), tokenizer_of(SOURCE)
    table = load_file(SOURCE / "open_clip_model.safetensors")["text.token_embedding.weight"].astype(np.float32)
    return words, table[[tokenize.encode(word)[0] for word in words]]


def phrases(lexicon: Lexicon) -> list[str]:
    """Sentences the model was taught, one for each thing it knows to say: what a prompt is compared with."""
    found = [text for group in lexicon.baselines.values() for text in group]
    for attribute in lexicon.attributes.values():
        subject = lexicon.subjects[attribute.about].said[0]
        found += [f"the {subject} is {predicate}" for predicate in attribute.said]
        found += [f"the {subject} is not {attribute.said[0]}"]
    for kind in lexicon.baselines:  # each name of the main subjects, with the first that is said of them
        said = next(a.said[0] for a in lexicon.attributes.values() if a.about == kind)
        found += [f"the {subject} is {said}" for subject in lexicon.subjects[kind].said]
    return sorted(set(found))


def save(model: Any, folder: Path, of: Model) -> str:
    """Write the weights in half precision and the known phrases; returns the sha256 of the weights."""
    from safetensors.torch import save_file

    path = folder / "open_clip_model.safetensors"
    state = {name: value.half() if value.is_floating_point() else value for name, value in model.state_dict().items()}
    save_file({name: value.contiguous() for name, value in state.items()}, str(path))
    lexicon = of.lexicon()
    known = {
        "supervision": (
            f"in-domain CLIP (state-captioned): supervised by simulator state of {of.taught}, so it is not zero-shot"
        ),
        "worlds": [pattern for world in lexicon.worlds for pattern in world.ids],
        "near": NEAR,
        "words": vocabulary.training_words(lexicon),
        "phrases": phrases(lexicon),
    }
    (folder / "phrases.json").write_text(json.dumps(known, indent=0) + "\n")
    return hashlib.sha256(path.read_bytes()).hexdigest()
