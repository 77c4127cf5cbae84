"""Gymnasium environments in worker processes that share their arrays with this one.

Environment i lives in worker i modulo `processes`, so each worker has a part of both groups: while an agent chooses the
actions of one group, every worker steps the other. The numbers are those of `envs.vector.InProcess`, whatever the
number of processes.

    actions, observations, rewards, flags, frames   one block of anonymous shared memory; nothing is left in /dev/shm
    commands, replies, texts                        two pipes per worker; whoever waits sleeps

Differences from Gymnasium's AsyncVectorEnv: two groups, workers with several environments each, and a worker that
raises or dies is one sentence at once.

Limits: it pays where a worker's environments take much longer than waking it, 10 to 50 microseconds a group; a crash of
one simulator ends the whole vector; Linux and macOS only.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any, NoReturn

import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper

from envs.vector import Maker, Slots, SlotVectorEnv, Stepper

REQUEST = b"\xff"  # what a worker is told: a group to step, as one byte, or this and a request of `Stepper.ask`
QUIET, ENDED, FAILED = b"\0", b"\1", b"\2"  # how it replies
ALIGNMENT = 64  # bytes; no two arrays share a cache line


class WorkerError(RuntimeError):
    """An environment in a worker process raised, or the process died; the original traceback is among the notes."""


class Line:
    """One end of two pipes: single bytes, which cost a third of a message, and messages after some of them."""

    def __init__(self, reader: Connection, writer: Connection) -> None:
        self._reader, self._writer = reader, writer

    def put(self, byte: bytes, message: Any = None) -> None:
        data = None if message is None else pickle.dumps(message)  # first, so that nothing is said if it fails
        os.write(self._writer.fileno(), byte)
        if data is not None:
            self._writer.send_bytes(data)

    def take(self) -> bytes:
        """The next byte; waits for it.

        Raises:
            EOFError: if the other end is gone.
        """
        byte = os.read(self._reader.fileno(), 1)
        if not byte:
            raise EOFError
        return byte

    def message(self) -> Any:
        """What came after the byte."""
        return pickle.loads(self._reader.recv_bytes())

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


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


class Workers(SlotVectorEnv):
    """Steps environments in worker processes; two groups, the first and the second half, if there are two to divide.

    Args:
        makers: each makes one environment, as `envs.make.make` returns it; sent to a worker by cloudpickle.
        processes: how many workers, at least 1; no more than environments are started. None for one per usable core.

    Raises:
        ValueError: if there are no makers or no processes, or on Windows.
        WorkerError: if an environment cannot be made in a worker.
    """

    def __init__(self, makers: Sequence[Maker], processes: int | None = None) -> None:
        n = len(makers)
        processes = cores() if processes is None else processes
        if processes < 1 or n < 1:
            raise ValueError(f"{n} environments in processes={processes} make no vector; give at least 1 of both")
        if os.name != "posix":
            raise ValueError(f'workers need Linux or macOS, not {os.name!r}; use backend="gym"')
        self.processes = min(processes, n)
        half = (n + 1) // 2
        groups = (slice(0, half), slice(half, n)) if n > 1 else (slice(0, 1),)
        # Workers are no forks of this process: threads and CUDA do not survive a fork.
        context: Any = multiprocessing.get_context(_start_method())
        one = makers[0]()  # only to see what its spaces are
        block = Block()
        Slots.like(one, n, block)
        memory = context.RawArray("b", block.size)
        self._describe(one, n, groups, Slots.like(one, n, Block(memory)))
        one.close()
        self._lines: list[Line] = []
        self._processes: list[BaseProcess] = []
        for worker in range(self.processes):
            (hears, replies), (obeys, commands) = context.Pipe(duplex=False), context.Pipe(duplex=False)
            theirs = Line(obeys, replies)
            mine: Any = {row: makers[row] for row in range(worker, n, self.processes)}
            shares = [share(group, worker, self.processes) for group in groups]
            arguments = (theirs, CloudpickleWrapper(mine), n, shares, memory)
            process = context.Process(target=_work, args=arguments, daemon=True, name=f"environments-{worker}")
            process.start()
            theirs.close()  # or the end of the worker would not end the pipe
            self._lines.append(Line(hears, commands))
            self._processes.append(process)
        # Also when this object is forgotten, and at exit before multiprocessing waits for its children.
        self._stop = Finalize(self, _stop, (self._lines, self._processes), exitpriority=10)
        self._members = [
            [w for w in range(self.processes) if range(n)[share(group, w, self.processes)]] for group in groups
        ]
        for worker in range(self.processes):
            self._receive(worker, False)

    def _ask(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        parts: dict[int, dict[int, tuple[Any, ...]]] = {}
        for row, values in arguments.items():
            parts.setdefault(row % self.processes, {})[row] = values
        for worker, part in parts.items():
            self._post(worker, REQUEST, (method, part))
        results: dict[int, Any] = {}
        for worker in parts:
            results |= self._receive(worker, True)[1]
        return results

    def _start(self, group: int) -> None:
        for worker in self._members[group]:
            self._post(worker, bytes([group]))

    def _wait(self, group: int) -> bool:
        ended = False
        slots = self._slots
        for worker in self._members[group]:
            reply, texts = self._receive(worker, slots.text is not None)
            ended |= reply == ENDED
            if slots.text is not None and slots.final_text is not None:
                rows = share(self.groups[group], worker, self.processes)
                slots.text[rows], slots.final_text[rows] = texts
        return ended

    def _post(self, worker: int, byte: bytes, message: Any = None) -> None:
        try:
            self._lines[worker].put(byte, message)
        except OSError:
            self._lost(worker)

    def _receive(self, worker: int, more: bool) -> tuple[bytes, Any]:
        """A worker's reply, and the message after it if there is `more`."""
        line = self._lines[worker]
        message: Any = None
        try:
            reply = line.take()
            if more or reply == FAILED:
                message = line.message()
        except (EOFError, OSError):
            self._lost(worker)
        if reply == FAILED:
            self.close()
            error = WorkerError(message[0])
            error.add_note(f"The traceback in the worker process:\n{message[1]}")
            raise error
        return reply, message

    def _lost(self, worker: int) -> NoReturn:
        process = self._processes[worker]
        process.join(5)
        code = process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        rows = ", ".join(map(str, range(worker, self.num_envs, self.processes)))
        self.close()
        raise WorkerError(
            f"worker process {worker}, with the environments {rows}, {how}; if the machine ran out of memory, "
            "use fewer environments or processes"
        )

    def close_extras(self, **kwargs: Any) -> None:
        if hasattr(self, "_stop"):
            self._stop()


