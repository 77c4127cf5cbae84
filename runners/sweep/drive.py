"""The loop of a sweep: submit, wait, log, try again, until every job has ended.

A job that its own folder calls finished is never run again. Errors that would come back (a wrong argument, a missing
package, NaN or infinite numbers) fail a job at once; a crash or a broken environment is tried again and continues from
the last checkpoint. A lost machine, or a folder that another process holds, is no crash of the job.
"""

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from filelock import Timeout

from lodestar.files import LARGE, read_text
from runners.report.job_log import Entry
from runners.run.child import Outcome
from runners.run.exits import HELD, MISSING, NUMERICAL, OK, STOPPING, USAGE, Signals, Stopped
from runners.run.folder import LOG, lock_of, read_status
from runners.sweep.job import Job, JobLog, Launcher

RESUME = ("unfinished", "errored", "never")
# Exit codes of a job that would fail in the same way again.
FINAL_CODES = (USAGE, MISSING, NUMERICAL)
# How often a job's machine may be lost in a sweep's life: a job that brings its machine down must end.
MAX_MACHINE_LOSSES = 10
# How long a status may take to reach us over a network filesystem.
STATUS_DELAY_S = 5.0
# How long a signal may wait; jobs that end are noticed at once.
TICK_S = 0.5


class Watcher:
    """Follows a sweep, and does nothing; `runners.sweep.display` prints it, `runners.tune.search` steers by it."""

    def tick(self, entries: dict[str, Entry], running: list[Job]) -> None:
        """Twice a second, and whenever something changed."""

    def attempt_ended(self, job: Job, entry: Entry) -> None:
        """An attempt ended; there may be another."""

    def job_ended(self, job: Job, entry: Entry) -> None:
        """A job ended for good: finished, failed or stopped. Called once for each."""

    def message(self, sentence: str) -> None:
        """A sentence for the user."""


def drive(
    jobs: Iterable[Job],
    log: JobLog,
    launcher: Launcher,
    *,
    resume: str = "unfinished",
    attempts: int = 3,
    watcher: Watcher | None = None,
) -> dict[str, Entry]:
    """Run jobs until every one has ended; returns the job log's entries.

    Args:
        jobs: a list, or what makes the next job when a slot is free.
        resume: which jobs of an earlier sweep run: "unfinished" (waiting, running, stopped or lost), "errored" (also
            what failed), or "never" (none that was begun).
        attempts: how often a job is started before it counts as failed; attempts that were lost with the machine, at
            most `MAX_MACHINE_LOSSES`, do not count.

    Raises:
        Stopped: if a signal came that asks to end; the launcher is closed, the jobs have saved.
    """
    loop = _Loop(log, launcher, resume, attempts, watcher or Watcher())
    signals = Signals(deferred=True)
    # Python hands signals to the main thread alone.
    is_main = threading.current_thread() is threading.main_thread()
    with signals if is_main else nullcontext():
        try:
            loop.run(iter(jobs), signals)
        except BaseException:
            loop.stop()
            raise
    return log.entries


