"""A run's episodes as videos, each stream's reward drawn below the picture.

`record_video` writes one episode at the end of training; `runners.watch` shows and writes several. What the reward
reads, a caption or a small frame, stands between the picture and the rewards.
"""

import re
import textwrap
from collections.abc import Callable, Collection, Iterable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, cast

import imageio.v2 as imageio
import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from envs import render
from envs.family import family_of
from envs.make import creator, make, spec_of
from envs.masks import sample
from envs.steps import Cursor, from_gym_step, modalities_of_one
from envs.transitions import Transitions, stack
from envs.types import MASK
from lodestar.files import replacing
from rewards.adapters.guided import guided
from rewards.mix.mix import Mix
from runners.cli.output import Ticker
from runners.run.config import TrainConfig
from runners.run.curve import colours

Act = Callable[..., Any]  # (observation, whether an episode begins, its action mask if it has one) -> action

BACKGROUND, INK = "#16181d", "#c8ccd4"
SIDE = 448  # pixels of the picture's longer side, and of the video's width
LANE = 64  # pixels of a stream's plot below it
PANEL = 112  # pixels of what the reward reads, if it reads something
STEPS = 1000  # of an episode that are shown at most


class Episode(NamedTuple):
    """What is shown of T steps."""

    images: list[np.ndarray]  # T pictures (H, W, 3), after each step; the longer side is SIDE
    streams: dict[str, np.ndarray]  # name -> float32 (T,), its weighted reward; and the task's, if it is no part of it
    texts: list[str] = []  # the caption after each step; empty if no reward reads it
    seen: list[np.ndarray] = []  # the frame that rewards read after each step, (side, side, 3); empty if none does
    ending: str = "cut"  # at the limit of steps, or "terminated" or "truncated"


