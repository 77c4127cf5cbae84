"""Video reward models behind any OpenAI-compatible server: how much of a task do a few frames of an episode show?

    token       P(yes) / (P(yes) + P(no)), by the server's log-probabilities of the first token of its answer
    progress    (p + s) / 2: the progress p of the last frame and the success s that it answers in JSON
    score       (c - 1) / 4: the grade c of 1 to 5 that it answers

An item is the names of its frames, oldest first, with a space between: each is NAME.npy, uint8 (H, W, 3), in `folder`.

Sources: Chen et al. 2026, "TOPReward: Token Probabilities as Hidden Zero-Shot Rewards for Robotics", arXiv 2602.19313
(token); Liang et al. 2026, "Robometer: Scaling General-Purpose Robotic Reward Models via Trajectory Comparisons"
(progress and success of each frame); Lee et al. 2026, "RoboReward: General-Purpose Vision-Language Reward Models for
Robotics", arXiv 2601.00675 (grades).
Differences: any model is asked in our words; TOPReward scales log P(True) by the extremes of a whole episode, which are
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
from rewards.llm.judges.base import Answers
from rewards.llm.judges.openai import ServerJudge
from rewards.llm.judges.prompts import sections

WORDS = {"yes": ("yes", "true"), "no": ("no", "false")}  # of a first token, in small letters
SHARE = {"type": "number", "minimum": 0, "maximum": 1}


@dataclass(eq=False)
class _WindowModel(ServerJudge):
    """What the three share: one question a window, its frames among the words."""

    goal: str = setting("", "the task, a sentence")
    folder: str = setting("", "where the frames are; the reward fills it in")
    timeout: float = 30.0
    max_tokens: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.goal.strip():
            raise ValueError(f'judge {self.name}: goal is empty; say what is wanted, such as goal="the door is open"')

    @property
    def identity(self) -> str:
        return f"{self.name} {sections('windows')['version']} {self.model} {self.goal}"

    def label(self, texts: Sequence[str]) -> Answers:
        return self.gather(lambda text, reply: (self.value(self._frames(text.split()), reply), reply.text), texts)

    def value(self, frames: list[np.ndarray], reply: Reply) -> float:
        """Of one window; JudgeError without a usable answer."""
        raise NotImplementedError

    def asked(self, frames: list[np.ndarray]) -> list[str | np.ndarray]:
        asked = sections("windows")
        return [asked["shown"].format(count=len(frames), goal=self.goal) + "\n", *frames, asked[self.name]]

    def notes(self) -> list[str]:
        return [f"windows of frames are scored by {self.model} at {self.url} ({self.name}) for: {self.goal}"]

    def _frames(self, names: Sequence[str]) -> list[np.ndarray]:
        try:
            return [np.load(Path(self.folder) / f"{name}.npy") for name in names]
        except (OSError, ValueError):
            raise JudgeError("the frames of a window are gone; it waited longer than frames are kept") from None


class TokenShare(_WindowModel):
    """A probability that the model gives to a word."""

    name = "token"

    def value(self, frames: list[np.ndarray], reply: Reply) -> float:
        self.chat.ask(self.asked(frames), None, reply, logprobs=True, top_logprobs=20, max_tokens=1)
        mass = {
            side: sum(math.exp(x) for token, x in reply.candidates if token.strip().lower() in words)
            for side, words in WORDS.items()
        }
        if not mass["yes"] + mass["no"] > 0:
            met = ", ".join(repr(token) for token, _ in reply.candidates[:5]) or "none"
            raise JudgeError(
                f"{self.model} gave no probability of yes or no (its candidates: {met}); take a server with "
                "log-probabilities and a model that does not think first, or judge=progress"
            )
        return mass["yes"] / (mass["yes"] + mass["no"])


class FrameProgress(_WindowModel):
    """A progress for each frame, and a success."""

    name = "progress"

    def value(self, frames: list[np.ndarray], reply: Reply) -> float:
        form = answer_form(progress={"type": "array", "items": SHARE}, success=SHARE)
        answer = self.chat.ask(self.asked(frames), form, reply)
        if len(answer["progress"]) != len(frames):
            raise JudgeError(f"{self.model} answered {len(answer['progress'])} progresses to {len(frames)} frames")
        return (answer["progress"][-1] + answer["success"]) / 2


class WindowGrade(_WindowModel):
    """A grade of the whole window."""

    name = "score"

    def value(self, frames: list[np.ndarray], reply: Reply) -> float:
        form = answer_form(score={"type": "integer", "minimum": 1, "maximum": 5})
        return (self.chat.ask(self.asked(frames), form, reply)["score"] - 1) / 4