@dataclass
class _Loop:
    log: JobLog
    launcher: Launcher
    resume: str
    attempts: int
    watcher: Watcher
    running: dict[str, Job] = field(default_factory=dict)
    # Jobs that failed and will be tried again.
    failed: list[Job] = field(default_factory=list)
    # Jobs in whose folder another process is at work.
    held: list[Job] = field(default_factory=list)
    # Job -> attempts that the job itself ended, in this sweep's life.
    tries: Counter[str] = field(default_factory=Counter)
    # Job -> attempts that ended with the machine.
    losses: Counter[str] = field(default_factory=Counter)
    # The error of the job log that was printed last.
    log_error: str = ""

    def run(self, jobs: Iterator[Job], signals: Signals) -> None:
        has_more = True
        while has_more or self.running or self.failed or self.held:
            if signals.received is not None:
                raise Stopped(signals.received)
            for held in [*self.held]:
                if self._has_room() and not at_work(held.folder):
                    self.held.remove(held)
                    # The process that it waited for may have finished it.
                    if self._is_wanted(held):
                        self._submit(held)
            while has_more and self._has_room():
                job = next(jobs, None)
                if job is None:
                    has_more = False
                elif self._is_wanted(job):
                    self._submit(job)
            while self.failed and self._has_room():
                self._submit(self.failed.pop(0))
            self._tick()
            if self.running:
                for job, outcome in self.launcher.wait(TICK_S):
                    self._account(job, outcome)
            elif self.held:
                time.sleep(TICK_S)
        self._tick()

    def stop(self) -> None:
        """Jobs save and exit, which is logged."""
        self.launcher.close()
        for job, outcome in self.launcher.wait(0):
            self._account(job, outcome, stopping=True)
        # A launcher may not return all of its jobs.
        for name, job in self.running.items():
            self.log.write(name, "finished" if job.is_finished else "stopped")
        self.running.clear()

    def _has_room(self) -> bool:
        return len(self.running) < self.launcher.slots

    def _is_wanted(self, job: Job) -> bool:
        """Whether a job is to run; one that is finished is never run again."""
        entry = self.log.entry(job.name)
        if job.is_finished and entry.state != "finished":
            entry = self.log.write(job.name, "finished", code=OK, error="")
        if job.is_finished or (entry.state == "failed" and self.resume != "errored"):
            self.watcher.job_ended(job, entry)
            return False
        # The sweep that started it has vanished: the log of this one is locked.
        if entry.state == "running":
            self.log.write(job.name, "lost")
        return True

    def _submit(self, job: Job) -> None:
        owner = at_work(job.folder)
        if owner:
            if job not in self.held:
                self.held.append(job)
                self.watcher.message(f"{job.name} waits: {owner} is at work in its folder")
            return
        where = self.launcher.submit(job)
        self.running[job.name] = job
        attempts = self.log.entry(job.name).attempts + 1
        self.log.write(job.name, "running", attempts=attempts, where=where, code=None, error="")

    def _account(self, job: Job, outcome: Outcome, *, stopping: bool = False) -> None:
        """Write down how an attempt ended, and decide whether there is another."""
        self.running.pop(job.name, None)
        seconds = round(self.log.entry(job.name).seconds + outcome.seconds, 3)
        error = ""
        if _is_finished(job, outcome):
            state = "finished"
        elif stopping or _is_stopped(outcome):
            state = "stopped"
        else:
            error = outcome.error or last_words(job, outcome.code)
            # Held: a run of a lost sweep, for instance, may have come to the folder after we looked.
            state = "waiting"
            if outcome.code != HELD and self._is_last_attempt(job, outcome.code):
                state = "failed"
        entry = self.log.write(job.name, state, code=outcome.code, seconds=seconds, error=error, where=outcome.where)
        self.watcher.attempt_ended(job, entry)
        if state != "waiting":
            self.watcher.job_ended(job, entry)
        elif outcome.code == HELD:
            self.held.append(job)
        else:
            self.failed.append(job)

    def _is_last_attempt(self, job: Job, code: int | None) -> bool:
        """Count an attempt that failed; whether there is no other."""
        if code is None:
            self.losses[job.name] += 1
            return self.losses[job.name] >= MAX_MACHINE_LOSSES
        self.tries[job.name] += 1
        return code in FINAL_CODES or self.tries[job.name] >= self.attempts

    def _tick(self) -> None:
        error = self.log.error
        if error != self.log_error:
            self.log_error = error
            state = f"cannot be written ({error}); jobs continue" if error else "can be written again"
            self.watcher.message(f"the job log {state}")
        self.watcher.tick(self.log.entries, list(self.running.values()))


def _is_stopped(outcome: Outcome) -> bool:
    """Whether a job was asked to exit: by its own exit code, or by that of Python where a signal ended it."""
    return outcome.code is not None and (outcome.code - 128 in STOPPING or -outcome.code in STOPPING)


def _is_finished(job: Job, outcome: Outcome) -> bool:
    """Whether the run itself reports so: an exit code 0 alone may be an environment's that called `exit`."""
    end = time.monotonic()
    if outcome.code == OK:
        end += STATUS_DELAY_S
    while not job.is_finished:
        if time.monotonic() >= end:
            return False
        time.sleep(0.1)
    return True


def at_work(folder: Path) -> str:
    """What holds the lock of a run's folder, as "process 123"; empty if nothing does."""
    try:
        if (folder / ".lock").exists():
            lock_of(folder).acquire(timeout=0).lock.release()
    except Timeout:
        return f"process {read_status(folder).get('pid', 'of another command')}"
    return ""


def last_words(job: Job, code: int | None) -> str:
    """One sentence about a job that failed, from its status or its log."""
    if code is None:
        return "its process, or its machine, was lost"
    if code == OK:
        return "its process ended with exit code 0 before the run was finished; something in it calls exit"
    if code < 0:
        name = f"signal {-code}"
        with suppress(ValueError):
            name = signal.Signals(-code).name
        hint = " (was there too little memory?)" if -code == signal.SIGKILL else ""
        return f"its process was ended by {name}{hint}"
    status = read_status(job.folder)
    if status.get("exit_code") == code and status.get("error"):
        return status["error"]
    try:
        lines = read_text(job.folder / LOG, LARGE).strip().splitlines()
    except OSError:
        lines = []
    if not lines:
        return f"exit code {code}"
    for line in reversed(lines):
        if line.startswith("error: "):
            return line.removeprefix("error: ")
    return lines[-1]
