"""Settings declared once: default, help, range, choices and what tuning tries, beside the name of a dataclass field.

    @dataclass
    class RNDConfig(Settings):
        learning_rate: float = setting(1e-4, "of Adam", "(0, 1]", tune=(1e-5, 1e-2, "log"))
        net: str = setting("mlp", "what reads observations", "mlp | glyphs")

That one declaration serves parsing, checking at construction, `--help`, `runners.list`, `runners.tune` and the docs.
"""

import dataclasses
import functools
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass
from itertools import filterfalse
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

# The folder of `lodestar`, `agents` and the other packages.
PACKAGES_FOLDER = Path(__file__).parent.parent
SCHEDULES = ("linear", "cosine", "exp", "step")
# A weight that an agent finds; 1 at first.
LEARNED_WEIGHT = "learned"
# A field's metadata holds its declaration under this key.
METADATA_KEY = "setting"
# A range as it is declared, with two ends or with one, and the names of such ends.
INTERVAL = re.compile(r"([\[(])(.+), (.+)([\])])")
BOUND_NAMES = {
    "[": "low",
    "(": "above",
    "]": "high",
    ")": "below",
    ">=": "low",
    ">": "above",
    "<=": "high",
    "<": "below",
}
CHOICE_SEPARATOR = " | "
# A range with one end, in words, by the bracket that it would have there.
LOWER_BOUNDS = {"[": "at least", "(": "above"}
UPPER_BOUNDS = {"]": "at most", ")": "below"}


@dataclass(frozen=True)
class Setting:
    """What is declared of one field."""

    # A phrase with the unit; what the value means.
    help: str = ""
    # The ends of its range, themselves allowed; None leaves that side open; low=-inf is any finite
    # number.
    low: float | None = None
    high: float | None = None
    # The same, themselves not allowed.
    above: float | None = None
    below: float | None = None
    # What a text may be; empty for any.
    choices: tuple[Any, ...] = ()
    # What `runners.tune` tries: (low, high), (low, high, "log") or (a, b, ..., "choice"); empty for
    # nothing, None for what a base class declares.
    tune: tuple[Any, ...] | None = None
    # What None stands for where no preset says something else; see `Settings.presets`.
    otherwise: Any = None

    def allows(self, value: Any) -> bool:
        """Whether a value, or every item of a list, is in range; schedules written as texts are not judged here."""
        if isinstance(value, list | tuple):
            return all(map(self.allows, value))
        if self.choices:
            return value in self.choices
        if isinstance(value, bool) or not isinstance(value, int | float) or self.range == "":
            return True
        if not math.isfinite(value):
            return False
        if self.low is not None and value < self.low:
            return False
        if self.high is not None and value > self.high:
            return False
        if self.above is not None and value <= self.above:
            return False
        return self.below is None or value < self.below

    @property
    def range(self) -> str:
        """The range in words, as in "in (0, 1]", "at least 1" or "one of a, b"; empty where there is none."""
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        low = self.low
        left = "["
        if self.above is not None:
            low = self.above
            left = "("
        high = self.high
        right = "]"
        if self.below is not None:
            high = self.below
            right = ")"
        if low is None and high is None:
            return ""
        if low == -math.inf and high is None:
            return "that is finite"
        if high is None:
            return f"{LOWER_BOUNDS[left]} {_number_text(low)}"
        if low is None:
            return f"{UPPER_BOUNDS[right]} {_number_text(high)}"
        return f"in {left}{_number_text(low)}, {_number_text(high)}{right}"


def _number_text(number: float | None) -> str:
    if isinstance(number, int):
        return str(number)
    return f"{number:g}"


def read_range(text: str) -> dict[str, Any]:
    """The ends of a range such as "[0, 1)", ">= 1", "> 0" or "finite", or the choices "a | b", as `Setting` names them.

    Example:
        >>> read_range("[0, 1)")
        {'low': 0, 'below': 1}
        >>> read_range("tanh | relu")
        {'choices': ('tanh', 'relu')}
    """
    if CHOICE_SEPARATOR in text:
        return {"choices": tuple(text.split(CHOICE_SEPARATOR))}
    if text == "finite":
        return {"low": -math.inf}
    interval = INTERVAL.fullmatch(text)
    if interval is None:
        sign, _, bound = text.partition(" ")
        return {BOUND_NAMES[sign]: json.loads(bound)}
    left, low, high, right = interval.groups()
    return {BOUND_NAMES[left]: json.loads(low), BOUND_NAMES[right]: json.loads(high)}


