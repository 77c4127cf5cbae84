"""A run's episodes as videos, each stream's reward drawn below the picture.

`record_video` writes one episode at the end of training; `runners.watch` shows and writes several. What the reward
reads, a caption or a small frame, stands between the picture and the rewards.
"""

import math
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from envs import render
from envs.family import family_of
from envs.make import creator, make, spec_of
from envs.transitions import stack
from lodestar.files import replacing
from lodestar.video import CODEC_BLOCK_PX, INSTALL_FFMPEG, write_gif, write_mp4
from rewards.adapters.guided import add_guides
from rewards.mix.mix import Mix
from runners.run.config import TrainConfig, Values
from runners.run.curve import colours
from runners.run.output import Ticker
from runners.run.served import Act, play_steps

BACKGROUND = "#16181d"
TEXT_COLOUR = "#c8ccd4"
# The picture's longer side, and the video's width.
PICTURE_SIDE_PX = 448
# The height of a stream's plot below the picture, and of what the reward reads, if it reads something.
LANE_PX = 64
PANEL_PX = 112
MARGIN_PX = 10
FONT_PX = 13
MAX_SHOWN_STEPS = 1000


class Episode(NamedTuple):
    """What is shown of T steps."""

    # T pictures (H, W, 3), after each step; the longer side is PICTURE_SIDE_PX.
    images: list[np.ndarray]
    # Name -> float32 (T,), a stream's weighted reward; and the task's, if it is no part of it.
    streams: dict[str, np.ndarray]
    # The caption after each step; empty if no reward reads it.
    texts: list[str] = []
    # The frame that rewards read after each step, (side, side, 3); empty if none does.
    seen: list[np.ndarray] = []
    # "cut" at the limit of steps, or "terminated" or "truncated".
    ending: str = "cut"


