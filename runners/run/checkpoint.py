"""Checkpoints that survive `kill -9`, a full disk and a flipped bit, and that execute nothing when they are read.

A checkpoint is a folder:

    step_000000020480/
        arrays.safetensors   every array and tensor of the state, under its path ("agent/policy/...")
        state.json           everything else: numbers, text, tuples, the big integers of random generators
        manifest.json        size and SHA-256 of both files, format version, library versions

It is written under a temporary name, flushed to the disk, renamed, and only then named in `LATEST`: whichever moment
the process dies at, there is a whole one. No pickle: a foreign checkpoint can lie, not act.
"""

import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load_file

from lodestar.files import (
    HUGE,
    LARGE,
    NoRegularFile,
    make_folder,
    open_file,
    read_text,
    regular,
    replacing,
    save_arrays,
)
from lodestar.packages import version
from lodestar.state import pack, unpack

# Format 1 was 0.1.0's, whose states of agents and rewards were laid out otherwise.
CHECKPOINT_FORMAT = 2
# The folder of the checkpoint that evaluated best, beside that of the others.
BEST = "best"
# The name of a checkpoint's folder.
_FOLDER_NAME = re.compile(r"step_(?P<step>\d+)(_(?P<repeat>\d+))?", re.ASCII)
# A checkpoint that is being written, or a file; `lodestar.files.replacing` puts its suffix behind once more.
_UNFINISHED = re.compile(r"tmp-\d+-\d+|.+\.tmp-\d+(\.\w+)?", re.ASCII)
ARRAYS_FILE = "arrays.safetensors"
STATE_FILE = "state.json"
MANIFEST = "manifest.json"
LATEST = "LATEST"


class CheckpointError(Exception):
    """A checkpoint that cannot be used; the sentence says which file and why."""


class VersionError(CheckpointError):
    """A checkpoint of another format: neither broken nor readable, so nothing falls back past it silently."""


def save(folder: Path, state: Any, step: int, *, keep: int = 3) -> Path:
    """Write `state`, after `step` environment steps, as the newest checkpoint of `folder`; the last `keep` stay.

    A state is nested dicts, lists and tuples of arrays, tensors, numbers, strings, bools and None; else a TypeError. An
    OSError if the disk is full or read-only; the earlier checkpoints are as they were.
    """
    tree, arrays = pack(state)
    make_folder(folder)
    # The same step again: the new one has a higher number than all that are there, and so is the newest of them.
    target_name = f"step_{step:012d}"
    repeats = dict(map(_order, reversed(step_folders(folder))))
    if step in repeats:
        target_name += f"_{repeats[step] + 1}"
    target = folder / target_name
    temporary = folder / f"tmp-{os.getpid()}-{step}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        save_arrays(temporary / ARRAYS_FILE, arrays)
        (temporary / STATE_FILE).write_text(json.dumps({"step": step, "tree": tree}))
        files = {ARRAYS_FILE: _fingerprint(temporary / ARRAYS_FILE), STATE_FILE: _fingerprint(temporary / STATE_FILE)}
        manifest = {"format": CHECKPOINT_FORMAT, "step": step, "files": files, "versions": versions()}
        manifest["sha256"] = digest(manifest)
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1))
        for name in (ARRAYS_FILE, STATE_FILE, MANIFEST):
            _sync(temporary / name)
        _sync(temporary)
        os.rename(temporary, target)
        _sync(folder)
        write_atomically(folder / LATEST, target.name + "\n")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    # Never the one just written, whatever the steps of the others: a run may go on from an older one.
    others = step_folders(folder)
    others.remove(target)
    for old in others[keep - 1 :]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def load(folder: Path, say: Callable[[str], None] = print, *, tidy: bool = False) -> tuple[Any, int] | None:
    """Read the newest whole checkpoint of `folder`: (state, step), or None when there is none at all.

    A broken one is named through `say` and the previous one is used; a CheckpointError if every one is broken, a
    VersionError if the newest has another format. `tidy` removes leftovers of interrupted saves and puts broken ones
    aside; only for the process that holds the run's lock, as another may be writing just now.
    """
    if tidy:
        remove_leftovers(folder)
    candidates = step_folders(folder)
    # LATEST wins over a higher number, e.g. when someone copied an old pointer back.
    with suppress(OSError):
        latest = folder / read_text(folder / LATEST).strip()
        candidates.sort(key=lambda path: path != latest)
    for number, path in enumerate(candidates, start=1):
        try:
            return read(path)
        except VersionError:
            raise
        except CheckpointError as error:
            following = "there is no earlier one"
            if number < len(candidates):
                following = f"trying {candidates[number].name}"
            say(f"{error}; {following}")
            if tidy:
                # Out of the way of the next saves, kept for inspection.
                with suppress(OSError):
                    path.rename(path.with_name(f"broken_{path.name}"))
    if candidates:
        raise CheckpointError(f"none of {len(candidates)} checkpoints in {folder} is whole; start over: resume=never")
    return None


