"""Graded truths from distances and angles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rewards.vision.training.lexicon import States


def fact(name: str) -> Callable[[States], np.ndarray]:
    """A truth that is a fact itself."""
    return lambda states: states.fact(name)


def bump(distance: Any, width: float) -> Any:
    """1 at distance 0, falling off as a bell."""
    return np.exp(-0.5 * np.square(distance / width))


def step(value: Any, width: float) -> Any:
    """0 far below 0, 1 far above."""
    return 1 / (1 + np.exp(-np.clip(value / width, -30, 30)))


def turn(angle: Any) -> Any:
    """An angle in [-pi, pi]."""
    return np.arctan2(np.sin(angle), np.cos(angle))


def near(angle: Any, centre: float) -> Any:
    """Graded "points towards `centre`": a slope over the whole circle plus a peak; it can be climbed and held."""
    distance = turn(angle - centre)
    return 0.55 * (1 + np.cos(distance)) / 2 + 0.45 * bump(distance, 0.25)
