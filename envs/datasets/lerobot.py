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

ENDS = ("next.terminated", "next.success", "next.done")  # what says that an episode ended for good; the first counts
IMAGES = ("image", "video")


def from_lerobot(folder: Path, frame_size: int = 0, camera: str = "") -> Dataset:
    """The data set in a folder; raises as `envs.datasets.read`."""
    try:
        info = json.loads(read_text(folder / "meta" / "info.json"))
        features = {name: (str(one["dtype"]), tuple(one["shape"])) for name, one in info["features"].items()}
        version, fps = str(info["codebase_version"]), float(info["fps"])
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder}/meta/info.json is not LeRobot's ({type(error).__name__}: {error})") from None
    if version[:2] not in ("v2", "v3"):
        raise ValueError(f"{folder} is of LeRobot's version {version}; versions 2 and 3 are read")
    cameras = [name for name, (dtype, _) in features.items() if dtype in IMAGES]
    unseen = (*IMAGES, "string")
    seen = [name for name, (dtype, _) in features.items() if name.startswith("observation.") and dtype not in unseen]
    if not seen or "action" not in features:
        raise ValueError(f"{folder} has the features {', '.join(features)}; it needs an observation.* and an action")
    end = next((name for name in ENDS if name in features), "")
    names = ["episode_index", "frame_index", "action", *seen, *(n for n in ("next.reward", end) if n in features)]
    if frame_size:
        if (camera := camera or next(iter(cameras), "")) not in cameras:
            raise ValueError(f"camera={camera} is none of {folder}, which has {', '.join(cameras) or 'no camera'}")
        refuse_beyond(2 * int(info["total_frames"]) * frame_size**2 * 3, "the frames of this data set")
    stored = frame_size and features[camera][0] == "image"
    tables = [_table(path, [*names, *([camera] if stored else [])]) for path in _files(folder / "data")]
    shapes = {name: features[name][1] for name in ("action", *seen)}
    rows = {name: _column(folder, tables, name, shapes.get(name, ())) for name in names}
    if shapes["action"] == (1,) and rows["action"].dtype.kind in "iu":  # a choice is stored as a vector of one
        rows["action"] = rows["action"][:, 0]
    cells = [cell for table in tables for cell in table[camera].to_pylist()] if stored else None
    videos = _places(folder, camera, fps) if frame_size and not stored else {}
    boxes = {name.removeprefix("observation."): _box(rows[name]) for name in seen}
    notes = [f"an episode ended for good where {end} says so" if end else "nothing says that an episode ended for good"]
    notes[0] += "; of others the last action is left out, as its outcome is not stored"
    if "next.reward" not in features:
        notes.append("there is no next.reward, so all rewards are 0")
    return Dataset(
        functools.partial(_episodes, rows, seen, end, functools.partial(_with_frames, frame_size, cells, videos)),
        spaces.Dict(boxes) if len(boxes) > 1 else boxes[seen[0].removeprefix("observation.")],
        _box(rows["action"]),
        about={"dataset": folder.name, "tasks": _tasks(folder)},
        notes=notes,
    )


def _episodes(
    rows: dict[str, np.ndarray], seen: list[str], end: str, framed: Callable[[StoredEpisode, int, np.ndarray], Any]
) -> Iterator[StoredEpisode]:
    order = np.lexsort((rows["frame_index"], rows["episode_index"]))
    numbers, starts = np.unique(rows["episode_index"][order], return_index=True)
    for number, at in zip(numbers, np.split(order, starts[1:])):
        terminated = rows[end][at].astype(bool) if end else np.zeros(len(at), bool)
        steps = len(at) if terminated[-1] else len(at) - 1
        if not steps:
            continue
        truncated = np.zeros(steps, bool)
        truncated[-1] = not terminated[-1]
        shown, acted = at[np.minimum(np.arange(steps + 1), len(at) - 1)], at[:steps]
        obs: Any = {name.removeprefix("observation."): rows[name][shown] for name in seen}
        obs = obs if len(obs) > 1 else next(iter(obs.values()))
        reward = rows["next.reward"][acted] if "next.reward" in rows else np.zeros(steps)
        stored = StoredEpisode(obs, rows["action"][acted], reward, terminated[:steps], truncated)
        yield framed(stored, int(number), shown)


