"""Pictures of a run: a film of one episode with the learned reward drawn over it, and the learning curve."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from runners.config import TrainConfig
from runners.evaluate import SEED, policy
from runners.log import LEARNED_RETURN, TASK_RETURN, read_csv

if TYPE_CHECKING:
    from envs.types import Transitions
    from rewards.mix import Mix
    from runners.control import Control

SIDE = 448  # pixels of the film's picture
LANE = 64  # pixels of a stream's plot below it
COLOURS = ("#4c9be8", "#f2a541", "#5fbf77", "#d9607c", "#9d7fe0", "#8c8c8c")


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

    env = make(
        config.env,
        render_mode="rgb_array",
        frame_size=mix.frame_size,
        text="text" in mix.requires,
        signals="signals" in mix.requires,
        max_episode_steps=config.max_episode_steps,
        **config.env_options,
    )
    try:
        cursor, act = Cursor(1), policy(model)
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


def curve(folder: Path, title: str, *, scores: dict[str, Any] | None = None, control: Control | None = None) -> Path:
    """Task return and learned return over environment steps, as `curve.png` in a run's folder.

    Args:
        folder: of the run.
        title: what was run.
        scores: of the final evaluation; the random policy's is drawn as a line.
        control: the control run, whose task return is drawn too.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    steps, task = _column(folder, TASK_RETURN)
    figure, axis = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axis.plot(steps, task, color=COLOURS[0], linewidth=2, label="task return")
    if control is not None and (control.run / "metrics.csv").exists():
        axis.plot(
            *_column(control.run, TASK_RETURN), color="#9aa0aa", linewidth=1.5, label=f"task return, {control.label}"
        )
    if scores:
        axis.axhline(
            scores["random"]["task_return"], color="#606670", linestyle=":", label="task return, random policy"
        )
    axis.set_xlabel("environment steps")
    axis.set_ylabel("task return", color=COLOURS[0])
    axis.spines["top"].set_visible(False)
    handles, labels = axis.get_legend_handles_labels()
    steps, learned = _column(folder, LEARNED_RETURN)
    if len(learned) and not np.allclose(learned, np.interp(steps, *_column(folder, TASK_RETURN))):
        other = axis.twinx()
        other.plot(steps, learned, color=COLOURS[1], linewidth=1.5, label="learned return")
        other.set_ylabel("learned return", color=COLOURS[1])
        other.spines["top"].set_visible(False)
        more = other.get_legend_handles_labels()
        handles, labels = handles + more[0], labels + more[1]
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    axis.set_title(title, fontsize=10, loc="left")
    path = folder / "curve.png"
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return path


def _column(folder: Path, tag: str) -> tuple[Sequence[float], Sequence[float]]:
    rows = [row for row in read_csv(folder / "metrics.csv") if row.get(tag)]
    return [float(row["step"]) for row in rows], [float(row[tag]) for row in rows]
