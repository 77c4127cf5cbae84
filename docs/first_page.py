"""Draws assets/figures/first_page.gif, the moving picture at the top of README and of the site.

python docs/first_page.py KEYCORRIDOR_RUN

Three panels side by side: random play, the shipped agent that learned to balance from a sentence, and a run on
KeyCorridorS3R3 that learned with NovelD (`lodestar train env=MiniGrid-KeyCorridorS3R3-v0 reward=noveld`).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import lodestar as ld
from envs import make, render

ROOT = Path(__file__).resolve().parents[1]
PATH = ROOT / "assets" / "figures" / "first_page.gif"
PANEL_PIXELS = 280
CAPTION_PIXELS = 46
FRAME_COUNT = 60
FRAME_MS = 70
PALETTE_COLOURS = 48
UPRIGHT = ROOT / "assets" / "agents" / "upright-clip"


def play(run: ld.TrainedRun, env_id: str, steps_a_frame: int, random: bool, seed: int) -> list[Image.Image]:
    """Frames of episodes one after the other, FRAME_COUNT of them."""
    env = make.make(env_id, render_mode="rgb_array")
    env.action_space.seed(seed)
    obs, _ = env.reset(seed=seed)
    frames: list[Image.Image] = []
    while len(frames) < FRAME_COUNT:
        frames.append(Image.fromarray(np.asarray(render.picture(env, PANEL_PIXELS))))
        for _ in range(steps_a_frame):
            action = env.action_space.sample() if random else run.policy.predict(obs)[0]
            obs, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                obs, _ = env.reset()
                break
    env.close()
    return frames


def compose(panels: list[list[Image.Image]], captions: list[str]) -> list[Image.Image]:
    """One picture a moment: the panels beside each other, each above its caption."""
    font = ImageFont.load_default(15)
    width = PANEL_PIXELS * len(panels)
    moments = []
    for moment in range(FRAME_COUNT):
        picture = Image.new("RGB", (width, PANEL_PIXELS + CAPTION_PIXELS), "white")
        draw = ImageDraw.Draw(picture)
        for place, (frames, caption) in enumerate(zip(panels, captions, strict=True)):
            left = PANEL_PIXELS * place
            frame = frames[moment]
            inset = (PANEL_PIXELS - frame.width) // 2, (PANEL_PIXELS - frame.height) // 2
            picture.paste(frame, (left + inset[0], inset[1]))
            centre = left + PANEL_PIXELS / 2
            draw.multiline_text(
                (centre, PANEL_PIXELS + CAPTION_PIXELS / 2), caption, "black", font, "mm", align="center"
            )
        moments.append(picture.quantize(PALETTE_COLOURS, dither=Image.Dither.NONE))
    return moments


def main(keycorridor: str) -> None:
    """Play the three panels and write the picture."""
    pole, corridor = ld.load(UPRIGHT), ld.load(keycorridor)
    panels = [
        play(pole, "lodestar/CartPoleUpright-v0", 2, random=True, seed=3),
        play(pole, "lodestar/CartPoleUpright-v0", 2, random=False, seed=3),
        play(corridor, "MiniGrid-KeyCorridorS3R3-v0", 1, random=False, seed=3),
    ]
    captions = [
        "random play",
        'reward: the sentence "pole vertically\nupright on top of the cart"',
        "reward: task + NovelD\n(PPO alone fails)",
    ]
    moments = compose(panels, captions)
    moments[0].save(PATH, save_all=True, append_images=moments[1:], duration=FRAME_MS, loop=0, optimize=True)
    print(f"{PATH} {PATH.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
