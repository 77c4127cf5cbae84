"""The frame of every command: `key=value` arguments -> a Config -> a function -> an exit code.

    @dataclass
    class WatchConfig(Settings):
        run: str = setting(help="a run's folder below runs/")     no default: it must be given
        episodes: int = setting(3, "how many", low=1)
        env_options: dict[str, Any] = setting({}, "...")           collects env.<name>=
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
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lodestar.settings import declarations, described
from runners.cli.declared import key_of
from runners.cli.output import lasting_output
from runners.cli.value import cast, parse, read, refuse_twice, split
from runners.run.config import UsageError, unknown
from runners.run.packages import name_collision
from runners.run.trust import admit, masked, refuse

OPTIONS = "_options"  # ends the name of a field that collects <name>.<key>
REST = "rest"  # the field that collects every other argument


@dataclass(frozen=True)
class Command:
    """What stands behind `python -m runners.<name>`; calling it runs the command line."""

    config: type | None  # what the arguments are parsed into; None hands them over as they are
    run: Callable[[Any], int | None]  # does the work; returns an exit code, or None for 0
    doc: str | None = None  # the help's text, before the keys
    _: dataclasses.KW_ONLY
    bare: bool = False  # whether it works without arguments
    stopped: str = "stopped"  # the line printed after Ctrl-C or SIGTERM; "" where `run` prints its own
    help: Callable[[], str] | None = None  # makes the whole help, instead of `doc` and the keys

    def __call__(self, argv: list[str] | None = None) -> int:
        """Run a command line; returns the exit code."""
        with lasting_output():
            return self._call(argv)

    def _call(self, argv: list[str] | None) -> int:
        typed, argv = argv is None, sys.argv[1:] if argv is None else argv
        if typed and not {"", os.getcwd()} & {*sys.path}:
            os.environ.setdefault("PYTHONSAFEPATH", "1")  # the processes that it starts do not search there either
        if collision := name_collision():
            return failed(2, collision)
        if {"-h", "--help"} & set(argv) or not (argv or self.bare):
            print(self.text())
            return 0 if argv else 2
        try:
            if typed:  # in a program, what is appended replaces
                refuse_twice(argv)
            return self.run(argv if self.config is None else self.parse(argv)) or 0
        except UsageError as error:  # known without the imports below
            return failed(error.exit_code, masked(str(error)), error)
        except KeyboardInterrupt:
            code: int = 130
        except BaseException as error:
            from runners.run.exits import Failed, Stopped, explain

            if not isinstance(error, Exception | SystemExit | Stopped):
                raise
            if not isinstance(error, Stopped):
                code, sentence = explain(error)
                return failed(code, sentence, error.__cause__ if isinstance(error, Failed) else error)
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
        fields = {field.name: field for field in dataclasses.fields(self.config) if field.init}
        groups = {name.removesuffix(OPTIONS): name for name in fields if name.endswith(OPTIONS)}
        keys = {key_of(name): name for name in fields if name not in groups.values() and name != REST}
        values: dict[str, Any] = {}
        for argument in argv:
            key = argument.partition("=")[0]
            group, dot, option = key.partition(".")
            if "=" in argument and key in keys:
                hint, text = hints[keys[key]], split(argument)[1]
                listed = typing.get_origin(hint) is list
                values[keys[key]] = cast(key, _listed(text), hint) if listed else parse(key, text, hint)
            elif "=" in argument and dot and group in groups:
                values.setdefault(groups[group], {})[option] = read(split(argument)[1])
            elif REST in fields:
                values.setdefault(REST, []).append(argument)
            else:
                split(argument, keys)
                raise UsageError(unknown("key", key, [*keys, *(f"{group}." for group in groups)]))
        for name, field in fields.items():
            if name not in values and field.default is MISSING and field.default_factory is MISSING:
                help = declarations(self.config)[name].help
                raise UsageError(f"{key_of(name)}= is missing; give {help}")
        return self.config(**values)

    def text(self) -> str:
        """What `--help` prints."""
        keys = "" if self.config is None else "\n\nkeys\n" + options_text(self.config)
        text = (self.doc or "").rstrip() + keys if self.help is None else self.help()
        short = Path(sys.argv[0]).stem == "lodestar"  # the reader uses the short command
        return text.replace("python -m runners.", "lodestar ") if short else text


def _listed(text: str) -> Any:
    """a,b as [a,b]; what is in brackets, and a sentence in quotes, as it is."""
    value = read(text)
    return [read(part.strip()) for part in text.split(",")] if isinstance(value, str) and "," in text else value


def options_text(
    config: type,
    prefix: str = "",
    hidden: Collection[str] = (),
    defaults: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """A line for each field of a Config that is not `hidden`: its key with the default, what it is, its range."""
    needed = {f.name for f in dataclasses.fields(config) if f.default is MISSING and f.default_factory is MISSING}
    lines = []
    for name, default, declared in described(config):
        if name in hidden:
            continue
        key = prefix + (f"{name.removesuffix(OPTIONS)}.<name>" if name.endswith(OPTIONS) else key_of(name))
        default = "" if name in needed or isinstance(default, dict) else written(default)
        left = "..." if name == REST else f"{key}={defaults.get(name, default)}"
        words = declared.help
        if not (declared.choices and all(str(choice) in words for choice in declared.choices)):
            words += f" ({declared.range})" if declared.range else ""
        tune = f" {{tune: {written(list(declared.tune))}}}" if declared.tune else ""
        lines.append(f"  {left:<{43 if prefix else 23}} {words}{tune}".rstrip())
    return "\n".join(lines)


def changed(options: Any) -> dict[str, Any]:
    """What a Config sets otherwise than its defaults."""
    plain = type(options)()
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    return {name: value for name, value in values.items() if value != getattr(plain, name)}


def written(value: Any) -> str:
    """A value as a command line writes it; "" for a field without a default."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(written, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def failed(code: int, sentence: str, error: BaseException | None = None) -> int:
    """Print the sentence about an error, or the traceback where there is none; returns the exit code."""
    if error is not None and (not sentence or os.environ.get("LODESTAR_DEBUG")):
        print(masked("".join(traceback.format_exception(error))), file=sys.stderr)
    if sentence:
        print(f"error: {sentence}", file=sys.stderr)
    return code
