"""Train the in-domain CLIPs that ship in `rewards/vision/weights`: `lodestar` and `lodestar-96`.

    python -m assets.clip.train                      about 15 minutes on one core; the result is the shipped file
    python -m assets.clip.train model=lodestar-96    frames of 96 pixels of other worlds; about an hour
    python -m assets.clip.train evaluate=true        only measures what is in `out`: assets/results/clip_splits.csv

Two of open_clip's own towers learn from frames of our environments and captions made from simulator state: the cosine
of a caption and a frame is regressed on how true the caption is of the frame (`assets.clip.train.captions`). It is
therefore a success classifier that reads English, supervised by the simulator; in-domain, never zero-shot.

Difference from CLIP's loss: a softmax over the batch would tie the value of a frame to the other captions at hand; a
pairwise regression pins down the shape of the reward itself, and lets a sentence without meaning pay the same for every
frame.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from assets.clip.train.captions import Caption, Grammar, truth
from assets.clip.train.frames import augment
from assets.clip.train.model import known_words, prepare, save
from assets.clip.train.words import far_words
from assets.clip.train.worlds import MODELS
from assets.clip.train.worlds.lexicon import Lexicon, States

Tensor = Any  # torch.Tensor; torch is imported where it is used
OFFSET = 0.25  # the cosine aimed at: truth - OFFSET
STATES = 200  # of each world that the text tower learns from


@dataclass
class PretrainConfig:
    """What `assets.clip.train` takes as key=value.

    Attributes:
        model: `lodestar` or `lodestar-96`; what each learns from stands in `assets.clip.train.worlds`.
        out: folder that gets the model; empty for the model's own.
        words: where the vocabulary and its vectors come from: "" for the shipped model; else a sentence-transformers
            folder.
        steps: optimiser steps of the image tower.
        text_steps: optimiser steps of the text tower, which comes first.
        frames: frames rendered per world, times the world's share.
        batch: frames per step.
        captions: captions per step of the text tower.
        bank: captions that teach the image tower.
        lr: peak learning rate of AdamW, falling to zero as a cosine.
        noise: added to the word vectors in training, relative to their length, so that a neighbourhood means the same.
        shuffle: give each caption another caption's truth: a control that must come out worthless.
        evaluate: measure the model in `out`, and controls trained for `steps`, instead of training it.
        controls: whether measuring trains those controls.
        seed: of the frames, the captions and the weights.
        num_threads: of torch.
    """

    model: str = "lodestar"
    out: str = ""
    words: str = ""
    steps: int = 1400
    text_steps: int = 1600
    frames: int = 4000
    batch: int = 128
    captions: int = 160
    bank: int = 2000
    lr: float = 2e-3
    noise: float = 0.4
    shuffle: bool = False
    evaluate: bool = False
    controls: bool = True
    seed: int = 0
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


def encode_text(model: Any, tokens: Tensor, frozen: Tensor, noise: float, generator: Any) -> Tensor:
    """open_clip's text tower with the rows `frozen` of its token table held still and shaken by `noise`."""
    import torch
    import torch.nn.functional as F

    text = model.text
    length = int((tokens != 0).sum(1).max())
    tokens = tokens[:, :length]  # what follows the longest caption is padding, which a causal tower never reads
    embedded = text.token_embedding(tokens)
    still = frozen[tokens][..., None]
    shaken = embedded.detach()
    if noise:
        spread = shaken.norm(dim=-1, keepdim=True) / shaken.shape[-1] ** 0.5
        shaken = shaken + noise * spread * torch.randn(shaken.shape, generator=generator)
    x = torch.where(still, shaken, embedded) + text.positional_embedding[:length]
    x = text.ln_final(text.transformer(x, attn_mask=text.attn_mask[:length, :length]))
    x = x[torch.arange(len(x)), tokens.argmax(1)] @ text.text_projection
    return F.normalize(x, dim=-1)


def train_text(model: Any, tokenize: Any, frozen: Tensor, grammar: Grammar, config: PretrainConfig) -> float:
    """Fit the text tower to the world itself: sampled states get free embeddings, fitted along; returns the last loss.

    No image is drawn, so the language, which needs many sentences, is learnt in a minute or two.
    """
    import torch
    import torch.nn.functional as F

    generator = torch.Generator().manual_seed(config.seed)
    rng = np.random.default_rng(config.seed + 1)
    states, _ = grammar.lexicon.sample(rng, STATES)
    points = torch.nn.Parameter(0.1 * torch.randn(len(states), model.visual.output_dim, generator=generator))
    optimiser, schedule = _optimiser(model.text, config.lr, config.text_steps, [points])
    model.train()
    losses: list[float] = []
    for step in range(config.text_steps):
        captions = grammar.draw(config.captions)
        text = encode_text(model, tokenize([c.text for c in captions]), frozen, config.noise, generator)
        loss = _loss(
            text, F.normalize(points, dim=-1), captions, states, grammar.lexicon, rng if config.shuffle else None
        )
        _descend(loss, optimiser, schedule, model.text)
        losses.append(loss.item())
        _report("text", step, config.text_steps, losses)
    model.eval()
    return float(np.mean(losses[-50:]))


