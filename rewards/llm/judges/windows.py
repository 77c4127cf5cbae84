"""Video reward models behind any OpenAI-compatible server: how much of a task do a few frames of an episode show?

    token       P(yes) / (P(yes) + P(no)), by the server's log-probabilities of the first token of its answer
    progress    (p + s) / 2: the progress p of the last frame and the success s that it answers in JSON
    score       (c - 1) / 4: the grade c of 1 to 5 that it answers

An item is the names of its frames, oldest first, with a space between: each is NAME.npy, uint8 (H, W, 3), in `folder`.

Sources: Chen et al. 2026, "TOPReward: Token Probabilities as Hidden Zero-Shot Rewards for Robotics", arXiv 2602.19313
(token); Liang et al. 2026, "Robometer: Scaling General-Purpose Robotic Reward Models via Trajectory Comparisons"
(progress and success of each frame); Lee et al. 2026, "RoboReward: General-Purpose Vision-Language Reward Models for
Robotics", arXiv 2601.00675 (grades).
These ask any model in our words; `robots` asks those three models in theirs.
Differences: TOPReward scales log P(True) by the extremes of a whole episode, which are
not known while it runs, so `no` is its scale here; the mean of progress and success is ours.
When it fails: a server that returns no log-probabilities (token); a model that thinks although it is asked not to, so
that its first token says nothing: take an Instruct model; goals that so few frames cannot show.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lodestar.settings import setting
from rewards.llm.client import JudgeError, Reply, answer_form
from rewards.llm.judges.base import Answers, TextJudge
from rewards.llm.judges.one_token import ONE_TOKEN
from rewards.llm.judges.prompts import sections
from rewards.llm.judges.served import ServedJudge, gather_answers

# First tokens, in small letters, that say yes and no.
YES_WORDS = ("yes", "true")
NO_WORDS = ("no", "false")
FRAMES_GONE = "the frames of a window are gone; it waited longer than frames are kept"
SHARE_SCHEMA = {"type": "number", "minimum": 0, "maximum": 1}


@dataclass(eq=False)
class WindowModel(ServedJudge, TextJudge):
    """What judges of windows share: one question a window, its frames among the words."""

    goal: str = setting("", "the task, a sentence")
    folder: str = setting("", "where the frames are; the reward fills it in")
    timeout: float = 30.0
    max_tokens: int = 512

    # The file of its prompts.
    wordings = "windows"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.goal.strip():
            raise ValueError(f'judge {self.name}: goal is empty; say what is wanted, such as goal="the door is open"')

    @property
    def variant(self) -> str:
        """Its own options that change an answer."""
        return ""

    @property
    def identity(self) -> str:
        parts = (self.name, sections(self.wordings)["version"], self.model, self.variant, self.goal)
        return " ".join(filter(None, parts))

    def label(self, texts: Sequence[str]) -> Answers:
        def score(text: str, reply: Reply) -> float:
            files = frame_files(self.folder, text)
            try:
                frames = list(map(np.load, files))
            except (OSError, ValueError):
                raise JudgeError(FRAMES_GONE) from None
            return self.value(frames, reply)

        return gather_answers(score, texts, self.concurrency)

    def value(self, frames: list[np.ndarray], reply: Reply) -> float:
        """Of one window; JudgeError without a usable answer."""
        raise NotImplementedError

    def make_prompt(self, frames: list[np.ndarray]) -> list[str | np.ndarray]:
        prompts = sections("windows")
        introduction = prompts["shown"].format(count=len(frames), goal=self.goal)
        return [introduction + "\n", *frames, prompts[self.name]]

    def notes(self) -> list[str]:
        return [f"windows of frames are scored by {self.model} at {self.url} ({self.name}) for: {self.goal}"]


def frame_files(folder: str, window: str) -> list[Path]:
    """Where the frames of a window are; JudgeError if they are gone."""
    files = [Path(folder) / f"{name}.npy" for name in window.split()]
    if not all(file.is_file() for file in files):
        raise JudgeError(FRAMES_GONE)
    return files


class TokenShare(WindowModel):
    """A probability that the model gives to a word."""

    name = "token"

    def value(self, frames: list[np.ndarray], reply: Reply) -> float:
        self.chat.ask(self.make_prompt(frames), None, reply, **ONE_TOKEN)
        yes = 0.0
        no = 0.0
        for token, log_probability in reply.candidates:
            word = token.strip().lower()
            if word in YES_WORDS:
                yes += math.exp(log_probability)
            elif word in NO_WORDS:
                no += math.exp(log_probability)
        # False for NaN, too.
        if not yes + no > 0:
            candidates = ", ".join(repr(token) for token, _ in reply.candidates[:5]) or "none"
            raise JudgeError(
                f"{self.model} gave no probability of yes or no (its candidates: {candidates}); take a server with "
                "log-probabilities and a model that does not think first, or judge=progress"
            )
        return yes / (yes + no)


class FrameProgress(WindowModel):
    """A progress for each frame, and a success."""

    name = "progress"

    def value(self, frames: list[np.ndarray], reply: Reply) -> float:
        form = answer_form(progress={"type": "array", "items": SHARE_SCHEMA}, success=SHARE_SCHEMA)
        answer = self.chat.ask(self.make_prompt(frames), form, reply)
        progress = answer["progress"]
        if len(progress) != len(frames):
            raise JudgeError(f"{self.model} answered {len(progress)} progresses to {len(frames)} frames")
        return (progress[-1] + answer["success"]) / 2


class WindowGrade(WindowModel):
    """A grade of the whole window."""

    name = "score"

    def value(self, frames: list[np.ndarray], reply: Reply) -> float:
        form = answer_form(score={"type": "integer", "minimum": 1, "maximum": 5})
        answer = self.chat.ask(self.make_prompt(frames), form, reply)
        return (answer["score"] - 1) / 4
