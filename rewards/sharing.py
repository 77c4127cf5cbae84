"""What several rewards make of the same arrays, made once.

    with shared():                       for as long as nothing writes into the arrays
        once(obs, key, compute)          computed by the first that asks; later ones are given the same, to read only

Arrays are the same if they are the same memory, read alike; `key` names all else that the answer depends on. So rewards
know nothing of each other: two that whiten by equal statistics share what they read, and part when these do.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy as np

Answer = TypeVar("Answer")
_kept: ContextVar[dict[Any, Any] | None] = ContextVar("kept", default=None)


@contextmanager
def shared() -> Iterator[None]:
    """Within it, what is asked for by `once` is kept."""
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def once(array: Any, key: Callable[[], Any], compute: Callable[[], Answer]) -> Answer:
    """`compute()`, or what it was for this array and key; outside of `shared`, and for a dict, always the former."""
    kept = _kept.get()
    if kept is None or not isinstance(array, np.ndarray):
        return compute()
    place = array.__array_interface__["data"][0], array.shape, array.strides, array.dtype.str, key()
    if place not in kept:
        kept[place] = compute(), array  # while it is kept, nothing else can lie there
    answer: Answer = kept[place][0]
    return answer
