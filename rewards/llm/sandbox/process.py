"""Code that a language model wrote, run without trusting it: `factors(obs, action) -> array (B, k)`, NumPy only.

    sandbox = Sandbox(source, obs_size=3, action_size=1)
    sandbox(obs, action)          float32 (B, k), finite

Three walls. `source_check` reads the source and refuses whatever is not on a list. What passes runs in a process of its
own that has given up files, network, other processes and its environment (`worker`), with bounded memory and a
deadline. What comes back is read as numbers only, its size is checked, and what is not finite becomes 0.

A call that fails is tried again in a fresh process; after `tries` failures in a row the factors are 0 from then on,
and `notes` says so. Nothing is remembered between calls, so equal inputs give equal factors.

Source: the need for it is in Qu et al. 2025 (arXiv 2412.11120), whose published code runs a model's answer with `exec`
in the training process. When it fails: the code may still be wrong, useless, or slow up to the deadline; on a system
that is not Linux the kernel filters nothing and may not bound memory; Windows is refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from envs.settings import Settings, setting
from rewards.llm.sandbox.source_check import BUILTINS, LOOP, NUMPY, SandboxError, check

ROWS = 16_384  # a request at a time, to bound memory
START = 30.0  # seconds in which the process must be up


@dataclass(eq=False)
class Sandbox(Settings):
    """A process that runs one program, started again when it must be.

    Attributes:
        width: factors, k.
        contained: whether the kernel filters the system calls of the process.
        counts: calls, failures (of tries), rows whose factors were not finite.
        failure: the sentence of the newest failure.

    Raises SandboxError if the code is refused, or fails on two rows of zeros; ValueError for a value out of range, or
    on Windows.
    """

    source: str = setting(help="as `check` takes it")
    obs_size: int = setting(help="numbers in a row of obs")
    action_size: int = setting(help="numbers in a row of action")
    timeout: float = setting(5.0, "seconds for one call", above=0)
    memory: int = setting(512, "MiB that the code may use", low=16)
    tries: int = setting(3, "failures in a row after which the factors are 0", low=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if os.name != "posix":
            raise ValueError(f"code is run on Linux and macOS only, not on {os.name!r}; use raw factors")
        self.counts = {"calls": 0, "failures": 0, "not finite": 0}
        self.width, self.failure, self.contained, self.broken = 0, "", False, False
        self._stop: weakref.finalize | None = None
        self._load(self.source)

    def __call__(self, obs: np.ndarray, action: np.ndarray) -> np.ndarray:
        """Factors of B rows, whatever happens: float32 (B, k), finite; zeros once the code failed too often."""
        found = np.zeros((len(obs), self.width), np.float32)
        for i in range(0, len(obs), ROWS):
            for left in reversed(range(0 if self.broken else self.tries)):
                try:
                    found[i : i + ROWS] = self.run(obs[i : i + ROWS], action[i : i + ROWS])
                    break
                except SandboxError:
                    self.broken = left == 0
        return found

    def run(self, obs: np.ndarray, action: np.ndarray) -> np.ndarray:
        """One try of a call; SandboxError if the code raised, took too long or too much, or gave another form."""
        self.counts["calls"] += 1
        try:
            found = self._exchange(np.ascontiguousarray(obs, np.float32), np.ascontiguousarray(action, np.float32))
        except SandboxError as error:
            self.counts["failures"] += 1
            self.failure = str(error)
            self.close()
            raise
        strange = ~np.isfinite(found)
        if strange.any():
            self.counts["not finite"] += int(strange.any(axis=1).sum())
            found[strange] = 0
        return found

    def notes(self) -> list[str]:
        """What a user should know of the code's behaviour."""
        lines = []
        if not self.contained:
            lines.append("this kernel does not filter what the factors' code asks of it; only limits hold it")
        if self.broken:
            lines.append(f"the factors' code failed {self.tries} times in a row and is 0 from then on: {self.failure}")
        elif self.counts["failures"]:
            lines.append(f"the factors' code failed {self.counts['failures']} times, last: {self.failure}")
        if self.counts["not finite"]:
            lines.append(f"{self.counts['not finite']} rows had factors that were not finite, 0 was taken instead")
        return lines

    @property
    def pid(self) -> int | None:
        """The process that runs the code; None while there is none."""
        held = self._stop.peek() if self._stop else None
        return held[2][0].pid if held else None

    def close(self) -> None:
        """End the process; the next call starts another."""
        if self._stop is not None:
            self._stop()
            self._stop = None

    def state_dict(self) -> dict[str, Any]:
        return {"source": self.source, "broken": self.broken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the saved code; ValueError if it is refused, or gives another number of factors."""
        if str(state["source"]) != self.source:
            self._load(str(state["source"]))
        self.broken = bool(state["broken"])

    def _load(self, source: str) -> None:
        before, self._runs = self.width, check(source)
        self.close()
        self.width = 0
        found = self.run(*(np.zeros((2, size), np.float32) for size in (self.obs_size, self.action_size)))
        if before not in (0, found.shape[1]):
            raise ValueError(f"the saved code gives {found.shape[1]} factors, this reward reads {before}; use its own")
        self.width, self.source = found.shape[1], source

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        folder = tempfile.mkdtemp(prefix="factors-")  # the process deletes it as soon as it stands in it
        worker, packages = Path(__file__).with_name("worker.py"), Path(np.__file__).parent.parent
        with theirs, open(os.devnull, "r+b") as nowhere:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(worker), str(packages)],
                stdin=theirs.fileno(),
                stdout=nowhere,
                stderr=nowhere,
                env={"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"},
                cwd=folder,
                start_new_session=True,
            )
        self._socket, self._stop = ours, weakref.finalize(self, _end, process, ours, folder)
        setup = {
            "source": self._runs,
            "numpy": sorted(NUMPY),
            "builtins": BUILTINS,
            "memory": self.memory * 2**20,
            "timeout": self.timeout + 1,  # the process ends itself only if its parent cannot
        }
        data = json.dumps(setup).encode()
        deadline = time.monotonic() + START
        self._send(struct.pack("<I", len(data)) + data, deadline)
        self.contained = self._take(1, deadline) == b"1"

    def _exchange(self, obs: np.ndarray, action: np.ndarray) -> np.ndarray:
        if self._stop is None:
            self._start()
        deadline = time.monotonic() + self.timeout
        self._send(
            struct.pack("<III", len(obs), self.obs_size, self.action_size) + obs.tobytes() + action.tobytes(), deadline
        )
        k, length = struct.unpack("<II", self._take(8, deadline))
        if k == 0 and length <= 2000:
            raise SandboxError(self._take(length, deadline).decode("utf-8", "replace"))
        if k > LOOP or length != 4 * len(obs) * k or (self.width and k != self.width):
            raise SandboxError(f"factors returned {k} numbers a row, where it returned {self.width} before")
        return np.frombuffer(self._take(length, deadline), np.float32).reshape(len(obs), k)

    def _send(self, data: bytes, deadline: float) -> None:
        with _in_time(self._socket, deadline):
            self._socket.sendall(data)

    def _take(self, count: int, deadline: float) -> bytearray:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            with _in_time(self._socket, deadline):
                got = self._socket.recv_into(view)
                if not got:
                    raise EOFError
                view = view[got:]
        return data


@contextlib.contextmanager
def _in_time(channel: socket.socket, deadline: float) -> Iterator[None]:
    """Turns what fails on a socket before a deadline into a sentence."""
    channel.settimeout(max(deadline - time.monotonic(), 1e-3))
    try:
        yield
    except TimeoutError:
        raise SandboxError("factors took too long and was stopped; make it faster") from None
    except (OSError, EOFError):
        raise SandboxError("factors ended its process: too much memory, or something that is not allowed") from None


def _end(process: subprocess.Popen, channel: socket.socket, folder: str) -> None:
    channel.close()
    process.kill()
    process.wait()
    with contextlib.suppress(OSError):
        os.rmdir(folder)  # left only if the process never began
