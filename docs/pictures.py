"""Draws docs/pictures: for each family of environments a few steps of random play, which its page shows.

python docs/pictures.py                    all of them
python docs/pictures.py minigrid driving   some
"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import numpy as np
from PIL import Image

from envs import make, render

FOLDER = Path(__file__).parent / "pictures"
COLOURS, MOST, PICTURES = 32, 60_000, 24  # of the palette; bytes of a file
# Family -> what stands for it, steps between two pictures, pixels of a side.
SHOWN: dict[str, tuple[str, int, int]] = {
    "classic": ("Acrobot-v1", 2, 192),
    "mujoco": ("HalfCheetah-v5", 2, 192),
    "minigrid": ("MiniGrid-DoorKey-8x8-v0", 1, 192),
    "nethack": ("lodestar/NetHackScore-v0", 4, 352),
    "driving": ("highway-fast-v0", 1, 192),
    "exploration": ("lodestar/NoisyRooms-v0", 1, 192),
    "factored": ("lodestar/ProcMaze-v0", 1, 192),
    "crafter": ("lodestar/Crafter-v0", 2, 192),
}


def draw(family: str) -> Path:
    """Write a family's GIF, with fewer pictures where it would be too large."""
    env_id, every, side = SHOWN[family]
    pictures = []
    with closing(make.make(env_id, render_mode="rgb_array")) as env:
        env.action_space.seed(0)
        env.reset(seed=0)
        while len(pictures) < PICTURES:
            for _ in range(every):
                _, _, terminated, truncated, _ = env.step(env.action_space.sample())
                if terminated or truncated:
                    env.reset()
            picture = Image.fromarray(np.asarray(render.frame(env, side)))
            pictures.append(picture.quantize(COLOURS, dither=Image.Dither.NONE))
    path = FOLDER / f"{family}.gif"
    path.parent.mkdir(exist_ok=True)
    while True:
        pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=150, loop=0, optimize=True)
        if path.stat().st_size <= MOST:
            return path
        pictures.pop()


if __name__ == "__main__":
    for name in sys.argv[1:] or SHOWN:
        made = draw(name)
        print(f"{made} {made.stat().st_size:,} bytes")
