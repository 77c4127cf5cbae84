"""A table of names on the command line, each with the class behind it, which is imported only when it is used.

ours            a line of table.txt: rnd rewards.exploration.rnd:RND
installed       [project.entry-points."lodestar_rl.rewards"] far = "novelty:Far" in a package's metadata
registered      rewards.register("far", Far) in a program
of a file       novelty:Far, found as Python finds modules; it is called far, after its class, from then on
with a value    lerobot:FOLDER: an entry of ours and the value of one of its options
"""

import difflib
import re
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Generic, TypeVar

T = TypeVar("T")
MODULE_AND_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@cache
def _read_entry_points(group: str, path: tuple[str, ...]) -> EntryPoints:
    return entry_points(group=group)


def installed_entry_points(group: str) -> EntryPoints:
    """Entry points; the metadata of all packages is read once for each `sys.path`, as it takes 10 ms."""
    return _read_entry_points(group, tuple(sys.path))


class Table(Generic[T]):
    """The rewards, or the agents."""

    def __init__(
        self,
        kind: str,
        file: Path,
        needs: tuple[str, ...],
        arguments: dict[str, tuple[str, str]] | None = None,
    ) -> None:
        # What errors call an entry, as in "reward".
        self.kind = kind
        # Name -> "module:Class".
        self.ours: dict[str, str] = {}
        # Name -> the extra of ours without which it cannot be used.
        self.extras: dict[str, str] = {}
        # The attributes that a class must have.
        self.needs = needs
        # What stands before a colon -> the entry and its option that are meant.
        self.arguments = arguments or {}
        # The group of entry points.
        self.group = f"lodestar_rl.{kind}s"
        self.registered: dict[str, type[T]] = {}
        # Name -> the "module:Class" that a user gave.
        self.files: dict[str, str] = {}
        self._read(file)

    def _read(self, file: Path) -> None:
        """A line of the file is a name, its "module:Class" and perhaps the extra that it needs."""
        for line in file.read_text(encoding="utf-8").splitlines():
            if line.startswith("#"):
                continue
            name, source, *extra = line.split()
            self.ours[name] = source
            if extra:
                self.extras[name] = extra[0]

    def plugins(self) -> dict[str, EntryPoint]:
        return {entry.name: entry for entry in installed_entry_points(self.group)}

    def names(self) -> list[str]:
        with_repetitions = [*self.ours, *self.registered, *self.plugins()]
        return list(dict.fromkeys(with_repetitions))

    def register(self, name: str, cls: type[T]) -> None:
        """Make a class available as `name` in this process; raises ValueError if another one has that name."""
        registered = self.registered.get(name, cls)
        # Places, not classes, are compared, because a module may be loaded again.
        if name in self.ours or _place(registered) != _place(cls):
            raise ValueError(f"another {self.kind} is named {name!r}; register {cls.__name__} under another name")
        self.registered[name] = cls

    def split_argument(self, given: Any) -> tuple[Any, dict[str, str]]:
        """Of "lerobot:FOLDER" the entry that is meant and its option; of anything else that itself, and no options."""
        if isinstance(given, str):
            short_name, colon, value = given.partition(":")
            if colon and short_name in self.arguments:
                name, option = self.arguments[short_name]
                return name, {option: value}
        return given, {}

    def name_of(self, given: Any) -> str:
        """The name of a class, or of "module:Class", both of which are registered by it; a name stays as it is.

        A ValueError if there is none, it is of another kind, or its name is taken; an ImportError if its module fails.
        """
        if not isinstance(given, type) and ":" not in str(given):
            return str(given)
        cls = given if isinstance(given, type) else self._load(str(given))
        name = cls.__name__.lower()
        source = f"{cls.__module__}:{cls.__qualname__}"
        for need in self.needs:
            if not hasattr(cls, need):
                raise ValueError(f"{source} is no {self.kind}: it has no `{need}`; extend {self.kind}s.base")
        others = dict(self.ours)
        for key, entry in self.plugins().items():
            others[key] = entry.value
        if others.get(name) == source:
            return name
        if name in others:
            raise ValueError(f"{source} would be called {name!r}, as another {self.kind} is; rename the class")
        self.register(name, cls)
        self.files[name] = source
        return name

    def _load(self, given: str) -> type[T]:
        """The class at "module:Class"."""
        place, _, class_name = given.rpartition(":")
        if not MODULE_AND_CLASS.fullmatch(given) or place.endswith(".py"):
            fix = f"{module_name(place)}:{class_name or 'Class'}"
            raise ValueError(f"{self.kind}={given} is no module:Class; give {fix}")
        # A user's file may raise anything.
        try:
            module = import_module(place)
        except Exception as error:
            package = place.split(".")[0]
            if isinstance(error, ModuleNotFoundError) and error.name == package:
                raise ValueError(
                    f"{self.kind}={given}: there is no module {place!r}; call the command in the folder of "
                    f"{package}.py, or install it"
                ) from None
            raise ImportError(
                f"{self.kind}={given}: importing {place} failed: {type(error).__name__}: {error}"
            ) from error
        cls = getattr(module, class_name, None)
        if isinstance(cls, type):
            return cls
        classes = [name for name, value in vars(module).items() if isinstance(value, type)]
        near = difflib.get_close_matches(class_name, classes, n=1)
        hint = f"; did you mean {place}:{near[0]}?" if near else ""
        raise ValueError(f"{self.kind}={given}: {module.__file__} has no class {class_name!r}{hint}")

    def get(self, name: str) -> type[T]:
        """The class called `name`; a ValueError names the nearest, an ImportError an entry point that fails."""
        name = self.name_of(name)
        if name in self.registered:
            return self.registered[name]
        plugins = installed_entry_points(self.group).select(name=name)
        if name in self.ours and plugins:
            raise ValueError(
                f"the {self.kind} {name!r} is built in, and {plugins[name].value} is installed under the same name; "
                "rename its entry point, or uninstall it"
            )
        names = set()
        for plugin in plugins:
            if plugin.dist:
                names.add(plugin.dist.name)
        if len(names) > 1:
            owners = " and by ".join(sorted(names))
            raise ValueError(
                f"the {self.kind} {name!r} is installed by {owners}; uninstall one, or rename its entry point"
            )
        if name in self.ours:
            return resolve_name(self.ours[name])
        if plugins:
            try:
                return plugins[name].load()
            except Exception as error:
                source = plugins[name].value
                raise ImportError(f"the {self.kind} {name!r} of {source} cannot be imported: {error}") from error
        raise ValueError(f"there is no {self.kind} {name!r}; {suggest_names(name, self.names())}")


def module_name(path: str) -> str:
    """The module that a path names: ./folder/my_file.py is folder.my_file."""
    return re.sub(r"(^\W+)|(\.py$)", "", path).replace("/", ".") or "my_file"


def suggest_names(given: object, names: Sequence[str], there: str = "there are") -> str:
    """The end of a sentence about an unknown name: the nearest of these, or all."""
    near = difflib.get_close_matches(str(given), names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"{there} {', '.join(names) or 'none'}"


def _place(cls: type[Any]) -> tuple[str, str]:
    """Where a class is defined."""
    return cls.__module__, cls.__qualname__
