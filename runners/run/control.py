"""The control run: the same command with a meaningless reward, in a second process at the same time.

A reward names the change that makes it meaningless (`Reward.control`, such as CLIP with untrained weights). If the
control does as well, the reward did not help. A control that fails does not stop the run itself.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import rewards
from lodestar.files import appended, make_folder, read_json
from runners.cli.value import replaced
from runners.run.config import TrainConfig
from runners.run.folder import LOG

LIMIT = 200_000  # environment steps up to which `control=auto` starts a second run


class Control:
    """The process of a control run."""

    def __init__(self, config: TrainConfig, argv: list[str], folder: Path) -> None:
        changes = changes_of(config)
        self.label = "control: " + ", ".join(f"{key.split('.', 1)[1]}={value}" for key, value in changes.items())
        self.run = folder / "control" / "run"
        self.log = self.run / LOG
        make_folder(make_folder(folder / "control") / "run")
        extra = [f"{key}={value}" for key, value in changes.items()]
        extra += ["cluster=none", "workers=1", "lag=0"] if config.cluster != "none" else []
        extra += ["control=none", "video=false", "resume=auto", f"run_dir={self.run}"]
        # It ends with this process, and waits for the control that an earlier one of this run may have left; Ctrl-C
        # reaches it through us, not through the terminal.
        child = [sys.executable, "-m", "runners.sweep.child", str(os.getpid()), str(self.run), *replaced(argv, extra)]
        with appended(self.log) as log:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            self.process = subprocess.Popen(child, start_new_session=True, **streams)

    def result(self, patience_s: float = 600.0) -> dict[str, Any] | None:
        """Wait for the control's evaluation; None if it failed or took too long."""
        try:
            if self.process.wait(patience_s) == 0:
                return read_json(self.run / "result.json").get("this run")
        except subprocess.TimeoutExpired:
            self.stop()
        return None

    def stop(self) -> None:
        """Let it save and end; it is killed after five seconds."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def start(config: TrainConfig, argv: list[str], folder: Path) -> Control | None:
    """The control run in a second process, if a reward names one and the run is short."""
    if not wanted(config):
        return None
    try:
        control = Control(config, argv, folder)
    except OSError as error:
        print(f"no control run ({error}); training continues without it")
        return None
    print(f"{control.label}, beside this run (control=none switches it off)", flush=True)
    return control


def changes_of(config: TrainConfig) -> dict[str, Any]:
    """Command-line key -> value of what makes the run's rewards meaningless; empty if no reward names one."""
    found = {name: rewards.get(name).control or {} for name in config.reward}
    return {f"reward.{name}.{key}": value for name, control in found.items() for key, value in control.items()}


def wanted(config: TrainConfig) -> bool:
    """Whether this run should have a control beside it."""
    changes = [(*key.split(".")[1:], value) for key, value in changes_of(config).items()]
    differs = any(getattr(config.reward[name], option, None) != value for name, option, value in changes)
    return config.control == "auto" and differs and config.total_timesteps <= LIMIT