def read(path: Path) -> tuple[Any, int]:
    """Read one checkpoint folder after checking it against its manifest: (state, step)."""
    try:
        manifest = json.loads(read_text(path / MANIFEST))
        if manifest.pop("sha256") != digest(manifest):
            raise CheckpointError(f"checkpoint file {path / MANIFEST} is corrupt (its SHA-256 differs)")
        files = dict(manifest["files"])
        if manifest["format"] != CHECKPOINT_FORMAT:
            raise VersionError(
                f"checkpoint {path} has format {manifest['format']}, this version reads format {CHECKPOINT_FORMAT}; "
                f"use the version of lodestar-rl that wrote it ({manifest['versions']['lodestar-rl']}), or start over "
                "with resume=never"
            )
        for name in (ARRAYS_FILE, STATE_FILE):
            if files[name] != _fingerprint(path / name):
                raise CheckpointError(f"checkpoint file {path / name} is corrupt (size or SHA-256 is not {MANIFEST}'s)")
        state = json.loads(read_text(path / STATE_FILE, LARGE))
        arrays = load_file(regular(path / ARRAYS_FILE))
        return unpack(state["tree"], arrays), int(state["step"])
    except CheckpointError:
        raise
    except SafetensorError as error:
        raise CheckpointError(f"checkpoint file {path / ARRAYS_FILE} is not a safetensors file ({error})") from error
    except (OSError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"checkpoint {path} cannot be read ({type(error).__name__}: {error})") from error


def versions() -> dict[str, str]:
    """Version of Python and of the libraries whose change could change numbers."""
    numbers = {"python": platform.python_version()}
    for name in ("lodestar-rl", "torch", "stable-baselines3", "gymnasium", "numpy"):
        numbers[name] = version(name) or "not installed"
    return numbers


def write_atomically(path: Path, text: str) -> None:
    """Replace a text file, or a link, so that a reader sees the old content or the new one, never a half."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
        _sync(temporary)
    _sync(path.parent)


def write_json(path: Path, data: Any) -> None:
    """Replace a file of JSON in the same way."""
    write_atomically(path, json.dumps(data, indent=1) + "\n")


def step_folders(folder: Path) -> list[Path]:
    """The checkpoints in a folder, the highest step first, and of one step the last that was written."""
    folders = []
    for path in folder.glob("step_*"):
        if _FOLDER_NAME.fullmatch(path.name) and path.is_dir():
            folders.append(path)
    return sorted(folders, key=_order, reverse=True)


def _order(path: Path) -> tuple[int, int]:
    """Step of a checkpoint, and which one of that step it is."""
    parts = _FOLDER_NAME.fullmatch(path.name)
    assert parts is not None, path
    return int(parts["step"]), int(parts["repeat"] or 1)


def remove_leftovers(folder: Path) -> None:
    """Remove what a process that was killed in a save left; only for the one that holds the run's lock."""
    # Through a link the files of others would be removed.
    if folder.is_symlink():
        return
    for path in list(folder.glob("*tmp-*")):
        if not _UNFINISHED.fullmatch(path.name):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()


def digest(data: Any) -> str:
    """The SHA-256 of plain data, whatever the order of keys."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _fingerprint(path: Path) -> dict[str, Any]:
    try:
        with open_file(path, HUGE) as file:
            return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
    except (FileNotFoundError, NoRegularFile) as error:
        raise CheckpointError(f"checkpoint file {path} is missing, or no regular file ({error})") from None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
