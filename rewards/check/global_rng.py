"""The random generators that the whole process shares: Python's, NumPy's and, once it is imported, torch's.

Nothing of ours may draw from them; `rewards.check` tests whether a reward does.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


def states() -> list[Any]:
    """The state of each."""
    found: list[Any] = [random.getstate(), np.random.get_state()]  # noqa: NPY002
    if "torch" in sys.modules:
        found.append(sys.modules["torch"].get_rng_state())
    return found


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """All of them seeded with `seed` within the context; afterwards they are as before."""
    before = states()
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    if len(before) == 3:
        sys.modules["torch"].manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        if len(before) == 3:
            sys.modules["torch"].set_rng_state(before[2])
