"""What a sweep is made of: jobs, how they end, and who runs them. `runners.tune` and `runners.transfer` share it.

A job is one command of `runners.train` with a folder of its own. Whether it is finished is written in that folder, by
the run itself; the sweep's ledger is the account of who ran it where, and how often.
"""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from runners.run.folder import read_status

LOG = "log.txt"  # what a job prints, in its folder


@dataclass(frozen=True)
class Job:
    """One run.

    Attributes:
        name: unique in its sweep, and the same whenever the same sweep is asked for; a relative path.
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
        """Whether its own folder says so; a ledger that was killed too early may not know."""
        return (read_status(self.folder) or {}).get("state") == "finished"


@dataclass(frozen=True)
class Outcome:
    """How an attempt at a job ended.

    Attributes:
        code: exit code, 0 if finished; `runners.run.exits` has the others. -N: killed by signal N. None: nobody knows, as
            its machine was lost.
        seconds: that the attempt took, by the monotonic clock of whoever ran it.
        where: host:pid, and the node or the batch job where there is one.
        error: one sentence; empty if finished.
    """

    code: int | None
    seconds: float
    where: str
    error: str = ""


class Launcher(Protocol):
    """Runs jobs, `slots` at once; knows neither the ledger nor retries."""

    slots: int

    def submit(self, job: Job) -> str:
        """Start a job, without waiting; returns where, as far as is known."""

    def wait(self, timeout: float) -> list[tuple[Job, Outcome]]:
        """What ended since the last call; waits up to `timeout` seconds for the first."""

    def cancel(self, name: str) -> None:
        """Ask a running job to save and go (SIGTERM); it ends with code 143, which `wait` tells."""

    def close(self) -> None:
        """Ask all running jobs to save and go, kill what does not, and give everything back; always returns."""


def work(argv: tuple[str, ...] | list[str], folder: Path) -> int:
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
