"""State as nested plain data, and no pickle: what continues a run exactly, and what a file of weights holds.

get_state(agent, {"counters.updates": "_n_updates", "rng": "rng"})      {"counters": {"updates": 3}, "rng": {...}}
class Planner(Stateful): saved = ("mean", "generator")                  state_dict and load_state_dict of these
Weights({"learner": learner, "model": model}).state_dict()              {"learner.actor.0": tensor, ...}
pack(state)                                                             a JSON tree and {"counters/...": array, ...}
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

# Rewards are listed without importing torch, so functions that need it import it themselves.
if TYPE_CHECKING:
    import torch
    from torch import Tensor


def get_state(owner: object, places: Mapping[str, str], copy: bool = False) -> dict[str, Any]:
    """The attributes of `owner` that `places` names (path in the state -> attribute, both dotted); see `state_of`."""
    state: dict[str, Any] = {}
    for path, name in places.items():
        *parents, last = path.split(".")
        branch = state
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[last] = state_of(operator.attrgetter(name)(owner), copy)
    return state


def set_state(
    owner: object, places: Mapping[str, str], state: Mapping[str, Any], device: torch.device | None = None
) -> None:
    """Restore what `get_state` returned; tensors that have no memory yet come to the device."""
    for path, name in places.items():
        saved = state
        for part in path.split("."):
            saved = saved[part]
        restore(owner, name, saved, device)


def restore(owner: Any, name: str, saved: Any, device: torch.device | None = None) -> None:
    """Load a state into the attribute of that dotted name, or exchange the attribute where it cannot load."""
    *parents, last = name.split(".")
    holder = owner
    for parent in parents:
        holder = getattr(holder, parent)
    before = getattr(holder, last)
    after = _load(before, saved, device)
    if after is not before:
        setattr(holder, last, after)


class Stateful:
    """Saves copies of the attributes named in `saved`, and restores them.

    `saved` is a mapping as for `get_state`, or names, whose leading underscore is no part of a key, of anything with a
    `state_dict`, generators, tensors, arrays, numbers, None, and containers of these.
    """

    saved: ClassVar[tuple[str, ...] | Mapping[str, str]] = ()

    def state_dict(self) -> dict[str, Any]:
        return get_state(self, self._places(), copy=True)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state(self, self._places(), state, getattr(self, "device", None))

    def _places(self) -> Mapping[str, str]:
        if isinstance(self.saved, Mapping):
            return self.saved
        return {name.lstrip("_"): name for name in self.saved}


def state_of(value: Any, copy: bool = False) -> Any:
    """What is saved of a value; arrays are copied, because some are written in place, tensors if `copy`."""
    import torch

    if hasattr(value, "state_dict"):
        state = value.state_dict()
        return state_of(state, copy) if copy else state
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, dict):
        return {key: state_of(part, copy) for key, part in value.items()}
    if isinstance(value, list | tuple | deque):
        return [state_of(part, copy) for part in value]
    if isinstance(value, torch.Tensor) and copy:
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    return value


def _load(value: Any, saved: Any, device: torch.device | None = None) -> Any:
    """`value` itself with the saved state in it, or what takes its place; tensors keep their memory if they can."""
    import torch

    if hasattr(value, "load_state_dict"):
        value.load_state_dict(saved)
        return value
    if isinstance(value, np.random.Generator):
        value.bit_generator.state = saved
        return value
    if isinstance(value, torch.Generator):
        value.set_state(torch.as_tensor(saved, dtype=torch.uint8).cpu())
        return value
    if isinstance(value, dict) and isinstance(saved, dict):
        entries = {key: _load(value.get(key), part, device) for key, part in saved.items()}
        value.clear()
        value.update(entries)
        return value
    if isinstance(saved, list | tuple):
        return _load_items(value, saved, device)
    if isinstance(value, torch.Tensor) and saved is not None:
        new = torch.as_tensor(saved, device=value.device)
        if value.shape != new.shape or value.dtype != new.dtype:
            return new
        with torch.no_grad():
            return value.copy_(new)
    if isinstance(saved, torch.Tensor):
        return saved.to(device, copy=True)
    if isinstance(saved, np.ndarray):
        return saved.copy()
    return saved


def _load_items(value: Any, saved: Sequence[Any], device: torch.device | None) -> Any:
    """As `_load`, of a saved list: into a list, or as a new deque or tuple where `value` is none."""
    before = [None] * len(saved)
    if isinstance(value, list | tuple) and len(value) == len(saved):
        before = list(value)
    items = [_load(old, item, device) for old, item in zip(before, saved)]
    if isinstance(value, list):
        value[:] = items
        return value
    if isinstance(value, deque):
        return deque(items, value.maxlen)
    return tuple(items)


class Weights:
    """Several parts as one flat set of named tensors, for a file: name -> something with a state of tensors."""

    def __init__(self, parts: dict[str, Any]) -> None:
        self._parts = parts

    def state_dict(self) -> dict[str, Tensor]:
        states = {name: part.state_dict() for name, part in self._parts.items()}
        return dict(_leaves(states, ""))

    def load_state_dict(self, tensors: dict[str, Any]) -> None:
        """Restore it; a RuntimeError if it is of other networks."""
        for name, part in self._parts.items():
            try:
                part.load_state_dict(_fill(part.state_dict(), tensors, name))
            except KeyError as missing:
                raise RuntimeError(f"there is no {missing}") from None


def all_finite(state: Any) -> bool:
    """Whether a nested state holds neither NaN nor infinity."""
    return all(bool(tensor.isfinite().all()) for _, tensor in _leaves(state, ""))


def _leaves(tree: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """Everything in a nested state that is a number or a tensor, as tensors under their paths."""
    import torch

    if isinstance(tree, list | tuple):
        tree = dict(enumerate(tree))
    if isinstance(tree, dict):
        prefix = f"{name}." if name else ""
        for key, value in tree.items():
            yield from _leaves(value, f"{prefix}{key}")
    elif isinstance(tree, torch.Tensor):
        yield name, tree
    elif tree is not None and not isinstance(tree, str):
        yield name, torch.tensor(tree)


def _fill(tree: Any, tensors: dict[str, Any], name: str) -> Any:
    """A nested state like `tree`, with the tensors whose paths begin with `name`."""
    import torch

    if isinstance(tree, dict):
        return {key: _fill(value, tensors, f"{name}.{key}") for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_fill(value, tensors, f"{name}.{i}") for i, value in enumerate(tree))
    if tree is None or isinstance(tree, str):
        return tree
    value = torch.as_tensor(tensors[name])
    if isinstance(tree, torch.Tensor):
        # Whole numbers may have another shape: they list which members of an ensemble are used.
        if tree.is_floating_point() and value.shape != tree.shape:
            raise RuntimeError(f"{name} has the shape {tuple(value.shape)}, not {tuple(tree.shape)}")
        return value.to(tree.device)
    return type(tree)(value.item())


class Unsaveable(TypeError):
    """A state that a checkpoint cannot hold; the sentence says which part."""


def pack(state: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """Split a nested state into a JSON tree and named arrays, copied; `unpack` is the inverse."""
    arrays: dict[str, np.ndarray] = {}
    return _pack(state, "", arrays), arrays


def unpack(tree: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Rebuild what `pack` was given; tensors come back on the CPU."""
    if isinstance(tree, list):
        return [unpack(item, arrays) for item in tree]
    if not isinstance(tree, dict):
        return tree
    kind = tree["_"]
    value = tree["v"]
    if kind == "dict":
        return {unpack(key, arrays): unpack(item, arrays) for key, item in value}
    if kind == "array":
        # A copy, because the reader's own buffers are read-only.
        return arrays[value].copy()
    if kind == "text":
        # With "" among the words the array has a dtype even where there are none.
        words = np.array([*tree["words"], ""], object)
        return words[arrays[value]]
    if kind == "tensor":
        import torch

        return torch.from_numpy(arrays[value].copy())
    if kind == "tuple":
        return tuple(unpack(value, arrays))
    if kind == "deque":
        return deque(unpack(value, arrays), maxlen=tree["maxlen"])
    if kind == "scalar":
        return np.dtype(tree["dtype"]).type(value)
    if kind == "bytes":
        return bytes.fromhex(value)
    raise ValueError(f"the state holds a part of unknown kind {kind!r}")


