"""What is done to the frames of the in-domain CLIP in training, so that other renderers' frames mean the same.

The themes change a frame as another renderer might; some are held out of training for the test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Tensor = Any  # torch.Tensor; torch is imported where it is used


def _gain(frames: Tensor, generator: Any) -> Tensor:
    import torch

    n = len(frames)
    gain = 1 + 0.3 * (2 * torch.rand(n, 3, 1, 1, generator=generator) - 1)
    shift = 0.2 * (2 * torch.rand(n, 1, 1, 1, generator=generator) - 1)
    contrast = 0.6 + 0.6 * torch.rand(n, 1, 1, 1, generator=generator)
    return (frames - 0.5) * contrast * gain + 0.5 + shift


def _grey(frames: Tensor) -> Tensor:
    return frames.mean(1, keepdim=True).expand(-1, 3, -1, -1)


def augment(frames: Tensor, generator: Any) -> Tensor:
    """Frames as other renderers might show them: shifted, tinted, grey, with swapped channels, dark, noisy.

    Args:
        frames: float (N, 3, H, W) in [0, 1].
        generator: torch.Generator.

    Returns:
        The same shape and range.
    """
    import torch
    import torch.nn.functional as F

    n, _, h, w = frames.shape

    def some(p: float) -> Tensor:
        return (torch.rand(n, generator=generator) < p)[:, None, None, None]

    pad = 3
    padded = F.pad(frames, (pad, pad, pad, pad), mode="replicate")
    dx, dy = (torch.randint(0, 2 * pad + 1, (n,), generator=generator) for _ in range(2))
    keep = some(0.5).flatten()
    dx, dy = dx.where(keep, torch.full_like(dx, pad)), dy.where(keep, torch.full_like(dy, pad))
    rows = dy[:, None] + torch.arange(h)
    columns = dx[:, None] + torch.arange(w)
    frames = padded[torch.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    frames = torch.where(some(0.4), _gain(frames, generator), frames)
    frames = torch.where(some(0.1), _grey(frames), frames)
    frames = torch.where(some(0.1), frames[:, torch.randperm(3, generator=generator)], frames)
    frames = torch.where(some(0.1), 1 - frames, frames)
    noisy = frames + 0.08 * torch.randn(frames.shape, generator=generator) * torch.rand(n, 1, 1, 1, generator=generator)
    return torch.where(some(0.3), noisy, frames).clamp(0, 1)


# Never seen in training: name -> uint8 (N, H, W, 3) to the same.
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
