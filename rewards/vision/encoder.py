"""One way to a CLIP: the small models that ship with the suite, any open_clip model, a file, a folder, the hub.

The small models need no open_clip (`small_clip`); everything else goes through its own `create_model`. A model that
cannot be had is refused before anything heavy is imported: open_clip retries a dead network for most of a minute, and
without weights it returns a random model with no more than a logged warning. Rewards that use the same model share it
and its cache (`shared`).
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import json
import logging
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies
from weakref import WeakValueDictionary

import numpy as np

if TYPE_CHECKING:
    import torch

LODESTAR = "lodestar"
UNTRAINED = "untrained"
LOCAL = "local-dir:"
CONFIG_FILE = "open_clip_config.json"
PHRASES_FILE = "phrases.json"
SHIPPED_WEIGHTS = Path(str(files(__package__) / "weights" / "lodestar"))
# Our own models: name -> folder.
MODELS = {LODESTAR: SHIPPED_WEIGHTS, "lodestar-96": SHIPPED_WEIGHTS.with_name("lodestar-96")}

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


def shared(
    model: str, weights: str, *, seed: int = 0, device: str = "cpu", precision: str = "fp32", reward: str = "clip"
) -> ClipEncoder:
    """The encoder of these settings, one for all callers while one holds it; raises as it does, about `reward`."""
    # Only untrained weights depend on the seed.
    key_seed = seed if weights == UNTRAINED else None
    key = (model, weights, key_seed, device, precision, MODELS.get(model))
    encoder = _live_encoders.get(key)
    if encoder is None:
        try:
            encoder = ClipEncoder(model, weights, seed=seed, device=device, precision=precision)
            _live_encoders[key] = encoder
        except (ValueError, FileNotFoundError) as error:
            raise type(error)(str(error).replace("reward.clip.", f"reward.{reward}.")) from error
    return encoder


def model_for(env: str) -> str:
    """The shipped model that was taught this environment, by patterns of ids in its phrases.json; or `lodestar`."""
    name = env.rpartition(":")[2]
    for model, folder in MODELS.items():
        if not (folder / CONFIG_FILE).is_file():
            continue
        training = _read_training(folder) or {}
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in training.get("worlds", [])):
            return model
    return LODESTAR


class ClipEncoder:
    """Both towers of a CLIP, its tokenizer and its preprocessing; what is known of its training, if anything.

    The model is one of `MODELS`, or a name that open_clip knows; weights are "" (the shipped ones), a file, a folder, a
    tag of open_clip, or "untrained", drawn with `seed`; the precision is "fp32", "bf16" or "fp16". Raises ValueError
    for an unknown model or tag, or weights of another model; FileNotFoundError for weights that cannot be had.
    """

    def __init__(
        self, model: str, weights: str, *, seed: int = 0, device: str = "cpu", precision: str = "fp32"
    ) -> None:
        folder = _model_folder(model, weights)
        if folder is None and weights != UNTRAINED and not os.path.isfile(weights):
            _check_reachable(model, weights)
        import torch

        self.torch = torch
        self.device = device
        self.precision = precision
        # Untrained weights are drawn by the global generator, which must not move for others.
        with _silence_logging(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            loaded, self.tokenizer = _create_model(model, weights, folder)
            self.model = loaded.to(device).eval().requires_grad_(False)
        self._read_preprocessing()
        # A small ResNet is faster with its channels last; a ViT does not care.
        if self.size <= 96:
            self.model.to(memory_format=torch.channels_last)
        self.trained_on = _read_training(folder) if weights != UNTRAINED else None
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
        visual: Any = self.model.visual
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
        blank = blanks(frames)
        if blank.any():
            embeddings[blank] = 0
        return embeddings

    def image(self, frames: np.ndarray, batch_size: int) -> np.ndarray:
        """Unit embeddings of frames, uint8 (N, H, W, 3) -> float16 (N, D); fewer at once where memory runs out."""
        threads = self.torch.get_num_threads()
        on_cpu = self.torch.device(self.device).type == "cpu"
        if threads > 1 and len(frames) > batch_size and on_cpu:
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
        # One by one, so that no sentence's last digit depends on the batch.
        for sentence in dict.fromkeys(sentences):
            if sentence in self._texts:
                continue
            with self.torch.inference_mode(), self._autocast():
                tokens = self.tokenizer([sentence]).to(self.device)
                embedding = self.model.encode_text(tokens, normalize=True)
                self._texts[sentence] = embedding.float().cpu().numpy()[0]
        return np.stack([self._texts[sentence] for sentence in sentences])

    @property
    def width(self) -> int:
        return int(self.text(["a"]).shape[1])

    def excess(self, sentence: str) -> int:
        """How many tokens of a sentence the text tower would not read; 0 if the tokenizer does not report it."""
        limit = getattr(self.tokenizer, "context_length", None)
        if limit is None or not hasattr(self.tokenizer, "encode"):
            return 0
        return max(0, len(self.tokenizer.encode(sentence)) + 2 - limit)

    def reworded(self, sentence: str) -> str:
        """The sentence with each word that no caption had exchanged for the nearest that one had, if any is near."""
        if self.trained_on is None:
            return sentence
        normalize = self.torch.nn.functional.normalize
        # The vector of each token, (vocabulary, width); towers differ in where they keep it.
        parameters = self.model.named_parameters()
        table = next(value for name, value in parameters if name.endswith("token_embedding.weight"))
        # Words of the captions that are one token, so that their vector is a row of the table.
        known_words = []
        known_tokens = []
        for word in self.trained_on["words"]:
            tokens = self.tokenizer.encode(word)
            if len(tokens) == 1:
                known_words.append(word)
                known_tokens.append(tokens[0])
        known_vectors = normalize(table[known_tokens].float(), dim=-1)
        words = re.findall("[a-z]+|[^a-z]+", sentence.lower())
        for place, word in enumerate(words):
            if not word.isalpha() or word in self.trained_on["words"]:
                continue
            tokens = self.tokenizer.encode(word)
            if len(tokens) != 1:
                continue
            similarity = known_vectors @ normalize(table[tokens[0]].float(), dim=-1)
            if float(similarity.max()) >= MIN_WORD_SIMILARITY:
                words[place] = known_words[int(similarity.argmax())]
        return "".join(words)

    def _autocast(self) -> torch.autocast:
        dtypes = {"bf16": self.torch.bfloat16, "fp16": self.torch.float16}
        dtype = dtypes.get(self.precision, self.torch.float32)
        device_type = self.torch.device(self.device).type
        return self.torch.autocast(device_type, dtype=dtype, enabled=self.precision != "fp32")


class EmbeddingCache:
    """Embeddings of the latest frames: a grid world shows a few hundred pictures in a million steps.

    Reuse is exact: the key is a 64-bit hash of the frame's bytes. New frames are encoded in a pass of at least 16,
    because an encoder rounds passes of a few differently. Where next to nothing repeats, the cache switches itself off.
    `encode` takes frames (N, ...) and their number a pass, and returns float16 (N, D). The oldest embeddings make room.
    """

    def __init__(self, encode: Callable[[np.ndarray, int], np.ndarray], capacity: int = CACHE_CAPACITY) -> None:
        self.encode = encode
        self.capacity = capacity
        # The table is a ring: a key has a row, and a row has a key once it is filled.
        self.slots: dict[int, int] = {}
        self.keys: list[int | None] = [None] * capacity
        self.next = 0
        # Float16 (capacity, D), made by the first embeddings.
        self.table: np.ndarray | None = None
        # Frames answered from the table, and others.
        self.found = 0
        self.missed = 0

    @property
    def worthwhile(self) -> bool:
        """Whether enough comes back; False for good once too little did."""
        if self.missed < CACHE_MIN_MISSES:
            return True
        return self.found >= CACHE_MIN_HIT_RATE * (self.found + self.missed)

    def __call__(self, frames: np.ndarray, batch_size: int) -> np.ndarray:
        """Embeddings, float16 (N, D), in an array of the caller's own."""
        if not self.worthwhile:
            self.table = None
            self.slots = {}
            return self.encode(frames, batch_size)
        if not len(frames):
            return self.encode(frames, batch_size)
        keys = [hash((frames.shape[1:], frame.tobytes())) for frame in frames]
        # The first row of each new key: going backwards, the first one is written last.
        new_rows: dict[int, int] = {}
        for row in range(len(keys) - 1, -1, -1):
            if keys[row] not in self.slots:
                new_rows[keys[row]] = row
        self.missed += len(new_rows)
        self.found += len(keys) - len(new_rows)
        if len(new_rows) == len(keys):
            embeddings = self.encode(frames, batch_size)
            self._store(keys, embeddings)
            return embeddings
        cached_rows = [row for row, key in enumerate(keys) if key in self.slots]
        cached = None
        if self.table is not None:
            cached = self.table[[self.slots[keys[row]] for row in cached_rows]]
        if not new_rows and cached is not None:
            return cached
        # The first new frame fills up a pass that is too short.
        rows = list(new_rows.values())
        padding = rows[:1] * (min(MIN_PASS_FRAMES, len(frames)) - len(rows))
        new = self.encode(frames[rows + padding], batch_size)[: len(rows)]
        place = {key: index for index, key in enumerate(new_rows)}
        # Place 0 stands in for the cached rows, which are written next.
        embeddings = new[[place.get(key, 0) for key in keys]]
        if cached is not None:
            embeddings[cached_rows] = cached
        self._store(list(new_rows), new)
        return embeddings

    def _store(self, keys: list[int], embeddings: np.ndarray) -> None:
        if self.table is None:
            self.table = np.zeros((self.capacity, embeddings.shape[1]), embeddings.dtype)
        for key, embedding in zip(keys[-self.capacity :], embeddings[-self.capacity :]):
            oldest = self.keys[self.next]
            if oldest is not None:
                self.slots.pop(oldest, None)
            self.table[self.next] = embedding
            self.keys[self.next] = key
            self.slots[key] = self.next
            self.next = (self.next + 1) % self.capacity


