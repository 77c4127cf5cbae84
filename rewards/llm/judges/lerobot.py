"""Any reward model of LeRobot, in a process of its own, as its versions of Python, torch and NumPy differ from ours.

    lodestar train env=... reward=lerobot:FOLDER_OR_REPO \
        reward.progress_model.python=/path/to/its/bin/python

The score is what `compute_reward` returns: the progress of the last frame, the success of a classifier, or TOPReward's
log-probability, scaled as `robots.scale_log_probability` does. Values outside [0, 1] are cut off.

Source: LeRobot 0.6, `lerobot.rewards` (RoboMeter, SARM, TOPReward, reward_classifier), Apache-2.0. None of it is here.
Differences: one picture of a camera a step, without the robot's state; a classifier sees the newest frame alone.
When it fails: a model that reads several cameras or a state (SARM); one that is slower than the windows.
"""

import json
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lodestar.settings import setting
from rewards.llm.client import JudgeError, Reply
from rewards.llm.judges.base import Answers, TextJudge
from rewards.llm.judges.robots import scale_log_probability
from rewards.llm.judges.served import gather_answers
from rewards.llm.judges.windows import frame_files

SCRIPT = Path(__file__).with_name("lerobot_process.py")
# A process that does not end by itself is killed after so long.
END_TIMEOUT_S = 5.0


@dataclass(eq=False)
class LeRobotModel(TextJudge):
    """Scores windows of frames; the model is loaded when it is made, so that what is wrong is said before training."""

    path: str = setting(help="a folder with the model's config.json, or its repository, such as lerobot/Robometer-4B")
    python: str = setting("python3", "the Python of an environment with lerobot 0.6")
    goal: str = setting("", "the task, a sentence; a classifier needs none")
    folder: str = setting("", "where the frames are; the reward fills it in")
    image_key: str = setting("", "which of the model's inputs gets the frames; its only picture")
    device: str = setting("", "cpu, cuda; the model's own choice")
    floor: float = setting(-10.0, "of topreward: the log-probability, in nats, whose score is 0", "<= -0.1")

    name = "lerobot"
    # Its process takes one question after the other.
    slots = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path.strip():
            raise ValueError("judge lerobot: path is empty; give a folder or a repository, as in reward=lerobot:FOLDER")
        folder = Path(self.path)
        if folder.is_dir() and not (folder / "config.json").is_file():
            raise ValueError(f"judge lerobot: path={self.path!r} has no config.json; give the folder of a reward model")
        looks_local = self.path.startswith((".", "/", "~")) or self.path.count("/") != 1
        if looks_local and not folder.is_dir():
            raise ValueError(f"judge lerobot: path={self.path!r} is no folder; give one, or a repository as OWNER/NAME")
        settings = {"path": self.path, "image_key": self.image_key, "device": self.device}
        command = [self.python, str(SCRIPT), json.dumps(settings)]
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        except OSError as error:
            why = f"python={self.python!r} cannot be started ({error.strerror})"
            fix = "give the path of a Python whose environment has lerobot 0.6"
            raise ValueError(f"judge lerobot: {why}; {fix}") from None
        greeting = self._read()
        if "ready" not in greeting:
            self.close()
            raise ValueError(f"judge lerobot: {greeting.get('refused', 'its process ended without a word')}")
        self.type = str(greeting["ready"]["type"])
        self.version = str(greeting["ready"]["version"])
        if not self.goal.strip() and self.type != "reward_classifier":
            self.close()
            raise ValueError(f'judge lerobot: {self.type} reads a task and goal is empty; such as goal="open the door"')

    @property
    def identity(self) -> str:
        return f"lerobot {self.version} {self.type} {self.path} {self.image_key} {self.floor:g} {self.goal}"

    def label(self, texts: Sequence[str]) -> Answers:
        return gather_answers(self._score, texts, 1)

    def notes(self) -> list[str]:
        return [f"windows of frames are scored by {self.type} of {self.path} (lerobot {self.version}) for: {self.goal}"]

    def close(self) -> None:
        """End the process, which ends with its standard input."""
        try:
            self._process.communicate(timeout=END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _score(self, window: str, reply: Reply) -> float:
        files = list(map(str, frame_files(self.folder, window)))
        answer: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            print(json.dumps({"frames": files, "task": self.goal}), file=self._process.stdin, flush=True)
            answer = self._read()
        if "value" not in answer:
            raise JudgeError(f"{self.type} of {self.path}: {answer.get('failed', 'its process ended')}")
        value = float(answer["value"])
        if self.type == "topreward":
            return scale_log_probability(value, self.floor)
        return float(np.clip(value, 0, 1))

    def _read(self) -> dict[str, Any]:
        """The next line; {} if the process is gone."""
        assert self._process.stdout is not None
        try:
            return dict(json.loads(self._process.stdout.readline()))
        except ValueError:
            return {}
