"""Settings declared once: default, help, range, choices and what tuning tries, beside the name of a dataclass field.

    @dataclass
    class RNDConfig(Settings):
        learning_rate: float = setting(1e-4, "of Adam", above=0, high=1, tune=(1e-5, 1e-2, "log"))
        net: str = setting("mlp", "what reads observations", choices=("mlp", "glyphs"))

That one declaration serves parsing, checking at construction, `--help`, `runners.list`, `runners.tune` and the docs.
"""

import dataclasses
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass
from typing import Any, ClassVar

import numpy as np

SCHEDULES = ("linear", "cosine", "exp", "step")
LEARNED = "learned"  # a weight that an agent finds; 1 at first
KEY = "setting"  # under which a field's metadata holds its declaration


@dataclass(frozen=True)
class Setting:
    """What is declared of one field."""

    help: str = ""  # a phrase with the unit; what the value means
    low: float | None = None  # the ends of its range, themselves allowed; None leaves that side open;
    high: float | None = None  # low=-inf is any finite number
    above: float | None = None  # the same, themselves not allowed
    below: float | None = None
    choices: tuple[Any, ...] = ()  # what a text may be; empty for any
    # What `runners.tune` tries: (low, high), (low, high, "log") or (a, b, ..., "choice"); empty for nothing.
    tune: tuple[Any, ...] | None = None  # None for what a base class declares
    otherwise: Any = None  # what None stands for where no preset says something else; see `Settings.presets`

    def allows(self, value: Any) -> bool:
        """Whether a value, or every item of a list, is in range; schedules written as texts are not judged here."""
        if isinstance(value, list | tuple):
            return all(self.allows(item) for item in value)
        if self.choices:
            return value in self.choices
        if isinstance(value, bool) or not isinstance(value, int | float) or self.range == "":
            return True
        ends = (self.low, operator.ge), (self.high, operator.le), (self.above, operator.gt), (self.below, operator.lt)
        return math.isfinite(value) and all(end is None or holds(value, end) for end, holds in ends)

    @property
    def range(self) -> str:
        """The range in words, as in "in (0, 1]", "at least 1" or "one of a, b"; empty where there is none."""
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        low = self.low if self.above is None else self.above
        high = self.high if self.below is None else self.below
        if low is None and high is None:
            return ""
        if low == -math.inf and high is None:
            return "that is finite"
        if high is None:
            return f"at least {_text(low)}" if self.above is None else f"above {_text(low)}"
        if low is None:
            return f"at most {_text(high)}" if self.below is None else f"below {_text(high)}"
        return f"in {'[('[self.above is not None]}{_text(low)}, {_text(high)}{'])'[self.below is not None]}"


def _text(number: float | None) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


def setting(
    default: Any = MISSING, help: str = "", *, factory: Callable[[], Any] | None = None, **declared: Any
) -> Any:
    """A dataclass field with its declaration, as `Setting` takes it. A list as default is copied for every instance.

    A subclass that gives a field another default inherits its declaration, and may redeclare part of it.

    Example:
        >>> @dataclass
        ... class Options(Settings):
        ...     size: int = setting(4, "rows", low=1)
        >>> Options(size=0)
        Traceback (most recent call last):
        ValueError: size=0 is out of range; give a number at least 1
    """
    metadata = {KEY: Setting(help, **declared)}
    if isinstance(default, list | dict):
        factory = default.copy
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


