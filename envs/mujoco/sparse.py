"""MuJoCo 4.0.0 computes a wrong Hessian where Jacobians are sparse, repaired in 4.0.1; built-in robots are dense."""

from __future__ import annotations

import functools
import sys
import warnings
from typing import Any

WRONG = "4.0.0"


def warn_if_sparse(env: Any) -> None:
    """Warn, once for an id, of an environment whose model that version solves wrongly."""
    mujoco: Any = sys.modules.get("mujoco")
    if mujoco is None or mujoco.__version__ != WRONG:
        return
    model = getattr(env.unwrapped, "model", None)
    if isinstance(model, mujoco.MjModel) and mujoco.mj_isSparse(model):
        _warn(env.spec.id if env.spec is not None else str(env.unwrapped))


@functools.cache
def _warn(name: str) -> None:
    warnings.warn(
        f"MuJoCo {WRONG} computes a wrong Hessian for {name}, whose Jacobians are sparse; pip install 'mujoco>=4.0.1', "
        'or set <option jacobian="dense"/> in its model',
        RuntimeWarning,
        stacklevel=3,
    )
