"""LeRobot's progress files as recorded answers: the progress of a data set's frames, for the windows of its episodes.

A file names frames by their places in a data set, a judge names windows by their pictures. So the recording that was
made of the data set (`lodestar record from=FOLDER frames=...`) is read beside it, and each of its windows gets the
progress of its newest frame.

Source: LeRobot 0.6, `compute_rabc_weights`: episode_index, frame_index, progress_sparse, one row a frame.
When it fails: windows that the recording does not show have no answer; frames of another size than `size` are other
pictures.
"""

import json
from pathlib import Path
from typing import Protocol

import numpy as np

from envs.datasets.lerobot import read_progress
from envs.recording import episodes, load
from envs.transitions import Transitions
from envs.types import Memory


class MeetsWindows(Protocol):
    """A reward that notes the windows it meets: name -> item."""

    windows: dict[int, str]

    def initial_memory(self, n: int) -> Memory:
        """The memory of n episodes that begin."""

    def track_windows(self, batch: Transitions, memory: Memory) -> tuple[np.ndarray, Memory]:
        """The newest window before each row of a rollout and after it; and the memory."""


def write_labels(labels: Path, reward: MeetsWindows, progress_file: str, recording: str) -> None:
    """Write a file of labels for `judge=recorded`: the windows of a recording with their progress."""
    progress = read_progress(Path(progress_file))
    batch, _ = load(recording)
    rows_of = episodes(batch)
    if len(rows_of) != len(progress):
        raise ValueError(
            f"{recording} has {len(rows_of)} episodes and {progress_file} {len(progress)}; give the recording that was "
            "made of the same data set"
        )
    with labels.open("w") as file:
        for rows, values in zip(rows_of, progress.values()):
            count = rows.stop - rows.start
            # A frame is what is seen after an action; that after the last one is stored only in some episodes.
            if len(values) - count not in (0, 1):
                raise ValueError(
                    f"an episode of {recording} has {count} steps and {len(values)} frames in {progress_file}; give "
                    "the recording that was made of the same data set"
                )
            memory = reward.initial_memory(1)
            for step in range(count):
                row = batch[rows.start + step : rows.start + step + 1][:, None]
                _, memory = reward.track_windows(row, memory)
                value = float(values[min(step + 1, len(values) - 1)])
                for item in reward.windows.values():
                    if np.isfinite(value):
                        file.write(json.dumps({"text": item, "value": value}) + "\n")
                reward.windows.clear()
