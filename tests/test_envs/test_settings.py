"""One declaration of a field checks it, describes it, and fills in what a preset says."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from lodestar.settings import Setting, Settings, declarations, preset_setting, read_range, setting, settings_of


@dataclass
class Example(Settings):
    presets: ClassVar = {"plain": {}, "wide": {"units": [8, 8]}}
    preset: str = setting("plain", "which variant", choices=("plain", "wide"))
    rate: float = setting(0.1, "of Adam", "(0, 1]", tune=(1e-3, 1.0, "log"))
    units: list[int] | None = preset_setting([4], "of the layers", ">= 1")
    weight: object = setting(1.0, "a number or a schedule", low=0)
    names: list[str] = setting(["a"], "of things")

    @property
    def prefix(self):
        return "agent."


def test_a_value_out_of_range_is_refused_with_the_value_and_the_range():
    with pytest.raises(ValueError, match=r"^agent.rate=0 is out of range; give a number in \(0, 1\]$"):
        Example(rate=0)
    with pytest.raises(ValueError, match=r"^agent.rate=nan is out of range"):
        Example(rate=float("nan"))
    with pytest.raises(ValueError, match=r"^agent.units=\[4, 0\] is out of range; give a number at least 1$"):
        Example(units=[4, 0])
    with pytest.raises(ValueError, match=r"^agent.preset='x' is unknown; give one of plain, wide$"):
        Example(preset="x")
    assert Example(weight="linear:1:0:100").weight == "linear:1:0:100"


def test_none_is_filled_by_the_preset_and_else_by_what_is_declared():
    assert Example().units == [4] and Example(preset="wide").units == [8, 8]
    assert Example(preset="wide", units=[2]).units == [2]
    Example().units.append(1)
    assert Example().units == [4]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (dict(low=1), "at least 1"),
        (dict(above=0), "above 0"),
        (dict(low=0, high=1), "in [0, 1]"),
        (dict(above=0, below=1), "in (0, 1)"),
        (dict(high=5), "at most 5"),
        ({}, ""),
    ],
)
def test_ranges_in_words(given, words):
    assert Setting(**given).range == words


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        (">= 1", dict(low=1)),
        ("> -0.5", dict(above=-0.5)),
        ("[0, 1e6]", dict(low=0, high=1e6)),
        ("(0, 1)", dict(above=0, below=1)),
    ],
)
def test_a_range_as_text_is_the_same_as_its_ends_by_name(text, ends):
    assert read_range(text) == ends
    assert setting(1, "", text).metadata == setting(1, "", **ends).metadata


def test_declarations_carry_help_default_and_tuning_range():
    assert declarations(Example)["rate"].tune == (1e-3, 1.0, "log")
    assert [(name, default) for name, default, _ in settings_of(Example)][:2] == [("preset", "plain"), ("rate", 0.1)]
    assert dict((name, default) for name, default, _ in settings_of(Example))["names"] == ["a"]


def test_a_subclass_inherits_what_it_does_not_redeclare():
    @dataclass
    class Wider(Example):
        rate: float = 0.2
        preset: str = setting("wide", "which variant, wide as in the paper")
        units: list[int] | None = setting(None, tune=(), high=9)

    found = declarations(Wider)
    assert found["rate"] == declarations(Example)["rate"] and Wider().rate == 0.2
    assert (found["preset"].help, found["preset"].choices) == ("which variant, wide as in the paper", ("plain", "wide"))
    assert (found["units"].help, found["units"].range, found["units"].tune) == ("of the layers", "at most 9", ())
    with pytest.raises(ValueError, match=r"^agent.rate=2 is out of range"):
        Wider(rate=2)
