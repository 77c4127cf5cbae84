"""Draws docs/pictures: a few steps of random play of each family of environments, and of each shipped agent its play.

python docs/pictures.py                         all of them
python docs/pictures.py minigrid upright-clip   some
"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import numpy as np
from PIL import Image

import lodestar as ld
from envs import make, render
from runners.evaluation.play import policy
from runners.run.video import open_env

FOLDER = Path(__file__).parent / "pictures"
AGENTS = FOLDER.parents[1] / "assets" / "agents"
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


# Shipped agent -> steps between two pictures, pixels of a side, for what a family's default does not suit.
AGENT_FILMS = {
    "upright-clip": (3, 192),
    "mountaincar-rnd": (4, 192),
    "nethack-score": (8, 352),
    "lunarlander-task": (11, 192),
    "hopper-task": (8, 144),
    "walker2d-task": (8, 144),
    "swimmer-task": (5, 144),
    "halfcheetah-task": (2, 144),
    "lockedroom-noveld": (4, 192),
    "keycorridor_s6r3-noveld": (5, 192),
}
AGENT_FILM = (2, 192)
# Seeds of episodes that fit into the pictures, where that of seed 0 does not.
AGENT_SEEDS = {"lockedroom-noveld": 6, "keycorridor_s6r3-noveld": 3}


def draw_family(family: str) -> Path:
    """Write the GIF of a family's random play."""
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
            pictures.append(Image.fromarray(np.asarray(render.frame(env, side))))
    return save(pictures, FOLDER / f"{family}.gif")


def draw_agent(name: str) -> Path:
    """Write the GIF of a shipped agent's play, its mode or its samples as it was judged."""
    every, side = AGENT_FILMS.get(name, AGENT_FILM)
    seed = AGENT_SEEDS.get(name, 0)
    config, model, mix, _ = ld.load(AGENTS / name)._contents
    act = policy(model, config, seed=seed)
    pictures = []
    with closing(open_env(config, mix)) as env:
        obs, _ = env.reset(seed=seed)
        begins = True
        while len(pictures) < PICTURES:
            # The first picture of an episode shows where it begins.
            pictures.append(Image.fromarray(np.asarray(render.frame(env, side))))
            for _ in range(every):
                obs, _, terminated, truncated, _ = env.step(act(obs, begins))
                begins = terminated or truncated
                if begins:
                    pictures.append(Image.fromarray(np.asarray(render.frame(env, side))))
                    obs, _ = env.reset()
                    break
    return save(pictures, FOLDER / "trained" / f"{name}.gif")


def save(pictures: list[Image.Image], path: Path) -> Path:
    """Write a GIF, with fewer pictures where it would be too large."""
    path.parent.mkdir(exist_ok=True)
    frames = [picture.quantize(COLOURS, dither=Image.Dither.NONE) for picture in pictures]
    while True:
        frames[0].save(path, save_all=True, append_images=frames[1:], duration=150, loop=0, optimize=True)
        if path.stat().st_size <= MOST:
            return path
        frames.pop()


if __name__ == "__main__":
    agents = [path.name for path in sorted(AGENTS.iterdir())]
    for name in sys.argv[1:] or [*SHOWN, *agents]:
        made = draw_family(name) if name in SHOWN else draw_agent(name)
        print(f"{made} {made.stat().st_size:,} bytes")
