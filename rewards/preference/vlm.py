"""A vision-language model, asked over HTTP, says which of two pictures is nearer to a goal.

Source: Wang et al. 2024, "RL-VLM-F: Reinforcement Learning from Vision Language Foundation Model Feedback", arXiv
2402.03681, sections 4.1 and 4.2: two images, a question in two stages (describe and compare; then 0, 1 or -1), pairs
the model is unsure about are dropped.

Differences from the source:
  - any server with OpenAI's chat completions, a local one included, instead of two providers' own clients;
  - the questions are worded by us, and the second is answered as JSON that is checked;
  - which image is shown first is a coin tossed with the pair's hash, against a preference for a position;
  - a pair is asked once: answers are kept in memory and, with `answers`, in a file that the next run reads;
  - a segment is judged by its last frame, as the source's segments of one;
  - what fails is NaN, counted and told in `notes`, and after `failures` in a row the server is left alone for `pause`.

When it fails: a goal that one picture cannot show; pictures so small that the model sees nothing (frame_size); two
states that differ where the model does not look, which it calls equal or guesses.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from envs.types import Transitions
from rewards.llm.client import Chat, JudgeError
from rewards.preference.judge import Judge

VERSION = 1  # of the questions below; answers to others are not read
LOOK = (
    "Each of these two images shows the end of a different attempt at a task. The goal is: {goal}\n"
    "1. Say what image 1 shows, as far as the goal is concerned.\n"
    "2. Say what image 2 shows, as far as the goal is concerned.\n"
    "3. Compare: in which of the two is the goal reached better, or is there no difference?"
)
DECIDE = (
    "Somebody compared two images, image 1 and image 2. The goal is: {goal}\nThis is what they wrote:\n\n{said}\n\n"
    "According to them, in which image is the goal reached better? Answer 0 for image 1, 1 for image 2, -1 if there is "
    "no difference or they are not sure."
)
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer", "enum": [0, 1, -1]}},
    "required": ["answer"],
    "additionalProperties": False,
}


class VLM(Judge):
    """Asks about the last frame of each segment.

    Attributes:
        counts: questions by their end: answered, unsure (-1), failed, paused (not asked while the server is left
            alone); pairs that needed none: known (asked before), same (two equal images).

    Args:
        goal: what a picture should show or somebody should have done: "to balance the pole upright".
        model: the model's name on the server.
        url: the API's root.
        key: the environment variable with the API key.
        answers: a file (*.jsonl) of answers, read at the start and added to; empty for none.
        threads: questions asked at the same time, in [1, 64].
        failures: failed questions in a row after which the server is left alone, at least 1.
        pause: seconds for which it is.
        timeout: seconds for one attempt at one of the two stages.
        attempts: how often each stage is tried.
        max_tokens: length of an answer, tokens.
        frame_size: height and width of the pictures, pixels.
        seed: of the waits between attempts.

    Raises:
        ValueError: for an empty goal or a value out of range.
    """

    name = "vlm"
    requires = frozenset({"frame"})

    def __init__(
        self,
        goal: str,
        model: str,
        url: str = "http://localhost:8000/v1",
        key: str = "OPENAI_API_KEY",
        answers: str = "",
        threads: int = 4,
        failures: int = 5,
        pause: float = 60.0,
        timeout: float = 60.0,
        attempts: int = 4,
        max_tokens: int = 1024,
        frame_size: int = 224,
        seed: int = 0,
    ) -> None:
        if not goal.strip():
            raise ValueError('goal is empty; say what is wanted, such as goal="to balance the pole upright"')
        if not 1 <= threads <= 64:
            raise ValueError(f"threads={threads} is out of range; give 1 to 64 questions at the same time")
        if failures < 1:
            raise ValueError(f"failures={failures} would leave the server alone at once; give at least 1")
        options = {"temperature": 0, "max_tokens": max_tokens}
        self.goal, self.frame_size = goal.strip(), frame_size
        self.chat = Chat(model, url, key=key, timeout=timeout, attempts=attempts, options=options, seed=seed)
        self.threads, self.failures, self.pause = threads, failures, pause
        self.counts = dict.fromkeys(("answered", "unsure", "failed", "paused", "known", "same"), 0)
        self._path = Path(answers) if answers else None
        self._known: dict[str, int] = _read(self._path)
        self._row, self._closed_until = 0, 0.0  # failures in a row; the moment from which the server is asked again
        self._last_error = ""
        self._lock = threading.Lock()

    def compare(self, first: Transitions, second: Transitions) -> np.ndarray:
        if first.frame is None or second.frame is None:
            raise ValueError(f"the judge vlm reads frames, and these have none; use frame_size={self.frame_size}")
        pairs = [_Pair(self, a, b) for a, b in zip(first.frame[-1], second.frame[-1])]
        asked = {pair.key: pair for pair in pairs if not pair.same and pair.key not in self._known}
        before = set(self._known)
        executor = ThreadPoolExecutor(self.threads)
        try:
            list(executor.map(self._ask, asked.values()))
        finally:  # an interruption does not wait for a slow server
            executor.shutdown(wait=False, cancel_futures=True)
        self.counts["same"] += sum(pair.same for pair in pairs)
        self.counts["known"] += sum(pair.key in before for pair in pairs if not pair.same)
        return np.array([pair.preference(self._known.get(pair.key)) for pair in pairs], np.float32)

    def notes(self) -> list[str]:
        """Who judges by which sentence, and what failed."""
        lines = [f"preferences are those of {self.chat.model} at {self.chat.url}, asked for: {self.goal}"]
        lost = self.counts["failed"] + self.counts["paused"]
        if lost:
            lines.append(f"{lost} pairs got no answer; the last error: {self._last_error}")
        return lines

    def state_dict(self) -> dict[str, Any]:
        return {"known": dict(self._known), "counts": dict(self.counts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._known = {**{key: int(value) for key, value in state["known"].items()}, **_read(self._path)}
        self.counts.update(state["counts"])

    def _ask(self, pair: _Pair) -> None:
        """Learn the answer about a pair, or count why not."""
        with self._lock:
            if time.monotonic() < self._closed_until:
                self.counts["paused"] += 1
                return
        try:
            one, two = pair.shown
            said = self.chat.ask(["Image 1:", one, "Image 2:", two, LOOK.format(goal=self.goal)])
            answer = self.chat.ask([DECIDE.format(goal=self.goal, said=said)], SCHEMA)["answer"]
        except JudgeError as error:
            with self._lock:
                self.counts["failed"] += 1
                self._last_error = str(error)
                self._row += 1
                if self._row >= self.failures:
                    self._closed_until = time.monotonic() + self.pause
            return
        with self._lock:
            self._row = 0
            self.counts["unsure" if answer == -1 else "answered"] += 1
            self._known[pair.key] = answer
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                row = {"pair": pair.key, "answer": answer, "model": self.chat.model, "goal": self.goal, "said": said}
                with self._path.open("a") as file:
                    file.write(json.dumps(row) + "\n")


class _Pair:
    """Two images in the order in which they are shown, which depends on them alone.

    Attributes:
        key: names what is asked: model, questions, goal, the two images.
        shown: image 1 and image 2.
        swapped: whether image 1 is the second segment's.
        same: whether the images are equal.
    """

    def __init__(self, judge: VLM, first: np.ndarray, second: np.ndarray) -> None:
        one, two = (hashlib.sha256(f"{x.shape}".encode() + x.tobytes()).hexdigest() for x in (first, second))
        self.same = one == two
        about = [VERSION, judge.chat.model, judge.goal, *sorted((one, two))]
        digest = hashlib.sha256(json.dumps(about).encode())
        self.key = digest.hexdigest()
        lower_first = bool(digest.digest()[0] & 1)
        self.swapped = (one < two) != lower_first
        self.shown = (second, first) if self.swapped else (first, second)

    def preference(self, answer: int | None) -> float:
        """1 for the second segment, 0 for the first, NaN for neither."""
        if self.same or answer is None or answer == -1:
            return np.nan
        return float(1 - answer if self.swapped else answer)


def _read(path: Path | None) -> dict[str, int]:
    """Pair -> answer of a file; a line that was cut off is passed over."""
    known = {}
    if path is not None and path.exists():
        for line in path.read_text().splitlines():
            try:
                row = json.loads(line)
                if row["answer"] in (0, 1, -1):
                    known[str(row["pair"])] = int(row["answer"])
            except (ValueError, KeyError, TypeError):
                continue
    return known
