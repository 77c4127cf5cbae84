"""The folder of a run: which one a command means, which process holds it, and how far it came.

runs/<env>/<agent>-<reward>/<time>-s<seed>/
    config.yaml command.txt versions.json status.json metrics.csv result.json
    tensorboard/ checkpoints/ video.mp4 (or .gif) curve.png control/
"""

import os
import shutil
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lodestar.files import open_to_append, read_json, refuse_link
from runners.run.checkpoint import BEST, remove_leftovers, versions, write_json
from runners.run.config import MANAGEMENT, InUse, TrainConfig, UsageError, Values, flatten, load, save, to_dict
from runners.run.exits import NUMERICAL

STATUS = "status.json"
# The types of the entries of status.json.
STATUS_TYPES = {
    "state": str,
    "key": str,
    "step": int,
    "total": int,
    "exit_code": int,
    "error": str,
    "doing": str,
    "pid": int,
    "host": str,
}
VIDEOS = "videos"
# What a run prints, where a sweep started it.
LOG = "log.txt"
# Where workers that crash write their stacks.
CRASHES = "crashes"
# What a folder may hold before it has a status.
FILES_BEFORE_STATUS = {".lock", LOG, CRASHES, "config.yaml", "versions.json", "command.txt", STATUS}
# The state of what runners.export wrote: what trains is not in there.
EXPORTED = "exported"
# In result.json: how a policy that serves one user begins, and the mode of a policy that was judged by sampled actions.
TOLD = "told: "
OTHER_WAY = "this run, mode"
# The same, among a policy's metrics: a stream's mean cost, before its unit, and its limit.
COST = " cost "
LIMIT = " limit"


@dataclass
class RunFolder:
    """A run's folder, locked by this process until `close`; its path is absolute, as an environment may call chdir."""

    path: Path
    lock: FileLock
    new: bool

    def __post_init__(self) -> None:
        # Folders around it that were made for it, innermost first.
        self.made: list[Path] = []
        self.checkpoints = self.path / "checkpoints"
        self._command_folder = Path.cwd()

    def relative_words(self, words: object) -> str:
        """Words for the user, in which this folder is named as seen from where the command was given."""
        text = str(words)
        if self.path.is_relative_to(self._command_folder):
            text = text.replace(str(self.path), str(self.path.relative_to(self._command_folder)))
        return text

    def is_finished(self, config: TrainConfig) -> bool:
        """Whether the run of this configuration has ended here, with as many steps as it asks for."""
        status = read_status(self.path)
        same_length = status.get("total", config.total_timesteps) == config.total_timesteps
        return status.get("state") == "finished" and same_length and _continues(config, self.path, status)

    def write_status(self, **changes: Any) -> None:
        """Update status.json: `state` (running, stopped, failed, finished), `step`, `error`, `exit_code`, ..."""
        status = read_status(self.path) | changes
        status["pid"] = os.getpid()
        status["host"] = socket.gethostname()
        status["time"] = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        write_json(self.path / STATUS, status)

    def begin(self, config: TrainConfig, command: str) -> None:
        """Write down what is about to run."""
        saved_steps = None
        # A broken disk may have taken it; then the key in the status says that it was this one.
        if not self.new:
            with suppress(UsageError):
                saved_steps = load(self.path / "config.yaml").total_timesteps
        if saved_steps != config.total_timesteps:
            save(config, self.path / "config.yaml")
        for folder in (self.path, self.checkpoints, self.path / BEST, self.path / VIDEOS):
            remove_leftovers(folder)
        if self.new:
            write_json(self.path / "versions.json", versions())
        elif not read_status(self.path):
            print(f"{self.path / STATUS} cannot be read; it is written anew, the run continues from its checkpoints")
        with open_to_append(self.path / "command.txt") as file:
            file.write(f"{command}\n".encode())
        self.write_status(state="running", key=config.key(), total=config.total_timesteps, error=None, exit_code=None)

    def close(self) -> None:
        """Release the lock."""
        self.lock.release()

    def discard(self) -> None:
        """Remove a folder in which nothing has happened yet; what was printed stays."""
        self.lock.release()
        if self.new and not (self.path / LOG).exists():
            shutil.rmtree(self.path, ignore_errors=True)
            # It stays where another run is in it by now.
            with suppress(OSError):
                for folder in self.made:
                    folder.rmdir()