def read_presets(path: str) -> dict[str, dict[str, Any]]:
    """The published variants of an agent, from a YAML file of this package: name -> settings."""
    import yaml

    text = (PACKAGES_FOLDER / path).read_text(encoding="utf8")
    return yaml.safe_load(text)


def preset_setting(default: Any, help: str = "", within: str = "", **declared: Any) -> Any:
    """A `setting` that a preset may decide: None until the Config is made, then the preset's value or this default."""
    return setting(None, help, within, otherwise=default, **declared)


def setting(
    default: Any = MISSING,
    help: str = "",
    within: str = "",
    *,
    factory: Callable[[], Any] | None = None,
    **declared: Any,
) -> Any:
    """A dataclass field with its declaration, as `Setting` takes it. A list as default is copied for every instance.

    `within` is its range or its choices, see `read_range`; `low=1` or `choices=NAMES` say the same. A subclass that
    gives a field another default inherits its declaration, and may redeclare part of it.

    Example:
        >>> @dataclass
        ... class Options(Settings):
        ...     size: int = setting(4, "rows", ">= 1")
        >>> Options(size=0)
        Traceback (most recent call last):
        ValueError: size=0 is out of range; give a number at least 1
    """
    if within:
        declared |= read_range(within)
    metadata = {METADATA_KEY: Setting(help, **declared)}
    if isinstance(default, list | dict):
        factory = default.copy
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


class Settings:
    """Base of every Config: fills in its preset and checks each field when it is made; a ValueError names the range."""

    # Name -> values for the fields that are None.
    presets: ClassVar[dict[str, dict[str, Any]]] = {}

    @property
    def prefix(self) -> str:
        """What stands before a field's name on the command line."""
        return ""

    def __post_init__(self) -> None:
        preset = {}
        if self.presets:
            self.check("preset")
            # Only a Config with presets has this field.
            preset = self.presets[getattr(self, "preset")]  # noqa: B009
        declared = declarations(type(self))
        for name, declaration in declared.items():
            if getattr(self, name) is None:
                value = preset.get(name, declaration.otherwise)
                if isinstance(value, list):
                    # A list of a preset is not shared between instances.
                    value = list(value)
                setattr(self, name, value)
        self.check(*declared)

    def check(self, *names: str) -> None:
        """Refuse, with a ValueError, the first of these fields that is out of range; None is allowed."""
        declared = declarations(type(self))
        for name in names:
            value = getattr(self, name)
            declaration = declared[name]
            if value is None or declaration.allows(value):
                continue
            words = "is out of range; give a number"
            if declaration.choices:
                words = "is unknown; give"
                # Of a list the item that is wrong is named.
                if isinstance(value, list | tuple):
                    value = next(filterfalse(declaration.allows, value))
            shown = repr(value) if isinstance(value, str) else value
            raise ValueError(f"{self.prefix}{name}={shown} {words} {declaration.range}")

    def refuse_if(self, wrong: object, sentence: str) -> None:
        """Raise a ValueError with this sentence, in which {name} is the value of a field, if `wrong`."""
        if wrong:
            raise ValueError(sentence.format(**vars(self)))


def check_config(config: object, kind: type) -> None:
    """Refuse, with a ValueError, options that lack what a `kind` has, such as a dict or another's Config."""
    if all(hasattr(config, field.name) for field in dataclasses.fields(kind)):
        return
    arguments = "..."
    given = f"of type {type(config).__name__}"
    if isinstance(config, dict):
        items = []
        for key, value in config.items():
            items.append(f"{key}={value!r}")
        arguments = ", ".join(items)
    if isinstance(config, dict | type):
        given = repr(config)
    raise ValueError(f"the options {given} are no {kind.__name__}; give {kind.__name__}({arguments})")


