"""Frames as a file: H.264 where there is an ffmpeg, and else a moving GIF."""

import functools
import itertools
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

# H.264 wants sides that are multiples of this.
CODEC_BLOCK_PX = 16
# x264's factor of quality: 0 is without loss, 23 its default. Small letters stay sharp at this one.
RATE_FACTOR = 15
GIF_COLOURS = 256
INSTALL_FFMPEG = "pip install 'lodestar-rl[video]'"


@functools.cache
def find_ffmpeg() -> str:
    """The program that the extra `video` brings, or else one on the path; "" if there is neither."""
    try:
        import imageio_ffmpeg

        return imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError):
        return shutil.which("ffmpeg") or ""


def video_suffix() -> str:
    """What a video's name ends with on this machine."""
    return ".mp4" if find_ffmpeg() else ".gif"


def write_mp4(path: Path, frames: Iterable[np.ndarray], fps: float) -> None:
    """Write frames, uint8 (H, W, 3) with even sides, as H.264; OSError with ffmpeg's words if it fails."""
    frames = iter(frames)
    first = next(frames)
    height, width, _ = first.shape
    command = [find_ffmpeg(), "-y", "-loglevel", "error"]
    command += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{fps}", "-i", "-"]
    # A build without x264 takes another encoder of this name. Browsers play no other colours than these.
    command += ["-c:v", "h264", "-crf", f"{RATE_FACTOR}", "-pix_fmt", "yuv420p", "-f", "mp4", str(path)]
    # In a group of its own, Ctrl-C is for this process alone, which then closes the file in order.
    encoder = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0)
    assert encoder.stdin is not None
    with encoder:
        try:
            for frame in itertools.chain([first], frames):
                encoder.stdin.write(np.ascontiguousarray(frame).data)
        except BrokenPipeError:
            # ffmpeg has ended, and says why.
            pass
        except BaseException:
            encoder.kill()
            raise
        _, message = encoder.communicate()
    if encoder.returncode:
        words = " ".join(message.decode(errors="replace").split())
        raise OSError(f"ffmpeg ended with code {encoder.returncode}: {words[:300]}")


def write_gif(file: Any, frames: Iterable[np.ndarray], frame_ms: float) -> None:
    """Write frames, uint8 (H, W, 3), as a moving picture that repeats, to a path or an open file."""
    images = _quantise(frames)
    first = next(images)
    first.save(file, "GIF", save_all=True, append_images=images, duration=frame_ms, loop=0)


def _quantise(frames: Iterable[np.ndarray]) -> Iterator[Image.Image]:
    """Frames in few colours. Pillow's own choice of better ones takes four times as long."""
    for frame in frames:
        image = Image.fromarray(frame)
        yield image.quantize(GIF_COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
