"""The model itself: open_clip's description of it, its words, and what is written beside its weights."""

import hashlib
import json
import shutil
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file
from torch import Tensor

from rewards.vision import small_clip
from rewards.vision.load import CONFIG_FILE, PHRASES_FILE, SHIPPED_WEIGHTS
from rewards.vision.training import words as vocabulary
from rewards.vision.training.lexicon import Lexicon

# Both files of a vocabulary.
WORDS_FILES = ("words.txt", "bpe.txt.gz")
# Of the text tower, and of a word's vector.
WORD_WIDTH = 96
# Byte codes as they are and at the end of a word, and the start and the end of a sentence.
CODES_BESIDE_MERGES = 514
# Similarity with a known phrase below which a prompt counts as unfamiliar.
NEAR_PHRASE = 0.85


@dataclass(frozen=True)
class Tower:
    """What an image tower looks at, and how wide it is."""

    # Side of its frames, pixels.
    size: int
    width: int
    # Subtracted from pixels in [0, 1], and what divides them then.
    mean: float
    std: float


def description(tower: Tower, vocab_size: int) -> dict[str, Any]:
    """open_clip's description of a model: that of the first shipped one, but for its frames and its words."""
    config = small_clip.read_config(SHIPPED_WEIGHTS)
    model = config["model_cfg"]
    model["vision_cfg"] |= {"width": tower.width, "image_size": tower.size}
    model["text_cfg"]["vocab_size"] = vocab_size
    config["preprocess_cfg"] |= {"mean": [tower.mean] * 3, "std": [tower.std] * 3}
    return config


def prepare(
    tower: Tower, folder: Path, words: list[str], vectors: np.ndarray, seed: int
) -> tuple[small_clip.SmallClip, small_clip.Tokenizer, Tensor]:
    """An untrained model, its tokenizer, and the mask of the rows of its token table that hold the words' vectors.

    The folder gets the model's description, and the shipped vocabulary unless it has one already.
    """
    for name in WORDS_FILES:
        if not (folder / name).is_file():
            shutil.copyfile(SHIPPED_WEIGHTS / name, folder / name)
    merges = small_clip.read_merges(folder / "bpe.txt.gz")
    config = description(tower, len(merges) + CODES_BESIDE_MERGES)
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
    tokenize = small_clip.Tokenizer(folder)
    torch.manual_seed(seed)
    model = small_clip.SmallClip(folder)
    rows = torch.tensor([tokenize.encode(word)[0] for word in words])
    table = model.text.token_embedding.weight
    frozen = torch.zeros(len(table), dtype=torch.bool)
    frozen[rows] = True
    with torch.no_grad():
        table[rows] = torch.from_numpy(vectors)
    return model, tokenize, frozen


def shipped_words() -> tuple[list[str], np.ndarray]:
    """The words of the first shipped model and their vectors, float32 (W, WORD_WIDTH)."""
    words = vocabulary.read(SHIPPED_WEIGHTS)
    tokenize = small_clip.Tokenizer(SHIPPED_WEIGHTS)
    table = load_file(SHIPPED_WEIGHTS / small_clip.WEIGHTS)["text.token_embedding.weight"].astype(np.float32)
    return words, table[[tokenize.encode(word)[0] for word in words]]


def known_phrases(lexicon: Lexicon) -> list[str]:
    """Sentences that the model was taught, one for each thing it can say: what a prompt is compared with."""
    phrases = list(chain.from_iterable(lexicon.baselines.values()))
    for attribute in lexicon.attributes.values():
        subject = lexicon.subjects[attribute.about].said[0]
        phrases += [f"the {subject} is {predicate}" for predicate in attribute.said]
        phrases.append(f"the {subject} is not {attribute.said[0]}")
    # Each name of the main subjects, with the first that is said of them.
    for kind in lexicon.baselines:
        said = next((a.said[0] for a in lexicon.attributes.values() if a.about == kind), None)
        if said is not None:
            phrases += [f"the {subject} is {said}" for subject in lexicon.subjects[kind].said]
    return sorted(set(phrases))


def save(model: small_clip.SmallClip, folder: Path, lexicon: Lexicon, taught: str) -> str:
    """Write the weights in half precision, and what was taught; returns the sha256 of the weights.

    `taught` names the worlds in a sentence.
    """
    path = folder / small_clip.WEIGHTS
    state = {}
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            value = value.half()
        state[name] = value.contiguous()
    save_file(state, str(path))
    known = {
        "supervision": (
            f"in-domain CLIP (state-captioned): supervised by simulator state of {taught}, so it is not zero-shot"
        ),
        "worlds": list(chain.from_iterable(world.ids for world in lexicon.worlds)),
        "near": NEAR_PHRASE,
        "words": vocabulary.training_words(lexicon),
        "phrases": known_phrases(lexicon),
    }
    (folder / PHRASES_FILE).write_text(json.dumps(known, indent=0) + "\n")
    return hashlib.sha256(path.read_bytes()).hexdigest()
