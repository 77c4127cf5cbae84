"""Embeddings of frames and sentences by one model, whichever `rewards.vision.load` finds, with a cache of frames.

Rewards that use the same model share it and its cache (`shared_encoder`).
"""

from __future__ import annotations

import fnmatch
import functools
import logging
import os
import re
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from rewards.vision.load import (
    CONFIG_FILE,
    LODESTAR,
    MODELS,
    UNTRAINED,
    check_reachable,
    create_model,
    find_folder,
    no_words,
    read_training,
)

if TYPE_CHECKING:
    import torch

    from rewards.base import Reward

# 2 MB at 64 numbers an embedding.
CACHE_CAPACITY = 16384
# After this many frames that it did not hold, the cache gives up if its hit rate is below the least one.
CACHE_MIN_MISSES = 4096
CACHE_MIN_HIT_RATE = 0.05
# Passes of fewer frames are rounded differently.
MIN_PASS_FRAMES = 16
# Cosine of the token embeddings of two words from which one may stand for the other.
MIN_WORD_SIMILARITY = 0.5

_live_encoders: WeakValueDictionary[tuple[Any, ...], ClipEncoder] = WeakValueDictionary()


def shared_encoder(reward: Reward, precision: str = "fp32") -> ClipEncoder:
    """The encoder that a reward's options name, one for all rewards while one holds it; raises as it does."""
    config = reward.config
    # Only untrained weights depend on the seed.
    key_seed = reward.seed if config.weights == UNTRAINED else None
    key = (config.model, config.weights, key_seed, reward.device, precision, MODELS.get(config.model))
    encoder = _live_encoders.get(key)
    if encoder is None:
        try:
            encoder = ClipEncoder(
                config.model, config.weights, seed=reward.seed, device=reward.device, precision=precision
            )
            _live_encoders[key] = encoder
        except (ValueError, FileNotFoundError, ImportError) as error:
            raise type(error)(str(error).replace("reward.clip.", config.prefix)) from error
    return encoder


def model_for(env: str) -> str:
    """The shipped model that was taught this environment, by patterns of ids in its phrases.json; or `lodestar`."""
    name = env.rpartition(":")[2]
    for model, folder in MODELS.items():
        if not (folder / CONFIG_FILE).is_file():
            continue
        training = read_training(folder) or {}
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in training.get("worlds", [])):
            return model
    return LODESTAR


