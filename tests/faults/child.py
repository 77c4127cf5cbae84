"""A process of its own in which something goes wrong, and a short training run to do it to.

    with Child(lambda: train(run_dir=folder), folder.with_suffix(".txt")) as child:
        os.kill(child.pid, signal.SIGTERM)
        code = child.wait(10)

It is forked, so what has been imported is there at once: hundreds of trials take minutes, not hours.
"""

from __future__ import annotations

import ctypes
import functools
import io
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import traceback
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import metadata
from pathlib import Path
from typing import Any

from runners.run.packages import HOME

TINY = {
    "env": "CartPole-v1",
    "reward": "task",
    "n_envs": 2,
    "agent.n_steps": 32,
    "agent.n_epochs": 1,
    "eval_episodes": 0,
    "video": "false",
    "log_every": 64,
    "checkpoint_every": 64,
    "device": "cpu",
}


def train(**options: Any) -> int:
    """`runners.train` on CartPole with 2 x 32 steps a rollout; options with dots as in **{"agent.n_steps": 8}."""
    from runners.train import main

    return main([f"{key}={value}" for key, value in {**TINY, **options}.items()])


@functools.cache
def warm() -> None:
    """Import what a run imports, once, so that children find it there."""
    options = {"total_timesteps": 64, "reward": "rnd"}
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        assert train(run_dir=f"{folder}/run", **options) == 0


class Child:
    """A forked process that runs `action` and exits with what it returns; 1 and a traceback if that raises.

    Args:
        action: what to do.
        out: file that takes what it prints.
        drop: whether to become nobody first, whom permissions hold back; root may write anywhere.
    """

    def __init__(self, action: Callable[[], int], out: Path, drop: bool = False) -> None:
        self.out = out
        self._process = multiprocessing.get_context("fork").Process(target=self._run, args=(action, drop))
        self._process.start()
        self.pid = int(self._process.pid or 0)

    def _run(self, action: Callable[[], int], drop: bool) -> None:
        file = os.open(self.out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout, sys.stderr = (
            os.fdopen(1, "w", buffering=1, closefd=False),
            os.fdopen(2, "w", buffering=1, closefd=False),
        )
        for number in (signal.SIGTERM, signal.SIGINT):  # as in a program that was just started
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
        try:
            if drop and os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            code = action()
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        os._exit(code)

    def wait(self, seconds: float) -> int | None:
        """The exit code, -N if killed by signal N; None if it still runs after so long, and then it is killed."""
        # `join` with a time limit waits for a pipe too, which processes that this one started may hold open.
        until(lambda: self._process.exitcode is not None, seconds)
        code = self._process.exitcode
        if code is None:
            self._process.kill()
            self._process.join()
        return code

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.is_alive()

    def text(self) -> str:
        """What it has printed."""
        return self.out.read_text(errors="replace") if self.out.exists() else ""

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: Any) -> None:
        if self.alive:
            self._process.kill()
        self._process.join()


def run(action: Callable[[], int], out: Path, seconds: float = 120.0, drop: bool = False) -> tuple[int | None, str]:
    """Do something in a child: its exit code, None if it hung, and what it printed."""
    out.unlink(missing_ok=True)
    with Child(action, out, drop) as child:
        return child.wait(seconds), child.text()


def typed(*command: str, **variables: str) -> tuple[int, str]:
    """A command line in a process of its own, with variables of the environment: its exit code, what it printed."""
    env = {**os.environ, "PYTHONPATH": str(HOME), **variables}
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def python_without(module: str, folder: Path) -> str:
    """The interpreter of a virtual environment in which all is installed but the package that brings a module."""
    site = Path(sysconfig.get_path("purelib"))
    venv.create(folder, symlinks=True)
    (ours,) = folder.glob("lib/python*/site-packages")
    gone = {path.parts[0] for name in metadata.packages_distributions()[module] for path in metadata.files(name) or ()}
    for path in site.iterdir():
        if path.name not in gone:
            (ours / path.name).symlink_to(path)
    return str(folder / "bin" / "python")


def until(condition: Callable[[], Any], seconds: float = 60.0) -> bool:
    """Wait for something; whether it came."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def sentence(printed: str) -> bool:
    """Whether what was printed tells of one error, in one line, without a traceback."""
    lines = [line for line in printed.splitlines() if line.startswith("error: ")]
    return len(lines) == 1 and "Traceback" not in printed


@contextmanager
def full_disk(size: int = 0) -> Iterator[None]:
    """No file of this process can grow beyond `size` bytes meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def own_disks() -> bool:
    """Let what this process mounts be seen, and last, as long as it and its children; whether that is permitted."""
    new_namespace, private = 0x00020000, 0x00044000  # CLONE_NEWNS; MS_REC | MS_PRIVATE
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    return not (libc.unshare(new_namespace) or libc.mount(b"none", b"/", None, private, None))


def small_disk(folder: Path, size: int) -> bool:
    """Put a disk of so many bytes in a folder's place, for this process alone; whether that is permitted."""
    if not own_disks():
        return False
    folder.mkdir(parents=True, exist_ok=True)
    return ctypes.CDLL(None).mount(b"none", os.fsencode(folder), b"tmpfs", 0, f"size={size}".encode()) == 0
