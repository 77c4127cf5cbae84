r"""A judge that is a list of regular expressions, written by hand: one rulebook for each family of environments.

    version 1
    default -
    until \bcalled\b|"
    # the first line that is found in the text decides, whatever its case
    + \byou kill
    ? \bfountain
    - it's a wall

`+` helps (1), `-` does not (0), `?` is unsure (NaN); `default` is for texts in which nothing is found.
A text is read only `until` the first place where that is found: what follows are words that the agent chose.

Source: ours. It stands in for a language model where there is none: Zheng et al. 2024 (ONI, arXiv 2410.23022) asks one
"helpful or not?" of each message, and so does this.
When it fails: the author of the rules knows the task, so an agent that learns from them shows that the way from
captions to rewards works, not that a model knows anything.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from envs.settings import setting
from rewards.llm.judges.base import Answers, TextJudge
from rewards.llm.judges.prompts import SAME

FOLDER = Path(__file__).parent / "rulebooks"
VALUES = {"+": 1.0, "-": 0.0, "?": np.nan}


@dataclass(eq=False)
class Rules(TextJudge):
    """Looks each text up in a rulebook."""

    goal: str = setting("", "not read; a rulebook has a goal of its own")
    family: str = setting("", "the family whose rulebook is meant, when no other is given")
    rulebook: str = setting("", "path of a rulebook of your own")

    name = "rules"
    local = True

    def __post_init__(self) -> None:
        self.path = Path(self.rulebook) if self.rulebook else book(self.family)
        if not self.path.is_file():
            raise ValueError(f"judge rules: rulebook={self.rulebook!r} is no file; give the path of one, as text")
        text = self.path.read_text(encoding="utf-8")
        self.default, self.until, self.rules = _read(self.path, text)
        self._digest = hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def identity(self) -> str:
        return f"rules {self.path.stem} {self._digest}"

    def label(self, texts: Sequence[str]) -> Answers:
        return Answers.of([self._value(text) for text in texts])

    def notes(self) -> list[str]:
        return [f"labels are those of {len(self.rules)} rules written by hand ({self.path.name}), no model gives them"]

    def _value(self, text: str) -> float:
        if self.until is not None:
            text = self.until.split(text, 1)[0]
        return next((value for pattern, value in self.rules if pattern.search(text)), self.default)


def book(family: str) -> Path:
    """Where the rulebook of a family is; raises ValueError if it has none."""
    path = FOLDER / f"{SAME.get(family, family)}.txt"
    if not family or not path.is_file():
        known = ", ".join(sorted(path.stem for path in FOLDER.glob("*.txt")))
        raise ValueError(
            f"judge rules: family={family!r} has no rulebook, {known} have; give rulebook=PATH of your own"
        )
    return path


def _read(path: Path, text: str) -> tuple[float, re.Pattern[str] | None, list[tuple[re.Pattern[str], float]]]:
    """The default, where texts end, and the rules, the first one first."""
    version, *lines = text.splitlines() or [""]
    if version.strip() != "version 1":
        raise ValueError(f"{path}, line 1 is {version!r}; a rulebook begins with: version 1")
    default, until, rules = None, None, []
    for number, line in enumerate(map(str.strip, lines), start=2):
        kind, _, rest = map(str.strip, line.partition(" "))
        if not line or line.startswith("#"):
            continue
        if kind == "default" and rest in VALUES:
            default = VALUES[rest]
            continue
        if kind not in (*VALUES, "until") or not rest:
            known = "'+ ', '- ', '? ', 'until ', 'default ' or '#'"
            raise ValueError(f"{path}, line {number} is {line!r}; begin it with {known}")
        try:
            pattern = re.compile(rest, re.IGNORECASE)
        except re.error as error:
            raise ValueError(f"{path}, line {number}: {rest!r} is no regular expression ({error})") from None
        if kind == "until":
            until = pattern
        else:
            rules.append((pattern, VALUES[kind]))
    if default is None:
        raise ValueError(f"{path} has no label for a text without a rule; add a line: default -")
    return default, until, rules