def record_video(
    config: TrainConfig, act: Act, mix: Mix, path: Path, seed: int, also: Callable[[Episode], None] | None = None
) -> str:
    """Write one episode of a policy to an mp4, and show it to `also`; returns where it is, or why there is none."""
    if not can_be_drawn(config.env):
        return "none (this environment cannot be drawn)"
    episode = play(config, act, mix, seed)
    fps = max(10, min(30, len(episode.images) // 8))  # short episodes in slow motion
    write(path, [episode], fps)
    if also is not None:
        also(episode)
    return str(path)


def write(path: Path, episodes: Iterable[Episode], fps: int) -> int:
    """Write episodes one after the other, as mp4, or gif if the name says so; returns how many frames there are."""
    moving: dict[str, Any] = {"fps": fps, "codec": "libx264", "quality": 7, "macro_block_size": 16}
    if path.suffix == ".gif":
        moving = {"duration": 1000 / fps, "loop": 0}
    count = 0
    tick = Ticker(f"writing {path}")
    with replacing(path) as temporary, cast(Any, imageio.get_writer(temporary, **moving)) as writer:
        for frame in (draw(one, t) for one in episodes for t in range(len(one.images))):
            writer.append_data(frame)
            count += 1
            tick("picture {:,}", count)
    return count


def can_be_drawn(env_id: str) -> bool:
    """Whether an environment declares that it draws pictures; one that declares nothing is taken to."""
    spec = spec_of(env_id)
    mode = family_of(spec).arguments(spec, {"render_mode": "rgb_array"}, None)["render_mode"]  # as the family calls it
    return mode in getattr(creator(env_id), "metadata", {}).get("render_modes", [mode])


def open_env(config: TrainConfig, mix: Mix, drawn: bool = True, also: Collection[str] = ()) -> Any:
    """The environment of a run, with what its rewards read and `also` names; text for pictures unless `drawn`."""
    modes = getattr(creator(config.env), "metadata", {}).get("render_modes", [])
    read = {*mix.requires, *also}
    options: dict[str, Any] = {name: name in read for name in ("text", "signals")} | config.env_options
    options |= {"frame_size": mix.frame_size, "max_episode_steps": config.max_episode_steps}
    mode = "rgb_array" if drawn else "ansi" if "ansi" in modes else None
    return guided(make(config.env, render_mode=mode, **options), mix)


def play(
    config: TrainConfig, act: Act | None, mix: Mix, seed: int, steps: int = STEPS, drawn: bool = True, env: Any = None
) -> Episode:
    """One episode of at most so many steps, with every stream's reward; `act` of None acts at random.

    `drawn` says whether the environment draws pictures; `env` is what `open_env` gave, to be used again, or None for
    one that is closed at the end.
    """
    images, texts, rows = list[np.ndarray](), list[str](), list[Transitions]()
    cursor, ending = Cursor(1), "cut"
    with closing(open_env(config, mix, drawn)) if env is None else nullcontext(env) as env:
        env.action_space.seed(seed)
        obs, info = env.reset(seed=seed)
        cursor.begin(modalities_of_one(info))
        while ending == "cut" and len(rows) < steps:
            mask = (info[MASK],) if MASK in info else ()
            action = sample(env.action_space, *mask) if act is None else act(obs, not rows, *mask)
            next_obs, reward, terminated, truncated, info = env.step(action)
            rows.append(from_gym_step(cursor, obs, action, float(reward), next_obs, terminated, truncated, info))
            images.append(picture(env, next_obs, drawn))
            texts += [str(info["text"])] if "text" in mix.requires else []
            obs, ending = next_obs, "terminated" if terminated else "truncated" if truncated else "cut"
    batch = stack(rows)
    seen = [] if batch.frame is None else [np.asarray(frame) for frame in batch.frame[:, 0]]
    raw, _ = mix.score(mix.embed(batch))
    streams = {name: part[:, 0] for name, part in mix.parts(raw, config.total_timesteps).items()}
    if "task" not in streams:
        streams["task (not in the reward)"] = batch.reward[:, 0]
    return Episode(images, streams, texts, seen, ending)


def picture(env: Any, obs: Any, drawn: bool) -> np.ndarray:
    """The environment's picture, its longer side SIDE; of one that draws none, its text or its observation."""
    if drawn:
        return render.picture(env, SIDE)
    text = str(env.render()) if env.render_mode == "ansi" else f"observation\n{obs}"
    return written(re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text))


def written(text: str) -> np.ndarray:
    """Text as a picture (SIDE, SIDE, 3), in letters of one width that are as large as fits."""
    lines = text.splitlines() or [""]
    width = max(map(len, lines))
    size = int(max(6, min(20, (SIDE - 20) / max(0.61 * width, 1), (SIDE - 20) / (1.25 * len(lines)))))
    canvas = Image.new("RGB", (SIDE, SIDE), BACKGROUND)
    font = ImageFont.truetype(f"{matplotlib.get_data_path()}/fonts/ttf/DejaVuSansMono.ttf", size)
    for number, line in enumerate(lines):
        ImageDraw.Draw(canvas).text((10, 10 + 1.25 * size * number), line, fill=INK, font=font)
    return np.asarray(canvas)


def draw(episode: Episode, t: int) -> np.ndarray:
    """Step t of an episode: the picture, what the rewards read of it, a lane per stream with its rewards so far."""
    text = episode.texts[t] if episode.texts else None
    seen = episode.seen[t] if episode.seen else None
    image = episode.images[t]
    # All pictures of a video have one size, that of the first.
    high = len(episode.images[0])
    below = high + (PANEL if text is not None or seen is not None else 0)
    # H.264 wants multiples of 16.
    canvas = Image.new("RGB", (SIDE, -(-(below + LANE * len(episode.streams) + 8) // 16) * 16), BACKGROUND)
    canvas.paste(Image.fromarray(image), ((SIDE - image.shape[1]) // 2, 0))
    pen = ImageDraw.Draw(canvas)
    font = ImageFont.load_default(13)
    left, width = 10, SIDE - 20
    if seen is not None:  # the frame, pixel by pixel
        side = PANEL - 12
        small = Image.fromarray(np.asarray(seen, np.uint8)).resize((side, side), resample=0)  # 0: nearest
        canvas.paste(small, (left, high + 8))
        beside = left + side + 10
        pen.text((beside, high + 8), f"read by the reward, {len(seen)} x {len(seen)}", fill=INK, font=font)
    if text is not None:  # the caption, beside it
        at = (left, high + 8) if seen is None else (beside, high + 28)
        lines = textwrap.wrap(text, (SIDE - 10 - at[0]) // 7)[:4] or ["(no text)"]  # letters of about 7 pixels
        pen.text(at, "\n".join(lines), fill=INK, font=font)
    lanes = zip(colours(episode.streams).values(), episode.streams.items())
    for number, (colour, (name, values)) in enumerate(lanes):
        top = below + 6 + LANE * number
        words = f"{name} {values[t]:+.4f}    sum {values[: t + 1].sum():+.2f}    step {t + 1}"
        pen.text((left, top), words, fill=colour, font=font)
        least = float(values.min())
        span = float(values.max()) - least
        # A stream that never changes is drawn in the middle of its lane.
        unit = np.full(t + 1, 0.5)
        if span > 0:
            unit = (values[: t + 1] - least) / span
        x = left + width * np.arange(t + 1) / max(len(values) - 1, 1)
        y = top + 20 + (LANE - 28) * (1 - unit)
        points = list(zip(x.tolist(), y.tolist()))
        if len(points) > 1:
            pen.line(points, fill=colour, width=1)
        pen.ellipse([x[-1] - 3, y[-1] - 3, x[-1] + 3, y[-1] + 3], fill=colour)
    return np.asarray(canvas)
