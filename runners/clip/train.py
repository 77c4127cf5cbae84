"""The fits of one environment's model."""

import time

import numpy as np
import torch

from lodestar.files import make_folder
from rewards.vision.training.captions import Grammar
from rewards.vision.training.fit import Fit, train_image, train_text
from rewards.vision.training.lexicon import Lexicon
from rewards.vision.training.model import Tower, prepare, save, shipped_words
from rewards.vision.training.words import far_words
from runners.clip.config import ClipTraining
from runners.clip.states import Seen, Sentences

# The width of the image tower that sees frames of so many pixels.
WIDTH_OF_SIZE = {64: 8, 96: 12}
# States that the text tower learns from; they share out its free embeddings.
TEXT_STATES = 200
FRAMES_A_STEP = 96


def train(config: ClipTraining, sentences: Sentences, seen: list[Seen], lexicon: Lexicon) -> float:
    """Fit both towers and save the model; returns the CPU-seconds that this took."""
    begin = time.process_time()
    torch.set_num_threads(1)
    folder = make_folder(config.out)
    frames = np.stack([state.frame for state in seen])
    states = sentences.states(seen)
    chances = sentences.chances(seen)
    # Mean and deviation of all pixels in [0, 1], to two digits.
    pixels = frames[:: max(1, len(frames) // 200)] / 255
    mean = round(float(pixels.mean()), 2)
    deviation = max(round(float(pixels.std()), 2), 0.05)
    tower = Tower(config.size, WIDTH_OF_SIZE[config.size], mean, deviation)
    words, vectors = shipped_words()
    model, tokenize, frozen = prepare(tower, folder, words, vectors, config.seed)
    grammar = Grammar(lexicon, np.random.default_rng(config.seed + 2), far_words(lexicon, words, vectors))
    fit = Fit(config.steps, config.text_steps, FRAMES_A_STEP, recolour=config.recolour, seed=config.seed)
    rows = np.random.default_rng(config.seed + 1).choice(len(states), TEXT_STATES, p=chances)
    train_text(model, tokenize, frozen, grammar, states[rows], fit)
    train_image(model, tokenize, frames, states, grammar, tower, fit, chances)
    save(model, folder, lexicon, f"{config.env} in your own words")
    return time.process_time() - begin
