"""Where 0 and 1 lie on a scale that nobody knows in advance: two percentiles of what was seen first.

Contrasts of a public CLIP live within a few hundredths, those of a small one within a few tenths; fixed numbers fit one
model and one renderer. Source of what it replaces: VLM-RL (arXiv 2412.15544) clips to (0, 0.03).

When it fails: a reference without a good state leaves the goal beyond 1, one without a bad state leaves danger below 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

NARROWEST = 1e-3  # of a cosine; embeddings are kept to half that, and less apart is noise


class Calibration:
    """(raw - low) / (high - low), with low and high two percentiles of the first values, frozen once there are enough.

    Args:
        percentiles: of the values that become 0 and 1, in percent.
        reference: how many values are waited for.
        low: value that becomes 0, where it is known.
        high: value that becomes 1, where it is known; the two go together.
    """

    def __init__(
        self, percentiles: tuple[float, float], reference: int, low: float | None = None, high: float | None = None
    ) -> None:
        self.percentiles, self.reference = percentiles, reference
        self.low, self.high = low, high
        self.values = np.zeros(0, np.float32)

    @property
    def ready(self) -> bool:
        """Whether the scale is fixed."""
        return self.low is not None and self.high is not None

    def update(self, raw: np.ndarray) -> None:
        """Take in values (N,); once the scale is fixed nothing moves any more."""
        if self.ready:
            return
        self.values = np.concatenate([self.values, raw[: self.reference - len(self.values)]])
        if len(self.values) >= self.reference:
            self.freeze()

    def freeze(self) -> None:
        """Fix the scale on what has been seen; at least one value."""
        low, high = np.percentile(self.values, self.percentiles)
        self.low, self.high = float(low), float(max(high, low + NARROWEST))
        self.values = self.values[:0]

    def __call__(self, raw: np.ndarray, bounded: bool) -> np.ndarray:
        """Values on the scale, float32 (N,); within [0, 1] if `bounded`. Only once it is `ready`."""
        if self.low is None or self.high is None:
            raise RuntimeError("a calibration that has not seen its reference has no scale")
        scaled = (raw - np.float32(self.low)) / np.float32(self.high - self.low)
        return np.clip(scaled, 0, 1) if bounded else scaled

    def state_dict(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high, "values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.low, self.high = state["low"], state["high"]
        self.values = np.array(state["values"], np.float32)
