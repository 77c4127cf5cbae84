"""The process of a job, which `runners.run.child` starts for the workers of Ray and SLURM and for control runs.

When the process that started it dies, it notices within a second, saves and exits; the next process that runs the job
waits for that.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from filelock import Timeout

from lodestar.files import NoRegularFile, make_folder, open_to_append
from runners.run.child import SAVE_S
from runners.run.folder import LOG, lock_of

# Between two looks of a job at the process that started it.
PARENT_POLL_S = 0.5
# How long a job waits for an orphan of its folder to save and exit; more than SAVE_S.
ORPHAN_WAIT_S = 90.0


def work(argv: Sequence[str], folder: Path) -> int:
    """Run a job in this process, which is its own: what it prints goes to log.txt of its folder; returns the code."""
    make_folder(folder)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with open_to_append(folder / LOG) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    # Imported late: the process that started this one is watched, and signals are as they should be, from the start.
    from runners import train

    return train.main(list(argv))


def main() -> int:
    """The process of a job: `python -m runners.sweep.worker PARENT FOLDER key=value ...`."""
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
