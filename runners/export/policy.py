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

FORMAT = 1
WEIGHTS, DESCRIPTION = "policy.safetensors", "policy.json"
Ints = tuple[int, ...]


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
        for name, value in (("shift", 0.0), ("scale", 1.0), ("bias", 0.0)):
            self.register_buffer(name, torch.full(shape, value))

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


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "clamp": torch.clamp,  # to [low, high]
    # (B, side * side * kinds), channels last -> (B, kinds, side, side)
    "cells": lambda x, side, kinds: x.reshape(-1, side, side, kinds).permute(0, 3, 1, 2),
    "turned": lambda x: x.permute(0, 3, 1, 2),  # (B, H, W, C) -> (B, C, H, W)
    # Each row's features with mean 0 and variance 1, as layer normalisation does before its gain.
    "standard": lambda x: F.layer_norm(x, x.shape[-1:]),
    "mean": torch.mean,  # along an axis
    "symexp": lambda x: torch.sign(x) * torch.expm1(x.abs()),
    "split": lambda x, *sizes: x.unflatten(-1, sizes),  # (..., a * b) -> (..., a, b)
}
PLAIN = (nn.Flatten, nn.ReLU, nn.Tanh, nn.SiLU, nn.Mish, nn.ELU)  # made with nothing
LAYERS: dict[str, Any] = {"linear": nn.Linear, "conv": nn.Conv2d}
LAYERS |= {kind.__name__.lower(): kind for kind in (*PLAIN, Affine, Linears, Expectation)}


def described(layer: nn.Module) -> list[Any]:
    """The entry of a layer in the description, its name and what it is made with; a ValueError if it has none."""
    if isinstance(layer, Function):
        return [layer.name, *layer.numbers]
    name = next((name for name, kind in LAYERS.items() if type(layer) is kind), None)
    if name is None:
        known = ", ".join([*LAYERS, *FUNCTIONS])
        raise ValueError(f"a {type(layer).__name__} layer has no exported form; there are {known}")
    if isinstance(layer, nn.Linear):
        return [name, int(layer.in_features), int(layer.out_features)]
    if isinstance(layer, nn.Conv2d):
        return [name, int(layer.in_channels), int(layer.out_channels), *layer.kernel_size[:1], *layer.stride[:1]]
    return [name, *(layer.numbers if isinstance(layer, Layer) else ())]


