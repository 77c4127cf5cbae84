"""Jobs on a SLURM cluster, through submitit: `launcher=slurm launcher.partition=... launcher.minutes=...`.

What a sweep submits at one moment is one job array. A job that is preempted, or reaches its time limit, saves and is
queued again under its old id; SLURM does this alone, without the sweep's own process. Which job has which id is kept in
the sweep's folder: a sweep that was killed and starts again adopts what is still queued or running.

submitit writes what it runs, and what came of it, as pickles and reads them back; they are our own, in our own folder
(sweep/submitit). Nothing of foreign origin is read there.
"""

import math
import os
import re
import shutil
import signal
import subprocess
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lodestar.files import read_json
from lodestar.settings import setting
from runners.run.checkpoint import write_json
from runners.run.child import SAVE_S, Argv, Child, Outcome
from runners.run.config import UsageError, Values
from runners.run.exits import TERMINATED
from runners.sweep.job import Job, Launcher

# Job name -> id, in submitit's folder.
BATCH_IDS_FILE = "jobs.json"
# Jobs queued or running, unless the user says otherwise; below the usual limit of a job array.
DEFAULT_BATCH_SLOTS = 100
# How often a job may come to its time limit and be queued again.
MAX_TIME_LIMITS = 1000
# Between two looks for results.
RESULT_POLL_S = 0.5
# Between two questions to SLURM about jobs that have no result yet.
SLURM_POLL_S = 60.0
# How long the result of a job that ended may take to show on a network filesystem.
RESULT_DELAY_S = 15.0
ALIVE_STATES = ("PENDING", "RUNNING", "REQUEUED", "SUSPENDED", "CONFIGURING", "COMPLETING", "RESIZING", "PREEMPTED")


