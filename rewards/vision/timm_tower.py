"""An encoder of timm as an image tower: where things are counts, so the last map of features is kept, not its mean.

Channels pass a fixed random projection, the same at every place, so that an embedding has about a thousand numbers
(Johnson and Lindenstrauss 1984: distances change by a few percent).
Differences from timm's own use: it classifies by the mean over the map, which hardly changes as a small thing moves.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

# Of an embedding, about; each place of the map has at least so many.
TARGET_NUMBERS = 1024
MIN_NUMBERS_A_PLACE = 4
PROJECTION_SEED = 0


class TimmTower(nn.Module):
    """Whitened images (N, 3, S, S) -> embeddings (N, D); `visual` says how images are made ready, as in open_clip."""

    projection: Tensor

    def __init__(self, net: Any, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.net = net
        self.image_size = int(config["input_size"][-1])
        self.image_mean = config["mean"]
        self.image_std = config["std"]
        self.preprocess_cfg = {"interpolation": config["interpolation"]}
        with torch.no_grad():
            places = self.map_of(torch.zeros(1, 3, self.image_size, self.image_size))
        _, count, channels = places.shape
        numbers = max(TARGET_NUMBERS // count, MIN_NUMBERS_A_PLACE)
        generator = torch.Generator().manual_seed(PROJECTION_SEED)
        projection = torch.randn(channels, numbers, generator=generator) / numbers**0.5
        self.register_buffer("projection", projection)

    @property
    def visual(self) -> "TimmTower":
        return self

    def map_of(self, image: Tensor) -> Tensor:
        """The last features (N, places, channels)."""
        features: Tensor = self.net.eval().forward_features(image)
        if features.ndim == 4:
            # Some networks keep their channels last.
            if features.shape[1] != self.net.num_features:
                features = features.permute(0, 3, 1, 2)
            features = features.flatten(2).transpose(1, 2)
        return features

    def encode_image(self, image: Tensor, normalize: bool = False) -> Tensor:
        """Embeddings (N, D)."""
        embedding = (self.map_of(image) @ self.projection).flatten(1)
        return functional.normalize(embedding, dim=-1) if normalize else embedding


def load_state(net: nn.Module, path: str) -> None:
    """Load a file's weights by their names, or by their order where all shapes agree; a ValueError for others."""
    if path.endswith(".safetensors"):
        from safetensors.torch import load_file

        state = load_file(path)
    else:
        state = torch.load(path, "cpu", weights_only=True)
        state = state.get("state_dict", state)
    own = net.state_dict()
    if not own.keys() <= state.keys():
        # Another implementation of the same network names its parts otherwise. What is left over is its classifier.
        pairs = list(zip(own.items(), state.values()))
        for (name, value), other in pairs:
            if value.shape != other.shape:
                raise ValueError(f"{name} has shape {tuple(value.shape)}, in the file it is {tuple(other.shape)}")
        if len(pairs) < len(own):
            raise ValueError(f"the file has {len(state)} arrays, the model {len(own)}")
        state = dict(zip(own, state.values()))
    net.load_state_dict({name: state[name] for name in own})