def train_image(
    model: Any, tokenize: Any, frames: np.ndarray, states: States, grammar: Grammar, config: PretrainConfig
) -> float:
    """Fit the image tower to a bank of sentences that the finished text tower has read; returns the last loss."""
    import torch

    captions = grammar.draw(config.bank)
    with torch.no_grad():
        text = torch.cat(
            [
                model.encode_text(tokenize([c.text for c in captions[i : i + 250]]), normalize=True)
                for i in range(0, len(captions), 250)
            ]
        )
    rng = np.random.default_rng(config.seed + 4) if config.shuffle else None

    def loss(image: Tensor, seen: States) -> Tensor:
        return _loss(text, image / image.norm(dim=-1, keepdim=True), captions, seen, grammar.lexicon, rng)

    return fit_tower(model.visual, loss, frames, states, config)


def fit_tower(
    visual: Any, loss: Callable[[Tensor, States], Tensor], frames: np.ndarray, states: States, config: PretrainConfig
) -> float:
    """Descend `loss(features, states)` over augmented frames; returns its last mean."""
    import torch

    generator = torch.Generator().manual_seed(config.seed + 3)
    rng = np.random.default_rng(config.seed + 3)
    pixels = torch.from_numpy(frames).permute(0, 3, 1, 2).contiguous()
    model = MODELS[config.model]
    optimiser, schedule = _optimiser(visual, config.lr, config.steps, [])
    visual.to(memory_format=torch.channels_last).train()
    losses: list[float] = []
    for step in range(config.steps):
        rows = rng.integers(len(frames), size=config.batch)
        image = augment(pixels[torch.from_numpy(rows)].float() / 255, generator)
        value = loss(
            visual(((image - model.mean) / model.std).contiguous(memory_format=torch.channels_last)), states[rows]
        )
        _descend(value, optimiser, schedule, visual)
        losses.append(value.item())
        _report("image", step, config.steps, losses)
    visual.eval()
    return float(np.mean(losses[-50:]))


def _loss(
    text: Tensor,
    image: Tensor,
    captions: list[Caption],
    states: States,
    lexicon: Lexicon,
    rng: np.random.Generator | None,
) -> Tensor:
    """Squared error of the cosines; pairs in which the caption is about the frame's world count as much as the rest."""
    import torch

    target, about = truth(lexicon, captions, states)
    if rng is not None:
        order = rng.permutation(len(captions))
        target, about = target[order], about[order]
    weight = torch.from_numpy(np.where(about, float(len(lexicon.worlds)), 1.0).astype(np.float32))
    return (weight * (text @ image.T - (torch.from_numpy(target) - OFFSET)).square()).mean()


def _optimiser(module: Any, lr: float, steps: int, free: list[Tensor]) -> tuple[Any, Any]:
    import torch

    # Decay would shrink the frozen rows of the token table, which get no gradient to hold them.
    shrinks = [p.ndim > 1 and "token_embedding" not in name for name, p in module.named_parameters()]
    groups: list[dict[str, Any]] = [
        {"params": [p for p, yes in zip(module.parameters(), shrinks) if yes], "weight_decay": 0.05},
        {"params": [p for p, yes in zip(module.parameters(), shrinks) if not yes], "weight_decay": 0.0},
    ]
    groups += [{"params": free, "weight_decay": 0.0, "lr": 5 * lr}] if free else []
    optimiser = torch.optim.AdamW(groups, lr=lr)
    warm = max(1, steps // 10)

    def share(step: int) -> float:
        return min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * max(0, step - warm) / max(1, steps - warm))))

    return optimiser, torch.optim.lr_scheduler.LambdaLR(optimiser, share)


def _descend(loss: Tensor, optimiser: Any, schedule: Any, module: Any) -> None:
    import torch

    optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimiser.step()
    schedule.step()


def _report(tower: str, step: int, steps: int, losses: list[float]) -> None:
    if (step + 1) % 100 == 0 or step + 1 == steps:
        print(f"{tower} tower: step {step + 1}/{steps}, loss {np.mean(losses[-100:]):.4f}", flush=True)


def run(config: PretrainConfig, folder: Path) -> str:
    """Draw frames, train, save into `folder`; returns the sha256 of the weights."""
    import torch

    torch.set_num_threads(config.num_threads)
    of = MODELS[config.model]
    lexicon = of.lexicon()
    words, vectors = known_words(of, config.words)
    folder.mkdir(parents=True, exist_ok=True)
    model, tokenize, frozen = prepare(of, folder, words, vectors, seed=config.seed, new_words=bool(config.words))
    print("drawing frames", flush=True)
    states, frames = training_frames(config)
    grammar = Grammar(lexicon, np.random.default_rng(config.seed + 2), far_words(lexicon, words, vectors))
    train_text(model, tokenize, frozen, grammar, config)
    train_image(model, tokenize, frames, states, grammar, config)
    return save(model, folder, of)


def training_frames(config: PretrainConfig) -> tuple[States, np.ndarray]:
    """The training states and their frames, uint8 (N, size, size, 3)."""
    of = MODELS[config.model]
    rng, look = np.random.default_rng(config.seed), np.random.default_rng(config.seed)
    return of.lexicon().sample(rng, config.frames, of.size, look)


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