def open_folder(config: TrainConfig) -> RunFolder:
    """The folder this command works in: an unfinished or shorter run of the same configuration, or a new one.

    A shorter run is extended, finished or not. One that failed numerically is not: it would fail at the same step. An
    InUse if another process is at work in `run_dir`; a UsageError if it holds another run, or `resume` rules it out.
    """
    if config.run_dir:
        return _open_named(config, Path(config.run_dir).absolute())
    if config.resume != "never":
        for path in _continuable_runs(config):
            refuse_links(path)
            folder = _lock(path, new=False)
            if folder is not None:
                return folder
        if config.resume == "must":
            raise UsageError(f"resume=must, but {config.folder()} has no unfinished run like it; resume=auto begins")
    stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-s{config.seed}"
    for number in range(1, 1000):
        name = stamp if number == 1 else f"{stamp}-{number}"
        path = config.folder().absolute() / name
        made = [parent for parent in path.parents if not parent.exists()]
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
    given = f"run_dir={config.run_dir}"
    refuse_links(path)
    status = _status(path)
    if not status:
        if path.is_dir() and not _is_untouched(path):
            raise UsageError(f"{given} is not empty and holds no run; give a new folder")
        if config.resume == "must":
            raise UsageError(f"resume=must, but {given} holds no run; resume=auto starts one")
        path.mkdir(parents=True, exist_ok=True)
    elif status["state"] == EXPORTED:
        fix = f"init_from={config.run_dir} begins with it"
        raise UsageError(f"{given} is an exported run, which cannot train on; {fix}")
    folder = _lock(path, new=not status)
    if folder is None:
        pid = read_status(path).get("pid", "unknown")
        raise InUse(f"{given} is in use by process {pid}; wait for it, or give another run_dir")
    problem = ""
    if status and not _continues(config, path, status):
        fix = "give another run_dir, or the values of that run to continue it"
        problem = f"holds another run ({_differences(config, path)}); {fix}"
    elif status and config.resume == "never":
        problem = "holds a run already and resume=never; give another run_dir"
    if problem:
        folder.close()
        raise UsageError(f"{given} {problem}")
    return folder


def _is_untouched(path: Path) -> bool:
    """Whether nothing is in a folder, or only what a run of ours writes before it is known to have begun."""
    names = {child.name.split(".tmp-")[0] for child in path.iterdir()}
    return names <= {".lock", LOG} or (".lock" in names and names <= FILES_BEFORE_STATUS)


def _differences(config: TrainConfig, path: Path) -> str:
    try:
        saved = flatten(to_dict(load(path / "config.yaml")))
    except UsageError:
        return "its configuration cannot be read"
    given = flatten(to_dict(config))
    keys = sorted({*given, *saved} - MANAGEMENT)
    different = []
    for key in keys:
        if given.get(key) != saved.get(key):
            different.append(f"{key}={saved.get(key)}")
    return "it differs in " + (", ".join(different[:4]) or "its version")


def _continuable_runs(config: TrainConfig) -> list[Path]:
    """Runs of the same configuration that are unfinished or shorter; newest first, those of the same length first."""
    same = []
    shorter = []
    for path in sorted(config.folder().absolute().glob("*/"), reverse=True):
        status = _status(path)
        if status.get("exit_code") == NUMERICAL or not _continues(config, path, status):
            continue
        if status.get("total", config.total_timesteps) < config.total_timesteps:
            shorter.append(path)
        elif status.get("state") != "finished":
            same.append(path)
    return same + shorter


def _continues(config: TrainConfig, path: Path, status: Values) -> bool:
    """Whether this is the run of that folder, for as many steps or more."""
    before = status.get("total", config.total_timesteps)
    return before <= config.total_timesteps and has_key(path, status, config.key(before))


def has_key(path: Path, status: Values, key: str) -> bool:
    """Whether a run has this key: the one it wrote down, or that of its configuration as this version reads it.

    The latter is of a run of an earlier version, which did not know of today's options.
    """
    if status.get("key") == key:
        return True
    try:
        return "key" in status and load(path / "config.yaml").key() == key
    except UsageError:
        return False


def read_status(path: Path) -> Values:
    """status.json of a run's folder without what has another form; empty where there is none that can be read."""
    status = {}
    for key, value in read_json(path / STATUS).items():
        if isinstance(value, STATUS_TYPES.get(key, object)):
            status[key] = value
    return status if "state" in status else {}


def _status(path: Path) -> Values:
    """`read_status`; of a run that lost it, what its configuration says, so that its checkpoints can be reached."""
    status = read_status(path)
    if "key" in status or status.get("state") == EXPORTED:
        return status
    if not path.is_dir() or _is_untouched(path):
        return status
    try:
        saved = load(path / "config.yaml")
        return {"state": "stopped", "key": saved.key(), "total": saved.total_timesteps}
    except UsageError:
        return status


def refuse_links(path: Path) -> None:
    """A UsageError if a folder that is written into holds links through which that would end up elsewhere.

    A link to a file is no such link, as files are replaced; but a lock is opened as it is.
    """
    links = [child for child in path.glob("*") if child.is_symlink()]
    leading_out = []
    for link in links:
        if link.name.endswith(".lock") or not link.is_file():
            leading_out.append(link.name)
    if leading_out:
        names = ", ".join(sorted(leading_out))
        raise UsageError(f"{path} holds links ({names}), which may lead anywhere; put what they lead to in their place")


def lock_of(path: Path) -> FileLock:
    """The lock of a folder, not acquired; a `NoRegularFile` if it is a link, which some versions would empty."""
    refuse_link(path / ".lock", "file")
    return FileLock(path / ".lock")


def _lock(path: Path, new: bool) -> RunFolder | None:
    lock = lock_of(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    return RunFolder(path, lock, new)


def mean_costs(scores: Values) -> dict[str, float]:
    """The mean costs of the streams that have a limit, by their names, out of a policy's scores."""
    costs = {}
    for key, value in (scores.get("metrics") or {}).items():
        name, found, _ = key.partition(COST)
        if found:
            costs[name] = float(value)
    return costs
