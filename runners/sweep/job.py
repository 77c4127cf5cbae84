"""What a sweep is made of: jobs, outcomes and launchers. `runners.tune` and `runners.transfer` share it.

A job is one command of `runners.train` with a folder of its own. Whether it is finished is written in that folder, by
the run itself; the sweep's job log records where it ran, and how often.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from envs.settings import Settings
from runners.run.folder import read_status

LOG = "log.txt"  # what a job prints, in its folder
WAIT_S = 1.0  # after which a launcher that waits notices a signal


@dataclass(frozen=True)
class Job:
    """One run.

    Attributes:
        name: unique in its sweep, and the same whenever the same sweep runs again; a relative path.
        argv: what `runners.train` is given, `run_dir=` included.
        folder: the run's folder, which `run_dir=` names.
        gpus: how much of a GPU it takes, 0 to 1 or a whole number; several jobs may share one.
    """

    name: str
    argv: tuple[str, ...]
    folder: Path
    gpus: float = 0.0

    @property
    def finished(self) -> bool:
        """Whether its own folder says so; the job log of a killed sweep may not."""
        return (read_status(self.folder) or {}).get("state") == "finished"


@dataclass(frozen=True)
class Outcome:
    """How an attempt at a job ended.

    Attributes:
        code: exit code, 0 if finished; `runners.run.exits` has the others. -N: killed by signal N. None: unknown,
            as its machine was lost.
        seconds: that the attempt took, by the monotonic clock of the machine that ran it.
        where: host:pid, and the node or the batch job where there is one.
        error: one sentence; empty if finished.
    """

    code: int | None
    seconds: float
    where: str
    error: str = ""


class Launcher(Settings):
    """Runs jobs, `slots` at once; neither logs nor retries. Its fields are `launcher.<name>=` on the command line."""

    slots: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self._ended: list[tuple[Job, Outcome]] = []  # since the last `wait`

    @property
    def prefix(self) -> str:
        """Before its settings on the command line."""
        return "launcher."

    @abstractmethod
    def submit(self, job: Job) -> str:
        """Start a job, without waiting; returns where, as far as is known."""

    def wait(self, timeout: float) -> list[tuple[Job, Outcome]]:
        """What ended since the last call; waits up to `timeout` seconds for the first."""
        end = time.monotonic() + timeout
        self._collect(0.0)
        while not self._ended and (left := end - time.monotonic()) > 0:
            self._collect(min(left, WAIT_S))
        ended, self._ended = self._ended, []
        return ended

    @abstractmethod
    def _collect(self, timeout: float) -> None:
        """Add what ended to `_ended`; may wait up to `timeout` seconds for the first."""

    @abstractmethod
    def cancel(self, name: str) -> None:
        """Ask a running job to save and exit (SIGTERM); it ends with code 143, which `wait` returns."""

    @abstractmethod
    def close(self) -> None:
        """Ask all running jobs to save and exit, kill what does not, and release everything; always returns."""


def cells(jobs: Iterable[Job]) -> dict[str, list[Job]]:
    """Jobs that differ in the seed only: their folder's name -> jobs."""
    found: dict[str, list[Job]] = {}
    for job in jobs:
        found.setdefault(str(Path(job.name).parent), []).append(job)
    return found


def work(argv: Sequence[str], folder: Path) -> int:
    """Run a job in this process, which is its own: what it prints goes to log.txt of its folder; returns the code."""
    folder.mkdir(parents=True, exist_ok=True)
    log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    from runners.train import main

    return main(list(argv))


def here() -> str:
    """host:pid of this process."""
    return f"{socket.gethostname()}:{os.getpid()}"