def _pack(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """The JSON tree of a part of a state, whose arrays are put into `arrays` under its path."""
    # NumPy's scalars come first, because a float64 is a float, too.
    if isinstance(value, np.generic):
        return {"_": "scalar", "dtype": value.dtype.str, "v": value.item()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.ndarray):
        return _pack_array(value, path, arrays)
    # Asked in this way, torch need not be imported.
    if type(value).__module__.startswith("torch") and hasattr(value, "detach"):
        try:
            numbers = value.detach().cpu().numpy()
        except TypeError:
            raise Unsaveable(_refusal(path, value.dtype)) from None
        array = np.array(numbers, order="C", copy=True)
        return {"_": "tensor", "v": _store(array, path, arrays)}
    if isinstance(value, Mapping):
        # Pairs, not a JSON object: optimiser states have integer keys.
        pairs = []
        for key, item in value.items():
            packed_key = _pack(key, f"{path}/key", arrays)
            pairs.append([packed_key, _pack(item, f"{path}/{key}", arrays)])
        return {"_": "dict", "v": pairs}
    if isinstance(value, (deque, list, tuple)):
        items = []
        for i, item in enumerate(value):
            items.append(_pack(item, f"{path}/{i}", arrays))
        if isinstance(value, deque):
            return {"_": "deque", "maxlen": value.maxlen, "v": items}
        if isinstance(value, tuple):
            return {"_": "tuple", "v": items}
        return items
    if isinstance(value, bytes):
        return {"_": "bytes", "v": value.hex()}
    raise Unsaveable(f"the state at {path or '/'} is a {type(value).__name__}, which only pickle could hold")


def _refusal(path: str, dtype: object) -> str:
    return f"the state at {path or '/'} is an array of {dtype}; only plain numbers of up to 64 bits can be saved"


def _pack_array(value: np.ndarray, path: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    if value.dtype == object and all(isinstance(item, str) for item in value.flat):
        # Captions repeat, so each is written once.
        words, index = np.unique(value, return_inverse=True)
        index = index.reshape(value.shape).astype(np.int32)
        return {"_": "text", "v": _store(index, path, arrays), "words": words.tolist()}
    array = np.array(value, order="C", copy=True)
    return {"_": "array", "v": _store(array, path, arrays)}


def _store(array: np.ndarray, path: str, arrays: dict[str, np.ndarray]) -> str:
    """Put an array under its path into `arrays`; returns the path, which is longer if it was taken."""
    # What safetensors holds and NumPy has: bool, int, uint and float.
    if array.dtype.kind not in "biuf" or array.itemsize > 8:
        raise Unsaveable(_refusal(path, array.dtype))
    # The keys 1 and "1" of one dict print alike.
    while path in arrays:
        path += "'"
    arrays[path] = array
    return path
