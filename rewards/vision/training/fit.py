"""The two fits of an in-domain CLIP: the text tower to states of the world, then the image tower to the text tower.

The cosine of a caption and a frame is regressed on how true the caption is of the frame. The model is therefore a
success classifier that reads English, supervised by the simulator; in-domain, never zero-shot.

Difference from CLIP's loss: a softmax over the batch would tie the value of a frame to the other captions at hand. A
pairwise regression pins down the shape of the reward itself, and lets a sentence without meaning pay the same for every
frame.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from rewards.vision.small_clip import SmallClip, Tokenizer
from rewards.vision.training.captions import Caption, Grammar, truth
from rewards.vision.training.frames import augment
from rewards.vision.training.lexicon import Lexicon, States
from rewards.vision.training.model import Tower

# The cosine aimed at is the truth less this.
TRUTH_OFFSET = 0.25
# Sentences that the finished text tower reads at once.
CAPTIONS_A_PASS = 250
# A loss is reported as a mean of the last ones, every so many steps.
LOSSES_A_REPORT = 100
WEIGHT_DECAY = 0.05


@dataclass
class Fit:
    """How long and how hard the towers are fitted."""

    # Optimiser steps of either tower; the text tower comes first.
    steps: int = 1400
    text_steps: int = 1600
    # Frames a step, captions a step of the text tower, captions that teach the image tower.
    batch: int = 128
    captions: int = 160
    bank: int = 2000
    # Peak learning rate of AdamW, falling to zero as a cosine.
    lr: float = 2e-3
    # Added to the word vectors in training, relative to their length, so that a neighbourhood means the same.
    noise: float = 0.4
    # Give each caption another caption's truth: a control that must come out worthless.
    shuffle: bool = False
    # Whether frames are recoloured in training; false where colours are what captions are about.
    recolour: bool = True
    seed: int = 0


def encode_captions(
    model: SmallClip, tokens: Tensor, frozen: Tensor, noise: float, generator: torch.Generator
) -> Tensor:
    """The text tower's unit embeddings, with the rows `frozen` of its token table held still and shaken by `noise`."""
    text = model.text
    # What follows the longest caption is padding, which a causal tower never reads.
    length = int((tokens != 0).sum(1).max())
    tokens = tokens[:, :length]
    embedded = text.token_embedding(tokens)
    still = frozen[tokens][..., None]
    shaken = embedded.detach()
    if noise:
        spread = shaken.norm(dim=-1, keepdim=True) / shaken.shape[-1] ** 0.5
        shaken = shaken + noise * spread * torch.randn(shaken.shape, generator=generator)
    return normalize(text.read(torch.where(still, shaken, embedded), tokens), dim=-1)


def train_text(
    model: SmallClip, tokenize: Tokenizer, frozen: Tensor, grammar: Grammar, states: States, fit: Fit
) -> None:
    """Fit the text tower to the world itself: states get free embeddings, fitted along.

    No image is drawn, so the language, which needs many sentences, is learnt in a minute or two.
    """
    generator = torch.Generator().manual_seed(fit.seed)
    shuffle_rng = np.random.default_rng(fit.seed + 1) if fit.shuffle else None
    points = nn.Parameter(0.1 * torch.randn(len(states), model.embed_dim, generator=generator))

    def loss() -> Tensor:
        captions = grammar.draw(fit.captions)
        tokens = tokenize([caption.text for caption in captions])
        text = encode_captions(model, tokens, frozen, fit.noise, generator)
        return _loss(text, normalize(points, dim=-1), captions, states, grammar.lexicon, shuffle_rng)

    _descend("text", model.text, loss, fit.lr, fit.text_steps, points)
    model.eval()


