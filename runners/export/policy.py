"""A deterministic policy as data: what is read of an observation, layers, and what the outputs mean as an action.

Source of everything is a description, plain JSON:

    inputs    name -> shape and dtype of an observation's entries, in the order of `forward`'s arguments
    parts     what is read: which input, as numbers, one-hot or image, which slice of it, and through which layers
    layers    what the parts, side by side, go through
    action    choose (the largest of each group), threshold, clip or rescale; shape and dtype

and tensors beside it. This file needs torch, numpy and safetensors, and nothing else of this project: copied somewhere
else it still reads what it wrote.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Raised when a description that this file writes can no longer be read by an older one.
POLICY_FORMAT = 1
WEIGHTS_FILE = "policy.safetensors"
DESCRIPTION_FILE = "policy.json"
# What stands in for the logit of an action that a mask forbids.
MASKED_LOGIT = -1e8
Ints = tuple[int, ...]
# Plain data, as JSON holds it.
Description = dict[str, Any]


class Layer(nn.Module):
    """A layer that is described by the numbers it is made with."""

    def __init__(self, *numbers: Any) -> None:
        super().__init__()
        self.numbers = numbers


class Affine(Layer):
    """(x - shift) * scale + bias, each of a shape that broadcasts over x's last axes."""

    shift: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(self, *shape: int) -> None:
        super().__init__(*shape)
        self.register_buffer("shift", torch.zeros(shape))
        self.register_buffer("scale", torch.ones(shape))
        self.register_buffer("bias", torch.zeros(shape))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.shift) * self.scale + self.bias


class Function(Layer):
    """One of `FUNCTIONS`, by its name, with numbers of its own."""

    def __init__(self, name: str, *numbers: int | float) -> None:
        super().__init__(*numbers)
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        return FUNCTIONS[self.name](x, *self.numbers)


