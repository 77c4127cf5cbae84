"""The small CLIPs that ship with the suite, read without open_clip, whose import takes five CPU-seconds.

Image tower: a ResNet whose strided convolutions begin with an average pool, and attention over its last map. Text
tower: a causal transformer over word pieces, read at the end of the sentence. Names are those of open_clip's files.

Source: Radford et al. 2021, "Learning Transferable Visual Models From Natural Language Supervision", arXiv 2103.00020,
section 2.4.
Differences: only the form of the shipped models (`is_small`). Embeddings of sentences are open_clip's to the bit, those
of images to 2e-6. In training the keys' bias of the last attention, which changes nothing, has no gradient.
"""

import gzip
import html
import itertools
import json
import math
import re
import string
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

WEIGHTS = "open_clip_model.safetensors"
# A config with any other key describes a model that needs open_clip.
CONFIG_KEYS = {
    "": {"embed_dim", "custom_text", "vision_cfg", "text_cfg"},
    "vision_cfg": {"layers", "width", "image_size"},
    "text_cfg": {"context_length", "vocab_size", "width", "heads", "layers", "tokenizer_kwargs"},
    "tokenizer_kwargs": {"bpe_path", "clean"},
}
IMAGE_STAGES = 4
HEAD_WIDTH = 64
# Texts without letters of other alphabets, control characters or entities; and their words.
_PLAIN_TEXT = re.compile(r"[ -%'-~\n]*")
_CURLED_QUOTES = str.maketrans("\u2018\u2019\u201c\u201d", "''\"\"")
_ASCII_WORDS = re.compile(r"[a-z]+|[0-9]|[^\sa-z0-9]+")


def is_small(folder: Path) -> bool:
    """Whether the model that a folder in open_clip's layout describes is of the form of the shipped ones."""
    if not (folder / WEIGHTS).is_file():
        return False
    try:
        config = read_config(folder)["model_cfg"]
        image = config["vision_cfg"]
        text = config["text_cfg"]
        tokenizer = text["tokenizer_kwargs"]
        parts = {"": config, "vision_cfg": image, "text_cfg": text, "tokenizer_kwargs": tokenizer}
        if any(set(part) != CONFIG_KEYS[name] for name, part in parts.items()):
            return False
        return image["layers"] == [1] * IMAGE_STAGES and tokenizer["clean"] == "canonicalize"
    except (LookupError, TypeError, ValueError):
        return False


def read_config(folder: Path) -> dict[str, Any]:
    """The contents of open_clip_config.json."""
    text = (folder / "open_clip_config.json").read_text(encoding="utf-8")
    config: dict[str, Any] = json.loads(text)
    return config


