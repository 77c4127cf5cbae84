r"""Judges that answer in this process: a rulebook, recorded labels, and another judge whose accuracy is lowered.

`rules` looks a text up in a list of regular expressions, written by hand for each family of environments:

    version 1
    default -
    until \bcalled\b|"
    # the first line that is found in the text decides, whatever its case
    + \byou kill
    ? \bfountain
    - it's a wall

`+` helps (1), `-` does not (0), `?` is unsure (NaN); `default` is for texts in which nothing is found. A text is read
only `until` the first place where that is found: what follows are words that the agent chose.

`recorded` repeats answers from a file, JSON lines as in transcripts (`text`, `other`, `value`), or the annotator's
cache. `simulated` inverts a share of another judge's answers, always the same ones:

    value' = 1 - value   if u(text) < 1 - accuracy        u uniform in [0, 1) by hash of seed and text
    NaN                  if u'(text) < unsure
    1[u(text) < positive]  with shuffle: as many positive answers, about other texts; a control without meaning

Sources: Zheng et al. 2024 (ONI, arXiv 2410.23022) asks one "helpful or not?" of each message; Klissarov et al. 2023
(Motif, arXiv 2310.00166) learn from a file; Ruiz-Gonzalez et al. 2024, "Words as Beacons", arXiv 2410.08632, measure
language models once, then simulate them with the accuracy they found.
Differences: errors depend on the text alone, since a model at temperature 0 repeats itself.
When they fail: the author of the rules knows the task, so an agent that learns from them shows that the way from
captions to rewards works, not that a model knows anything; texts that vary (numbers, names) are not in a file; a real
model errs alike about similar texts, and the simulated one does not, so a learner averages it away.
"""

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lodestar.files import file_stems
from lodestar.settings import setting
from rewards.llm.judges.base import Answers, TextJudge, make_judge
from rewards.llm.store import digest_of, label_in, read_rows

RULEBOOK_FOLDER = Path(__file__).parent / "rulebooks"
VALUES = {"+": 1.0, "-": 0.0, "?": np.nan}
MISSING_LABEL = "no label recorded"


@dataclass(eq=False)
class Rules(TextJudge):
    """Looks each text up in a rulebook."""

    goal: str = setting("", "not read; a rulebook has a goal of its own")
    family: str = setting("", "the family whose rulebook is meant, when no other is given")
    rulebook: str = setting("", "path of a rulebook of your own")

    name = "rules"
    local = True

    def __post_init__(self) -> None:
        self.path = Path(self.rulebook) if self.rulebook else RULEBOOK_FOLDER / f"{self.family}.txt"
        if not (self.rulebook or has_book(self.family)):
            families = ", ".join(file_stems(RULEBOOK_FOLDER, "*.txt"))
            raise ValueError(
                f"judge rules: family={self.family!r} has no rulebook, {families} have; give rulebook=PATH"
            )
        if not self.path.is_file():
            raise ValueError(f"judge rules: rulebook={self.rulebook!r} is no file; give the path of one, as text")
        text = self.path.read_text(encoding="utf-8")
        self.default, self.until, self.rules = _read_rulebook(self.path, text)
        digest = hashlib.sha256(text.encode()).hexdigest()
        self._identity = f"rules {self.path.stem} {digest[:12]}"

    def label(self, texts: Sequence[str]) -> Answers:
        # What follows are words that the agent chose.
        if self.until is not None:
            texts = [self.until.split(text, 1)[0] for text in texts]
        return Answers.of(list(map(self._value_of, texts)))

    def _value_of(self, text: str) -> float:
        """That of the first rule that is found in the text."""
        for pattern, value in self.rules:
            if pattern.search(text):
                return value
        return self.default

    def notes(self) -> list[str]:
        return [f"labels are those of {len(self.rules)} rules written by hand ({self.path.name}), no model gives them"]


def has_book(family: str) -> bool:
    """Whether a family has a rulebook."""
    return bool(family) and (RULEBOOK_FOLDER / f"{family}.txt").is_file()


def _read_rulebook(path: Path, text: str) -> tuple[float, re.Pattern[str] | None, list[tuple[re.Pattern[str], float]]]:
    """The default, where texts end, and the rules, the first one first."""
    version, *lines = text.splitlines() or [""]
    if version.strip() != "version 1":
        raise ValueError(f"{path}, line 1 is {version!r}; a rulebook begins with: version 1")
    default = None
    until = None
    rules = []
    for number, line in enumerate(map(str.strip, lines), start=2):
        kind, _, rest = map(str.strip, line.partition(" "))
        if not line or line.startswith("#"):
            continue
        if kind == "default" and rest in VALUES:
            default = VALUES[rest]
            continue
        if kind not in (*VALUES, "until") or not rest:
            beginnings = "'+ ', '- ', '? ', 'until ', 'default ' or '#'"
            raise ValueError(f"{path}, line {number} is {line!r}; begin it with {beginnings}")
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


