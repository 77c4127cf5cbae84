"""What TensorBoard shows of a run besides its curves: configuration, hyper-parameters, videos, and histograms
where they are asked for (`histograms=true`).

The others are written once, or with each video; the curves are `runners.run.progress.TensorBoardLog`'s.
"""

import functools
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import numpy as np
import yaml
from PIL import Image
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer import event_file_writer
from torch import nn
from torch.utils.tensorboard import summary

from rewards.mix.mix import Mix
from runners.run.config import TrainConfig, flatten, to_dict
from runners.run.progress import TASK_RETURN, TensorBoardLog
from runners.run.video import Episode, draw

BINS = 64
FRAMES = 60  # of a video that is shown as a moving picture
SIDE = 224  # pixels of its width


def begin(folder: Path, config: TrainConfig, step: int) -> None:
    """The configuration, where a run begins; and word to W&B's sync_tensorboard, which watches another class."""
    if hasattr(event_file_writer, "orig_EventFileWriter"):
        event_file_writer.EventFileWriter(str(folder)).close()
    if step > 0:
        return
    values = to_dict(config)  # as text, and as hyper-parameters that TensorBoard's table compares runs by
    lines = yaml.safe_dump(json.loads(json.dumps(values)), sort_keys=False).splitlines()
    plain = {k: v if isinstance(v, bool | int | float | str) else str(v) for k, v in flatten(values).items()}
    markdown = "\n".join(f"    {line}" for line in lines)  # indented: as it is
    _add(folder, 0, summary.text("configuration", markdown), *summary.hparams(plain, {TASK_RETURN: 0.0}))


class HistogramLog(TensorBoardLog):
    """The curves, and with each row histograms of weights, gradients (last minibatch) and the scores seen last."""

    def __init__(self, folder: Path, step: int, *, model: Any, mix: Mix) -> None:
        super().__init__(folder, step)
        self.model, self.mix = model, mix
        mix.watched = {}

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        super().write(key_values, key_excluded, step)
        for tag, values in self._arrays():
            if len(finite := values[np.isfinite(values)]):
                self.add(summary.histogram(tag, finite, BINS), step)
        self.mix.watched = {}

    def _arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        policy = self.model.policy
        parameters = dict(policy.named_parameters()) if isinstance(policy, nn.Module) else {}
        for name, value in (parameters or policy.state_dict()).items():
            if value.is_floating_point():
                yield f"weights/{name}", value.detach().float().cpu().numpy().ravel()
        for name, value in parameters.items():
            if value.grad is not None:
                yield f"gradients/{name}", value.grad.float().cpu().numpy().ravel()
        for name, scores in (self.mix.watched or {}).items():
            yield f"scores/{name}", scores


def shows(config: TrainConfig, run: Path, step: int) -> Callable[[Episode], None] | None:
    """What writes an episode of a run at a step, where the run has such a log."""
    return functools.partial(add_video, run / "tensorboard", step) if "tensorboard" in config.logger else None


def add_video(folder: Path, step: int, episode: Episode) -> None:
    """Write an episode as a moving picture, of which the image tab shows the one of each step."""
    count = len(episode.images)
    shown = np.unique(np.linspace(0, count - 1, min(count, FRAMES)).astype(int))
    frames = [Image.fromarray(draw(episode, int(t))) for t in shown]
    height = round(frames[0].height * SIDE / frames[0].width)
    small: list[Any] = [np.asarray(frame.resize((SIDE, height))) for frame in frames]
    buffer = io.BytesIO()
    imageio.mimwrite(buffer, small, format="gif", duration=80, loop=0)
    image = Summary.Image(height=height, width=SIDE, colorspace=3, encoded_image_string=buffer.getvalue())
    _add(folder, step, Summary(value=[Summary.Value(tag="video", image=image)]))


def _add(folder: Path, step: int, *summaries: Any) -> None:
    log = TensorBoardLog(folder)
    for each in summaries:
        log.add(each, step)
    log.close()
