"""Answers of judges, kept in one SQLite file that any number of runs share, so that no question is asked twice.

    labels(key, text, other, value, judge, raw, created, latency, tokens)

`key` is the SHA-256 of the judge's identity (model, version of its prompt and schema, goal), the question's text and
the second text of a pair. `value` is in [0, 1], NULL for unsure and for answers in words, which stand in `raw`.
Failures are never stored. Of two answers to one question the first stays. `created` is in seconds since 1970, `latency`
in seconds. Transcripts and files written by people hold the same columns as JSON lines, which `read_rows` reads, too.

A row whose value is no number in [0, 1], or whose words are no text, is no answer, and the next one replaces it. A file
that is removed while it is open is written again from what this process still holds. A broken file is moved to FILE.bad
and started afresh. A full disk or a read-only file is reported once, and the run continues without what could not be
kept. When it fails: SQLite's write-ahead log needs a file system of this machine; runs on several need a file each.
"""

import csv
import hashlib
import json
import math
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from filelock import FileLock

from lodestar.files import LARGE, make_parent, open_file, open_text_file

# A text, or a pair of which the better is asked for.
Item: TypeAlias = str | tuple[str, str]
T = TypeVar("T")

# What is more than so many tokens or seconds is none.
MAX_STORED_NUMBER = 2.0**53
# How many characters of a judge's reasons are kept.
MAX_REASON_CHARACTERS = 2000
CREATE_LABELS = """CREATE TABLE IF NOT EXISTS labels (key TEXT PRIMARY KEY, text TEXT NOT NULL, other TEXT, value REAL,
judge TEXT NOT NULL, raw TEXT NOT NULL, created REAL NOT NULL, latency REAL NOT NULL, tokens INTEGER NOT NULL)"""
SOUND = "(labels.value IS NULL OR labels.value BETWEEN 0 AND 1) AND typeof(labels.raw) = 'text'"
LABEL_COLUMNS = ("text", "other", "value", "judge", "raw", "created", "latency", "tokens")


@dataclass
class Label:
    """One answer: the item, its value in [0, 1] or NaN, the judge's words, seconds it took, tokens it cost."""

    item: Item
    value: float = math.nan
    raw: str = ""
    latency: float = 0.0
    tokens: int = 0


