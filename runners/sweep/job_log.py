"""The job log of a sweep: jobs.jsonl, one line for every change of a job, appended and synced to the disk.

A line that a crash tore is left out when the file is read. While a sweep runs it holds the lock beside the log, so that
a second one is refused. The run folders decide what is finished; a log on a full disk costs a sentence, not the jobs.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from runners.run.config import UsageError
from runners.sweep.job import Job, here

NAME, OLD_NAME = "jobs.jsonl", "ledger.jsonl"  # sweeps that were begun under the old name keep it
STATES = ("waiting", "running", "finished", "failed", "stopped", "lost")


@dataclass(frozen=True)
class Entry:
    """The state of a job.

    Attributes:
        state: waiting (not begun), running, finished, failed, stopped (it saved and went), or lost (it was running when
            its sweep or its machine vanished).
        attempts: how often it was started.
        where: host:pid and the like, of the last attempt.
        code: exit code of the last attempt; None while it runs, or if it is unknown.
        seconds: of all attempts together.
        error: one sentence; empty unless it failed.
    """

    state: str = "waiting"
    attempts: int = 0
    where: str = ""
    code: int | None = None
    seconds: float = 0.0
    error: str = ""


class JobLog:
    """The job log of a sweep's folder, locked by this process until `close`.

    Raises:
        UsageError: if another sweep is at work in the folder.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = path_in(folder)
        self._lock = FileLock(folder / ".lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            owner = next((event["owner"] for event in reversed(events(folder)) if "owner" in event), "unknown")
            raise UsageError(f"{folder} is in use by a sweep ({owner}); wait for it, or give another name=") from None
        self.entries = replay(folder)
        self.torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
        self.error = ""  # of the disk, if the last event could not be written
        self._append([{"owner": here()}])

    def entry(self, job: Job) -> Entry:
        """The state of a job; waiting if it has none."""
        return self.entries.get(job.name, Entry())

    def write(self, job_name: str, state: str, **fields: Any) -> Entry:
        """Add an event; `fields` are those of `Entry` that change."""
        self._append([{"job": job_name, "state": state, **fields}])
        self.entries[job_name] = replace(self.entries.get(job_name, Entry()), state=state, **fields)
        return self.entries[job_name]

    def expect(self, names: list[str]) -> None:
        """Write down jobs that are waiting and that the log does not have."""
        new = [name for name in names if name not in self.entries]
        self._append([{"job": name, "state": "waiting"} for name in new])
        self.entries.update(dict.fromkeys(new, Entry()))

    def close(self) -> None:
        """Let another sweep in."""
        self._lock.release()

    def _append(self, events: list[dict[str, Any]]) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        lines = "".join(json.dumps({"time": stamp, **event}) + "\n" for event in events)
        try:
            with self.path.open("a") as file:
                file.write("\n" * self.torn + lines)
                file.flush()
                os.fsync(file.fileno())
            self.torn, self.error = False, ""
        except OSError as error:
            self.torn, self.error = True, str(error)


def events(folder: Path) -> list[dict[str, Any]]:
    """Whole events of a job log, in order; none if there is no such file."""
    path, found = path_in(folder), []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            found.append(event)
    return found


def path_in(folder: Path) -> Path:
    """The job log of a sweep's folder."""
    return folder / (OLD_NAME if (folder / OLD_NAME).exists() else NAME)


def replay(folder: Path) -> dict[str, Entry]:
    """Job -> its state after all events of a folder's log; may be called while the sweep runs."""
    known = {field.name for field in fields(Entry)}
    entries: dict[str, Entry] = {}
    for event in events(folder):
        if isinstance(event.get("job"), str) and event.get("state") in STATES:
            changes = {key: value for key, value in event.items() if key in known}
            entries[event["job"]] = replace(entries.get(event["job"], Entry()), **changes)
    return entries
