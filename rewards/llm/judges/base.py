"""The contract of every judge, and the one table of them by kind and name.

The kind of a judge is what it is asked about:

    texts      label(texts), compare(first, second): how good is what a caption describes, which of two is better?
    windows    label(windows): how much of a task do some frames of an episode show? (`rewards.vision.progress_model`)
    principles label(items): does a principle hold of a caption? (`rewards.language.rubric`)
    goals      label(situations): which goal should an agent have that met these captions? (`rewards.language.guidance`)
    segments   compare(first, second): which of two segments of behaviour is better? (`rewards.preference`)
    subgoals   ask(levels): which subgoals lead through a level? (`rewards.language.teacher`)
    code       write(question, verify): code that computes factors of a task (`rewards.language.lare`)
    rewards    propose(brief, count, number): code of reward functions (`rewards.design.authors`)

A judge never sees the environment, the agent or the reward. It answers with a number or with NaN, unsure, which is an
answer too. A question that got no usable answer is `failed`: it may be asked again, an unsure one is not. A judge never
raises because a server or a file is broken; only its constructor raises.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from envs.transitions import Transitions
from lodestar.settings import Settings
from lodestar.tables import suggest_names


def _read_table() -> dict[str, dict[str, str]]:
    """Kind -> name -> "module:Class", as table.txt lists them."""
    table: dict[str, dict[str, str]] = {}
    text = Path(__file__).with_name("table.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if not line.startswith("#"):
            kind, name, source = line.split()
            table.setdefault(kind, {})[name] = source
    return table


JUDGES = _read_table()


class Judge(Settings, ABC):
    """Base class of every judge; a dataclass of its options, or a class with an `__init__` of its own."""

    # Its name in the table.
    name: ClassVar[str] = ""
    # Whether it answers within microseconds in this process, and always alike.
    local: ClassVar[bool] = False
    # How many questions it takes at the same time; 0 for as many as its annotator sends.
    slots: ClassVar[int] = 0
    _identity = ""

    @property
    def prefix(self) -> str:
        return f"judge {self.name}: "

    @property
    def identity(self) -> str:
        """The source of the answers: judge, model, version of prompt and schema, goal. Equal strings, equal answers."""
        return self._identity or self.name

    def metrics(self) -> dict[str, float]:
        """Numbers to log."""
        return {}

    def notes(self) -> list[str]:
        """Sentences a user should read: where the answers come from, what they cost, what went wrong so far."""
        return []

    def reach(self) -> str:
        """Why nothing could be asked now, a sentence within a few seconds; "" if there is no reason."""
        return ""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""

    def close(self) -> None:
        """Release connections and processes."""


@dataclass
class Answers:
    """What a judge answered to B questions about texts.

    `value`, float32 (B,), is in [0, 1]: of a text, how much what it describes helps (1) or not (0); of a pair, 1 if
    the second is better, 0 if the first, 0.5 if equal; NaN where the judge was unsure or failed. `failed`, bool (B,),
    says where no usable answer came, and `failure` is the sentence of the first. `tokens` are those of the language
    model, question and answer together. `raw` are the judge's words, at most 2,000 characters each, if there are any.
    """

    value: np.ndarray
    failed: np.ndarray
    failure: str = ""
    tokens: int = 0
    raw: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, value: ArrayLike) -> Self:
        """Answers none of which failed."""
        value = np.asarray(value, np.float32)
        return cls(value, np.zeros(value.shape, bool))

    @classmethod
    def failures(cls, count: int, sentence: str) -> Self:
        """So many answers, all of which failed."""
        return cls(np.full(count, np.nan, np.float32), np.ones(count, bool), sentence)

    def compare_halves(self, margin: float = 0.0) -> "Answers":
        """Answers about pairs, of answers about all first texts, then all second ones: equal within the margin."""
        first, second = np.split(self.value, 2)
        value = np.where(np.abs(second - first) <= margin, 0.5, second > first)
        value[np.isnan(second - first)] = np.nan
        first_failed, second_failed = np.split(self.failed, 2)
        return Answers(value.astype(np.float32), first_failed | second_failed, self.failure, self.tokens)


class TextJudge(Judge):
    """Rates captions. All know the options `goal` (a sentence: what is good) and `family`, which runners fill in."""

    @abstractmethod
    def label(self, texts: Sequence[str]) -> Answers:
        """How good is what each of B texts describes, for the judge's goal?"""

    def compare(self, first: Sequence[str], second: Sequence[str]) -> Answers:
        """Which of two texts describes the better state, pair by pair? By their labels, unless a judge knows better."""
        return self.label([*first, *second]).compare_halves()