class ClipEncoder:
    """Both towers of a CLIP, its tokenizer and its preprocessing; what is known of its training, if anything.

    The model is what `rewards.vision.load` takes; weights are "" (those that belong to it), a file, a folder, a tag of
    open_clip, or "untrained", drawn with `seed`; the precision is "fp32", "bf16" or "fp16". Raises ValueError for an
    unknown model or tag, or weights of another model; FileNotFoundError for weights that cannot be had; ImportError for
    a model that needs a package which is not installed.
    """

    def __init__(
        self, model: str, weights: str, *, seed: int = 0, device: str = "cpu", precision: str = "fp32"
    ) -> None:
        folder = find_folder(model, weights)
        if folder is None and weights != UNTRAINED and not os.path.isfile(weights):
            check_reachable(model, weights)
        import torch

        self.torch = torch
        self.model_name = model
        self.device = torch.device(device)
        self.precision = precision
        # Untrained weights are drawn by the global generator, which must not move for others.
        with _silence_logging(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            loaded, self.tokenizer = create_model(model, weights, folder)
            self.model = loaded.to(device).eval().requires_grad_(False)
        self._read_preprocessing()
        # A small ResNet is faster with its channels last; a ViT does not care.
        if self.size <= 96:
            self.model.to(memory_format=torch.channels_last)
        self.trained_on = read_training(folder) if weights != UNTRAINED else None
        self.name = " ".join(["clip", model, weights, precision])
        if weights == UNTRAINED:
            self.name += f" {seed}"
        elif model in MODELS and not weights and precision == "fp32":
            self.name = "clip"
        # How many frames memory has room for at once.
        self._max_frames = sys.maxsize
        self._cache = EmbeddingCache(self.image)
        self._texts: dict[str, np.ndarray] = {}

    def _read_preprocessing(self) -> None:
        """The size of a frame, how it gets there, and how its colours are whitened."""
        visual = self.model.visual
        size = visual.image_size
        self.size = int(size if isinstance(size, int) else size[0])
        self.resample = str(visual.preprocess_cfg.get("interpolation", "bicubic"))
        self.mean = self.torch.tensor(visual.image_mean, device=self.device)[:, None, None]
        self.std = self.torch.tensor(visual.image_std, device=self.device)[:, None, None]
        # Per byte of a frame, because a broadcast over three channels takes eight times as long.
        pixels = self.size * self.size
        self._factor = (1 / (255 * self.std)).flatten().repeat(pixels)
        self._shift = (-self.mean / self.std).flatten().repeat(pixels)

    def embed(self, frames: np.ndarray | None, batch_size: int, reader: str = "clip", instead: str = "") -> np.ndarray:
        """As `image`, but frames seen lately are looked up, and single colours give zeros; ValueError for no frames."""
        if frames is None:
            raise ValueError(f"{reader} reads frames, and there are none; make it with frame_size={self.size}{instead}")
        if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[-1] != 3 or 0 in frames.shape[1:]:
            kind = f"{frames.dtype} of shape {frames.shape}"
            raise ValueError(f"frames are {kind}, CLIP reads uint8 (N, height, width, 3), unscaled, channels last")
        embeddings = self._cache(frames, batch_size)
        embeddings[are_blank(frames)] = 0
        return embeddings

    def image(self, frames: np.ndarray, batch_size: int) -> np.ndarray:
        """Unit embeddings of frames, uint8 (N, H, W, 3) -> float16 (N, D); fewer at once where memory runs out."""
        threads = self.torch.get_num_threads()
        if threads > 1 and len(frames) > batch_size and self.device.type == "cpu":
            return self._encode_in_threads(frames, batch_size, threads)
        parts = []
        start = 0
        while start < len(frames):
            count = min(batch_size, self._max_frames)
            try:
                parts.append(self._encode_pass(frames[start : start + count]))
            except self.torch.OutOfMemoryError:
                if count == 1:
                    raise
                self._max_frames = count // 2
                message = f"no memory for {count} frames at once; from now on {self._max_frames}"
                warnings.warn(message, stacklevel=2)
                continue
            start += count
        return np.concatenate(parts) if parts else np.zeros((0, self.width), np.float16)

    def _encode_in_threads(self, frames: np.ndarray, batch_size: int, threads: int) -> np.ndarray:
        """A pass a thread, which never wait for each other, as those within a layer do."""
        # The threads that start now take over this limit: one thread a pass.
        self.torch.set_num_threads(1)
        try:
            starts = range(0, len(frames), batch_size)
            passes = (frames[start : start + batch_size] for start in starts)
            return np.concatenate(list(_thread_pool(threads).map(self._encode_pass, passes)))
        finally:
            self.torch.set_num_threads(threads)

    def _encode_pass(self, frames: np.ndarray) -> np.ndarray:
        torch = self.torch
        with torch.inference_mode(), self._autocast():
            pixels = torch.from_numpy(np.ascontiguousarray(frames)).to(self.device)
            # One frame as a vector would be rounded differently, so its reward would depend on the batch.
            single = len(pixels) == 1
            if single:
                pixels = pixels.repeat(2, 1, 1, 1)
            if pixels.shape[1:3] != (self.size, self.size):
                pixels = self._resize(pixels)
            x = pixels.flatten(1).float()
            x = torch.addcmul(self._shift, x, self._factor, out=x)
            # The encoder takes (N, 3, H, W); the channels stay last in memory.
            x = x.view(-1, self.size, self.size, 3).permute(0, 3, 1, 2)
            embeddings = self.model.encode_image(x, normalize=True)
            if single:
                embeddings = embeddings[:1]
            return embeddings.float().cpu().numpy().astype(np.float16)

    def _resize(self, pixels: torch.Tensor) -> torch.Tensor:
        """Bytes (N, H, W, 3) -> float32 (N, size, size, 3), in [0, 255]."""
        x = pixels.permute(0, 3, 1, 2).float()
        size = (self.size, self.size)
        x = self.torch.nn.functional.interpolate(x, size, mode=self.resample, antialias=True, align_corners=False)
        return x.clamp(0, 255).permute(0, 2, 3, 1)

    def text(self, sentences: list[str]) -> np.ndarray:
        """Unit embeddings of sentences, float32 (N, D), at least one; each is read once."""
        if self.tokenizer is None:
            raise no_words(self.model_name, sentences[0])
        # One by one, so that no sentence's last digit depends on the batch.
        for sentence in sentences:
            if sentence in self._texts:
                continue
            with self.torch.inference_mode(), self._autocast():
                tokens = self.tokenizer([sentence]).to(self.device)
                embedding = self.model.encode_text(tokens, normalize=True)
                self._texts[sentence] = embedding.float().cpu().numpy()[0]
        return np.stack([self._texts[sentence] for sentence in sentences])

    @property
    def width(self) -> int:
        frame = np.zeros((1, self.size, self.size, 3), np.uint8)
        return int(self.image(frame, 1).shape[1])

    def excess(self, sentence: str) -> int:
        """How many tokens of a sentence the text tower would not read; 0 if the tokenizer does not report it."""
        limit = getattr(self.tokenizer, "context_length", None)
        if limit is None or not hasattr(self.tokenizer, "encode"):
            return 0
        return max(0, len(self.tokenizer.encode(sentence)) + 2 - limit)

    def reword(self, sentence: str) -> str:
        """The sentence with each word that no caption had exchanged for the nearest that one had, if any is near."""
        if self.trained_on is None:
            return sentence
        normalize = self.torch.nn.functional.normalize
        # The vector of each token, (vocabulary, width); towers differ in where they keep it.
        parameters = self.model.named_parameters()
        table = next(value for name, value in parameters if name.endswith("token_embedding.weight"))
        # Words of the captions that are one token, so that their vector is a row of the table.
        trained_words = self.trained_on["words"]
        token_of = {}
        for word in trained_words:
            tokens = self.tokenizer.encode(word)
            if len(tokens) == 1:
                token_of[word] = tokens[0]
        known_words = list(token_of)
        known_vectors = normalize(table[list(token_of.values())].float(), dim=-1)

        def exchange(match: re.Match[str]) -> str:
            word = match[0]
            tokens = self.tokenizer.encode(word)
            if word in trained_words or len(tokens) != 1:
                return word
            similarity = known_vectors @ normalize(table[tokens[0]].float(), dim=-1)
            if float(similarity.max()) < MIN_WORD_SIMILARITY:
                return word
            return known_words[int(similarity.argmax())]

        return re.sub("[a-z]+", exchange, sentence.lower())

    def _autocast(self) -> torch.autocast:
        dtype = self.torch.bfloat16 if self.precision == "bf16" else self.torch.float16
        return self.torch.autocast(self.device.type, dtype=dtype, enabled=self.precision != "fp32")


@dataclass
class EmbeddingCache:
    """Embeddings of the latest frames: a grid world shows a few hundred pictures in a million steps.

    Reuse is exact: the key is a 64-bit hash of the frame's bytes. New frames are encoded in a pass of at least 16,
    because an encoder rounds passes of a few differently. Where next to nothing repeats, the cache switches itself off.
    `encode` takes frames (N, ...) and their number a pass, and returns float16 (N, D). The oldest embeddings make room.
    """

    encode: Callable[[np.ndarray, int], np.ndarray]
    capacity: int = CACHE_CAPACITY
    # Key of a frame -> its embedding (D,), the oldest first.
    table: OrderedDict[int, np.ndarray] = field(default_factory=OrderedDict)
    # Frames answered from the table, and others.
    found: int = 0
    missed: int = 0

    @property
    def is_worthwhile(self) -> bool:
        """Whether enough comes back; False for good once too little did."""
        if self.missed < CACHE_MIN_MISSES:
            return True
        return self.found >= CACHE_MIN_HIT_RATE * (self.found + self.missed)

    def __call__(self, frames: np.ndarray, batch_size: int) -> np.ndarray:
        """Embeddings, float16 (N, D), in an array of the caller's own."""
        if not self.is_worthwhile:
            self.table.clear()
        if not self.is_worthwhile or not len(frames):
            return self.encode(frames, batch_size)
        keys = [hash((frames.shape[1:], frame.tobytes())) for frame in frames]
        # The first row of each new key.
        new_rows: dict[int, int] = {}
        for row, key in enumerate(keys):
            if key not in self.table:
                new_rows.setdefault(key, row)
        self.missed += len(new_rows)
        self.found += len(keys) - len(new_rows)
        if new_rows:
            rows = list(new_rows.values())
            # The first new frame fills up a pass that is too short.
            padding = rows[:1] * (min(MIN_PASS_FRAMES, len(frames)) - len(rows))
            self.table.update(zip(new_rows, self.encode(frames[rows + padding], batch_size)))
        embeddings = np.array([self.table[key] for key in keys])
        # Only now, as what is asked about may be the oldest.
        while len(self.table) > self.capacity:
            self.table.popitem(last=False)
        return embeddings


@functools.cache
def _thread_pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "clip")


def are_blank(frames: np.ndarray) -> np.ndarray:
    """Which frames, uint8 (N, H, W, 3), have one colour only; bool (N,)."""
    corner = frames[:, :1, :1]
    # A few columns decide most frames; the others are looked at in full.
    blank = (frames[:, :, ::16] == corner).all((1, 2, 3))
    if blank.any():
        blank[blank] = (frames[blank] == corner[blank]).all((1, 2, 3))
    return blank


@contextmanager
def _silence_logging() -> Iterator[None]:
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(level)
