"""Updates compiled by numba, where numba and the processor allow it; else the usual path, and one warning."""

import functools
import importlib
import warnings
from typing import Any


@functools.cache
def kernel(module: str, whose: str, otherwise: str, key: str = "agent.path") -> Any:
    """A module of compiled updates; where it cannot run None and one warning: then `whose` update runs in `otherwise`.

    `key` is the setting by which a user would choose another path.
    """
    # numba raises a RuntimeError if it finds no folder for its cache.
    try:
        kernel_module = importlib.import_module(module)
        supported = importlib.import_module("lodestar.numerics.kernel").CPU_SUPPORTED
    except (ImportError, RuntimeError) as error:
        warn_once(whose, f"{otherwise} ({error}); pip install 'lodestar-rl[fast]', or give another {key}")
        return None
    if not supported:
        warn_once(whose, f"{otherwise}, as this processor lacks AVX2; give another {key}")
        return None
    return kernel_module


@functools.cache
def warn_once(whose: str, where: str) -> None:
    """Warn, once, where an update runs that was to be compiled."""
    warnings.warn(f"{whose} runs in {where}", RuntimeWarning, stacklevel=2)
