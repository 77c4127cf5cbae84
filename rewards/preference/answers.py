"""A person's answers in a file, with the segments that they are about, so that any later run can learn from them.

One JSON object a line: `first` and `second` (fingerprints of the segments), `label` in [0, 1], or null where the
question was skipped or an answer taken back; `created`, seconds since 1970; and `segments`, both of them as a reward
reads them, compressed. The last line about a pair counts. A line is on the disk before the answer is confirmed; one
that a crash cut off is dropped, and one that lacks nothing but its newline is kept. The file names no code: reading it
executes nothing.
"""

import base64
import hashlib
import json
import math
import os
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from filelock import FileLock
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from envs.transitions import Transitions, map_obs, stack
from envs.types import MODALITIES
from lodestar.files import make_parent, open_to_append, refuse_link
from lodestar.state import pack, unpack
from rewards.llm.store import read_rows

Pair: TypeAlias = tuple[str, str]
# The extra that holds the numbers of pictures, which mean something in one process alone.
PICTURE_NUMBERS = "picture"
MAX_PAIR_BYTES = 1 << 28


class KeptAnswers:
    """The answers in a file, and which of them a reward has learned from."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        # The label is NaN for a question that was skipped or taken back.
        self.labels: dict[Pair, float] = {}
        self.segments: dict[Pair, str] = {}
        # A dict without values is a set that keeps its order, as a checkpoint needs it.
        self.taken: dict[Pair, None] = {}
        # The number of answers about segments of another form than those of this run.
        self.unfit = 0
        self._ends_in_newline = False
        if self.path.is_file():
            wrong = "no label; it needs first, second and a label in [0, 1] or null"
            for pair, label, segments in read_rows(self.path, _parse_row, wrong):
                self._set_label(pair, label, segments)
        self.has_segments = bool(self.segments)
        self._unchecked = list(self.segments)

    def __len__(self) -> int:
        return sum(map(self.has_label, self.segments))

    def has_label(self, pair: Pair) -> bool:
        return not math.isnan(self.labels.get(pair, math.nan))

    def append(self, pair: Pair, label: float, segments: str = "") -> None:
        """Keep an answer, on the disk when this returns; OSError if it cannot be written."""
        row = {
            "first": pair[0],
            "second": pair[1],
            "label": None if math.isnan(label) else label,
            "created": round(time.time(), 3),
        }
        if segments:
            row["segments"] = segments
        make_parent(self.path)
        lock = Path(f"{self.path}.lock")
        refuse_link(lock, "file")
        with FileLock(lock, timeout=60), open_to_append(self.path) as file:
            if not self._ends_in_newline:
                self._end_last_line(file)
            # It stays False if the disk fills up while the line is written.
            self._ends_in_newline = False
            file.write(json.dumps(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
            self._ends_in_newline = True
        self._set_label(pair, label, segments)

    def _end_last_line(self, file: BinaryIO) -> None:
        """Let the next line begin behind a complete one, which an editor may have left without its end."""
        data = self.path.read_bytes()
        start = data.rfind(b"\n") + 1
        if _is_row(data[start:]):
            file.write(b"\n")
        else:
            # What a crash, or a full disk, cut off would spoil the line behind it.
            file.truncate(start)

    def drop_segments_unlike(self, like: Transitions) -> None:
        """Leave out what the file held about segments of another form than `like` (L, B)."""
        if not self._unchecked:
            return
        form = _array_forms(drop_unread_fields(like[:, 0]))
        for pair in self._unchecked:
            both = unpack_segments(self.segments[pair])
            if both is None or _array_forms(both[0]) != form:
                self.unfit += self.has_label(pair)
                del self.segments[pair]
        self._unchecked = []

    def take(self, like: Transitions, most: int, held: Pair | None = None) -> tuple[Transitions, Transitions, Any]:
        """At most `most` answers not taken before, and not the pair `held`: segments (L, B) twice, labels (B,)."""
        self.drop_segments_unlike(like)
        unseen = []
        for pair in self.segments:
            if pair not in self.taken and pair != held and self.has_label(pair):
                unseen.append(pair)
        new = unseen[:most]
        if not new:
            return like[:, :0], like[:, :0], np.zeros(0, np.float32)
        self.taken.update(dict.fromkeys(new))
        labels = [self.labels[pair] for pair in new]
        # Segments of another form are gone, so that each can be unpacked: (2, L).
        pairs: list[Any] = [unpack_segments(self.segments[pair]) for pair in new]
        sides = stack(pairs).map(lambda x: np.moveaxis(x, 0, 2))
        return sides[0], sides[1], np.array(labels, np.float32)

    def notes(self) -> list[str]:
        if not self.unfit:
            return []
        return [f"{self.unfit} answers in {self.path} are about other segments (another environment, length or of)"]

    def state_dict(self) -> dict[str, Any]:
        return {"taken": list(map(list, self.taken))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.taken = dict.fromkeys(map(tuple, state.get("taken", ())))

    def _set_label(self, pair: Pair, label: float, segments: str) -> None:
        self.labels[pair] = label
        if segments:
            self.segments[pair] = segments


def drop_unread_fields(segments: Transitions) -> Transitions:
    """What a reward learns from: no pictures, no texts, and no observations where an embedding stands for them."""
    extras = {}
    for name, value in segments.extras.items():
        if name != PICTURE_NUMBERS:
            extras[name] = value
    absent: dict[str, Any] = {"obs": None}
    for name in MODALITIES:
        absent |= {name: None, f"obs_{name}": None}
    if extras:
        absent["next_obs"] = None
    return segments.replace(extras=extras, **absent)


def pack_segments(first: Transitions, second: Transitions) -> str:
    """Two segments (L,) as a text; `unpack_segments` is the inverse."""
    tree, arrays = pack(vars(stack([drop_unread_fields(first), drop_unread_fields(second)])))
    data = json.dumps(tree).encode() + b"\n" + safetensors.save(arrays)
    return base64.b64encode(zlib.compress(data, 9)).decode()


def unpack_segments(text: str) -> Transitions | None:
    """The segments (2, L) in a text; None if there are none."""
    try:
        data = zlib.decompressobj().decompress(base64.b64decode(text), MAX_PAIR_BYTES)
        tree, _, arrays = data.partition(b"\n")
        return Transitions(**unpack(json.loads(tree), safetensors.load(arrays)))
    except (ValueError, TypeError, LookupError, zlib.error, SafetensorError, RecursionError):
        return None


def fingerprint(segments: Transitions) -> list[str]:
    """A key for each of B segments (L, B) in a file of labels: 16 hexadecimal digits of its states and actions."""
    columns: list[np.ndarray] = []
    for part in (segments.obs, segments.action, segments.next_obs):
        map_obs(columns.append, part)
    keys = []
    for b in range(segments.shape[1]):
        data = b"".join(column[:, b].tobytes() for column in columns)
        keys.append(hashlib.sha256(data).hexdigest()[:16])
    return keys


def _array_forms(segment: Transitions) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of each array of a segment, by its name."""
    _, arrays = pack(vars(segment))
    return {name: (array.shape, array.dtype.str) for name, array in arrays.items()}


def _is_row(line: bytes) -> bool:
    """Whether a line is an answer, as `read_rows` reads it."""
    try:
        _parse_row(json.loads(line))
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError):
        return False
    return True


def _parse_row(row: Mapping[str, Any]) -> tuple[Pair, float, str]:
    """Pair, label and packed segments of a line, also of one that an `AnswerStore` wrote."""
    names = ("text", "other", "value") if "text" in row else ("first", "second", "label")
    first, second, label = (row[name] for name in names)
    label = math.nan if label is None else float(label)
    segments = row.get("segments", "")
    if label < 0 or label > 1 or not isinstance(segments, str):
        raise ValueError("no label")
    return (str(first), str(second)), label, segments