def record_video(
    config: TrainConfig, act: Act, mix: Mix, path: Path, seed: int, also: Callable[[Episode], None] | None = None
) -> str:
    """Write one episode of a policy, and show it to `also`; returns where it is, or why there is none."""
    if not can_be_drawn(config.env):
        return "none (this environment cannot be drawn)"
    episode = play(config, act, mix, seed)
    # Short episodes are shown in slow motion.
    fps = max(10, min(30, len(episode.images) // 8))
    write(path, [episode], fps)
    if also is not None:
        also(episode)
    words = str(path)
    if path.suffix == ".gif":
        words += f" ({INSTALL_FFMPEG} makes it an mp4)"
    return words


def write(path: Path, episodes: Iterable[Episode], fps: int) -> int:
    """Write episodes one after the other, as mp4, or gif if the name says so; returns how many frames there are."""
    count = 0
    tick = Ticker(f"writing {path}")

    def draw_frames() -> Iterator[np.ndarray]:
        nonlocal count
        for episode in episodes:
            for t in range(len(episode.images)):
                count += 1
                tick("picture {:,}", count)
                yield draw(episode, t)

    with replacing(path) as temporary:
        if path.suffix == ".gif":
            write_gif(temporary, draw_frames(), 1000 / fps)
        else:
            write_mp4(temporary, draw_frames(), fps)
    return count


def can_be_drawn(env_id: str) -> bool:
    """Whether an environment declares that it draws pictures; one that declares nothing is taken to."""
    spec = spec_of(env_id)
    # Some families have a name of their own for this mode.
    mode = family_of(spec).arguments(spec, {"render_mode": "rgb_array"}, None)["render_mode"]
    return mode in _metadata(env_id).get("render_modes", [mode])


def _metadata(env_id: str) -> Values:
    """What the class of an environment declares; nothing for one that a function makes."""
    return getattr(creator(env_id), "metadata", {})


def open_env(config: TrainConfig, mix: Mix, drawn: bool = True, also: Collection[str] = ()) -> Any:
    """The environment of a run, with what its rewards read and `also` names; text for pictures unless `drawn`."""
    needs = {*mix.requires, *also}
    options: Values = {"text": "text" in needs, "signals": "signals" in needs} | config.env_options
    options["frame_size"] = mix.frame_size
    options["max_episode_steps"] = config.max_episode_steps
    mode = None
    if drawn:
        mode = "rgb_array"
    elif "ansi" in _metadata(config.env).get("render_modes", []):
        mode = "ansi"
    return add_guides(make(config.env, render_mode=mode, **options), mix)


def play(
    config: TrainConfig,
    act: Act | None,
    mix: Mix,
    seed: int,
    steps: int = MAX_SHOWN_STEPS,
    drawn: bool = True,
    env: Any = None,
) -> Episode:
    """One episode of at most so many steps, with every stream's reward; `act` of None acts at random.

    `drawn` says whether the environment draws pictures; `env` is what `open_env` gave, to be used again, or None for
    one that is closed at the end.
    """
    if env is None:
        with closing(open_env(config, mix, drawn)) as env:
            return play(config, act, mix, seed, steps, drawn, env)
    images = []
    texts = []
    rows = []
    env.action_space.seed(seed)
    for row, obs, info in play_steps(env, act, seed, steps):
        rows.append(row)
        images.append(picture(env, obs, drawn))
        if "text" in mix.requires:
            texts.append(str(info["text"]))
    batch = stack(rows)
    frames = [] if batch.frame is None else list(map(np.asarray, batch.frame[:, 0]))
    raw, _ = mix.score(mix.embed(batch))
    streams = {name: part[:, 0] for name, part in mix.weighted_rewards(raw, config.total_timesteps).items()}
    if "task" not in streams:
        streams["task (not in the reward)"] = batch.reward[:, 0]
    ending = "cut"
    if batch.terminated[-1].any():
        ending = "terminated"
    elif batch.truncated[-1].any():
        ending = "truncated"
    return Episode(images, streams, texts, frames, ending)


def picture(env: Any, obs: Any, drawn: bool) -> np.ndarray:
    """The environment's picture, its longer side PICTURE_SIDE_PX; of one that draws none, its text or observation."""
    if drawn:
        return render.picture(env, PICTURE_SIDE_PX)
    text = f"observation\n{obs}"
    if env.render_mode == "ansi":
        text = str(env.render())
    # Without what would colour it on a terminal.
    return draw_text(re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text))


def draw_text(text: str) -> np.ndarray:
    """Text as a picture (side, side, 3), in letters of one width that are as large as fits."""
    lines = text.splitlines() or [""]
    columns = max(map(len, lines))
    side = PICTURE_SIDE_PX - 2 * MARGIN_PX
    # A letter of this font is 0.61 of its size wide, a line 1.25 of it high.
    fitting = min(side / max(0.61 * columns, 1), side / (1.25 * len(lines)))
    size = int(max(6, min(20, fitting)))
    canvas = Image.new("RGB", (PICTURE_SIDE_PX, PICTURE_SIDE_PX), BACKGROUND)
    font = ImageFont.truetype(f"{matplotlib.get_data_path()}/fonts/ttf/DejaVuSansMono.ttf", size)
    for number, line in enumerate(lines):
        place = (MARGIN_PX, MARGIN_PX + 1.25 * size * number)
        ImageDraw.Draw(canvas).text(place, line, fill=TEXT_COLOUR, font=font)
    return np.asarray(canvas)


def draw(episode: Episode, t: int) -> np.ndarray:
    """Step t of an episode: the picture, what the rewards read of it, a lane per stream with its rewards so far."""
    image = episode.images[t]
    # All pictures of a video have one size, that of the first.
    panel_top = len(episode.images[0])
    lanes_top = panel_top
    if episode.texts or episode.seen:
        lanes_top += PANEL_PX
    height = lanes_top + LANE_PX * len(episode.streams) + 8
    height = math.ceil(height / CODEC_BLOCK_PX) * CODEC_BLOCK_PX
    canvas = Image.new("RGB", (PICTURE_SIDE_PX, height), BACKGROUND)
    canvas.paste(Image.fromarray(image), ((PICTURE_SIDE_PX - image.shape[1]) // 2, 0))
    _draw_panel(canvas, episode, t, panel_top)
    stream_colours = colours(episode.streams)
    for number, (name, values) in enumerate(episode.streams.items()):
        _draw_lane(canvas, name, values, t, lanes_top + 6 + LANE_PX * number, stream_colours[name])
    return np.asarray(canvas)


def _draw_panel(canvas: Image.Image, episode: Episode, t: int, panel_top: int) -> None:
    """What rewards read of step t: the frame pixel by pixel, the caption beside it."""
    pen = ImageDraw.Draw(canvas)
    font = ImageFont.load_default(FONT_PX)
    left = MARGIN_PX
    top = panel_top + 8
    if episode.seen:
        frame = episode.seen[t]
        side = PANEL_PX - 12
        enlarged = Image.fromarray(np.asarray(frame, np.uint8)).resize((side, side), Image.Resampling.NEAREST)
        canvas.paste(enlarged, (left, top))
        left += side + 10
        pen.text((left, top), f"read by the reward, {len(frame)} x {len(frame)}", fill=TEXT_COLOUR, font=font)
        top += 20
    if episode.texts:
        # Letters are about 7 pixels wide.
        columns = (PICTURE_SIDE_PX - MARGIN_PX - left) // 7
        lines = textwrap.wrap(episode.texts[t], columns)[:4] or ["(no text)"]
        pen.text((left, top), "\n".join(lines), fill=TEXT_COLOUR, font=font)


def _draw_lane(canvas: Image.Image, name: str, values: np.ndarray, t: int, top: int, colour: str) -> None:
    """A stream's rewards (T,) up to step t, on the scale of the whole episode."""
    pen = ImageDraw.Draw(canvas)
    so_far = values[: t + 1]
    words = f"{name} {values[t]:+.4f}    sum {so_far.sum():+.2f}    step {t + 1}"
    pen.text((MARGIN_PX, top), words, fill=colour, font=ImageFont.load_default(FONT_PX))
    least = float(values.min())
    span = float(values.max()) - least
    # A stream that never changes is drawn in the middle of its lane.
    unit = np.full(t + 1, 0.5)
    if span > 0:
        unit = (so_far - least) / span
    width = PICTURE_SIDE_PX - 2 * MARGIN_PX
    x = MARGIN_PX + width * np.arange(t + 1) / max(len(values) - 1, 1)
    y = top + 20 + (LANE_PX - 28) * (1 - unit)
    if t > 0:
        pen.line(list(zip(x.tolist(), y.tolist())), fill=colour, width=1)
    pen.ellipse([x[-1] - 3, y[-1] - 3, x[-1] + 3, y[-1] + 3], fill=colour)
