"""Who writes the code of rewards: a language model, a file of answers, or chance, which is the control.

A file of answers is what a model, or a person, wrote; `runners.design` keeps one of every search:

    === 1
    An answer, with code in a block as a model gives it.
    === 1
    Another of the first round.

Those that ship were written for this suite in that form; no model on a server was asked.
"""

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lodestar.files import file_stems, read_text, replacing, why_unread
from lodestar.settings import setting
from rewards.language.lare import CodeModel, rules
from rewards.llm.client import JudgeError
from rewards.llm.judges.base import Judge
from rewards.llm.judges.prompts import sections

SHIPPED_ANSWERS = Path(__file__).with_name("recorded")
# Operations in a random component.
MAX_FORMULA_DEPTH = 3


@dataclass(frozen=True)
class Brief:
    """What an author is asked: the task, what the numbers are and how many, and how earlier code did."""

    task: str
    describe: str
    obs_size: int
    action_size: int
    # Numbers of the simulator that code may read, too.
    signals_size: int = 0
    feedback: str = ""

    @property
    def text(self) -> str:
        fields = {key: value for key, value in vars(self).items() if key != "feedback"}
        question = sections("rewards")["candidate"].format(**fields, rules=rules())
        if self.signals_size:
            question += "\n\n" + sections("rewards")["signals"].format(signals_size=self.signals_size)
        if not self.feedback:
            return question
        return f"{question}\n\n{self.feedback}"


class RewardAuthor(Judge):
    """Writes reward functions."""

    @abstractmethod
    def propose(self, brief: Brief, count: int, number: int) -> Sequence[str | JudgeError]:
        """Answers of round `number`, counted from 1, with code in them; or why there is none."""


@dataclass(eq=False)
class ModelAuthor(CodeModel, RewardAuthor):
    """A language model on a server."""

    temperature: float = setting(1.0, "of its answers, which have to differ", ">= 0")

    @property
    def identity(self) -> str:
        return f"reward version {sections('rewards')['version']} {self.model}"

    def propose(self, brief: Brief, count: int, number: int) -> Sequence[str | JudgeError]:
        return self.ask(brief.text, self.temperature, range(count))

    def notes(self) -> list[str]:
        return [f"the code was written by {self.model}, asked {self.asked} times"]


@dataclass(eq=False)
class RecordedAuthor(RewardAuthor):
    """Answers in a file."""

    file: str = setting(help="a file of answers, or the name of one that ships: mountaincar, pendulum")

    name = "recorded"

    def __post_init__(self) -> None:
        super().__post_init__()
        path = SHIPPED_ANSWERS / f"{self.file}.txt"
        try:
            text = read_text(path if path.is_file() else Path(self.file).resolve())
        except OSError as error:
            names = ", ".join(file_stems(SHIPPED_ANSWERS, "*.txt"))
            raise ValueError(
                f"judge.file={self.file!r} {why_unread(self.file, error)}; give a file of answers, or {names}"
            ) from None
        # The text before the first line as === 1 is a comment; rounds and answers follow in turn.
        _, *parts = re.split(r"^=== (\d+)$\n?", text, flags=re.MULTILINE)
        self.answers = list(zip(map(int, parts[::2]), parts[1::2]))
        self.refuse_if(not parts, "judge.file={file!r} has no answers; each begins with a line as === 1, its round")

    def propose(self, brief: Brief, count: int, number: int) -> Sequence[str | JudgeError]:
        return [answer for answer_round, answer in self.answers if answer_round == number][:count]

    def notes(self) -> list[str]:
        return [f"the code stands in {self.file}"]


@dataclass(eq=False)
class RandomAuthor(RewardAuthor):
    """Random formulas in the form that the others write: what choosing by the task's return does without an author."""

    seed: int = setting(0, "of the formulas", ">= 0")

    name = "random"

    def propose(self, brief: Brief, count: int, number: int) -> Sequence[str | JudgeError]:
        return [formula(brief, np.random.default_rng([self.seed, number, index])) for index in range(count)]

    def notes(self) -> list[str]:
        return [f"the code was drawn at random, seed {self.seed}"]


def formula(brief: Brief, rng: np.random.Generator) -> str:
    """Code of one to four weighted components, each up to three operations on numbers of a step."""

    def leaf() -> str:
        i = int(rng.integers(brief.obs_size))
        j = int(rng.integers(brief.action_size))
        numbers = [f"obs[:, {i}]", f"next_obs[:, {i}]", f"(next_obs[:, {i}] - obs[:, {i}])", f"action[:, {j}]"]
        return str(rng.choice(numbers))

    def grow(depth: int) -> str:
        if depth == 0:
            return leaf()
        inner = grow(depth - 1)
        scale = 10.0 ** rng.uniform(-1, 1)
        operations = [
            f"np.abs({inner})",
            f"({inner}) ** 2",
            f"np.tanh({scale:.2g} * {inner})",
            f"np.sin({scale:.2g} * {inner})",
            f"np.exp(-{scale:.2g} * ({inner}) ** 2)",
        ]
        operations += [f"({inner} {sign} {leaf()})" for sign in "+-*"]
        return str(rng.choice(operations))

    parts = []
    # Weights spread over two orders of magnitude, with either sign.
    for index in range(int(rng.integers(1, 5))):
        weight = float(rng.choice([-1, 1])) * 10.0 ** rng.uniform(-1, 1)
        parts.append(f'"part{index}": {weight:.2g} * {grow(int(rng.integers(MAX_FORMULA_DEPTH + 1)))}')
    return f"def reward(obs, action, next_obs):\n    return {{{', '.join(parts)}}}\n"


def record(path: Path, rounds: Sequence[Sequence[str]]) -> None:
    """Write the answers of all rounds so far as `RecordedAuthor` reads them."""
    text = ""
    for number, answers in enumerate(rounds, start=1):
        for answer in answers:
            # A line of an answer that begins like a heading is moved by a space.
            quoted = re.sub(r"^===", " ===", answer, flags=re.MULTILINE)
            text += f"=== {number}\n{quoted.rstrip()}\n"
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def with_feedback(brief: Brief, **facts: str) -> Brief:
    """The brief of the next round: `facts` are what `prompts/rewards.txt` names in its feedback."""
    return replace(brief, feedback=sections("rewards")["feedback"].format(**facts))