@dataclass
class Slurm(Launcher):
    """Runs jobs under SLURM."""

    slots: int = setting(None, f"jobs queued or running at once; null is {DEFAULT_BATCH_SLOTS}", ">= 1")
    partition: str | None = setting(None, "as sbatch takes it; null leaves it to the cluster")
    minutes: int = setting(240, "time limit of a job; one that needs longer is queued again and continues", ">= 1")
    memory_gb: float | None = setting(None, "of a job; null leaves it to the cluster", "> 0")
    cpus: int = setting(1, "of a job", ">= 1")
    gpus: int = setting(0, "of a job; SLURM shares none, so a job's own fraction is rounded up", ">= 0")
    account: str | None = setting(None, "as sbatch takes it")
    setup: list[str] = setting([], "shell commands that every job begins with, as in 'module load cuda'")
    notice_s: int = setting(90, "seconds before the time limit at which a job is asked to save", ">= 1")
    executor: str = setting("slurm", "or local: processes here, through submitit", "slurm | local")

    def __post_init__(self) -> None:
        import submitit

        super().__post_init__()
        self._submitit: Any = submitit
        self._is_local = self.executor == "local"
        if not self._is_local and not (shutil.which("sbatch") and shutil.which("srun")):
            raise UsageError(
                "launcher=slurm needs SLURM's commands, and sbatch or srun is not on the PATH; "
                "start the sweep on a login node, or give launcher=local"
            )
        self.slots = self.slots or DEFAULT_BATCH_SLOTS
        self._folder: Path | None = None
        self._running: dict[str, _BatchJob] = {}
        self._asked_at = time.monotonic()

    def submit(self, job: Job) -> str:
        """Take a job, which the next `wait` submits with the others; one that is queued already is adopted."""
        if self._folder is None:
            self._folder = _home(job) / "submitit" / self.executor
            self._folder.mkdir(parents=True, exist_ok=True)
        batch_id = _read_ids(self._folder).get(job.name)
        if batch_id is not None:
            handle_type = self._submitit.LocalJob if self._is_local else self._submitit.SlurmJob
            batch_job = _BatchJob(job, handle_type(self._folder, batch_id), self.executor)
            if batch_job.is_alive():
                self._running[job.name] = batch_job
                return batch_job.where
        self._waiting.append(job)
        return self.executor

    def cancel(self, name: str) -> None:
        super().cancel(name)
        if name in self._running:
            self._running[name].ask()

    def close(self) -> None:
        """Ask all jobs to save and exit, and cancel what does not; `wait(0)` still returns how they ended."""
        with suppress(Exception):
            for job in [*self._waiting]:
                self.cancel(job.name)
            for name in self._running:
                self.cancel(name)
            end = time.monotonic() + SAVE_S + RESULT_DELAY_S
            while self._running and time.monotonic() < end:
                self._collect(RESULT_POLL_S)
        for batch_job in self._running.values():
            with suppress(Exception):
                batch_job.kill()
        self._running.clear()

    def _submit_waiting(self) -> None:
        """Submit what waits: one array for all jobs that want the same number of GPUs."""
        by_gpus = defaultdict(list)
        for job in self._waiting:
            by_gpus[max(self.gpus, math.ceil(job.gpus))].append(job)
        self._waiting = []
        for gpus, jobs in by_gpus.items():
            executor = self._make_executor(gpus)
            with executor.batch():
                handles = [executor.submit(Attempt(job.argv, job.folder.absolute(), Path.cwd())) for job in jobs]
            for job, handle in zip(jobs, handles):
                self._running[job.name] = _BatchJob(job, handle, self.executor)
            assert self._folder is not None
            ids = _read_ids(self._folder)
            for name, batch_job in self._running.items():
                ids[name] = batch_job.handle.job_id
            write_json(self._folder / BATCH_IDS_FILE, ids)

    def _collect(self, timeout: float) -> None:
        self._submit_waiting()
        time.sleep(min(timeout, RESULT_POLL_S))
        if time.monotonic() - self._asked_at > SLURM_POLL_S and self._running:
            self._asked_at = time.monotonic()
            # submitit asks about all jobs when it asks about one of them.
            batch_job = next(iter(self._running.values()))
            batch_job.handle.done(force_check=True)
        for name, batch_job in [*self._running.items()]:
            outcome = batch_job.outcome()
            if outcome is not None:
                self._ended.append((batch_job.job, outcome))
                del self._running[name]

    def _make_executor(self, gpus: int) -> Any:
        options: Values = {"cpus_per_task": self.cpus, "signal_delay_s": self.notice_s}
        options |= {"gpus_per_node": gpus, "setup": self.setup}
        # The two executors of submitit have their own names for a time limit and for memory.
        if self._is_local:
            executor = self._submitit.LocalExecutor(self._folder, max_num_timeout=MAX_TIME_LIMITS)
            options |= {"timeout_min": self.minutes, "mem_gb": self.memory_gb}
        else:
            executor = self._submitit.SlurmExecutor(self._folder, max_num_timeout=MAX_TIME_LIMITS)
            options |= {"time": self.minutes, "job_name": "lodestar", "array_parallelism": self.slots}
            options |= {"partition": self.partition, "account": self.account}
            if self.memory_gb is not None:
                options["mem"] = f"{math.ceil(self.memory_gb * 1024)}MB"
        # What is left to the cluster is not named.
        given = {}
        for name, value in options.items():
            if value:
                given[name] = value
        executor.update_parameters(**given)
        return executor


