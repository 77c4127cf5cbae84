"""Jobs on a Ray cluster, or on a local one: `launcher=ray launcher.address=host:port`.

Ray brings a job to a free node and reports when the node is lost; nothing else of it is used. A job is a Ray task that
starts the run in a process of its own and watches it, so Ray's worker survives the run's crash. `runners.sweep.drive`
retries, and what a lost node had saved is in the run's folder, which all nodes must share: every node proves that it
reads it, and that it has the same libraries, before it gets a job.
"""

import re
import secrets
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lodestar.files import make_parent, read_text
from lodestar.settings import setting
from runners.cluster.connect import connect, first_line, load, misfit, other_versions_sentence
from runners.run.checkpoint import versions, write_atomically
from runners.run.child import SAVE_S, Argv, Child, Outcome
from runners.run.config import ADDRESS, UsageError
from runners.run.exits import TERMINATED
from runners.sweep.job import Job, Launcher, process_address

# Beside the first job's folder; a node that cannot read it does not share the folder.
TOKEN_FILE = ".ray-token"
# How long a file may take to reach a network filesystem's other nodes.
TOKEN_DELAY_S = 5.0
# Between two countings of the cluster's CPUs.
CPU_COUNT_EVERY_S = 10.0
# More seconds than `SAVE_S` that a job on another node has to save before it is ended.
CLOSING_MARGIN_S = 10.0


@dataclass
class Ray(Launcher):
    """Runs jobs as Ray tasks."""

    address: str = setting(
        "auto",
        "auto (the cluster that RAY_ADDRESS names, or that runs on this machine, else a local one), local (start one "
        "that listens on this machine only) or host:port",
    )
    slots: int = setting(None, "jobs at once; null is as many as the cluster has CPUs at the time", ">= 1")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(ADDRESS, self.address):
            wrong = f"launcher.address={self.address} is no address of a cluster"
            raise UsageError(f"{wrong}; give auto, local or host:port")
        self._ray = load()
        # A connection that was there before stays when we close.
        self._joined = not self._ray.is_initialized()
        if self._joined:
            connect(self._ray, self.address, "launcher.address", "give launcher=local")
        self._counts_slots = self.slots is None
        self.slots = self.slots or 1
        self._counted = float("-inf")
        self._home = Path.cwd()
        # A file and what stands in it, once a job has been submitted.
        self._token: tuple[Path, str] | None = None
        self._running: dict[Any, Job] = {}
        self._asked: set[Any] = set()
        self._count()

    def submit(self, job: Job) -> str:
        """Hand a job to Ray, which starts it as soon as a CPU is free; before the first, every node is checked."""
        gpus = self._ray.cluster_resources().get("GPU", 0) if job.gpus else 0
        if job.gpus > gpus:
            raise UsageError(f"gpus={job.gpus:g} is more than the cluster has ({gpus:g}); give gpus=0, or add a node")
        if self._token is None:
            self._token = self._check_nodes(job)
        task = self._ray.remote(num_cpus=1, num_gpus=job.gpus, max_retries=0, max_calls=1)(_attempt)
        self._running[task.remote(job.argv, job.folder, self._home, self._token, versions())] = job
        return "ray"

    def cancel(self, name: str) -> None:
        """Ask a job to save and exit; one that waits for a CPU ends at once."""
        for ref, job in self._running.items():
            if job.name == name:
                self._ask(ref)

    def close(self) -> None:
        """Ask all jobs to save and exit, kill what does not, and leave the cluster; a local one ends.

        `wait(0)` still returns how they ended.
        """
        with suppress(Exception):
            for ref in self._running:
                self._ask(ref)
            end = time.monotonic() + SAVE_S + CLOSING_MARGIN_S
            while self._running and time.monotonic() < end:
                self._collect(1.0)
            for ref in self._running:
                self._ray.cancel(ref, force=True)
        for job in self._running.values():
            self._ended.append((job, Outcome(None, 0.0, "ray", "it did not save in time and was ended")))
        self._running.clear()
        if self._token is not None:
            self._token[0].unlink(missing_ok=True)
            self._token = None
        if self._joined:
            self._joined = False
            with suppress(Exception):
                self._ray.shutdown()

    def _ask(self, ref: Any) -> None:
        """Ask a job to save and exit, once: a second interruption would take the worker from a job that saves."""
        if ref not in self._asked:
            self._asked.add(ref)
            self._ray.cancel(ref)

    def _count(self) -> None:
        if self._counts_slots and time.monotonic() - self._counted > CPU_COUNT_EVERY_S:
            self._counted = time.monotonic()
            self.slots = max(int(self._ray.cluster_resources().get("CPU", 0)), 1)

    def _collect(self, timeout: float) -> None:
        if not self._running:
            time.sleep(timeout)
            return
        self._count()
        refs = [*self._running]
        # Wait for the first that ended, then take all that have.
        if self._ray.wait(refs, timeout=timeout)[0]:
            ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0)
            for ref in ready:
                self._ended.append((self._running.pop(ref), self._outcome(ref)))

    def _outcome(self, ref: Any) -> Outcome:
        errors = self._ray.exceptions
        try:
            return self._ray.get(ref)
        except errors.TaskCancelledError:
            return Outcome(TERMINATED, 0.0, "ray", "stopped before it began")
        except errors.OutOfMemoryError:
            return Outcome(None, 0.0, "ray", "its node ran out of memory and Ray ended it; give fewer slots")
        except (errors.NodeDiedError, errors.WorkerCrashedError, errors.ObjectLostError) as error:
            return Outcome(None, 0.0, "ray", f"its node was lost ({type(error).__name__})")
        except errors.RayError as error:
            return Outcome(None, 0.0, "ray", f"Ray could not run it ({first_line(error)})")

    def _check_nodes(self, job: Job) -> tuple[Path, str]:
        """Every node reads a file that was just written, and has our versions; a UsageError names one that does not."""
        path = self._home / job.folder.parent / TOKEN_FILE
        word = secrets.token_hex(8)
        make_parent(path)
        write_atomically(path, word)
        sentence = misfit(self._ray, _explain_misfit, (path, word), versions())
        if sentence:
            path.unlink(missing_ok=True)
            raise UsageError(sentence)
        return path, word


def _attempt(argv: Argv, folder: Path, home: Path, token: tuple[Path, str], expected: dict[str, str]) -> Outcome:
    """A job on its node, inside Ray's worker, which Ray interrupts when the job is cancelled."""
    # The node may have joined after the others were checked.
    sentence = _explain_misfit(token, expected)
    if sentence:
        return Outcome(None, 0.0, process_address(), sentence)
    child = Child(argv, folder, home)
    try:
        return child.wait()
    except KeyboardInterrupt:
        child.ask()
        return child.wait()


def _explain_misfit(token: tuple[Path, str], expected: dict[str, str]) -> str:
    """One sentence if this node cannot take jobs; else empty."""
    sentence = other_versions_sentence(expected)
    if sentence:
        return sentence
    path, word = token
    end = time.monotonic() + TOKEN_DELAY_S
    while True:
        with suppress(OSError):
            if read_text(path) == word:
                return ""
        if time.monotonic() > end:
            node = socket.gethostname()
            return f"the node {node} does not see {path.parent}; give root= a folder that all nodes share"
        time.sleep(0.1)
