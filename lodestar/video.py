"""Frames as a file: H.264 or a moving GIF."""

import itertools
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
from PIL import Image

# H.264 wants sides that are multiples of this.
CODEC_BLOCK_PX = 16


def write_mp4(path: Path, frames: Iterable[np.ndarray], fps: float) -> None:
    """Write frames, uint8 (H, W, 3), as H.264."""
    frames = iter(frames)
    first = next(frames)
    height, width, _ = first.shape
    writer = imageio_ffmpeg.write_frames(
        str(path), (width, height), fps=fps, codec="libx264", quality=7, macro_block_size=CODEC_BLOCK_PX
    )
    writer.send(None)
    with closing(writer):
        for frame in itertools.chain([first], frames):
            writer.send(np.ascontiguousarray(frame))


def write_gif(file: Any, frames: Iterable[np.ndarray], frame_ms: float) -> None:
    """Write frames, uint8 (H, W, 3), as a moving picture that repeats, to a path or an open file."""
    images = map(Image.fromarray, frames)
    first = next(images)
    first.save(file, "GIF", save_all=True, append_images=images, duration=frame_ms, loop=0)
