"""A vision-language model, asked over HTTP, says which of two pictures is nearer to a goal.

Source: Wang et al. 2024, "RL-VLM-F: Reinforcement Learning from Vision Language Foundation Model Feedback", arXiv
2402.03681, sections 4.1 and 4.2: two images, a question in two stages (describe and compare; then 0, 1 or -1), pairs
the model is unsure about are dropped.
Differences: any server with OpenAI's chat completions; the questions are worded by us, and the second is answered as
JSON that is checked; which image is shown first is decided by the pair's hash; a pair is asked once, and a segment
judged by its last frame; a failure is NaN and counted, and after `failures` in a row the server is not asked for
`pause`.
When it fails: a goal that one picture cannot show; pictures so small that the model sees nothing (frame_size); two
states that differ where the model does not look, which it calls equal or guesses.
"""

import hashlib
import json
from dataclasses import dataclass

import numpy as np

from envs.transitions import Transitions
from lodestar.settings import setting
from lodestar.state import Stateful
from rewards.llm.client import JudgeError, PausedError, answer_form, fits
from rewards.llm.judges.base import SegmentJudge
from rewards.llm.judges.prompts import sections
from rewards.llm.judges.served import ModelJudge

VERDICT_SCHEMA = answer_form(answer={"type": "integer", "enum": [0, 1, -1]}) | {"additionalProperties": False}


@dataclass(eq=False)
class VLM(Stateful, ModelJudge, SegmentJudge):
    """Asks about the last frame of each segment."""

    goal: str = setting("", 'what a picture should show: "to balance the pole upright"')
    concurrency: int = 4
    frame_size: int = setting(224, "height and width of the pictures, pixels", ">= 1")

    name = "vlm"
    saved = ("_known", "counts")
    requires = frozenset({"frame"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.goal = self.goal.strip()
        if not self.goal:
            raise ValueError('judge vlm: goal is empty; say what is wanted, such as goal="to balance the pole upright"')
        # Questions by their outcome, paused while the breaker is open. Pairs that are known or look the same need none.
        self.counts = dict.fromkeys(("answered", "unsure", "failed", "paused", "known", "same"), 0)
        self._known: dict[str, int] = {}
        self._last_error = ""

    @property
    def identity(self) -> str:
        return f"vlm {sections('pictures')['version']} {self.model} {self.goal}"

    def compare(self, first: Transitions, second: Transitions) -> np.ndarray:
        if first.frame is None or second.frame is None:
            raise ValueError(f"the judge vlm reads frames, and these have none; use frame_size={self.frame_size}")
        # Each different pair is asked about once, also where several rows show it.
        keys = []
        swapped = np.zeros(first.shape[1], bool)
        questions = {}
        for b, pair in enumerate(zip(first.frame[-1], second.frame[-1])):
            key, swapped[b] = self._key_and_order(*pair)
            keys.append(key)
            if key and key not in self._known:
                questions[key] = pair[::-1] if swapped[b] else pair
        stored, new = self.ask_kept(questions, self._ask, _parse_answer)
        self._known.update(stored)
        self.counts["same"] += keys.count("")
        self.counts["known"] += sum(key in self._known for key in keys)
        for key, answer in new.items():
            if isinstance(answer, PausedError):
                self.counts["paused"] += 1
            elif isinstance(answer, JudgeError):
                self.counts["failed"] += 1
                self._last_error = str(answer)
            else:
                self._known[key] = answer
                self.counts["unsure" if answer == -1 else "answered"] += 1
        answers = np.array([self._known.get(key, -1) for key in keys], np.float32)
        label = np.where(swapped, 1 - answers, answers)
        return np.where(answers == -1, np.float32(np.nan), label)

    def notes(self) -> list[str]:
        lines = [f"preferences are those of {self.model} at {self.url}, asked for: {self.goal}"]
        unanswered = self.counts["failed"] + self.counts["paused"]
        if unanswered:
            lines.append(f"{unanswered} pairs got no answer; the last error: {self._last_error}")
        return lines

    def _key_and_order(self, first: np.ndarray, second: np.ndarray) -> tuple[str, bool]:
        """The key of two pictures, "" for equal ones; whether the second is shown first, which they alone decide."""
        one = _digest(first)
        two = _digest(second)
        # The order of showing is random but follows from the pair: models prefer one place.
        identity = [int(sections("pictures")["version"]), self.model, self.goal, *sorted((one, two))]
        digest = hashlib.sha256(json.dumps(identity).encode())
        key = digest.hexdigest() if one != two else ""
        return key, (one < two) != bool(digest.digest()[0] & 1)

    def _ask(self, pictures: tuple[np.ndarray, np.ndarray]) -> str:
        """Both stages of the question, about two pictures in the order of showing; the answer as it is stored."""
        one, two = pictures
        prompts = sections("pictures")
        comparison = self.chat.ask(["Image 1:", one, "Image 2:", two, prompts["look"].format(goal=self.goal)])
        decide = prompts["decide"].format(goal=self.goal, said=comparison)
        answer = self.chat.ask([decide], VERDICT_SCHEMA)["answer"]
        return json.dumps({"answer": answer, "said": comparison})


def _parse_answer(words: str) -> int:
    """The answer among what is stored of a pair; ValueError for none."""
    stored = json.loads(words)
    if not fits(stored, VERDICT_SCHEMA):
        raise ValueError("no answer")
    return int(stored["answer"])


def _digest(picture: np.ndarray) -> str:
    data = f"{picture.shape}".encode() + picture.tobytes()
    return hashlib.sha256(data).hexdigest()
