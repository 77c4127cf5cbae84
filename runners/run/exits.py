"""How a run ends: exit codes, signals that wait for a safe point, and one sentence for every expected error."""

import os
import re
import signal
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from envs.transitions import NotFinite
from envs.types import MaskFault
from envs.vector.watchdog import WorkerError
from lodestar.files import replacing
from lodestar.memory import GIB, memory
from lodestar.state import Unsaveable
from runners.run.checkpoint import CheckpointError, VersionError
from runners.run.config import UsageError
from runners.run.packages import install_module
from runners.run.trust import masked

OK, FAILED, USAGE, MISSING, NUMERICAL, STORAGE, ENVIRONMENT, REWARD, HELD = 0, 1, 2, 3, 4, 5, 6, 7, 8
INTERRUPTED, TERMINATED = 130, 143  # 128 + the signal's number, as shells count
# Every signal that asks a process to end: Ctrl-C, a closed terminal, what batch systems send before they kill.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGXCPU")
STOPPING = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))


class Stopped(BaseException):
    """A signal asked the run to stop; like KeyboardInterrupt it is no `Exception`, so nothing swallows it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.code = 128 + number  # the exit code


class Signals:
    """Signals in `STOPPING`: at once where nothing can be lost, at the next safe point while `deferred`.

    The handler only sets a flag or raises: writing files there could meet a write in progress. A second Ctrl-C exits at
    once. Ctrl-C and SIGTERM are always ours; of the others those that would have ended the process, not what is ignored
    (nohup) or another's. In another thread than the main one, where Python takes no handlers, nothing changes.
    """

    def __init__(self, deferred: bool = False) -> None:
        self.deferred = deferred
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        always = (signal.SIGINT, signal.SIGTERM)
        ours = [number for number in STOPPING if number in always or _ends(signal.getsignal(number))]
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in ours}
        return self

    def __exit__(self, *error: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def release(self) -> None:
        """No longer wait; a signal that came meanwhile is raised now."""
        self.deferred = False
        if self.received is not None:
            self.deferred = True  # further signals must not interrupt the tidying up
            raise Stopped(self.received)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            os._exit(INTERRUPTED)
        again, self.received = self.received is not None, number
        if not self.deferred:
            self.deferred = True  # further signals must not interrupt the tidying up
            raise Stopped(number)
        if again:
            return
        with suppress(OSError):  # not through sys.stderr, in the middle of whose own writing this may be
            os.write(2, b"\nstopping after this step: saving a checkpoint (Ctrl-C again exits at once)\n")


def _ends(handler: Any) -> bool:
    """Whether a signal would end the process, or the command that this one is part of."""
    return handler == signal.SIG_DFL or isinstance(getattr(handler, "__self__", None), Signals)


class Failed(Exception):
    """An error that is explained already: its exit code and sentence; the error itself is its cause."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def explain(error: BaseException, phase: str = "set-up", step: int = 0) -> tuple[int, str]:
    """The exit code of an error and the sentence for the user; an empty sentence asks for the traceback.

    `phase` is "set-up", "training" or "report", `step` the environment steps so far.
    """
    sentence = masked(" ".join(str(error).split()))
    if isinstance(error, Failed):
        return error.code, sentence
    if isinstance(error, UsageError):
        return error.exit_code, sentence
    if isinstance(error, ImportError):
        plain = isinstance(error, ModuleNotFoundError) and sentence == f"No module named {error.name!r}"
        return MISSING, f"{sentence}; {install_module(str(error.name).partition('.')[0])}" if plain else sentence
    if isinstance(error, ValueError) and sentence.startswith("Expected parameter "):  # torch.distributions
        return NUMERICAL, (
            f"the policy's outputs stopped being finite at step {step:,}: training diverged; lower agent.learning_rate "
            "or scale the reward (reward.<name>.scale=return)"
        )
    if (found := _ALLOCATION.search(sentence)) and isinstance(error, MemoryError | RuntimeError):
        return FAILED, (
            f"an array of {found[1]} does not fit into memory ({memory()[0] / GIB:,.1f} GiB are free); make networks "
            "(hidden, net_arch), buffers (buffer_size), rollouts (n_steps) or n_envs smaller"
        )
    owner = _owner(error)
    # NumPy raises it, too, where np.seterr asks for that: in an environment it says nothing about training.
    arithmetic = isinstance(error, FloatingPointError) and not isinstance(error, NotFinite)
    if arithmetic and owner is not None and owner[0] == ENVIRONMENT:
        return ENVIRONMENT, _blame(owner[1], error, sentence, step)
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code, sentence
    if isinstance(error, MaskFault | WorkerError):
        return ENVIRONMENT, f"{sentence}, after {step:,} steps"
    if isinstance(error, ValueError) and phase == "set-up":
        return USAGE, sentence
    if isinstance(error, OSError) and phase == "set-up":
        wrong_path = isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError))
        return (USAGE if wrong_path else STORAGE), sentence
    if owner is not None:
        return owner[0], _blame(owner[1], error, sentence, step)
    if isinstance(error, OSError):
        return STORAGE, sentence
    if isinstance(error, SystemExit):
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return FAILED, f"{frame.filename}:{frame.lineno} called exit({sentence}) before the command was finished"
    return FAILED, ""


def _blame(owner: str, error: BaseException, sentence: str, step: int) -> str:
    """Whose code failed, when and where."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{last.filename}:{last.lineno}"
    return f"{owner} failed after {step:,} steps: {type(error).__name__}: {sentence} ({place})"


def save_kept(error: BaseException, folder: Path) -> str:
    """Write the arrays that an error carries to nan.npz in a run's folder; the end of its sentence."""
    path, found = folder / "nan.npz", getattr(error, "kept", None)
    if found:
        import numpy as np

        with suppress(OSError, ValueError):
            with replacing(path) as temporary:
                np.savez(temporary, **found)
            return f" (the step is in {path})"
    return ""


_ALLOCATION = re.compile(r"allocate ([\d.]+ (?:bytes|[KMGTPE]iB))")  # NumPy's and torch's errors say it so
_CODES = {FloatingPointError: NUMERICAL, VersionError: USAGE, CheckpointError: STORAGE, Unsaveable: FAILED}
_STEPS = ("make", "step", "reset", "render", "frame", "send", "recv", "close")


def _owner(error: BaseException) -> tuple[int, str] | None:
    """Whose code raised: the innermost call that was a reward's or an environment's."""
    found = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith(("envs.", "gymnasium.")) and frame.f_code.co_name in _STEPS:
            found = (ENVIRONMENT, "the environment")
        elif module.startswith("rewards.") and frame.f_code.co_name in ("score", "update", "embed"):
            found = (REWARD, "the reward")
    return found
