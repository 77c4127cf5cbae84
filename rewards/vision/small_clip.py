"""The small CLIPs that ship with the suite, read without open_clip, whose import takes five CPU-seconds.

Image tower: a ResNet whose strided convolutions begin with an average pool, and attention over its last map. Text
tower: a causal transformer over word pieces, read at the end of the sentence. Names are those of open_clip's files.

Source: Radford et al. 2021, "Learning Transferable Visual Models From Natural Language Supervision", arXiv 2103.00020,
section 2.4.
Differences: inference only, and only the form of the shipped models (`is_small`). Embeddings of sentences are
open_clip's to the bit, those of images to 2e-6.
"""

import gzip
import html
import itertools
import json
import math
import string
from collections import OrderedDict
from functools import lru_cache
from pathlib import Path
from typing import Any

import ftfy
import regex
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

WEIGHTS = "open_clip_model.safetensors"
KEYS = {  # what the description of a small model may say
    "": {"embed_dim", "custom_text", "vision_cfg", "text_cfg"},
    "vision_cfg": {"layers", "width", "image_size"},
    "text_cfg": {"context_length", "vocab_size", "width", "heads", "layers", "tokenizer_kwargs"},
    "tokenizer_kwargs": {"bpe_path", "clean"},
}
STAGES, HEAD = 4, 64  # of the image tower; numbers a head attends with


def is_small(folder: Path) -> bool:
    """Whether the model that a folder in open_clip's layout describes is of the form of the shipped ones."""
    if not (folder / WEIGHTS).is_file():
        return False
    try:
        config = described(folder)["model_cfg"]
        image, text = config["vision_cfg"], config["text_cfg"]
        parts = {"": config, "vision_cfg": image, "text_cfg": text, "tokenizer_kwargs": text["tokenizer_kwargs"]}
        known = all(set(part) == KEYS[name] for name, part in parts.items())
        return known and image["layers"] == [1] * STAGES and text["tokenizer_kwargs"]["clean"] == "canonicalize"
    except (LookupError, TypeError, ValueError):
        return False


def described(folder: Path) -> dict[str, Any]:
    """What open_clip_config.json says."""
    found: dict[str, Any] = json.loads((folder / "open_clip_config.json").read_text(encoding="utf-8"))
    return found


