"""Every range and choice that a reward, a judge or the annotator declares is checked where it is made."""

import math
from contextlib import suppress
from dataclasses import MISSING, fields
from importlib import import_module

import pytest

import rewards
from lodestar.settings import Settings, declarations
from rewards.llm.annotation.annotator import Annotator
from rewards.llm.judges.base import JUDGES
from rewards.llm.sandbox.process import Sandbox

NEEDED = {"model": "m", "goal": "a pole", "order": ["speed"], "judge": "rules"}  # fields without a default


def made():
    """(name, what makes it) of everything that declares settings."""
    for name in rewards.names():
        yield name, rewards.get(name).Config
    for kind, table in JUDGES.items():
        for name, place in table.items():
            module, _, attribute = place.partition(":")
            with suppress(ImportError):  # an extra is not installed
                yield f"{kind}-{name}", getattr(import_module(module), attribute)
    yield from (("annotator", Annotator), ("sandbox", Sandbox))


def outside(declared):
    """Values that a declaration does not allow."""
    if declared.choices:
        return ["no such choice"]
    ends = ((declared.low, -1), (declared.high, 1), (declared.above, 0), (declared.below, 0))
    found = [end + step for end, step in ends if end is not None]
    return [math.nan, *filter(math.isfinite, found)] if found else []


@pytest.mark.parametrize(("name", "kind"), [pytest.param(*one, id=one[0]) for one in made()])
def test_a_value_outside_its_declared_range_is_refused_with_the_range(name, kind):
    if not hasattr(kind, "__dataclass_fields__") or not issubclass(kind, Settings):
        return
    needed = {f.name: NEEDED.get(f.name, "") for f in fields(kind) if f.default is f.default_factory is MISSING}
    for field, declared in declarations(kind).items():
        for value in outside(declared):
            with pytest.raises(ValueError, match=rf"{field}=.* is (out of range; give a number|unknown; give one of) "):
                kind(**{**needed, field: value})