def _with_frames(
    size: int, cells: list[Any] | None, videos: dict[int, Any], stored: StoredEpisode, number: int, shown: np.ndarray
) -> StoredEpisode:
    """An episode with the images that its observations have in rows, or in its video; without for size 0."""
    if not size:
        return stored
    if cells is not None:
        return stored._replace(frame=np.stack([_decoded(cells[row], size) for row in shown]))
    path, first = videos.get(number, (Path(f"of episode {number}"), 0))
    last = len(np.unique(shown))
    images = _video(path, size)[first : first + last] if path.is_file() else np.empty(0)
    if len(images) < last:
        raise ValueError(f"the video {path} has {len(images)} of the {last} images of episode {number}")
    return stored._replace(frame=images[np.minimum(np.arange(len(shown)), last - 1)])


def _column(folder: Path, tables: list[Any], name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A column of all rows, (N, *shape)."""
    try:
        return np.concatenate([_array(table[name], shape) for table in tables])
    except (ValueError, KeyError) as error:
        raise ValueError(f"the column {name} of {folder} is not what meta/info.json says ({error})") from None


def _files(folder: Path) -> list[Path]:
    if not (found := sorted(folder.glob("**/*.parquet"))):
        raise ValueError(f"{folder} has no Parquet file; is the data set whole?")
    return found


def _table(path: Path, columns: list[str] | None = None) -> Any:
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
    values = arrow.concat_arrays(values.chunks) if isinstance(values, arrow.ChunkedArray) else values
    while isinstance(values, arrow.ListArray | arrow.LargeListArray | arrow.FixedSizeListArray):
        values = values.flatten()
    return values.to_numpy(zero_copy_only=False).reshape(len(column), *shape)


def _box(values: np.ndarray) -> spaces.Space:
    """The space that recorded numbers are in, (N, *shape); whole ones (N,) are choices."""
    if values.dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, values.shape[1:], values.dtype.type)
    if values.ndim == 1:
        return spaces.Discrete(int(values.max()) + 1)
    low, high = (0, 1) if values.dtype.kind == "b" else (int(values.min()), int(values.max()))
    return spaces.Box(low, high, values.shape[1:], np.int64)


def _tasks(folder: Path) -> list[str]:
    lines, tables = folder / "meta" / "tasks.jsonl", folder / "meta" / "tasks.parquet"
    if lines.is_file():
        return [str(json.loads(line)["task"]) for line in read_text(lines).splitlines() if line]
    if tables.is_file():
        found = _table(tables).to_pydict()
        return [str(task) for task in found.get("task", found.get("__index_level_0__", []))]
    return []


def _places(folder: Path, camera: str, fps: float) -> dict[int, tuple[Path, int]]:
    """Episode -> the video it is in, and the image there that it begins with."""
    found = {}
    for path in (folder / "videos").glob("*/*/episode_*.mp4"):  # version 2: one each
        if path.parent.name == camera:
            found[int(path.stem.rpartition("_")[2])] = path, 0
    if (folder / "meta" / "episodes").is_dir():
        keys = [f"videos/{camera}/{key}" for key in ("chunk_index", "file_index", "from_timestamp")]
        for path in _files(folder / "meta" / "episodes"):
            table = _table(path, ["episode_index", *keys]).to_pydict()
            for number, chunk, file, begin in zip(*(table[key] for key in ("episode_index", *keys))):
                video = folder / "videos" / Path(camera).name / f"chunk-{chunk:03d}" / f"file-{file:03d}.mp4"
                found[number] = video, round(begin * fps)
    return found


def _decoded(cell: Any, size: int) -> np.ndarray:
    from PIL import Image

    if not (cell or {}).get("bytes"):
        raise ValueError("an image is not in the Parquet file but apart; leave frames= out")
    return resize(np.asarray(Image.open(io.BytesIO(cell["bytes"]), formats=("PNG", "JPEG")).convert("RGB")), size)


@functools.lru_cache(maxsize=1)  # version 3 has many episodes in one file
def _video(path: Path, size: int) -> np.ndarray:
    """All images of a video, uint8 (T, size, size, 3)."""
    import imageio_ffmpeg

    reader = imageio_ffmpeg.read_frames(str(regular(path.resolve())), input_params=["-f", "mov"])
    width, height = next(reader)["size"]
    return np.stack([resize(np.frombuffer(raw, np.uint8).reshape(height, width, 3), size) for raw in reader])
