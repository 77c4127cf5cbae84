"""A job in a process of its own, for the workers of Ray and SLURM. Started, watched, never left behind.

A crash of the job is an exit code here, not a lost worker. When a worker dies its job notices within a second, saves
and exits; the next process that runs the job waits for that.
"""

import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from filelock import Timeout

from lodestar.files import NoRegularFile, make_folder, open_to_append
from runners.run.exits import TERMINATED
from runners.run.folder import lock_of
from runners.sweep.job import LOG, Argv, Outcome, work

# Between two looks at a job's process.
CHILD_POLL_S = 0.2
# Between two looks of a job at the process that started it.
PARENT_POLL_S = 0.5
# How long a job that was asked to exit may take to save before it is killed.
SAVE_S = 60.0
# How long a job waits for an orphan of its folder to save and exit; more than SAVE_S.
ORPHAN_WAIT_S = 90.0


class Child:
    """A job's process; what it prints goes to log.txt of its folder.

    `home` is the working directory that relative paths were meant for; not used where there is none of that name.
    """

    # How long it may take to save, once it was asked to exit, before it is killed.
    save_s = SAVE_S

    def __init__(self, argv: Argv, folder: Path, home: Path) -> None:
        self.folder = home / folder
        self._began = time.monotonic()
        # By the monotonic clock; infinite until it is asked to exit.
        self._kill_at = math.inf
        make_folder(self.folder)
        command = [sys.executable, "-m", __name__, str(os.getpid()), str(self.folder), *argv]
        cwd = home if home.is_dir() else None
        self.log = self.folder / LOG
        with open_to_append(self.log) as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=cwd, start_new_session=True
            )
        self.where = f"{socket.gethostname()}:{self.process.pid}"

    def ask(self) -> None:
        """Ask it to save and exit."""
        if self._kill_at == math.inf:
            self._kill_at = time.monotonic() + self.save_s
            self.process.terminate()

    def stop(self) -> None:
        """Ask it to save and exit, and return when it has; a signal handler may call this in the middle of `wait`."""
        self.ask()
        while self.process.poll() is None and time.monotonic() < self._kill_at:
            time.sleep(CHILD_POLL_S)
        self.process.kill()

    def wait(self) -> Outcome:
        """Until it ended; one that was asked to exit is killed after `save_s` seconds."""
        while self.process.poll() is None:
            if time.monotonic() > self._kill_at:
                self.process.kill()
            time.sleep(CHILD_POLL_S)
        code = self.process.returncode
        # The signal came before it had anything to save.
        if self._kill_at < math.inf and code == -signal.SIGTERM:
            code = TERMINATED
        return Outcome(code, time.monotonic() - self._began, self.where)


def main() -> int:
    """The process of a job: `python -m runners.sweep.child PARENT FOLDER key=value ...`."""
    parent, folder, *job = sys.argv[1:]
    _reset_signals()
    threading.Thread(target=_exit_with_parent, args=(int(parent),), daemon=True).start()
    # A run of this folder that lost its worker may still be saving; `runners.train` would refuse at once.
    with suppress(Timeout, NoRegularFile), lock_of(Path(folder)).acquire(timeout=ORPHAN_WAIT_S):
        pass
    return work(job, Path(folder))


def _reset_signals() -> None:
    """As a shell would start it: Ray's workers block SIGINT, and SLURM's warnings (SIGUSR) are for our parent."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _exit_with_parent(parent: int) -> None:
    """Exit when the parent is gone: its node is lost to the sweep, and the job is about to run elsewhere."""
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SAVE_S)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