class SmallClip(nn.Module):
    """Both towers; weights are drawn, by the global generator, until `load_state_dict`."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        config = read_config(folder)
        model = config["model_cfg"]
        self.embed_dim: int = model["embed_dim"]
        self.visual = ImageTower(model["vision_cfg"], model["embed_dim"], config["preprocess_cfg"])
        self.text = _TextTower(model["text_cfg"], model["embed_dim"])
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def encode_image(self, image: Tensor, normalize: bool = False) -> Tensor:
        """Images (N, 3, H, W), whitened -> embeddings (N, D)."""
        embedding = self.visual(image)
        return functional.normalize(embedding, dim=-1) if normalize else embedding

    def encode_text(self, tokens: Tensor, normalize: bool = False) -> Tensor:
        """Tokens, int64 (N, context) -> embeddings (N, D)."""
        embedding = self.text(tokens)
        return functional.normalize(embedding, dim=-1) if normalize else embedding

    def fold(self) -> None:
        """Fold each batch normalisation of the image tower into the convolution before it."""
        for module in self.visual.modules():
            children = list(module.named_children())
            for (convolution_name, convolution), (norm_name, norm) in itertools.pairwise(children):
                if isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                    module.add_module(convolution_name, fuse_conv_bn_eval(convolution, norm))
                    module.add_module(norm_name, nn.Identity())


class _Block(nn.Module):
    """A bottleneck of a ResNet, (N, inputs, H, W) -> (N, 4 width, H / stride, W / stride)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        # The order in which layers are made is the order in which their weights are drawn.
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.pool = nn.AvgPool2d(stride) if stride > 1 else nn.Identity()
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        nn.init.zeros_(self.bn3.weight)
        # The names "-1", "0" and "1" are those of the weights in open_clip's files.
        self.downsample = nn.Sequential(
            OrderedDict(
                {
                    "-1": nn.AvgPool2d(stride) if stride > 1 else nn.Identity(),
                    "0": nn.Conv2d(inputs, outputs, 1, bias=False),
                    "1": nn.BatchNorm2d(outputs),
                }
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        out = functional.relu(self.bn2(self.conv2(out)), inplace=True)
        out = self.bn3(self.conv3(self.pool(out)))
        out += self.downsample(x)
        return functional.relu(out, inplace=True)


class _AttentionPool(nn.Module):
    """Attention of the mean over all places of a map."""

    def __init__(self, places: int, width: int, heads: int, output: int) -> None:
        super().__init__()
        self.positional_embedding = nn.Parameter(torch.randn(places + 1, width) / width**0.5)
        self.k_proj = nn.Linear(width, width)
        self.q_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.c_proj = nn.Linear(width, output)
        self.heads = heads
        for layer in (self.q_proj, self.k_proj, self.v_proj, self.c_proj):
            nn.init.normal_(layer.weight, std=width**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (N, width, H, W) -> (N, output); (q W_k) x in place of q (W_k x), as there is one query a map."""
        x = x.flatten(2).transpose(1, 2)
        # The mean comes first: (N, places, width).
        x = torch.cat([x.mean(1, keepdim=True), x], 1)
        x = x + self.positional_embedding
        keys = self.k_proj.weight.view(self.heads, HEAD_WIDTH, -1)
        values = self.v_proj.weight.view(self.heads, HEAD_WIDTH, -1)
        query = self.q_proj(x[:, 0]).view(len(x), self.heads, HEAD_WIDTH)
        query = query.transpose(0, 1) / HEAD_WIDTH**0.5
        # The bias of the keys is left out: it adds the same to every place, which the softmax cancels.
        logits = x @ (query @ keys).permute(1, 2, 0)
        weights = torch.softmax(logits, 1)
        # (heads, N, HEAD_WIDTH).
        attended = (weights.transpose(1, 2) @ x).transpose(0, 1) @ values.transpose(1, 2)
        attended = attended.transpose(0, 1).flatten(1) + self.v_proj.bias
        pooled: Tensor = self.c_proj(attended)
        return pooled


class ImageTower(nn.Module):
    """Whitened images (N, 3, size, size) -> (N, output)."""

    def __init__(self, config: dict[str, Any], output: int, preprocessing: dict[str, Any]) -> None:
        super().__init__()
        self.image_size = config["image_size"]
        self.preprocess_cfg = preprocessing
        self.image_mean = preprocessing["mean"]
        self.image_std = preprocessing["std"]
        width = config["width"]
        half = width // 2
        self.conv1 = nn.Conv2d(3, half, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(half)
        self.conv2 = nn.Conv2d(half, half, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(half)
        self.conv3 = nn.Conv2d(half, width, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(width)
        inputs = width
        for number in range(IMAGE_STAGES):
            planes = width * 2**number
            stride = min(number + 1, 2)
            self.add_module(f"layer{number + 1}", nn.Sequential(_Block(inputs, planes, stride)))
            inputs = 4 * planes
        places = (self.image_size // 32) ** 2
        self.attnpool = _AttentionPool(places, inputs, inputs // HEAD_WIDTH, output)

    def forward(self, x: Tensor) -> Tensor:
        for number in (1, 2, 3):
            convolution = getattr(self, f"conv{number}")
            norm = getattr(self, f"bn{number}")
            x = functional.relu(norm(convolution(x)), inplace=True)
        # An average pool over 2 x 2, as a convolution: in a fifth of the time.
        quarters = x.new_full((x.shape[1], 1, 2, 2), 1 / 4)
        x = functional.conv2d(x, quarters, stride=2, groups=len(quarters))
        for number in range(IMAGE_STAGES):
            stage = getattr(self, f"layer{number + 1}")
            x = stage(x)
        embedding: Tensor = self.attnpool(x)
        return embedding


class _TextLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            OrderedDict({"c_fc": nn.Linear(width, 4 * width), "gelu": nn.GELU(), "c_proj": nn.Linear(4 * width, width)})
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False, attn_mask=mask)[0]
        return x + self.mlp(self.ln_2(x))


class _TextTower(nn.Module):
    def __init__(self, config: dict[str, Any], output: int) -> None:
        super().__init__()
        width = config["width"]
        layers = config["layers"]
        self.token_embedding = nn.Embedding(config["vocab_size"], width)
        self.positional_embedding = nn.Parameter(torch.empty(config["context_length"], width))
        blocks = [_TextLayer(width, config["heads"]) for _ in range(layers)]
        self.transformer = nn.ModuleDict({"resblocks": nn.ModuleList(blocks)})
        # As a tuple the blocks keep their type, which a ModuleDict hides from mypy.
        self._blocks = (*blocks,)
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.empty(width, output))
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        nn.init.normal_(self.positional_embedding, std=0.01)
        # CLIP's initialisation: layers that write to the residual stream start smaller by its depth.
        input_std = width**-0.5
        output_std = input_std * (2 * layers) ** -0.5
        std_of = {
            "attn.in_proj_weight": input_std,
            "attn.out_proj.weight": output_std,
            "mlp.c_fc.weight": (2 * width) ** -0.5,
            "mlp.c_proj.weight": output_std,
        }
        for layer in blocks:
            for name, std in std_of.items():
                nn.init.normal_(layer.get_parameter(name), std=std)
        nn.init.normal_(self.text_projection, std=width**-0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.read(self.token_embedding(tokens), tokens)

    def read(self, embedded: Tensor, tokens: Tensor) -> Tensor:
        """Embeddings of sentences (N, D), from the vectors of their tokens (N, L, width)."""
        length = tokens.shape[1]
        x = embedded + self.positional_embedding[:length]
        # Causal: a token attends to itself and to what came before.
        mask = torch.full((length, length), -math.inf, device=x.device, dtype=x.dtype)
        mask = mask.triu_(1)
        for layer in self._blocks:
            x = layer(x, mask)
        x = self.ln_final(x)
        # The end of the sentence has the largest code of all tokens.
        sentence_end = tokens.argmax(-1)
        return x[torch.arange(len(x)), sentence_end] @ self.text_projection


class Tokenizer:
    """Sentences -> tokens, int64 (N, context): a start, byte pairs of the lower-case words without punctuation, an end.

    Source: Sennrich et al. 2016, arXiv 1508.07909, over bytes as in GPT-2; the vocabulary's order is CLIP's.
    """

    def __init__(self, folder: Path) -> None:
        config = read_config(folder)["model_cfg"]["text_cfg"]
        self.context_length = config["context_length"]
        self._letters = byte_letters()
        merges = read_merges(folder / config["tokenizer_kwargs"]["bpe_path"])
        self._ranks = dict(zip(merges, itertools.count()))
        # The vocabulary: letters, letters that end a word, then the merges; start and end come last.
        letters = list(self._letters.values())
        names = [*letters, *(letter + "</w>" for letter in letters), *map("".join, merges)]
        self._codes = dict(zip(names, itertools.count()))
        self._start_code = len(names)
        self._end_code = len(names) + 1
        self._word_codes = cache(self._split_word)

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, without its start and its end."""
        text = text.translate(_CURLED_QUOTES)
        find_words: Callable[[str], list[str]] = _ASCII_WORDS.findall
        if not _PLAIN_TEXT.fullmatch(text):
            text, find_words = _read_other_letters(text)
        text = text.replace("_", " ").translate(str.maketrans("", "", string.punctuation)).lower()
        codes: list[int] = []
        for word in find_words(text):
            codes += self._word_codes(word)
        return codes

    def _split_word(self, word: str) -> list[int]:
        parts = [self._letters[byte] for byte in word.encode()]
        parts[-1] += "</w>"
        while len(parts) > 1:
            # What is joined first has the least rank; what a join makes possible has a higher one.
            ranks = [self._ranks.get(pair, math.inf) for pair in itertools.pairwise(parts)]
            least = min(ranks)
            if least == math.inf:
                break
            place = ranks.index(least)
            parts[place : place + 2] = ["".join(parts[place : place + 2])]
        return [self._codes[part] for part in parts]

    def __call__(self, texts: list[str]) -> Tensor:
        rows = torch.zeros(len(texts), self.context_length, dtype=torch.int64)
        for row, text in zip(rows, texts):
            codes = self.encode(text)[: self.context_length - 2]
            tokens = [self._start_code, *codes, self._end_code]
            row[: len(tokens)] = torch.tensor(tokens)
        return rows


def _read_other_letters(text: str) -> tuple[str, Callable[[str], list[str]]]:
    """Any text, repaired as open_clip does, and what finds its words; an ImportError without the extra `models`."""
    try:
        import ftfy
        import regex
    except ImportError:
        raise ImportError(
            f"the sentence {text!r} has other characters than plain English ones; write it without them, or "
            "pip install 'lodestar-rl[models]'"
        ) from None
    words = regex.compile(r"[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+")
    return html.unescape(html.unescape(ftfy.fix_text(text))), words.findall


def byte_letters() -> dict[int, str]:
    """A printable letter for each byte, as in GPT-2: its own where it has one, else one from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = dict(zip(printable, map(chr, printable)))
    next_letter = 256
    for byte in range(256):
        if byte not in letters:
            letters[byte] = chr(next_letter)
            next_letter += 1
    return letters


def read_merges(path: Path) -> list[tuple[str, ...]]:
    """The byte pairs of a vocabulary, the most frequent first; the file's first line is its version."""
    lines = gzip.decompress(path.read_bytes()).decode().split("\n")
    return [tuple(line.split()) for line in lines[1:]]


def load(folder: Path, untrained: bool = False) -> SmallClip:
    """The model of a folder, for inference; a RuntimeError for weights of another one."""
    from safetensors.torch import load_file

    model = SmallClip(folder).eval()
    if not untrained:
        model.load_state_dict(load_file(folder / WEIGHTS))
    return model
