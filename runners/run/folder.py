"""The folder of a run: which one a command means, which process holds it, and how far it came.

runs/<env>/<agent>-<reward>/<time>-s<seed>/
    config.yaml command.txt versions.json status.json metrics.csv result.json
    tensorboard/ checkpoints/ video.mp4 curve.png control/
"""

import json
import os
import shutil
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from envs.files import appended, read_json
from runners.run.checkpoint import versions, write_atomically
from runners.run.config import InUse, TrainConfig, UsageError, flatten, load, save, to_dict
from runners.run.exits import NUMERICAL

STATUS = "status.json"
TOLD = "told: "  # in result.json: how a policy that was told which user it serves begins
OTHER_WAY = "this run, mode"  # in result.json: the policy of a run that was judged by sampled actions, by its mode
EXPORTED = "exported"  # the state of what runners.export wrote: what trains is not in there
LOG = "log.txt"  # what a run prints, where a sweep started it
FORM = {"state": str, "key": str, "step": int, "total": int, "exit_code": int, "error": str, "pid": int, "host": str}
BEGUN = {".lock", LOG, "config.yaml", "versions.json", "command.txt", STATUS}  # there before there is a status


class RunFolder:
    """A run's folder, locked by this process until `close`."""

    def __init__(self, path: Path, lock: FileLock, new: bool) -> None:
        self.path, self.new, self._lock = path, new, lock
        self.made: list[Path] = []  # folders around it that were made for it, innermost first
        self.checkpoints = path / "checkpoints"

    def status(self) -> dict[str, Any]:
        """The contents of status.json; empty for a new run."""
        return read_status(self.path) or {}

    def write_status(self, **changes: Any) -> None:
        """Update status.json: `state` (running, stopped, failed, finished), `step`, `error`, `exit_code`, ..."""
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        status = {**self.status(), **changes, "pid": os.getpid(), "host": socket.gethostname(), "time": now}
        write_atomically(self.path / STATUS, json.dumps(status, indent=1) + "\n")

    def begin(self, config: TrainConfig, command: str) -> None:
        """Write down what is about to run."""
        try:
            known = None if self.new else load(self.path / "config.yaml")
        except UsageError:  # a broken disk took it; the key in the status says that it was this one
            known = None
        if known is None or known.total_timesteps != config.total_timesteps:
            save(config, self.path / "config.yaml")
        if self.new:
            write_atomically(self.path / "versions.json", json.dumps(versions(), indent=1) + "\n")
        elif read_status(self.path) is None:
            print(f"{self.path / STATUS} cannot be read; it is written anew, the run continues from its checkpoints")
        with appended(self.path / "command.txt") as file:
            file.write(f"{command}\n".encode())
        self.write_status(state="running", key=config.key(), total=config.total_timesteps, error=None, exit_code=None)

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()

    def discard(self) -> None:
        """Remove a folder in which nothing has happened yet; what was printed stays."""
        self._lock.release()
        if self.new and not (self.path / LOG).exists():
            shutil.rmtree(self.path, ignore_errors=True)
            with suppress(OSError):  # another run is in it by now
                for folder in self.made:
                    folder.rmdir()


def open_folder(config: TrainConfig) -> RunFolder:
    """The folder this command works in: an unfinished or shorter run of the same configuration, or a new one.

    A shorter run is extended, finished or not. One that failed numerically is not: it would fail at the same step. An
    InUse if another process is at work in `run_dir`; a UsageError if it holds another run, or `resume` rules it out.
    """
    if config.run_dir:
        return _open_named(config, Path(config.run_dir))
    if config.resume != "never":
        for path in _continuable(config):
            folder = _lock(path, new=False)
            if folder is not None:
                return folder
        if config.resume == "must":
            raise UsageError(f"resume=must, but {config.folder()} has no unfinished run like it; resume=auto begins")
    stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-s{config.seed}"
    for number in range(1, 1000):
        path = config.folder() / (stamp if number == 1 else f"{stamp}-{number}")
        made = [folder for folder in path.parents if not folder.exists()]
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        folder = _lock(path, new=True)
        assert folder is not None
        folder.made = made
        return folder
    raise UsageError(f"{config.folder()} has a thousand runs of this second; give run_dir=")


