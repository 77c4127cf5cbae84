"""Sentence frames and other topics: the part of the captions that is the same for every world."""

from __future__ import annotations


def phrases(text: str) -> tuple[str, ...]:
    """A list written as one text, separated by commas."""
    return tuple(text.split(", "))


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
THINGS = phrases(
    "cat, dog, banana, house, tree, river, person, woman, king, book, guitar, pizza, ocean, cloud, bird, fish, phone, "
    "computer, window, shoe, apple, bread, doctor, school, music, market, garden, soldier, horse, elephant, bottle, "
    "chair, table, camera, letter, moon, city, church, song, baby, robot, kitchen, airplane, boat, dragon, hat, "
    "train, bank"
)
QUALITIES = phrases(
    "purple, happy, expensive, delicious, angry, ancient, loud, wet, famous, tired, democratic, sweet, hungry, green, "
    "golden, sleeping, eating dinner, singing, married, made of glass, in the kitchen, for sale, on fire, reading a "
    "book, swimming in the sea, at the hospital, kneeling, running, dancing, broken, made of chocolate, at school, "
    "covered in snow"
)
