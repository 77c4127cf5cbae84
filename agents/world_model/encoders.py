"""Observations as an embedding, and features as observations again: what a world model sees and what it says it saw.

    Encoder   numbers (symlog, then fully connected layers, or `agents.networks.glyphs` for NetHack) and images (convolutions
              that quarter and halve each side until it is below 8; small grids keep their size) -> E numbers
    Decoder   F features -> numbers in symlog's space, and images in [0, 1]: the same the other way

Source: the shape is that of DreamerV3 (Hafner et al. 2023, arXiv 2301.04104): symlog, kernels of twice the stride,
channels that double, pixels by squared error.
Differences: from 32 pixels on the first stride is 4, as in Mnih et al. 2015, which takes a CPU half the time; 32 and 64
channels; no normalisation between convolutions; sigmoid at the end.
When it fails: images of several hundred pixels a side (resize them); tiny objects that matter, in reconstruction.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

from agents.dynamics.cells import layer
from agents.networks.actor_critic import linear
from agents.networks.glyphs import Glyphs
from agents.networks.heads import symlog
from agents.networks.space_encoding import SpaceEncoding
from agents.world_model.representation import recon_pixels, recon_vector

CHANNELS, MOST = 32, 64  # after the first convolution, and then
LARGE, SMALL = 32, 8  # pixels from which the first stride is 4, and from which a side is halved


class Encoder(nn.Module):
    """(..., D) numbers and {key: (..., C, H, W)} uint8 images -> (..., E).

    Args:
        encoding: of the spaces.
        size: E.
        net_arch: units of the layers that the numbers pass.
        net: "mlp", or "glyphs" for observations in parts, as NetHack gives them.

    Raises:
        ValueError: for an unknown `net`, or "glyphs" for observations without parts.
    """

    def __init__(
        self, encoding: SpaceEncoding, size: int = 128, net_arch: tuple[int, ...] = (128,), net: str = "mlp"
    ) -> None:
        super().__init__()
        if net not in ("mlp", "glyphs"):
            raise ValueError(f"net={net!r} is unknown; give mlp or glyphs")
        self.size, self.numbers, self.trunk = size, encoding.obs_size, None
        width = 0
        if net == "glyphs":
            self.trunk = Glyphs(encoding.observation_space)
            width = self.trunk.width
        elif encoding.obs_size:
            widths = (encoding.obs_size, *net_arch)
            self.mlp = nn.Sequential(*(layer(a, b) for a, b in itertools.pairwise(widths)))
            width = widths[-1]
        self.convolutions = nn.ModuleDict({f"image_{key}": _seeing(shape) for key, shape in encoding.images.items()})
        width += sum(math.prod(_sizes(shape)[-1]) for shape in encoding.images.values())
        self.join = layer(width, size)

    def forward(self, vector: Tensor, pixels: dict[str, Tensor]) -> Tensor:
        leading = vector.shape[:-1]
        flat, parts = vector.reshape(math.prod(leading), self.numbers), []
        if self.trunk is not None:
            parts.append(self.trunk(flat))
        elif self.numbers:
            parts.append(self.mlp(symlog(flat)))
        for key, image in pixels.items():
            image = image.flatten(0, -4) if image.dim() > 3 else image[None]
            parts.append(self.convolutions[f"image_{key}"](image.to(flat.dtype) / 255 - 0.5))
        return self.join(torch.cat(parts, -1)).view(*leading, self.size)


class Decoder(nn.Module):
    """(..., F) -> (..., D) in symlog's space, and {key: (..., C, H, W)} in [0, 1].

    Args:
        encoding: of the spaces.
        features: F.
        net_arch: units of the layers in front of the numbers.
    """

    def __init__(self, encoding: SpaceEncoding, features: int, net_arch: tuple[int, ...] = (128,)) -> None:
        super().__init__()
        self.numbers = encoding.obs_size
        if encoding.obs_size:
            widths = (features, *net_arch)
            layers = [layer(a, b) for a, b in itertools.pairwise(widths)]
            self.mlp = nn.Sequential(*layers, linear(widths[-1], encoding.obs_size, 1.0))
        self.pictures = nn.ModuleDict({f"image_{k}": _drawing(features, shape) for k, shape in encoding.images.items()})

    def forward(self, features: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        leading, flat = features.shape[:-1], features.reshape(-1, features.shape[-1])
        vector = self.mlp(flat).view(*leading, -1) if self.numbers else features.new_zeros(*leading, 0)
        pixels = {key.removeprefix("image_"): net(flat) for key, net in self.pictures.items()}
        return vector, {key: image.view(*leading, *image.shape[1:]) for key, image in pixels.items()}

    def loss(self, features: Tensor, vector: Tensor, pixels: dict[str, Tensor]) -> Tensor:
        """Squared error of all numbers and pixels, summed: (..., F), the observation -> (...,)."""
        said, drawn = self(features)
        gap = recon_vector(said, vector)
        for key, image in pixels.items():
            gap = gap + recon_pixels(drawn[key], image)
        return gap


def _sizes(shape: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """(C, H, W) of an image and of what each convolution makes of it."""
    channels, height, width = shape
    sizes = [(channels, height, width)]
    if min(height, width) < SMALL:
        return [*sizes, (CHANNELS, height, width), (CHANNELS, height, width)]
    while min(height, width) >= SMALL:
        stride = 4 if len(sizes) == 1 and min(height, width) >= LARGE else 2
        height, width = height // stride, width // stride
        sizes.append((CHANNELS if len(sizes) == 1 else MOST, height, width))
    return sizes


def _stride(large: tuple[int, ...], small: tuple[int, ...]) -> int:
    return large[1] // small[1]


def _seeing(shape: tuple[int, ...]) -> nn.Sequential:
    """(B, C, H, W) -> (B, features)."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(_sizes(shape)):
        stride = _stride(before, after)
        kernel, padding = (3, 1) if stride == 1 else (2 * stride, stride // 2)
        layers += [_orthogonal(nn.Conv2d(before[0], after[0], kernel, stride, padding)), nn.SiLU()]
    return nn.Sequential(*layers, nn.Flatten())


def _drawing(features: int, shape: tuple[int, ...]) -> nn.Sequential:
    """(B, F) -> (B, C, H, W): `_seeing` backwards."""
    sizes = _sizes(shape)[::-1]
    layers: list[nn.Module] = [layer(features, math.prod(sizes[0])), nn.Unflatten(1, sizes[0])]
    for before, after in itertools.pairwise(sizes):
        stride = _stride(after, before)
        if stride == 1:
            convolution: nn.Module = nn.Conv2d(before[0], after[0], 3, 1, 1)
        else:
            left = (after[1] % stride, after[2] % stride)
            convolution = nn.ConvTranspose2d(before[0], after[0], 2 * stride, stride, stride // 2, output_padding=left)
        layers += [_orthogonal(convolution), nn.SiLU()]
    return nn.Sequential(*layers[:-1], nn.Sigmoid())


def _orthogonal(convolution: nn.Module) -> nn.Module:
    for name, p in convolution.named_parameters():
        if name == "bias":
            nn.init.zeros_(p)
        else:
            nn.init.orthogonal_(p, math.sqrt(2))
    return convolution
