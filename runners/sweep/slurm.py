"""Jobs on a SLURM cluster, through submitit: `launcher=slurm launcher.partition=... launcher.minutes=...`.

What a sweep submits at one moment is one job array. A job that is preempted, or reaches its time limit, saves and is
queued again under its old id; SLURM does this alone, without the sweep's own process. Which job has which id is kept in
the sweep's folder: a sweep that was killed and starts again adopts what is still queued or running.

submitit writes what it runs, and what came of it, as pickles and reads them back; they are our own, in our own folder
(sweep/submitit). Nothing of foreign origin is read there.
"""

import json
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
from runners.run.checkpoint import write_atomically
from runners.run.config import UsageError
from runners.run.exits import TERMINATED
from runners.sweep.child import SAVE_S, Child
from runners.sweep.job import Job, Launcher, Outcome

IDS = "jobs.json"  # job name -> id, in submitit's folder
AT_ONCE = 100  # jobs queued or running, unless the user says otherwise; below the usual limit of a job array
LIMITS = 1000  # how often a job may come to its time limit and be queued again
POLL_S = 0.5  # between two looks for results
ASK_S = 60.0  # between two questions to SLURM about jobs that have no result yet
RESULT_S = 15.0  # how long the result of a job that ended may take to show on a network filesystem
ALIVE = ("PENDING", "RUNNING", "REQUEUED", "SUSPENDED", "CONFIGURING", "COMPLETING", "RESIZING", "PREEMPTED")


@dataclass
class Slurm(Launcher):
    """Runs jobs under SLURM."""

    slots: int = setting(None, f"jobs queued or running at once; null is {AT_ONCE}", low=1)
    partition: str | None = setting(None, "as sbatch takes it; null leaves it to the cluster")
    minutes: int = setting(240, "time limit of a job; one that needs longer is queued again and continues", low=1)
    memory_gb: float | None = setting(None, "of a job; null leaves it to the cluster", above=0)
    cpus: int = setting(1, "of a job", low=1)
    gpus: int = setting(0, "of a job; SLURM shares none, so a job's own fraction is rounded up", low=0)
    account: str | None = setting(None, "as sbatch takes it")
    setup: list[str] = setting([], "shell commands that every job begins with, as in 'module load cuda'")
    notice_s: int = setting(90, "seconds before the time limit at which a job is asked to save", low=1)
    executor: str = setting("slurm", "or local: processes here, through submitit", choices=("slurm", "local"))

    def __post_init__(self) -> None:
        import submitit

        super().__post_init__()
        self._submitit: Any = submitit
        if self.executor == "slurm" and not (shutil.which("sbatch") and shutil.which("srun")):
            raise UsageError(
                "launcher=slurm needs SLURM's commands, and sbatch or srun is not on the PATH; "
                "start the sweep on a login node, or give launcher=local"
            )
        self.slots = self.slots or AT_ONCE
        self._folder: Path | None = None
        self._waiting: list[Job] = []
        self._running: dict[str, _BatchJob] = {}
        self._asked_at = time.monotonic()

    def submit(self, job: Job) -> str:
        """Take a job, which the next `wait` submits with the others; one that is queued already is adopted."""
        if self._folder is None:
            self._folder = _home(job) / "submitit" / self.executor
            self._folder.mkdir(parents=True, exist_ok=True)
        known = self._ids().get(job.name)
        if known is not None:
            kind = self._submitit.LocalJob if self.executor == "local" else self._submitit.SlurmJob
            adopted = _BatchJob(job, kind(self._folder, known), self.executor == "local")
            if adopted.alive():
                self._running[job.name] = adopted
                return f"{self.executor} {known}"
        self._waiting.append(job)
        return self.executor

    def cancel(self, name: str) -> None:
        """Ask a job to save and exit; one that is still queued ends at once."""
        for job in [job for job in self._waiting if job.name == name]:
            self._waiting.remove(job)
            self._ended.append((job, Outcome(TERMINATED, 0.0, self.executor, "stopped before it began")))
        if name in self._running:
            self._running[name].ask()

    def close(self) -> None:
        """Ask all jobs to save and exit, and cancel what does not; `wait(0)` still returns how they ended."""
        with suppress(Exception):
            for name in [*(job.name for job in self._waiting), *self._running]:
                self.cancel(name)
            end = time.monotonic() + SAVE_S + RESULT_S
            while self._running and time.monotonic() < end:
                self._collect(POLL_S)
        for running in self._running.values():
            with suppress(Exception):
                running.kill()
        self._running.clear()

    def _flush(self) -> None:
        """Submit what waits: one array for all jobs that want the same number of GPUs."""
        groups: dict[int, list[Job]] = defaultdict(list)
        for job in self._waiting:
            groups[max(self.gpus, math.ceil(job.gpus))].append(job)
        for gpus, jobs in groups.items():
            self._waiting = [job for job in self._waiting if job not in jobs]
            executor = self._make_executor(gpus)
            with executor.batch():
                handles = [executor.submit(Attempt(job.argv, job.folder.absolute(), Path.cwd())) for job in jobs]
            for job, handle in zip(jobs, handles):
                self._running[job.name] = _BatchJob(job, handle, self.executor == "local")
            assert self._folder is not None
            ids = self._ids() | {name: running.handle.job_id for name, running in self._running.items()}
            write_atomically(self._folder / IDS, json.dumps(ids, indent=1) + "\n")

    def _collect(self, timeout: float) -> None:
        self._flush()
        time.sleep(min(timeout, POLL_S))
        if time.monotonic() - self._asked_at > ASK_S and self._running:
            self._asked_at = time.monotonic()
            next(iter(self._running.values())).handle.done(force_check=True)  # one question for all of them
        for name, running in [*self._running.items()]:
            outcome = running.outcome()
            if outcome is not None:
                self._ended.append((running.job, outcome))
                del self._running[name]

    def _make_executor(self, gpus: int) -> Any:
        local = self.executor == "local"
        kind = self._submitit.LocalExecutor if local else self._submitit.SlurmExecutor
        executor = kind(self._folder, max_num_timeout=LIMITS)
        options: dict[str, Any] = {"cpus_per_task": self.cpus, "gpus_per_node": gpus, "setup": self.setup}
        options["signal_delay_s"] = self.notice_s
        if local:
            options |= {"timeout_min": self.minutes, "mem_gb": self.memory_gb}
        else:
            memory = None if self.memory_gb is None else f"{math.ceil(self.memory_gb * 1024)}MB"
            options |= {"time": self.minutes, "mem": memory, "partition": self.partition, "account": self.account}
            options |= {"job_name": "lodestar", "array_parallelism": self.slots}
        executor.update_parameters(**{name: value for name, value in options.items() if value not in (None, 0, [])})
        return executor

    def _ids(self) -> dict[str, str]:
        assert self._folder is not None
        ids = read_json(self._folder / IDS)
        return {name: id for name, id in ids.items() if re.fullmatch(r"[1-9]\d*(_\d+)?", str(id))}  # no -1: all