class SegmentJudge(Judge):
    """Compares segments of behaviour."""

    # Fields of Transitions that it reads.
    requires: frozenset[str] = frozenset()
    # Height and width in pixels; None where any will do, or no frames are read.
    frame_size: int | None = None
    # The extra that stands for a frame, if it reads that instead; `embed` computes it.
    embedding: str | None = None
    # Whether a rule of ours answers, at once and without a model.
    synthetic: bool = False

    @abstractmethod
    def compare(self, first: Transitions, second: Transitions) -> np.ndarray:
        """The better of two segments: float32 (B,), 1 for the second, 0 for the first, 0.5 equal, NaN without answer.

        Both have the shape (L, B): L consecutive steps of one episode, B segments side by side; every row is valid.
        """

    def ask(self, first: Transitions, second: Transitions, most: int) -> tuple[Transitions, Transitions, np.ndarray]:
        """Ask about pairs; returns pairs with their labels, as `compare` gives them, at most `most` new ones: the same,
        except from a judge that answers later, or brings pairs of its own.
        """
        return first, second, self.compare(first, second)

    def embed(self, batch: Transitions) -> np.ndarray:
        """The embedding (N, D) of `batch.frame`; only for judges that name one."""
        raise TypeError(f"the judge {self.name} names no embedding, so there is nothing to embed")


def make_judge(name: str, kind: str = "texts", /, **options: Any) -> Any:
    """The judge called `name` in `JUDGES[kind]`; the options `seed` and `device` are dropped where it has none.
    ValueError for an unknown name or option, with the nearest, for a missing one, or from the judge, for a value.
    """
    judge = check_judge(name, kind, **options)
    accepted = inspect.signature(judge).parameters
    return judge(**{key: value for key, value in options.items() if key in accepted})


def check_judge(name: str, kind: str = "texts", /, **options: Any) -> type[Judge]:
    """The class that `make_judge` would build; raises as it does, but for values."""
    table = JUDGES[kind]
    noun = NOUNS.get(kind, "judge")
    if name not in table:
        raise ValueError(f"there is no {noun} {name!r}; {suggest_names(name, list(table))}")
    judge: type[Judge] = resolve_name(table[name])
    parameters = inspect.signature(judge).parameters
    for key in options:
        if key not in parameters and key not in OPTIONS_OF_ALL:
            raise ValueError(f"the {noun} {name} has no option {key!r}; {suggest_names(key, list(parameters))}")
    for key, parameter in parameters.items():
        if key not in options and parameter.default is parameter.empty:
            syntax = OPTION_SYNTAX.get(kind, "judge_options={{{}: ...}}, or judge.{}=... of a command")
            example = syntax.format(key, key)
            raise ValueError(f"the {noun} {name} needs {key}; give it among the {noun}'s options, as in {example}")
    return judge


# What a judge of a kind is called in errors, and how its options are written.
NOUNS = {"subgoals": "teacher", "code": "judge of factors", "rewards": "author"}
OPTION_SYNTAX = {"subgoals": "teacher_options={{{}: ...}}", "rewards": "judge.{}=..."}
# Options that runners give to every judge.
OPTIONS_OF_ALL = ("seed", "device")
