"""How a stream's weight changes while the agent trains: `linear:1:0:200000`, and its kin."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

SCHEDULES = ("linear", "cosine", "exp", "step")


class Schedule:
    """A weight over environment steps: a number, or `kind:start:end:steps`, standing at `end` afterwards."""

    def __init__(self, spec: Any) -> None:
        self.spec = spec
        kind, *numbers = str(spec).split(":")
        try:
            if not numbers:
                self.kind, self.start, self.end, self.steps = "constant", float(kind), float(kind), 1.0
            else:
                self.kind = kind
                self.start, self.end, self.steps = (float(x) for x in numbers)
        except ValueError:
            self.kind = "unreadable"
        if self.kind not in ("constant", *SCHEDULES):
            raise ValueError(
                f"weight={spec!r} is neither a number nor KIND:START:END:STEPS "
                f"with KIND one of {', '.join(SCHEDULES)}, as in linear:1:0:200000"
            )
        if not (math.isfinite(self.start) and math.isfinite(self.end) and min(self.start, self.end) >= 0):
            raise ValueError(f"weight={spec!r} must be finite and at least 0; to penalise, change the reward's sign")
        if not (math.isfinite(self.steps) and self.steps >= 1):
            raise ValueError(f"weight={spec!r} must reach its end in at least 1 environment step")
        if self.kind == "exp" and min(self.start, self.end) <= 0:
            raise ValueError(f"weight={spec!r} cannot reach or leave 0 exponentially; end above 0, or use linear")

    def __call__(self, timesteps: Any) -> Any:
        """The weight after `timesteps` environment steps; an array gives an array."""
        if self.kind == "constant":
            return self.start
        progress = np.minimum(np.asarray(timesteps) / self.steps, 1.0)
        if self.kind == "linear":
            return self.start + (self.end - self.start) * progress
        if self.kind == "cosine":
            return self.end + (self.start - self.end) * 0.5 * (1 + np.cos(np.pi * progress))
        if self.kind == "exp":
            return self.start * (self.end / self.start) ** progress
        return np.where(progress < 1, self.start, self.end)
