"""Prompts of a language model that judges captions: questions, and background of each environment family, as files.

`prompts/*.txt` are questions with {goal}, {knowledge}, {caption} (or {first} and {second}), the fixed text first, so
that servers with a prefix cache read it once; some hold several, each behind "=== SECTION". `prompts/families/*.txt`
describe environment families: `goal:`, `good:` and `other:` lines, then knowledge and labelled examples. Each begins
with its version, which is part of whose answers are kept.

A caption is untrusted data: the agent may have written it. It is put in as one JSON string of ASCII on one line,
without terminal codes, control characters and what cannot be seen, with parentheses for braces (an answer that repeats
a caption is then no JSON), and cut at LONGEST characters.
"""

import functools
import json
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "prompts"
LONGEST = 300  # characters of a caption
INVISIBLE = ("Cf", "Cs", "Co", "Cn")  # directions, joiners, tags, halves of characters, private ones
_TERMINAL = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?")
_HOLE = re.compile(r"\{(goal|knowledge|caption|first|second)\}")


@dataclass(frozen=True)
class Background:
    """What is known of a family of environments."""

    goal: str = ""  # what is wanted there by default
    good: tuple[str, ...] = ()  # captions of progress, for judges that compare texts
    other: tuple[str, ...] = ()  # captions of none, which may look alike
    knowledge: str = ""  # sentences and labelled examples


@functools.cache
def background(name: str) -> Background:
    """What is known of the family called `name`; nothing, if there is no file."""
    path = FOLDER / "families" / f"{name}.txt"
    if not name or not path.is_file():
        return Background()
    found: dict[str, list[str]] = {"goal": [], "good": [], "other": []}
    rest: list[str] = []
    for line in _read(path)[1].splitlines():
        key, _, value = line.partition(": ")
        found.get(key, rest).append(value if key in found else line)
    return Background(" ".join(found["goal"]), tuple(found["good"]), tuple(found["other"]), "\n".join(rest).strip())


@functools.cache
def question(name: str) -> tuple[str, str]:
    """Version and text of the question called `name`."""
    return _read(FOLDER / f"{name}.txt")


@functools.cache
def sections(name: str) -> dict[str, str]:
    """Section -> text of the file called `name`, where "=== SECTION" begins one; "version" -> the file's."""
    version, text = _read(FOLDER / f"{name}.txt")
    _, *parts = re.split(r"^=== (\w+)\n", text, flags=re.MULTILINE)
    return {"version": version, **{section: part.strip() for section, part in zip(parts[::2], parts[1::2])}}


def fill(template: str, **parts: str) -> str:
    """Put each part where its name stands; in one pass, so that no part can hold the place of another."""
    return _HOLE.sub(lambda hole: parts[hole[1]], template)


def clean(text: str) -> str:
    """A caption as judges read it."""
    text = _TERMINAL.sub("", text[: 20 * LONGEST]).replace("{", "(").replace("}", ")")
    kinds = map(unicodedata.category, text)
    seen = (" " if kind in ("Cc", "Zl", "Zp") else c for c, kind in zip(text, kinds) if kind not in INVISIBLE)
    return "".join(seen).strip()[:LONGEST].strip()


def quote(text: str) -> str:
    """A caption, cleaned, as a JSON string of ASCII on one line."""
    return json.dumps(clean(text))


def _read(path: Path) -> tuple[str, str]:
    first, _, rest = path.read_text(encoding="utf-8").partition("\n")
    version = first.removeprefix("version ").strip()
    if not version.isdigit():
        raise ValueError(f"{path}, line 1 is {first!r}; it begins with its version, such as: version 1")
    return version, rest.strip()
