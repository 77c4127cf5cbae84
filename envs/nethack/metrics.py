"""How far a game of NetHack went: depth, score, experience level and gold, from the status line.

Signals of the state reached (`info["signals"]`): depth in levels below the surface, 1 at the start; the in-game score;
experience level; gold; hit points. An episode's figures are the largest of each, so that dying takes nothing away.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from envs.nethack.view import DEPTH, GOLD, HP, LEVEL, SCORE

SIGNALS = ("depth", "score", "experience level", "gold", "hit points")
_NUMBERS = [DEPTH, SCORE, LEVEL, GOLD, HP]
_TOLD = SIGNALS[:4]


def sense(env: gym.Env) -> np.ndarray:
    """float32 (5,), as `SIGNALS` names them."""
    inner: Any = env.unwrapped
    return inner.last_observation[inner._blstats_index][_NUMBERS].astype(np.float32)


@dataclass
class Delving:
    """Counts whole episodes, one step after the other."""

    _best: list[np.ndarray] = field(default_factory=list)

    def begin(self, signals: np.ndarray) -> None:
        """An episode begins in a state with these signals, (5,)."""
        self._best.append(signals)

    def step(self, signals: np.ndarray) -> None:
        """One step on; the signals are those of the state reached."""
        self._best[-1] = np.maximum(self._best[-1], signals)

    def summary(self) -> dict[str, float]:
        """Name -> mean over the episodes of the most that was reached; and the deepest of all."""
        if not self._best:
            return {}
        best = np.stack(self._best)
        means = {name: float(best[:, number].mean()) for number, name in enumerate(_TOLD)}
        return {**means, "deepest of all": float(best[:, 0].max())}
