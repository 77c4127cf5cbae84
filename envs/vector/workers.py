"""Gymnasium environments in worker processes that share their arrays with this one.

Environment i lives in worker i modulo `processes`, so each worker has a part of both groups: while an agent chooses the
actions of one group, every worker steps the other. The numbers are those of `envs.vector.in_process.InProcess`,
whatever the number of processes.

Arrays lie in one block of anonymous shared memory, of which nothing is left in /dev/shm; commands, replies and texts go
through two pipes per worker, where waiting sleeps.

A worker that dies, or does not reply in time, is replaced: its environments are made again with seeds that follow from
the old ones, and their running episodes end as truncated in rows that are no transitions (`infos["lost"]`). So is one
in which an environment raises, with `on_error="restart"`; otherwise that raises. Too many losses in a short time raise.

Limits: it is faster where a worker's environments take much longer than waking it, 10 to 50 microseconds a group; Linux
and macOS only.
"""

import functools
import multiprocessing
import os
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from multiprocessing import forkserver
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper

from envs.vector.in_process import BufferedVectorEnv, Maker, SharedBuffers, Stepper, check_alike
from envs.vector.watchdog import Budget, Gone, Line, Worker, WorkerError, guard, stop

__all__ = ["WorkerError", "Workers", "cores", "share"]

REQUEST = b"\xff"  # what a worker is sent: a group to step, as one byte, or this and a request of `Stepper.ask`
QUIET, ENDED, FAILED = b"\0", b"\1", b"\2"  # how it replies
ALIGNMENT = 64  # bytes; no two arrays share a cache line
PATIENCE = 10, 120.0  # limit of all but steps: so many times that of a step, but no less than so many seconds


