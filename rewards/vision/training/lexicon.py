"""The parts of which a world of an in-domain CLIP is made: what one can say of it, how true that is, how it looks.

A `Lexicon` holds worlds and the words for them. A `World` puts an environment into random states and tells the facts of
each: numbers read from the simulator. An `Attribute` turns facts into a graded truth in [0, 1] and knows several ways
to say it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from envs.render import frame
from lodestar.mappings import map_values, take_rows

# Sentence frames, other topics and synonyms: the part of the captions that is the same for every world.
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
# An environment that stands in some state, and the facts of that state.
Scene = tuple[Any, Mapping[str, float]]


def phrases(text: str) -> tuple[str, ...]:
    """A list written as one text, separated by commas."""
    return tuple(text.split(", "))


@dataclass(frozen=True)
class States:
    """The truth behind N frames: which world each is of, and the facts; a fact that a world lacks is 0."""

    # Int64 (N,).
    world: np.ndarray
    # Float64 (N,) each.
    facts: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.world)

    def __getitem__(self, index: np.ndarray) -> States:
        return States(self.world[index], take_rows(self.facts, index))

    def fact(self, name: str) -> np.ndarray:
        """One fact of all states, float64 (N,)."""
        values = self.facts.get(name)
        return np.zeros(len(self)) if values is None else values


def join(parts: Sequence[States]) -> States:
    """Several sets of states as one."""
    facts: dict[str, np.ndarray] = {}
    for name in chain.from_iterable(part.facts for part in parts):
        if name not in facts:
            facts[name] = np.concatenate([part.fact(name) for part in parts])
    return States(np.concatenate([part.world for part in parts]), facts)


@dataclass(frozen=True)
class World:
    """One kind of picture."""

    # As captions and figures call it.
    name: str
    # Patterns (fnmatch) of the environments that it stands for.
    ids: tuple[str, ...]
    # (random numbers, how many, random numbers for what must come to mean nothing) -> random states that cover the
    # world, its goals and its extremes more densely. Each is to be drawn before the next is asked for.
    scenes: Callable[[np.random.Generator, int, np.random.Generator], Iterator[Scene]]
    # (random numbers, how many steps) -> states that a random policy visits, in turns with a better one where there is
    # one.
    walk: Callable[[np.random.Generator, int], Iterator[Scene]]
    # How many frames it gets, relative to others.
    share: float = 1.0
    # Prompts that its environments name, and the attribute that each means.
    goals: tuple[tuple[str, str], ...] = ()


def collect(scenes: Iterator[Scene], world: int, size: int | None) -> tuple[States, np.ndarray]:
    """Facts and, unless `size` is None, frames uint8 (N, size, size, 3) of scenes of one world."""
    rows = []
    frames = []
    for env, facts in scenes:
        rows.append(dict(facts))
        if size is not None:
            frames.append(frame(env, size))
    table = {}
    for name in rows[0]:
        table[name] = np.array([row[name] for row in rows], np.float64)
    pictures = np.stack(frames) if frames else np.zeros((0, 0, 0, 3), np.uint8)
    return States(np.full(len(rows), world), table), pictures


@dataclass(frozen=True)
class Attribute:
    """Something one can say about a subject, in several ways, and how true it is of a state."""

    # The subject's kind, a key of `Lexicon.subjects`.
    about: str
    # (states) -> [0, 1], (N,).
    truth: Callable[[States], np.ndarray]
    # Predicates that training uses: "the pole is ...".
    said: tuple[str, ...]
    # Predicates for the test only.
    held_out: tuple[str, ...] = ()
    # More of them, written when training was over, to be measured once.
    fresh: tuple[str, ...] = ()
    # Whether the predicate says what it is about by itself.
    alone: bool = False
    # Names of the worlds in which it can be seen; () for all worlds of the subject.
    worlds: tuple[str, ...] = ()


@dataclass(frozen=True)
class SubjectNames:
    """A kind of thing."""

    # (what a sentence says) -> names of the worlds where that can be seen.
    worlds: Callable[[str], tuple[str, ...]]
    # Its names in training, for the test only, and more of the latter that were written when training was over.
    said: tuple[str, ...]
    held_out: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()
    # What may follow a predicate: where the thing is.
    tails: tuple[str, ...] = ("",)
    # (attribute, subject and predicate) -> whether a tail fits.
    takes_tail: Callable[[str, str], bool] = lambda name, said: True


@dataclass(frozen=True)
class Lexicon:
    """Worlds and the words for them."""

    # In the order of their numbers.
    worlds: tuple[World, ...]
    # By their names.
    attributes: dict[str, Attribute]
    # Pairs of names; each is drawn beside the other.
    opposites: tuple[tuple[str, str], ...]
    # By their kinds.
    subjects: dict[str, SubjectNames]
    # Kind -> sentences that only say what kind of picture it is.
    baselines: dict[str, tuple[str, ...]]
    # (names, names): two claims about one picture, one from each side; names of every pair share a world.
    pairs: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    # First -> second claim, for the test only.
    pairs_held_out: dict[str, str] = field(default_factory=dict)
    # Sentences that are held out as they stand.
    verbatim: tuple[str, ...] = ()
    # Nouns and predicates of other topics, for sentences that are true of nothing here.
    things: tuple[str, ...] = THINGS
    qualities: tuple[str, ...] = QUALITIES

    def opposite(self, name: str) -> str | None:
        """The attribute that says the contrary."""
        for pair in self.opposites:
            if name in pair:
                return pair[1 - pair.index(name)]
        return None

    def numbers(self, names: Sequence[str]) -> tuple[int, ...]:
        """Numbers of worlds."""
        return tuple(i for i, world in enumerate(self.worlds) if world.name in names)

    def worlds_of(self, name: str, text: str) -> tuple[int, ...]:
        """Numbers of the worlds that an attribute, said in these words, can be about."""
        attribute = self.attributes[name]
        worlds = self.subjects[attribute.about].worlds(text)
        if attribute.worlds:
            worlds = tuple(world for world in worlds if world in attribute.worlds)
        return self.numbers(worlds)

    def sample(
        self, rng: np.random.Generator, count: int, size: int | None = None, look: np.random.Generator | None = None
    ) -> tuple[States, np.ndarray]:
        """States of each world, and their frames unless `size` is None.

        Frames are `count` times the world's share; without frames, `count` of each world.
        """
        look = look or np.random.default_rng(0)
        states = []
        frames = []
        for i, world in enumerate(self.worlds):
            many = count if size is None else max(1, round(world.share * count))
            world_states, world_frames = collect(world.scenes(rng, many, look), i, size)
            states.append(world_states)
            frames.append(world_frames)
        return join(states), np.concatenate(frames)