@functools.cache
def _thread_pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "clip")


def blanks(frames: np.ndarray) -> np.ndarray:
    """Which frames, uint8 (N, H, W, 3), have one colour only; bool (N,)."""
    corner = frames[:, :1, :1]
    # A few columns decide most frames; the others are looked at in full.
    blank = (frames[:, :, ::16] == corner).all((1, 2, 3))
    if blank.any():
        blank[blank] = (frames[blank] == corner[blank]).all((1, 2, 3))
    return blank


def _model_folder(model: str, weights: str) -> Path | None:
    """The folder in open_clip's layout that describes the model, if one does."""
    if weights.startswith(LOCAL):
        folder: Path | None = Path(weights.removeprefix(LOCAL))
    elif model.startswith(LOCAL):
        folder = Path(model.removeprefix(LOCAL))
    elif weights and os.path.isdir(weights):
        folder = Path(weights)
    else:
        folder = MODELS.get(model)
    if folder is None or (folder / CONFIG_FILE).is_file():
        return folder
    if folder == MODELS.get(model):
        fix = "reinstall lodestar-rl, or give reward.clip.weights=local-dir:<folder>"
        raise FileNotFoundError(f"the model {model}, which ships with Lodestar, is not in {folder}; {fix}")
    raise FileNotFoundError(f"{folder} is no folder of a CLIP: it has no {CONFIG_FILE}; check reward.clip.weights")


