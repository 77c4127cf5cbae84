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
from runners.run.child import Argv, Outcome
from runners.run.config import UsageError
from runners.sweep.job import Job, Launcher
from runners.sweep.worker import work

WARM = "runners.sweep.warm"
HOST_NAME = socket.gethostname()
# The exit code of multiprocessing where it is unknown how a process ended.
UNKNOWN_EXIT_CODE = 255
# Seconds that processes have to end after they were killed.
KILL_WAIT_S = 10

Work = Callable[[Argv, Path], int]


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

    slots: int = setting(None, "jobs at once; null takes one a core", ">= 1")
    grace: float = setting(60.0, "seconds that a job has to save and exit before it is killed", ">= 0")
    # What a job's process does: (argv, folder) -> exit code.
    work: Work = work

    def __post_init__(self) -> None:
        super().__post_init__()
        self.slots = self.slots or cores()
        self._context = warm_up()
        self._free = list(range(self.slots))
        # What becomes ready when a process ends -> the process.
        self._running: dict[Any, _JobProcess] = {}
        # Name of a GPU -> its free share, once a job has asked for one.
        self._gpus: dict[str, float] = {}

    def submit(self, job: Job) -> str:
        """Start a job, or keep it until a GPU has room for it; a UsageError if there are too few GPUs."""
        if job.gpus and not self._gpus:
            self._gpus = dict.fromkeys(devices(), 1.0)
        if job.gpus > len(self._gpus):
            raise UsageError(f"gpus={job.gpus:g} a job, but this machine has {len(self._gpus)}; give less, or 0")
        self._waiting.append(job)
        self._start()
        for run in self._running.values():
            if run.job is job:
                return f"{HOST_NAME}:{run.process.pid}"
        return HOST_NAME

    def cancel(self, name: str) -> None:
        super().cancel(name)
        for run in self._running.values():
            if run.job.name == name:
                run.process.terminate()

    def close(self) -> None:
        """Ask all to save and exit; what does not is killed after `grace` seconds."""
        self._waiting.clear()
        for run in self._running.values():
            run.process.terminate()
        deadline = time.monotonic() + self.grace
        while self._running:
            ready = connection.wait(list(self._running), max(deadline - time.monotonic(), 0))
            if not ready:
                for run in self._running.values():
                    _kill_group(run.process)
                ready = connection.wait(list(self._running), KILL_WAIT_S)
            self._ended += map(self._outcome, ready)

    def _start(self) -> None:
        """Start what is submitted, as far as there is room."""
        for job in list(self._waiting):
            gpus = self._reserve_gpus(job.gpus)
            if not self._free or gpus is None:
                continue
            self._waiting.remove(job)
            slot = self._free.pop(0)
            arguments = (self.work, job.argv, job.folder, self._cores(slot), gpus, self.grace)
            process = self._context.Process(target=_run_job, args=arguments)
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
        if code is None or code < 0 or code == UNKNOWN_EXIT_CODE:
            # Its children may be left.
            _kill_group(run.process)
        self._free.append(run.slot)
        for gpu in run.gpus:
            self._gpus[gpu] += min(run.job.gpus, 1.0)
        seconds = time.monotonic() - run.began
        if code == UNKNOWN_EXIT_CODE:
            code = None
        return run.job, Outcome(code, seconds, f"{HOST_NAME}:{run.process.pid}")

    def _reserve_gpus(self, share: float) -> list[str] | None:
        """Take room for a job on GPUs, those with most of it first; their names, None if there is too little now."""
        if not share or not self._free:
            return []
        share_of_each = min(share, 1.0)
        count = max(round(share), 1)
        # Shares are added and subtracted as floats, so they are compared with some tolerance.
        with_room = []
        for gpu, free in self._gpus.items():
            if free > share_of_each - 1e-6:
                with_room.append(gpu)
        if len(with_room) < count:
            return None
        chosen = sorted(with_room, key=self._gpus.__getitem__)[-count:]
        for gpu in chosen:
            self._gpus[gpu] -= share_of_each
        return chosen

    def _cores(self, slot: int) -> list[int]:
        """The cores of a slot, its own; none if there are fewer than slots."""
        # Only Linux binds a process to cores.
        if not hasattr(os, "sched_getaffinity"):
            return []
        available = sorted(os.sched_getaffinity(0))
        count = len(available) // self.slots
        return available[slot * count : (slot + 1) * count]


def warm_up() -> Any:
    """Start the process that jobs are forked from, without waiting for it; returns what makes processes of it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([WARM])
    forkserver.ensure_running()
    return context


def devices() -> list[str]:
    """Names of the GPUs that this process may use, as CUDA_VISIBLE_DEVICES has them."""
    # Another process asks, as CUDA must not begin in this one: jobs are forked.
    code = "import torch; print(torch.cuda.device_count())"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if answer.returncode != 0:
        return []
    count = int(answer.stdout)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else list(map(str, range(count)))
    return names[:count]


def _run_job(work: Work, argv: Argv, folder: Path, cores: list[int], gpus: list[str], grace: float) -> None:
    """What a job's process does."""
    # Its children can be ended with it.
    os.setsid()
    if cores:
        os.sched_setaffinity(0, cores)
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    threading.Thread(target=_exit_with_sweep, args=(grace,), daemon=True).start()
    sys.exit(work(argv, folder))


def _exit_with_sweep(grace: float) -> None:
    """Save and exit when the sweep is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    print("the sweep is gone: this run saves and exits", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace)
    os.killpg(0, signal.SIGKILL)


def _kill_group(process: BaseProcess) -> None:
    """Kill a job's process and its children."""
    with suppress(OSError):
        process.kill()
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)  # type: ignore[arg-type]
