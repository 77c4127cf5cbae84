"""What is done to the frames of an in-domain CLIP in training, so that other renderers' frames mean the same."""

import torch
from torch import Tensor
from torch.nn import functional

# How far a frame moves at most, in pixels.
MAX_SHIFT = 3


def augment(frames: Tensor, generator: torch.Generator, recolour: bool = True) -> Tensor:
    """Frames as other renderers might show them: shifted, tinted, grey, with swapped channels, dark, noisy.

    Args:
        frames: float (N, 3, H, W) in [0, 1].
        generator: of what is drawn.
        recolour: whether colours change; else frames are only shifted and noisy.

    Returns:
        The same shape and range.
    """
    n = len(frames)

    def random_rows(p: float) -> Tensor:
        """Each frame is chosen with probability p."""
        return torch.rand(n, 1, 1, 1, generator=generator) < p

    frames = _shift(frames, generator)
    if recolour:
        frames = torch.where(random_rows(0.4), _vary_colours(frames, generator), frames)
        grey = frames.mean(1, keepdim=True)
        frames = torch.where(random_rows(0.1), grey, frames)
        swapped = random_rows(0.1)
        order = torch.randperm(3, generator=generator)
        frames = torch.where(swapped, frames[:, order], frames)
        frames = torch.where(random_rows(0.1), 1 - frames, frames)
    noise = 0.08 * torch.randn(frames.shape, generator=generator)
    loudness = torch.rand(n, 1, 1, 1, generator=generator)
    frames = torch.where(random_rows(0.3), frames + noise * loudness, frames)
    return frames.clamp(0, 1)


def _shift(frames: Tensor, generator: torch.Generator) -> Tensor:
    """Half of the frames move by up to MAX_SHIFT, the others stay."""
    n, _, height, width = frames.shape
    pads = [MAX_SHIFT] * 4
    padded = functional.pad(frames, pads, mode="replicate")
    count = 2 * MAX_SHIFT + 1
    dx = torch.randint(count, (n,), generator=generator)
    dy = torch.randint(count, (n,), generator=generator)
    # A frame that starts after the pad is where it was.
    stays = torch.rand(n, generator=generator) >= 0.5
    dx[stays] = MAX_SHIFT
    dy[stays] = MAX_SHIFT
    # The axes of the three indices are frames, rows and columns: (N, 1, 1), (N, H, 1) and (N, 1, W).
    index = torch.arange(n)[:, None, None]
    rows = dy[:, None] + torch.arange(height)
    columns = dx[:, None] + torch.arange(width)
    # A slice between indices puts their axes first: (N, H, W, 3).
    shifted = padded[index, :, rows[:, :, None], columns[:, None, :]]
    return shifted.permute(0, 3, 1, 2)


def _vary_colours(frames: Tensor, generator: torch.Generator) -> Tensor:
    n = len(frames)
    gain = 1 + 0.3 * _draw_signed(n, 3, generator)
    shift = 0.2 * _draw_signed(n, 1, generator)
    contrast = 0.6 + 0.6 * torch.rand(n, 1, 1, 1, generator=generator)
    return (frames - 0.5) * contrast * gain + 0.5 + shift


def _draw_signed(n: int, channels: int, generator: torch.Generator) -> Tensor:
    """Uniform numbers in [-1, 1)."""
    uniform = torch.rand(n, channels, 1, 1, generator=generator)
    return 2 * uniform - 1
