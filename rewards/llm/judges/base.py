"""The contract of every judge, and the one table of them by kind and name.

The kind of a judge is what it is asked about:

    texts      label(texts), compare(first, second): how good is what a caption describes, which of two is better?
    windows    label(windows): how much of a task do some frames of an episode show? (`rewards.vision.progress_model`)
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
from pkgutil import resolve_name
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from envs.transitions import Transitions
from lodestar.settings import Settings
from lodestar.tables import nearest

JUDGES: dict[str, dict[str, str]] = {
    "texts": {
        "rules": "rewards.llm.judges.local:Rules",
        "recorded": "rewards.llm.judges.local:RecordedLabels",
        "openai": "rewards.llm.judges.openai:TextModel",
        "embedding": "rewards.llm.judges.embedding:EmbeddingJudge",
        "simulated": "rewards.llm.judges.local:NoisyJudge",
    },
    "windows": {
        "token": "rewards.llm.judges.windows:TokenShare",
        "progress": "rewards.llm.judges.windows:FrameProgress",
        "score": "rewards.llm.judges.windows:WindowGrade",
        "recorded": "rewards.llm.judges.local:RecordedLabels",
    },
    "goals": {"openai": "rewards.llm.judges.openai:GoalModel"},
    "segments": {
        "scripted": "rewards.preference.judges:Scripted",
        "circle": "rewards.preference.judges:Circle",
        "heron": "rewards.preference.judges:Heron",
        "clip": "rewards.preference.judges:ClipJudge",
        "recorded": "rewards.preference.judges:RecordedPreferences",
        "human": "rewards.preference.human:Human",
        "vlm": "rewards.preference.vlm:VLM",
    },
    "subgoals": {
        "simulated": "rewards.language.teacher:NoisyPlanner",
        "recorded": "rewards.language.teacher:RecordedPlans",
        "openai": "rewards.language.teacher:ModelTeacher",
    },
    "code": {"openai": "rewards.language.lare:Author"},
    "rewards": {
        "openai": "rewards.design.authors:ModelAuthor",
        "recorded": "rewards.design.authors:RecordedAuthor",
        "random": "rewards.design.authors:RandomAuthor",
    },
}


class Judge(Settings, ABC):
    """Base class of every judge; a dataclass of its options, or a class with an `__init__` of its own."""

    name: ClassVar[str] = ""  # in the table
    _identity = ""
    local: ClassVar[bool] = False  # does it answer within microseconds in this process, always alike?

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

    A value is in [0, 1]; of a text, how much what it describes helps (1) or does not (0); of a pair, 1 if the second is
    better, 0 if the first, 0.5 if equal. NaN where the judge was unsure or failed.
    """

    value: np.ndarray  # float32 (B,)
    failed: np.ndarray  # bool (B,), no usable answer came
    failure: str = ""  # the sentence of the first
    tokens: int = 0  # of the language model, question and answer together
    raw: list[str] = field(default_factory=list)  # the judge's words, at most 2,000 characters each, if there are any

    @classmethod
    def of(cls, value: ArrayLike) -> Self:
        """Answers none of which failed."""
        value = np.asarray(value, np.float32)
        return cls(value, np.zeros(value.shape, bool))


class TextJudge(Judge):
    """Rates captions. All know the options `goal` (a sentence: what is good) and `family`, which runners fill in."""

    @abstractmethod
    def label(self, texts: Sequence[str]) -> Answers:
        """How good is what each of B texts describes, for the judge's goal?"""

    def compare(self, first: Sequence[str], second: Sequence[str]) -> Answers:
        """Which of two texts describes the better state, pair by pair? By their labels, unless a judge knows better."""
        both = self.label([*first, *second])
        one, two = np.split(both.value, 2)
        value = np.where(np.isnan(one) | np.isnan(two), np.nan, (1 + np.sign(two - one)) / 2)
        failed = np.logical_or(*np.split(both.failed, 2))
        return Answers(value.astype(np.float32), failed, both.failure, both.tokens)


class SegmentJudge(Judge):
    """Compares segments of behaviour."""

    requires: frozenset[str] = frozenset()  # fields of Transitions that it reads
    frame_size: int | None = None  # height and width, pixels; None where any will do, or none are read
    embedding: str | None = None  # the extra that stands for a frame, if it reads that instead (`embed` computes it)
    synthetic: bool = False  # whether a rule of ours answers, at once and for nothing

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
    made = check_judge(name, kind, **options)
    accepted = inspect.signature(made).parameters
    return made(**{key: value for key, value in options.items() if key in accepted})


def check_judge(name: str, kind: str = "texts", /, **options: Any) -> type[Judge]:
    """The class that `make_judge` would build; raises as it does, but for values."""
    table, what = JUDGES[kind], WHAT.get(kind, "judge")
    if name not in table:
        raise ValueError(f"there is no {what} {name!r}; {nearest(name, list(table))}")
    found: type[Judge] = resolve_name(table[name])
    accepted = inspect.signature(found).parameters
    known = [key for key in accepted if key not in SILENT]
    for key in options:
        if key not in (*known, *SILENT):
            raise ValueError(f"the {what} {name} has no option {key!r}; {nearest(key, known)}")
    for key in known:
        if key not in options and accepted[key].default is inspect.Parameter.empty:
            syntax = OPTIONS_OF.get(kind, "judge_options={{{}: ...}}, or judge.{}=... of a command").format(key, key)
            raise ValueError(f"the {what} {name} needs {key}; give it among the {what}'s options, as in {syntax}")
    return found


WHAT = {"subgoals": "teacher", "code": "judge of factors", "rewards": "author"}  # in errors
OPTIONS_OF = {"subgoals": "teacher_options={{{}: ...}}", "rewards": "judge.{}=..."}  # how they are written
SILENT = ("seed", "device")  # options that runners give to every judge
