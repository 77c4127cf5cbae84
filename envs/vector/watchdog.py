"""Processes that may die or hang at any moment, and a parent that never waits for them forever.

A death is noticed at once, by the end of the pipe or by the process's sentinel; a hang when the limit is over.

Limits: Linux and macOS. A limit counts the wall's seconds of a step, so it must allow for a busy machine.
"""

import faulthandler
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

from lodestar.files import appended, make_folder

GRACE_S = 0.25  # of waiting at least, even after the limit: what was sent meanwhile is there at once
SLICE_S = 1.0  # of waiting; a slice that takes longer means that this process was stopped too (Ctrl-Z)
CLOSE_S = 3.0  # for workers to finish a step and close their environments
DUMP_S = 0.3  # for a hanging worker to write its stack
WHERE = re.compile(r'Current thread.*?\n  File "([^"]+)", line (\d+) in (\S+)')


class WorkerError(RuntimeError):
    """An environment in a worker process raised, or the process died or hung; tracebacks are among the notes."""


class Gone(Exception):
    """A worker died or hangs; the message is the end of a sentence that begins with its name."""


class Line:
    """One end of two pipes: single bytes, which cost a third of a message, and messages after some of them."""

    def __init__(self, reader: Connection, writer: Connection) -> None:
        self._reader, self._writer = reader, writer
        self._in, self._out = reader.fileno(), writer.fileno()

    def __reduce__(self) -> Any:  # descriptors have other numbers in another process
        return Line, (self._reader, self._writer)

    def put(self, byte: bytes, message: Any = None) -> None:
        if message is None:
            os.write(self._out, byte)
            return
        data = pickle.dumps(message)  # first, so that nothing is sent if it fails
        rest = memoryview(byte + len(data).to_bytes(8, "big") + data)
        while rest:
            try:
                rest = rest[os.write(self._out, rest) :]
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
        return pickle.loads(self._exactly(int.from_bytes(self._exactly(8), "big")))

    def close(self) -> None:
        self._reader.close()
        self._writer.close()

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            data += self.take(min(count - len(data), 1 << 20))
        return bytes(data)

    def _wait(self, writing: bool = False) -> None:
        """Reading and writing block."""


class Worker(Line):
    """A process that runs `target` on its end of a line; crashing or hanging it writes its stack into `crash_file`."""

    def __init__(
        self, context: Any, target: Callable[..., None], arguments: tuple[Any, ...], name: str, crash_file: Path | None
    ) -> None:
        (hears, replies), (obeys, commands) = context.Pipe(duplex=False), context.Pipe(duplex=False)
        super().__init__(hears, commands)
        theirs = Line(obeys, replies)
        self.pending: deque[tuple[bytes, Any]] = deque()  # requests without a reply yet, oldest first
        self.limit: float | None = None  # seconds that it has for the next reply
        self.crash_file = crash_file
        self._written = crash_file.stat().st_size if crash_file is not None and crash_file.exists() else 0
        self._since = time.monotonic()
        self.process: BaseProcess = context.Process(target=target, args=(theirs, *arguments), daemon=True, name=name)
        try:
            self.process.start()
        except BaseException:
            self.close()
            raise
        finally:
            theirs.close()  # or the end of the worker would not end the pipe
        os.set_blocking(self._out, False)
        self._poll, self._space = select.poll(), select.poll()
        self._poll.register(self._in, select.POLLIN)
        self._poll.register(self.process.sentinel, select.POLLIN)  # the pipe stays open in a child of its own
        self._space.register(self._out, select.POLLOUT)

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
            raise Gone(self._fate()) from None
        self._since = time.monotonic()
        if self.pending and byte != failed:  # its successor repeats what failed
            self.pending.popleft()
        return byte, message

    def stack(self) -> str:
        """What it wrote when it crashed or hung; empty if nothing."""
        if self.crash_file is None:
            return ""
        with suppress(OSError), self.crash_file.open("rb") as file:
            file.seek(self._written)
            return file.read(100_000).decode(errors="replace")
        return ""

    def kill(self) -> None:
        self.process.kill()
        self.process.join(2)
        self.close()

    def _wait(self, writing: bool = False) -> None:
        limit, poll = self.limit, self._space if writing else self._poll
        if poll.poll(1000 * (GRACE_S if limit is None else min(GRACE_S, limit))):
            return
        while True:
            begin = time.monotonic()
            pause = SLICE_S if limit is None else min(SLICE_S, self._since + limit - begin)
            if pause <= 0:
                raise Gone(f"gave no answer for {limit:g} s{self._dump()}")
            if poll.poll(1000 * pause):
                return
            if not self.process.is_alive():  # where neither pipe nor sentinel showed it
                raise EOFError
            late = time.monotonic() - begin - pause
            if late > SLICE_S:
                self._since += late

    def _dump(self) -> str:
        if self.crash_file is None:
            return ""
        with suppress(OSError):
            os.kill(self.process.pid or 0, signal.SIGUSR1)
        end = time.monotonic() + DUMP_S
        while not (found := WHERE.search(self.stack())) and time.monotonic() < end:
            time.sleep(0.01)
        return f", in {found[3]} ({found[1]}:{found[2]})" if found else ""

    def _fate(self) -> str:
        self.process.join(2)
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
        self.restarts, self.window = restarts, window
        self.spent = 0  # replacements so far
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
        lines = [f"{now - when:.1f} s before: {what}" for when, what in self._recent]
        error.add_note("\n".join(["What happened:", *lines]))
        raise error


def guard(crash_file: Path | None, orphans: bool) -> None:
    """A worker's first act: leave signals to the parent, log crashes, and (`orphans`) die with its creator."""
    # Signals to the whole process group are for the parent, which may still want to save its state.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    file = None
    if crash_file is not None:
        with suppress(OSError):
            make_folder(crash_file.parent)
            file = appended(crash_file)
    faulthandler.enable(file or sys.stderr)
    if file is not None:
        faulthandler.register(signal.SIGUSR1, file)  # holds it open
    # A worker that held this end would keep the server that forks, whose death it waits for, alive.
    with suppress(AttributeError, TypeError, OSError):
        os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
    if orphans and sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: also in the middle of a step


def stop(workers: list[Worker]) -> None:
    """A worker ends when its line does, once it has finished its step; what has not by then is killed."""
    for worker in workers:
        worker.close()
    try:
        end = time.monotonic() + CLOSE_S
        for worker in workers:
            worker.process.join(max(end - time.monotonic(), 0))
    finally:  # also if a signal ends the waiting
        left = [worker.process for worker in workers if worker.process.is_alive()]
        for process in left:
            process.kill()
        end = time.monotonic() + 1
        for process in left:
            process.join(max(end - time.monotonic(), 0.05))
    for file in {worker.crash_file for worker in workers if worker.crash_file is not None}:
        with suppress(OSError):
            if file.stat().st_size == 0:
                file.unlink()
                file.parent.rmdir()