class Settings:
    """Base of every Config: fills in its preset and checks each field when it is made; a ValueError names the range."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {}  # name -> values for the fields that are None

    @property
    def prefix(self) -> str:
        """What stands before a field's name on the command line."""
        return ""

    def __post_init__(self) -> None:
        chosen: dict[str, Any] = {}
        if self.presets:
            self.check("preset")
            chosen = self.presets[getattr(self, "preset")]  # noqa: B009 (not every Config has one)
        for name, declared in declarations(type(self)).items():
            if getattr(self, name) is None:
                value = chosen.get(name, declared.otherwise)
                setattr(self, name, list(value) if isinstance(value, list) else value)
        self.check(*declarations(type(self)))

    def check(self, *names: str) -> None:
        """Refuse, with a ValueError, the first of these fields that is out of range; None is allowed."""
        declared = declarations(type(self))
        for name in names:
            value = getattr(self, name)
            if value is None or declared[name].allows(value):
                continue
            words = "is out of range; give a number"
            if declared[name].choices:
                words = "is unknown; give"
                if isinstance(value, list | tuple):
                    value = next(item for item in value if not declared[name].allows(item))
            shown = repr(value) if isinstance(value, str) else value
            raise ValueError(f"{self.prefix}{name}={shown} {words} {declared[name].range}")

    def refuse_if(self, wrong: object, sentence: str) -> None:
        """Raise a ValueError with this sentence, in which {name} is the value of a field, if `wrong`."""
        if wrong:
            raise ValueError(sentence.format(**vars(self)))


def check_config(config: object, kind: type) -> None:
    """Refuse, with a ValueError, options that lack what a `kind` has, such as a dict or another's Config."""
    if not all(hasattr(config, field.name) for field in dataclasses.fields(kind)):
        options = ", ".join(f"{key}={value!r}" for key, value in config.items()) if isinstance(config, dict) else "..."
        given = repr(config) if isinstance(config, dict | type) else f"of type {type(config).__name__}"
        raise ValueError(f"the options {given} are no {kind.__name__}; give {kind.__name__}({options})")


def declarations(config: type) -> dict[str, Setting]:
    """Field -> its declaration, in order, with what its own leaves open taken from the classes above."""
    found = {field.name: Setting() for field in dataclasses.fields(config)}
    for cls in reversed(config.__mro__):
        for name, field in vars(cls).get("__dataclass_fields__", {}).items():
            if name in found and KEY in field.metadata:
                own, base = field.metadata[KEY], found[name]
                found[name] = dataclasses.replace(
                    own if own.range else base,  # a range, or choices, count as one thing
                    help=own.help or base.help,
                    tune=base.tune if own.tune is None else own.tune,
                    otherwise=base.otherwise if own.otherwise is None else own.otherwise,
                )
    return found


def described(config: type) -> Iterator[tuple[str, Any, Setting]]:
    """(name, default, declaration) of every field, for help, docs and tuning; None where there is no default.

    Example:
        >>> @dataclass
        ... class Options(Settings):
        ...     size: int = setting(4, "rows", low=1)
        >>> [(name, default, declared.help, declared.range) for name, default, declared in described(Options)]
        [('size', 4, 'rows', 'at least 1')]
    """
    declared = declarations(config)
    for field in dataclasses.fields(config):
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        yield field.name, None if default is MISSING else default, declared[field.name]


class Schedule:
    """A weight over environment steps: a number, or `kind:start:end:steps`, standing at `end` afterwards.

    Example:
        >>> weight = Schedule("linear:1:0:200")
        >>> [float(weight(step)) for step in (0, 50, 300)]
        [1.0, 0.75, 0.0]
    """

    def __init__(self, spec: Any, name: str = "weight") -> None:
        self.spec = spec
        kind, *numbers = str(spec).split(":")
        try:
            if not numbers:
                self.start = self.end = 1.0 if (spec, name) == (LEARNED, "weight") else float(kind)
                self.kind, self.steps = "constant", 1.0
            else:
                self.kind = kind
                self.start, self.end, self.steps = (float(x) for x in numbers)
        except ValueError:
            self.kind = "unreadable"
        if self.kind not in ("constant", *SCHEDULES):
            raise ValueError(
                f"{name}={spec!r} is neither a number nor KIND:START:END:STEPS "
                f"with KIND one of {', '.join(SCHEDULES)}, as in linear:1:0:200000, nor {LEARNED}"
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
