"""Where an encoder of frames comes from, and whether it can be had.

    lodestar, lodestar-96          the small models that ship (`small_clip`)
    ViT-B-32 and others            names of open_clip, with `weights`: a tag, a file
    a folder                       in open_clip's layout, as `runners.clip` writes it and as the hub holds it
    hf-hub:ORG/NAME                open_clip's layout on the Hugging Face hub
    timm:NAME                      an encoder of timm, which sees frames and reads no words

A model that cannot be had is refused before anything heavy is imported: open_clip retries a dead network for most of a
minute, and without weights it returns a random model with no more than a logged warning. A tokenizer that needs another
package, or the hub, is had before any weights are.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rewards.hub import why_no_download

LODESTAR = "lodestar"
UNTRAINED = "untrained"
LOCAL = "local-dir:"
HUB = "hf-hub:"
TIMM = "timm:"
MODELS_EXTRA = "pip install 'lodestar-rl[models]'"
CONFIG_FILE = "open_clip_config.json"
PHRASES_FILE = "phrases.json"
SHIPPED_WEIGHTS = Path(str(files(__package__) / "weights" / "lodestar"))
# Our own models: name -> folder.
MODELS = {LODESTAR: SHIPPED_WEIGHTS, "lodestar-96": SHIPPED_WEIGHTS.with_name("lodestar-96")}


def find_folder(model: str, weights: str) -> Path | None:
    """The folder in open_clip's layout that describes the model, if one does."""
    folder = MODELS.get(model)
    places = [place for place in (weights, model) if place.startswith(LOCAL) or os.path.isdir(place)]
    if places and places[0] not in MODELS:
        folder = Path(places[0].removeprefix(LOCAL))
    elif folder is not None and weights not in ("", UNTRAINED) and not os.path.isfile(weights):
        raise ValueError(
            f"reward.clip.weights={weights!r} is no file, and {model} has only those that ship; "
            "name the model that they belong to as well, such as reward.clip.model=ViT-B-32"
        )
    if folder is None or (folder / CONFIG_FILE).is_file():
        return folder
    if folder == MODELS.get(model):
        fix = "reinstall lodestar-rl, or give reward.clip.weights=local-dir:<folder>"
        raise FileNotFoundError(f"the model {model}, which ships with Lodestar, is not in {folder}; {fix}")
    raise FileNotFoundError(f"{folder} is no folder of a CLIP: it has no {CONFIG_FILE}; check reward.clip.weights")


def no_words(model: str, sentence: str) -> ValueError:
    """The error of a sentence that is given to a model of pictures alone."""
    fix = "give a picture as goal, or an encoder with words"
    return ValueError(f"reward.clip.model={model} sees pictures and reads no words ({sentence!r}); {fix}")


def check_reachable(model: str, weights: str) -> None:
    """Refuse weights that would have to be downloaded and cannot be; cheap checks first."""
    from_hub = model.startswith((HUB, TIMM))
    if weights and from_hub and not os.path.isfile(weights):
        fix = "leave reward.clip.weights out, or give a file, or 'untrained' for the control"
        raise FileNotFoundError(f"reward.clip.weights={weights!r} is no file, and {model} names its weights; {fix}")
    if not weights and not from_hub:
        choices = "a file, a folder, a tag such as 'openai', or 'untrained' for the control"
        raise ValueError(f"reward.clip.model={model!r} needs reward.clip.weights: {choices}")
    if os.sep in weights or weights.endswith((".pt", ".pth", ".bin", ".safetensors")):
        raise FileNotFoundError(f"reward.clip.weights={weights!r} does not exist; give a file or folder with weights")
    why = why_no_download()
    if not why:
        return
    hf_home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface"))
    hub = Path(os.environ.get("HF_HUB_CACHE") or hf_home / "hub").expanduser()
    urls = Path("~/.cache/clip").expanduser()
    # Only a cache that holds anything is worth the import of open_clip.
    if (any(hub.glob("models--*")) or any(urls.glob("*"))) and _is_cached(model, weights, urls):
        return
    named = f"the weights {weights!r} of {model!r}" if weights else f"the weights of {model!r}"
    raise FileNotFoundError(
        f"{named} are neither a file nor in the cache ({hub}), and {why}; "
        "give reward.clip.weights=<path to a file>, or use reward.clip.model=lodestar, which needs no download"
    )


def _is_cached(model: str, weights: str, urls: Path) -> bool:
    from huggingface_hub import try_to_load_from_cache

    published: dict[str, Any] = {}
    names = ["open_clip_model.safetensors", "open_clip_pytorch_model.bin"]
    if model.startswith(HUB):
        repository = model.removeprefix(HUB)
    elif model.startswith(TIMM):
        timm = import_models("timm", model)
        repository = timm.get_pretrained_cfg(model.removeprefix(TIMM)).hf_hub_id or ""
        names = ["model.safetensors", "pytorch_model.bin"]
    else:
        open_clip = import_models("open_clip", model)
        published = open_clip.get_pretrained_cfg(model.replace("/", "-"), weights) or {}
        repository, _, file = (published.get("hf_hub") or "").rpartition("/")
        names = [file] if file else names
    if repository and any(isinstance(try_to_load_from_cache(repository, name), str) for name in names):
        return True
    return bool(published.get("url")) and (urls / os.path.basename(published["url"])).is_file()