class AnswerStore:
    """The file, opened by this process; safe to use from several threads. Its folder is made; "" keeps answers in
    memory. Other processes that write are waited for (`wait`, seconds); `say` receives a sentence when something is
    wrong with the file; of `raw`, `words` characters are kept.
    """

    def __init__(
        self,
        path: str | Path,
        wait: float = 10.0,
        say: Callable[[str], None] | None = None,
        words: int = MAX_REASON_CHARACTERS,
    ) -> None:
        self.path = str(path)
        self.wait = wait
        self.words = words
        self._say = say or (lambda sentence: print(sentence, file=sys.stderr, flush=True))
        self._warned = False
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        # Which file is open.
        self._file: tuple[int, int] | None = None
        try:
            self._open()
        except (sqlite3.Error, OSError) as error:
            self._warn(error)

    def get(self, judge: str, items: Sequence[Item]) -> dict[Item, float]:
        """The values that this judge gave to these items, as far as they are known; NaN for unsure."""
        values = self._run_safely(self._get, judge, items, "value") or {}
        return {item: math.nan if value is None else float(value) for item, value in values.items()}

    def words_of(self, judge: str, items: Sequence[Item]) -> dict[Item, str]:
        return self._run_safely(self._get, judge, items, "raw") or {}

    def put(self, judge: str, labels: Sequence[Label], instead: bool = False) -> None:
        """Keep what a judge answered, `instead` of an answer that is there but makes no sense to the judge."""
        now = time.time()
        rows = [self._row(judge, label, now) for label in labels]
        self._run_safely(self._insert_rows, rows, instead)

    def __len__(self) -> int:
        count = self._run_safely(lambda connection: connection.execute("SELECT count(*) FROM labels").fetchone()[0])
        return count or 0

    def close(self) -> None:
        """Leave one file behind; without this there may be a write-ahead log beside it, which is as safe."""
        # The file may have been removed since the last answer: this writes it again.
        self._run_safely(lambda connection: None)
        self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _row(self, judge: str, label: Label, created: float) -> tuple[Any, ...]:
        text, *others = map(_replace_half_characters, texts_in(label.item))
        other = others[0] if others else None
        value = without_nan(label.value)
        raw = _replace_half_characters(label.raw)[: self.words]
        return key_of(judge, label.item), text, other, value, judge, raw, created, label.latency, label.tokens

    @staticmethod
    def _get(connection: sqlite3.Connection, judge: str, items: Sequence[Item], column: str) -> dict[Item, Any]:
        keys = {key_of(judge, item): item for item in items}
        query = f"SELECT key, {column} FROM labels WHERE key IN (SELECT value FROM json_each(?)) AND {SOUND}"
        rows = connection.execute(query, [json.dumps(list(keys))])
        return {keys[key]: value for key, value in rows}

    @staticmethod
    def _insert_rows(connection: sqlite3.Connection, rows: Iterable[tuple[Any, ...]], instead: bool = False) -> None:
        with connection:
            connection.executemany(
                f"INSERT INTO labels VALUES ({','.join('?' * 9)}) ON CONFLICT (key) DO UPDATE SET "
                f"value = excluded.value, raw = excluded.raw WHERE {int(instead)} OR NOT ({SOUND})",
                rows,
            )

    def _run_safely(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """What `work` returns, or None if the file is broken; a torn file is replaced, and the work tried once more."""
        for _ in range(2):
            if self._connection is None:
                return None
            try:
                with self._lock:
                    self._check_file_in_place()
                    return work(self._connection, *arguments)
            except (sqlite3.OperationalError, OSError) as error:
                # Busy, full or read-only: the file itself is intact.
                self._warn(error)
                return None
            except (sqlite3.DatabaseError, ValueError, TypeError):
                # A torn file can also hold rows that make no sense.
                self._disconnect()
                try:
                    self._open(suspect=True)
                except (sqlite3.Error, OSError) as error:
                    self._warn(error)
        return None

    def _check_file_in_place(self) -> None:
        """See that the file at the path is the one that is open: SQLite writes to a removed one without a word."""
        if self._connection is None or self._file == _identity(self.path):
            return
        rows: list[Any] = []
        # It may be the one that another process moved because it was broken.
        with suppress(sqlite3.Error):
            rows = self._connection.execute("SELECT * FROM labels").fetchall()
        self._disconnect()
        self._open()
        self._insert_rows(self._connection, rows)
        self._say(
            f"the file of answers {self.path} was removed or replaced while it was in use; the {len(rows):,} answers "
            "that it held were written to the new one"
        )

    def _open(self, suspect: bool = False) -> None:
        if not self.path:
            self._connection = self._connect(False)
            return
        make_parent(self.path)
        # With the lock one process alone moves a broken file.
        with FileLock(f"{self.path}.lock", timeout=60):
            # The logs of a file that was removed belong to no other.
            if not Path(self.path).exists():
                self._remove_logs()
            try:
                self._connection = self._connect(suspect)
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError as error:
                bad = f"{self.path}.bad"
                os.replace(self.path, bad)
                self._remove_logs()
                self._say(f"the file of answers {self.path} is broken ({error}); it was moved to {bad}, another begun")
                self._connection = self._connect(False)
            self._file = _identity(self.path)

    def _remove_logs(self) -> None:
        for suffix in ("-wal", "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)

    def _connect(self, suspect: bool) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path or ":memory:", timeout=self.wait, check_same_thread=False)
        connection.text_factory = _decode_text
        try:
            if suspect:
                status = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                if status != "ok":
                    raise sqlite3.DatabaseError(status)
            connection.execute("PRAGMA journal_mode = WAL")
            # A power cut may cost the last labels, never the file.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(CREATE_LABELS)
            connection.execute(f"SELECT key, {', '.join(LABEL_COLUMNS)} FROM labels LIMIT 1").fetchall()
        except BaseException:
            connection.close()
            raise
        return connection

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            self._say(f"the file of answers {self.path} cannot be used ({error}); the run continues without it")


def _identity(path: str) -> tuple[int, int] | None:
    """Which file stands at a path; None for none."""
    with suppress(OSError):
        status = os.stat(path)
        return status.st_dev, status.st_ino
    return None


def key_of(judge: str, item: Item) -> str:
    """The SHA-256 of who is asked and what, in hexadecimal."""
    return digest_of([judge, item])


def digest_of(value: Any, sort_keys: bool = False) -> str:
    """The SHA-256 of a value as JSON, in hexadecimal."""
    return hashlib.sha256(json.dumps(value, sort_keys=sort_keys).encode()).hexdigest()


def read_rows(path: str | Path, parse: Callable[[dict[str, Any]], T], wrong: str, torn: bool = True) -> Iterator[T]:
    """What `parse` makes of each answer in a file: of an `AnswerStore`, the oldest first, JSON lines, or CSV (*.csv).

    A row at which it raises is a ValueError that names it and ends in `wrong`; with `torn` not a last line cut off.
    """
    try:
        with open_file(Path(path).resolve(), LARGE) as file:
            is_store = file.read(16) == b"SQLite format 3\0"
        if is_store:
            rows: list[Any] = _stored_rows(Path(path))
        else:
            with open_text_file(Path(path).resolve()) as lines:
                rows = list(lines)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}; give a file that a run wrote") from None
    except sqlite3.Error as error:
        raise ValueError(f"{path} cannot be read as a file of answers ({error}); give another file") from None
    if str(path).endswith(".csv"):
        rows = list(csv.DictReader(rows))
    for number, row in enumerate(rows, start=1):
        is_line = isinstance(row, str)
        if is_line and not row.strip():
            continue
        try:
            answer = parse(json.loads(row) if is_line else row)
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError):
            # The writer of a line without an end was stopped in the middle.
            if torn and is_line and not row.endswith("\n"):
                return
            raise ValueError(f"{path}, line {number}: {str(row).strip()[:80]!r} is {wrong}") from None
        yield answer


