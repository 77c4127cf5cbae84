"""The frame of every command: `key=value` arguments -> a Config -> a function -> an exit code.

    @dataclass
    class WatchConfig(Settings):
        run: str = setting(help="a run's folder below runs/")     no default: it must be given
        episodes: int = setting(3, "how many", ">= 1")
        env_options: Values = setting({}, "...")           collects env.<name>=
        rest: list[str] = setting([], "...")                       collects the arguments that are no key of these

    main = Command(WatchConfig, watch, __doc__)

`--help` is the docstring and the declarations. Every mistake is one sentence with the nearest name, every expected
error one sentence with its exit code (`runners.run.exits`).
"""

import dataclasses
import os
import sys
import traceback
import typing
from collections.abc import Callable, Collection
from contextlib import nullcontext
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from lodestar.settings import declarations, settings_of
from runners.cli.declared import key_of
from runners.run.config import UsageError, Values, describe_unknown
from runners.run.output import lasting_output, signs_of_life
from runners.run.trust import admit, mask_secrets, refuse
from runners.run.value import cast, parse, read, refuse_twice, split

# Ends the name of a field that collects <name>.<key>.
OPTIONS = "_options"
# The field that collects every other argument.
REST = "rest"
# Columns of the help that keys take: those of a verb, and the longer ones of a reward or an agent.
KEY_WIDTH = 23
OPTION_KEY_WIDTH = 43


@dataclass(frozen=True)
class Command:
    """What stands behind `python -m runners.<name>`; calling it runs the command line."""

    # What the arguments are parsed into; None hands them over as they are.
    config: type | None
    # Does the work; returns an exit code, or None for 0.
    run: Callable[[Any], int | None]
    # The help's text, before the keys.
    doc: str | None = None
    _: dataclasses.KW_ONLY
    # Whether it works without arguments.
    bare: bool = False
    # The line printed after Ctrl-C or SIGTERM; "" where `run` prints its own.
    stopped: str = "stopped"
    # What it says where it has printed nothing for seconds; "" for what waits for a person.
    busy: str = "at work"
    # Makes the whole help, instead of `doc` and the keys.
    help: Callable[[], str] | None = None

    @lasting_output()
    def __call__(self, argv: list[str] | None = None) -> int:
        """Run a command line; returns the exit code."""
        is_typed = argv is None
        if argv is None:
            argv = sys.argv[1:]
            # Where Python does not search the working directory, the processes that a command starts do not either.
            if not {"", os.getcwd()} & {*sys.path}:
                os.environ.setdefault("PYTHONSAFEPATH", "1")
        if "-h" in argv or "--help" in argv or not (argv or self.bare):
            print(self.text())
            return 0 if argv else 2
        try:
            # A program may append an argument to replace another one; who types both has made a mistake.
            if is_typed:
                refuse_twice(argv)
            with signs_of_life(self.busy) if is_typed and self.busy else nullcontext():
                return self.run(argv if self.config is None else self.parse(argv)) or 0
        except UsageError as error:
            # The most frequent error is shown without the slow imports below.
            return print_failure(error.exit_code, mask_secrets(str(error)), error)
        except KeyboardInterrupt:
            code = 130
        except BaseException as error:
            from runners.run.exits import Failed, Stopped, explain

            if isinstance(error, Exception | SystemExit):
                code, sentence = explain(error)
                return print_failure(code, sentence, error.__cause__ if isinstance(error, Failed) else error)
            if not isinstance(error, Stopped):
                raise
            code = error.code
        if self.stopped:
            print(self.stopped)
        return code

    def parse(self, argv: list[str]) -> Any:
        """The Config that the arguments describe, else a UsageError; a ValueError if it refuses a value."""
        assert self.config is not None
        refuse(argv)
        admit(argv)
        hints = typing.get_type_hints(self.config)
        groups = {}
        keys = {}
        fields = declarations(self.config)
        for name in fields:
            if name.endswith(OPTIONS):
                groups[name.removesuffix(OPTIONS)] = name
            elif name != REST:
                keys[key_of(name)] = name
        values = {}
        for argument in argv:
            key, equals, _ = argument.partition("=")
            group, dot, option = key.partition(".")
            if equals and key in keys:
                name = keys[key]
                values[name] = _parse_field(key, split(argument)[1], hints[name])
            elif equals and dot and group in groups:
                values.setdefault(groups[group], {})[option] = read(split(argument)[1])
            elif REST in fields:
                values.setdefault(REST, []).append(argument)
            else:
                split(argument, keys)
                raise UsageError(describe_unknown("key", key, [*keys, *(f"{group}." for group in groups)]))
        for name in _required_fields(self.config):
            if name not in values:
                raise UsageError(f"{key_of(name)}= is missing; give {fields[name].help}")
        return self.config(**values)

    def text(self) -> str:
        """What `--help` prints."""
        if self.help is not None:
            text = self.help()
        else:
            text = (self.doc or "").rstrip()
            if self.config is not None:
                text += "\n\nkeys\n" + options_text(self.config)
        # A reader who uses the short command sees it in the help, too.
        if Path(sys.argv[0]).stem == "lodestar":
            text = text.replace("python -m runners.", "lodestar ")
        return text


