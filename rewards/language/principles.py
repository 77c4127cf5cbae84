"""Principles and their weights: read from a text or a file, written to one, also in the form of OpenEnv's rubrics.

    # a comment
    2: The player opened a door. | ^(opened|unlocked)
    The player picked up a key.
    -1: The player fell into lava.

A line is a principle with its weight before it, 1 where there is none, and behind a bar a regular expression for
`judge=rules`. A text has ";" between principles, in place of lines.

OpenEnv (github.com/huggingface/OpenEnv, RFC 004) builds a rubric in code and names no file format. A file *.json
holds what its classes are made of: WeightedSum(rubrics, weights), whose rubrics are LLMJudge(prompt_template, ...):

    {"weights": [0.5, 0.5], "rubrics": [{"prompt_template": "...", "score_pattern": "...", "default_score": 0.0,
    "normalize": true}, ...]}

Each entry of `rubrics` is what LLMJudge.state_dict() returns. Weights add up to 1 there, so that none may be negative;
patterns have no place. Of a template from elsewhere the words before its first {place} are the principle.
"""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from string import Formatter
from typing import NamedTuple

import numpy as np

from lodestar.files import read_text

LINE = re.compile(r"(?:(?P<weight>[-+]?[\d.]+)\s*:\s*)?(?P<text>.+?)(?:\s+\|\s+(?P<pattern>.+))?")
# What follows a principle in a template; the score is a number in [0, 1].
TEMPLATE_END = "\n\n{observation}\n\nAnswer with one number: 1 if this is true of what stands above, 0 if it is not."
SCORE_PATTERN = r"(\d+\.?\d*)"


class Principle(NamedTuple):
    """A statement about a caption; what it counts, not 0; and the pattern by which `judge=rules` finds it."""

    text: str
    weight: float = 1.0
    pattern: str = ""


def read_principles(source: str) -> list[Principle]:
    """The principles of a file, or those in a text; ValueError without any, or for one that cannot be read."""
    lines = source.split(";")
    where = ""
    path = Path(source.strip())
    if path.suffix in (".txt", ".json"):
        where = f"{source} "
        try:
            lines = read_text(path.resolve(), errors="strict").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{source} cannot be read ({type(error).__name__}); give a file of principles") from None
    if path.suffix == ".json":
        principles = _read_openenv(source, "\n".join(lines))
    else:
        principles = []
        for line in map(str.strip, lines):
            if line and not line.startswith("#"):
                principles.append(_parse_line(where, line))
    if not principles:
        given = where or f"{source!r} "
        raise ValueError(f'{given}holds no principle; write one a line, such as "2: The player opened a door."')
    texts: set[str] = set()
    for principle in principles:
        # Answers are kept by the principle's text, so that two of them would be one question.
        if principle.text in texts:
            raise ValueError(f"{where}has the principle {principle.text!r} twice; leave one of them")
        texts.add(principle.text)
    if max(principle.weight for principle in principles) < 0:
        raise ValueError(f"{where}has negative weights alone, so nothing would ever be good; give one that is positive")
    return principles


def write_principles(path: str, principles: Sequence[Principle]) -> str:
    """What a file of this name holds; ValueError for a negative weight in a file for OpenEnv."""
    if not path.endswith(".json"):
        lines = []
        for text, weight, pattern in principles:
            end = f" | {pattern}" if pattern else ""
            lines.append(f"{weight:g}: {text}{end}\n")
        return "".join(lines)
    weights = [principle.weight for principle in principles]
    if min(weights) < 0:
        raise ValueError(
            f"{path}: a rubric of OpenEnv has no negative weights, and one is {min(weights):g}; write *.txt"
        )
    rubrics = []
    for principle in principles:
        # The template is filled in by `str.format`, to which single braces are places.
        text = principle.text.replace("{", "{{").replace("}", "}}")
        judge = {"prompt_template": text + TEMPLATE_END, "score_pattern": SCORE_PATTERN}
        rubrics.append({**judge, "default_score": 0.0, "normalize": True})
    # WeightedSum refuses weights whose sum is not 1; shares of it give the same scores as ours.
    shares = np.array(weights) / math.fsum(weights)
    return json.dumps({"weights": shares.tolist(), "rubrics": rubrics}, indent=1) + "\n"


def _parse_line(where: str, line: str) -> Principle:
    match = LINE.fullmatch(line)
    assert match is not None
    try:
        weight = float(match["weight"] or 1)
    except ValueError:
        weight = 0.0
    if not weight or not math.isfinite(weight):
        raise ValueError(f"{where}has the weight {match['weight']!r} in {line!r}; give a number that is not 0")
    return Principle(match["text"], weight, match["pattern"] or "")


def _read_openenv(source: str, text: str) -> list[Principle]:
    principles = []
    try:
        rubric = json.loads(text)
        for weight, judge in zip(rubric["weights"], rubric["rubrics"], strict=True):
            words = _words_before_place(judge["prompt_template"])
            principles.append(Principle(" ".join(words.split()), float(weight)))
    except (ValueError, KeyError, TypeError):
        principles = [Principle("")]
    for principle in principles:
        if not principle.text or not principle.weight or not math.isfinite(principle.weight):
            raise ValueError(
                f"{source} is no rubric as OpenEnv builds it; give weights that are not 0, and rubrics whose "
                "prompt_template begins with a statement"
            )
    return principles


def _words_before_place(template: str) -> str:
    """What stands before the first {place} of a template; doubled braces are braces."""
    words = ""
    for literal, place, *_ in Formatter().parse(template):
        words += literal
        if place is not None:
            break
    return words
