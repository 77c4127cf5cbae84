"""Which sentences say of two things the opposite of what a model was taught, by the words alone."""

import pytest

from rewards.vision.word_order import exchanged

TAUGHT = [
    "the pole is above the cart",
    "the pole is under the cart",
    "the triangle is on the green square",
    "the green car is behind another truck",
    "the line is not above the pole",
]


@pytest.mark.parametrize(
    ("sentence", "phrase"),
    [
        ("The cart stands on top of a pole", "the triangle"),
        ("the green square lies over the red triangle", TAUGHT[2]),
        ("the red triangle is beneath the square", TAUGHT[2]),
        ("a truck behind the green car", TAUGHT[3]),
    ],
)
def test_two_things_the_other_way_round_are_found(sentence, phrase):
    found = exchanged(sentence, TAUGHT[2:] + TAUGHT[:1])
    assert found == (TAUGHT[0] if "cart" in sentence else phrase)


@pytest.mark.parametrize(
    "sentence",
    [
        "the pole is above the cart",
        "the cart is above the pole",  # taught, too: "the pole is under the cart"
        "the square is under the triangle",
        "the green car follows behind a truck",
        "the square is not on the triangle",  # a denial is another matter
        "the clouds are above the sea",
        "the pole stands upright",
    ],
)
def test_what_was_taught_in_this_order_or_not_at_all_is_left_alone(sentence):
    assert exchanged(sentence, TAUGHT) is None
