"""Answers of judges, kept in one SQLite file that any number of runs share, so that nothing is asked or paid for twice.

    labels(key, text, other, value, judge, raw, created, latency, tokens)

`key` is the SHA-256 of the judge's identity (model, version of its prompt and schema, goal), the text and the second
text of a pair. `value` is in [0, 1], NULL for unsure; what failed is never stored. Of two answers to one question the
first stays. `created` is in seconds since 1970, `latency` in seconds.

A file that is no database, or a torn one, is moved to FILE.bad and begun afresh. A full disk, a read-only file: said
once, and the runs go on without what could not be kept.
When it fails: SQLite's write-ahead log needs a file system of this machine; runs on several machines that share a
network folder want a file each, to be put together by `export` and `import_`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from rewards.llm.annotation.queue import Item

CHUNK = 500  # rows of one query; SQLite's older limit of variables is 999
WORDS = 2000  # characters of a judge's own words that are kept
TABLE = """CREATE TABLE IF NOT EXISTS labels (key TEXT PRIMARY KEY, text TEXT NOT NULL, other TEXT, value REAL,
judge TEXT NOT NULL, raw TEXT NOT NULL, created REAL NOT NULL, latency REAL NOT NULL, tokens INTEGER NOT NULL)"""
COLUMNS = ("text", "other", "value", "judge", "raw", "created", "latency", "tokens")


@dataclass
class Label:
    """One answer: the item, its value in [0, 1] or NaN, what was said, seconds it took, tokens it cost."""

    item: Item
    value: float
    raw: str = ""
    latency: float = 0.0
    tokens: int = 0


class LabelCache:
    """The file, opened by this process; to be used by one thread at a time.

    Args:
        path: the file; its folder is made.
        wait: seconds to wait for other processes that write.
        say: gets a sentence when something is wrong with the file; None for standard error.
    """

    def __init__(self, path: str | Path, wait: float = 10.0, say: Callable[[str], None] | None = None) -> None:
        self.path, self.wait = Path(path), wait
        self._say = say or (lambda sentence: print(sentence, file=sys.stderr, flush=True))
        self._ailing = False  # said already
        self._connection: sqlite3.Connection | None = None
        try:
            self._open()
        except (sqlite3.Error, OSError) as error:
            self._warn(error)

    def get(self, judge: str, items: Sequence[Item]) -> dict[Item, float]:
        """The answers that this judge gave to these items, as far as they are known; NaN for unsure."""
        keys = {key_of(judge, item): item for item in items}
        return self._safely(self._get, keys) or {}

    def put(self, judge: str, labels: Sequence[Label]) -> None:
        """Keep what a judge answered."""
        rows = [
            (
                key_of(judge, label.item),
                *_texts(label.item),
                None if math.isnan(label.value) else label.value,
                judge,
                _sound(label.raw)[:WORDS],
                time.time(),
                label.latency,
                label.tokens,
            )
            for label in labels
        ]
        self._safely(self._put, rows)

    def export(self, path: str | Path) -> int:
        """Write every label as one JSON object a line, the oldest first, and count them.

        Raises:
            ValueError: if the cache could not be opened.
            OSError: if the file cannot be written.
        """
        query = f"SELECT {', '.join(COLUMNS)} FROM labels ORDER BY created, key"
        lines = [json.dumps(dict(zip(COLUMNS, row))) + "\n" for row in self._connected().execute(query)]
        temporary = Path(f"{path}.tmp-{os.getpid()}")
        temporary.write_text("".join(lines), encoding="ascii")
        os.replace(temporary, path)
        return len(lines)

    def import_(self, path: str | Path) -> int:
        """Take in what `export` wrote, or lines with text, value and perhaps judge and other; count the lines.

        Raises:
            ValueError: for a line that is no label, naming it, and nothing is taken in; or as `export`.
        """
        rows = list(_rows(path))
        self._put(self._connected(), rows)
        return len(rows)

    def __len__(self) -> int:
        return (
            self._safely(lambda connection, _: connection.execute("SELECT count(*) FROM labels").fetchone()[0], 0) or 0
        )

    def close(self) -> None:
        """Leave one file behind; without this there may be a write-ahead log beside it, which is as safe."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            raise ValueError(f"the label cache {self.path} could not be opened; give a file that can be written")
        return self._connection

    @staticmethod
    def _get(connection: sqlite3.Connection, keys: dict[str, Item]) -> dict[Item, float]:
        found, asked = {}, list(keys)
        for begin in range(0, len(asked), CHUNK):
            chunk = asked[begin : begin + CHUNK]
            query = f"SELECT key, value FROM labels WHERE key IN ({','.join('?' * len(chunk))})"
            for key, value in connection.execute(query, chunk):
                found[keys[key]] = math.nan if value is None else float(value)
        return found

    @staticmethod
    def _put(connection: sqlite3.Connection, rows: Iterable[tuple[Any, ...]]) -> None:
        with connection:
            connection.executemany(f"INSERT OR IGNORE INTO labels VALUES ({','.join('?' * 9)})", rows)

    def _safely(self, work: Callable[[sqlite3.Connection, Any], Any], argument: Any) -> Any:
        """What `work` gives, or None if the file is ill; a torn file is replaced, and the work tried once more."""
        for _ in range(2):
            if self._connection is None:
                return None
            try:
                return work(self._connection, argument)
            except sqlite3.OperationalError as error:  # busy, full, read-only: the file itself is sound
                self._warn(error)
                return None
            except (sqlite3.DatabaseError, ValueError, TypeError):  # a torn file can also hold rows that make no sense
                self.close()
                try:
                    self._open(suspect=True)
                except (sqlite3.Error, OSError) as error:
                    self._warn(error)
        return None

    def _open(self, suspect: bool = False) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.path}.lock", timeout=60):  # so that one process alone moves a broken file
            try:
                self._connection = self._connect(suspect)
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError as error:
                bad = f"{self.path}.bad"
                os.replace(self.path, bad)
                for rest in ("-wal", "-shm"):
                    with suppress(FileNotFoundError):
                        os.remove(f"{self.path}{rest}")
                self._say(f"the label cache {self.path} is broken ({error}); it was moved to {bad} and begun afresh")
                self._connection = self._connect(False)

    def _connect(self, suspect: bool) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=self.wait, check_same_thread=False)
        try:
            if suspect:
                found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                if found != "ok":
                    raise sqlite3.DatabaseError(found)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")  # a power cut may cost the last labels, never the file
            with closing(connection.execute(f"SELECT key, {', '.join(COLUMNS)} FROM labels LIMIT 1")) as look:
                look.fetchone()
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                connection.close()
                raise
            with connection:
                connection.execute(TABLE)
        except BaseException:
            connection.close()
            raise
        return connection

    def _warn(self, error: Exception) -> None:
        if not self._ailing:
            self._ailing = True
            self._say(
                f"the label cache {self.path} cannot be used ({error}); the run goes on without what it would keep"
            )