def import_models(package: str, model: str) -> Any:
    """open_clip, or timm; an ImportError says which extra has it."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        message = f"reward.clip.model={model!r} needs the package {error.name}; {MODELS_EXTRA}"
        raise ImportError(message) from None


def create_model(model: str, weights: str, folder: Path | None) -> tuple[Any, Any]:
    """A model with its weights, and its tokenizer; None as the tokenizer of one that reads no words."""
    from rewards.vision import small_clip

    if folder is not None and not os.path.isfile(weights) and small_clip.is_small(folder):
        with _explain_failure(model, str(folder)):
            small = small_clip.load(folder, untrained=weights == UNTRAINED)
            small.fold()
            return small, small_clip.Tokenizer(folder)
    if model.startswith(TIMM):
        return _create_timm(model, weights), None
    open_clip = import_models("open_clip", model)
    name = model
    options: dict[str, Any] = {}
    if folder is not None:
        name = f"{LOCAL}{folder}"
    elif not model.startswith(HUB):
        _check_names(model, weights)
        options["pretrained"] = None if weights == UNTRAINED else weights
        options["force_preprocess_cfg"] = _published_preprocessing(model, weights)
    if name.startswith((LOCAL, HUB)):
        options["load_weights"] = weights == "" or (folder is not None and weights != UNTRAINED)
    tokenizer = _create_tokenizer(model, folder)
    source = weights if os.path.isfile(weights) else str(folder or weights or model)
    with _explain_failure(model, source):
        loaded = open_clip.create_model(name, pretrained_text=False, **options)
        if name.startswith((LOCAL, HUB)) and os.path.isfile(weights):
            open_clip.load_checkpoint(loaded, weights)
    return loaded, tokenizer


def _create_timm(model: str, weights: str) -> Any:
    """An encoder of timm, whose name is checked first."""
    timm = import_models("timm", model)
    from rewards.vision.timm_tower import TimmTower, load_state

    name = model.removeprefix(TIMM)
    architecture = name.partition(".")[0]
    if not timm.is_model(architecture):
        nearest = difflib.get_close_matches(architecture, timm.list_models(), n=1)
        hint = f"did you mean {TIMM}{nearest[0]}?" if nearest else "`timm.list_models()` names all of them"
        raise ValueError(f"there is no model of timm called {name!r}; {hint}")
    source = weights or name
    with _explain_failure(model, source):
        net = timm.create_model(name, pretrained=not weights, num_classes=0)
        if os.path.isfile(weights):
            load_state(net, weights)
        return TimmTower(net, timm.data.resolve_model_data_config(net))


def _check_names(model: str, weights: str) -> None:
    """ValueError for a model that open_clip does not know, or a tag that the model does not have."""
    open_clip = import_models("open_clip", model)
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
    if not os.path.isfile(weights):
        return None
    open_clip = import_models("open_clip", model)
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
    """What splits sentences into tokens, before weights are downloaded: some need another package, or the hub."""
    open_clip = import_models("open_clip", model)
    name = model if folder is None else f"{LOCAL}{folder}"
    try:
        text_config = (open_clip.factory.get_model_config(name) or {}).get("text_cfg") or {}
    except Exception as error:
        raise FileNotFoundError(f"the description of {model!r} could not be had: {_first_words(error)}") from error
    if text_config.get("hf_tokenizer_name") and find_spec("transformers") is None:
        raise ImportError(f"the tokenizer of {model!r} needs the package transformers; {MODELS_EXTRA}")
    options = {}
    merges = (text_config.get("tokenizer_kwargs") or {}).get("bpe_path")
    if merges and folder is not None:
        # open_clip takes the path literally; in a folder that may lie anywhere it means a file beside the config.
        options["bpe_path"] = str(folder / merges)
    # Some tokenizers come from the hub, so this can fail for want of a network.
    try:
        return open_clip.get_tokenizer(name, **options)
    except Exception as error:
        raise FileNotFoundError(f"the tokenizer of {model!r} could not be had: {_first_words(error)}") from error


def read_training(folder: Path | None) -> dict[str, Any] | None:
    """What phrases.json says of a model's training: `supervision`, `phrases`, `words`, `near`."""
    if folder is None or not (folder / PHRASES_FILE).is_file():
        return None
    training: dict[str, Any] = json.loads((folder / PHRASES_FILE).read_text(encoding="utf-8"))
    return training