def _check_reachable(model: str, weights: str) -> None:
    """Refuse weights that would have to be downloaded and cannot be; cheap checks first."""
    if not weights:
        choices = "a file, a folder, a tag such as 'openai', or 'untrained' for the control"
        raise ValueError(f"reward.clip.model={model!r} needs reward.clip.weights: {choices}")
    if os.sep in weights or weights.endswith((".pt", ".pth", ".bin", ".safetensors")):
        raise FileNotFoundError(f"reward.clip.weights={weights!r} does not exist; give a file or folder with weights")
    url = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        why = "HF_HUB_OFFLINE forbids to download it"
    elif not _can_connect(url):
        why = f"{urlsplit(url).hostname} cannot be reached"
    else:
        return
    hf_home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface"))
    hub = Path(os.environ.get("HF_HUB_CACHE") or hf_home / "hub").expanduser()
    urls = Path("~/.cache/clip").expanduser()
    # Only a cache that holds anything is worth the import of open_clip.
    if (any(hub.glob("models--*")) or any(urls.glob("*"))) and _is_cached(model, weights, urls):
        return
    raise FileNotFoundError(
        f"the weights {weights!r} of {model!r} are neither a file nor in the cache ({hub}), and {why}; "
        "give reward.clip.weights=<path to a file>, or use reward.clip.model=lodestar, which needs no download"
    )


