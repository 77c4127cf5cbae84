"""Environments made, stepped and drawn for real, each in a process of its own; the video encoder."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from runners.doctor import Finding, ask

STEPS = 10
SIDE = 64  # pixels of the frames
BUILD = "pip install --force-reinstall nle (where it has no wheel it needs cmake, bison, flex and libbz2)"
GL = "apt-get install libegl1 libgl1 libosmesa6, then MUJOCO_GL=egl or osmesa"
SEEN = "only rewards that read frames, and videos, need it"


def world(name: str, env_id: str, drawn: bool | None, required: bool = True) -> Iterator[Finding]:
    """Ten random steps, with frames if it shall be drawn (None: if it can be); a picture of one colour is an error."""
    from envs.make import make

    if drawn is None:
        from runners.run.video import can_be_drawn

        drawn = can_be_drawn(env_id)
    begin = time.perf_counter()
    env = make(env_id, seed=0, frame_size=SIDE if drawn else None)
    env.reset(seed=0)
    made = time.perf_counter() - begin
    begin = time.perf_counter()
    for _ in range(STEPS):
        _, _, terminated, truncated, info = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
    each = (time.perf_counter() - begin) / STEPS
    words = f"{env_id} made in {made:.1f} s, {1000 * each:.1f} ms a step"
    if drawn:
        words += f" with a frame of {info['frame'].shape[0]} x {info['frame'].shape[1]}"
    yield Finding(name, "ok", words, required=required)


def mujoco(timeout: float) -> list[Finding]:
    """MuJoCo drawn by the chosen renderer; if that fails, which of the others would work."""
    from envs.render import prepare

    target, arguments = f"{__name__}:world", ("mujoco drawn", "HalfCheetah-v5", True, False)
    first = ask("mujoco drawn", target, *arguments, fix=GL, required=False, timeout=timeout)[0]
    prepare()
    chosen = os.environ.get("MUJOCO_GL") or "its default"
    if first.state == "ok":
        return [first._replace(found=f"{first.found}, through {chosen}")]
    for other in ("egl", "osmesa", "glfw"):
        if other == chosen or sys.platform != "linux":
            continue
        found = ask("mujoco drawn", target, *arguments, required=False, timeout=timeout, MUJOCO_GL=other)[0]
        if found.state == "ok":
            words = f"not through {chosen} ({first.found}), but through {other}"
            return [Finding("mujoco drawn", "warning", words, f"export MUJOCO_GL={other}", required=False)]
    return [first._replace(found=f"not through {chosen}, nor any other: {first.found}; {SEEN}")]


def video() -> Iterator[Finding]:
    """Two frames through the encoder and back."""
    import imageio.v2 as imageio
    import imageio_ffmpeg
    import numpy as np

    frames = [np.full((64, 64, 3), value, np.uint8) for value in (40, 200)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "two.mp4"
        imageio.mimwrite(path, frames, fps=2, codec="libx264")  # type: ignore[arg-type]
        back = imageio.mimread(path)
        size = path.stat().st_size
    levels = [round(float(np.mean(frame))) for frame in back]
    if len(back) != 2 or any(abs(level - grey) > 8 for level, grey in zip(levels, (40, 200))):
        found = f"of two frames {len(back)} came back, with the grey levels {levels} instead of 40 and 200"
        yield Finding("video", "missing", found, "pip install --force-reinstall imageio-ffmpeg", required=False)
    else:
        words = f"ffmpeg {imageio_ffmpeg.get_ffmpeg_version()}, two frames encoded to {size:,} bytes and read back"
        yield Finding("video", "ok", words, required=False)
