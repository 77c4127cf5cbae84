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
import math
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

# What a worker is sent: a group to step, as one byte, or this and a request of `Stepper.ask`.
REQUEST = b"\xff"

# How a worker replies: no episode ended, one ended, an environment raised.
REPLY_QUIET = b"\0"
REPLY_ENDED = b"\1"
REPLY_FAILED = b"\2"

# No two arrays share a cache line.
CACHE_LINE_BYTES = 64

# All requests but steps have so many times the limit of a step, but no less than so many seconds.
REQUEST_TIMEOUT_STEPS = 10
MIN_REQUEST_TIMEOUT_S = 120.0


class Block:
    """Arrays cut one after the other from shared memory; without memory it only counts the bytes they would take."""

    def __init__(self, memory: Any = None) -> None:
        self.size = 0
        self._memory = memory

    def __call__(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        begin = self.size
        count = int(np.prod(shape))
        size = count * np.dtype(dtype).itemsize
        self.size += math.ceil(size / CACHE_LINE_BYTES) * CACHE_LINE_BYTES
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
        if processes is None:
            processes = cores()
        _check(n, processes, step_timeout, on_error, restarts)
        self.processes = min(processes, n)
        # Called with a sentence about each replacement.
        self.say: Callable[[str], object] = functools.partial(warnings.warn, category=RuntimeWarning)
        self._makers = makers
        self._on_error = on_error
        self._budget = Budget(restarts, restart_window)
        self._crash_folder = None if crash_folder is None else Path(crash_folder).absolute()
        self._step_timeout = step_timeout or None
        self._request_timeout: float | None = None
        if step_timeout:
            self._request_timeout = max(REQUEST_TIMEOUT_STEPS * step_timeout, MIN_REQUEST_TIMEOUT_S)
        # The seed of each row's last reset that had one.
        self._seeds = list(range(n))
        self._generations = [0] * self.processes

        # Workers are no forks of this process: threads and CUDA do not survive a fork.
        method = _start_method()
        self._context: Any = multiprocessing.get_context(method)
        # A worker may be told to die with the thread that made it. With a server that forks, that
        # is the server's only one; else it has to be the main thread, as others may end while the
        # workers are still needed.
        is_main_thread = threading.current_thread() is threading.main_thread()
        self._dies_with_creator = method == "forkserver" or is_main_thread
        self._allocate(n)
        self._workers: list[Worker] = []
        # Stops the workers also when this object is garbage-collected, and at exit before
        # multiprocessing waits for its children.
        self._stop = Finalize(self, stop, (self._workers,), exitpriority=10)
        # For each group the workers that have rows of it.
        self._members = list(map(self._workers_of, self.groups))
        try:
            self._start_workers()
        except BaseException:
            self.close()
            raise

    def _allocate(self, n: int) -> None:
        """Share memory for the buffers of `n` environments, in two groups if there are two to divide."""
        half = (n + 1) // 2
        groups = (slice(0, half), slice(half, n)) if n > 1 else (slice(0, 1),)
        # An environment is made only to see what its spaces are. The first block counts the bytes
        # of its buffers.
        with closing(self._makers[0]()) as env:
            block = Block()
            SharedBuffers.like(env, n, block)
            self._memory = self._context.RawArray("b", block.size)
            slots = SharedBuffers.like(env, n, Block(self._memory))
            self._describe(env, n, groups, slots)
        self._slots.turn[:] = -1

    def _start_workers(self) -> None:
        """Start all workers, then wait until all have made their environments."""
        for worker in range(self.processes):
            self._workers.append(self._start_worker(worker, {}))
        for worker in range(self.processes):
            failure = self._failure_to_make(worker)
            if failure is not None:
                self._fail(*failure)

    @property
    def restarts(self) -> int:
        return self._budget.spent

    def _rows(self, worker: int) -> range:
        return range(worker, self.num_envs, self.processes)

    def _workers_of(self, group: slice) -> list[int]:
        rows = range(self.num_envs)
        members = []
        for worker in range(self.processes):
            if rows[share(group, worker, self.processes)]:
                members.append(worker)
        return members

    def _start_worker(self, worker: int, lost: dict[int, int]) -> Worker:
        """Start a process, with environments whose episodes were lost, row -> new seed, or which are the first."""
        makers: Any = {row: self._makers[row] for row in self._rows(worker)}
        shares = [share(group, worker, self.processes) for group in self.groups]
        texts = None
        if "text" in self._slots.modalities:
            texts = self._slots.modalities["text"].tolist()
        crash_file = None
        if self._crash_folder is not None:
            crash_file = self._crash_folder / f"worker-{worker}.txt"
        spaces = (self.single_observation_space, self.single_action_space)
        wrapped = CloudpickleWrapper(makers)
        buffers = (self.num_envs, shares, self._memory, lost, texts)
        arguments = (wrapped, spaces, *buffers, crash_file, self._dies_with_creator)
        hired = Worker(self._context, _work, arguments, f"environments-{worker}", crash_file)
        hired.limit = self._request_timeout
        return hired

    def _failure_to_make(self, worker: int, again: str = "") -> tuple[str, str] | None:
        """Wait until its environments are made; if they cannot be, returns a sentence and a traceback."""
        try:
            byte, message = self._workers[worker].answer(False, REPLY_FAILED)
        except Gone as gone:
            return f"{self._name(worker)}{gone} while its environments were made{again}", ""
        if byte != REPLY_FAILED:
            return None
        _, sentence, trace = message
        return sentence, trace

    def _ask(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        parts: dict[int, dict[int, tuple[Any, ...]]] = {}
        for row, values in arguments.items():
            parts.setdefault(row % self.processes, {})[row] = values
            if method == "reset" and values[0] is not None:
                self._seeds[row] = values[0]
        for worker, part in parts.items():
            self._workers[worker].limit = self._request_timeout
            self._workers[worker].post(REQUEST, (method, part))
        results: dict[int, Any] = {}
        for worker in parts:
            _, answers = self._receive(worker, True)
            results |= answers
        return results

    def _start(self, group: int) -> None:
        byte = bytes([group])
        for number in self._members[group]:
            worker = self._workers[number]
            worker.limit = self._step_timeout
            worker.post(byte)

    def _wait(self, group: int) -> bool:
        ended = False
        slots = self._slots
        has_text = "text" in slots.modalities
        for worker in self._members[group]:
            reply, texts = self._receive(worker, has_text)
            ended |= reply == REPLY_ENDED
            if has_text:
                rows = share(self.groups[group], worker, self.processes)
                text, final_text = texts
                slots.modalities["text"][rows] = text
                slots.final_modalities["text"][rows] = final_text
        return ended

    def _receive(self, worker: int, has_message: bool) -> tuple[bytes, Any]:
        """A worker's reply, with its message if it `has_message`; if the worker is replaced, its successor's."""
        while True:
            try:
                reply, message = self._workers[worker].answer(has_message, REPLY_FAILED)
            except Gone as gone:
                sentence = self._name(worker) + str(gone) + self._describe_loss(worker)
                self._replace(worker, sentence)
                continue
            if reply != REPLY_FAILED:
                return reply, message
            method, sentence, trace = message
            if self._on_error == "stop" or method not in ("step", "reset"):
                self._fail(sentence, trace)
            self._replace(worker, sentence, trace)

    def _replace(self, worker: int, sentence: str, trace: str = "") -> None:
        """Kill a worker for the reason `sentence`; its successor is sent what it left unanswered."""
        old = self._workers[worker]
        old.kill()
        while True:
            try:
                count = self._budget.spend(sentence)
            except WorkerError as error:
                self.close()
                if not trace and old.stack():
                    trace = f"The stack of the worker process:\n{old.stack()}"
                if trace:
                    error.add_note(trace)
                raise
            self.say(f"{sentence}; its episodes are lost and it is replaced ({count})")
            self._generations[worker] += 1
            seeds = {row: self._new_seed(row) for row in self._rows(worker)}
            new = self._start_worker(worker, seeds)
            self._workers[worker] = new
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

    def _describe_loss(self, worker: int) -> str:
        """What the worker was doing when it was lost, as the end of a sentence."""
        row = int(self._slots.turn[worker])
        self._slots.turn[worker] = -1
        old = self._workers[worker]
        words = ""
        if row >= 0 and old.pending:
            request, _ = old.pending[0]
            action = "" if request == REQUEST else f", action {self._slots.action[row].tolist()}"
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
    """Refuse, with a ValueError, what makes no workers."""
    if processes < 1 or n < 1:
        raise ValueError(f"{n} environments in processes={processes} make no vector; give at least 1 of both")
    if os.name != "posix":
        raise ValueError(f'workers need Linux or macOS, not {os.name!r}; use backend="gym"')
    if not step_timeout >= 0:
        raise ValueError(f"step_timeout={step_timeout} is out of range; give seconds, or 0 for no limit")
    if on_error not in ("stop", "restart"):
        raise ValueError(f'on_error={on_error!r} is unknown; give "stop" or "restart"')
    if restarts < 0:
        raise ValueError(f"restarts={restarts} is out of range; give 0 or more")


def _start_method() -> str:
    """How processes begin: forked by a server, else as new programs."""
    # What all workers import is there before they are forked; it has no effect once the server
    # runs.
    multiprocessing.set_forkserver_preload(["__main__", "envs.make"])
    try:
        forkserver.ensure_running()
    except (ChildProcessError, ValueError):
        # A process that was itself forked cannot use its parent's server, and some systems have
        # none.
        return "spawn"
    return "forkserver"


def cores() -> int:
    """Processors that this process may use."""
    # Only Linux says which processors those are.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
    dies_with_creator: bool,
) -> None:
    """A worker: make environments, then answer requests until the line ends."""
    guard(crash_file, dies_with_creator)
    envs: dict[int, Any] = {}
    # The wrapper has unpickled what it holds: row -> maker.
    make_row: dict[int, Maker] = makers.fn
    row = min(make_row)
    try:
        for row, make in make_row.items():
            envs[row] = make()
            check_alike(row, envs[row], spaces)
        slots = SharedBuffers.like(envs[row], n, Block(memory))
        if texts is not None:
            slots.modalities["text"][:] = texts
        stepper = Stepper(envs, slots, shares, lost)
    except Exception as error:
        line.put(REPLY_FAILED, _failure("make", row, error))
        return
    try:
        line.put(REPLY_QUIET)
        while True:
            byte = line.take()
            request = line.message() if byte == REQUEST else None
            try:
                if request is not None:
                    line.put(REPLY_QUIET, stepper.ask(*request))
                    continue
                group = byte[0]
                reply = REPLY_ENDED if stepper.step(group) else REPLY_QUIET
                message = None
                if texts is not None:
                    # Shared memory cannot hold these.
                    rows = shares[group]
                    message = [slots.modalities["text"][rows], slots.final_modalities["text"][rows]]
                line.put(reply, message)
            except Exception as error:
                method = "step" if request is None else request[0]
                line.put(REPLY_FAILED, _failure(method, stepper.row, error, slots, envs[stepper.row]))
                # This worker is about to be replaced, and waits for its end.
                while method in ("step", "reset"):
                    line.take()
    except (EOFError, OSError):
        # The parent closed the line, or is gone.
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
            if past["seed"] is not None:
                words += f" with seed {past['seed']}"
    return method, words, traceback.format_exc()
