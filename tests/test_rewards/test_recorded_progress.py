"""A progress file as LeRobot writes it, as the answers about the windows of the recording of the same data set."""

import numpy as np
import pytest
from gymnasium import spaces
from rollouts import blank

from envs.recording import save
from rewards.vision.progress_model import ProgressModel, ProgressModelConfig

arrow = pytest.importorskip("pyarrow")
SPACES = spaces.Box(-1.0, 1.0, (4,), np.float32), spaces.Discrete(3)


def write_progress(path, *episodes, column="progress_sparse"):
    from pyarrow import parquet

    progress = np.concatenate(episodes)
    columns = {
        "index": np.arange(len(progress)),
        "episode_index": np.repeat(np.arange(len(episodes)), [len(episode) for episode in episodes]),
        "frame_index": np.concatenate([np.arange(len(episode)) for episode in episodes]),
        column: np.asarray(progress, np.float32),
    }
    parquet.write_table(arrow.table(columns), path)
    return str(path)


def recorded(levels, ended):
    """A rollout (T, 1) whose frames have these brightnesses, and whose episodes end at these rows."""
    frame = np.broadcast_to(np.uint8(levels)[:, None, None, None, None], (len(levels), 1, 8, 8, 3)).copy()
    frame[:, :, 0, 0] = 255
    truncated = np.zeros((len(levels), 1), bool)
    truncated[ended] = True
    step = np.arange(len(levels))
    step[ended[0] + 1 :] -= ended[0] + 1
    return blank(len(levels), 1, frame=frame, truncated=truncated, step=step[:, None])


def make(path, recording):
    options = {"path": path, "recording": str(recording)}
    config = ProgressModelConfig(judge="recorded", judge_options=options, goal="up", ask="at_once", every=2, size=8)
    return ProgressModel(config, *SPACES)


def test_a_window_has_the_progress_of_its_newest_frame(tmp_path):
    # Frames 1 to 3 of an episode of 4, and 1 to 2 of one of 3: what is seen after each action.
    batch = recorded([10, 20, 30, 40, 50], [2, 4])
    save(tmp_path / "data.safetensors", batch.flatten(), {})
    path = write_progress(tmp_path / "progress.parquet", [0, 0.25, 0.5, 0.75], [0, np.nan, 0.875])
    reward = make(path, tmp_path / "data.safetensors")
    scores, _ = reward.scan(batch, reward.initial_memory(1))
    # Windows end after every second step of an episode, and at its end.
    assert scores[:, 0].tolist() == [0, 0.5, 0.75, 0, 0.875]
    reward.close()


@pytest.mark.parametrize(
    ("episodes", "column", "words"),
    [
        (([0, 0.2, 0.4, 1],), "progress_sparse", "has 2 episodes and .* 1; give the recording"),
        (([0, 0.2, 0.4, 2], [0, 0, 1]), "progress_sparse", "progress_sparse holds 2; progress is in"),
        (([0, 0.2, 0.4, 1, 1, 1], [0, 0, 1]), "progress_dense", "has 3 steps and 6 frames"),
        (([0, 1], [0, 1]), "value", "has the columns index, episode_index, frame_index, value"),
    ],
)
def test_a_file_of_another_data_set_is_refused(episodes, column, words, tmp_path):
    batch = recorded([10, 20, 30, 40, 50], [2, 4])
    save(tmp_path / "data.safetensors", batch.flatten(), {})
    path = write_progress(tmp_path / "progress.parquet", *episodes, column=column)
    with pytest.raises(ValueError, match=words):
        make(path, tmp_path / "data.safetensors")