def _can_connect(url: str, patience: float = 1.5) -> bool:
    """Whether a connection opens within `patience` seconds; the look-up of the name counts too."""
    import socket

    parts = urlsplit(getproxies().get("https") or url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    connected = threading.Event()

    def connect() -> None:
        with suppress(OSError):
            socket.create_connection((parts.hostname or "", port), timeout=patience).close()
            connected.set()

    # A daemon thread, because a name server that does not answer has no timeout of its own.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(patience)
    return connected.is_set()


def _is_cached(model: str, weights: str, urls: Path) -> bool:
    from huggingface_hub import try_to_load_from_cache
    from open_clip import get_pretrained_cfg

    published = get_pretrained_cfg(model.replace("/", "-"), weights)
    if not published:
        return False
    repository, _, file = (published.get("hf_hub") or "").rpartition("/")
    names = [file] if file else ["open_clip_model.safetensors", "open_clip_pytorch_model.bin"]
    if repository and any(isinstance(try_to_load_from_cache(repository, name), str) for name in names):
        return True
    return bool(published.get("url")) and (urls / os.path.basename(published["url"])).is_file()


def _create_model(model: str, weights: str, folder: Path | None) -> tuple[Any, Any]:
    """A model with its weights, and its tokenizer."""
    from rewards.vision import small_clip

    if folder is not None and not os.path.isfile(weights) and small_clip.is_small(folder):
        with _explain_failure(model, str(folder)):
            small = small_clip.load(folder, untrained=weights == UNTRAINED)
            small.fold()
            return small, small_clip.Tokenizer(folder)
    import open_clip

    if folder is None:
        _check_names(model, weights)
        name = model
        options: dict[str, Any] = {
            "pretrained": None if weights == UNTRAINED else weights,
            "force_preprocess_cfg": _published_preprocessing(model, weights),
        }
    else:
        name = f"{LOCAL}{folder}"
        options = {"load_weights": weights != UNTRAINED}
    source = weights if os.path.isfile(weights) else str(folder or weights)
    with _explain_failure(model, source):
        loaded = open_clip.create_model(name, pretrained_text=False, **options)
        if folder is not None and os.path.isfile(weights):
            open_clip.load_checkpoint(loaded, weights)
    return loaded, _create_tokenizer(model, folder)


def _check_names(model: str, weights: str) -> None:
    """ValueError for a model that open_clip does not know, or a tag that the model does not have."""
    import open_clip

    if model not in open_clip.list_models():
        nearest = difflib.get_close_matches(model, [*MODELS, *open_clip.list_models()], n=1)
        hint = "`open_clip.list_models()` names all of them"
        if nearest:
            hint = f"did you mean {nearest[0]!r}?"
        raise ValueError(f"there is no CLIP called {model!r}; {hint}")
    if weights == UNTRAINED or os.path.isfile(weights):
        return
    tags = open_clip.list_pretrained_tags_by_model(model)
    if weights.lower().replace("-", "_") not in [tag.replace("-", "_") for tag in tags]:
        problem = f"neither a file nor weights that open_clip knows for {model}"
        raise ValueError(f"reward.clip.weights={weights!r} is {problem}: {', '.join(tags) or 'none'}")


@contextmanager
def _explain_failure(model: str, source: str) -> Iterator[None]:
    """Turn what open_clip and torch raise into one sentence about the model and the source of its weights."""
    try:
        yield
    except (FileNotFoundError, ConnectionError) as error:
        raise FileNotFoundError(f"the weights {source!r} of {model!r} could not be had: {error}") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {_first_words(error)}"
        raise ValueError(f"{source} does not hold the weights of a CLIP of the kind {model!r} ({reason})") from error


def _first_words(error: Exception) -> str:
    return " ".join(str(error).split())[:160]


def _published_preprocessing(model: str, weights: str) -> dict[str, Any] | None:
    """What the published weights of a model agree on; without it open_clip takes OpenAI's for any bare file."""
    import open_clip

    if not os.path.isfile(weights):
        return None
    tags = open_clip.list_pretrained_tags_by_model(model)
    configs = [open_clip.get_pretrained_cfg(model, tag) or {} for tag in tags]
    common = {}
    for key in ("mean", "std", "interpolation", "resize_mode"):
        # As JSON, because lists have no hash.
        values = {json.dumps(config.get(key)) for config in configs}
        if len(values) == 1:
            value = json.loads(values.pop())
            if value is not None:
                common[key] = value
    return common or None


def _create_tokenizer(model: str, folder: Path | None) -> Any:
    import open_clip

    if folder is None:
        # Some models take a tokenizer from the hub, so this can fail for want of a network.
        try:
            return open_clip.get_tokenizer(model)
        except Exception as error:
            raise FileNotFoundError(f"the tokenizer of {model!r} could not be had: {_first_words(error)}") from error
    config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    settings = config["model_cfg"]["text_cfg"].get("tokenizer_kwargs") or {}
    merges = settings.get("bpe_path")
    name = f"{LOCAL}{folder}"
    if not merges:
        return open_clip.get_tokenizer(name)
    # open_clip takes the path literally; in a folder that may lie anywhere it means a file beside the config.
    return open_clip.get_tokenizer(name, bpe_path=str(folder / merges))


def _read_training(folder: Path | None) -> dict[str, Any] | None:
    """What phrases.json says of a model's training: `supervision`, `phrases`, `words`, `near`."""
    if folder is None:
        return None
    path = folder / PHRASES_FILE
    if not path.is_file():
        return None
    training: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return training


@contextmanager
def _silence_logging() -> Iterator[None]:
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(level)
