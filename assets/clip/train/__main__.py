"""Train the in-domain CLIPs that ship in `rewards/vision/weights`: `lodestar` and `lodestar-96`.

    python -m assets.clip.train                      about 15 minutes on one core; the result is the shipped file
    python -m assets.clip.train model=lodestar-96    frames of 96 pixels of other worlds; about an hour
    python -m assets.clip.train evaluate=true        only measures what is in `out`: assets/results/clip_splits.csv

The trainer is the product's, `rewards.vision.training`, which `lodestar clip` uses for a user's own environment. This
folder keeps the lists of our worlds, and the vocabulary that all models share.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from assets.clip.train import words as vocabulary
from assets.clip.train.worlds import MODELS
from rewards.vision.training.captions import Grammar
from rewards.vision.training.fit import Fit, train_image, train_text
from rewards.vision.training.lexicon import States
from rewards.vision.training.model import WORD_WIDTH, prepare, save, shipped_words
from rewards.vision.training.words import far_words

STATES = 200  # of each world that the text tower learns from
WORDS = 8000  # of a new vocabulary


@dataclass
class PretrainConfig(Fit):
    """What `assets.clip.train` takes as key=value.

    Attributes:
        steps, text_steps, batch, captions, bank, lr, noise, shuffle, recolour, seed: see `rewards.vision.training.fit`.
        model: `lodestar` or `lodestar-96`; what each learns from stands in `assets.clip.train.worlds`.
        out: folder that gets the model; empty for the model's own.
        words: where the vocabulary and its vectors come from: "" for the shipped model; else a sentence-transformers
            folder.
        frames: frames rendered per world, times the world's share.
        evaluate: measure the model in `out`, and controls trained for `steps`, instead of training it.
        controls: whether measuring trains those controls.
        num_threads: of torch.
    """

    model: str = "lodestar"
    out: str = ""
    words: str = ""
    frames: int = 4000
    evaluate: bool = False
    controls: bool = True
    num_threads: int = 1

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ValueError(f"model={self.model!r} is none of {', '.join(MODELS)}")
        self.out = self.out or MODELS[self.model].folder
        for name in ("steps", "text_steps", "frames", "batch", "captions", "bank", "num_threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} is too small; give 1 or more")
        if not 0 < self.lr < 1:
            raise ValueError(f"lr={self.lr} is outside (0, 1); 0.002 trained the shipped model")
        if self.noise < 0:
            raise ValueError(f"noise={self.noise} is negative; give 0 or more")


def run(config: PretrainConfig, folder: Path) -> str:
    """Draw frames, train, save into `folder`; returns the sha256 of the weights."""
    import torch

    torch.set_num_threads(config.num_threads)
    of = MODELS[config.model]
    lexicon = of.lexicon()
    folder.mkdir(parents=True, exist_ok=True)
    if config.words:
        words, vectors = vocabulary.from_encoder(config.words, lexicon, WORD_WIDTH, WORDS)
        vocabulary.write(folder, words)
    else:
        words, vectors = shipped_words()
    model, tokenize, frozen = prepare(of.tower, folder, words, vectors, config.seed)
    print("drawing frames", flush=True)
    states, frames = training_frames(config)
    grammar = Grammar(lexicon, np.random.default_rng(config.seed + 2), far_words(lexicon, words, vectors))
    text_states, _ = lexicon.sample(np.random.default_rng(config.seed + 1), STATES)
    train_text(model, tokenize, frozen, grammar, text_states, config)
    train_image(model, tokenize, frames, states, grammar, of.tower, config)
    return save(model, folder, lexicon, of.taught)


def training_frames(config: PretrainConfig) -> tuple[States, np.ndarray]:
    """The training states and their frames, uint8 (N, size, size, 3)."""
    of = MODELS[config.model]
    rng = np.random.default_rng(config.seed)
    look = np.random.default_rng(config.seed)
    return of.lexicon().sample(rng, config.frames, of.tower.size, look)


def parse(argv: list[str]) -> PretrainConfig:
    """key=value arguments -> config.

    Raises:
        ValueError: for an unknown key or a value of another type.
    """
    kinds: dict[str, Any] = {f.name: type(f.default) for f in fields(PretrainConfig)}
    values: dict[str, Any] = {}
    for argument in argv:
        key, equals, text = argument.partition("=")
        if not equals or key not in kinds:
            raise ValueError(f"{argument!r} is not understood; write key=value with one of {', '.join(kinds)}")
        kind = kinds[key]
        try:
            if kind is bool:
                values[key] = {"true": True, "false": False}[text.lower()]
            else:
                values[key] = int(float(text)) if kind is int else kind(text)
        except (ValueError, KeyError) as error:
            wanted = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
            raise ValueError(f"{key}={text} is not {wanted}, which {key} must be") from error
    return PretrainConfig(**values)


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if {"-h", "--help", "help"} & set(argv):
        print(__doc__, PretrainConfig.__doc__, sep="\n")
        return 0
    try:
        config = parse(argv)
        folder = Path(config.out)
        if config.evaluate:
            from assets.clip.train.evaluate import evaluate

            evaluate(config)
            return 0
        print(f"sha256 of {folder / 'open_clip_model.safetensors'}: {run(config, folder)}")
        return 0
    except (ValueError, ImportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
