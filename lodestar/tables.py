"""A table of names on the command line, each with the class behind it, which is imported only when it is used.

ours            a line in the table: "rnd": "rewards.exploration.rnd:RND"
installed       [project.entry-points."lodestar_rl.rewards"] far = "novelty:Far" in a package's metadata
registered      rewards.register("far", Far) in a program
of a file       novelty:Far, found as Python finds modules; it is called far, after its class, from then on
"""

import difflib
import re
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pkgutil import resolve_name
from typing import Any, Generic, TypeVar

T = TypeVar("T")
FILED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")  # module:Class


@cache
def _installed(group: str, path: tuple[str, ...]) -> EntryPoints:
    return entry_points(group=group)


def installed(group: str) -> EntryPoints:
    """Entry points; the metadata of all packages is read once for each `sys.path`, as it takes 10 ms."""
    return _installed(group, tuple(sys.path))


class Table(Generic[T]):
    """The rewards, or the agents."""

    def __init__(self, kind: str, ours: dict[str, str], needs: tuple[str, ...]) -> None:
        self.kind = kind  # in errors, as in "reward"
        self.ours = ours  # name -> "module:Class"
        self.needs = needs  # what a class must have
        self.group = f"lodestar_rl.{kind}s"  # of entry points
        self.registered: dict[str, type[T]] = {}
        self.files: dict[str, str] = {}  # name -> the "module:Class" that a user gave

    def plugins(self) -> dict[str, EntryPoint]:
        return {entry.name: entry for entry in installed(self.group)}

    def names(self) -> list[str]:
        return list(dict.fromkeys([*self.ours, *self.registered, *self.plugins()]))

    def register(self, name: str, cls: type[T]) -> None:
        """Make a class available as `name` in this process; raises ValueError if another one has that name."""
        known = self.registered.get(name, cls)
        if name in self.ours or _place(known) != _place(cls):  # a module may be loaded again
            raise ValueError(f"another {self.kind} is named {name!r}; register {cls.__name__} under another name")
        self.registered[name] = cls

    def name_of(self, given: Any) -> str:
        """The name of a class, or of "module:Class", both of which are registered by it; a name stays as it is.

        A ValueError if there is none, it is of another kind, or its name is taken; an ImportError if its module fails.
        """
        if not isinstance(given, type) and ":" not in str(given):
            return str(given)
        cls = given if isinstance(given, type) else self._load(str(given))
        name, source = cls.__name__.lower(), f"{cls.__module__}:{cls.__qualname__}"
        if missing := next((need for need in self.needs if not hasattr(cls, need)), None):
            raise ValueError(f"{source} is no {self.kind}: it has no `{missing}`; extend {self.kind}s.base")
        others = self.ours | {key: entry.value for key, entry in self.plugins().items()}
        if others.get(name) == source:
            return name
        if name in others:
            raise ValueError(f"{source} would be called {name!r}, as another {self.kind} is; rename the class")
        self.register(name, cls)
        self.files[name] = source
        return name

    def _load(self, given: str) -> type[T]:
        module, _, attribute = given.rpartition(":")
        if not FILED.fullmatch(given) or module.endswith(".py"):
            fix = f"{module_name(module)}:{attribute or 'Class'}"
            raise ValueError(f"{self.kind}={given} is no module:Class; give {fix}")
        try:
            found = import_module(module)
        except Exception as error:  # whatever the file does
            if isinstance(error, ModuleNotFoundError) and error.name == module.split(".")[0]:
                raise ValueError(
                    f"{self.kind}={given}: there is no module {module!r}; call the command in the folder of "
                    f"{module.split('.')[0]}.py, or install it"
                ) from None
            raise ImportError(
                f"{self.kind}={given}: importing {module} failed: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(cls := getattr(found, attribute, None), type):
            near = difflib.get_close_matches(attribute, [k for k, v in vars(found).items() if isinstance(v, type)], n=1)
            hint = f"; did you mean {module}:{near[0]}?" if near else ""
            raise ValueError(f"{self.kind}={given}: {found.__file__} has no class {attribute!r}{hint}")
        return cls

    def get(self, name: str) -> type[T]:
        """The class called `name`; a ValueError names the nearest, an ImportError an entry point that fails."""
        name = self.name_of(name)
        if name in self.registered:
            return self.registered[name]
        plugins = installed(self.group).select(name=name)
        if name in self.ours and plugins:
            raise ValueError(
                f"the {self.kind} {name!r} is built in, and {plugins[name].value} is installed under the same name; "
                "rename its entry point, or uninstall it"
            )
        owners = sorted({plugin.dist.name for plugin in plugins if plugin.dist})
        if len(owners) > 1:
            raise ValueError(
                f"the {self.kind} {name!r} is installed by {' and by '.join(owners)}; uninstall one, or rename its "
                "entry point"
            )
        if name in self.ours:
            return resolve_name(self.ours[name])
        if plugins:
            try:
                return plugins[name].load()
            except Exception as error:
                what = f"the {self.kind} {name!r} of {plugins[name].value}"
                raise ImportError(f"{what} cannot be imported: {error}") from error
        raise ValueError(f"there is no {self.kind} {name!r}; {nearest(name, self.names())}")


def module_name(path: str) -> str:
    """The module that a path names: ./folder/my_file.py is folder.my_file."""
    return re.sub(r"(^\W+)|(\.py$)", "", path).replace("/", ".") or "my_file"


def nearest(given: object, names: Sequence[str], there: str = "there are") -> str:
    """The end of a sentence about an unknown name: the nearest of these, or all."""
    near = difflib.get_close_matches(str(given), names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"{there} {', '.join(names) or 'none'}"


def _place(cls: type[Any]) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__
