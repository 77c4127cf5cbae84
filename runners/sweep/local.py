"""Jobs as processes of this machine: one a core, and if they ask for it a share of a GPU each.

Jobs are forked from a process that has imported everything already (`runners.sweep.warm`), which saves each the
seconds that torch takes. A job whose sweep is killed saves and exits, so that nothing is left behind.
"""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from envs.vector.workers import cores
from lodestar.settings import setting
from runners.run.config import UsageError
from runners.run.exits import TERMINATED
from runners.sweep.job import Job, Launcher, Outcome, work

WARM = "runners.sweep.warm"
HOST = socket.gethostname()
UNKNOWN = 255  # the exit code of multiprocessing where it is unknown how a process ended

Work = Callable[[tuple[str, ...], Path], int]


@dataclass
class _JobProcess:
    job: Job
    process: BaseProcess
    slot: int
    gpus: list[str]
    began: float


@dataclass
class Local(Launcher):
    """Runs jobs as processes of this machine. A job gets cores for itself where there are enough."""

    slots: int = setting(None, "jobs at once; null takes one a core", low=1)
    grace: float = setting(60.0, "seconds that a job has to save and exit before it is killed", low=0)
    work: Work = work  # what a job's process does: (argv, folder) -> exit code

    def __post_init__(self) -> None:
        super().__post_init__()
        self.slots = self.slots or cores()
        self._context = warm_up()
        self._free = list(range(self.slots))
        self._queue: list[Job] = []  # submitted, but no GPU has room
        self._running: dict[Any, _JobProcess] = {}  # by what becomes ready when its process ends
        self._gpus: dict[str, float] = {}  # name -> its free share, once a job has asked for one

    def submit(self, job: Job) -> str:
        """Start a job, or keep it until a GPU has room for it; a UsageError if there are too few GPUs."""
        if job.gpus and not self._gpus:
            self._gpus = dict.fromkeys(devices(), 1.0)
        if job.gpus > len(self._gpus):
            raise UsageError(f"gpus={job.gpus:g} a job, but this machine has {len(self._gpus)}; give less, or 0")
        self._queue.append(job)
        self._start()
        return next((f"{HOST}:{run.process.pid}" for run in self._running.values() if run.job is job), HOST)

    def cancel(self, name: str) -> None:
        """Ask a job to save and exit."""
        for job in [job for job in self._queue if job.name == name]:
            self._queue.remove(job)
            self._ended.append((job, Outcome(TERMINATED, 0.0, HOST)))
        for run in self._running.values():
            if run.job.name == name:
                run.process.terminate()

    def close(self) -> None:
        """Ask all to save and exit; what does not is killed after `grace` seconds."""
        self._queue.clear()
        for run in self._running.values():
            run.process.terminate()
        deadline = time.monotonic() + self.grace
        while self._running:
            ready = connection.wait(list(self._running), max(deadline - time.monotonic(), 0))
            if not ready:
                for run in self._running.values():
                    _kill(run.process)
                ready = connection.wait(list(self._running), 10)
            self._ended += map(self._outcome, ready)

    def _start(self) -> None:
        """Start what is submitted, as far as there is room."""
        for job in list(self._queue):
            gpus = self._take(job.gpus)
            if not self._free or gpus is None:
                continue
            self._queue.remove(job)
            slot = self._free.pop(0)
            arguments = (self.work, job.argv, job.folder, self._cores(slot), gpus, self.grace)
            process = self._context.Process(target=_job, args=arguments)
            process.start()
            self._running[process.sentinel] = _JobProcess(job, process, slot, gpus, time.monotonic())

    def _collect(self, timeout: float) -> None:
        self._ended += map(self._outcome, connection.wait(list(self._running), timeout))
        self._start()

    def _outcome(self, sentinel: object) -> tuple[Job, Outcome]:
        """The outcome of a process that ended; its slot and GPUs are free again."""
        run = self._running.pop(sentinel)
        run.process.join()
        code = run.process.exitcode
        if code is None or code < 0 or code == UNKNOWN:
            _kill(run.process)  # what it may have left behind
        self._free.append(run.slot)
        for gpu in run.gpus:
            self._gpus[gpu] += min(run.job.gpus, 1.0)
        seconds = time.monotonic() - run.began
        return run.job, Outcome(None if code == UNKNOWN else code, seconds, f"{HOST}:{run.process.pid}")

    def _take(self, share: float) -> list[str] | None:
        """GPUs with room for a job, which is taken; None if there is none now."""
        if not share or not self._free:
            return []
        each, wanted = min(share, 1.0), max(round(share), 1)
        roomy = sorted((gpu for gpu, free in self._gpus.items() if free > each - 1e-6), key=self._gpus.__getitem__)
        if len(roomy) < wanted:
            return None
        for gpu in roomy[-wanted:]:
            self._gpus[gpu] -= each
        return roomy[-wanted:]

    def _cores(self, slot: int) -> list[int]:
        """The cores of a slot, its own; none if there are fewer than slots."""
        affinity = getattr(os, "sched_getaffinity", None)  # Linux alone
        mine = sorted(affinity(0)) if affinity else []
        share = len(mine) // self.slots
        return mine[slot * share : (slot + 1) * share]


def warm_up() -> Any:
    """Start the process that jobs are forked from, without waiting for it; returns what makes processes of it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([WARM])
    forkserver.ensure_running()
    return context


def devices() -> list[str]:
    """Names of the GPUs that this process may use, as CUDA_VISIBLE_DEVICES has them."""
    question = "import torch; print(torch.cuda.device_count())"  # asked elsewhere: CUDA must not begin in this process
    answer = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True)
    count = int(answer.stdout) if answer.returncode == 0 else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (visible.split(",") if visible else list(map(str, range(count))))[:count]


def _job(work: Work, argv: tuple[str, ...], folder: Path, cores: list[int], gpus: list[str], grace: float) -> None:
    """What a job's process does."""
    os.setsid()  # its own children can be ended with it
    if cores:
        os.sched_setaffinity(0, cores)
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    threading.Thread(target=_guard, args=(grace,), daemon=True).start()
    sys.exit(work(argv, folder))


def _guard(grace: float) -> None:
    """Save and exit when the sweep is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    print("the sweep is gone: this run saves and exits", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace)
    os.killpg(0, signal.SIGKILL)


def _kill(process: BaseProcess) -> None:
    """A job's process and its children."""
    for kill in (process.kill, lambda: os.killpg(process.pid, signal.SIGKILL)):  # type: ignore[arg-type]
        with suppress(OSError):
            kill()