def _start_method() -> str:
    try:
        forkserver.ensure_running()
    except (ChildProcessError, ValueError):  # a process that was forked cannot use its parent's; or there is none here
        return "spawn"
    return "forkserver"


def cores() -> int:
    """Processors that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux alone
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _stop(lines: list[Line], processes: list[BaseProcess]) -> None:
    """A worker ends when its pipe does, once it has finished its step."""
    for line in lines:
        line.close()
    for process in processes:
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()


def _work(line: Line, makers: Any, n: int, shares: list[slice], memory: Any) -> None:
    """The life of a worker: make environments, then do as it is told until the line ends."""
    # Whoever sent these to the whole process group means the parent, which may still want to save its state.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    envs: dict[int, Any] = {}
    row = min(makers.fn)  # what the pickled wrapper holds
    try:
        for row, make in makers.fn.items():
            envs[row] = make()
        slots = Slots.like(envs[row], n, Block(memory))
        stepper = Stepper(envs, slots, shares)
    except Exception as error:
        line.put(FAILED, _account(row, error))
        return
    try:
        line.put(QUIET)
        while True:
            byte = line.take()
            request = line.message() if byte == REQUEST else None
            try:
                line.put(*_obey(stepper, slots, shares, byte, request))
            except Exception as error:
                line.put(FAILED, _account(stepper.row, error))
    except (EOFError, OSError):  # the parent closed the line, or is gone
        stepper.close()


def _obey(stepper: Stepper, slots: Slots, shares: list[slice], byte: bytes, request: Any) -> tuple[bytes, Any]:
    if byte == REQUEST:
        return QUIET, stepper.ask(*request)
    group = byte[0]
    reply = ENDED if stepper.step(group) else QUIET
    if slots.text is None or slots.final_text is None:
        return reply, None
    return reply, (slots.text[shares[group]], slots.final_text[shares[group]])


def _account(row: int, error: Exception) -> tuple[str, str]:
    return f"environment {row} raised {type(error).__name__}: {error}", traceback.format_exc()
