"""The progress or success that a reward model of LeRobot sees: `reward=lerobot:FOLDER_OR_REPO`.

It is `progress_model` with `judge=lerobot`; windows, shapes and what fails are described there, and the process of the
model, which has a Python of its own, in `rewards.llm.judges.lerobot`.

Source: LeRobot 0.6, `lerobot.rewards`.
Differences: see `rewards.llm.judges.lerobot`.
When it fails: as `progress_model` does; models of several cameras or of the robot's state.

Example:
    python -m runners.train env=Pendulum-v1 agent=sac reward=lerobot:lerobot/Robometer-4B \
        reward.lerobot.python=~/lerobot/bin/python reward.lerobot.goal="the pendulum points straight up"
"""

import os
from dataclasses import dataclass

from lodestar.settings import setting
from rewards.vision.progress_model import ProgressModel, ProgressModelConfig


@dataclass
class LeRobotConfig(ProgressModelConfig):
    """Settings of lerobot; more options of its judge, such as device, go into judge_options."""

    judge: str = setting("lerobot", "always lerobot", choices=("lerobot",))
    path: str = setting("", "a folder with the model's config.json, or its repository, such as lerobot/Robometer-4B")
    python: str = setting("python3", "the Python of an environment with lerobot 0.6")

    def __post_init__(self) -> None:
        super().__post_init__()
        path = os.path.expanduser(self.path)
        python = os.path.expanduser(self.python)
        self.judge_options = {"path": path, "python": python, **self.judge_options}


class LeRobot(ProgressModel):
    """phi of the newest window of frames, as a model of LeRobot scores it."""

    Config = LeRobotConfig
    config: LeRobotConfig
    # What `reward=lerobot:TEXT` sets.
    argument = "path"
