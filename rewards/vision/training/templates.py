"""Sentence frames, other topics and synonyms: the part of the captions that is the same for every world.

They stand in `phrases.yaml`.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from lodestar.mappings import map_values


def phrases(text: str) -> tuple[str, ...]:
    """A list written as one text, separated by commas."""
    return tuple(text.split(", "))


_LISTS = yaml.safe_load(Path(__file__).with_name("phrases.yaml").read_text(encoding="utf8"))
# Word -> others for it, the last of which is held out of training.
SYNONYMS: dict[str, tuple[str, ...]] = map_values(tuple, _LISTS.pop("synonyms"))
_PHRASES: dict[str, tuple[str, ...]] = map_values(tuple, _LISTS)
# {s} subject, {p} predicate, {t} where it is
TEMPLATES = _PHRASES["templates"]
TEMPLATES_HELD_OUT = _PHRASES["templates_held_out"]
NEGATIONS = _PHRASES["negations"]
NEGATIONS_HELD_OUT = _PHRASES["negations_held_out"]
PAIRS = _PHRASES["pairs"]
THINGS = _PHRASES["things"]
QUALITIES = _PHRASES["qualities"]
