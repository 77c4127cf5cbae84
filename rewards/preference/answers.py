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
from lodestar.files import appended, refuse_link
from lodestar.state import pack, unpack
from rewards.llm.store import read_rows

Pair: TypeAlias = tuple[str, str]
PICTURE = "picture"  # the extra that holds the numbers of pictures, which mean something in one process alone
LARGEST = 1 << 28  # bytes of a pair
WRONG = "no label; it needs first, second and a label in [0, 1] or null"


class KeptAnswers:
    """The answers in a file, and which of them a reward has taken."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.labels: dict[Pair, float] = {}  # NaN for a question that was skipped or taken back
        self.segments: dict[Pair, str] = {}
        self.taken: dict[Pair, None] = {}
        self._whole = False  # whether the file is known to end in a whole line
        self.unfit = 0  # answers about segments of another form than those of this run
        if self.path.is_file():
            for pair, label, segments in read_rows(self.path, _row, WRONG):
                self._put(pair, label, segments)
        self.has_segments, self._read = bool(self.segments), list(self.segments)

    def __len__(self) -> int:
        return sum(map(self.has_label, self.segments))

    def has_label(self, pair: Pair) -> bool:
        return not math.isnan(self.labels.get(pair, math.nan))

    def append(self, pair: Pair, label: float, segments: str = "") -> None:
        """Keep an answer, on the disk when this returns; OSError if it cannot be written."""
        row: dict[str, Any] = {"first": pair[0], "second": pair[1]}
        row |= {"label": None if math.isnan(label) else label, "created": round(time.time(), 3)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = Path(f"{self.path}.lock")
        refuse_link(lock, "file")
        with FileLock(lock, timeout=60), appended(self.path) as file:
            if not self._whole:
                self._end_last_line(file)
            self._whole = False
            file.write(json.dumps(row | ({"segments": segments} if segments else {})).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
            self._whole = True
        self._put(pair, label, segments)

    def _end_last_line(self, file: BinaryIO) -> None:
        """Let the next line begin behind a whole one, which an editor may have left without its end."""
        data = self.path.read_bytes()
        start = data.rfind(b"\n") + 1
        if _is_row(data[start:]):
            file.write(b"\n")
        else:
            # What a crash, or a full disk, cut off would spoil the line behind it.
            file.truncate(start)

    def fit(self, like: Transitions) -> None:
        """Leave out what the file held about segments of another form than `like` (L, B)."""
        if not self._read:
            return
        form = _form(lean(like[:, 0]))
        for pair in self._read:
            both = unpacked(self.segments[pair])
            if both is None or _form(both[0]) != form:
                self.unfit += self.has_label(pair)
                del self.segments[pair]
        self._read = []

    def take(self, like: Transitions, most: int, held: Pair | None = None) -> tuple[Transitions, Transitions, Any]:
        """At most `most` answers not taken before, and not the pair `held`: segments (L, B) twice, labels (B,)."""
        self.fit(like)
        new = [pair for pair in self.segments if pair not in self.taken and pair != held and self.has_label(pair)]
        new = new[:most]
        if not new:
            return like[:, :0], like[:, :0], np.zeros(0, np.float32)
        self.taken.update(dict.fromkeys(new))
        pairs = stack([both for pair in new if (both := unpacked(self.segments[pair])) is not None])
        sides = (pairs.map(lambda x, side=side: x[:, side].swapaxes(0, 1)) for side in (0, 1))  # type: ignore[misc]
        return *sides, np.array([self.labels[pair] for pair in new], np.float32)  # type: ignore[return-value]

    def notes(self) -> list[str]:
        left = f"{self.unfit} answers in {self.path} are about other segments (another environment, length or of)"
        return [left] if self.unfit else []

    def state_dict(self) -> dict[str, Any]:
        return {"taken": [list(pair) for pair in self.taken]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.taken = {(first, second): None for first, second in state.get("taken", ())}

    def _put(self, pair: Pair, label: float, segments: str) -> None:
        self.labels[pair] = label
        if segments:
            self.segments[pair] = segments


def lean(segments: Transitions) -> Transitions:
    """What a reward learns from: no pictures, no texts, and no observations where an embedding stands for them."""
    extras = {name: value for name, value in segments.extras.items() if name != PICTURE}
    absent = dict.fromkeys(("obs", *MODALITIES, *(f"obs_{name}" for name in MODALITIES)))
    return segments.replace(extras=extras, **absent, **({"next_obs": None} if extras else {}))


def packed(first: Transitions, second: Transitions) -> str:
    """Two segments (L,) as a text; `unpacked` is the inverse."""
    tree, arrays = pack(vars(stack([lean(first), lean(second)])))
    return base64.b64encode(zlib.compress(json.dumps(tree).encode() + b"\n" + safetensors.save(arrays), 9)).decode()


def unpacked(text: str) -> Transitions | None:
    """The segments (2, L) in a text; None if there are none."""
    try:
        tree, _, arrays = zlib.decompressobj().decompress(base64.b64decode(text), LARGEST).partition(b"\n")
        return Transitions(**unpack(json.loads(tree), safetensors.load(arrays)))
    except (ValueError, TypeError, LookupError, zlib.error, SafetensorError, RecursionError):
        return None


def fingerprint(segments: Transitions) -> list[str]:
    """A key for each of B segments (L, B) in a file of labels: 16 hexadecimal digits of its states and actions."""
    columns: list[np.ndarray] = []
    for part in (segments.obs, segments.action, segments.next_obs):
        map_obs(columns.append, part)
    rows = (b"".join(np.ascontiguousarray(x[:, b]).tobytes() for x in columns) for b in range(segments.shape[1]))
    return [hashlib.sha256(row).hexdigest()[:16] for row in rows]


def _form(segment: Transitions) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (array.shape, array.dtype.str) for name, array in pack(vars(segment))[1].items()}


def _is_row(line: bytes) -> bool:
    """Whether a line is an answer, as `read_rows` reads it."""
    try:
        _row(json.loads(line))
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError):
        return False
    return True


def _row(row: Mapping[str, Any]) -> tuple[Pair, float, str]:
    first, second, name = ("text", "other", "value") if "text" in row else ("first", "second", "label")
    label, segments = row[name], row.get("segments", "")
    label = math.nan if label is None else float(label)
    if label < 0 or label > 1 or not isinstance(segments, str):
        raise ValueError("no label")
    return (str(row[first]), str(row[second])), label, segments
