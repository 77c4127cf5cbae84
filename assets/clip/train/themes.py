"""Changes of a frame as another renderer might make them, never seen in training."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

# Name -> uint8 (N, H, W, 3) to the same.
THEMES_HELD_OUT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "night": lambda f: (f * np.array([0.35, 0.35, 0.6])).astype(np.uint8),
    "sepia": lambda f: np.clip(f.mean(-1, keepdims=True) * np.array([1.0, 0.85, 0.65]), 0, 255).astype(np.uint8),
    "blurred": lambda f: _blur(f),
    "posterised": lambda f: (f // 64 * 85).astype(np.uint8),
}


def _blur(frames: np.ndarray) -> np.ndarray:
    padded = np.pad(frames, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge").astype(np.float32)
    h, w = frames.shape[1:3]
    total = sum(padded[:, i : i + h, j : j + w] for i in range(3) for j in range(3))
    return (np.asarray(total) / 9).astype(np.uint8)