def sequence(entries: list[list[Any]]) -> nn.Sequential:
    """Layers as described, their weights not yet read."""
    return nn.Sequential(*(LAYERS[name](*n) if name in LAYERS else Function(name, *n) for name, *n in entries))


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
        self.source, self.kind, self.layers, self.place = source, kind, layers, place
        self.sizes, self.starts = tuple(sizes), tuple(starts)

    def forward(self, x: Tensor) -> Tensor:
        """(B, *shape) -> features (B, F)."""
        if self.kind == "image":
            return self.layers(x.float() / 255.0)
        x = x.flatten(1) if x.dim() > 1 else x[:, None]
        if self.kind == "one-hot":
            groups = enumerate(zip(self.sizes, self.starts))
            columns = [x[:, i : i + 1].long() - start == torch.arange(n, device=x.device) for i, (n, start) in groups]
            return self.layers(torch.cat(columns, -1).float())
        x = x.float()
        return self.layers(x if self.place is None else x[:, self.place[0] : self.place[1]])

    def description(self) -> dict[str, Any]:
        """All but the weights, plain data."""
        plain = {name: getattr(self, name) for name in ("source", "kind", "place", "sizes", "starts")}
        return {**plain, "layers": [described(layer) for layer in self.layers]}


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
        self.masked = masked
        self.kind, self.shape, self.dtype = kind, tuple(shape), dtype
        self.sizes, self.starts = tuple(sizes), tuple(starts)
        if kind in ("clip", "rescale"):
            self.register_buffer("low", torch.full((math.prod(shape),), -math.inf))
            self.register_buffer("high", torch.full((math.prod(shape),), math.inf))

    def forward(self, out: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            out = torch.where(mask, out, -1e8)
        if self.kind == "choose":
            groups = zip(out.split(self.sizes, dim=-1), self.starts)
            out = torch.stack([group.argmax(-1) + start for group, start in groups], -1)
        elif self.kind == "threshold":
            out = out > 0
        elif self.kind == "clip":
            out = torch.minimum(torch.maximum(out, self.low), self.high)
        else:
            out = self.low + (out.clamp(-1, 1) + 1) / 2 * (self.high - self.low)
        return out.reshape(-1, *self.shape).to(getattr(torch, self.dtype))

    def description(self) -> dict[str, Any]:
        """All of it, plain data."""
        names = ("kind", "shape", "dtype", "sizes", "starts", *(["masked"] if self.masked else []))
        return {name: getattr(self, name) for name in names}


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
        self.inputs = {name: (tuple(shape), dtype) for name, (shape, dtype) in inputs.items()}
        self.parts, self.layers, self.action, self.bare = nn.ModuleList(parts), layers, action, bare
        self.eval().requires_grad_(False)

    def forward(self, *observed: Tensor) -> Tensor:
        """The entries (B, *shape) in the order of `inputs` -> actions (B, *shape), in the environment's range.

        Of a policy with masks the last one is the mask, bool (B, n).
        """
        by_name = dict(zip(self.inputs, observed))
        features = [part(by_name[str(part.source)]) for part in self.parts]
        out = self.layers(torch.cat(features, -1) if len(features) > 1 else features[0])
        return self.action(out, *observed[len(self.inputs) :])

    @property
    def names(self) -> list[str]:
        """Of `forward`'s arguments."""
        return [*self.inputs, *(["action_mask"] if self.action.masked else [])]

    def columns(self, obs: Any, mask: Any = None) -> tuple[list[np.ndarray], bool]:
        """`forward`'s arguments for one observation or a batch, in the order of `names`, and whether it was one.

        A ValueError if training had action masks and there is none.
        """
        values = [np.asarray(obs if self.bare else obs[name]) for name in self.inputs]
        shape, _ = next(iter(self.inputs.values()))
        single = values[0].ndim == len(shape)
        dtypes = [dtype for _, dtype in self.inputs.values()]
        if self.action.masked:
            if mask is None:
                raise ValueError('this policy was trained with action masks; give one: act(obs, info["action_mask"])')
            values, dtypes = [*values, np.asarray(mask)], [*dtypes, "bool"]
        return [(x[None] if single else x).astype(dtype, copy=False) for x, dtype in zip(values, dtypes)], single

    def act(self, obs: Any, mask: Any = None) -> np.ndarray:
        """The action for one observation, or actions for a batch (B, ...); arrays, or dicts of them.

        `mask`, bool (n,) or (B, n): the allowed actions, for a policy that was trained with masks.
        """
        columns, single = self.columns(obs, mask)
        with torch.no_grad():
            actions = self(*(torch.from_numpy(np.ascontiguousarray(column)) for column in columns)).numpy()
        return actions[0] if single else actions

    def description(self) -> dict[str, Any]:
        """All but the weights, plain data."""
        return {
            "bare": self.bare,
            "inputs": {name: {"shape": shape, "dtype": dtype} for name, (shape, dtype) in self.inputs.items()},
            "parts": [part.description() for part in self.parts],  # type: ignore[operator]
            "layers": [described(layer) for layer in self.layers],
            "action": self.action.description(),
        }

    def write(self, folder: Path, about: dict[str, Any]) -> None:
        """Write weights and description; `about` is added to the description."""
        save(folder, self.state_dict(), {**about, "policy": self.description()})

    @classmethod
    def read(cls, folder: Path) -> Policy:
        """The inverse of `write`; a ValueError if there is no policy that this file can run."""
        from safetensors.torch import load_file

        try:
            about = json.loads(_regular(folder / DESCRIPTION).read_text(encoding="utf-8"))
            weights = _regular(folder / WEIGHTS)
        except (OSError, ValueError) as error:
            raise ValueError(f"{folder} holds no exported policy ({error}); give what runners.export wrote") from None
        if about.get("format") != FORMAT:
            raise ValueError(f"{folder} has format {about.get('format')}, this reads format {FORMAT}; export it again")
        if about.get("policy") is None:
            raise ValueError(f"{folder} holds weights that only their agent can run: {about.get('why')}")
        said = about["policy"]
        parts = [Part(**{**part, "layers": sequence(part["layers"])}) for part in said["parts"]]
        inputs = {name: (tuple(entry["shape"]), entry["dtype"]) for name, entry in said["inputs"].items()}
        policy = cls(inputs, parts, sequence(said["layers"]), Decision(**said["action"]), said["bare"])
        policy.load_state_dict(load_file(weights))
        return policy


def _regular(path: Path) -> Path:
    """The path of a file; a pipe or a device would hang the reader, and a link may lead anywhere."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise OSError(f"{path} is no regular file; remove it")
    return path


def save(folder: Path, weights: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Write weights, and the description of what they are."""
    from safetensors.torch import save_file

    save_file({key: value.detach().cpu().contiguous().clone() for key, value in weights.items()}, folder / WEIGHTS)
    (folder / DESCRIPTION).write_text(json.dumps({"format": FORMAT, **about}, indent=1) + "\n")
