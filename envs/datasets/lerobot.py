"""Data sets in LeRobot's format, version 2 or 3: rows in Parquet, images there or in videos.

The format keeps an observation for every action and none after the last one. A last action that ended its episode for
good is kept, with its own observation in place of the missing one, from which nothing is estimated then; another one,
whose outcome would be read, is left out, and the episode counts as truncated. What ends for good: `next.terminated` if
there is one, else `next.success`, else `next.done`.
"""

import functools
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from envs.datasets.dataset import Dataset, StoredEpisode
from envs.render import resize
from lodestar.files import read_text, regular
from lodestar.memory import refuse_beyond

# The features that say that an episode ended for good; the first that a data set has counts.
END_FEATURES = ("next.terminated", "next.success", "next.done")
# The column of a progress file that is read: the first that is there.
PROGRESS_COLUMNS = ("progress_sparse", "progress", "progress_dense")
IMAGE_TYPES = ("image", "video")
OBSERVATION = "observation."
# Number of an episode, rows of its observations (T + 1,) -> their images, uint8 (T + 1, H, W, 3).
FrameReader = Callable[[int, np.ndarray], np.ndarray]
# Name -> (type, shape).
Features = dict[str, tuple[str, tuple[int, ...]]]


def from_lerobot(folder: Path, frame_size: int = 0, camera: str = "") -> Dataset:
    """The data set in a folder; raises as `envs.datasets.read`."""
    info, features = _read_info(folder)
    observations = []
    for name, (dtype, _) in features.items():
        if name.startswith(OBSERVATION) and dtype not in (*IMAGE_TYPES, "string"):
            observations.append(name)
    if not observations or "action" not in features:
        raise ValueError(f"{folder} has the features {', '.join(features)}; it needs an observation.* and an action")
    columns = ["episode_index", "frame_index", "action", *observations]
    if "next.reward" in features:
        columns.append("next.reward")
    end = ""
    for name in END_FEATURES:
        if name in features:
            end = name
            columns.append(end)
            break

    cameras: list[str] = []
    if frame_size:
        cameras = [_choose_camera(folder, features, name) for name in camera.split(",")]
        frame_bytes = len(cameras) * frame_size**2 * 3
        refuse_beyond(2 * int(info["total_frames"]) * frame_bytes, "the frames of this data set")
    # Images are read only where they are wanted: they are much larger than all else.
    cameras_in_rows = [name for name in cameras if features[name][0] == "image"]
    table_columns = [*columns, *cameras_in_rows]
    tables = [_read_table(path, table_columns) for path in _parquet_files(folder / "data")]
    rows = {}
    for name in columns:
        shape: tuple[int, ...] = ()
        if name in ("action", *observations):
            shape = features[name][1]
        rows[name] = _column(folder, tables, name, shape)
    if features["action"][1] == (1,) and rows["action"].dtype.kind in "iu":
        # A choice is stored as a vector of one.
        rows["action"] = rows["action"][:, 0]

    readers: list[FrameReader] = []
    for name in cameras:
        if name in cameras_in_rows:
            cells = []
            for table in tables:
                cells += table[name].to_pylist()
            readers.append(functools.partial(_frames_in_rows, frame_size, cells))
        else:
            videos = _video_places(folder, name, info["fps"])
            readers.append(functools.partial(_frames_in_videos, frame_size, videos))
    boxes = {name.removeprefix(OBSERVATION): _box(rows[name]) for name in observations}
    observation_space: spaces.Space = spaces.Dict(boxes)
    if len(boxes) == 1:
        observation_space = boxes.popitem()[1]
    return Dataset(
        functools.partial(_episodes, rows, observations, end, readers),
        observation_space,
        _box(rows["action"]),
        about={"dataset": folder.name, "tasks": _tasks(folder)},
        notes=_notes(features, end),
    )


def read_progress(path: Path) -> dict[int, np.ndarray]:
    """Episode -> the progress at each of its frames, float32 (T,): a file that a reward model of LeRobot wrote."""
    table = _read_table(path)
    columns = [name for name in PROGRESS_COLUMNS if name in table.column_names]
    if not columns or not {"episode_index", "frame_index"} <= set(table.column_names):
        has = ", ".join(table.column_names)
        raise ValueError(
            f"{path} has the columns {has}; a progress file has episode_index, frame_index, {PROGRESS_COLUMNS[0]}"
        )
    episode = table["episode_index"].to_numpy()
    frame = table["frame_index"].to_numpy()
    values = np.asarray(table[columns[0]].to_numpy(), np.float32)
    outside = values[(values < 0) | (values > 1)]
    if len(outside):
        raise ValueError(f"{path}: {columns[0]} holds {outside[0]:g}; progress is in [0, 1], so scale it first")
    progress = {}
    for number in np.unique(episode).tolist():
        rows = np.flatnonzero(episode == number)
        progress[number] = values[rows[np.argsort(frame[rows])]]
    return progress


