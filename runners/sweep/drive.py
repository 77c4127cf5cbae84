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
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from filelock import Timeout

from lodestar.files import LARGE, read_text
from runners.run.exits import HELD, MISSING, NUMERICAL, OK, STOPPING, USAGE, Signals, Stopped
from runners.run.folder import lock_of, read_status
from runners.sweep.job import LOG, Entry, Job, JobLog, Launcher, Outcome

RESUME = ("unfinished", "errored", "never")
FINAL = (USAGE, MISSING, NUMERICAL)  # would fail in the same way again
ASKED = {code for number in STOPPING for code in (128 + number, -number)}  # this one job was asked to exit
LOSSES = 10  # how often a job's machine may be lost in a sweep's life; a job that brings its machine down must end
SEEN_S = 5.0  # how long a status may take to reach us over a network filesystem
TICK_S = 0.5  # how long a signal may wait; jobs that end are noticed at once


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
        attempts: how often a job is started before it counts as failed, lost machines (at most `LOSSES`) not counted.

    Raises:
        Stopped: if a signal came that asks to end; the launcher is closed, the jobs have saved.
    """
    loop = _Loop(log, launcher, resume, attempts, watcher or Watcher())
    signals = Signals(deferred=True)
    with signals if threading.current_thread() is threading.main_thread() else nullcontext():  # others take no signals
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
    again: list[Job] = field(default_factory=list)  # failed, and will be tried again
    held: list[Job] = field(default_factory=list)  # another process is at work in the folder
    tries: Counter[str] = field(default_factory=Counter)  # ended by the job itself, in this sweep's life
    losses: Counter[str] = field(default_factory=Counter)  # ended with the machine
    log_error: str = ""  # that was printed already

    def run(self, jobs: Iterator[Job], signals: Signals) -> None:
        more = True
        while more or self.running or self.again or self.held:
            if signals.received is not None:
                raise Stopped(signals.received)
            self._take_up_held()
            while more and len(self.running) < self.launcher.slots:
                job = next(jobs, None)
                more = job is not None
                if job is not None and self._wanted(job):
                    self._submit(job)
            while self.again and len(self.running) < self.launcher.slots:
                self._submit(self.again.pop(0))
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
        for name in [*self.running]:  # of a launcher that does not return them
            job = self.running.pop(name)
            self.log.write(name, "finished" if job.finished else "stopped")

    def _wanted(self, job: Job) -> bool:
        """Whether a job is to run; one that is finished is never run again."""
        entry = self.log.entry(job.name)
        if job.finished and entry.state != "finished":
            entry = self.log.write(job.name, "finished", code=OK, error="")
        if job.finished or (entry.state == "failed" and self.resume != "errored"):
            self.watcher.job_ended(job, entry)
            return False
        if entry.state == "running":  # its sweep vanished
            self.log.write(job.name, "lost")
        return True

    def _submit(self, job: Job) -> None:
        owner = at_work(job.folder)
        if owner:
            if job not in self.held:
                self.held.append(job)
                self.watcher.message(f"{job.name} waits: {owner} is at work in its folder")
            return
        if job.finished:  # by the one it waited for
            self.watcher.job_ended(job, self.log.write(job.name, "finished", code=OK, error=""))
            return
        where = self.launcher.submit(job)
        self.running[job.name] = job
        attempts = self.log.entry(job.name).attempts + 1
        self.log.write(job.name, "running", attempts=attempts, where=where, code=None, error="")

    def _take_up_held(self) -> None:
        for job in [job for job in self.held if not at_work(job.folder)]:
            if len(self.running) < self.launcher.slots:
                self.held.remove(job)
                self._submit(job)

    def _account(self, job: Job, outcome: Outcome, *, stopping: bool = False) -> None:
        """Write down how an attempt ended, and decide whether there is another."""
        self.running.pop(job.name, None)
        seconds = round(self.log.entry(job.name).seconds + outcome.seconds, 3)
        if _finished(job, outcome):
            state, error = "finished", ""
        elif stopping or outcome.code in ASKED:
            state, error = "stopped", ""
        elif outcome.code == HELD:  # by a run of a lost sweep, say, that came to the folder when we had looked
            state, error = "waiting", outcome.error or last_words(job, outcome.code)
        else:
            counts, bound = (self.losses, LOSSES) if outcome.code is None else (self.tries, self.attempts)
            counts[job.name] += 1
            done_for = outcome.code in FINAL or counts[job.name] >= bound
            state, error = "failed" if done_for else "waiting", outcome.error or last_words(job, outcome.code)
        entry = self.log.write(job.name, state, code=outcome.code, seconds=seconds, error=error, where=outcome.where)
        self.watcher.attempt_ended(job, entry)
        if state == "waiting":
            (self.held if outcome.code == HELD else self.again).append(job)
        else:
            self.watcher.job_ended(job, entry)

    def _tick(self) -> None:
        if self.log.error != self.log_error:
            self.log_error = self.log.error
            state = f"cannot be written ({self.log_error}); jobs continue" if self.log_error else "can be written again"
            self.watcher.message(f"the job log {state}")
        self.watcher.tick(self.log.entries, list(self.running.values()))


def _finished(job: Job, outcome: Outcome) -> bool:
    """Whether the run itself reports so: an exit code 0 alone may be an environment's that called `exit`."""
    end = time.monotonic() + SEEN_S * (outcome.code == OK)
    while not job.finished:
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
        return f"process {(read_status(folder) or {}).get('pid', 'of another command')}"
    return ""


def last_words(job: Job, code: int | None) -> str:
    """One sentence about a job that failed, from its status or its log."""
    if code is None:
        return "its process, or its machine, was lost"
    if code == OK:
        return "its process ended with exit code 0 before the run was finished; something in it calls exit"
    if code < 0:
        name = signal.Signals(-code).name if -code in {*signal.Signals} else f"signal {-code}"
        hint = " (was there too little memory?)" if -code == signal.SIGKILL else ""
        return f"its process was ended by {name}{hint}"
    status = read_status(job.folder) or {}
    if status.get("exit_code") == code and status.get("error"):
        return str(status["error"])
    try:
        lines = read_text(job.folder / LOG, LARGE).strip().splitlines()
    except OSError:
        lines = []
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or [f"exit code {code}"])[-1]
