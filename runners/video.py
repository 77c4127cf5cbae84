"""The film of a run: one episode, with the learned reward drawn below it as it is paid."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from runners.config import TrainConfig
from runners.curve import COLOURS
from runners.evaluate import SEED, policy

if TYPE_CHECKING:
    from envs.types import Transitions
    from rewards.mix import Mix

SIDE = 448  # pixels of the film's picture
LANE = 64  # pixels of a stream's plot below it


def film(config: TrainConfig, model: Any, mix: Mix, path: Path, *, seed: int = 0, steps: int = 1000) -> str:
    """Film one episode of a trained policy; what each stream pays is drawn below the picture as it happens.

    Args:
        config: of the run.
        model: the SB3 model.
        mix: what paid it, as it stands after training.
        path: of the mp4.
        seed: which evaluation episode.
        steps: at most so many are filmed.

    Returns:
        Where the film is, or why there is none.
    """
    import imageio.v2 as imageio

    if not can_be_drawn(config.env):
        return "none (this environment cannot be drawn)"
    images, streams = _play(config, model, mix, seed, steps)
    fps = max(10, min(30, len(images) // 8))  # short episodes in slow motion
    writer: Any = imageio.get_writer(path, fps=fps, codec="libx264", quality=7, macro_block_size=16)
    with writer:
        for t in range(len(images)):
            writer.append_data(_draw(images[t], streams, t))
    return str(path)


def can_be_drawn(env_id: str) -> bool:
    """Whether an environment says that it draws pictures; one that says nothing about it is believed to."""
    from envs.family import family_of
    from envs.make import spec_of
    from envs.options import creator

    spec = spec_of(env_id)
    mode = family_of(spec).arguments(spec, {"render_mode": "rgb_array"}, None)["render_mode"]  # as the family calls it
    return mode in getattr(creator(env_id), "metadata", {}).get("render_modes", [mode])


def _play(
    config: TrainConfig, model: Any, mix: Mix, seed: int, steps: int
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """One episode: pictures (side, side, 3), and what every stream and the task paid at each of them."""
    from envs import render
    from envs.make import make
    from envs.transitions import Cursor, from_gym_step, shown_by_one
    from envs.types import stack
    from rewards.guided import guided

    env = make(
        config.env,
        render_mode="rgb_array",
        frame_size=mix.frame_size,
        text="text" in mix.requires,
        signals="signals" in mix.requires,
        max_episode_steps=config.max_episode_steps,
        **config.env_options,
    )
    env = guided(env, mix)
    try:
        cursor, act = Cursor(1), policy(model, config.env)
        obs, info = env.reset(seed=SEED + 1000 * seed)
        cursor.begin(shown_by_one(info))
        images: list[np.ndarray] = []
        rows: list[Transitions] = []
        ended = False
        while not ended and len(rows) < steps:
            action = act(obs, not rows)
            next_obs, reward, terminated, truncated, info = env.step(action)
            rows.append(from_gym_step(cursor, obs, action, float(reward), next_obs, terminated, truncated, info))
            images.append(render.frame(env, SIDE))
            obs, ended = next_obs, terminated or truncated
    finally:
        env.close()
    batch = mix.embed(stack(rows))
    raw, _ = mix.score(batch)
    paid = {name: part[:, 0] for name, part in mix.parts(raw, config.total_timesteps).items()}
    if "task" not in paid:
        paid["task (not paid)"] = batch.reward[:, 0]
    return images, paid


def _draw(image: np.ndarray, streams: dict[str, np.ndarray], t: int) -> np.ndarray:
    """The picture of step t; below it a lane per stream with what it has paid so far."""
    from PIL import Image, ImageDraw, ImageFont

    # H.264 wants multiples of 16.
    canvas = Image.new("RGB", (SIDE, -(-(SIDE + LANE * len(streams) + 8) // 16) * 16), "#16181d")
    canvas.paste(Image.fromarray(image), (0, 0))
    draw = ImageDraw.Draw(canvas)
    font = ImageFont.load_default(13)
    left, width = 10, SIDE - 20
    for number, (name, values) in enumerate(streams.items()):
        colour = COLOURS[number % len(COLOURS)]
        top = SIDE + 6 + LANE * number
        words = f"{name} {values[t]:+.4f}    sum {values[: t + 1].sum():+.2f}    step {t + 1}"
        draw.text((left, top), words, fill=colour, font=font)
        low, high = float(values.min()), float(values.max())
        height = LANE - 28
        unit = (values[: t + 1] - low) / (high - low) if high > low else np.full(t + 1, 0.5)
        x = left + width * np.arange(t + 1) / max(len(values) - 1, 1)
        y = top + 20 + height * (1 - unit)
        points = list(zip(x.tolist(), y.tolist()))
        if len(points) > 1:
            draw.line(points, fill=colour, width=1)
        last_x, last_y = points[-1]
        draw.ellipse([last_x - 3, last_y - 3, last_x + 3, last_y + 3], fill=colour)
    return np.asarray(canvas)
