"""The job log of a sweep's folder, as it is read: the state of every job. `runners.sweep.job` writes it.

It has one line for every change of a job. A line that a crash tore is left out.
"""

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lodestar.files import LARGE, read_text

JOB_LOG_NAME = "jobs.jsonl"
# Sweeps that were begun under the old name keep it.
OLD_JOB_LOG_NAME = "ledger.jsonl"
JOB_STATES = ("waiting", "running", "finished", "failed", "stopped", "lost")


@dataclass(frozen=True)
class Entry:
    """The state of a job."""

    # One of `JOB_STATES`; lost: it was running when its sweep or its machine vanished.
    state: str = "waiting"
    # How often it was started.
    attempts: int = 0
    # host:pid and the like, of the last attempt.
    where: str = ""
    # Of the last attempt; None while it runs, or if it is unknown.
    code: int | None = None
    # Of all attempts together.
    seconds: float = 0.0
    # One sentence; empty unless it failed.
    error: str = ""


def events(folder: Path) -> list[dict[str, Any]]:
    """Whole events of a job log, in order; none if there is no such file."""
    path = path_in(folder)
    if not path.exists():
        return []
    whole_events = []
    for line in read_text(path, LARGE).splitlines():
        # A crash may have torn a line.
        with suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict):
                whole_events.append(event)
    return whole_events


def path_in(folder: Path) -> Path:
    """The job log of a sweep's folder."""
    old_path = folder / OLD_JOB_LOG_NAME
    if old_path.exists():
        return old_path
    return folder / JOB_LOG_NAME


def replay(folder: Path) -> dict[str, Entry]:
    """Job -> its state after all events of a folder's log; may be called while the sweep runs."""
    names = Entry.__dataclass_fields__
    entries: dict[str, Entry] = {}
    for event in events(folder):
        job = event.get("job")
        if isinstance(job, str) and event.get("state") in JOB_STATES:
            changes = {key: value for key, value in event.items() if key in names}
            entries[job] = replace(entries.get(job, Entry()), **changes)
    return entries