def texts_in(item: Item) -> tuple[str, ...]:
    """The one text of an item, or the two of a pair."""
    if isinstance(item, str):
        return (item,)
    return item


def label_in(row: Mapping[str, Any]) -> tuple[Item, float]:
    """Item and value (NaN for unsure) of a row; KeyError, ValueError or TypeError for a row that is no label."""
    text = row["text"]
    other = row.get("other") or None
    value = row["value"]
    if not isinstance(text, str) or not isinstance(other, str | None) or isinstance(value, bool | str):
        raise TypeError("not a text or not a number")
    if value is not None and not 0 <= value <= 1:
        raise ValueError("not in [0, 1]")
    item: Item = text if other is None else (text, other)
    return item, math.nan if value is None else float(value)


def row_of(item: Item, value: Any) -> dict[str, Any]:
    """The inverse of `label_in`."""
    text, other = (item, None) if isinstance(item, str) else item
    return {"text": text, "other": other, "value": without_nan(value)}


def without_nan(value: Any) -> Any:
    """A number or a text as JSON can hold it: NaN, unsure, is None."""
    return None if value != value else value


def _stored_rows(path: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        connection.text_factory = _decode_text
        query = f"SELECT {', '.join(LABEL_COLUMNS)} FROM labels ORDER BY created, rowid"
        rows = connection.execute(query).fetchall()
    return [dict(zip(LABEL_COLUMNS, row)) for row in rows]


def _decode_text(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _replace_half_characters(text: str) -> str:
    """A text without half characters, which a file of UTF-8 cannot hold."""
    return text.encode("utf-8", "backslashreplace").decode()
