"""Updates compiled by numba, where numba and the processor are there; else a sentence, once, and the usual path."""

import functools
import importlib
import warnings
from typing import Any


@functools.cache
def kernel(module: str, whose: str, otherwise: str, key: str = "agent.path") -> Any:
    """A module of compiled updates; None, said once, where it cannot run: then `whose` update runs in `otherwise`.

    `key` is the setting by which a user would choose another path.
    """
    try:
        found = importlib.import_module(module)
        supported = importlib.import_module("lodestar.numerics.kernel").SUPPORTED
    except (ImportError, RuntimeError) as error:  # numba's own, if it finds no folder for its cache
        say(whose, f"{otherwise} ({error}); pip install 'lodestar-rl[fast]', or give another {key}")
        return None
    if not supported:
        say(whose, f"{otherwise}, as this processor lacks AVX2; give another {key}")
        return None
    return found


@functools.cache
def say(whose: str, where: str) -> None:
    """Warn, once, where an update runs that was to be compiled."""
    warnings.warn(f"{whose} runs in {where}", RuntimeWarning, stacklevel=2)
