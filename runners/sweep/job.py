"""What a sweep is made of: jobs, outcomes, launchers, and the job log. `runners.tune` and `runners.transfer` share it.

A job is one command of `runners.train` with a folder of its own. Whether it is finished is written in that folder, by
the run itself; the job log of the sweep's folder records where it ran, and how often: one line for every change of a
job, appended and synced to the disk. `runners.report.job_log` reads it. A log on a full disk costs a
sentence, not the jobs.
"""

import json
import os
import socket
import time
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lodestar.files import LARGE, open_to_append, read_bytes
from lodestar.settings import Settings
from runners.report.job_log import Entry, events, path_in, replay
from runners.run.child import Argv, Outcome
from runners.run.config import UsageError, Values
from runners.run.exits import TERMINATED
from runners.run.folder import read_status, refuse_links

# Seconds after which a launcher that waits notices a signal.
SIGNAL_WAIT_S = 1.0


@dataclass(frozen=True)
class Job:
    """One run."""

    # Unique in its sweep, and the same whenever the same sweep runs again; a relative path.
    name: str
    # What `runners.train` is given, `run_dir=` included.
    argv: Argv
    # The run's folder, which `run_dir=` names.
    folder: Path
    # How much of a GPU it takes, 0 to 1 or a whole number; several jobs may share one.
    gpus: float = 0.0

    @property
    def is_finished(self) -> bool:
        """Whether its own folder says so; the job log of a killed sweep may not."""
        return read_status(self.folder).get("state") == "finished"


class Launcher(Settings):
    """Runs jobs, `slots` at once; neither logs nor retries. Its fields are `launcher.<name>=` on the command line."""

    prefix = "launcher."
    slots: int

    def __post_init__(self) -> None:
        super().__post_init__()
        # Jobs that were submitted and not started yet.
        self._waiting: list[Job] = []
        # Since the last `wait`.
        self._ended: list[tuple[Job, Outcome]] = []

    @abstractmethod
    def submit(self, job: Job) -> str:
        """Start a job, without waiting; returns where, as far as is known."""

    def wait(self, timeout: float) -> list[tuple[Job, Outcome]]:
        """What ended since the last call; waits up to `timeout` seconds for the first."""
        end = time.monotonic() + timeout
        self._collect(0.0)
        left = end - time.monotonic()
        while not self._ended and left > 0:
            self._collect(min(left, SIGNAL_WAIT_S))
            left = end - time.monotonic()
        ended = self._ended
        self._ended = []
        return ended

    @abstractmethod
    def _collect(self, timeout: float) -> None:
        """Add what ended to `_ended`; may wait up to `timeout` seconds for the first."""

    def cancel(self, name: str) -> None:
        """Ask a job to save and exit (SIGTERM); it ends with code 143, which `wait` returns."""
        for job in [*self._waiting]:
            if job.name == name:
                self._waiting.remove(job)
                self._ended.append((job, Outcome(TERMINATED, 0.0, "", "stopped before it began")))

    @abstractmethod
    def close(self) -> None:
        """Ask all running jobs to save and exit, kill what does not, and release everything; always returns."""


def cells(jobs: Iterable[Job]) -> dict[str, list[Job]]:
    """Jobs that differ in the seed only: their folder's name -> jobs."""
    by_cell: dict[str, list[Job]] = {}
    for job in jobs:
        by_cell.setdefault(str(Path(job.name).parent), []).append(job)
    return by_cell


def process_address() -> str:
    """host:pid of this process."""
    return f"{socket.gethostname()}:{os.getpid()}"


class JobLog:
    """The job log of a sweep's folder, locked by this process until `close`; a UsageError if another sweep has it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        refuse_links(folder)
        self.path = path_in(folder)
        self._lock = FileLock(folder / ".lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            owner = "unknown"
            for event in events(folder):
                owner = event.get("owner", owner)
            raise UsageError(f"{folder} is in use by a sweep ({owner}); wait for it, or give another name=") from None
        self.entries = replay(folder)
        # Whether the file ends within a line.
        self.torn = self.path.exists() and not read_bytes(self.path, LARGE).endswith(b"\n")
        # The disk's error, if the last event could not be written.
        self.error = ""
        self._append([{"owner": process_address()}])

    def entry(self, job_name: str) -> Entry:
        """The state of a job; waiting if it has none."""
        return self.entries.get(job_name, Entry())

    def write(self, job_name: str, state: str, **fields: Any) -> Entry:
        """Add an event; `fields` are those of `Entry` that change."""
        self._append([{"job": job_name, "state": state, **fields}])
        self.entries[job_name] = replace(self.entry(job_name), state=state, **fields)
        return self.entries[job_name]

    def expect(self, names: list[str]) -> None:
        """Write down jobs that are waiting and that the log does not have."""
        new = []
        for name in names:
            if name not in self.entries:
                self.entries[name] = Entry()
                new.append({"job": name, "state": "waiting"})
        self._append(new)

    def close(self) -> None:
        """Let another sweep in."""
        self._lock.release()

    def _append(self, events: list[Values]) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        lines = "".join(json.dumps({"time": stamp, **event}) + "\n" for event in events)
        try:
            with open_to_append(self.path) as file:
                file.write(("\n" * self.torn + lines).encode())
                file.flush()
                os.fsync(file.fileno())
            self.torn = False
            self.error = ""
        except OSError as error:
            self.torn = True
            self.error = str(error)
