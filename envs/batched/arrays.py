"""NumPy, or torch on a device, behind the few words that the two spell differently."""

from __future__ import annotations

from typing import Any

import numpy as np

from envs.types import Array


class Arrays:
    """Where arrays live.

    Args:
        array: "numpy" or "torch".
        device: of the tensors; NumPy's arrays only live on "cpu".

    Attributes:
        xp: the module `numpy` or `torch`, for all that both spell alike.

    Raises:
        ValueError: if there is no such array library or device.
    """

    def __init__(self, array: str = "numpy", device: str = "cpu") -> None:
        if array not in ("numpy", "torch"):
            raise ValueError(f'array={array!r} is unknown; give "numpy" or "torch"')
        if array == "numpy" and str(device) != "cpu":
            raise ValueError(f'device={device!r} holds no NumPy arrays; give device="cpu", or array="torch"')
        self.is_torch = array == "torch"
        self.device: Any = device
        self.xp: Any = np
        if self.is_torch:
            import torch

            self.xp = torch
            try:
                self.device = torch.empty(0, device=device).device
            except (RuntimeError, AssertionError, NotImplementedError) as error:
                there = "cpu, cuda" if torch.cuda.is_available() else "cpu"
                reason = str(error).splitlines()[0]
                raise ValueError(f"device={device!r} is not there ({reason}); this machine has {there}") from None

    def array(self, x: Any, dtype: Any = None) -> Array:
        """A copy of `x` (array-like on the host) on the device; `dtype` is NumPy's."""
        copy = np.array(x, dtype)
        return self.xp.as_tensor(copy, device=self.device) if self.is_torch else copy

    def like(self, x: Any, model: Array) -> Array:
        """`x`, from wherever it is, with the type and on the device of `model`; copied only if it must be."""
        if self.is_torch:
            return self.xp.as_tensor(x, dtype=model.dtype, device=self.device)
        return np.asarray(x, model.dtype)

    def numpy(self, x: Array) -> np.ndarray:
        """A copy of `x` on the host."""
        return x.cpu().numpy().copy() if self.is_torch else x.copy()

    def gather(self, table: Array, index: Array) -> Array:
        """The rows of `table` that `index`, of any integer type and shape, names."""
        return table[index.long()] if self.is_torch else table.take(index, 0)