class SmallClip(nn.Module):
    """Both towers; weights are drawn, by the global generator, until `load_state_dict`."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        config, seen = described(folder)["model_cfg"], described(folder)["preprocess_cfg"]
        self.visual = _Image(config["vision_cfg"], config["embed_dim"], seen)
        self.text = _Text(config["text_cfg"], config["embed_dim"])
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def encode_image(self, image: Tensor, normalize: bool = False) -> Tensor:
        """Images (N, 3, H, W), whitened -> embeddings (N, D)."""
        found: Tensor = self.visual(image)
        return functional.normalize(found, dim=-1) if normalize else found

    def encode_text(self, tokens: Tensor, normalize: bool = False) -> Tensor:
        """Tokens, int64 (N, context) -> embeddings (N, D)."""
        found: Tensor = self.text(tokens)
        return functional.normalize(found, dim=-1) if normalize else found

    def fold(self) -> None:
        """Let the convolutions of the image tower do what the batch normalisation behind each does."""
        pairs = [*((f"conv{number}", f"bn{number}") for number in (1, 2, 3)), ("0", "1")]
        for part in self.visual.modules():
            for convolution, normal in pairs:
                if isinstance(getattr(part, normal, None), nn.BatchNorm2d):
                    both = getattr(part, convolution), getattr(part, normal)
                    setattr(part, convolution, fuse_conv_bn_eval(*both))
                    setattr(part, normal, nn.Identity())


class _Block(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.pool = nn.AvgPool2d(stride) if stride > 1 else nn.Identity()
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        nn.init.zeros_(self.bn3.weight)
        convolution = nn.Conv2d(inputs, 4 * width, 1, bias=False)
        parts = {
            "-1": nn.AvgPool2d(stride) if stride > 1 else nn.Identity(),
            "0": convolution,
            "1": nn.BatchNorm2d(4 * width),
        }
        self.downsample = nn.Sequential(OrderedDict(parts))

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        out = functional.relu(self.bn2(self.conv2(out)), inplace=True)
        out = self.bn3(self.conv3(self.pool(out)))
        out += self.downsample(x)
        return functional.relu(out, inplace=True)


class _Pool(nn.Module):
    """Attention of the mean over all places of a map."""

    def __init__(self, places: int, width: int, heads: int, output: int) -> None:
        super().__init__()
        self.positional_embedding = nn.Parameter(torch.randn(places + 1, width) / width**0.5)
        self.k_proj, self.q_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))
        self.c_proj, self.heads = nn.Linear(width, output), heads
        for layer in (self.q_proj, self.k_proj, self.v_proj, self.c_proj):
            nn.init.normal_(layer.weight, std=width**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (N, width, H, W) -> (N, output); (q W_k) x in place of q (W_k x), as there is one query a map."""
        x = x.flatten(2).transpose(1, 2)
        x = torch.cat([x.mean(1, keepdim=True), x], 1) + self.positional_embedding  # (N, places, width)
        parts = len(x), self.heads, HEAD
        keys, values = (layer.weight.view(*parts[1:], -1) for layer in (self.k_proj, self.v_proj))
        query = self.q_proj(x[:, 0]).view(parts).transpose(0, 1) / HEAD**0.5
        weights = torch.softmax(x @ (query @ keys).permute(1, 2, 0), 1)  # (N, places, heads); a bias adds to all alike
        seen = (weights.transpose(1, 2) @ x).transpose(0, 1) @ values.transpose(1, 2)  # (heads, N, HEAD)
        found: Tensor = self.c_proj(seen.transpose(0, 1).flatten(1) + self.v_proj.bias)
        return found


