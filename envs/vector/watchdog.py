"""Processes that may die or hang at any moment, and a parent that never waits for them forever.

A death is noticed at once, by the end of the pipe or by the process's sentinel; a hang when the limit is over.

Limits: Linux and macOS. A limit counts the wall's seconds of a step, so it must allow for a busy machine.
"""

import faulthandler
import math
import os
import pickle
import re
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from lodestar.files import make_folder, open_to_append

# An answer is waited for at least so long, even after the limit: what was sent meanwhile is there
# at once.
MIN_WAIT_S = 0.25
# Waiting goes in slices; one that takes longer means that this process was stopped too (Ctrl-Z).
WAIT_SLICE_S = 1.0
# Workers have so long to finish a step and close their environments.
CLOSE_TIMEOUT_S = 3.0
# A killed process has so long to be gone.
KILL_TIMEOUT_S = 2
# A hanging worker has so long to write its stack.
STACK_TIMEOUT_S = 0.3
STACK_MAX_BYTES = 100_000
# A message is read in pieces of at most so many bytes.
READ_PIECE_BYTES = 1 << 20
# A message begins with its length in so many bytes.
LENGTH_BYTES = 8
# The innermost frame in what faulthandler writes: file, line and function.
INNERMOST_FRAME = re.compile(r'Current thread.*?\n  File "([^"]+)", line (\d+) in (\S+)')


class WorkerError(RuntimeError):
    """An environment in a worker process raised, or the process died or hung; tracebacks are among the notes."""


class Gone(Exception):
    """A worker died or hangs; the message is the end of a sentence that begins with its name."""


class Line:
    """One end of two pipes: single bytes, which cost a third of a message, and messages after some of them."""

    def __init__(self, reader: Connection, writer: Connection) -> None:
        self._reader = reader
        self._writer = writer
        self._in = reader.fileno()
        self._out = writer.fileno()

    def __reduce__(self) -> Any:
        # Descriptors have other numbers in another process.
        return Line, (self._reader, self._writer)

    def put(self, byte: bytes, message: Any = None) -> None:
        """Send a byte, and a message after it unless that is None."""
        if message is None:
            os.write(self._out, byte)
            return
        # Pickling comes first, so that nothing is sent if it fails.
        data = pickle.dumps(message)
        length = len(data).to_bytes(LENGTH_BYTES, "big")
        unsent = memoryview(byte + length + data)
        while unsent:
            try:
                sent = os.write(self._out, unsent)
                unsent = unsent[sent:]
            except BlockingIOError:
                self._wait(writing=True)

    def take(self, count: int = 1) -> bytes:
        """The next bytes, at most `count`; waits for them. An EOFError if the other end is gone."""
        self._wait()
        data = os.read(self._in, count)
        if not data:
            raise EOFError
        return data

    def message(self) -> Any:
        """The message after a byte."""
        length = int.from_bytes(self._read_exactly(LENGTH_BYTES), "big")
        return pickle.loads(self._read_exactly(length))

    def close(self) -> None:
        self._reader.close()
        self._writer.close()

    def _read_exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            missing = count - len(data)
            data += self.take(min(missing, READ_PIECE_BYTES))
        return bytes(data)

    def _wait(self, writing: bool = False) -> None:
        """Reading and writing block."""


