"""A run in a process of its own: a job of Ray's and SLURM's workers, or a control run. It is never left behind.

A crash of the run is an exit code here. A control run is the same command with a meaningless reward, at the same time.
A reward names the change that makes it meaningless (`Reward.control`, such as CLIP with untrained weights). If the
control does as well, the reward did not help. A control that fails does not stop the run itself.
"""

import math
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import rewards
from lodestar.files import make_folder, open_to_append, read_json
from runners.run.config import TrainConfig, Values, assignments
from runners.run.exits import TERMINATED
from runners.run.folder import LOG
from runners.run.value import replace_arguments

# The arguments of `runners.train`.
Argv = tuple[str, ...]
# What runs a job in a process, by its name: it imports `runners.train`, which imports this file.
WORKER = "runners.sweep.worker"

# Between two looks at a job's process.
CHILD_POLL_S = 0.2
# How long a job that was asked to exit may take to save before it is killed.
SAVE_S = 60.0
# Environment steps up to which `control=auto` starts a second run.
MAX_CONTROLLED_STEPS = 200_000


@dataclass(frozen=True)
class Outcome:
    """How an attempt at a job ended."""

    # As in `runners.run.exits`; -N: killed by signal N; None: unknown, as its machine was lost.
    code: int | None
    # How long it took, by the monotonic clock of the machine that ran it.
    seconds: float
    # host:pid, and the node or the batch job where there is one.
    where: str
    # One sentence; empty if finished.
    error: str = ""


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
        command = [sys.executable, "-m", WORKER, str(os.getpid()), str(self.folder), *argv]
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


class Control(Child):
    """The process of a control run: it ends with this one, and Ctrl-C reaches it through us, not the terminal.

    It waits for the control that an earlier process of this run may have left.
    """

    save_s = 5.0

    def __init__(self, config: TrainConfig, argv: list[str], folder: Path) -> None:
        arguments = assignments(changes_of(config))
        self.label = f"control: {', '.join(arguments)}".replace("reward.", "")
        self.run = make_folder(folder / "control") / "run"
        if config.cluster != "none":
            arguments += ["cluster=none", "workers=1", "lag=0"]
        arguments += ["control=none", "video=false", "resume=auto", f"run_dir={self.run}"]
        super().__init__(tuple(replace_arguments(argv, arguments)), self.run, Path())

    def result(self, patience_s: float = 600.0) -> Values | None:
        """Wait for the control's evaluation; None if it failed or took too long."""
        try:
            if self.process.wait(patience_s) == 0:
                return read_json(self.run / "result.json").get("this run")
        except subprocess.TimeoutExpired:
            self.stop()
        return None


def start_control(config: TrainConfig, argv: list[str], folder: Path) -> Control | None:
    """The control run in a second process, if a reward names one and the run is short."""
    if not is_controlled(config):
        return None
    try:
        control = Control(config, argv, folder)
    except OSError as error:
        print(f"no control run ({error}); training continues without it")
        return None
    print(f"{control.label}, beside this run (control=none switches it off)", flush=True)
    return control


def changes_of(config: TrainConfig) -> Values:
    """Command-line key -> value of what makes the run's rewards meaningless; empty if no reward names one."""
    changes = {}
    for name in config.reward:
        for option, value in (rewards.get(name).control or {}).items():
            changes[f"reward.{name}.{option}"] = value
    return changes


def is_controlled(config: TrainConfig) -> bool:
    """Whether this run should have a control beside it."""
    if config.control != "auto" or config.total_timesteps > MAX_CONTROLLED_STEPS:
        return False
    # A run whose reward is meaningless already is its own control.
    for key, value in changes_of(config).items():
        _, name, option = key.split(".")
        if getattr(config.reward[name], option, None) != value:
            return True
    return False