def train_image(
    model: SmallClip,
    tokenize: Tokenizer,
    frames: np.ndarray,
    states: States,
    grammar: Grammar,
    tower: Tower,
    fit: Fit,
    chances: np.ndarray | None = None,
) -> None:
    """Fit the image tower to a bank of sentences that the finished text tower has read."""
    captions = grammar.draw(fit.bank)
    tokens = tokenize([caption.text for caption in captions])
    with torch.no_grad():
        passes = [model.encode_text(part, normalize=True) for part in tokens.split(CAPTIONS_A_PASS)]
    text = torch.cat(passes)
    rng = np.random.default_rng(fit.seed + 4) if fit.shuffle else None

    def loss(image: Tensor, seen: States) -> Tensor:
        return _loss(text, image / image.norm(dim=-1, keepdim=True), captions, seen, grammar.lexicon, rng)

    fit_tower(model.visual, loss, frames, states, tower, fit, chances)


def fit_tower(
    visual: nn.Module,
    loss: Callable[[Tensor, States], Tensor],
    frames: np.ndarray,
    states: States,
    tower: Tower,
    fit: Fit,
    chances: np.ndarray | None = None,
) -> None:
    """Descend `loss(features, states)` over augmented frames.

    Frames are drawn with equal chances, or by `chances` (N,), which sum to one.
    """
    generator = torch.Generator().manual_seed(fit.seed + 3)
    rng = np.random.default_rng(fit.seed + 3)
    pixels = torch.from_numpy(frames).permute(0, 3, 1, 2).contiguous()
    visual.to(memory_format=torch.channels_last)

    def loss_of_batch() -> Tensor:
        if chances is None:
            rows = rng.integers(len(frames), size=fit.batch)
        else:
            rows = rng.choice(len(frames), size=fit.batch, p=chances)
        image = augment(pixels[torch.from_numpy(rows)].float() / 255, generator, fit.recolour)
        whitened = (image - tower.mean) / tower.std
        return loss(visual(whitened.contiguous(memory_format=torch.channels_last)), states[rows])

    _descend("image", visual, loss_of_batch, fit.lr, fit.steps)


def _loss(
    text: Tensor,
    image: Tensor,
    captions: list[Caption],
    states: States,
    lexicon: Lexicon,
    shuffle_rng: np.random.Generator | None,
) -> Tensor:
    """Squared error of the cosines; pairs in which the caption is about the frame's world count as much as the rest."""
    target, about = truth(lexicon, captions, states)
    if shuffle_rng is not None:
        order = shuffle_rng.permutation(len(captions))
        target = target[order]
        about = about[order]
    weight = torch.from_numpy(np.where(about, float(len(lexicon.worlds)), 1.0).astype(np.float32))
    error = text @ image.T - (torch.from_numpy(target) - TRUTH_OFFSET)
    return (weight * error.square()).mean()


def _descend(
    tower: str, module: nn.Module, loss: Callable[[], Tensor], lr: float, steps: int, points: nn.Parameter | None = None
) -> None:
    """Train a tower, and the free embeddings of states, with AdamW."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in module.named_parameters():
        # Decay would shrink the frozen rows of the token table, which get no gradient to hold them.
        shrinks = parameter.ndim > 1 and "token_embedding" not in name
        (matrices if shrinks else others).append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": WEIGHT_DECAY},
        {"params": others, "weight_decay": 0.0},
    ]
    if points is not None:
        groups.append({"params": [points], "weight_decay": 0.0, "lr": 5 * lr})
    optimiser = torch.optim.AdamW(groups, lr=lr)
    warm = max(1, steps // 10)

    def share(step: int) -> float:
        gone = max(0, step - warm) / max(1, steps - warm)
        return min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * gone)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, share)
    losses = []
    module.train()
    for step in range(1, steps + 1):
        value = loss()
        optimiser.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        losses.append(value.item())
        if step % LOSSES_A_REPORT == 0 or step == steps:
            print(f"{tower} tower: step {step}/{steps}, loss {np.mean(losses[-LOSSES_A_REPORT:]):.4f}", flush=True)
    module.eval()