def key_of(judge: str, item: Item) -> str:
    """The SHA-256 of who is asked and what, in hexadecimal."""
    return hashlib.sha256(json.dumps([judge, item]).encode()).hexdigest()


def _texts(item: Item) -> tuple[str, str | None]:
    return (_sound(item), None) if isinstance(item, str) else (_sound(item[0]), _sound(item[1]))


def _sound(text: str) -> str:
    """A text without half characters, which a file of UTF-8 cannot hold."""
    return text.encode("utf-8", "backslashreplace").decode()


def _rows(path: str | Path) -> Iterator[tuple[Any, ...]]:
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                said = json.loads(line)
                text, other, value, judge = said["text"], said.get("other"), said["value"], said.get("judge", "")
                value = None if value is None else float(value)
                well = isinstance(text, str) and isinstance(other, str | None) and isinstance(judge, str)
                cost = (float(said.get("created", 0)), float(said.get("latency", 0)), int(said.get("tokens", 0)))
                raw = str(said.get("raw", ""))
            except (ValueError, KeyError, TypeError, AttributeError):
                well = False
            if not well or not (value is None or 0 <= value <= 1):
                raise ValueError(
                    f"{path}, line {number}: {line[:80]!r} is no label (text, value); repair or delete the line"
                )
            item = text if other is None else (text, other)
            yield (key_of(judge, item), *_texts(item), value, judge, _sound(raw)[:WORDS], *cost)
