"""What a person sees of a sweep: a live table on a terminal, plain lines elsewhere, and a summary at the end."""

from __future__ import annotations

from typing import Any

from runners.sweep.job import LOG, Job
from runners.sweep.ledger import Entry


class Table:
    """How a sweep goes."""

    def __init__(self, jobs: list[Job], slots: int) -> None:
        self.jobs, self.slots = jobs, slots

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def tick(self, entries: dict[str, Entry], running: list[Job]) -> None:
        """Show how the jobs stand."""

    def ended(self, job: Job, entry: Entry) -> None:
        """One line about an attempt that ended."""
        print(f"{entry.state:<9} {job.name}  {entry.seconds:.1f} s  {entry.error}".rstrip(), flush=True)

    def say(self, sentence: str) -> None:
        """A line above the table."""
        print(sentence, flush=True)


def summary(jobs: list[Job], entries: dict[str, Entry], seconds: float) -> str:
    """The table at the end."""
    failed = [job for job in jobs if entries[job.name].state == "failed"]
    lines = [f"failed: {job.name}: {entries[job.name].error} ({job.folder / LOG})" for job in failed]
    return "\n".join([*lines, f"{len(jobs) - len(failed)} finished in {seconds:.0f} s"])
