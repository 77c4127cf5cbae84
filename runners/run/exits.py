"""How a run ends: exit codes, signals that wait for a safe point, and one sentence for every expected error."""

import os
import re
import signal
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from envs.transitions import NotFinite
from envs.types import MaskFault
from envs.vector.watchdog import WorkerError
from lodestar.files import replacing
from lodestar.memory import GIB, memory
from lodestar.packages import install_module
from lodestar.state import Unsaveable
from runners.run.checkpoint import CheckpointError, VersionError
from runners.run.config import UsageError
from runners.run.trust import mask_secrets

# Exit codes.
OK = 0
FAILED = 1
USAGE = 2
MISSING = 3
NUMERICAL = 4
STORAGE = 5
ENVIRONMENT = 6
REWARD = 7
HELD = 8
# After a signal: 128 + its number, as shells count.
INTERRUPTED = 130
TERMINATED = 143
# Every signal that asks a process to end: Ctrl-C, a closed terminal, what batch systems send before they kill.
STOPPING = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGXCPU,
)

# What NumPy and torch say about an array that does not fit into memory.
_ALLOCATION = re.compile(r"allocate ([\d.]+ (?:bytes|[KMGTPE]iB))")
_EXIT_CODES = {FloatingPointError: NUMERICAL, VersionError: USAGE, CheckpointError: STORAGE, Unsaveable: FAILED}
# Functions of an environment and of a reward in which an error is theirs.
_ENVIRONMENT_CALLS = ("make", "step", "reset", "render", "frame", "send", "recv", "close")
_REWARD_CALLS = ("score", "update", "embed")


class Stopped(BaseException):
    """A signal asked the run to stop; like KeyboardInterrupt it is no `Exception`, so nothing swallows it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        # The exit code.
        self.code = 128 + number


class Signals:
    """Signals in `STOPPING`: at once where nothing can be lost, at the next safe point while `deferred`.

    The handler only sets a flag or raises: writing files there could meet a write in progress. A second Ctrl-C exits at
    once. Ctrl-C and SIGTERM are always ours; of the others those that would have ended the process, not what is ignored
    (nohup) or another's. In another thread than the main one, where Python takes no handlers, nothing changes.
    """

    def __init__(self, deferred: bool = False) -> None:
        self.deferred = deferred
        self.received: int | None = None
        self._handlers_before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING:
                if number in (signal.SIGINT, signal.SIGTERM) or _ends_process(signal.getsignal(number)):
                    self._handlers_before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: Any) -> None:
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)

    def release(self) -> None:
        """No longer wait; a signal that came meanwhile is raised now."""
        self.deferred = False
        if self.received is not None:
            self._raise(self.received)

    def _raise(self, number: int) -> NoReturn:
        # Further signals must not interrupt the tidying up.
        self.deferred = True
        raise Stopped(number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_first = self.received is None
        if not is_first and number == signal.SIGINT:
            os._exit(INTERRUPTED)
        self.received = number
        if not self.deferred:
            self._raise(number)
        if is_first:
            # Not through sys.stderr, in the middle of whose own writing this may be.
            with suppress(OSError):
                os.write(2, b"\nstopping after this step: saving a checkpoint (Ctrl-C again exits at once)\n")


def _ends_process(handler: Any) -> bool:
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
    sentence = mask_secrets(" ".join(str(error).split()))
    if isinstance(error, Failed):
        return error.code, sentence
    if isinstance(error, UsageError):
        return error.exit_code, sentence
    if isinstance(error, ImportError):
        # An ImportError of another kind says itself what is missing.
        if isinstance(error, ModuleNotFoundError) and sentence == f"No module named {error.name!r}":
            sentence = f"{sentence}; {install_module(str(error.name).partition('.')[0])}"
        return MISSING, sentence
    # What torch.distributions says of parameters that are NaN or infinite.
    if isinstance(error, ValueError) and sentence.startswith("Expected parameter "):
        return NUMERICAL, (
            f"the policy's outputs stopped being finite at step {step:,}: training diverged; lower agent.learning_rate "
            "or scale the reward (reward.<name>.scale=return)"
        )
    allocation = _ALLOCATION.search(sentence)
    if allocation and isinstance(error, MemoryError | RuntimeError):
        return FAILED, (
            f"an array of {allocation[1]} does not fit into memory ({memory()[0] / GIB:,.1f} GiB are free); make "
            "networks (hidden, net_arch), buffers (buffer_size), rollouts (n_steps) or n_envs smaller"
        )
    owner_code, owner = _owner(error)
    # NumPy raises it, too, where np.seterr asks for that: in an environment it says nothing about training.
    is_arithmetic = isinstance(error, FloatingPointError) and not isinstance(error, NotFinite)
    if is_arithmetic and owner_code == ENVIRONMENT:
        return ENVIRONMENT, _blame(owner, error, sentence, step)
    for kind, code in _EXIT_CODES.items():
        if isinstance(error, kind):
            return code, sentence
    if isinstance(error, MaskFault | WorkerError):
        return ENVIRONMENT, f"{sentence}, after {step:,} steps"
    if phase == "set-up":
        if isinstance(error, ValueError | FileNotFoundError | NotADirectoryError | IsADirectoryError):
            return USAGE, sentence
        if isinstance(error, OSError):
            return STORAGE, sentence
    if owner:
        return owner_code, _blame(owner, error, sentence, step)
    if isinstance(error, OSError):
        return STORAGE, sentence
    if isinstance(error, SystemExit):
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return FAILED, f"{frame.filename}:{frame.lineno} called exit({sentence}) before the command was finished"
    return FAILED, ""


def _blame(owner: str, error: BaseException, sentence: str, step: int) -> str:
    """Whose code failed, when and where."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{frame.filename}:{frame.lineno}"
    return f"{owner} failed after {step:,} steps: {type(error).__name__}: {sentence} ({place})"


def _owner(error: BaseException) -> tuple[int, str]:
    """Exit code and name of the innermost reward or environment that raised; FAILED and "" if none did."""
    code = FAILED
    owner = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
        function = frame.f_code.co_name
        if module.startswith(("envs.", "gymnasium.")) and function in _ENVIRONMENT_CALLS:
            code = ENVIRONMENT
            owner = "the environment"
        elif module.startswith("rewards.") and function in _REWARD_CALLS:
            code = REWARD
            owner = "the reward"
    return code, owner


def save_kept(error: BaseException, folder: Path) -> str:
    """Write the arrays that an error carries to nan.npz in a run's folder; the end of its sentence."""
    arrays = getattr(error, "kept", None)
    if arrays:
        import numpy as np

        path = folder / "nan.npz"
        with suppress(OSError, ValueError):
            with replacing(path) as temporary:
                np.savez(temporary, **arrays)
            return f" (the step is in {path})"
    return ""
