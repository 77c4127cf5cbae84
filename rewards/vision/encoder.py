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
SHIPPED = Path(str(files(__package__) / "weights" / "lodestar"))
MODELS = {LODESTAR: SHIPPED, "lodestar-96": SHIPPED.with_name("lodestar-96")}  # name -> folder of a model of our own

CAPACITY = 16384  # embeddings: 2 MB at 64 numbers each
PATIENCE = 4096  # frames not found before the cache may give up
LEAST_FOUND = 0.05  # share of frames found below which it does
PASS = 16  # frames
NEAR_WORD = 0.5  # cosine of the frozen vectors of two words from which one may stand for the other

_alive: WeakValueDictionary[tuple[Any, ...], ClipEncoder] = WeakValueDictionary()


def shared(
    model: str, weights: str, *, seed: int = 0, device: str = "cpu", precision: str = "fp32", reward: str = "clip"
) -> ClipEncoder:
    """The encoder of these settings, one for all callers while one holds it; raises as it does, about `reward`."""
    key = (model, weights, seed if weights == UNTRAINED else None, device, precision, MODELS.get(model))
    encoder = _alive.get(key)
    if encoder is None:
        try:
            encoder = _alive[key] = ClipEncoder(model, weights, seed=seed, device=device, precision=precision)
        except (ValueError, FileNotFoundError) as error:
            raise type(error)(str(error).replace("reward.clip.", f"reward.{reward}.")) from error
    return encoder


