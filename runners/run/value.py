"""One argument of a command line, `key=value`: split, read by Hydra's grammar, cast to a field's type; and printed.

The grammar is all that is used of Hydra: names come from tables, there is no `_target_` and no interpolation.
"""

import functools
import json
import re
import types
import typing
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from runners.run.config import UsageError, nearest_name

# Characters of one value; a goal is a sentence.
MAX_VALUE_LENGTH = 4000
KEY_PATTERN = re.compile(r"[A-Za-z_][\w.-]*")
# What is often written for a truth value, and for large numbers as in total_timesteps=10k.
SWITCHES = {"yes": "true", "on": "true", "1": "true", "no": "false", "off": "false", "0": "false"}
MULTIPLES = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}
KIND_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "null"}


def split(argument: str, names: Iterable[str] = ()) -> tuple[str, str]:
    """`key=value` -> (key, text), else a UsageError; `names` are the keys that a forgotten = may have meant."""
    key, equals, text = argument.partition("=")
    if not equals:
        raise UsageError(f"{argument!r} is no key=value; {_guess_pair(argument, [*names])}")
    if not KEY_PATTERN.fullmatch(key):
        bare = key.lstrip("-+")
        signs = key.removesuffix(bare)
        fix = "write key=value with the keys that --help lists"
        if signs and KEY_PATTERN.fullmatch(bare):
            fix = f"leave {signs} out and write {bare.replace('-', '_')}={text}"
        raise UsageError(f"{key!r} is no key; {fix}")
    if "_target_" in argument or "${" in argument:
        raise UsageError(f"{key}={shorten(text)} is refused: configurations are data, without _target_ and ${{...}}")
    if len(text) > MAX_VALUE_LENGTH:
        raise UsageError(f"{key} has {len(text):,} characters; give at most {MAX_VALUE_LENGTH:,}")
    return key, text


def _guess_pair(argument: str, names: list[str]) -> str:
    """What was meant by an argument without =, in words."""
    key, colon, text = argument.partition(":")
    if colon and key in names:
        return f"did you mean {key}={text}?"
    if "/" in argument and "run" in names:
        return f"did you mean run={argument}?"
    near = nearest_name(argument.lstrip("-"), names)
    if near:
        return f"did you mean {near}=...?"
    return "try --help"


def refuse_twice(arguments: Iterable[str]) -> None:
    """A UsageError for a key that is given twice, of which only one could count."""
    given: dict[str, str] = {}
    for argument in arguments:
        key, equals, _ = argument.partition("=")
        if equals and key in given:
            raise UsageError(
                f"{key}= is given twice, as {shorten(given[key])} and as {shorten(argument)}; give it once"
            )
        given[key] = argument


def replace_arguments(arguments: Iterable[str], changes: Iterable[str]) -> list[str]:
    """Arguments of which `changes` replace those with the same key."""
    by_key = {argument.partition("=")[0]: argument for argument in (*arguments, *changes)}
    return list(by_key.values())


# A sweep gives most texts again and again, and Hydra takes a millisecond for each.
@functools.lru_cache(maxsize=4096)
def override(text: str) -> Any:
    """What Hydra makes of a text; None if it cannot read it."""
    try:
        from hydra.errors import HydraException
    except ImportError:
        # `runners.doctor` runs where every package is missing.
        return None
    if not text:
        return None
    try:
        return _parser().parse_override(f"key={text}")
    except HydraException:
        return None


