"""A goal that is shown and not said: a picture, a folder of pictures, or the last steps of a recording."""

import os
from pathlib import Path

import numpy as np

from envs.recording import episodes, load
from envs.render import PILLOW_BOX

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
RECORDING_SUFFIX = ".safetensors"
# Of each episode of a recording.
GOAL_STEPS = 5
# Pictures of a folder, at most.
MAX_GOAL_PICTURES = 1000
# Beside RGB: with a palette, and with opacity, which has to be full everywhere.
CONVERTIBLE_MODES = ("P", "RGBA")


def is_picture_goal(text: str) -> bool:
    """Whether a goal names a picture, a folder of them or a recording, and says nothing in words."""
    # `os.path` answers for a text that no path can be, where pathlib raises.
    return text.lower().endswith((*PICTURE_SUFFIXES, RECORDING_SUFFIX)) or os.path.isdir(text)


def goal_frames(source: str, size: int, name: str) -> np.ndarray:
    """The frames that show a goal, uint8 (K, size, size, 3), for the option `name`; a ValueError if there is none."""
    path = Path(source)
    if not path.exists():
        raise ValueError(f"{name}={source} does not exist; give a picture, a folder of pictures or a recording")
    if path.suffix == RECORDING_SUFFIX:
        return _last_frames(path, size, name)
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in PICTURE_SUFFIXES)
    if not files:
        raise ValueError(f"{name}={source} has no picture in it; put *.png or *.jpg files there")
    if len(files) > MAX_GOAL_PICTURES:
        raise ValueError(f"{name}={source} has {len(files)} pictures, the limit is {MAX_GOAL_PICTURES}; take some away")
    return np.stack([read_picture(file, size, name) for file in files])


def read_picture(path: Path, size: int, name: str) -> np.ndarray:
    """A picture file, squashed to a square as frames are, uint8 (size, size, 3)."""
    from PIL import Image

    # A stranger's file can be wrong in every way.
    try:
        with Image.open(path) as opened:
            picture = opened.copy()
    except Exception as error:
        raise ValueError(f"{name}: {path} cannot be read as a picture ({error}); save it as PNG or JPEG") from None
    mode = picture.mode
    if mode in CONVERTIBLE_MODES:
        opacity = np.asarray(picture.convert("RGBA"))[..., 3]
        if opacity.min() == 255:
            picture = picture.convert("RGB")
    if picture.mode != "RGB":
        raise ValueError(f"{name}: {path} has colours of mode {mode}, not RGB without transparency; save it as RGB")
    pixels = np.asarray(picture.resize((size, size), PILLOW_BOX))
    if (pixels == pixels[0, 0]).all():
        raise ValueError(f"{name}: {path} has a single colour, so it shows no goal; give another picture")
    return pixels


def _last_frames(path: Path, size: int, name: str) -> np.ndarray:
    """The last frames of the episodes that terminated, or of all where none did."""
    batch, _ = load(path)
    if batch.frame is None:
        raise ValueError(f"{name}={path} has no frames; record with frames={size}")
    parts = episodes(batch)
    terminated = [part for part in parts if batch.terminated[part.stop - 1]]
    rows: list[int] = []
    for part in terminated or parts:
        rows += range(max(part.start, part.stop - GOAL_STEPS), part.stop)
    return np.ascontiguousarray(batch.frame[rows])