def _read_info(folder: Path) -> tuple[dict[str, Any], Features]:
    """What `meta/info.json` says, and its features."""
    try:
        info = json.loads(read_text(folder / "meta" / "info.json"))
        features = {}
        for name, feature in info["features"].items():
            features[name] = (str(feature["dtype"]), tuple(feature["shape"]))
        version = str(info["codebase_version"])
        info["fps"] = float(info["fps"])
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder}/meta/info.json is not LeRobot's ({type(error).__name__}: {error})") from None
    if version[:2] not in ("v2", "v3"):
        raise ValueError(f"{folder} is of LeRobot's version {version}; versions 2 and 3 are read")
    return info, features


def _choose_camera(folder: Path, features: Features, camera: str) -> str:
    cameras = [name for name, (dtype, _) in features.items() if dtype in IMAGE_TYPES]
    if not camera and cameras:
        camera = cameras[0]
    if camera not in cameras:
        raise ValueError(f"camera={camera} is none of {folder}, which has {', '.join(cameras) or 'no camera'}")
    return camera


def _notes(features: Features, end: str) -> list[str]:
    ends = "nothing says that an episode ended for good"
    if end:
        ends = f"an episode ended for good where {end} says so"
    notes = [f"{ends}; of others the last action is left out, as its outcome is not stored"]
    if "next.reward" not in features:
        notes.append("there is no next.reward, so all rewards are 0")
    return notes


def _episodes(
    rows: dict[str, np.ndarray],
    observations: list[str],
    end: str,
    readers: list[FrameReader],
) -> Iterator[StoredEpisode]:
    order = np.lexsort((rows["frame_index"], rows["episode_index"]))
    numbers, starts = np.unique(rows["episode_index"][order], return_index=True)
    for number, episode_rows in zip(numbers, np.split(order, starts[1:])):
        length = len(episode_rows)
        terminated = np.zeros(length, bool)
        if end:
            terminated = rows[end][episode_rows].astype(bool)
        # The outcome of an action that did not end the episode for good stands in the next row.
        steps = length
        if not terminated[-1]:
            steps -= 1
        if not steps:
            continue
        truncated = np.zeros(steps, bool)
        truncated[-1] = not terminated[-1]
        obs_rows = episode_rows[np.minimum(np.arange(steps + 1), length - 1)]
        action_rows = episode_rows[:steps]
        obs: Any = {name.removeprefix(OBSERVATION): rows[name][obs_rows] for name in observations}
        if len(obs) == 1:
            obs = obs.popitem()[1]
        reward = np.zeros(steps)
        if "next.reward" in rows:
            reward = rows["next.reward"][action_rows]
        action = rows["action"][action_rows]
        frame = None
        if readers:
            # The images of all cameras side by side.
            frame = np.concatenate([read(int(number), obs_rows) for read in readers], 2)
        yield StoredEpisode(obs, action, reward, terminated[:steps], truncated, frame)


def _frames_in_rows(size: int, cells: list[Any], number: int, obs_rows: np.ndarray) -> np.ndarray:
    return np.stack([_decode_image(cells[row], size) for row in obs_rows])


def _frames_in_videos(size: int, videos: dict[int, tuple[Path, int]], number: int, obs_rows: np.ndarray) -> np.ndarray:
    path, first = videos.get(number, (Path(f"of episode {number}"), 0))
    # An episode that ended for good shows its last row twice, but its video has it once.
    count = len(np.unique(obs_rows))
    images = np.empty(0)
    if path.is_file():
        images = _read_video(path, size)[first : first + count]
    if len(images) < count:
        raise ValueError(f"the video {path} has {len(images)} of the {count} images of episode {number}")
    return images[np.minimum(np.arange(len(obs_rows)), count - 1)]