class Linears(Layer):
    """K fully connected layers side by side: (B, I) or (K, B, I) -> (K, B, O)."""

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__(members, inputs, outputs)
        self.weight = nn.Parameter(torch.zeros(members, inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(members, 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Expectation(Layer):
    """Logits over bins (..., bins) -> the mean of their centres (...)."""

    centres: Tensor

    def __init__(self, bins: int) -> None:
        super().__init__(bins)
        self.register_buffer("centres", torch.zeros(bins))

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x, -1) @ self.centres


# The names stand in descriptions. "clamp" takes [low, high], "mean" an axis.
FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "clamp": torch.clamp,
    # (B, side * side * kinds), channels last -> (B, kinds, side, side).
    "cells": lambda x, side, kinds: x.reshape(-1, side, side, kinds).permute(0, 3, 1, 2),
    # (B, H, W, C) -> (B, C, H, W).
    "turned": lambda x: x.permute(0, 3, 1, 2),
    # Each row's features with mean 0 and variance 1, as layer normalisation does before its gain.
    "standard": lambda x: F.layer_norm(x, x.shape[-1:]),
    "mean": torch.mean,
    "symexp": lambda x: torch.sign(x) * torch.expm1(x.abs()),
    # (..., a * b) -> (..., a, b).
    "split": lambda x, *sizes: x.unflatten(-1, sizes),
}
LAYERS: dict[str, Any] = {
    "linear": nn.Linear,
    "conv": nn.Conv2d,
    "flatten": nn.Flatten,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
    "mish": nn.Mish,
    "elu": nn.ELU,
    "affine": Affine,
    "linears": Linears,
    "expectation": Expectation,
}


def describe_layer(layer: nn.Module) -> list[Any]:
    """The entry of a layer in the description, its name and what it is made with; a ValueError if it has none."""
    if isinstance(layer, Function):
        return [layer.name, *layer.numbers]
    names = {kind: name for name, kind in LAYERS.items()}
    name = names.get(type(layer))
    if name is None:
        choices = ", ".join([*LAYERS, *FUNCTIONS])
        raise ValueError(f"a {type(layer).__name__} layer has no exported form; there are {choices}")
    if isinstance(layer, nn.Linear):
        return [name, int(layer.in_features), int(layer.out_features)]
    if isinstance(layer, nn.Conv2d):
        return [name, int(layer.in_channels), int(layer.out_channels), layer.kernel_size[0], layer.stride[0]]
    if isinstance(layer, Layer):
        return [name, *layer.numbers]
    return [name]


def make_layers(entries: list[list[Any]]) -> nn.Sequential:
    """Layers from their entries in the description, their weights not yet read."""
    layers = nn.Sequential()
    for name, *numbers in entries:
        layers.append(LAYERS[name](*numbers) if name in LAYERS else Function(name, *numbers))
    return layers


class Part(nn.Module):
    """What is read of the input `source`, and the layers that it goes through.

    The kind is "numbers" (ravelled, from the first to the last + 1 of `place`, or all), "one-hot" (whole numbers, of
    which there are `sizes`, beginning at `starts`) or "image" (bytes, divided by 255, axes as they are).
    """

    def __init__(
        self,
        source: str,
        kind: str,
        layers: nn.Sequential,
        *,
        place: tuple[int, int] | None = None,
        sizes: Ints = (),
        starts: Ints = (),
    ) -> None:
        super().__init__()
        self.source = source
        self.kind = kind
        self.layers = layers
        self.place = place
        self.sizes = tuple(sizes)
        self.starts = tuple(starts)

    def forward(self, x: Tensor) -> Tensor:
        """(B, *shape) -> features (B, F)."""
        if self.kind == "image":
            return self.layers(x.float() / 255.0)
        x = x.flatten(1) if x.dim() > 1 else x[:, None]
        if self.kind == "one-hot":
            return self.layers(self._one_hot(x))
        x = x.float()
        if self.place is not None:
            x = x[:, self.place[0] : self.place[1]]
        return self.layers(x)

    def _one_hot(self, x: Tensor) -> Tensor:
        """Whole numbers (B, groups) -> (B, sum of the groups' sizes)."""
        groups = []
        for column, (size, start) in enumerate(zip(self.sizes, self.starts)):
            choice = x[:, column : column + 1].long() - start
            groups.append(choice == torch.arange(size, device=x.device))
        return torch.cat(groups, -1).float()

    def description(self) -> Description:
        """All but the weights, plain data."""
        return {
            "source": self.source,
            "kind": self.kind,
            "place": self.place,
            "sizes": self.sizes,
            "starts": self.starts,
            "layers": list(map(describe_layer, self.layers)),
        }


class Decision(nn.Module):
    """Outputs (B, n) as actions (B, *shape) of a dtype as numpy writes it.

    The kind is "choose" (from groups of these `sizes`, whose smallest numbers are `starts`), "threshold" (1 where above
    0), "clip" (to the bounds) or "rescale" (from [-1, 1] to them). If `masked` it chooses where a mask (B, n) is True.
    """

    low: Tensor
    high: Tensor

    def __init__(
        self, kind: str, shape: Ints, dtype: str, sizes: Ints = (), starts: Ints = (), masked: bool = False
    ) -> None:
        super().__init__()
        self.kind = kind
        self.shape = tuple(shape)
        self.dtype = dtype
        self.sizes = tuple(sizes)
        self.starts = tuple(starts)
        self.masked = masked
        if kind in ("clip", "rescale"):
            numbers = math.prod(shape)
            self.register_buffer("low", torch.full((numbers,), -math.inf))
            self.register_buffer("high", torch.full((numbers,), math.inf))

    def forward(self, out: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            out = torch.where(mask, out, MASKED_LOGIT)
        if self.kind == "choose":
            groups = zip(out.split(self.sizes, dim=-1), self.starts)
            choices = [group.argmax(-1) + start for group, start in groups]
            out = torch.stack(choices, -1)
        elif self.kind == "threshold":
            out = out > 0
        elif self.kind == "clip":
            out = torch.minimum(torch.maximum(out, self.low), self.high)
        else:
            share = (out.clamp(-1, 1) + 1) / 2
            out = self.low + share * (self.high - self.low)
        return out.reshape(-1, *self.shape).to(getattr(torch, self.dtype))

    def description(self) -> Description:
        """All of it, plain data."""
        description: Description = {
            "kind": self.kind,
            "shape": self.shape,
            "dtype": self.dtype,
            "sizes": self.sizes,
            "starts": self.starts,
        }
        # Written only where it is True, so that older readers take every policy without masks.
        if self.masked:
            description["masked"] = True
        return description


class Policy(nn.Module):
    """Observations in, actions out: parts side by side, then layers, then what their outputs mean as an action.

    `inputs` are name -> (shape, dtype) of an observation's entries; if it is `bare`, without keys, one called "obs".
    """

    def __init__(
        self,
        inputs: dict[str, tuple[Ints, str]],
        parts: list[Part],
        layers: nn.Sequential,
        action: Decision,
        bare: bool = True,
    ) -> None:
        super().__init__()
        self.inputs = inputs
        self.parts = nn.ModuleList(parts)
        self.layers = layers
        self.action = action
        self.bare = bare
        self.eval().requires_grad_(False)

    def forward(self, *observed: Tensor) -> Tensor:
        """The entries (B, *shape) in the order of `inputs` -> actions (B, *shape), in the environment's range.

        Of a policy with masks the last one is the mask, bool (B, n).
        """
        entries = dict(zip(self.inputs, observed))
        features = [part(entries[str(part.source)]) for part in self.parts]
        # A single part may be an image, which does not have the shape (B, F).
        joined = torch.cat(features, -1) if len(features) > 1 else features[0]
        masks = observed[len(self.inputs) :]
        return self.action(self.layers(joined), *masks)

    @property
    def names(self) -> list[str]:
        """The names of `forward`'s arguments."""
        names = list(self.inputs)
        if self.action.masked:
            names.append("action_mask")
        return names

    def columns(self, obs: Any, mask: Any = None) -> tuple[list[np.ndarray], bool]:
        """`forward`'s arguments for one observation or a batch, in the order of `names`, and whether it was one.

        A ValueError if training had action masks and there is none.
        """
        columns = []
        single = False
        for name, (shape, dtype) in self.inputs.items():
            value = np.asarray(obs if self.bare else obs[name])
            single = value.ndim == len(shape)
            columns.append(value.astype(dtype, copy=False))
        if self.action.masked:
            if mask is None:
                raise ValueError('this policy was trained with action masks; give one: act(obs, info["action_mask"])')
            columns.append(np.asarray(mask).astype("bool", copy=False))
        if single:
            columns = [column[None] for column in columns]
        return columns, single

    def act(self, obs: Any, mask: Any = None) -> np.ndarray:
        """The action for one observation, or actions for a batch (B, ...); arrays, or dicts of them.

        `mask`, bool (n,) or (B, n): the allowed actions, for a policy that was trained with masks.
        """
        columns, single = self.columns(obs, mask)
        tensors = [torch.from_numpy(np.ascontiguousarray(column)) for column in columns]
        with torch.no_grad():
            actions = self(*tensors).numpy()
        return actions[0] if single else actions

    def description(self) -> Description:
        """All but the weights, plain data."""
        inputs = {}
        for name, (shape, dtype) in self.inputs.items():
            inputs[name] = {"shape": shape, "dtype": dtype}
        return {
            "bare": self.bare,
            "inputs": inputs,
            "parts": [part.description() for part in self.parts],  # type: ignore[operator]
            "layers": list(map(describe_layer, self.layers)),
            "action": self.action.description(),
        }

    def write(self, folder: Path, about: Description) -> None:
        """Write weights and description; `about` is added to the description."""
        save(folder, self.state_dict(), {**about, "policy": self.description()})

    @classmethod
    def read(cls, folder: Path) -> Policy:
        """The inverse of `write`; a ValueError if there is no policy that this file can run."""
        from safetensors.torch import load_file

        try:
            about = json.loads(_check_regular(folder / DESCRIPTION_FILE).read_text(encoding="utf-8"))
            weights = _check_regular(folder / WEIGHTS_FILE)
        except (OSError, ValueError) as error:
            raise ValueError(f"{folder} holds no exported policy ({error}); give what runners.export wrote") from None
        if about.get("format") != POLICY_FORMAT:
            words = f"{folder} has format {about.get('format')}, this reads format {POLICY_FORMAT}; export it again"
            raise ValueError(words)
        if about.get("policy") is None:
            raise ValueError(f"{folder} holds weights that only their agent can run: {about.get('why')}")
        description = about["policy"]
        parts = []
        for entry in description["parts"]:
            layers = make_layers(entry.pop("layers"))
            parts.append(Part(layers=layers, **entry))
        inputs = {}
        for name, entry in description["inputs"].items():
            inputs[name] = (tuple(entry["shape"]), entry["dtype"])
        layers = make_layers(description["layers"])
        policy = cls(inputs, parts, layers, Decision(**description["action"]), description["bare"])
        policy.load_state_dict(load_file(weights))
        return policy


def _check_regular(path: Path) -> Path:
    """The path of a file; a pipe or a device would hang the reader, and a link may lead anywhere."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise OSError(f"{path} is no regular file; remove it")
    return path


def save(folder: Path, weights: dict[str, Tensor], about: Description) -> None:
    """Write weights, and the description of what they are."""
    from safetensors.torch import save_file

    # safetensors takes no tensors that share memory.
    copies = {key: value.detach().cpu().contiguous().clone() for key, value in weights.items()}
    save_file(copies, folder / WEIGHTS_FILE)
    description = {"format": POLICY_FORMAT, **about}
    (folder / DESCRIPTION_FILE).write_text(json.dumps(description, indent=1) + "\n")
