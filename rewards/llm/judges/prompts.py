"""Prompts of a language model that judges captions: questions, and background of each environment family, as files.

`prompts/*.txt` are questions with {goal}, {knowledge}, {caption} (or {first} and {second}), the fixed text first, so
that servers with a prefix cache read it once; each stands behind "=== SECTION". `prompts/families/*.txt`
describe environment families: `goal:`, `good:` and `other:` lines, then knowledge and labelled examples. Each begins
with its version, which is part of whose answers are kept.

A caption is untrusted data: the agent may have written it. It is put in as one JSON string of ASCII on one line,
without terminal codes, control characters and what cannot be seen, with parentheses for braces (an answer that repeats
a caption is then no JSON), and cut at MAX_CAPTION_CHARACTERS.
"""

import functools
import json
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from lodestar.files import file_stems

PROMPT_FOLDER = Path(__file__).parent / "prompts"
MAX_CAPTION_CHARACTERS = 300
# Unicode categories that are left out: directions, joiners, tags, halves of characters, private ones.
INVISIBLE = ("Cf", "Cs", "Co", "Cn")
# Categories that become a space: control characters, which hold line breaks, and Unicode's own separators.
LINE_BREAKS = ("Cc", "Zl", "Zp")
# How a terminal is told a colour, a place or a title.
_TERMINAL = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?")
_EXAMPLE = re.compile(r'^- "(.*)" is (\w+):', re.MULTILINE)
_HOLE = re.compile(r"\{(goal|knowledge|caption|first|second|principle)\}")


@dataclass(frozen=True)
class Background:
    """What is known of a family of environments.

    `goal` is wanted there by default; `good` are captions of progress and `other` captions of none, which may look
    alike, for judges that compare texts; `knowledge` holds sentences and labelled examples.
    """

    goal: str = ""
    good: tuple[str, ...] = ()
    other: tuple[str, ...] = ()
    knowledge: str = ""

    @property
    def examples(self) -> list[tuple[str, bool]]:
        """The captions that the knowledge labels, and whether each is helpful."""
        return [(caption, label == "helpful") for caption, label in _EXAMPLE.findall(self.knowledge)]


@functools.cache
def background(name: str) -> Background:
    """What is known of the family called `name`; nothing, if there is no file."""
    path = PROMPT_FOLDER / "families" / f"{name}.txt"
    if not name or not path.is_file():
        return Background()
    _, text = _read_versioned(path)
    lines: dict[str, list[str]] = {"goal": [], "good": [], "other": [], "knowledge": []}
    for line in text.splitlines():
        key, _, value = line.partition(": ")
        if key in ("goal", "good", "other"):
            lines[key].append(value)
        else:
            lines["knowledge"].append(line)
    knowledge = "\n".join(lines["knowledge"]).strip()
    return Background(" ".join(lines["goal"]), tuple(lines["good"]), tuple(lines["other"]), knowledge)


def family_names() -> list[str]:
    """The families that have a file."""
    return file_stems(PROMPT_FOLDER / "families", "*.txt")


@functools.cache
def sections(name: str) -> dict[str, str]:
    """Section -> text of the file called `name`, where "=== SECTION" begins one; "version" -> the file's."""
    version, text = _read_versioned(PROMPT_FOLDER / f"{name}.txt")
    # What stands before the first heading is dropped; then headings and texts follow in turn.
    _, *parts = re.split(r"^=== (\w+)\n", text, flags=re.MULTILINE)
    texts = {"version": version}
    for section, part in zip(parts[::2], parts[1::2]):
        texts[section] = part.strip()
    return texts


def fill(template: str, **parts: str) -> str:
    """Put each part where its name stands; in one pass, so that no part can hold the place of another."""
    return _HOLE.sub(lambda hole: parts[hole[1]], template)


def clean(text: str) -> str:
    """A caption as judges read it."""
    # A long text is cut first, to bound the work, and once more when what cannot be seen is gone.
    text = _TERMINAL.sub("", text[: 20 * MAX_CAPTION_CHARACTERS])
    text = text.replace("{", "(").replace("}", ")")
    visible = []
    for character in text:
        category = unicodedata.category(character)
        if category in LINE_BREAKS:
            visible.append(" ")
        elif category not in INVISIBLE:
            visible.append(character)
    caption = "".join(visible).strip()
    return caption[:MAX_CAPTION_CHARACTERS].strip()


def quote(text: str) -> str:
    """A caption, cleaned, as a JSON string of ASCII on one line."""
    return json.dumps(clean(text))


def _read_versioned(path: Path) -> tuple[str, str]:
    first, _, rest = path.read_text(encoding="utf-8").partition("\n")
    version = first.removeprefix("version ").strip()
    if not version.isdigit():
        raise ValueError(f"{path}, line 1 is {first!r}; it begins with its version, such as: version 1")
    return version, rest.strip()
