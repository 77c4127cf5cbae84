"""What is done to the frames of an in-domain CLIP in training, so that other renderers' frames mean the same."""

import torch
from torch import Tensor
from torch.nn import functional


def _vary_colours(frames: Tensor, generator: torch.Generator) -> Tensor:
    n = len(frames)
    gain = 1 + 0.3 * (2 * torch.rand(n, 3, 1, 1, generator=generator) - 1)
    shift = 0.2 * (2 * torch.rand(n, 1, 1, 1, generator=generator) - 1)
    contrast = 0.6 + 0.6 * torch.rand(n, 1, 1, 1, generator=generator)
    return (frames - 0.5) * contrast * gain + 0.5 + shift


def _to_grey(frames: Tensor) -> Tensor:
    return frames.mean(1, keepdim=True).expand(-1, 3, -1, -1)


def augment(frames: Tensor, generator: torch.Generator, recolour: bool = True) -> Tensor:
    """Frames as other renderers might show them: shifted, tinted, grey, with swapped channels, dark, noisy.

    Args:
        frames: float (N, 3, H, W) in [0, 1].
        generator: of what is drawn.
        recolour: whether colours change; else frames are only shifted and noisy.

    Returns:
        The same shape and range.
    """
    n, _, h, w = frames.shape

    def some(p: float) -> Tensor:
        return (torch.rand(n, generator=generator) < p)[:, None, None, None]

    # At most so many pixels.
    pad = 3
    padded = functional.pad(frames, (pad, pad, pad, pad), mode="replicate")
    dx, dy = (torch.randint(0, 2 * pad + 1, (n,), generator=generator) for _ in range(2))
    keep = some(0.5).flatten()
    dx = dx.where(keep, torch.full_like(dx, pad))
    dy = dy.where(keep, torch.full_like(dy, pad))
    rows = dy[:, None] + torch.arange(h)
    columns = dx[:, None] + torch.arange(w)
    frames = padded[torch.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    if recolour:
        frames = torch.where(some(0.4), _vary_colours(frames, generator), frames)
        frames = torch.where(some(0.1), _to_grey(frames), frames)
        frames = torch.where(some(0.1), frames[:, torch.randperm(3, generator=generator)], frames)
        frames = torch.where(some(0.1), 1 - frames, frames)
    noisy = frames + 0.08 * torch.randn(frames.shape, generator=generator) * torch.rand(n, 1, 1, 1, generator=generator)
    return torch.where(some(0.3), noisy, frames).clamp(0, 1)