def declarations(config: type) -> dict[str, Setting]:
    """Field -> its declaration, in order, with what its own leaves open taken from the classes above."""
    return dict(_inherited_declarations(config))


@functools.cache
def _inherited_declarations(config: Any) -> dict[str, Setting]:
    declared = {field.name: Setting() for field in dataclasses.fields(config)}
    for cls in reversed(config.__mro__):
        fields = vars(cls).get("__dataclass_fields__", {})
        for name, field in fields.items():
            if name in declared and METADATA_KEY in field.metadata:
                declared[name] = _inherit(field.metadata[METADATA_KEY], declared[name])
    return declared


def _inherit(own: Setting, base: Setting) -> Setting:
    """A field's own declaration, with what it leaves open taken from that of a base class."""
    tune = own.tune
    if tune is None:
        tune = base.tune
    otherwise = own.otherwise
    if otherwise is None:
        otherwise = base.otherwise
    # A range, or choices, count as one thing.
    ranged = own if own.range else base
    return dataclasses.replace(ranged, help=own.help or base.help, tune=tune, otherwise=otherwise)


def settings_of(config: type) -> Iterator[tuple[str, Any, Setting]]:
    """(name, default, declaration) of every field, for help, docs and tuning; None where there is no default.

    Example:
        >>> @dataclass
        ... class Options(Settings):
        ...     size: int = setting(4, "rows", ">= 1")
        >>> [(name, default, declared.help, declared.range) for name, default, declared in settings_of(Options)]
        [('size', 4, 'rows', 'at least 1')]
    """
    declared = declarations(config)
    for field in dataclasses.fields(config):
        default = field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        if default is MISSING:
            default = None
        yield field.name, default, declared[field.name]


class Schedule:
    """A number over environment steps: a constant, or `kind:start:end:steps`, standing at `end` afterwards.

    Where the `total_steps` of training are known, `kind:start:end` reaches its end there.

    Example:
        >>> weight = Schedule("linear:1:0:200")
        >>> [float(weight(step)) for step in (0, 50, 300)]
        [1.0, 0.75, 0.0]
    """

    def __init__(self, spec: Any, name: str = "weight", total_steps: float | None = None) -> None:
        self.spec = spec
        self.kind = "constant"
        self.steps = 1.0
        kind, *numbers = str(spec).split(":")
        if len(numbers) == 2 and total_steps is not None:
            numbers.append(str(total_steps))
        try:
            if numbers:
                self.kind = kind
                self.start, self.end, self.steps = map(float, numbers)
            else:
                is_learned = spec == LEARNED_WEIGHT and name == "weight"
                self.start = 1.0 if is_learned else float(kind)
                self.end = self.start
        except ValueError:
            self.kind = "unreadable"
        if self.kind not in ("constant", *SCHEDULES):
            raise ValueError(
                f"{name}={spec!r} is neither a number nor KIND:START:END:STEPS "
                f"with KIND one of {', '.join(SCHEDULES)}, as in linear:1:0:200000, nor {LEARNED_WEIGHT}"
            )
        if not (math.isfinite(self.start) and math.isfinite(self.end) and min(self.start, self.end) >= 0):
            raise ValueError(f"{name}={spec!r} must be finite and at least 0; to penalise, change the reward's sign")
        if not (math.isfinite(self.steps) and self.steps >= 1):
            raise ValueError(f"{name}={spec!r} must reach its end in at least 1 environment step")
        if self.kind == "exp" and min(self.start, self.end) <= 0:
            raise ValueError(f"{name}={spec!r} cannot reach or leave 0 exponentially; end above 0, or use linear")

    def __call__(self, timesteps: Any) -> Any:
        """The weight after `timesteps` environment steps; an array gives an array."""
        if self.kind == "constant":
            return self.start
        progress = np.minimum(np.asarray(timesteps) / self.steps, 1.0)
        if self.kind == "linear":
            return self.start + (self.end - self.start) * progress
        if self.kind == "cosine":
            return self.end + (self.start - self.end) * 0.5 * (1 + np.cos(np.pi * progress))
        if self.kind == "exp":
            return self.start * (self.end / self.start) ** progress
        return np.where(progress < 1, self.start, self.end)