class Worker(Line):
    """A process that runs `target` on its end of a line; crashing or hanging it writes its stack into `crash_file`."""

    def __init__(
        self, context: Any, target: Callable[..., None], arguments: tuple[Any, ...], name: str, crash_file: Path | None
    ) -> None:
        reply_reader, reply_writer = context.Pipe(duplex=False)
        request_reader, request_writer = context.Pipe(duplex=False)
        super().__init__(reply_reader, request_writer)
        worker_line = Line(request_reader, reply_writer)
        # Requests without a reply yet, oldest first.
        self.pending: deque[tuple[bytes, Any]] = deque()
        # Seconds that it has for the next reply.
        self.limit: float | None = None
        self.crash_file = crash_file
        # Where its part of the file begins, behind what its predecessors wrote.
        self._stack_start = 0
        if crash_file is not None and crash_file.exists():
            self._stack_start = crash_file.stat().st_size
        self._since = time.monotonic()
        all_arguments = (worker_line, *arguments)
        self.process: BaseProcess = context.Process(target=target, args=all_arguments, daemon=True, name=name)
        try:
            self.process.start()
        except BaseException:
            self.close()
            raise
        finally:
            # If this process kept it open, the end of the worker would not end the pipe.
            worker_line.close()
        os.set_blocking(self._out, False)
        self._readable = select.poll()
        self._readable.register(self._in, select.POLLIN)
        # The sentinel shows its death too, because the pipe stays open while a child of the worker
        # lives.
        self._readable.register(self.process.sentinel, select.POLLIN)
        self._writable = select.poll()
        self._writable.register(self._out, select.POLLOUT)

    def post(self, byte: bytes, message: Any = None) -> None:
        """Send a request; if it is gone, `answer` raises."""
        if not self.pending:
            self._since = time.monotonic()
        self.pending.append((byte, message))
        with suppress(OSError):
            self.put(byte, message)

    def answer(self, more: bool, failed: bytes) -> tuple[bytes, Any]:
        """Its next reply, and the message with it if there is `more`, or it is `failed`; `Gone` if it is."""
        try:
            byte = self.take()
            message = self.message() if more or byte == failed else None
        except (EOFError, OSError, pickle.UnpicklingError):
            raise Gone(self._cause_of_end()) from None
        self._since = time.monotonic()
        # A request that failed stays pending: a successor repeats it.
        if self.pending and byte != failed:
            self.pending.popleft()
        return byte, message

    def stack(self) -> str:
        """What it wrote when it crashed or hung; empty if nothing."""
        if self.crash_file is None:
            return ""
        with suppress(OSError), self.crash_file.open("rb") as file:
            file.seek(self._stack_start)
            return file.read(STACK_MAX_BYTES).decode(errors="replace")
        return ""

    def kill(self) -> None:
        self.process.kill()
        self.process.join(KILL_TIMEOUT_S)
        self.close()

    def _wait(self, writing: bool = False) -> None:
        """Wait until the line can be read or written; `Gone` after the limit, an EOFError at the worker's death."""
        limit = math.inf if self.limit is None else self.limit
        poll = self._writable.poll if writing else self._readable.poll
        if poll(1000 * min(MIN_WAIT_S, limit)):
            return
        while True:
            begin = time.monotonic()
            pause = min(WAIT_SLICE_S, self._since + limit - begin)
            if pause <= 0:
                raise Gone(f"gave no answer for {limit:g} s{self._innermost_frame()}")
            if poll(1000 * pause):
                return
            # A death that neither the pipe nor the sentinel has shown.
            if not self.process.is_alive():
                raise EOFError
            seconds_stopped = time.monotonic() - begin - pause
            if seconds_stopped > WAIT_SLICE_S:
                self._since += seconds_stopped

    def _innermost_frame(self) -> str:
        """Where it hangs, as the end of a sentence; it writes its stack on a signal."""
        if self.crash_file is None:
            return ""
        with suppress(OSError):
            os.kill(self.process.pid or 0, signal.SIGUSR1)
        end = time.monotonic() + STACK_TIMEOUT_S
        frame = INNERMOST_FRAME.search(self.stack())
        while not frame and time.monotonic() < end:
            time.sleep(0.01)
            frame = INNERMOST_FRAME.search(self.stack())
        if not frame:
            return ""
        file, line, function = frame.groups()
        return f", in {function} ({file}:{line})"

    def _cause_of_end(self) -> str:
        """How its process ended, as the end of a sentence."""
        self.process.join(KILL_TIMEOUT_S)
        code = self.process.exitcode
        if code is None:
            return "closed its line"
        if code >= 0:
            return f"ended with exit code {code}"
        with suppress(ValueError):
            return f"was killed by signal {-code} ({signal.Signals(-code).name})"
        return f"was killed by signal {-code}"


class Budget:
    """How many workers may be replaced: so many `restarts` within `window` seconds."""

    def __init__(self, restarts: int, window: float) -> None:
        self.restarts = restarts
        self.window = window
        # How many workers have been replaced so far.
        self.spent = 0
        # When and why, within the window.
        self._recent: deque[tuple[float, str]] = deque()

    def spend(self, sentence: str) -> str:
        """Count one more, for the reason `sentence`; returns how many that makes. A `WorkerError` if too many."""
        now = time.monotonic()
        while self._recent and self._recent[0][0] < now - self.window:
            self._recent.popleft()
        self._recent.append((now, sentence))
        count = len(self._recent)
        if count <= self.restarts:
            self.spent += 1
            return f"{count} of {self.restarts} within {self.window:g} s"
        if not self.restarts:
            raise WorkerError(sentence)
        error = WorkerError(f"{sentence}; that is more than {self.restarts} restarts within {self.window:g} s")
        lines = [f"{now - when:.1f} s before: {reason}" for when, reason in self._recent]
        error.add_note("\n".join(["What happened:", *lines]))
        raise error


def guard(crash_file: Path | None, dies_with_creator: bool) -> None:
    """A worker's first act: leave signals to the parent, log crashes, and die with its creator if asked to."""
    # Signals to the whole process group are for the parent, which may still want to save its state.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    file = None
    if crash_file is not None:
        with suppress(OSError):
            make_folder(crash_file.parent)
            file = open_to_append(crash_file)
    faulthandler.enable(file or sys.stderr)
    if file is not None:
        # faulthandler keeps the file open.
        faulthandler.register(signal.SIGUSR1, file)
    # A worker that held this end would keep the server that forks, whose death it waits for, alive.
    with suppress(AttributeError, TypeError, OSError):
        os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
    if dies_with_creator and sys.platform == "linux":
        import ctypes

        # This option kills the worker even in the middle of a step.
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def stop(workers: list[Worker]) -> None:
    """A worker ends when its line does, once it has finished its step; what has not by then is killed."""
    for worker in workers:
        worker.close()
    try:
        end = time.monotonic() + CLOSE_TIMEOUT_S
        for worker in workers:
            seconds_left = max(end - time.monotonic(), 0)
            worker.process.join(seconds_left)
    finally:
        # Workers are killed also if a signal ends the waiting above.
        alive = []
        for worker in workers:
            if worker.process.is_alive():
                alive.append(worker.process)
        for process in alive:
            process.kill()
        for process in alive:
            process.join(KILL_TIMEOUT_S)
    crash_files = set()
    for worker in workers:
        if worker.crash_file is not None:
            crash_files.add(worker.crash_file)
    for file in crash_files:
        with suppress(OSError):
            if file.stat().st_size == 0:
                file.unlink()
                file.parent.rmdir()