@functools.cache
def _parser() -> Any:
    """Hydra's parser, whose table of functions takes as long to make as a text to read."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create()


def read(text: str) -> Any:
    """A number, true, null, [a,b], {a: b} or a text, in quotes or not; what Hydra cannot read is a sentence."""
    parsed = override(text)
    # To Hydra "a pole, upright" is two alternatives, and here it is one sentence.
    if parsed is None or parsed.is_sweep_override():
        return text
    return _plain_value(parsed.value())


def parse(key: str, text: str, kind: Any) -> Any:
    """A text as a field of type `kind` wants it."""
    if kind is str and not text.startswith(('"', "'", "[", "{")):
        return {"null": "", "true": "true", "false": "false"}.get(text.lower(), text)
    return cast(key, read(text), kind)


def cast(key: str, value: Any, kind: Any) -> Any:
    """A value as a field of type `kind` wants it: 1e6 is a whole number, anything is a text; else a UsageError."""
    kinds = (kind,)
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        kinds = typing.get_args(kind)
    if Any in kinds or (value is None and type(None) in kinds):
        return value
    if bool in kinds and (isinstance(value, bool) or value in ("true", "false")):
        return value in (True, "true")
    number = None
    if not isinstance(value, bool):
        # YAML reads 1e-3 as a text.
        with suppress(TypeError, ValueError):
            number = value if isinstance(value, int) else float(value)
    if int in kinds and number is not None and float(number).is_integer():
        return int(number)
    if float in kinds and number is not None:
        return float(number)
    if str in kinds and not isinstance(value, list | dict):
        if value is None:
            return ""
        if isinstance(value, bool):
            return str(value).lower()
        return str(value)
    for option in kinds:
        origin = typing.get_origin(option) or option
        if origin in (list, tuple):
            item_kinds = typing.get_args(option) or (Any,)
            items = value if isinstance(value, list) else [value]
            return [cast(key, item, item_kinds[0]) for item in items]
        if origin is dict and isinstance(value, dict):
            return value
    wanted = " or ".join(KIND_WORDS.get(kind, str(kind)) for kind in kinds)
    raise UsageError(f"{key}={shorten(value)} is not {wanted}{_guess_value(key, value, kinds)}")


def _guess_value(key: str, value: Any, kinds: Iterable[Any]) -> str:
    """The end of a sentence about a value that is none of `kinds`: what was probably meant, or nothing."""
    give_one = "; give one (runners.sweep takes several of a run's keys"
    if isinstance(value, list):
        return f"{give_one}, as in {key}={','.join(map(str, value))})" if value else ""
    text = str(value).strip()
    if bool in kinds and text.lower() in SWITCHES:
        return f"; did you mean {key}={SWITCHES[text.lower()]}?"
    if not {int, float} & {*kinds}:
        return ""
    for opening, closing in ("[]", "()"):
        open_brackets = text.count(opening) - text.count(closing)
        if open_brackets > 0:
            return f"; did you mean '{key}={text}{closing * open_brackets}'?"
    number = _guess_number(text)
    if number is not None:
        return f"; did you mean {key}={int(number) if number.is_integer() else number}?"
    span = re.fullmatch(r"(\d+)(?:-|\.\.)(\d+)", text)
    if span:
        return f"; did you mean '{key}=range({span[1]},{int(span[2]) + 1})', which runners.sweep takes?"
    if "," in text or "range(" in text:
        return f"{give_one})"
    return ""


def _guess_number(text: str) -> float | None:
    """The number of a text that is written as elsewhere: 10k, 1M, 10,000, 99% or 0,001; else None."""
    multiple = re.fullmatch(r"(\d+\.?\d*) ?([kmbg])", text.lower())
    if multiple:
        return float(multiple[1]) * MULTIPLES[multiple[2]]
    percentage = re.fullmatch(r"(\d+\.?\d*) ?%", text)
    if percentage:
        return float(percentage[1]) / 100
    # Other numbers between commas are alternatives, as in 128,256.
    if re.fullmatch(r"[1-9]\d{0,2}(,\d{3})*,000", text):
        return float(text.replace(",", ""))
    if re.fullmatch(r"0,\d{2,}", text):
        return float(text.replace(",", "."))
    return None


def is_number(value: Any) -> bool:
    """Whether it is a number; True is not 1."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_float(text: str) -> bool:
    """Whether a text reads as a number, NaN and infinity among them."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def literal(value: Any) -> str:
    """A value as `read` reads it back."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(literal, value))}]"
    if isinstance(value, dict):
        # Hydra does not take quotes around a key.
        return "{" + ",".join(f"{name}:{literal(item)}" for name, item in value.items()) + "}"
    # In Hydra's quoted strings only a backslash before a quote is special.
    escaped = re.sub(r'(\\*)"', lambda match: match.group(1) * 2 + '\\"', value)
    escaped = re.sub(r"(\\+)$", lambda match: match.group(1) * 2, escaped)
    return f'"{escaped}"'


def literals(values: Mapping[str, Any]) -> list[str]:
    """Arguments of a command line, whose values `read` reads back."""
    return [f"{key}={literal(value)}" for key, value in values.items()]


def shorten(value: Any) -> str:
    """At most 60 characters of it."""
    text = str(value)
    if len(text) <= 60:
        return text
    return text[:57] + "..."


def _plain_value(value: Any) -> Any:
    """Without Hydra's own string class."""
    if isinstance(value, list):
        return list(map(_plain_value, value))
    if isinstance(value, dict):
        return {_plain_value(name): _plain_value(item) for name, item in value.items()}
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(getattr(value, "text", value))