def _open_named(config: TrainConfig, path: Path) -> RunFolder:
    status = _status(path)
    if status is not None and status["state"] == EXPORTED:
        raise UsageError(f"run_dir={path} is an exported run, which cannot train on; init_from={path} begins with it")
    if status is None:
        if path.is_dir() and not _untouched(path):
            raise UsageError(f"run_dir={path} is not empty and holds no run; give a new folder")
        if config.resume == "must":
            raise UsageError(f"resume=must, but run_dir={path} holds no run; resume=auto starts one")
        path.mkdir(parents=True, exist_ok=True)
    folder = _lock(path, new=status is None)
    if folder is None:
        pid = (read_status(path) or {}).get("pid", "unknown")
        raise InUse(f"run_dir={path} is in use by process {pid}; wait for it, or give another run_dir")
    try:
        if status is not None and status.get("key") != config.key() and not _extends(config, status):
            raise UsageError(f"run_dir={path} holds another run ({_differences(config, path)}); give another run_dir")
        if status is not None and config.resume == "never":
            raise UsageError(f"run_dir={path} holds a run already and resume=never; give another run_dir")
    except UsageError:
        folder.close()
        raise
    return folder


def _untouched(path: Path) -> bool:
    """Whether nothing is in a folder, or only what a run of ours writes before it is known to have begun."""
    names = {child.name.split(".tmp-")[0] for child in path.iterdir()}
    return names <= {".lock", LOG} or (".lock" in names and names <= BEGUN)


def _differences(config: TrainConfig, path: Path) -> str:
    try:
        other = to_dict(load(path / "config.yaml"))
    except UsageError:
        return "its configuration cannot be read"
    mine, theirs = flatten(to_dict(config)), flatten(other)
    changeable = {"run_dir", "root", "resume"}
    keys = [key for key in sorted({*mine, *theirs} - changeable) if mine.get(key) != theirs.get(key)]
    return "it differs in " + (", ".join(f"{key}={theirs.get(key)}" for key in keys[:4]) or "its version")


def _continuable(config: TrainConfig) -> list[Path]:
    """Runs of the same configuration that are unfinished or shorter; newest first, those of the same length first."""
    found = {path: _status(path) or {} for path in sorted(config.folder().glob("*/"), reverse=True)}
    fit = {path: status for path, status in found.items() if status.get("exit_code") != NUMERICAL}
    same = [path for path, s in fit.items() if s.get("key") == config.key() and s.get("state") != "finished"]
    return same + [path for path, status in fit.items() if _extends(config, status)]


def _extends(config: TrainConfig, status: dict[str, Any]) -> bool:
    """Whether this is the run of that status, for more steps."""
    before = status.get("total", config.total_timesteps)
    return before < config.total_timesteps and status.get("key") == config.key(before)


def read_status(path: Path) -> dict[str, Any] | None:
    """status.json of a run's folder without what has another form, or None where there is none that can be read."""
    status = read_json(path / STATUS)
    formed = {key: value for key, value in status.items() if isinstance(value, FORM.get(key, object))}
    return formed if "state" in formed else None


def _status(path: Path) -> dict[str, Any] | None:
    """`read_status`; of a run that lost it, what its configuration says, so that its checkpoints can be reached."""
    status = read_status(path)
    if (status and ("key" in status or status["state"] == EXPORTED)) or not path.is_dir() or _untouched(path):
        return status
    try:
        saved = load(path / "config.yaml")
        return {"state": "stopped", "key": saved.key(), "total": saved.total_timesteps}
    except UsageError:
        return status


def _lock(path: Path, new: bool) -> RunFolder | None:
    lock = FileLock(path / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    return RunFolder(path, lock, new)
