"""Nested states of several parts as one flat set of named tensors: what a weights file holds.

Weights({"learner": learner, "model": model}).state_dict()      {"learner.actor.0": tensor, ...}
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


class Weights:
    """What is written to a file of an agent that has learnt.

    Args:
        parts: name -> something with `state_dict` and `load_state_dict`, of tensors and numbers, nested anyhow.
    """

    def __init__(self, parts: dict[str, Any]) -> None:
        self._parts = parts

    def state_dict(self) -> dict[str, Tensor]:
        """Every tensor under its path."""
        return dict(_leaves({name: part.state_dict() for name, part in self._parts.items()}, ""))

    def load_state_dict(self, tensors: dict[str, Any]) -> None:
        """Restore it.

        Raises:
            RuntimeError: if it is of other networks.
        """
        for name, part in self._parts.items():
            try:
                part.load_state_dict(_filled(part.state_dict(), tensors, name))
            except KeyError as missing:
                raise RuntimeError(f"there is no {missing}") from None


def all_finite(state: Any) -> bool:
    """Whether all numbers of a nested state are numbers."""
    if isinstance(state, dict):
        return all(map(all_finite, state.values()))
    if isinstance(state, list | tuple):
        return all(map(all_finite, state))
    return not (isinstance(state, Tensor) and state.is_floating_point()) or bool(state.isfinite().all())


def _leaves(tree: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """Everything in a nested state that is a number or a tensor, as tensors under their paths."""
    if isinstance(tree, dict | list | tuple):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _leaves(value, f"{name}.{key}" if name else str(key))
    elif tree is not None and not isinstance(tree, str):
        yield name, tree if isinstance(tree, Tensor) else torch.tensor(tree)


def _filled(tree: Any, tensors: dict[str, Any], name: str) -> Any:
    """The inverse of `_leaves`, in the shape of `tree`."""
    if isinstance(tree, dict):
        return {key: _filled(value, tensors, f"{name}.{key}") for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_filled(value, tensors, f"{name}.{i}") for i, value in enumerate(tree))
    if tree is None or isinstance(tree, str):
        return tree
    value = torch.as_tensor(tensors[name])
    if isinstance(tree, Tensor):
        if tree.is_floating_point() and value.shape != tree.shape:  # which members are asked may change in number
            raise RuntimeError(f"{name} has the shape {tuple(value.shape)}, not {tuple(tree.shape)}")
        return value.to(tree.device)
    return type(tree)(value.item())