def model_for(env: str) -> str:
    """The shipped model that was taught this environment, by patterns of ids in its phrases.json; or `lodestar`."""
    name = env.rpartition(":")[2]
    for model, folder in MODELS.items():
        worlds = (_phrases(folder) or {}).get("worlds", [])
        if (folder / "open_clip_config.json").is_file() and any(fnmatch.fnmatchcase(name, world) for world in worlds):
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
        folder = _folder(model, weights)
        if folder is None and weights != UNTRAINED and not os.path.isfile(weights):
            _must_be_in_reach(model, weights)
        import torch

        self.torch, self.device, self.precision = torch, device, precision
        with _quiet(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made, self.tokenizer = _create(model, weights, folder)
            self.model = made.to(device).eval().requires_grad_(False)
        visual: Any = self.model.visual
        size = visual.image_size
        self.size = int(size if isinstance(size, int) else size[0])
        self.resample = str(visual.preprocess_cfg.get("interpolation", "bicubic"))
        self.mean, self.std = (
            torch.tensor(v, device=device)[:, None, None] for v in (visual.image_mean, visual.image_std)
        )
        # Per byte of a frame, because a broadcast over three channels takes eight times as long.
        count = self.size * self.size
        self._factor = (1 / (255 * self.std)).flatten().repeat(count)
        self._shift = (-self.mean / self.std).flatten().repeat(count)
        if self.size <= 96:  # a small ResNet is faster with its channels last; a ViT does not care
            self.model.to(memory_format=torch.channels_last)
        self.trained_on = _phrases(folder) if weights != UNTRAINED else None
        plain = model in MODELS and not weights and precision == "fp32"
        untrained = [str(seed)] if weights == UNTRAINED else []
        self.name = "clip" if plain else " ".join(["clip", model, weights, precision, *untrained])
        self._most = sys.maxsize  # frames at once that memory has room for
        self._cache = EmbeddingCache(self.image)
        self._texts: dict[str, np.ndarray] = {}

    def embed(self, frames: np.ndarray | None, batch_size: int, reader: str = "clip", instead: str = "") -> np.ndarray:
        """As `image`, but frames seen lately are looked up, and single colours give zeros; ValueError for no frames."""
        if frames is None:
            raise ValueError(f"{reader} reads frames, and there are none; make it with frame_size={self.size}{instead}")
        if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[-1] != 3 or 0 in frames.shape[1:]:
            kind = f"{frames.dtype} of shape {frames.shape}"
            raise ValueError(f"frames are {kind}, CLIP reads uint8 (N, height, width, 3), unscaled, channels last")
        seen = self._cache(frames, batch_size)
        blank = blanks(frames)
        if blank.any():
            seen[blank] = 0
        return seen

    def image(self, frames: np.ndarray, batch_size: int) -> np.ndarray:
        """Unit embeddings of frames, uint8 (N, H, W, 3) -> float16 (N, D); fewer at once where memory runs out."""
        threads = self.torch.get_num_threads()
        if threads > 1 and len(frames) > batch_size and self.torch.device(self.device).type == "cpu":
            return self._side_by_side(frames, batch_size, threads)
        parts, start = [], 0
        while start < len(frames):
            count = min(batch_size, self._most)
            try:
                parts.append(self._image(frames[start : start + count]))
            except self.torch.OutOfMemoryError:
                if count == 1:
                    raise
                self._most = count // 2
                warnings.warn(f"no memory for {count} frames at once; from now on {self._most}", stacklevel=2)
                continue
            start += count
        return np.concatenate(parts) if parts else np.zeros((0, self.width), np.float16)

    def _side_by_side(self, frames: np.ndarray, batch_size: int, threads: int) -> np.ndarray:
        """A pass a thread, which never wait for each other, as those within a layer do."""
        self.torch.set_num_threads(1)  # of each of those that begin now
        try:
            passes = (frames[start : start + batch_size] for start in range(0, len(frames), batch_size))
            return np.concatenate([*_pool(threads).map(self._image, passes)])
        finally:
            self.torch.set_num_threads(threads)

    def _image(self, frames: np.ndarray) -> np.ndarray:
        torch = self.torch
        with torch.inference_mode(), self._autocast():
            pixels = torch.from_numpy(np.ascontiguousarray(frames)).to(self.device)
            alone = len(pixels) == 1
            if alone:  # as a vector it would be rounded differently, so its reward would depend on the batch
                pixels = pixels.repeat(2, 1, 1, 1)
            if pixels.shape[1:3] != (self.size, self.size):  # bytes (N, H, W, 3) -> float32, in [0, 255]
                x, size = pixels.permute(0, 3, 1, 2).float(), (self.size, self.size)
                x = torch.nn.functional.interpolate(x, size, mode=self.resample, antialias=True, align_corners=False)
                pixels = x.clamp(0, 255).permute(0, 2, 3, 1)
            x = pixels.flatten(1).float()
            x = torch.addcmul(self._shift, x, self._factor, out=x)
            x = x.view(-1, self.size, self.size, 3).permute(0, 3, 1, 2)  # the channels stay last in memory
            encoded = self.model.encode_image(x, normalize=True)
            return (encoded[:1] if alone else encoded).float().cpu().numpy().astype(np.float16)

    def text(self, sentences: list[str]) -> np.ndarray:
        """Unit embeddings of sentences, float32 (N, D), at least one; each is read once."""
        for sentence in dict.fromkeys(sentences):
            if sentence not in self._texts:  # one by one, so that no sentence's last digit depends on the batch
                with self.torch.inference_mode(), self._autocast():
                    tokens = self.tokenizer([sentence]).to(self.device)
                    self._texts[sentence] = self.model.encode_text(tokens, normalize=True).float().cpu().numpy()[0]
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
        table = next(x for name, x in self.model.named_parameters() if name.endswith("token_embedding.weight"))
        encode = self.tokenizer.encode
        taught = {word: tokens[0] for word in self.trained_on["words"] if len(tokens := encode(word)) == 1}
        known = self.torch.nn.functional.normalize(table[list(taught.values())].float(), dim=-1)
        words = re.findall("[a-z]+|[^a-z]+", sentence.lower())
        for place, word in enumerate(words):
            if word.isalpha() and word not in self.trained_on["words"] and len(tokens := encode(word)) == 1:
                similar = known @ self.torch.nn.functional.normalize(table[tokens[0]].float(), dim=-1)
                if float(similar.max()) >= NEAR_WORD:
                    words[place] = [*taught][int(similar.argmax())]
        return "".join(words)

    def _autocast(self) -> torch.autocast:
        kind = {"bf16": self.torch.bfloat16, "fp16": self.torch.float16}.get(self.precision, self.torch.float32)
        return self.torch.autocast(self.torch.device(self.device).type, dtype=kind, enabled=self.precision != "fp32")


class EmbeddingCache:
    """Embeddings of the latest frames: a grid world shows a few hundred pictures in a million steps.

    Reuse is exact: the key is a 64-bit hash of the frame's bytes. New frames are encoded in a pass of at least 16,
    because an encoder rounds passes of a few differently. Where next to nothing repeats, the cache switches itself off.
    `encode` takes frames (N, ...) and their number a pass, and returns float16 (N, D). The oldest embeddings make room.
    """

    def __init__(self, encode: Callable[[np.ndarray, int], np.ndarray], capacity: int = CAPACITY) -> None:
        self.encode, self.capacity = encode, capacity
        self.slots: dict[int, int] = {}  # key -> row of the table
        self.keys: list[int | None] = [None] * capacity  # row of the table -> key
        self.table: np.ndarray | None = None  # float16 (capacity, D)
        self.next = 0
        self.found = self.missed = 0  # frames answered without `encode`, and others

    @property
    def worthwhile(self) -> bool:
        """Whether enough comes back; False for good once too little did."""
        return self.missed < PATIENCE or self.found >= LEAST_FOUND * (self.found + self.missed)

    def __call__(self, frames: np.ndarray, batch_size: int) -> np.ndarray:
        """Embeddings, float16 (N, D), in an array of the caller's own."""
        if not self.worthwhile:
            self.table, self.slots = None, {}
        if not self.worthwhile or not len(frames):
            return self.encode(frames, batch_size)
        keys = [hash((frames.shape[1:], frame.tobytes())) for frame in frames]
        fresh = {key: row for row, key in reversed(list(enumerate(keys))) if key not in self.slots}
        self.missed += len(fresh)
        self.found += len(keys) - len(fresh)
        if len(fresh) == len(keys):
            answer = self.encode(frames, batch_size)
            self._keep(keys, answer)
            return answer
        old = [row for row, key in enumerate(keys) if key in self.slots]
        kept = self.table[[self.slots[keys[row]] for row in old]] if self.table is not None else None
        if not fresh and kept is not None:
            return kept
        rows = list(fresh.values())
        padding = rows[:1] * (min(PASS, len(frames)) - len(rows))
        new = self.encode(frames[rows + padding], batch_size)[: len(rows)]
        place = {key: index for index, key in enumerate(fresh)}
        answer = new[[place.get(key, 0) for key in keys]]
        if kept is not None:
            answer[old] = kept
        self._keep(list(fresh), new)
        return answer

    def _keep(self, keys: list[int], values: np.ndarray) -> None:
        if self.table is None:
            self.table = np.zeros((self.capacity, values.shape[1]), values.dtype)
        for key, value in zip(keys[-self.capacity :], values[-self.capacity :]):
            old = self.keys[self.next]
            if old is not None:
                self.slots.pop(old, None)
            self.table[self.next], self.keys[self.next], self.slots[key] = value, key, self.next
            self.next = (self.next + 1) % self.capacity


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "clip")