def _column(folder: Path, tables: list[Any], name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A column of all rows, (N, *shape)."""
    try:
        return np.concatenate([_array(table[name], shape) for table in tables])
    except (ValueError, KeyError) as error:
        raise ValueError(f"the column {name} of {folder} is not what meta/info.json says ({error})") from None


def _parquet_files(folder: Path) -> list[Path]:
    paths = sorted(folder.glob("**/*.parquet"))
    if not paths:
        raise ValueError(f"{folder} has no Parquet file; is the data set whole?")
    return paths


def _read_table(path: Path, columns: list[str] | None = None) -> Any:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise ImportError(f"{path} is read with pyarrow; pip install 'lodestar-rl[lerobot]'") from None
    try:
        return parquet.ParquetFile(regular(path.resolve())).read(columns)
    except ArrowException as error:
        raise ValueError(f"{path} is no Parquet file that can be read ({error})") from None


def _array(column: Any, shape: tuple[int, ...]) -> np.ndarray:
    import pyarrow as arrow

    values = column.combine_chunks()
    if isinstance(values, arrow.ChunkedArray):
        values = arrow.concat_arrays(values.chunks)
    while isinstance(values, arrow.ListArray | arrow.LargeListArray | arrow.FixedSizeListArray):
        values = values.flatten()
    return values.to_numpy(zero_copy_only=False).reshape(len(column), *shape)


def _box(values: np.ndarray) -> spaces.Space:
    """The space that recorded numbers are in, (N, *shape); whole ones (N,) are choices."""
    if values.dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, values.shape[1:], values.dtype.type)
    if values.ndim == 1:
        return spaces.Discrete(int(values.max()) + 1)
    if values.dtype.kind == "b":
        return spaces.Box(0, 1, values.shape[1:], np.int64)
    return spaces.Box(int(values.min()), int(values.max()), values.shape[1:], np.int64)


def _tasks(folder: Path) -> list[str]:
    lines = folder / "meta" / "tasks.jsonl"
    if lines.is_file():
        return [str(json.loads(line)["task"]) for line in read_text(lines).splitlines() if line]
    table = folder / "meta" / "tasks.parquet"
    if table.is_file():
        columns = _read_table(table).to_pydict()
        # pandas stores the index, which the tasks may be, in a column of this name.
        return list(map(str, columns.get("task", columns.get("__index_level_0__", []))))
    return []


def _video_places(folder: Path, camera: str, fps: float) -> dict[int, tuple[Path, int]]:
    """Episode -> the video it is in, and the image there that it begins with."""
    places = {}
    # Version 2 has a video for each episode.
    for path in (folder / "videos").glob("*/*/episode_*.mp4"):
        if path.parent.name == camera:
            number = int(path.stem.rpartition("_")[2])
            places[number] = (path, 0)
    # Version 3 joins episodes to larger videos, and says where each begins.
    episodes = folder / "meta" / "episodes"
    if episodes.is_dir():
        prefix = f"videos/{camera}/"
        keys = [prefix + key for key in ("chunk_index", "file_index", "from_timestamp")]
        keys.insert(0, "episode_index")
        camera_folder = folder / "videos" / Path(camera).name
        for path in _parquet_files(episodes):
            columns = _read_table(path, keys).to_pydict()
            for number, chunk, file, begin in zip(*map(columns.get, keys)):
                video = camera_folder / f"chunk-{chunk:03d}" / f"file-{file:03d}.mp4"
                places[number] = (video, round(begin * fps))
    return places


def _decode_image(cell: Any, size: int) -> np.ndarray:
    from PIL import Image

    if not (cell or {}).get("bytes"):
        raise ValueError("an image is not in the Parquet file but apart; leave frames= out")
    image = Image.open(io.BytesIO(cell["bytes"]), formats=("PNG", "JPEG"))
    return resize(np.asarray(image.convert("RGB")), size)


# Version 3 has many episodes in one file, so the last one is kept.
@functools.lru_cache(maxsize=1)
def _read_video(path: Path, size: int) -> np.ndarray:
    """All images of a video, uint8 (T, size, size, 3)."""
    try:
        import imageio_ffmpeg
    except ImportError:
        raise ImportError(f"{path} is read with imageio-ffmpeg; pip install 'lodestar-rl[lerobot]'") from None
    source = str(regular(path.resolve()))
    reader = imageio_ffmpeg.read_frames(source, input_params=["-f", "mov"])
    width, height = next(reader)["size"]
    images = []
    for raw in reader:
        image = np.frombuffer(raw, np.uint8).reshape(height, width, 3)
        images.append(resize(image, size))
    return np.stack(images)