@dataclass(eq=False)
class RecordedLabels(TextJudge):
    """Answers found by the exact text; of lines that contradict each other the last counts, and a torn one never."""

    path: str = setting(help="the file, JSON lines or SQLite")
    goal: str = setting("", "not read; the labels have a goal of their own")
    family: str = setting("", "not read")

    name = "recorded"
    local = True

    def __post_init__(self) -> None:
        if not Path(self.path).is_file():
            raise ValueError(f"judge recorded: path={self.path!r} is no file; give one of labels, such as a transcript")
        self.labels = dict(read_rows(self.path, label_in, "no label; give text and a value in [0, 1] or null"))
        if not self.labels:
            raise ValueError(f"judge recorded: {self.path} holds no labels; give a file that a judge's run wrote")
        # Sorted, as the order of the lines does not change an answer.
        rows: list[tuple[str, str, float]] = []
        for item, value in self.labels.items():
            first, second = (item, "") if isinstance(item, str) else item
            rows.append((first, second, value))
        self._identity = f"recorded {digest_of(sorted(rows))[:12]}"

    def label(self, texts: Sequence[str]) -> Answers:
        values = list(map(self.labels.get, texts))
        failed = np.array([value is None for value in values], bool)
        return Answers(np.array(values, np.float32), failed, MISSING_LABEL if failed.any() else "")

    def compare(self, first: Sequence[str], second: Sequence[str]) -> Answers:
        """What was recorded of the pair in either order, or what the labels of its two texts say."""
        answers = super().compare(first, second)
        for row, (one, two) in enumerate(zip(first, second, strict=True)):
            # What was recorded in the pair's own order counts first.
            if (one, two) in self.labels:
                answers.value[row] = self.labels[one, two]
                answers.failed[row] = False
            elif (two, one) in self.labels:
                answers.value[row] = 1 - self.labels[two, one]
                answers.failed[row] = False
        answers.failure = MISSING_LABEL if answers.failed.any() else ""
        return answers

    def notes(self) -> list[str]:
        return [f"{len(self.labels)} labels are read from {self.path}, no judge is asked"]


@dataclass(eq=False)
class NoisyJudge(TextJudge):
    """Inverts answers of another judge."""

    goal: str = setting("", "of the other judge")
    family: str = setting("", "of the other judge")
    of: str = setting("rules", "the other judge's name; it must be one that answers in this process")
    of_options: dict[str, Any] | None = setting(None, "its options")
    accuracy: float = setting(1.0, "share of the answers that are left as they are", "[0, 1]")
    unsure: float = setting(0.0, "share of the answers that become NaN", "[0, 1]")
    shuffle: bool = setting(False, "whether the other judge is not asked at all, and `positive` of all texts are good")
    positive: float = setting(0.3, "that share", "[0, 1]")
    seed: int = setting(0, "decides which answers those are")

    name = "simulated"
    local = True
    # Of the other judge, as in `JUDGES`.
    kind: ClassVar[str] = "texts"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.other: TextJudge | None = None
        if not self.shuffle:
            options = {"goal": self.goal, "family": self.family, **(self.of_options or {})}
            self.other = make_judge(self.of, self.kind, **options)
            if not self.other.local:
                raise ValueError(f"judge simulated: of={self.of!r} is asked outside this process; give rules")

    @property
    def identity(self) -> str:
        mistakes = f"accuracy={self.accuracy:g} unsure={self.unsure:g} seed={self.seed}"
        if self.other is None:
            return f"simulated shuffle positive={self.positive:g} {mistakes}"
        return f"simulated {mistakes} of {self.other.identity}"

    def label(self, texts: Sequence[str]) -> Answers:
        if self.other is None:
            answers = Answers.of(self._draws("shuffle", texts) < self.positive)
        else:
            answers = self.other.label(texts)
        return self._add_mistakes(answers, texts)

    def compare(self, first: Sequence[str], second: Sequence[str]) -> Answers:
        """A pair errs alike in both orders."""
        # Labels drawn at random need no other judge to be compared.
        if self.other is None:
            return super().compare(first, second)
        pairs = ["\0".join(sorted(pair)) for pair in zip(first, second, strict=True)]
        return self._add_mistakes(self.other.compare(first, second), pairs)

    def notes(self) -> list[str]:
        if self.other is None:
            return [f"labels are drawn at random, {self.positive:.0%} of all texts are good: a control without meaning"]
        lines = [f"a share of {1 - self.accuracy:g} of the labels is wrong on purpose, of {self.unsure:g} unsure"]
        return [*lines, *self.other.notes()]

    def close(self) -> None:
        if self.other is not None:
            self.other.close()

    def _add_mistakes(self, answers: Answers, keys: Sequence[str]) -> Answers:
        value = answers.value.copy()
        if self.accuracy < 1:
            is_wrong = self._draws("error", keys) < 1 - self.accuracy
            value = np.where(is_wrong, 1 - value, value)
        # Mistakes are drawn first: a wrong answer may become unsure as any other.
        if self.unsure > 0:
            value[self._draws("unsure", keys) < self.unsure] = math.nan
        return replace(answers, value=value.astype(np.float32))

    def _draws(self, kind: str, keys: Sequence[str]) -> np.ndarray:
        """A number in [0, 1) for each key, which depends on the seed, the kind and the key alone."""
        salt = hashlib.blake2b(f"{self.seed} {kind}".encode()).digest()[:32]
        digests = bytearray()
        for key in keys:
            data = key.encode("utf-8", "replace")
            digests += hashlib.blake2b(data, digest_size=8, key=salt).digest()
        return np.frombuffer(digests, "<u8") / 2.0**64
