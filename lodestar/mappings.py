"""Dicts of arrays, such as the columns of a memory: the same done with every value."""

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")
Result = TypeVar("Result")


def map_values(function: Callable[[Value], Result], mapping: Mapping[Key, Value]) -> dict[Key, Result]:
    """A dict with the same keys, and for each what `function` returns of its value.

    Example:
        >>> map_values(abs, {"a": -1, "b": 2})
        {'a': 1, 'b': 2}
    """
    return {key: function(value) for key, value in mapping.items()}


def take_rows(columns: Mapping[Key, Any], rows: Any) -> dict[Key, Any]:
    """Every column, an array or a tensor, at these rows: an index, a slice, a mask or several of them.

    Example:
        >>> take_rows({"a": [1, 2, 3], "b": [4, 5, 6]}, slice(1))
        {'a': [1], 'b': [4]}
    """
    return map_values(itemgetter(rows), columns)