def blanks(frames: np.ndarray) -> np.ndarray:
    """Which frames, uint8 (N, H, W, 3), have one colour only; bool (N,)."""
    corner = frames[:, :1, :1]
    blank = (frames[:, :, ::16] == corner).all((1, 2, 3))  # a few columns decide most
    if blank.any():
        blank[blank] = (frames[blank] == corner[blank]).all((1, 2, 3))
    return blank


def _folder(model: str, weights: str) -> Path | None:
    """The folder in open_clip's layout that describes the model, if one does."""
    named = next((text for text in (weights, model) if text.startswith(LOCAL)), None)
    if named is None and weights and os.path.isdir(weights):
        named = LOCAL + weights
    folder = Path(named[len(LOCAL) :]) if named else MODELS.get(model)
    if folder is not None and not (folder / "open_clip_config.json").is_file():
        if folder == MODELS.get(model):
            fix = "reinstall lodestar-rl, or give reward.clip.weights=local-dir:<folder>"
            raise FileNotFoundError(f"the model {model}, which ships with Lodestar, is not in {folder}; {fix}")
        raise FileNotFoundError(
            f"{folder} is no folder of a CLIP: it has no open_clip_config.json; check reward.clip.weights"
        )
    return folder


def _must_be_in_reach(model: str, weights: str) -> None:
    """Refuse weights that would have to be downloaded and cannot be; cheap checks first."""
    if not weights:
        known = "a file, a folder, a tag such as 'openai', or 'untrained' for the control"
        raise ValueError(f"reward.clip.model={model!r} needs reward.clip.weights: {known}")
    if os.sep in weights or weights.endswith((".pt", ".pth", ".bin", ".safetensors")):
        raise FileNotFoundError(f"reward.clip.weights={weights!r} does not exist; give a file or folder with weights")
    hub = Path(
        os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME", "~/.cache/huggingface")) / "hub"
    ).expanduser()
    urls = Path("~/.cache/clip").expanduser()
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        why = "HF_HUB_OFFLINE forbids to download it"
    elif not _reachable(url := os.environ.get("HF_ENDPOINT") or "https://huggingface.co"):
        why = f"{urlsplit(url).hostname} cannot be reached"
    else:
        return
    if (any(hub.glob("models--*")) or any(urls.glob("*"))) and _cached(model, weights, urls):
        return
    raise FileNotFoundError(
        f"the weights {weights!r} of {model!r} are neither a file nor in the cache ({hub}), and {why}; "
        "give reward.clip.weights=<path to a file>, or use reward.clip.model=lodestar, which needs no download"
    )