class Block:
    """Arrays cut one after the other from shared memory; without memory it only counts the bytes they would take."""

    def __init__(self, memory: Any = None) -> None:
        self.size = 0
        self._memory = memory

    def __call__(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        begin, count = self.size, int(np.prod(shape))
        self.size += -(-count * np.dtype(dtype).itemsize // ALIGNMENT) * ALIGNMENT
        if self._memory is None:
            return np.zeros(shape, dtype)
        return np.frombuffer(self._memory, dtype, count, begin).reshape(shape)


def share(group: slice, worker: int, processes: int) -> slice:
    """The rows of a group that live in a worker; possibly none."""
    return slice(group.start + (worker - group.start) % processes, group.stop, processes)


class Workers(BufferedVectorEnv):
    """Steps environments in worker processes; two groups, the first and the second half, if there are two to divide.

    Args:
        makers: each makes one environment, as `envs.make.make` returns it; sent to a worker by cloudpickle.
        processes: how many workers; None for one per usable core.
        step_timeout: seconds that a worker has for a step of its environments of a group; 0 for no limit. Resets and
            construction have ten times as long, and at least two minutes.
        on_error: what follows when an environment raises: "stop", or "restart" of its worker.
        restarts: how many workers may be replaced within `restart_window` seconds; 0 for none.
        crash_folder: where workers that crash or hang write their stacks; None for the standard error stream.
    """

    def __init__(
        self,
        makers: Sequence[Maker],
        processes: int | None = None,
        *,
        step_timeout: float = 60.0,
        on_error: str = "stop",
        restarts: int = 5,
        restart_window: float = 600.0,
        crash_folder: str | Path | None = None,
    ) -> None:
        n = len(makers)
        processes = cores() if processes is None else processes
        _check(n, processes, step_timeout, on_error, restarts)
        self.processes = processes = min(processes, n)
        # Called with a sentence about each replacement.
        self.say: Callable[[str], object] = functools.partial(warnings.warn, category=RuntimeWarning)
        self._makers, self._on_error, self._budget = makers, on_error, Budget(restarts, restart_window)
        self._crash_folder = None if crash_folder is None else Path(crash_folder).absolute()
        self._step_limit = step_timeout or None
        self._patience = max(PATIENCE[0] * step_timeout, PATIENCE[1]) if step_timeout else None
        self._seeds = list(range(n))  # of each row's last reset that had one
        self._generations = [0] * self.processes
        half = (n + 1) // 2
        groups = (slice(0, half), slice(half, n)) if n > 1 else (slice(0, 1),)
        # Workers are no forks of this process: threads and CUDA do not survive a fork.
        method = _start_method()
        self._context: Any = multiprocessing.get_context(method)
        # A worker dies with the thread that made it: of the server that forks, the only one.
        self._orphans = method == "forkserver" or threading.current_thread() is threading.main_thread()
        with closing(makers[0]()) as one:  # only to see what its spaces are
            block = Block()
            SharedBuffers.like(one, n, block)
            self._memory = self._context.RawArray("b", block.size)
            self._describe(one, n, groups, SharedBuffers.like(one, n, Block(self._memory)))
        self._slots.turn[:] = -1
        self._workers: list[Worker] = []
        # Also when this object is forgotten, and at exit before multiprocessing waits for its children.
        self._stop = Finalize(self, stop, (self._workers,), exitpriority=10)
        self._members = [[w for w in range(processes) if range(n)[share(group, w, processes)]] for group in groups]
        try:
            for worker in range(self.processes):
                self._workers.append(self._hire(worker, {}))
            for worker in range(self.processes):
                if failure := self._failure_to_make(worker):
                    self._fail(*failure)
        except BaseException:
            self.close()
            raise

    @property
    def restarts(self) -> int:
        return self._budget.spent

    def _rows(self, worker: int) -> range:
        return range(worker, self.num_envs, self.processes)

    def _hire(self, worker: int, lost: dict[int, int]) -> Worker:
        """Start a process, with environments whose episodes were lost, row -> new seed, or which are the first."""
        makers: Any = {row: self._makers[row] for row in self._rows(worker)}
        shares = [share(group, worker, self.processes) for group in self.groups]
        texts = self._slots.modalities["text"].tolist() if "text" in self._slots.modalities else None
        file = None if self._crash_folder is None else self._crash_folder / f"worker-{worker}.txt"
        spaces = self.single_observation_space, self.single_action_space
        arguments = (CloudpickleWrapper(makers), spaces, self.num_envs, shares, self._memory, lost, texts, file)
        hired = Worker(self._context, _work, (*arguments, self._orphans), f"environments-{worker}", file)
        hired.limit = self._patience
        return hired

    def _failure_to_make(self, worker: int, again: str = "") -> tuple[str, str] | None:
        """Wait until its environments are made; if they cannot be, returns a sentence and a traceback."""
        try:
            byte, message = self._workers[worker].answer(False, FAILED)
        except Gone as gone:
            return f"{self._name(worker)}{gone} while its environments were made{again}", ""
        return message[1:] if byte == FAILED else None

    def _ask(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        parts: dict[int, dict[int, tuple[Any, ...]]] = {}
        for row, values in arguments.items():
            parts.setdefault(row % self.processes, {})[row] = values
            if method == "reset" and values[0] is not None:
                self._seeds[row] = values[0]
        for worker, part in parts.items():
            self._workers[worker].limit = self._patience
            self._workers[worker].post(REQUEST, (method, part))
        results: dict[int, Any] = {}
        for worker in parts:
            results |= self._receive(worker, True)[1]
        return results

    def _start(self, group: int) -> None:
        byte, workers = bytes([group]), self._workers
        for worker in self._members[group]:
            workers[worker].limit = self._step_limit
            workers[worker].post(byte)

    def _wait(self, group: int) -> bool:
        ended = False
        slots = self._slots
        has_text = "text" in slots.modalities
        for worker in self._members[group]:
            reply, texts = self._receive(worker, has_text)
            ended |= reply == ENDED
            if has_text:
                rows = share(self.groups[group], worker, self.processes)
                slots.modalities["text"][rows], slots.final_modalities["text"][rows] = texts
        return ended

    def _receive(self, worker: int, more: bool) -> tuple[bytes, Any]:
        """A worker's reply, and the message after it if there is `more`; if need be, that of its successor."""
        while True:
            try:
                reply, message = self._workers[worker].answer(more, FAILED)
            except Gone as gone:
                self._replace(worker, self._name(worker) + str(gone) + self._circumstances(worker))
                continue
            if reply != FAILED:
                return reply, message
            method, sentence, trace = message
            if self._on_error == "stop" or method not in ("step", "reset"):
                self._fail(sentence, trace)
            self._replace(worker, sentence, trace)

    def _replace(self, worker: int, sentence: str, trace: str = "") -> None:
        old = self._workers[worker]
        old.kill()
        while True:
            try:
                count = self._budget.spend(sentence)
            except WorkerError as error:
                self.close()
                if trace or old.stack():
                    error.add_note(trace or f"The stack of the worker process:\n{old.stack()}")
                raise
            self.say(f"{sentence}; its episodes are lost and it is replaced ({count})")
            self._generations[worker] += 1
            self._workers[worker] = new = self._hire(worker, {row: self._new_seed(row) for row in self._rows(worker)})
            failure = self._failure_to_make(worker, " again")
            if failure is None:
                break
            sentence, trace = failure
            new.kill()
        new.limit = old.limit
        for byte, message in old.pending:
            new.post(byte, message)

    def _new_seed(self, row: int) -> int:
        """Of the first episode after a loss: another one each time, always the same ones."""
        entropy = [self._seeds[row], row, self._generations[row % self.processes]]
        return int(np.random.SeedSequence(entropy).generate_state(1)[0]) >> 1

    def _name(self, worker: int) -> str:
        rows = ", ".join(map(str, self._rows(worker)))
        return f"worker process {worker}, with the environments {rows}, "

    def _circumstances(self, worker: int) -> str:
        """What the worker was doing when it was lost, as the end of a sentence."""
        row = int(self._slots.turn[worker])
        self._slots.turn[worker] = -1
        old, words = self._workers[worker], ""
        if row >= 0 and old.pending:
            action = "" if old.pending[0][0] == REQUEST else f", action {self._slots.action[row].tolist()}"
            words = f" in environment {row}{action} (seeded with {self._seeds[row]})"
        code = old.process.exitcode
        if code is not None and old.stack():
            words += f"; its stack is in {old.crash_file}"
        elif code == -9:
            words += "; if the machine ran out of memory, use fewer environments or processes"
        return words

    def _fail(self, sentence: str, trace: str = "") -> NoReturn:
        self.close()
        error = WorkerError(sentence)
        if trace:
            error.add_note(f"The traceback in the worker process:\n{trace}")
        raise error

    def close_extras(self, **kwargs: Any) -> None:
        if hasattr(self, "_stop"):
            self._stop()


def _check(n: int, processes: int, step_timeout: float, on_error: str, restarts: int) -> None:
    for wrong, sentence in (
        (processes < 1 or n < 1, f"{n} environments in processes={processes} make no vector; give at least 1 of both"),
        (os.name != "posix", f'workers need Linux or macOS, not {os.name!r}; use backend="gym"'),
        (not step_timeout >= 0, f"step_timeout={step_timeout} is out of range; give seconds, or 0 for no limit"),
        (on_error not in ("stop", "restart"), f'on_error={on_error!r} is unknown; give "stop" or "restart"'),
        (restarts < 0, f"restarts={restarts} is out of range; give 0 or more"),
    ):
        if wrong:
            raise ValueError(sentence)


def _start_method() -> str:
    # What all workers import is there before they are forked; it has no effect once the server runs.
    multiprocessing.set_forkserver_preload(["__main__", "envs.make"])
    try:
        forkserver.ensure_running()
    except (ChildProcessError, ValueError):  # a process that was forked cannot use its parent's; or there is none here
        return "spawn"
    return "forkserver"


def cores() -> int:
    """Processors that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux alone
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _work(
    line: Line,
    makers: Any,
    spaces: tuple[gym.Space, gym.Space],
    n: int,
    shares: list[slice],
    memory: Any,
    lost: dict[int, int],
    texts: list[str] | None,
    crash_file: Path | None,
    orphans: bool,
) -> None:
    """A worker: make environments, then answer requests until the line ends."""
    guard(crash_file, orphans)
    envs: dict[int, Any] = {}
    row = min(makers.fn)  # what the pickled wrapper holds
    try:
        for row, make in makers.fn.items():
            envs[row] = make()
            check_alike(row, envs[row], spaces)
        slots = SharedBuffers.like(envs[row], n, Block(memory))
        if texts is not None:
            slots.modalities["text"][:] = texts
        stepper = Stepper(envs, slots, shares, lost)
    except Exception as error:
        line.put(FAILED, _failure("make", row, error))
        return
    try:
        line.put(QUIET)
        while True:
            byte = line.take()
            request = line.message() if byte == REQUEST else None
            try:
                if request is not None:
                    line.put(QUIET, stepper.ask(*request))
                else:
                    reply, rows = ENDED if stepper.step(byte[0]) else QUIET, shares[byte[0]]
                    both = slots.modalities, slots.final_modalities  # whose texts shared memory cannot hold
                    line.put(reply, None if texts is None else [part["text"][rows] for part in both])
            except Exception as error:
                method = "step" if request is None else request[0]
                line.put(FAILED, _failure(method, stepper.row, error, slots, envs[stepper.row]))
                while method in ("step", "reset"):  # it is about to be replaced
                    line.take()
    except (EOFError, OSError):  # the parent closed the line, or is gone
        stepper.close()


def _failure(
    method: str, row: int, error: Exception, slots: SharedBuffers | None = None, env: Any = None
) -> tuple[str, str, str]:
    """What was done, a sentence about the error, and its traceback."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    words = f"environment {row} raised {type(error).__name__}: {error} ({last.filename}:{last.lineno})"
    if method == "step" and slots is not None:
        words += f" in action {slots.action[row].tolist()}"
        with suppress(Exception):
            past = env.get_wrapper_attr("snapshot")()
            words += f", step {past['actions']['shape'][0]} of an episode"
            words += "" if past["seed"] is None else f" with seed {past['seed']}"
    return method, words, traceback.format_exc()
