"""What TensorBoard shows of a run besides its curves: configuration, hyper-parameters, videos, and histograms
where they are asked for (`histograms=true`).

The others are written once, or with each video; the curves are `runners.run.progress.TensorBoardLog`'s.
"""

import functools
import io
import itertools
import json
import os
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from PIL import Image
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer import event_file_writer
from torch import Tensor, nn
from torch.utils.tensorboard import summary

from lodestar.files import make_folder
from lodestar.video import write_gif
from rewards.mix.mix import Mix
from runners.run.config import TrainConfig, flatten, to_dict
from runners.run.progress import LEARNED_RETURN, TASK_RETURN, ExcludedFormats, LoggedValues, TensorBoardLog

if TYPE_CHECKING:
    from runners.run.video import Episode

HISTOGRAM_BINS = 64
# Of a video that is shown as a moving picture.
MAX_GIF_FRAMES = 60
GIF_WIDTH_PX = 224
GIF_FRAME_MS = 80
# What is looked at first: the tab "Custom Scalars", a chart of the tags that fit.
LAYOUT = {
    "Did it work": {
        "task return": ["Multiline", [f"^{TASK_RETURN}$"]],
        "learned return": ["Multiline", [f"^{LEARNED_RETURN}$"]],
        "success": ["Multiline", ["^rollout/success_rate$", "^eval/success$"]],
    },
    "What the rewards did": {
        "share of the reward": ["Multiline", ["^reward/.*_share$"]],
        "correlation with the task": ["Multiline", ["^reward/.*_corr$"]],
        "alarm": ["Multiline", ["^reward/alarm$"]],
    },
    "Health": {
        "entropy and explained variance": ["Multiline", ["^train/entropy$", "^train/explained_variance.*$"]],
        "frames a second": ["Multiline", ["^time/fps$"]],
    },
}


def begin(folder: Path, config: TrainConfig, step: int) -> None:
    """The configuration, where a run begins; and word to W&B's sync_tensorboard, which watches another class."""
    if hasattr(event_file_writer, "orig_EventFileWriter"):
        event_file_writer.EventFileWriter(str(folder)).close()
    if step > 0:
        return
    values = to_dict(config)
    # As text, which Markdown leaves as it is if it is indented.
    markdown = textwrap.indent(yaml.safe_dump(json.loads(json.dumps(values)), sort_keys=False), "    ").rstrip()
    # As hyper-parameters, by which TensorBoard's table compares runs; these may be plain values only.
    parameters = flatten(values)
    for key, value in parameters.items():
        if not isinstance(value, bool | int | float | str):
            parameters[key] = str(value)
    hparams = summary.hparams(parameters, {TASK_RETURN: 0.0})
    _write(folder, 0, summary.text("configuration", markdown), *hparams, summary.custom_scalars(LAYOUT))


def command_line(logdir: str) -> str:
    """What starts TensorBoard, and where it is shown."""
    start = f"{sys.executable} -m tensorboard.main --logdir {shlex.quote(logdir)}"
    return f"{start}\n{'':13}then open http://localhost:6006"


def link_runs(folder: Path, runs: Mapping[str, Path]) -> Path:
    """A folder of links to the logs of runs, so that TensorBoard shows these short names."""
    make_folder(folder)
    for name, run in runs.items():
        link = folder / name
        if not link.is_symlink() and (run / "tensorboard").is_dir():
            link.symlink_to(os.path.relpath(run / "tensorboard", folder), target_is_directory=True)
    return folder


def short_names(names: Sequence[str]) -> list[str]:
    """Names of jobs, as in A-v1/ppo-task/s0, without the parts that all of them share, on one level."""
    split = [name.split("/") for name in names]
    shared = [len(set(parts)) == 1 for parts in zip(*split)]
    shortened = []
    for parts in split:
        own = []
        for part, is_shared in itertools.zip_longest(parts, shared):
            if not is_shared:
                own.append(part)
        shortened.append(" ".join(own or parts))
    return shortened


class HistogramLog(TensorBoardLog):
    """The curves, and with each row histograms of weights, gradients (last minibatch) and the scores seen last."""

    def __init__(self, folder: Path, step: int, *, model: Any, mix: Mix) -> None:
        super().__init__(folder, step)
        self.model = model
        self.mix = mix
        # From now on the mix keeps the scores that it sees.
        mix.watched = {}

    def write(self, key_values: LoggedValues, key_excluded: ExcludedFormats, step: int = 0) -> None:
        super().write(key_values, key_excluded, step)
        for tag, values in self._arrays():
            finite = values[np.isfinite(values)]
            if len(finite):
                self.add(summary.histogram(tag, finite, HISTOGRAM_BINS), step)
        self.mix.watched = {}

    def _arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        policy = self.model.policy
        parameters = {}
        if isinstance(policy, nn.Module):
            parameters = dict(policy.named_parameters())
        for name, value in (parameters or policy.state_dict()).items():
            if value.is_floating_point():
                yield f"weights/{name}", _flat_array(value)
        for name, value in parameters.items():
            if value.grad is not None:
                yield f"gradients/{name}", _flat_array(value.grad)
        for name, scores in (self.mix.watched or {}).items():
            yield f"scores/{name}", scores


def _flat_array(values: Tensor) -> np.ndarray:
    return values.detach().float().cpu().numpy().ravel()


def video_writer(config: TrainConfig, run: Path, step: int) -> "Callable[[Episode], None] | None":
    """What writes an episode of a run at a step, where the run has such a log."""
    if "tensorboard" not in config.logger:
        return None
    return functools.partial(add_video, run / "tensorboard", step)


def add_video(folder: Path, step: int, episode: "Episode") -> None:
    """Write an episode as a moving picture, of which the image tab shows the one of each step."""
    # Drawing loads matplotlib, which a run without videos does not need.
    from runners.run.video import draw

    count = len(episode.images)
    steps = np.unique(np.linspace(0, count - 1, min(count, MAX_GIF_FRAMES)).astype(int))
    frames = []
    for t in steps:
        frame = Image.fromarray(draw(episode, int(t)))
        height = round(frame.height * GIF_WIDTH_PX / frame.width)
        frames.append(np.asarray(frame.resize((GIF_WIDTH_PX, height))))
    buffer = io.BytesIO()
    write_gif(buffer, frames, GIF_FRAME_MS)
    # Three channels of colour.
    gif = buffer.getvalue()
    image = Summary.Image(height=len(frames[0]), width=GIF_WIDTH_PX, colorspace=3, encoded_image_string=gif)
    _write(folder, step, Summary(value=[Summary.Value(tag="video", image=image)]))


def _write(folder: Path, step: int, *summaries: Any) -> None:
    log = TensorBoardLog(folder)
    for content in summaries:
        log.add(content, step)
    log.close()