def _reachable(url: str, patience: float = 1.5) -> bool:
    """Whether a connection opens within `patience` seconds; the look-up of the name counts too."""
    import socket

    parts = urlsplit(getproxies().get("https") or url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    found = threading.Event()

    def knock() -> None:
        with suppress(OSError):
            socket.create_connection((parts.hostname or "", port), timeout=patience).close()
            found.set()

    thread = threading.Thread(target=knock, daemon=True)  # a name server that does not answer must not hold us
    thread.start()
    thread.join(patience)
    return found.is_set()


def _cached(model: str, weights: str, urls: Path) -> bool:
    from huggingface_hub import try_to_load_from_cache
    from open_clip import get_pretrained_cfg

    known = get_pretrained_cfg(model.replace("/", "-"), weights)
    if not known:
        return False
    repository, _, file = (known.get("hf_hub") or "").rpartition("/")
    names = [file] if file else ["open_clip_model.safetensors", "open_clip_pytorch_model.bin"]
    if repository and any(isinstance(try_to_load_from_cache(repository, name), str) for name in names):
        return True
    return bool(known.get("url")) and (urls / os.path.basename(known["url"])).is_file()


def _create(model: str, weights: str, folder: Path | None) -> tuple[Any, Any]:
    from rewards.vision import small_clip

    if folder is not None and not os.path.isfile(weights) and small_clip.is_small(folder):
        with _refused(model, str(folder)):
            small = small_clip.load(folder, untrained=weights == UNTRAINED)
            small.fold()
            return small, small_clip.Tokenizer(folder)
    import open_clip

    name, options = f"{LOCAL}{folder}", dict[str, Any](load_weights=weights != UNTRAINED)
    if folder is None:
        if model not in open_clip.list_models():
            near = difflib.get_close_matches(model, [*MODELS, *open_clip.list_models()], n=1)
            hint = f"did you mean {near[0]!r}?" if near else "`open_clip.list_models()` names all of them"
            raise ValueError(f"there is no CLIP called {model!r}; {hint}")
        if weights != UNTRAINED and not os.path.isfile(weights):
            tags = open_clip.list_pretrained_tags_by_model(model)
            if weights.lower().replace("-", "_") not in [tag.replace("-", "_") for tag in tags]:
                known = f"neither a file nor weights that open_clip knows for {model}: {', '.join(tags) or 'none'}"
                raise ValueError(f"reward.clip.weights={weights!r} is {known}")
        pretrained = None if weights == UNTRAINED else weights
        name, options = model, {"pretrained": pretrained, "force_preprocess_cfg": _preprocessing(model, weights)}
    with _refused(model, weights if os.path.isfile(weights) else str(folder or weights)):
        made = open_clip.create_model(name, pretrained_text=False, **options)
        if folder is not None and os.path.isfile(weights):
            open_clip.load_checkpoint(made, weights)
    return made, _tokenizer(model, folder)


@contextmanager
def _refused(model: str, what: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, ConnectionError) as error:
        raise FileNotFoundError(f"the weights {what!r} of {model!r} could not be had: {error}") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {_shortened(error)}"
        raise ValueError(f"{what} does not hold the weights of a CLIP of the kind {model!r} ({reason})") from error


def _shortened(error: Exception) -> str:
    return " ".join(str(error).split())[:160]


def _preprocessing(model: str, weights: str) -> dict[str, Any] | None:
    """What the published weights of a model agree on; without it open_clip takes OpenAI's for any bare file."""
    import open_clip

    if not os.path.isfile(weights):
        return None
    known = [open_clip.get_pretrained_cfg(model, tag) or {} for tag in open_clip.list_pretrained_tags_by_model(model)]
    agreed = {}
    for key in ("mean", "std", "interpolation", "resize_mode"):
        values = {json.dumps(cfg.get(key)) for cfg in known}
        if len(values) == 1 and (value := json.loads(values.pop())) is not None:
            agreed[key] = value
    return agreed or None


def _tokenizer(model: str, folder: Path | None) -> Any:
    import open_clip

    if folder is None:
        try:
            return open_clip.get_tokenizer(model)
        except Exception as error:  # some models take a tokenizer from the hub
            raise FileNotFoundError(f"the tokenizer of {model!r} could not be had: {_shortened(error)}") from error
    config = json.loads((folder / "open_clip_config.json").read_text(encoding="utf-8"))["model_cfg"]["text_cfg"]
    merges = (config.get("tokenizer_kwargs") or {}).get("bpe_path")
    # open_clip takes the path literally; in a folder that may lie anywhere it means a file beside the config.
    own = {"bpe_path": str(folder / merges)} if merges else {}
    return open_clip.get_tokenizer(LOCAL + str(folder), **own)


def _phrases(folder: Path | None) -> dict[str, Any] | None:
    """What phrases.json says of a model's training: `supervision`, `phrases`, `words`, `near`."""
    path = folder / "phrases.json" if folder else None
    return json.loads(path.read_text(encoding="utf-8")) if path and path.is_file() else None


@contextmanager
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)
