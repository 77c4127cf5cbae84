"""The parts of which a world of the in-domain CLIP is made: what one can say of it, how true that is, how it looks.

A `Lexicon` holds worlds and the words for them. Each file of this folder has one; `merge` makes one of several. A
`World` puts an environment into random states and tells the facts of each: numbers read from the simulator. An
`Attribute` turns facts into a graded truth in [0, 1] and knows several ways to say it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from assets.clip.train.worlds.templates import QUALITIES, THINGS

Scene = tuple[Any, Mapping[str, float]]  # an environment that stands in some state, and the facts of that state


@dataclass(frozen=True)
class States:
    """The truth behind N frames: which world each is of, and the facts; a fact that a world lacks is 0."""

    world: np.ndarray  # int64 (N,)
    facts: dict[str, np.ndarray]  # float64 (N,) each

    def __len__(self) -> int:
        return len(self.world)

    def __getitem__(self, index: np.ndarray) -> States:
        return States(self.world[index], {name: values[index] for name, values in self.facts.items()})

    def fact(self, name: str) -> np.ndarray:
        """One fact of all states, float64 (N,)."""
        values = self.facts.get(name)
        return np.zeros(len(self)) if values is None else values


def join(parts: Sequence[States]) -> States:
    """Several sets of states as one."""
    names = dict.fromkeys(name for part in parts for name in part.facts)
    facts = {name: np.concatenate([part.fact(name) for part in parts]) for name in names}
    return States(np.concatenate([part.world for part in parts]), facts)


@dataclass(frozen=True)
class World:
    """One kind of picture.

    Attributes:
        name: as captions and figures call it.
        ids: patterns (fnmatch) of the environments it stands for.
        scenes: (random numbers, how many, random numbers for what must come to mean nothing) -> random states that
            cover the world, its goals and its extremes more densely. Each is to be drawn before the next is asked for.
        walk: (random numbers, how many steps) -> states that a random policy visits, in turns with a better one where
            there is one.
        share: how many frames it gets, relative to others.
        goals: prompts that its environments name, and the attribute each means.
    """

    name: str
    ids: tuple[str, ...]
    scenes: Callable[[np.random.Generator, int, np.random.Generator], Iterator[Scene]]
    walk: Callable[[np.random.Generator, int], Iterator[Scene]]
    share: float = 1.0
    goals: tuple[tuple[str, str], ...] = ()


def collect(scenes: Iterator[Scene], world: int, size: int | None) -> tuple[States, np.ndarray]:
    """Facts and, unless `size` is None, frames uint8 (N, size, size, 3) of scenes of one world."""
    from envs.render import frame

    rows, frames = [], []
    for env, facts in scenes:
        rows.append(dict(facts))
        if size is not None:
            frames.append(frame(env, size))
    table = {name: np.array([row[name] for row in rows], np.float64) for name in rows[0]}
    pictures = np.stack(frames) if frames else np.zeros((0, 0, 0, 3), np.uint8)
    return States(np.full(len(rows), world), table), pictures


@dataclass(frozen=True)
class Attribute:
    """Something one can say about a subject, in several ways, and how true it is of a state.

    Attributes:
        about: the subject's kind, a key of `Lexicon.subjects`.
        truth: (states) -> [0, 1], (N,).
        said: predicates that training uses: "the pole is ...".
        held_out: predicates for the test only.
        fresh: more of them, written when training was over, to be measured once.
        alone: whether the predicate says what it is about by itself.
        worlds: names of the worlds in which it can be seen; () for all worlds of the subject.
    """

    about: str
    truth: Callable[[States], np.ndarray]
    said: tuple[str, ...]
    held_out: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()
    alone: bool = False
    worlds: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subject:
    """A kind of thing.

    Attributes:
        worlds: (what a sentence says) -> names of the worlds where that can be seen.
        said: its names in training.
        held_out: names for the test only.
        fresh: more of them, written when training was over.
        tails: what may follow a predicate: where the thing is.
        takes_tail: (attribute, subject and predicate) -> whether a tail fits.
    """

    worlds: Callable[[str], tuple[str, ...]]
    said: tuple[str, ...]
    held_out: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()
    tails: tuple[str, ...] = ("",)
    takes_tail: Callable[[str, str], bool] = lambda name, said: True


@dataclass(frozen=True)
class Lexicon:
    """Worlds and the words for them.

    Attributes:
        worlds: in the order of their numbers.
        attributes: name -> attribute.
        opposites: pairs of names; each is drawn beside the other.
        subjects: kind -> its names.
        baselines: kind -> sentences that only say what kind of picture it is.
        pairs: (names, names): two claims about one picture, one from each side; names of every pair share a world.
        pairs_held_out: first -> second claim, for the test only.
        verbatim: sentences held out as they stand.
        things: nouns of other topics, for sentences that are true of nothing here.
        qualities: predicates of other topics.
    """

    worlds: tuple[World, ...]
    attributes: dict[str, Attribute]
    opposites: tuple[tuple[str, str], ...]
    subjects: dict[str, Subject]
    baselines: dict[str, tuple[str, ...]]
    pairs: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    pairs_held_out: dict[str, str] = field(default_factory=dict)
    verbatim: tuple[str, ...] = ()
    things: tuple[str, ...] = THINGS
    qualities: tuple[str, ...] = QUALITIES

    def opposite(self, name: str) -> str | None:
        """The attribute that says the contrary."""
        for one, other in self.opposites:
            if name in (one, other):
                return other if name == one else one
        return None

    def numbers(self, names: Sequence[str]) -> tuple[int, ...]:
        """Numbers of worlds."""
        return tuple(i for i, world in enumerate(self.worlds) if world.name in names)

    def worlds_of(self, name: str, text: str) -> tuple[int, ...]:
        """Numbers of the worlds that an attribute, said in these words, can be about."""
        attribute = self.attributes[name]
        worlds = self.subjects[attribute.about].worlds(text)
        return self.numbers([w for w in worlds if not attribute.worlds or w in attribute.worlds])

    def sample(
        self, rng: np.random.Generator, count: int, size: int | None = None, look: np.random.Generator | None = None
    ) -> tuple[States, np.ndarray]:
        """States of each world, and their frames unless `size` is None.

        Frames are `count` times the world's share; without frames, `count` of each world.
        """
        look = look or np.random.default_rng(0)
        parts = []
        for i, world in enumerate(self.worlds):
            many = count if size is None else max(1, round(world.share * count))
            parts.append(collect(world.scenes(rng, many, look), i, size))
        return join([states for states, _ in parts]), np.concatenate([frames for _, frames in parts])


def merge(
    parts: Sequence[Lexicon], things: tuple[str, ...] = THINGS, qualities: tuple[str, ...] = QUALITIES
) -> Lexicon:
    """One lexicon of several; their names must not clash."""

    def table(name: str) -> dict[str, Any]:
        whole: dict[str, Any] = {}
        for part in parts:
            clash = whole.keys() & getattr(part, name).keys()
            if clash:
                raise ValueError(f"{name} of two lexicons share the names {sorted(clash)}; rename those of one")
            whole |= getattr(part, name)
        return whole

    def chain(name: str) -> tuple[Any, ...]:
        return tuple(item for part in parts for item in getattr(part, name))

    return Lexicon(
        chain("worlds"),
        table("attributes"),
        chain("opposites"),
        table("subjects"),
        table("baselines"),
        chain("pairs"),
        table("pairs_held_out"),
        chain("verbatim"),
        things,
        qualities,
    )


def fact(name: str) -> Callable[[States], np.ndarray]:
    """A truth that is a fact itself."""
    return lambda states: states.fact(name)


def bump(distance: Any, width: float) -> Any:
    """1 at distance 0, falling off as a bell."""
    return np.exp(-0.5 * np.square(distance / width))


def step(value: Any, width: float) -> Any:
    """0 far below 0, 1 far above."""
    return 1 / (1 + np.exp(-np.clip(value / width, -30, 30)))


def turn(angle: Any) -> Any:
    """An angle in [-pi, pi]."""
    return np.arctan2(np.sin(angle), np.cos(angle))


def near(angle: Any, centre: float) -> Any:
    """Graded "points towards `centre`": a slope over the whole circle plus a peak; it can be climbed and held."""
    distance = turn(angle - centre)
    return 0.55 * (1 + np.cos(distance)) / 2 + 0.45 * bump(distance, 0.25)
