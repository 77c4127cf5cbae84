"""The control run: the same command with a meaningless reward, in a second process at the same time.

A reward names the change that makes it meaningless (`Reward.control`, such as CLIP with untrained weights). If the
control does as well, the reward did not help. A control that fails does not stop the run itself.
"""

import subprocess
from pathlib import Path

import rewards
from lodestar.files import make_folder, read_json
from runners.run.config import TrainConfig, Values, assignments
from runners.run.value import replace_arguments
from runners.sweep.child import Child

# Environment steps up to which `control=auto` starts a second run.
MAX_CONTROLLED_STEPS = 200_000


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


def start(config: TrainConfig, argv: list[str], folder: Path) -> Control | None:
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