def _parse_field(key: str, text: str, kind: Any) -> Any:
    """A text as a field of type `kind` wants it; the brackets of a list may be left out."""
    if typing.get_origin(kind) is not list:
        return parse(key, text, kind)
    value = read(text)
    # What is in brackets has become a list, so this is a,b or a sentence.
    if isinstance(value, str) and "," in text:
        value = [read(part.strip()) for part in text.split(",")]
    return cast(key, value, kind)


def _required_fields(config: type) -> list[str]:
    names = []
    for field in dataclasses.fields(config):
        if field.default is MISSING and field.default_factory is MISSING:
            names.append(field.name)
    return names


def options_text(
    config: type,
    prefix: str = "",
    hidden: Collection[str] = (),
    defaults: dict[str, str] | None = None,
) -> str:
    """A line for each field of a Config that is not `hidden`: its key with the default, what it is, its range."""
    required = _required_fields(config)
    width = OPTION_KEY_WIDTH if prefix else KEY_WIDTH
    lines = []
    for name, default, declared in settings_of(config):
        if name in hidden:
            continue
        key = key_of(name)
        if name.endswith(OPTIONS):
            key = f"{name.removesuffix(OPTIONS)}.<name>"
        default_text = argument_text(default)
        if name in required or isinstance(default, dict):
            default_text = ""
        if defaults and name in defaults:
            default_text = defaults[name]
        assignment = "..." if name == REST else f"{prefix}{key}={default_text}"
        words = declared.help
        # Choices that the help names already are not listed again.
        if not declared.choices or any(str(choice) not in words for choice in declared.choices):
            words += f" ({declared.range})" if declared.range else ""
        if declared.tune:
            words += f" {{tune: {argument_text(declared.tune)}}}"
        lines.append(f"  {assignment:<{width}} {words}".rstrip())
    return "\n".join(lines)


def changes_from_defaults(options: Any) -> Values:
    """What a Config sets otherwise than its defaults."""
    defaults = type(options)()
    changes = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if value != getattr(defaults, field.name):
            changes[field.name] = value
    return changes


def argument_text(value: Any) -> str:
    """A value as a command line writes it; "" for a field without a default."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(argument_text, value))}]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def print_failure(code: int, sentence: str, error: BaseException | None = None) -> int:
    """Print the sentence about an error, or the traceback where there is none; returns the exit code."""
    if error is not None and (not sentence or os.environ.get("LODESTAR_DEBUG")):
        print(mask_secrets("".join(traceback.format_exception(error))), file=sys.stderr)
    if sentence:
        print(f"error: {sentence}", file=sys.stderr)
    return code
