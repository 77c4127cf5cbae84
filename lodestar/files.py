"""Reading and writing in folders that others may have filled: regular files of a bounded size, and no links.

A run from elsewhere may hold a pipe that never answers, a device that never ends, a link, or more than fits into
memory. So every read of one goes through `open_file`:

    config = read_text(run / "config.yaml")
    with open_text_file(run / "metrics.csv") as file: rows = list(csv.reader(file))
    load_file(regular(path))                                 for a library that opens the file itself

A link there may lead to a file of the user's. So every write replaces what bears the name, and no folder is a link:

    with replacing(make_folder(run / "videos") / "last.gif") as path: write(path)

What is none of these is a `NoRegularFile`, an OSError, so that code that expects a missing file gets a sentence for it.
A path that the user typed may be a link where it is read; its `resolve()` is none.
"""

import errno
import io
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# How many bytes may be read: of a configuration, a status or results; of a log, a table or the tree
# of a state; of arrays, which a replay buffer fills.
SMALL = 4_000_000
LARGE = 1_000_000_000
HUGE = 1_000_000_000_000

# Flags that not every system has: against the conversion of line ends on Windows; then not to
# follow a link, not to wait for the other end of a pipe, and not to hand the file on to other
# programs.
_READ = os.O_RDONLY | getattr(os, "O_BINARY", 0)
_SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


class NoRegularFile(OSError):
    """A pipe, a device, a link, a folder, or a file larger than anything that belongs there."""


def open_file(path: str | Path, most: int = SMALL) -> io.BufferedReader:
    """A regular file of at most `most` bytes, opened for reading; a `NoRegularFile` if it is none, or larger."""
    return os.fdopen(_open_descriptor(Path(path), _READ, most), "rb")


def why_unread(path: str, error: Exception) -> str:
    """Why the file that a user named was not read: the end of a sentence that begins with its key."""
    if not path:
        return "names no file"
    if isinstance(error, FileNotFoundError):
        return "does not exist"
    return f"cannot be read ({getattr(error, 'strerror', None) or error})"


def open_to_append(path: str | Path) -> io.BufferedWriter:
    """A regular file, new or not, opened to write behind its end; raises as `open_file` does."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    return os.fdopen(_open_descriptor(Path(path), flags, None), "ab")


def open_text_file(path: str | Path, most: int = LARGE) -> io.TextIOWrapper:
    """As `open_file`, for `csv`: text with its ends of lines, bytes that are no UTF-8 as question marks."""
    return io.TextIOWrapper(open_file(path, most), encoding="utf-8-sig", errors="replace", newline="")


def read_bytes(path: str | Path, most: int = SMALL) -> bytes:
    """All of a file; raises as `open_file` does."""
    with open_file(path, most) as file:
        return file.read(most)


def read_text(path: str | Path, most: int = SMALL, errors: str = "replace") -> str:
    """All of a file in UTF-8, ends of lines as they are; raises as `open_file` does."""
    return read_bytes(path, most).decode("utf-8", errors)


def read_json(path: str | Path) -> dict[str, Any]:
    """The object in a JSON file, for what can be made again; empty where there is none, or none that can be read."""
    try:
        value = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def file_stems(folder: Path, pattern: str) -> list[str]:
    """The names, sorted and without their endings, of a folder's files that match a pattern such as *.txt."""
    return sorted(path.stem for path in folder.glob(pattern))


def regular(path: str | Path) -> Path:
    """The path, if `open_file` would open it, however large."""
    open_file(path, HUGE).close()
    return Path(path)


def make_folder(path: str | Path) -> Path:
    """A folder to write into, made where there is none; a `NoRegularFile` if the path is a link."""
    folder = Path(path)
    refuse_link(folder, "folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def make_parent(path: str | Path) -> None:
    """Make the folder of a file that is to be written, where there is none."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)


def refuse_link(path: Path, kind: str) -> None:
    """A `NoRegularFile` if a path, meant to be a "file" or a "folder", is a link."""
    if path.is_symlink():
        raise NoRegularFile(f"{path} is a link, which may lead anywhere; put the {kind} itself there")


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Where to write a file that takes the place of `path` at the end, unless the body raises.

    A link at `path` is replaced, too, and what it leads to stays as it is. The name has the suffix of `path`, by which
    some libraries choose a format.
    """
    target = Path(path)
    temporary = target.with_name(f"{target.name}.tmp-{os.getpid()}{target.suffix}")
    # A stranger who filled the folder may have guessed this name, and put a link there.
    temporary.unlink(missing_ok=True)
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def save_arrays(path: Path, arrays: dict[str, Any], metadata: dict[str, str] | None = None) -> None:
    """Write NumPy's arrays to a new safetensors file; an OSError if the disk is full or read-only."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        save_file(arrays, path, metadata)
    except SafetensorError as error:
        name = path.name.partition(".tmp-")[0]
        # The library wraps the operating system's error; what is left is an array of a type that it does not know.
        if "I/O error" not in str(error):
            raise ValueError(f"{name} cannot hold these arrays: {error}") from error
        raise OSError(errno.ENOSPC, f"cannot write {name}: {error}") from error


def _open_descriptor(path: Path, flags: int, most: int | None) -> int:
    refuse_link(path, "file")
    # Without waiting for the other end of a pipe.
    descriptor = os.open(path, flags | _SAFE, 0o666)
    status = os.fstat(descriptor)
    is_regular = stat.S_ISREG(status.st_mode)
    if is_regular and (most is None or status.st_size <= most):
        return descriptor
    os.close(descriptor)
    if not is_regular:
        raise NoRegularFile(f"{path} is no regular file; remove it")
    raise NoRegularFile(f"{path} has {status.st_size:,} bytes, more than the {most:,} that belong there")
