"""What the in-domain CLIP learns from: frames of the classic control environments, and sentences about their states.

A caption is made from simulator state, so every pair (caption, frame) has a graded truth in [0, 1]: fuzzy membership
per attribute, product for "and", 1 - membership for "not", 0 for whatever the frame does not show. Random sentences and
gibberish are captions too; their truth is 0 everywhere, so that a sentence without meaning pays the same for every
frame.

Held out of training, for `runners.pretrain_eval`: synonyms, phrasings, attribute pairs, and VLM-RM's verbatim prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

CARTPOLE, MOUNTAINCAR, PENDULUM = 0, 1, 2
WORLDS = ("CartPole", "MountainCar", "Pendulum")


@dataclass(frozen=True)
class States:
    """The state behind N frames: which world, the rod's angle, and where the cart or car is.

    `angle` is 0 when the rod points up and grows clockwise, in (-pi, pi]; `x` is CartPole's cart or MountainCar's car,
    in the environment's own units. An entry that a world lacks is 0.
    """

    world: np.ndarray  # int64 (N,)
    angle: np.ndarray  # float64 (N,)
    x: np.ndarray  # float64 (N,)

    def __len__(self) -> int:
        return len(self.world)

    def __getitem__(self, index: np.ndarray) -> States:
        return States(self.world[index], self.angle[index], self.x[index])


def join(parts: Sequence[States]) -> States:
    """Several sets of states as one."""
    return States(*(np.concatenate([getattr(part, name) for part in parts]) for name in _phrases("world, angle, x")))


def _bump(distance: np.ndarray, width: float) -> np.ndarray:
    return np.exp(-0.5 * np.square(distance / width))


def _step(value: np.ndarray, width: float) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(value / width, -30, 30)))


def _turn(angle: np.ndarray) -> np.ndarray:
    return np.arctan2(np.sin(angle), np.cos(angle))


def _near(angle: np.ndarray, centre: float) -> np.ndarray:
    """Graded "points towards `centre`": a slope over the whole circle plus a peak; it can be climbed and held."""
    distance = _turn(angle - centre)
    return 0.55 * (1 + np.cos(distance)) / 2 + 0.45 * _bump(distance, 0.25)


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


@dataclass(frozen=True)
class Attribute:
    """Something one can say about a subject, in several ways, and how true it is of a state."""

    about: str  # "rod", "cart", "car"
    truth: Callable[[States], np.ndarray]  # -> [0, 1], shape (N,)
    said: tuple[str, ...]  # predicates that training uses: "the pole is ..."
    held_out: tuple[str, ...] = ()  # predicates for the test only


ATTRIBUTES: dict[str, Attribute] = {
    "up": Attribute(
        "rod",
        lambda s: _near(s.angle, 0),
        _phrases(
            "upright, standing upright, standing straight up, standing, pointing up, pointing upwards, straight up, "
            "in the upright position, balanced upright, balanced, raised, standing tall, held up, perpendicular to "
            "the ground, vertically balanced, pointing at the sky, pointing to the ceiling, aiming up, up in the "
            "air, on end, up, held vertically, standing vertically, straight, upwards, facing up, sticking up, "
            "stable and upright, in balance, perfectly balanced"
        ),
        _phrases("vertical, erect, pointing skyward, upended, straight and tall"),
    ),
    "down": Attribute(
        "rod",
        lambda s: _near(s.angle, np.pi),
        _phrases(
            "hanging down, hanging, pointing down, pointing downwards, straight down, upside down, lowered, in the "
            "hanging position, below the axis, suspended, fallen down, pointing at the ground, down, at the bottom, "
            "hanging vertically downwards, aiming down, sagging, downwards, facing down, dropped, below, swinging "
            "below, limp"
        ),
        _phrases("dangling, drooping, pointing at the floor, flipped over"),
    ),
    "flat": Attribute(
        "rod",
        lambda s: (
            _near(s.angle, np.pi / 2) * (np.sin(s.angle) > 0) + _near(s.angle, -np.pi / 2) * (np.sin(s.angle) <= 0)
        ),
        _phrases(
            "horizontal, lying flat, parallel to the ground, flat, in a horizontal position, horizontally aligned, "
            "lying on its side, pointing to the side, lying down"
        ),
        _phrases("sideways, lying down flat, level with the ground"),
    ),
    "right": Attribute(
        "rod",
        lambda s: _near(s.angle, np.pi / 2),
        _phrases(
            "pointing right, pointing to the right, turned to the right, on the right side, aiming right, facing right"
        ),
        ("directed to the right",),
    ),
    "left": Attribute(
        "rod",
        lambda s: _near(s.angle, -np.pi / 2),
        _phrases("pointing left, pointing to the left, turned to the left, on the left side, aiming left, facing left"),
        ("directed to the left",),
    ),
    "lean_right": Attribute(
        "rod",
        lambda s: _bump(_turn(s.angle - 0.5), 0.3),
        _phrases(
            "leaning right, leaning to the right, tilted to the right, tilting right, falling to the right, slanted "
            "to the right"
        ),
        _phrases("inclined to the right, tipping right"),
    ),
    "lean_left": Attribute(
        "rod",
        lambda s: _bump(_turn(s.angle + 0.5), 0.3),
        _phrases(
            "leaning left, leaning to the left, tilted to the left, tilting left, falling to the left, slanted to the "
            "left"
        ),
        _phrases("inclined to the left, tipping left"),
    ),
    "tilted": Attribute(
        "rod",
        lambda s: _bump(np.abs(_turn(s.angle)) - 0.7, 0.35),
        _phrases("leaning, tilted, slanted, diagonal, at an angle, tilting, falling over, falling"),
        _phrases("inclined, tipping over, askew"),
    ),
    "above": Attribute(
        "rod",
        lambda s: _step(np.cos(s.angle), 0.15),
        _phrases(
            "above the cart, in the upper half, higher than the cart, above the axis, more upright than horizontal, "
            "on the upper side"
        ),
        ("over the cart",),
    ),
    "below": Attribute(
        "rod",
        lambda s: _step(-np.cos(s.angle), 0.15),
        _phrases(
            "below the cart, in the lower half, lower than the cart, under the cart, beneath the axis, on the lower "
            "side"
        ),
        ("underneath the cart",),
    ),
    "cart_left": Attribute(
        "cart",
        lambda s: _step(-s.x - 0.8, 0.3),
        _phrases(
            "on the left, on the left side, at the left edge, to the left, far left, near the left border of the "
            "picture"
        ),
        ("at the left end",),
    ),
    "cart_right": Attribute(
        "cart",
        lambda s: _step(s.x - 0.8, 0.3),
        _phrases(
            "on the right, on the right side, at the right edge, to the right, far right, near the right border of "
            "the picture"
        ),
        ("at the right end",),
    ),
    "cart_centre": Attribute(
        "cart",
        lambda s: _bump(s.x, 0.5),
        _phrases(
            "in the middle, in the center, centered, at the center of the track, near the middle, halfway between the "
            "edges"
        ),
        _phrases("in the centre, midway"),
    ),
    "peak": Attribute(
        "car",
        lambda s: 0.6 * np.clip((s.x + 0.55) / 1.1, 0, 1) + 0.4 * _step(s.x - 0.42, 0.05),
        _phrases(
            "at the top of the mountain, at the top of the hill, on top of the hill, at the flag, next to the flag, "
            "beside the yellow flag, on the peak, at the peak, at the goal, on the hilltop, near the yellow flag, "
            "at the highest point on the right, at the top of the right hill, up at the flag, on top, reaching the "
            "flag, at the target, at its destination, touching the flag, by the flag, at the end of the road"
        ),
        _phrases("at the summit, on the mountaintop, at the crest of the hill, close to the flag, at the finish"),
    ),
    "valley": Attribute(
        "car",
        lambda s: _bump(s.x + 0.52, 0.22),
        _phrases(
            "in the valley, at the bottom of the valley, at the bottom of the hill, at the bottom, at the lowest "
            "point, between the hills, at the foot of the mountain, at the foot of the hill, down in the valley, "
            "stuck in the valley, in the hollow, in the trough, in the ditch"
        ),
        _phrases("in the dip, in the basin, at the base of the mountain"),
    ),
    "left_hill": Attribute(
        "car",
        lambda s: _step(-s.x - 0.9, 0.08),
        _phrases(
            "on the left hill, on the left slope, at the left edge, on the left side, high on the left, at the far left"
        ),
        ("at the left border",),
    ),
    "right_slope": Attribute(
        "car",
        lambda s: _bump(s.x - 0.05, 0.2),
        _phrases(
            "on the right slope, halfway up the right hill, climbing the right hill, on the way to the flag, on the "
            "slope"
        ),
        ("partway up the right hill",),
    ),
    "high": Attribute(
        "car",
        lambda s: (1 + np.sin(3 * s.x)) / 2,
        _phrases("high up, high, high above the valley, up on the mountain, elevated"),
        ("at a great height",),
    ),
}
_PAIRS = ("up down", "peak valley", "left right", "lean_left lean_right", "cart_left cart_right", "above below")
OPPOSITE = {one: other for pair in _PAIRS for one, other in (pair.split(), pair.split()[::-1])}

# subject -> worlds where it can be seen. A "rod" is both CartPole's pole and the pendulum; naming the cart rules one
# out.
RODS = _phrases(
    "pole, rod, bar, beam, post, brown pole, wooden pole, thin pole, long rod, mast, pipe, staff, baton, wooden rod, "
    "pole of the cart, pole on the cart, rod attached to the cart, pendulum, red pendulum, swinging rod, swinging "
    "arm, arm, red bar, red rod, pendulum arm, pendulum rod, needle, tube, cane, spear, plank, column, antenna, "
    "lever, pencil, ruler, log, flagpole"
)
RODS_HELD_OUT = _phrases("stick, shaft, pillar, wand")
CARTS = _phrases("cart, black cart, trolley, wagon, black box, sliding cart, platform, block, box, sled, slider")
CARTS_HELD_OUT = _phrases("carriage, buggy")
CARS = _phrases(
    "car, small car, toy car, black car, automobile, truck, little car, mountain car, van, taxi, lorry, bus, cab, "
    "sedan, race car"
)
CARS_HELD_OUT = _phrases("vehicle, motorcar, jeep")
SUBJECTS = {"rod": (RODS, RODS_HELD_OUT), "cart": (CARTS, CARTS_HELD_OUT), "car": (CARS, CARS_HELD_OUT)}
# Written when training was over, to be measured once: the held-out lists above were known while the lexicon grew.
FRESH = {
    "up": _phrases("plumb, upstanding, pointed upward, skywards"),
    "down": _phrases("hung downward, dangling down, pointed downward"),
    "flat": _phrases("laid flat, parallel to the floor"),
    "lean_right": _phrases("bent to the right, sloping right"),
    "lean_left": _phrases("bent to the left, sloping left"),
    "cart_left": ("at the leftmost position",),
    "cart_right": ("at the rightmost position",),
    "cart_centre": _phrases("dead center, central"),
    "peak": _phrases("atop the hill, on the pinnacle, at the apex of the hill, alongside the flag"),
    "valley": _phrases("in the gorge, at the lowest spot, in the canyon"),
}
FRESH_SUBJECTS = {
    "rod": _phrases("broomstick, stake, pointer"),
    "cart": _phrases("dolly, carrier"),
    "car": _phrases("pickup, minivan, limousine"),
}
TAILS = {
    "rod": ("", "", "", "", " on the cart", " on top of the cart", " above the cart", " over the cart"),
    "cart": ("",),
    "car": ("", "", " in the mountains"),
}
BASELINES = {
    "rod": _phrases(
        "pole, cart and pole, a pole on a cart, a cart, a rod, pendulum, a pendulum, a picture of a pole, a bar, a "
        "cart with a pole, a simulation of a cart and a pole, an image of a pendulum, a swinging pendulum"
    ),
    "car": _phrases(
        "a car, car, a car in the hills, a mountain, a car and a mountain, a hill with a car, a picture of a car, a "
        "landscape with a car"
    ),
}

# {s} subject, {p} predicate, {t} where it is
TEMPLATES = (
    "{s} {p}{t}",
    "the {s} is {p}{t}",
    "a {s} {p}{t}",
    "the {s} {p}{t}",
    "a {s} that is {p}{t}",
    "a picture of a {s} {p}{t}",
    "keep the {s} {p}{t}",
    "make the {s} {p}{t}",
    "the {s} should be {p}{t}",
    "get the {s} {p}{t}",
    "a photo of the {s} {p}{t}",
    "the {s} remains {p}{t}",
    "{p}",
    "we see the {s} {p}{t}",
    "{s} is {p}{t}",
    "the goal is a {s} {p}{t}",
)
TEMPLATES_HELD_OUT = (
    "an image in which the {s} is {p}{t}",
    "i want the {s} to be {p}{t}",
    "there is a {s} which is {p}{t}",
    "the {s} stays {p}{t}",
    "please put the {s} {p}{t}",
    "the {s} has to be {p}{t}",
)
NEGATIONS = (
    "the {s} is not {p}{t}",
    "{s} not {p}{t}",
    "the {s} isn't {p}{t}",
    "a {s} that is not {p}{t}",
    "the {s} is no longer {p}{t}",
    "not {p}",
    "the {s} should not be {p}{t}",
    "the {s} is anything but {p}{t}",
    "a {s} which isn't {p}{t}",
    "no {s} {p}{t}",
    "the {s} never {p}{t}",
)
NEGATIONS_HELD_OUT = ("it is not true that the {s} is {p}{t}", "the {s} was not {p}{t}", "{s} isn't {p}{t}")
PAIRS = ("{a} and {b}", "{a} while {b}", "{a}, {b}", "{a} with {b}")
PAIRS_HELD_OUT = {
    "up": "cart_right",
    "down": "cart_left",
    "lean_left": "cart_centre",
    "flat": "cart_right",
    "tilted": "cart_left",
}

VERBATIM = (
    "pole vertically upright on top of the cart",
    "a car at the peak of the mountain, next to the yellow flag",
    "pole and cart",
    "a car in the mountain",
)  # VLM-RM's goals and baselines: held out
THINGS = _phrases(
    "cat, dog, banana, house, tree, river, person, woman, king, book, guitar, pizza, ocean, cloud, bird, fish, phone, "
    "computer, window, shoe, apple, bread, doctor, school, music, market, garden, soldier, horse, elephant, bottle, "
    "chair, table, camera, letter, moon, city, church, song, baby, robot, kitchen, airplane, boat, dragon, hat, "
    "train, bank"
)
QUALITIES = _phrases(
    "purple, happy, expensive, delicious, angry, ancient, loud, wet, famous, tired, democratic, sweet, hungry, green, "
    "golden, sleeping, eating dinner, singing, married, made of glass, in the kitchen, for sale, on fire, reading a "
    "book, swimming in the sea, at the hospital, kneeling, running, dancing, broken, made of chocolate, at school, "
    "covered in snow"
)


def sample_states(rng: np.random.Generator, count: int, world: int) -> States:
    """States that cover a world: half uniform, half near its goal and its other extremes."""
    angle, x = np.zeros(count), np.zeros(count)
    near = rng.random(count) < 0.4
    if world == MOUNTAINCAR:
        x = np.where(near, rng.normal(rng.choice([0.5, -0.52], count), 0.12), rng.uniform(-1.2, 0.6, count)).clip(
            -1.2, 0.6
        )
    else:
        angle = _turn(
            np.where(near, rng.normal(rng.choice([0, 0, np.pi], count), 0.3), rng.uniform(-np.pi, np.pi, count))
        )
    if world == CARTPOLE:
        x = rng.uniform(-2.4, 2.4, count)
    return States(np.full(count, world), angle, x)