class _BatchJob:
    """A job that was submitted, by us or by a sweep before us."""

    def __init__(self, job: Job, handle: Any, local: bool) -> None:
        self.job, self.handle, self.local = job, handle, local
        self._asked = False
        self._without_result: float | None = None  # since when it is over but has left no result

    def alive(self) -> bool:
        """Whether it is still queued or running."""
        if self.handle.paths.result_pickle.exists():
            return False
        if not self.local:
            return self.handle.watcher.get_state(self.handle.job_id, mode="force").split()[0].upper() in ALIVE
        self.handle.get_info()  # takes the exit code of a child of ours, which otherwise stays as a zombie
        with suppress(ProcessLookupError):
            os.kill(int(self.handle.job_id), 0)
            return True
        return False

    def ask(self) -> None:
        """Ask it to save and exit."""
        self._asked = True
        self._end(signal.SIGTERM, ["--state=PENDING"], ["--signal=TERM"])

    def kill(self) -> None:
        """End it at once."""
        self._end(signal.SIGINT, [])  # upon which submitit kills what it started

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
        if self.alive() if self.local else not self.handle.done():
            return None
        now = time.monotonic()
        self._without_result = self._without_result or now
        if now - self._without_result < (POLL_S if self.local else RESULT_S):
            return None
        if self._asked:
            return Outcome(TERMINATED, 0.0, self._where(), "stopped")
        state = "it is gone" if self.local else self.handle.state
        return Outcome(None, 0.0, self._where(), f"ended without a result ({state})")

    def _result(self) -> Outcome:
        try:
            outcome = self.handle.result()
        except Exception as failure:  # submitit's own, with the traceback of what happened there
            lines = [line for line in str(failure).splitlines() if line.strip(" -")] or ["no reason known"]
            error = next((line for line in reversed(lines) if "Error" in line), lines[0])
            return Outcome(None, 0.0, self._where(), f"submitit could not run it ({error.strip()})")
        if outcome.code == TERMINATED and not self._asked:  # by SLURM, for another job or its time; it is to continue
            if not self.local:
                subprocess.call(["scancel", self.handle.job_id])  # SLURM may have queued it again by itself
            outcome = replace(outcome, code=None, error="its batch job was ended from outside")
        return replace(outcome, where=f"{self._where()} {outcome.where}")

    def _where(self) -> str:
        return f"{'local' if self.local else 'slurm'} {self.handle.job_id}"


class Attempt:
    """What submitit runs: a job in a process of its own, which signals to the batch job reach."""

    def __init__(self, argv: tuple[str, ...], folder: Path, home: Path) -> None:
        self.argv, self.folder, self.home = argv, folder, home
        self._child: Child | None = None

    def __call__(self) -> Outcome:
        """Run it."""
        child = self._child = Child(self.argv, self.folder, self.home)
        signal.signal(signal.SIGTERM, lambda *_: child.ask())  # SLURM signals only the process that it started
        return child.wait()

    def checkpoint(self) -> Any:
        """Save and exit; submitit calls this before the batch job is queued again with what is returned."""
        if self._child is not None:
            self._child.stop()
        import submitit

        return submitit.helpers.DelayedSubmission(Attempt(self.argv, self.folder, self.home))


def _home(job: Job) -> Path:
    """The sweep's folder: jobs live in its folder `jobs`, under their names; else the one around the job's."""
    folder, parts = job.folder.absolute(), Path(job.name).parts
    return folder.parents[len(parts)] if folder.parts[-len(parts) :] == parts else folder.parent
