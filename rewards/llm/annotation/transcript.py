"""The labels of a run in order of delivery: written as they are delivered, and delivered again by a replay.

One JSON object a line, in the order of delivery:

    {"now": 2048, "text": "You kill the newt!", "other": null, "value": 1.0, "judge": "rules nethack 1"}

`now` is the environment step at which the run got it, `other` the second text of a pair, a `value` of null unsure.
A file whose last line was cut off by a crash is read up to that line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from rewards.llm.store import Item, label_in, read_rows


class Transcript:
    """The file that a run writes.

    Args:
        path: the file; its folder is made. What stands there from another run is moved to `path.1`, `path.2` ...
        say: receives a sentence when something is wrong with the file; the run continues without it.

    Attributes:
        lines: how many lines of it belong to this run; set it before the first line to resume from a checkpoint, and
            what was written after that is cut off.
    """

    def __init__(self, path: str | Path, say: Callable[[str], None]) -> None:
        self.path, self.lines = Path(path), 0
        self._say = say
        self._file: IO[str] | None = None
        self._broken = False

    def write(self, now: int, delivered: Sequence[tuple[Item, float]], judge: str) -> None:
        """Append what was delivered at step `now`, and hand it to the operating system."""
        if self._broken or not delivered:
            return
        try:
            if self._file is None:
                self._file = self._open()
            for item, value in delivered:
                text, other = (item, None) if isinstance(item, str) else item
                line = {"now": int(now), "text": text, "other": other, "value": None if value != value else value}
                self._file.write(json.dumps({**line, "judge": judge}) + "\n")
            self._file.flush()
            self.lines += len(delivered)
        except OSError as error:
            self._broken = True
            self._say(f"the transcript {self.path} cannot be written ({error}); the run continues without it")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> IO[str]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.lines:
            self._cut()
        elif self.path.exists() and self.path.stat().st_size:
            number = 1
            while (aside := Path(f"{self.path}.{number}")).exists():
                number += 1
            os.rename(self.path, aside)
            self._say(f"the transcript of an earlier run was moved to {aside}")
        return open(self.path, "a", encoding="ascii")

    def _cut(self) -> None:
        """Leave only the lines before the checkpoint."""
        whole = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
        kept = [line for line in whole[: self.lines] if line.endswith(b"\n")]
        if len(kept) < self.lines:
            self._say(
                f"the transcript {self.path} holds {len(kept)} of the {self.lines} labels that the run has had; "
                "a replay of it will differ from the run"
            )
            self.lines = len(kept)
        if self.path.exists():
            os.truncate(self.path, sum(map(len, kept)))


def read_transcript(path: str | Path, pairs: bool = False) -> list[tuple[int, Item, float]]:
    """The lines of a transcript: (now, item, value), NaN for unsure; raises ValueError if there is no such file, or a
    line other than a torn last one cannot be used, naming it.
    """

    def parse(row: dict[str, Any]) -> tuple[int, Item, float]:
        item, value = label_in(row)
        if isinstance(item, str) == pairs:
            raise ValueError("the other kind")
        return int(row["now"]), item, value

    kind = "a pair (now, text, other, value)" if pairs else "a text (now, text, value)"
    return list(read_rows(path, parse, f"no label of {kind}; repair or delete the line"))
