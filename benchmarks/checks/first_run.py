"""The first command of README and guide: what its closing table says, and the picture at the top of README.

    python -m benchmarks first_run

A pole is taught to stand by a sentence alone. The picture has three frames of the run's video above its curve. The
control's return differs by a step or two between machines, whose CLIP rounds otherwise.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import imageio.v2 as imageio
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ("env=lodestar/CartPoleUpright-v0", "reward=clip")
COLUMNS = {"this_run": "this run", "mode": "this run, mode", "random": "random", "control": "control: "}
WIDTH = 1200  # pixels of the picture
GAP = 12  # pixels between two frames
MOMENTS = (0.01, 0.3, 1.0)  # of the video that are shown


def run(folder: Path) -> dict[str, float]:
    """Train by the command and draw the picture; the task returns of its closing table."""
    with tempfile.TemporaryDirectory() as place:
        trained = Path(place) / "run"
        command = [sys.executable, str(ROOT / "lodestar.py"), "train", *COMMAND, f"run_dir={trained}"]
        subprocess.run(command, cwd=place, check=True)
        scores = json.loads((trained / "result.json").read_text())
        draw(trained, folder.parent / "figures" / "upright.png")
    return figures_of(scores)


def figures_of(scores: dict[str, Any]) -> dict[str, float]:
    """The task returns in result.json, by the column that they stand in."""
    found = {}
    for key, column in COLUMNS.items():
        # The column of a control goes on with what it changes.
        name = next(name for name in scores if name == column or (key == "control" and name.startswith(column)))
        found[f"first_run_{key}"] = scores[name]["task_return"]
    return found


def draw(run: Path, path: Path) -> None:
    """Frames of a run's video side by side, above its curve."""
    pictures = [Image.fromarray(frame) for frame in imageio.mimread(run / "video.mp4", memtest=False)]
    chosen = [pictures[round(moment * (len(pictures) - 1))] for moment in MOMENTS]
    width = (WIDTH + GAP) // len(MOMENTS) - GAP
    frames = [scaled(picture, width) for picture in chosen]
    curve = scaled(Image.open(run / "curve.png").convert("RGB"), WIDTH)
    whole = Image.new("RGB", (WIDTH, frames[0].height + curve.height), "white")
    for number, frame in enumerate(frames):
        whole.paste(frame, (number * (width + GAP), 0))
    whole.paste(curve, (0, frames[0].height))
    whole.save(path, optimize=True)


def scaled(picture: Image.Image, width: int) -> Image.Image:
    """A picture of this width, with the sides in proportion."""
    return picture.resize((width, round(picture.height * width / picture.width)), Image.Resampling.LANCZOS)