class _Image(nn.Module):
    def __init__(self, config: dict[str, Any], output: int, seen: dict[str, Any]) -> None:
        super().__init__()
        width, self.image_size, self.preprocess_cfg = config["width"], config["image_size"], seen
        self.image_mean, self.image_std = seen["mean"], seen["std"]
        half = width // 2
        self.conv1, self.bn1 = nn.Conv2d(3, half, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(half)
        self.conv2, self.bn2 = nn.Conv2d(half, half, 3, padding=1, bias=False), nn.BatchNorm2d(half)
        self.conv3, self.bn3 = nn.Conv2d(half, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        inputs = width
        for number in range(STAGES):
            planes = width * 2**number
            self.add_module(f"layer{number + 1}", nn.Sequential(_Block(inputs, planes, min(number + 1, 2))))
            inputs = 4 * planes
        self.attnpool = _Pool((self.image_size // 32) ** 2, inputs, inputs // HEAD, output)

    def forward(self, x: Tensor) -> Tensor:
        for number in (1, 2, 3):
            normal, convolution = getattr(self, f"bn{number}"), getattr(self, f"conv{number}")
            x = functional.relu(normal(convolution(x)), inplace=True)
        quarters = x.new_full((x.shape[1], 1, 2, 2), 1 / 4)
        x = functional.conv2d(x, quarters, stride=2, groups=len(quarters))  # an average pool in a fifth of the time
        for number in range(STAGES):
            x = getattr(self, f"layer{number + 1}")(x)
        found: Tensor = self.attnpool(x)
        return found


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(width)
        parts = {"c_fc": nn.Linear(width, 4 * width), "gelu": nn.GELU(), "c_proj": nn.Linear(4 * width, width)}
        self.mlp = nn.Sequential(OrderedDict(parts))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False, attn_mask=mask)[0]
        found: Tensor = x + self.mlp(self.ln_2(x))
        return found


class _Text(nn.Module):
    def __init__(self, config: dict[str, Any], output: int) -> None:
        super().__init__()
        width, layers = config["width"], config["layers"]
        self.token_embedding = nn.Embedding(config["vocab_size"], width)
        self.positional_embedding = nn.Parameter(torch.empty(config["context_length"], width))
        blocks = [_Layer(width, config["heads"]) for _ in range(layers)]
        self.transformer = nn.ModuleDict({"resblocks": nn.ModuleList(blocks)})
        self._blocks = (*blocks,)  # with their type
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.empty(width, output))
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        nn.init.normal_(self.positional_embedding, std=0.01)
        wide, deep = width**-0.5, (2 * layers) ** -0.5
        spread = {"attn.in_proj_weight": wide, "attn.out_proj.weight": wide * deep}
        spread |= {"mlp.c_fc.weight": (2 * width) ** -0.5, "mlp.c_proj.weight": wide * deep}
        for layer in blocks:
            for name, std in spread.items():
                nn.init.normal_(layer.get_parameter(name), std=std)
        nn.init.normal_(self.text_projection, std=width**-0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.token_embedding(tokens) + self.positional_embedding[:length]
        mask = torch.full((length, length), -math.inf, device=x.device, dtype=x.dtype).triu_(1)
        for layer in self._blocks:
            x = layer(x, mask)
        x = self.ln_final(x)
        found: Tensor = x[torch.arange(len(x)), tokens.argmax(-1)] @ self.text_projection
        return found


class Tokenizer:
    """Sentences -> tokens, int64 (N, context): a start, byte pairs of the lower-case words without punctuation, an end.

    Source: Sennrich et al. 2016, arXiv 1508.07909, over bytes as in GPT-2; the vocabulary's order is CLIP's.
    """

    def __init__(self, folder: Path) -> None:
        config = described(folder)["model_cfg"]["text_cfg"]
        self.context_length = config["context_length"]
        plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in plain]
        self._letters = {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}
        lines = gzip.decompress((folder / config["tokenizer_kwargs"]["bpe_path"]).read_bytes()).decode().split("\n")
        merges = [tuple(line.split()) for line in lines[1:]]
        self._ranks = {pair: rank for rank, pair in enumerate(merges)}
        letters = [*self._letters.values()]
        names = [*letters, *(letter + "</w>" for letter in letters), *("".join(pair) for pair in merges)]
        self._codes = {name: code for code, name in enumerate(names)}
        self._ends = len(names), len(names) + 1
        self._words = regex.compile(r"[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+")
        self._pieces = lru_cache(maxsize=None)(self._split)

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, without its start and its end."""
        text = html.unescape(html.unescape(ftfy.fix_text(text))).replace("_", " ")
        text = text.translate(str.maketrans("", "", string.punctuation)).lower()
        return [code for word in self._words.findall(text) for code in self._pieces(word)]

    def _split(self, word: str) -> list[int]:
        parts = [self._letters[byte] for byte in word.encode()]
        parts[-1] += "</w>"
        while len(parts) > 1:
            rank, pair = min((self._ranks.get(pair, math.inf), pair) for pair in itertools.pairwise(parts))
            if rank == math.inf:
                break
            joined, i = [], 0
            while i < len(parts):
                both = (*parts[i : i + 2],) == pair
                joined.append("".join(pair) if both else parts[i])
                i += 1 + both
            parts = joined
        return [self._codes[part] for part in parts]

    def __call__(self, texts: list[str]) -> Tensor:
        found = torch.zeros(len(texts), self.context_length, dtype=torch.int64)
        for row, text in zip(found, texts):
            tokens = [self._ends[0], *self.encode(text)[: self.context_length - 2], self._ends[1]]
            row[: len(tokens)] = torch.tensor(tokens)
        return found


def load(folder: Path, untrained: bool = False) -> SmallClip:
    """The model of a folder, for inference; a RuntimeError for weights of another one."""
    from safetensors.torch import load_file

    model = SmallClip(folder).eval()
    if not untrained:
        model.load_state_dict(load_file(folder / WEIGHTS))
    return model