class _BatchJob:
    """A job that was submitted, by us or by a sweep before us."""

    def __init__(self, job: Job, handle: Any, executor: str) -> None:
        self.job = job
        self.handle = handle
        self.local = executor == "local"
        self.where = f"{executor} {handle.job_id}"
        self._asked = False
        # Since when it is over but has left no result.
        self._without_result: float | None = None

    def is_alive(self) -> bool:
        """Whether it is still queued or running."""
        if self.handle.paths.result_pickle.exists():
            return False
        if not self.local:
            state = self.handle.watcher.get_state(self.handle.job_id, mode="force")
            return state.split()[0].upper() in ALIVE_STATES
        # This takes the exit code of a child of ours, which otherwise stays as a zombie.
        self.handle.get_info()
        with suppress(ProcessLookupError):
            os.kill(int(self.handle.job_id), 0)
            return True
        return False

    def ask(self) -> None:
        """Ask it to save and exit."""
        self._asked = True
        self._end(signal.SIGTERM, ["--state=PENDING"], ["--signal=TERM"])

    def kill(self) -> None:
        """End it at once: submitit's own process kills upon SIGINT what it started."""
        self._end(signal.SIGINT, [])

    def _end(self, local_signal: int, *scancel: list[str]) -> None:
        if self.local:
            with suppress(ProcessLookupError):
                os.kill(int(self.handle.job_id), local_signal)
            return
        for options in scancel:
            subprocess.call(["scancel", *options, self.handle.job_id])

    def outcome(self) -> Outcome | None:
        """How it ended; None while it has not."""
        if self.handle.paths.result_pickle.exists():
            return self._result()
        is_running = self.is_alive() if self.local else not self.handle.done()
        if is_running:
            return None
        now = time.monotonic()
        self._without_result = self._without_result or now
        delay = RESULT_POLL_S if self.local else RESULT_DELAY_S
        if now - self._without_result < delay:
            return None
        if self._asked:
            return Outcome(TERMINATED, 0.0, self.where, "stopped")
        state = "it is gone" if self.local else self.handle.state
        return Outcome(None, 0.0, self.where, f"ended without a result ({state})")

    def _result(self) -> Outcome:
        try:
            outcome = self.handle.result()
        except Exception as failure:
            # It is submitit's own error, with the traceback of what happened there: its first line counts, or the
            # last one that names an error.
            reason = ""
            for line in str(failure).splitlines():
                if "Error" in line or (line.strip(" -") and not reason):
                    reason = line.strip()
            return Outcome(None, 0.0, self.where, f"submitit could not run it ({reason or 'no reason known'})")
        # SLURM ended it, for another job or for its time, and it is to continue.
        if outcome.code == TERMINATED and not self._asked:
            if not self.local:
                # SLURM may have queued it again by itself.
                subprocess.call(["scancel", self.handle.job_id])
            outcome = replace(outcome, code=None, error="its batch job was ended from outside")
        return replace(outcome, where=f"{self.where} {outcome.where}")


@dataclass
class Attempt:
    """What submitit runs: a job in a process of its own, which signals to the batch job reach."""

    argv: Argv
    folder: Path
    home: Path
    _child: Child | None = None

    def __call__(self) -> Outcome:
        """Run it."""
        child = Child(self.argv, self.folder, self.home)
        self._child = child
        # SLURM signals only the process that it started.
        signal.signal(signal.SIGTERM, lambda *_: child.ask())
        return child.wait()

    def checkpoint(self) -> Any:
        """Save and exit; submitit calls this before the batch job is queued again with what is returned."""
        if self._child is not None:
            self._child.stop()
        import submitit

        return submitit.helpers.DelayedSubmission(Attempt(self.argv, self.folder, self.home))


def _home(job: Job) -> Path:
    """The sweep's folder: jobs live in its folder `jobs`, under their names; else the one around the job's."""
    folder = job.folder.absolute()
    parts = Path(job.name).parts
    if folder.parts[-len(parts) :] == parts:
        return folder.parents[len(parts)]
    return folder.parent


def _read_ids(folder: Path) -> dict[str, str]:
    """Job name -> its id. To `scancel` a -1 would be all jobs of the user, so only what is an id counts."""
    ids = {}
    for name, batch_id in read_json(folder / BATCH_IDS_FILE).items():
        if re.fullmatch(r"[1-9]\d*(_\d+)?", str(batch_id)):
            ids[name] = batch_id
    return ids
